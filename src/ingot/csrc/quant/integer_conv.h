/* integer_conv.h: shared by integer convolutions: the zero point and step of an image, and the terms that zero points
 * add to the sums of products. */
#ifndef INGOT_INTEGER_CONV_H
#define INGOT_INTEGER_CONV_H

#include "quant/integer.h"

/* The zero point of an image of x, as u8. */
static inline int32_t integer_zero(const integer_args *g, int64_t image) {
  const uint8_t *zero = g->x_zero;
  return (zero ? zero[image * g->x_zero_step] : 0) ^ g->x_flip;
}

/* The epilogue store of an image. */
static inline integer_store integer_store_of(const integer_args *g, int64_t image) {
  integer_store f = {
    .scale = g->scale, .shift = g->shift, .scale_step = g->scale_step, .step = g->steps ? g->steps[image] : 1.0f,
    .act_alpha = g->act_alpha, .act_beta = g->act_beta, .activation = g->activation, .result = g->result,
    .out_scale = g->out_scale, .out_zero = g->out_zero, .residual = g->residual, .residual_type = g->residual_type,
    .residual_first = g->residual_first, .residual_scale = g->residual_scale, .residual_zero = g->residual_zero,
    .middle_scale = g->middle_scale, .middle_low = g->middle_low, .middle_high = g->middle_high};
  integer_vectorize(&f);
  return f;
}

/* The terms added to the sums of up to 32 columns: (x - zero) (w - w_zero) = x w - zero w - w_zero x + zero w_zero,
 * over k products a column. zeros: each column's w_zero, by which sums of x are multiplied. */
static inline void integer_added(const integer_args *g, int64_t k, int32_t zero, int64_t channel, int64_t columns,
                                 int32_t *added, int32_t *zeros) {
  const uint8_t *w_zero = g->weight_zero;
  memset(added, 0, INGOT_PANEL * sizeof *added);
  memset(zeros, 0, INGOT_PANEL * sizeof *zeros);
  for (int64_t j = 0; j < columns; j++) {
    if (w_zero) zeros[j] = (int8_t)(w_zero[(channel + j) * g->weight_zero_step] ^ g->weight_flip);
    const int32_t sum = g->column_sums[channel + j] - (g->weight_flip ? 128 * (int32_t)k : 0);
    added[j] = (g->bias ? g->bias[channel + j] : 0) - zero * (sum - (int32_t)k * zeros[j]);
  }
}

#endif

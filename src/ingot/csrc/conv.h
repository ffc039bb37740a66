/* conv.h: what convolutions read of images of either kind, floats or with `narrow` bf16, and where their results go. */
#ifndef INGOT_CONV_H
#define INGOT_CONV_H

#include "gemm.h"

/* Elements [at, at + lanes) of x as floats; 16 of them at most, behind which are zeros. */
static inline __attribute__((always_inline)) vf conv_load(const int narrow, const void *x, int64_t at, int64_t lanes) {
  if (!narrow) return lanes < 16 ? v_load_n((const float *)x + at, lanes) : v_load((const float *)x + at);
  if (lanes == 16) return v_load_bf16((const uint16_t *)x + at);
  uint16_t some[16] = {0};
  for (int64_t i = 0; i < lanes; i++) some[i] = ((const uint16_t *)x)[at + i];
  return v_load_bf16(some);
}

/* Where an output pixel lies. */
typedef struct { int64_t image, y, x; } conv_pixel;

static inline conv_pixel conv_pixel_at(const conv_args *g, int64_t pixel) {
  return (conv_pixel){pixel / g->out_width / g->out_height, pixel / g->out_width % g->out_height,
                      pixel % g->out_width};
}

/* The epilogue of channels from `channel` on, for output pixels that lie evenly from `at` on. */
static inline gemm_epilogue conv_epilogue(const conv_args *g, conv_pixel at) {
  const int64_t residual = at.image * g->residual_strides[0] + at.y * g->residual_strides[1] +
                           at.x * g->residual_strides[2];
  const int64_t rounded = at.image * g->rounded_strides[0] + at.y * g->rounded_strides[1] +
                          at.x * g->rounded_strides[2];
  return (gemm_epilogue){g->bias, g->slopes, NULL, g->residual ? g->residual + residual : NULL,
                         g->residual_strides[2], 1.0f, g->act_alpha, g->act_beta, g->activation, g->residual_first,
                         g->rounded ? g->rounded + rounded : NULL, g->rounded_strides[2]};
}

static inline float *conv_out(const conv_args *g, conv_pixel at) {
  return g->out ? g->out + at.image * g->out_strides[0] + at.y * g->out_strides[1] + at.x * g->out_strides[2] : NULL;
}

#endif

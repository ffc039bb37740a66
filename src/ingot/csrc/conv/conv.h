/* conv.h: shared by convolutions: loads from images of floats or, with `narrow`, bf16, and epilogues of output
 * pixels. */
#ifndef INGOT_CONV_H
#define INGOT_CONV_H

#include "gemm/gemm.h"

/* Elements [at, at + lanes) of x as floats; at most 16, zero-padded. */
static inline __attribute__((always_inline)) vf conv_load(const int narrow, const void *x, int64_t at, int64_t lanes) {
  if (!narrow) return lanes < 16 ? v_load_n((const float *)x + at, lanes) : v_load((const float *)x + at);
  if (lanes == 16) return v_load_bf16((const uint16_t *)x + at);
  uint16_t some[16] = {0};
  for (int64_t i = 0; i < lanes; i++) some[i] = ((const uint16_t *)x)[at + i];
  return v_load_bf16(some);
}

/* The coordinates of an output pixel. */
typedef struct { int64_t image, y, x; } conv_pixel;

static inline conv_pixel conv_pixel_at(const conv_args *g, int64_t pixel) {
  return (conv_pixel){pixel / g->out_width / g->out_height, pixel / g->out_width % g->out_height,
                      pixel % g->out_width};
}

/* The epilogue of channels from `channel` on, for evenly spaced output pixels from `at` on. */
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

/* Apply the epilogue to sums[count][32] of channels from `channel` on, for evenly spaced output pixels. */
static inline void conv_apply(const gemm_epilogue *e, int64_t channel, int64_t count, int64_t columns,
                              const float *sums, float *out, int64_t out_stride) {
  if (columns % 16 || !epilogue_is_vectorized(e)) {
    epilogue_apply(e, 0, channel, count, columns, sums, INGOT_PANEL, out, out_stride);
    return;
  }
  const gemm_store store = epilogue_store(e, 0, channel, out, out_stride);
  for (int64_t j = 0; j < columns; j += 16) {
    const vf bias = store.bias ? v_load(store.bias + j) : v_set(-0.0f);
    for (int64_t i = 0; i < count; i++) store_sums(&store, bias, i, j, v_load(sums + i * INGOT_PANEL + j));
  }
}

/* Whether tasks divide the panels of a filter rather than the `units` that it is applied to, `most` at a time: if the
 * filter is larger than the L2 cache and a task then reads clearly less of it. */
static inline int conv_by_panels(int64_t elements, int64_t units, int64_t most, int32_t num_tasks) {
  const int64_t own = (units + num_tasks - 1) / num_tasks, blocks = (own + most - 1) / most;
  return elements > 1 << 18 && 4 * ((units + most - 1) / most) < 3 * num_tasks * blocks;
}

#endif

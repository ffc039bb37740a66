/* conv.h: what convolutions read of images of either kind: floats, or with `narrow` bf16. */
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

#endif

/* attention.h: softmax weights from scores in units of log2(e), as powers of two. */
#ifndef INGOT_ATTENTION_H
#define INGOT_ATTENTION_H

#include <math.h>

#include "kernel.h"

#define INGOT_LOG2E 0x1.715476p+0f

static const float attention_lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* 2^(x - shift) for x <= shift, at most 1.5 ULP; 0 below 2^-126.5, because scaling by 2^-127 gives 0. NaN stays NaN. */
static inline vf attention_power(vf x, vf shift) {
  const vf magic = v_set(0x1.8p23f + 127);
  x = v_max(v_set(-127), v_sub(x, shift));
  const vf shifted = v_add(x, magic);
  const vf f = v_sub(x, v_sub(shifted, magic));
  vf p = v_fma(v_set(0x1.5bdad8p-10f), f, v_set(0x1.3ce8b2p-7f));
  p = v_fma(p, f, v_set(0x1.c6b6d8p-5f));
  p = v_fma(p, f, v_set(0x1.ebf9c2p-3f));
  p = v_fma(p, f, v_set(0x1.62e42ap-1f));
  p = v_fma(p, f, v_set(1));
  return v_mul(p, v_from_bits(vi_shl(v_bits(shifted), 23)));
}

#endif

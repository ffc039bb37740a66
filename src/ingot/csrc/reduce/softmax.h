/* softmax.h: the sum of softmax over a row of adjacent elements: e^(x - max), which never overflows. */
#ifndef INGOT_SOFTMAX_H
#define INGOT_SOFTMAX_H

#include "kernel.h"
#include "math/vmath.h"

static inline float softmax_max(const float *x, int64_t cols) {
  vf m = v_set(-INFINITY);
  int64_t i = 0;
  for (; i + 16 <= cols; i += 16) m = v_max(v_load(x + i), m);
  if (i < cols) m = v_max(v_below(cols - i, v_load_n(x + i, cols - i), -INFINITY), m);
  return v_max_across(m);
}

/* The sum of e^(x - max) over the row, in chunks of 16 lanes; the exponentials go to `out` unless it is null. */
static inline float softmax_sum(const float *x, float max, int64_t cols, float *out) {
  float total = 0;
  vf m = v_set(max);
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK) {
    int64_t end = cols - begin < INGOT_REDUCE_CHUNK ? cols : begin + INGOT_REDUCE_CHUNK, i = begin;
    vf sum = v_set(0);
    for (; i + 16 <= end; i += 16) {
      vf e = v_exp_negative(v_sub(v_load(x + i), m));
      if (out) v_store(out + i, e);
      sum = v_add(sum, e);
    }
    if (i < end) {
      vf e = v_below(end - i, v_exp_negative(v_sub(v_load_n(x + i, end - i), m)), 0);
      if (out) v_store_n(out + i, e, end - i);
      sum = v_add(sum, e);
    }
    total = begin ? total + v_sum(sum) : v_sum(sum);
  }
  return total;
}

#endif

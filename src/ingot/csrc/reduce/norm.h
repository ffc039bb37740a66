/* norm.h: the mean of a norm as a sum of two floats, and the normalisation with it. A row's pivot is subtracted before
 * its elements are summed (the shifted data of Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance",
 * 1983), so that a mean far from zero costs no precision of the differences from it. */
#ifndef INGOT_NORM_H
#define INGOT_NORM_H

#include <math.h>

#include "kernel.h"

/* Mean = high + low, where high is the nearest float. */
typedef struct { vf high; vf low; } norm_centre;

/* The median of a row's first three elements, or its first element: a single outlier among them is never selected. */
static inline float norm_pivot(const float *x, int64_t cols) {
  if (cols < 3) return x[0];
  const float least = x[0] < x[1] ? x[0] : x[1], most = x[0] < x[1] ? x[1] : x[0];
  const float rest = most < x[2] ? most : x[2];
  return least < rest ? rest : least;
}

/* pivot + offset, exactly (Knuth, "The Art of Computer Programming", volume 2, 4.2.2). */
static inline norm_centre norm_centre_of(vf pivot, vf offset) {
  const vf high = v_add(pivot, offset), shift = v_sub(high, pivot);
  return (norm_centre){high, v_add(v_sub(pivot, v_sub(high, shift)), v_sub(offset, shift))};
}

/* 1 / sqrt(variance + eps); squares: the sum of the `count` squared differences from `high`. */
static inline vf norm_scale(vf squares, vf low, vf count, vf eps) {
  const vf variance = v_max(v_set(0), v_fma(v_sub(v_set(0), low), low, v_div(squares, count)));
  return v_div(v_set(1), v_sqrt(v_add(variance, eps)));
}

/* The remaining term of (x - high) scale. -0 changes nothing, neither the sign of a zero nor an infinite scale. */
static inline vf norm_shift(vf low, vf scale) {
  return v_select(v_eq(low, v_set(0)), v_set(-0.0f), v_mul(v_sub(v_set(0), low), scale));
}

/* (x - mean) scale weight + bias. */
static inline vf norm_element(vf x, vf high, vf scale, vf shift, vf weight, vf bias) {
  return v_fma(v_fma(v_sub(x, high), scale, shift), weight, bias);
}

#endif

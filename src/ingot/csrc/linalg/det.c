/* det.c: determinants, by Gaussian elimination with partial pivoting. */
#include <math.h>

#include "kernel.h"

/* The row from k on with the largest element of column k; NaN counts as the largest. */
static inline int64_t det_pivot(const double *a, int64_t n, int64_t k) {
  int64_t best = k;
  for (int64_t i = k + 1; i < n; i++)
    if (!(fabs(a[i * n + k]) <= fabs(a[best * n + k])) && !isnan(a[best * n + k])) best = i;
  return best;
}

/* The determinant of a[n, n], which is overwritten. */
static inline double det_of(double *a, int64_t n) {
  double det = 1.0;
  for (int64_t k = 0; k < n; k++) {
    const int64_t pivot = det_pivot(a, n, k);
    for (int64_t j = k; j < n && pivot != k; j++) {
      const double swapped = a[k * n + j];
      a[k * n + j] = a[pivot * n + j], a[pivot * n + j] = swapped;
    }
    const double first = a[k * n + k];
    det *= pivot == k ? first : -first;
    if (first == 0.0) continue;
    for (int64_t i = k + 1; i < n; i++) {
      const double factor = a[i * n + k] / first;
      for (int64_t j = k + 1; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return det;
}

#define DET(name, type)                                                                                                \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const det_args *args = p;                                                                                          \
    double *a = (double *)(void *)(args->scratch + task * args->scratch_stride);                                       \
    const int64_t size = args->n * args->n;                                                                            \
    const int64_t end = task_begin(args->count, task + 1, num_tasks);                                                  \
    for (int64_t i = task_begin(args->count, task, num_tasks); i < end; i++) {                                         \
      const type *x = (const type *)args->x + i * size;                                                                \
      for (int64_t j = 0; j < size; j++) a[j] = (double)x[j];                                                          \
      ((type *)args->out)[i] = (type)det_of(a, args->n);                                                               \
    }                                                                                                                  \
  }

DET(det_f32, float)
DET(det_f64, double)

#undef DET

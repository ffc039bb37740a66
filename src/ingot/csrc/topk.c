/* topk.c: the k largest or smallest of rows of adjacent elements, in order, and where they are. Equal ones keep their
 * order; NaN is larger than anything. */
#include "kernel.h"

/* Whether a comes before b, which stands before it in the row. */
static inline int topk_before(float a, float b, int32_t largest) {
  if (a != a || b != b) return largest ? a != a && b == b : a == a && b != b;
  return largest ? a > b : a < b;
}

void K(topk_f32)(const void *p, int32_t part, int32_t parts) {
  const topk_args *args = p;
  const int64_t end = part_begin(args->rows, part + 1, parts), k = args->k;
  for (int64_t row = part_begin(args->rows, part, parts); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * k;
    int64_t *indices = args->indices + row * k, count = 0;
    for (int64_t i = 0; i < args->cols && k > 0; i++) {
      if (count == k && !topk_before(x[i], out[k - 1], args->largest)) continue;
      int64_t at = count < k ? count++ : k - 1;
      for (; at > 0 && topk_before(x[i], out[at - 1], args->largest); at--) {
        out[at] = out[at - 1];
        indices[at] = indices[at - 1];
      }
      out[at] = x[i];
      indices[at] = i;
    }
  }
}

/* topk.c: the k largest or smallest of rows of adjacent elements, in order, and where they are. Equal ones keep their
 * order; NaN is larger than anything. */
#include "kernel.h"

/* Whether a comes before b, which stands before it in the row. */
static inline int topk_before(float a, float b, int32_t largest) {
  if (a != a || b != b) return largest ? a != a && b == b : a == a && b != b;
  return largest ? a > b : a < b;
}

/* Whether entry a of a row comes before entry b in its result: an order without ties. */
static inline int topk_entry_before(const float *values, const int64_t *indices, int64_t a, int64_t b,
                                    int32_t largest) {
  if (topk_before(values[a], values[b], largest)) return 1;
  return !topk_before(values[b], values[a], largest) && indices[a] < indices[b];
}

static inline void topk_swap(float *values, int64_t *indices, int64_t a, int64_t b) {
  const float value = values[a];
  const int64_t index = indices[a];
  values[a] = values[b], indices[a] = indices[b];
  values[b] = value, indices[b] = index;
}

/* Lets an entry of a heap of `count`, in which none comes before those below it, sink to its place. */
static inline void topk_sink(float *values, int64_t *indices, int64_t at, int64_t count, int32_t largest) {
  for (int64_t child = 2 * at + 1; child < count; at = child, child = 2 * at + 1) {
    if (child + 1 < count && topk_entry_before(values, indices, child, child + 1, largest)) child++;
    if (!topk_entry_before(values, indices, at, child, largest)) return;
    topk_swap(values, indices, at, child);
  }
}

/* A heap of the k best so far with the last of them on top, in the place of the result, which is sorted from behind.
 * Williams, "Algorithm 232: Heapsort", 1964. */
void K(topk_f32)(const void *p, int32_t part, int32_t parts) {
  const topk_args *args = p;
  const int64_t end = part_begin(args->rows, part + 1, parts), k = args->k;
  const int32_t largest = args->largest;
  for (int64_t row = part_begin(args->rows, part, parts); row < end && k > 0; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * k;
    int64_t *indices = args->indices + row * k;
    for (int64_t i = 0; i < k; i++) out[i] = x[i], indices[i] = i;
    for (int64_t i = k / 2; i-- > 0;) topk_sink(out, indices, i, k, largest);
    for (int64_t i = k; i < args->cols; i++) {
      if (!topk_before(x[i], out[0], largest)) continue;
      out[0] = x[i], indices[0] = i;
      topk_sink(out, indices, 0, k, largest);
    }
    for (int64_t i = k - 1; i > 0; i--) {
      topk_swap(out, indices, 0, i);
      topk_sink(out, indices, 0, i, largest);
    }
  }
}

/* topk.c: the k largest or smallest of rows of adjacent elements, in order, and where they are. Equal ones keep their
 * order; NaN is larger than anything. */
#include "kernel.h"

/* The functions of one type, whose elements may be NaN: whether a comes before b, which stands before it in the row;
 * whether entry a of a row comes before entry b in its result, an order without ties; an entry of a heap of `count`, in
 * which none comes before those below it, sinks to its place.
 *
 * The kernel: a heap of the k best so far with the last of them on top, in the place of the result, which is sorted
 * from behind. Williams, "Algorithm 232: Heapsort", 1964. */
#define TOPK(name, type)                                                                                             \
  static inline int K(name##_before)(type a, type b, int32_t largest) {                                              \
    if (a != a || b != b) return largest ? a != a && b == b : a == a && b != b;                                      \
    return largest ? a > b : a < b;                                                                                  \
  }                                                                                                                  \
                                                                                                                     \
  static inline int K(name##_entry_before)(const type *values, const int64_t *indices, int64_t a, int64_t b,         \
                                           int32_t largest) {                                                        \
    if (K(name##_before)(values[a], values[b], largest)) return 1;                                                   \
    return !K(name##_before)(values[b], values[a], largest) && indices[a] < indices[b];                              \
  }                                                                                                                  \
                                                                                                                     \
  static inline void K(name##_swap)(type *values, int64_t *indices, int64_t a, int64_t b) {                          \
    const type value = values[a];                                                                                    \
    const int64_t index = indices[a];                                                                                \
    values[a] = values[b], indices[a] = indices[b];                                                                  \
    values[b] = value, indices[b] = index;                                                                           \
  }                                                                                                                  \
                                                                                                                     \
  static inline void K(name##_sink)(type *values, int64_t *indices, int64_t at, int64_t count, int32_t largest) {    \
    for (int64_t child = 2 * at + 1; child < count; at = child, child = 2 * at + 1) {                                \
      if (child + 1 < count && K(name##_entry_before)(values, indices, child, child + 1, largest)) child++;          \
      if (!K(name##_entry_before)(values, indices, at, child, largest)) return;                                      \
      K(name##_swap)(values, indices, at, child);                                                                    \
    }                                                                                                                \
  }                                                                                                                  \
                                                                                                                     \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                         \
    const topk_args *args = p;                                                                                       \
    const int64_t end = part_begin(args->rows, part + 1, parts), k = args->k;                                        \
    const int32_t largest = args->largest;                                                                           \
    for (int64_t row = part_begin(args->rows, part, parts); row < end && k > 0; row++) {                             \
      const type *x = (const type *)args->x + row * args->x_stride;                                                  \
      type *out = (type *)args->out + row * k;                                                                       \
      int64_t *indices = args->indices + row * k;                                                                    \
      for (int64_t i = 0; i < k; i++) out[i] = x[i], indices[i] = i;                                                 \
      for (int64_t i = k / 2; i-- > 0;) K(name##_sink)(out, indices, i, k, largest);                                 \
      for (int64_t i = k; i < args->cols; i++) {                                                                     \
        if (!K(name##_before)(x[i], out[0], largest)) continue;                                                      \
        out[0] = x[i], indices[0] = i;                                                                               \
        K(name##_sink)(out, indices, 0, k, largest);                                                                 \
      }                                                                                                              \
      for (int64_t i = k - 1; i > 0; i--) {                                                                          \
        K(name##_swap)(out, indices, 0, i);                                                                          \
        K(name##_sink)(out, indices, 0, i, largest);                                                                 \
      }                                                                                                              \
    }                                                                                                                \
  }

TOPK(topk_f32, float)
TOPK(topk_f64, double)
TOPK(topk_i64, int64_t)
TOPK(topk_u64, uint64_t)

#undef TOPK

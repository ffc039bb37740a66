/* product.c: matrix products of types of 64 bits, some neighbours of the result at a time. */
#include "kernel.h"

/* Of element i of the result: where its row of a, its column of b and it itself lie. */
typedef struct { int64_t a; int64_t b; int64_t out; } product_place;

static inline product_place product_at(const product_args *args, int64_t i) {
  product_place at = {0, 0, 0};
  for (int32_t d = args->rank - 1; d >= 0; d--) {
    const int64_t index = i % args->shape[d];
    at.a += index * args->a_strides[d];
    at.b += index * args->b_strides[d];
    at.out += index * args->out_strides[d];
    i /= args->shape[d];
  }
  return at;
}

#define PRODUCT_NEIGHBOURS 16

/* Each element is one sum over k, in order. Those of neighbours have nothing to do with each other, and most often one
 * row of a in common, and columns of b that lie side by side. */
#define PRODUCT(name, type)                                                                                      \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                     \
    const product_args *args = p;                                                                                \
    int64_t count = 1;                                                                                           \
    for (int32_t d = 0; d < args->rank; d++) count *= args->shape[d];                                            \
    const int32_t last = args->rank - 1;                                                                         \
    const int64_t width = last < 0 ? 1 : args->shape[last], a_step = last < 0 ? 0 : args->a_strides[last];        \
    const int64_t b_step = last < 0 ? 0 : args->b_strides[last], out_step = last < 0 ? 0 : args->out_strides[last]; \
    const int64_t a_k = args->a_k_stride, b_k = args->b_k_stride, end = part_begin(count, part + 1, parts);       \
    for (int64_t i = part_begin(count, part, parts), n; i < end; i += n) {                                       \
      n = width - i % width;                                                                                     \
      if (n > end - i) n = end - i;                                                                              \
      if (n > PRODUCT_NEIGHBOURS) n = PRODUCT_NEIGHBOURS;                                                        \
      const product_place at = product_at(args, i);                                                              \
      const type *a = (const type *)args->a + at.a, *b = (const type *)args->b + at.b;                           \
      type *out = (type *)args->out + at.out, total[PRODUCT_NEIGHBOURS] = {0};                                   \
      if (n == PRODUCT_NEIGHBOURS && a_step == 0 && b_step == 1) {                                               \
        for (int64_t k = 0; k < args->k; k++)                                                                    \
          for (int32_t j = 0; j < PRODUCT_NEIGHBOURS; j++) total[j] += a[k * a_k] * b[k * b_k + j];              \
      } else if (n == PRODUCT_NEIGHBOURS) {                                                                      \
        for (int64_t k = 0; k < args->k; k++)                                                                    \
          for (int32_t j = 0; j < PRODUCT_NEIGHBOURS; j++)                                                       \
            total[j] += a[k * a_k + j * a_step] * b[k * b_k + j * b_step];                                       \
      } else {                                                                                                   \
        for (int64_t k = 0; k < args->k; k++)                                                                    \
          for (int64_t j = 0; j < n; j++) total[j] += a[k * a_k + j * a_step] * b[k * b_k + j * b_step];         \
      }                                                                                                          \
      for (int64_t j = 0; j < n; j++) out[j * out_step] = total[j];                                              \
    }                                                                                                            \
  }

PRODUCT(product_f64, double)
PRODUCT(product_i64, uint64_t)

#undef PRODUCT
#undef PRODUCT_NEIGHBOURS

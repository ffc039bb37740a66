/* product.c: matrix products of types of 64 bits, one element of the result after the other. */
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

#define PRODUCT(name, type)                                                                      \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                     \
    const product_args *args = p;                                                                \
    int64_t count = 1;                                                                           \
    for (int32_t d = 0; d < args->rank; d++) count *= args->shape[d];                            \
    const int64_t end = part_begin(count, part + 1, parts);                                      \
    for (int64_t i = part_begin(count, part, parts); i < end; i++) {                             \
      const product_place at = product_at(args, i);                                              \
      const type *a = (const type *)args->a + at.a, *b = (const type *)args->b + at.b;           \
      type total = 0;                                                                            \
      for (int64_t k = 0; k < args->k; k++) total += a[k * args->a_k_stride] * b[k * args->b_k_stride]; \
      ((type *)args->out)[at.out] = total;                                                       \
    }                                                                                            \
  }

PRODUCT(product_f64, double)
PRODUCT(product_i64, uint64_t)

#undef PRODUCT

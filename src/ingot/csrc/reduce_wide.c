/* reduce_wide.c: reductions, positions and running sums of types of 64 bits, one element after the other. */
#include <math.h>

#include "kernel.h"
#include "reduce.h"

/* In the expressions, x is an element and total what came before it; of the finished, count is how many there were. */
#define REDUCE_WIDE(name, type, neutral, expression, finish)                                                         \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                         \
    const reduce_args *args = p;                                                                                     \
    const int64_t outputs = reduce_count(args->outer_shape, args->outer_rank);                                       \
    const int64_t count = reduce_count(args->reduced_shape, args->reduced_rank);                                     \
    const int64_t end = part_begin(outputs, part + 1, parts);                                                        \
    for (int64_t i = part_begin(outputs, part, parts); i < end; i++) {                                               \
      const type *first =                                                                                            \
          (const type *)args->x + reduce_offset(args->outer_shape, args->outer_strides, args->outer_rank, i);        \
      type total = neutral;                                                                                          \
      for (int64_t k = 0; k < count;) {                                                                              \
        const reduce_run run = reduce_run_at(args, k, count);                                                        \
        for (int64_t j = 0; j < run.length; j++, k++) {                                                              \
          const type x = first[run.offset + j * run.step];                                                           \
          total = (type)(expression);                                                                                \
        }                                                                                                            \
      }                                                                                                              \
      ((type *)args->out)[i] = (type)(finish);                                                                       \
    }                                                                                                                \
  }

REDUCE_WIDE(reduce_sum_f64, double, 0, total + x, total)
REDUCE_WIDE(reduce_mean_f64, double, 0, total + x, total / (double)count)
REDUCE_WIDE(reduce_prod_f64, double, 1, total * x, total)
REDUCE_WIDE(reduce_max_f64, double, -INFINITY, x != x || x > total ? x : total, total)
REDUCE_WIDE(reduce_min_f64, double, INFINITY, x != x || x < total ? x : total, total)
REDUCE_WIDE(reduce_sum_i64, int64_t, 0, (uint64_t)total + (uint64_t)x, total)
REDUCE_WIDE(reduce_prod_i64, int64_t, 1, (uint64_t)total * (uint64_t)x, total)
REDUCE_WIDE(reduce_max_i64, int64_t, INT64_MIN, x > total ? x : total, total)
REDUCE_WIDE(reduce_min_i64, int64_t, INT64_MAX, x < total ? x : total, total)
REDUCE_WIDE(reduce_max_u64, uint64_t, 0, x > total ? x : total, total)
REDUCE_WIDE(reduce_min_u64, uint64_t, UINT64_MAX, x < total ? x : total, total)

/* better: whether x takes the place of `best`. */
#define POSITION(name, type, better)                                                                                 \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                         \
    const reduce_args *args = p;                                                                                     \
    const int64_t outputs = reduce_count(args->outer_shape, args->outer_rank);                                       \
    const int64_t count = reduce_count(args->reduced_shape, args->reduced_rank);                                     \
    const int64_t end = part_begin(outputs, part + 1, parts);                                                        \
    for (int64_t i = part_begin(outputs, part, parts); i < end; i++) {                                               \
      const type *first =                                                                                            \
          (const type *)args->x + reduce_offset(args->outer_shape, args->outer_strides, args->outer_rank, i);        \
      type best = *first;                                                                                            \
      int64_t position = 0;                                                                                          \
      for (int64_t k = 1; k < count; k++) {                                                                          \
        const type x = first[reduce_run_at(args, k, k + 1).offset];                                                  \
        if (better) best = x, position = k;                                                                          \
      }                                                                                                              \
      ((int64_t *)args->out)[i] = position;                                                                          \
    }                                                                                                                \
  }

POSITION(argmax_f64, double, x > best || (x != x && best == best))
POSITION(argmin_f64, double, x < best || (x != x && best == best))
POSITION(argmax_i64, int64_t, x > best)
POSITION(argmin_i64, int64_t, x < best)
POSITION(argmax_u64, uint64_t, x > best)
POSITION(argmin_u64, uint64_t, x < best)

/* total is of `wide`; it is rounded for each element. */
#define RUNNING(name, type, wide, neutral, expression)                                                               \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                         \
    const running_args *args = p;                                                                                    \
    const int64_t end = part_begin(args->outer * args->inner, part + 1, parts);                                      \
    for (int64_t i = part_begin(args->outer * args->inner, part, parts); i < end; i++) {                             \
      const int64_t first = i / args->inner * args->count * args->inner + i % args->inner;                           \
      const type *from = (const type *)args->x + first;                                                              \
      type *out = (type *)args->out + first;                                                                         \
      wide total = neutral;                                                                                          \
      for (int64_t k = 0; k < args->count; k++) {                                                                    \
        const wide x = (wide)from[k * args->inner];                                                                  \
        total = expression;                                                                                          \
        out[k * args->inner] = (type)total;                                                                          \
      }                                                                                                              \
    }                                                                                                                \
  }

RUNNING(cumsum_f32, float, double, 0, total + x)
RUNNING(cumprod_f32, float, double, 1, total * x)
RUNNING(cumsum_f64, double, double, 0, total + x)
RUNNING(cumprod_f64, double, double, 1, total * x)
RUNNING(cumsum_i64, int64_t, uint64_t, 0, total + x)
RUNNING(cumprod_i64, int64_t, uint64_t, 1, total * x)

#undef REDUCE_WIDE
#undef POSITION
#undef RUNNING

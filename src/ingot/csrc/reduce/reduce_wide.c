/* reduce_wide.c: reductions, arg-reductions and running sums of 64-bit types, one element after the other. */
#include <math.h>

#include "kernel.h"
#include "reduce/reduce.h"

/* In the expressions, x is an element and total the result for the elements before it; in `finalize`, count is their
 * number. */
#define REDUCE_WIDE(name, type, neutral, expression, finalize)                                                         \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const reduce_args *args = p;                                                                                       \
    const int64_t outputs = reduce_count(args->outer_shape, args->outer_rank);                                         \
    const int64_t count = reduce_count(args->reduced_shape, args->reduced_rank);                                       \
    const int64_t end = task_begin(outputs, task + 1, num_tasks);                                                      \
    for (int64_t i = task_begin(outputs, task, num_tasks); i < end; i++) {                                             \
      const type *first =                                                                                              \
          (const type *)args->x + reduce_offset(args->outer_shape, args->outer_strides, args->outer_rank, i);          \
      type total = neutral;                                                                                            \
      for (int64_t k = 0; k < count;) {                                                                                \
        const reduce_run run = reduce_run_at(args, k, count);                                                          \
        for (int64_t j = 0; j < run.length; j++, k++) {                                                                \
          const type x = first[run.offset + j * run.step];                                                             \
          total = (type)(expression);                                                                                  \
        }                                                                                                              \
      }                                                                                                                \
      ((type *)args->out)[i] = (type)(finalize);                                                                       \
    }                                                                                                                  \
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

/* better: whether x replaces `best`. */
#define POSITION(name, type, better)                                                                                   \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const reduce_args *args = p;                                                                                       \
    const int64_t outputs = reduce_count(args->outer_shape, args->outer_rank);                                         \
    const int64_t count = reduce_count(args->reduced_shape, args->reduced_rank);                                       \
    const int64_t end = task_begin(outputs, task + 1, num_tasks);                                                      \
    for (int64_t i = task_begin(outputs, task, num_tasks); i < end; i++) {                                             \
      const type *first =                                                                                              \
          (const type *)args->x + reduce_offset(args->outer_shape, args->outer_strides, args->outer_rank, i);          \
      type best = *first;                                                                                              \
      int64_t position = 0;                                                                                            \
      for (int64_t k = 1; k < count; k++) {                                                                            \
        const type x = first[reduce_run_at(args, k, k + 1).offset];                                                    \
        if (better) best = x, position = k;                                                                            \
      }                                                                                                                \
      ((int64_t *)args->out)[i] = position;                                                                            \
    }                                                                                                                  \
  }

POSITION(argmax_f64, double, x > best || (x != x && best == best))
POSITION(argmin_f64, double, x < best || (x != x && best == best))
POSITION(argmax_i64, int64_t, x > best)
POSITION(argmin_i64, int64_t, x < best)
POSITION(argmax_u64, uint64_t, x > best)
POSITION(argmin_u64, uint64_t, x < best)

#define RUNNING_LINES 256

/* total has the type `wide` and is rounded for each element. Adjacent lines are processed together, at most
 * RUNNING_LINES, 16 of them in loops of constant length; a line alone has its total in a register. */
#define RUNNING(name, type, wide, neutral, expression)                                                                 \
  static inline void K(name##_line)(const type *from, type *out, int64_t step, int64_t count) {                        \
    wide total = neutral;                                                                                              \
    for (int64_t k = 0; k < count; k++) {                                                                              \
      const wide x = (wide)from[k * step];                                                                             \
      total = expression;                                                                                              \
      out[k * step] = (type)total;                                                                                     \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_lanes)(const type *from, type *out, wide *totals) {                                      \
    wide found[16];                                                                                                    \
    for (int j = 0; j < 16; j++) found[j] = (wide)from[j];                                                             \
    for (int j = 0; j < 16; j++) {                                                                                     \
      const wide x = found[j], total = totals[j];                                                                      \
      found[j] = totals[j] = expression;                                                                               \
    }                                                                                                                  \
    for (int j = 0; j < 16; j++) out[j] = (type)found[j];                                                              \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_lines)(const type *from, type *out, int64_t step, int64_t count, int64_t lines) {        \
    wide totals[RUNNING_LINES];                                                                                        \
    for (int64_t j = 0; j < lines; j++) totals[j] = neutral;                                                           \
    for (int64_t k = 0; k < count; k++) {                                                                              \
      int64_t j = 0;                                                                                                   \
      for (; j + 16 <= lines; j += 16) K(name##_lanes)(from + k * step + j, out + k * step + j, totals + j);           \
      for (; j < lines; j++) {                                                                                         \
        const wide x = (wide)from[k * step + j], total = totals[j];                                                    \
        totals[j] = expression;                                                                                        \
        out[k * step + j] = (type)totals[j];                                                                           \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const running_args *args = p;                                                                                      \
    const int64_t end = task_begin(args->outer * args->inner, task + 1, num_tasks), inner = args->inner;               \
    for (int64_t i = task_begin(args->outer * inner, task, num_tasks), lines = 0; i < end; i += lines) {               \
      const int64_t first = i / inner * args->count * inner + i % inner;                                               \
      const type *from = (const type *)args->x + first;                                                                \
      type *out = (type *)args->out + first;                                                                           \
      lines = inner - i % inner < end - i ? inner - i % inner : end - i;                                               \
      if (lines > RUNNING_LINES) lines = RUNNING_LINES;                                                                \
      if (lines == 1)                                                                                                  \
        K(name##_line)(from, out, inner, args->count);                                                                 \
      else                                                                                                             \
        K(name##_lines)(from, out, inner, args->count, lines);                                                         \
    }                                                                                                                  \
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
#undef RUNNING_LINES

/* reduce.c: reductions over any dims. The reduced elements, in row-major order, are divided into chunks of
 * INGOT_REDUCE_CHUNK; in a chunk lane l reduces elements 16 i + l, the lanes are joined in one fixed tree, and chunk
 * results are joined in order. Rows and columns have different loops with the same order of roundings. */
#include <string.h>

#include "kernel.h"
#include "reduce/reduce.h"
#include "elementwise/strided.h"
#include "math/vmath.h"

/* The chunk's elements, gathered into `buffer` unless they are adjacent. */
static inline const float *reduce_chunk(const reduce_args *args, const float *x, int64_t begin, int64_t end,
                                        float *buffer) {
  reduce_run run = reduce_run_at(args, begin, end);
  if (run.step == 1 && run.length == end - begin) return x + run.offset;
  for (int64_t i = begin; i < end; i += run.length) {
    run = reduce_run_at(args, i, end);
    for (int64_t j = 0; j < run.length; j++) buffer[i - begin + j] = x[run.offset + j * run.step];
  }
  return buffer;
}

#define REDUCE_VECTORS 4 /* vectors of adjacent outputs that are read together: whole cache lines, one after another */
#define REDUCE_FEW 48 /* elements: up to so many, 16 outputs at once are faster than a tree for each, although
                         gathered */

/* Whether 16 outputs at once read adjacent memory and single outputs do not, or have so few elements that it does not
 * matter. */
static inline int reduce_by_columns(const reduce_args *args, int64_t count) {
  int32_t outer = args->outer_rank, reduced = args->reduced_rank;
  if (outer == 0 || reduced == 0 || args->outer_shape[outer - 1] < 4) return 0;
  return count <= REDUCE_FEW || (args->outer_strides[outer - 1] == 1 && args->reduced_strides[reduced - 1] != 1);
}

#define REDUCE_F32(name, neutral, combine, finalize)                                                                   \
  /* The chunk's result is in lane 0. */                                                                               \
  static inline vf K(name##_chunk)(const float *x, int64_t n) {                                                        \
    vf acc = v_set(neutral);                                                                                           \
    int64_t i = 0;                                                                                                     \
    for (; i + 16 <= n; i += 16) acc = combine(acc, v_load(x + i));                                                    \
    if (i < n) {                                                                                                       \
      float tail[16];                                                                                                  \
      v_store(tail, v_set(neutral));                                                                                   \
      memcpy(tail, x + i, (size_t)(n - i) * sizeof(float));                                                            \
      acc = combine(acc, v_load(tail));                                                                                \
    }                                                                                                                  \
    float lanes[32] = {0};                                                                                             \
    for (int half = 8; half; half /= 2) {                                                                              \
      v_store(lanes, acc);                                                                                             \
      acc = combine(acc, v_load(lanes + half));                                                                        \
    }                                                                                                                  \
    return acc;                                                                                                        \
  }                                                                                                                    \
                                                                                                                       \
  static inline vf K(name##_one)(const reduce_args *args, const float *x, int64_t count) {                             \
    float buffer[INGOT_REDUCE_CHUNK];                                                                                  \
    vf total = v_set(neutral);                                                                                         \
    for (int64_t begin = 0; begin < count; begin += INGOT_REDUCE_CHUNK) {                                              \
      int64_t end = count - begin < INGOT_REDUCE_CHUNK ? count : begin + INGOT_REDUCE_CHUNK;                           \
      vf chunk = K(name##_chunk)(reduce_chunk(args, x, begin, end, buffer), end - begin);                              \
      total = begin ? combine(total, chunk) : chunk;                                                                   \
    }                                                                                                                  \
    return total;                                                                                                      \
  }                                                                                                                    \
                                                                                                                       \
  /* totals[vectors] of adjacent outputs, n of them where that is less than 16; logical lane l of each is acc[l]. */   \
  static inline __attribute__((always_inline)) void K(name##_columns)(const int vectors, const reduce_args *args,      \
                                                                      const float *x, int64_t count, int64_t n,        \
                                                                      vf *totals) {                                    \
    const int64_t distance = args->outer_strides[args->outer_rank - 1];                                                \
    vf acc[16][REDUCE_VECTORS];                                                                                        \
    INGOT_UNROLL for (int v = 0; v < vectors; v++) totals[v] = v_set(neutral);                                         \
    for (int64_t begin = 0; begin < count; begin += INGOT_REDUCE_CHUNK) {                                              \
      int64_t end = count - begin < INGOT_REDUCE_CHUNK ? count : begin + INGOT_REDUCE_CHUNK;                           \
      for (int l = 0; l < 16; l++)                                                                                     \
        INGOT_UNROLL for (int v = 0; v < vectors; v++) acc[l][v] = v_set(neutral);                                     \
      for (int64_t i = begin; i < end;) {                                                                              \
        reduce_run run = reduce_run_at(args, i, end);                                                                  \
        const float *row = x + run.offset;                                                                             \
        for (int64_t j = 0; j < run.length; j++, i++, row += run.step) {                                               \
          vf *lane = acc[(uint64_t)i % 16];                                                                            \
          INGOT_UNROLL for (int v = 0; v < vectors; v++)                                                               \
            lane[v] = combine(lane[v], vectors > 1 ? v_load(row + 16 * v) : load_lanes(row, distance, n));             \
        }                                                                                                              \
      }                                                                                                                \
      for (int half = 8; half; half /= 2)                                                                              \
        for (int l = 0; l < half; l++)                                                                                 \
          INGOT_UNROLL for (int v = 0; v < vectors; v++) acc[l][v] = combine(acc[l][v], acc[l + half][v]);             \
      INGOT_UNROLL for (int v = 0; v < vectors; v++)                                                                   \
        totals[v] = begin ? combine(totals[v], acc[0][v]) : acc[0][v];                                                 \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name##_f32)(const void *p, int32_t task, int32_t num_tasks) {                                                 \
    const reduce_args *args = p;                                                                                       \
    int32_t rank = args->outer_rank;                                                                                   \
    int64_t outputs = reduce_count(args->outer_shape, rank);                                                           \
    int64_t count = reduce_count(args->reduced_shape, args->reduced_rank);                                             \
    int64_t width = reduce_by_columns(args, count) ? args->outer_shape[rank - 1] : 1;                                  \
    int64_t i = task_begin_grain(outputs, 16, task, num_tasks);                                                        \
    const int64_t end = task_begin_grain(outputs, 16, task + 1, num_tasks);                                            \
    while (i < end) {                                                                                                  \
      const float *x = (const float *)args->x + reduce_offset(args->outer_shape, args->outer_strides, rank, i);        \
      float *out = (float *)args->out + i;                                                                             \
      int64_t n = width - i % width;                                                                                   \
      n = n < end - i ? n : end - i;                                                                                   \
      vf totals[REDUCE_VECTORS];                                                                                       \
      if (width > 1 && n >= 16 * REDUCE_VECTORS && args->outer_strides[rank - 1] == 1) {                               \
        K(name##_columns)(REDUCE_VECTORS, args, x, count, 16, totals);                                                 \
        for (int v = 0; v < REDUCE_VECTORS; v++) v_store(out + 16 * v, finalize(totals[v], count));                    \
        i += 16 * REDUCE_VECTORS;                                                                                      \
        continue;                                                                                                      \
      }                                                                                                                \
      n = n < 16 ? n : 16;                                                                                             \
      if (width > 1)                                                                                                   \
        K(name##_columns)(1, args, x, count, n, totals);                                                               \
      else                                                                                                             \
        totals[0] = K(name##_one)(args, x, count);                                                                     \
      const vf total = finalize(totals[0], count);                                                                     \
      if (n == 16) v_store(out, total); else v_store_n(out, total, n);                                                 \
      i += n;                                                                                                          \
    }                                                                                                                  \
  }

#define REDUCE_TOTAL(total, count) (total)
#define REDUCE_MEAN(total, count) v_div(total, v_set((float)(count)))

REDUCE_F32(reduce_sum, 0, v_add, REDUCE_TOTAL)
REDUCE_F32(reduce_mean, 0, v_add, REDUCE_MEAN)
REDUCE_F32(reduce_max, -INFINITY, v_maximum, REDUCE_TOTAL)
REDUCE_F32(reduce_min, INFINITY, v_minimum, REDUCE_TOTAL)
REDUCE_F32(reduce_prod, 1, v_mul, REDUCE_TOTAL)

/* Whether `value` replaces `best`: greater, or the first NaN. */
static inline int reduce_beats(float value, float best) { return value > best || (value != value && best == best); }

/* The first index of the largest (direction 1) or smallest (-1) element; the first NaN wins. Adjacent elements are
 * searched a run at a time: first for the run's extreme, and only if that wins for its index. */
static inline int64_t reduce_position(const reduce_args *args, const float *x, int64_t count, int direction) {
  float best = -INFINITY;
  int64_t position = 0;
  for (int64_t i = 0; i < count;) {
    reduce_run run = reduce_run_at(args, i, count);
    const float *run_x = x + run.offset;
    int64_t j = 0, end = run.length;
    if (run.step == 1) {
      float extreme;
      v_store_n(&extreme, direction > 0 ? K(reduce_max_chunk)(run_x, end) : K(reduce_min_chunk)(run_x, end), 1);
      if (!reduce_beats((float)direction * extreme, best)) end = 0;
      vf sought = v_set(extreme);
      for (; j + 16 <= end; j += 16) {
        vf lanes = v_load(run_x + j);
        if (v_any(v_eq(lanes, sought)) || v_any(v_isnan(lanes))) break;
      }
      while (j < end && run_x[j] != extreme && run_x[j] == run_x[j]) j++;
      end = j < end ? j + 1 : end;
    }
    for (; j < end; j++) {
      float value = run_x[j * run.step] * (float)direction;
      if (!reduce_beats(value, best)) continue;
      best = value;
      position = i + j;
    }
    i += run.length;
  }
  return position;
}

static inline void reduce_positions(const reduce_args *args, int direction, int32_t task, int32_t num_tasks) {
  int64_t outputs = reduce_count(args->outer_shape, args->outer_rank), end = task_begin(outputs, task + 1, num_tasks);
  int64_t count = reduce_count(args->reduced_shape, args->reduced_rank);
  for (int64_t i = task_begin(outputs, task, num_tasks); i < end; i++) {
    int64_t offset = reduce_offset(args->outer_shape, args->outer_strides, args->outer_rank, i);
    ((int64_t *)args->out)[i] = reduce_position(args, (const float *)args->x + offset, count, direction);
  }
}

void K(argmax_f32)(const void *p, int32_t task, int32_t num_tasks) {
  reduce_positions(p, 1, task, num_tasks);
}

void K(argmin_f32)(const void *p, int32_t task, int32_t num_tasks) {
  reduce_positions(p, -1, task, num_tasks);
}

#undef REDUCE_VECTORS
#undef REDUCE_FEW
#undef REDUCE_F32
#undef REDUCE_TOTAL
#undef REDUCE_MEAN

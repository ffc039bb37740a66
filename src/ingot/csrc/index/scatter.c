/* scatter.c: write updates at run-time indices along an axis, replacing or merging elements. A line along the axis is
 * the work of one task, in order. An index outside [-limit, limit) is reported as the run's fault, and its update is
 * skipped. */
#include <string.h>

#include "index/index.h"
#include "kernel.h"

/* The lines of the indices: their number and length, and the distance between elements of a line. */
typedef struct { int64_t count; int64_t length; int64_t inner; } scatter_lines;

static inline scatter_lines scatter_lines_of(const scatter_args *args) {
  scatter_lines lines = {1, args->shape[args->axis], 1};
  for (int32_t d = 0; d < args->rank; d++) {
    if (d != args->axis) lines.count *= args->shape[d];
    if (d > args->axis) lines.inner *= args->shape[d];
  }
  return lines;
}

/* The offset of line i with these strides, in elements. */
static inline int64_t scatter_line_begin(const scatter_args *args, const int64_t *strides, int64_t i) {
  int64_t offset = 0;
  for (int32_t d = args->rank - 1; d >= 0; d--) {
    if (d == args->axis) continue;
    offset += i % args->shape[d] * strides[d];
    i /= args->shape[d];
  }
  return offset;
}

/* Lines i to i + count, which are adjacent, are updated together, step by step, so that memory is read sequentially;
 * where they share an index, it is checked once. update: the expression for element e of the group at `index`; to:
 * the offset of the result, from: that of the update, in elements. merge, bytes of an element: constants where a
 * loop is compiled. */
#define SCATTER_GROUP(name, update)                                                                                    \
  static inline __attribute__((always_inline)) void K(name##_group)(const scatter_args *args, const int32_t merge,     \
                                                                    const size_t bytes, const scatter_lines *lines,    \
                                                                    int64_t i, const int64_t count, double *wide) {    \
    const int32_t last = args->rank - 1, index_bytes = args->index_bytes;                                              \
    const int64_t stride = args->out_strides[args->axis], step = args->out_strides[last], limit = args->limit;         \
    const int64_t next = args->index_strides[args->axis];                                                              \
    const int64_t distance = args->axis == last ? 0 : args->index_strides[last];                                       \
    const int64_t first = i / lines->inner * lines->length * lines->inner + i % lines->inner;                          \
    const int64_t line = scatter_line_begin(args, args->out_strides, i);                                               \
    const int64_t begin = scatter_line_begin(args, args->index_strides, i), run = distance ? 1 : count;                \
    const void *indices = args->indices;                                                                               \
    const char *updates = args->updates;                                                                               \
    char *out = args->out;                                                                                             \
    (void)merge, (void)bytes, (void)updates, (void)out, (void)wide;                                                    \
    for (int64_t k = 0; count == 1 && k < lines->length; k++) {                                                        \
      int64_t index = index_at(indices, index_bytes, begin + k * next);                                                \
      if ((uint64_t)index >= (uint64_t)limit) index = index_from_front(args->fault, args->step, index, limit);         \
      if (index < 0) continue;                                                                                         \
      const int64_t e = 0, from = first + k * lines->inner, to = line + index * stride;                                \
      (void)e, (void)from, (void)to;                                                                                   \
      update;                                                                                                          \
    }                                                                                                                  \
    for (int64_t k = 0; count > 1 && k < lines->length; k++) {                                                         \
      for (int64_t j = 0; j < count; j += run) {                                                                       \
        int64_t index = index_at(indices, index_bytes, begin + k * next + j * distance);                               \
        if ((uint64_t)index >= (uint64_t)limit) index = index_from_front(args->fault, args->step, index, limit);       \
        if (index < 0) continue;                                                                                       \
        int64_t done = j;                                                                                              \
        for (; step == 1 && done + 8 <= j + run; done += 8) {                                                          \
          INGOT_UNROLL for (int64_t lane = 0; lane < 8; lane++) {                                                      \
            const int64_t e = done + lane, from = first + k * lines->inner + e, to = line + e + index * stride;        \
            (void)from, (void)to;                                                                                      \
            update;                                                                                                    \
          }                                                                                                            \
        }                                                                                                              \
        for (int64_t e = done; e < j + run; e++) {                                                                     \
          const int64_t from = first + k * lines->inner + e, to = line + e * step + index * stride;                    \
          (void)from, (void)to;                                                                                        \
          update;                                                                                                      \
        }                                                                                                              \
      }                                                                                                                \
    }                                                                                                                  \
  }

/* How many lines from line i on are adjacent, before line `end`. */
static inline int64_t scatter_adjacent(const scatter_args *args, int64_t i, int64_t end) {
  const int64_t adjacent = args->axis == args->rank - 1 ? 1 : args->shape[args->rank - 1];
  const int64_t left = adjacent - i % adjacent;
  return left < end - i ? left : end - i;
}

#define SCATTER_LINES(name, update)                                                                                    \
  SCATTER_GROUP(name, update)                                                                                          \
                                                                                                                       \
  static inline __attribute__((always_inline)) void K(name##_lines)(const scatter_args *args, const int32_t merge,     \
                                                                    const size_t bytes, int32_t task,                  \
                                                                    int32_t num_tasks) {                               \
    const scatter_lines lines = scatter_lines_of(args);                                                                \
    const int64_t end = task_begin(lines.count, task + 1, num_tasks);                                                  \
    for (int64_t i = task_begin(lines.count, task, num_tasks), count = 0; i < end; i += count) {                       \
      count = scatter_adjacent(args, i, end);                                                                          \
      K(name##_group)(args, merge, bytes, &lines, i, count, NULL);                                                     \
    }                                                                                                                  \
  }

/* The kernel of one type that merges. */
#define SCATTER(name, type, lines)                                                                                     \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const int32_t merge = ((const scatter_args *)p)->merge;                                                            \
    if (merge == INGOT_MERGE_add)                                                                                      \
      K(lines)(p, INGOT_MERGE_add, sizeof(type), task, num_tasks);                                                     \
    else if (merge == INGOT_MERGE_mul)                                                                                 \
      K(lines)(p, INGOT_MERGE_mul, sizeof(type), task, num_tasks);                                                     \
    else if (merge == INGOT_MERGE_max)                                                                                 \
      K(lines)(p, INGOT_MERGE_max, sizeof(type), task, num_tasks);                                                     \
    else                                                                                                               \
      K(lines)(p, INGOT_MERGE_min, sizeof(type), task, num_tasks);                                                     \
  }

/* y where it is NaN, selected without a branch, because which of two elements is larger cannot be predicted. */
static inline double scatter_nan(double y, double otherwise) { return y == y ? otherwise : y; }

static inline double scatter_merged_f64(double y, double x, int32_t merge) {
  switch (merge) {
    case INGOT_MERGE_add: return y + x;
    case INGOT_MERGE_mul: return y * x;
    case INGOT_MERGE_max: return scatter_nan(y, y > x ? y : x);
    case INGOT_MERGE_min: return scatter_nan(y, y < x ? y : x);
    default: return x;
  }
}

/* Sums and products wrap. */
static inline int64_t scatter_merged_i64(int64_t y, int64_t x, int32_t merge) {
  switch (merge) {
    case INGOT_MERGE_add: return (int64_t)((uint64_t)y + (uint64_t)x);
    case INGOT_MERGE_mul: return (int64_t)((uint64_t)y * (uint64_t)x);
    case INGOT_MERGE_max: return y > x ? y : x;
    case INGOT_MERGE_min: return y < x ? y : x;
    default: return x;
  }
}

static inline uint64_t scatter_merged_u64(uint64_t y, uint64_t x, int32_t merge) {
  switch (merge) {
    case INGOT_MERGE_add: return y + x;
    case INGOT_MERGE_mul: return y * x;
    case INGOT_MERGE_max: return y > x ? y : x;
    case INGOT_MERGE_min: return y < x ? y : x;
    default: return x;
  }
}

#define SCATTER_MERGE(type, merged)                                                                                    \
  type *y = (type *)out + to;                                                                                          \
  *y = merged(*y, ((const type *)updates)[from], merge)

/* Copy an element; its size is a constant where it is 4 or 8. */
static inline __attribute__((always_inline)) void scatter_move(char *out, int64_t to, const char *updates,
                                                               int64_t from, const size_t bytes) {
  if (bytes == 4)
    ((uint32_t *)out)[to] = ((const uint32_t *)updates)[from];
  else if (bytes == 8)
    ((uint64_t *)out)[to] = ((const uint64_t *)updates)[from];
  else
    memcpy(out + (size_t)to * bytes, updates + (size_t)from * bytes, bytes);
}

SCATTER_LINES(scatter_b, scatter_move(out, to, updates, from, bytes))

/* Replacing updates, of any size. */
void K(scatter_b)(const void *p, int32_t task, int32_t num_tasks) {
  const size_t bytes = (size_t)((const scatter_args *)p)->item_bytes;
  if (bytes == 4)
    K(scatter_b_lines)(p, INGOT_MERGE_none, 4, task, num_tasks);
  else if (bytes == 8)
    K(scatter_b_lines)(p, INGOT_MERGE_none, 8, task, num_tasks);
  else
    K(scatter_b_lines)(p, INGOT_MERGE_none, bytes, task, num_tasks);
}

/* Floats are merged as doubles, which are in `wide` while a group is updated: [limit][count] in a task's scratch. */
SCATTER_GROUP(scatter_widen, wide[index * count + e] = (double)((const float *)out)[to])
SCATTER_GROUP(scatter_merge, double *y = wide + index * count + e;
              *y = scatter_merged_f64(*y, (double)((const float *)updates)[from], merge))
SCATTER_GROUP(scatter_narrow, ((float *)out)[to] = (float)wide[index * count + e])

/* Load all elements of a group's lines into `wide`, or store them; adjacent ones eight at a time, by vectors. */
#define SCATTER_ALL(name, move)                                                                                        \
  static inline void K(name##_all)(const scatter_args *args, int64_t i, const int64_t count,                           \
                                   double *all) {                                                                      \
    const int64_t stride = args->out_strides[args->axis], last = args->out_strides[args->rank - 1];                    \
    const int64_t runs = count == 1 ? 1 : args->limit, length = count == 1 ? args->limit : count;                      \
    const int64_t step = count == 1 ? stride : last;                                                                   \
    float *line = (float *)args->out + scatter_line_begin(args, args->out_strides, i);                                 \
    for (int64_t k = 0; k < runs; k++, line += stride, all += length) {                                                \
      int64_t done = 0;                                                                                                \
      for (; step == 1 && done + 8 <= length; done += 8) {                                                             \
        float *y = line + done;                                                                                        \
        double *wide = all + done;                                                                                     \
        INGOT_UNROLL for (int64_t lane = 0; lane < 8; lane++) move;                                                    \
      }                                                                                                                \
      for (; done < length; done++) {                                                                                  \
        float *y = line + done * step;                                                                                 \
        double *wide = all + done;                                                                                     \
        const int64_t lane = 0;                                                                                        \
        move;                                                                                                          \
      }                                                                                                                \
    }                                                                                                                  \
  }

SCATTER_ALL(scatter_load, wide[lane] = (double)y[lane])
SCATTER_ALL(scatter_store, y[lane] = (float)wide[lane])

static inline __attribute__((always_inline)) void K(scatter_f32_lines)(const scatter_args *args, const int32_t merge,
                                                                       const size_t bytes, int32_t task,
                                                                       int32_t num_tasks) {
  const scatter_lines lines = scatter_lines_of(args);
  const int64_t end = task_begin(lines.count, task + 1, num_tasks);
  const int is_dense = lines.length >= args->limit; /* then skipping elements without an update is not worthwhile */
  double *wide = (double *)(void *)(args->scratch + task * args->scratch_stride);
  for (int64_t i = task_begin(lines.count, task, num_tasks), count = 0; i < end; i += count) {
    count = scatter_adjacent(args, i, end);
    if (count > args->together) count = args->together;
    if (is_dense)
      K(scatter_load_all)(args, i, count, wide);
    else
      K(scatter_widen_group)(args, merge, bytes, &lines, i, count, wide);
    K(scatter_merge_group)(args, merge, bytes, &lines, i, count, wide);
    if (is_dense)
      K(scatter_store_all)(args, i, count, wide);
    else
      K(scatter_narrow_group)(args, merge, bytes, &lines, i, count, wide);
  }
}

SCATTER_LINES(scatter_f64, SCATTER_MERGE(double, scatter_merged_f64))
SCATTER_LINES(scatter_i64, SCATTER_MERGE(int64_t, scatter_merged_i64))
SCATTER_LINES(scatter_u64, SCATTER_MERGE(uint64_t, scatter_merged_u64))
SCATTER(scatter_f32, float, scatter_f32_lines)
SCATTER(scatter_f64, double, scatter_f64_lines)
SCATTER(scatter_i64, int64_t, scatter_i64_lines)
SCATTER(scatter_u64, uint64_t, scatter_u64_lines)

#undef SCATTER
#undef SCATTER_ALL
#undef SCATTER_GROUP
#undef SCATTER_LINES
#undef SCATTER_MERGE

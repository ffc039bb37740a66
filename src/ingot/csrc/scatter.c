/* scatter.c: elements written at run-time indices along an axis, over or into what is there. A line along the axis is
 * one part's work, in order. An index outside [-limit, limit) goes to the run's fault slot, and its update nowhere. */
#include <string.h>

#include "index.h"
#include "kernel.h"

/* The lines of the indices: how many, how long, and how far apart the elements of one are. */
typedef struct { int64_t count; int64_t length; int64_t inner; } scatter_lines;

static inline scatter_lines scatter_lines_of(const scatter_args *args) {
  scatter_lines lines = {1, args->shape[args->axis], 1};
  for (int32_t d = 0; d < args->rank; d++) {
    if (d != args->axis) lines.count *= args->shape[d];
    if (d > args->axis) lines.inner *= args->shape[d];
  }
  return lines;
}

/* Where line i begins in what has these strides, in elements. */
static inline int64_t scatter_line_begin(const scatter_args *args, const int64_t *strides, int64_t i) {
  int64_t offset = 0;
  for (int32_t d = args->rank - 1; d >= 0; d--) {
    if (d == args->axis) continue;
    offset += i % args->shape[d] * strides[d];
    i /= args->shape[d];
  }
  return offset;
}

/* Lines that lie side by side take their updates together, step by step, so that memory is read as it lies; where they
 * share an index, it is looked at once. update: what is done for one element; place is that of the result, in elements
 * from its first, and from that of the updates. merge: known when a loop is compiled. */
#define SCATTER(name, update)                                                                                         \
  static inline __attribute__((always_inline)) void K(name##_lines)(const scatter_args *args, const int32_t merge,    \
                                                                    int32_t part, int32_t parts) {                    \
    const scatter_lines lines = scatter_lines_of(args);                                                               \
    const int32_t last = args->rank - 1;                                                                              \
    const int64_t end = part_begin(lines.count, part + 1, parts), stride = args->out_strides[args->axis];             \
    const int64_t beside = args->axis == last ? 1 : args->shape[last], step = args->out_strides[last];                \
    const int64_t next = args->index_strides[args->axis], apart = args->axis == last ? 0 : args->index_strides[last]; \
    (void)merge;                                                                                                      \
    for (int64_t i = part_begin(lines.count, part, parts), count = 0; i < end; i += count) {                          \
      const int64_t first = i / lines.inner * lines.length * lines.inner + i % lines.inner;                           \
      const int64_t line = scatter_line_begin(args, args->out_strides, i);                                            \
      const int64_t indices = scatter_line_begin(args, args->index_strides, i);                                       \
      count = beside - i % beside < end - i ? beside - i % beside : end - i;                                          \
      const int64_t run = apart ? 1 : count;                                                                          \
      for (int64_t k = 0; count == 1 && k < lines.length; k++) {                                                      \
        const int64_t found = index_at(args->indices, args->index_bytes, indices + k * next);                         \
        const int64_t index = index_from_front(args->fault, args->step, found, args->limit);                          \
        if (index < 0) continue;                                                                                      \
        const int64_t from = first + k * lines.inner, place = line + index * stride;                                  \
        update;                                                                                                       \
      }                                                                                                               \
      for (int64_t k = 0; count > 1 && k < lines.length; k++) {                                                       \
        for (int64_t j = 0; j < count; j += run) {                                                                    \
          const int64_t found = index_at(args->indices, args->index_bytes, indices + k * next + j * apart);           \
          const int64_t index = index_from_front(args->fault, args->step, found, args->limit);                        \
          if (index < 0) continue;                                                                                    \
          for (int64_t e = j; e < j + run; e++) {                                                                     \
            const int64_t from = first + k * lines.inner + e, place = line + e * step + index * stride;               \
            update;                                                                                                   \
          }                                                                                                           \
        }                                                                                                             \
      }                                                                                                               \
    }                                                                                                                 \
  }                                                                                                                   \
                                                                                                                      \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                          \
    const int32_t merge = ((const scatter_args *)p)->merge;                                                           \
    if (merge == INGOT_MERGE_add)                                                                                     \
      K(name##_lines)(p, INGOT_MERGE_add, part, parts);                                                               \
    else if (merge == INGOT_MERGE_mul)                                                                                \
      K(name##_lines)(p, INGOT_MERGE_mul, part, parts);                                                               \
    else if (merge == INGOT_MERGE_max)                                                                                \
      K(name##_lines)(p, INGOT_MERGE_max, part, parts);                                                               \
    else if (merge == INGOT_MERGE_min)                                                                                \
      K(name##_lines)(p, INGOT_MERGE_min, part, parts);                                                               \
    else                                                                                                              \
      K(name##_lines)(p, INGOT_MERGE_none, part, parts);                                                              \
  }

static inline double scatter_merged_f64(double y, double x, int32_t merge) {
  switch (merge) {
    case INGOT_MERGE_add: return y + x;
    case INGOT_MERGE_mul: return y * x;
    case INGOT_MERGE_max: return y != y || y > x ? y : x;
    case INGOT_MERGE_min: return y != y || y < x ? y : x;
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

static inline void scatter_move(const scatter_args *args, int64_t from, int64_t place) {
  const size_t bytes = (size_t)args->item_bytes;
  memcpy((char *)args->out + (size_t)place * bytes, (const char *)args->updates + (size_t)from * bytes, bytes);
}

#define SCATTER_MERGE(type, from_type, merged)                                \
  type *y = (type *)args->out + place;                                        \
  *y = merged(*y, (type)((const from_type *)args->updates)[from], merge)

SCATTER(scatter_b, scatter_move(args, from, place))
SCATTER(scatter_f32, SCATTER_MERGE(double, float, scatter_merged_f64))
SCATTER(scatter_f64, SCATTER_MERGE(double, double, scatter_merged_f64))
SCATTER(scatter_i64, SCATTER_MERGE(int64_t, int64_t, scatter_merged_i64))
SCATTER(scatter_u64, SCATTER_MERGE(uint64_t, uint64_t, scatter_merged_u64))

#undef SCATTER
#undef SCATTER_MERGE

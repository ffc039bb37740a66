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
 * from its first, and from that of the updates. merge, bytes of an element: known when a loop is compiled. */
#define SCATTER_LINES(name, update)                                                                                   \
  static inline __attribute__((always_inline)) void K(name##_lines)(const scatter_args *args, const int32_t merge,    \
                                                                    const size_t bytes, int32_t part,                 \
                                                                    int32_t parts) {                                  \
    const scatter_lines lines = scatter_lines_of(args);                                                               \
    const int32_t last = args->rank - 1, index_bytes = args->index_bytes;                                             \
    const int64_t end = part_begin(lines.count, part + 1, parts), stride = args->out_strides[args->axis];             \
    const int64_t beside = args->axis == last ? 1 : args->shape[last], step = args->out_strides[last];                \
    const int64_t next = args->index_strides[args->axis], apart = args->axis == last ? 0 : args->index_strides[last]; \
    const int64_t limit = args->limit;                                                                                \
    const void *indices = args->indices;                                                                              \
    const char *updates = args->updates;                                                                              \
    char *out = args->out;                                                                                            \
    (void)merge, (void)bytes;                                                                                         \
    for (int64_t i = part_begin(lines.count, part, parts), count = 0; i < end; i += count) {                          \
      const int64_t first = i / lines.inner * lines.length * lines.inner + i % lines.inner;                           \
      const int64_t line = scatter_line_begin(args, args->out_strides, i);                                            \
      const int64_t begin = scatter_line_begin(args, args->index_strides, i);                                         \
      count = beside - i % beside < end - i ? beside - i % beside : end - i;                                          \
      const int64_t run = apart ? 1 : count;                                                                          \
      for (int64_t k = 0; count == 1 && k < lines.length; k++) {                                                      \
        int64_t index = index_at(indices, index_bytes, begin + k * next);                                             \
        if ((uint64_t)index >= (uint64_t)limit) index = index_from_front(args->fault, args->step, index, limit);      \
        if (index < 0) continue;                                                                                      \
        const int64_t from = first + k * lines.inner, place = line + index * stride;                                  \
        update;                                                                                                       \
      }                                                                                                               \
      for (int64_t k = 0; count > 1 && k < lines.length; k++) {                                                       \
        for (int64_t j = 0; j < count; j += run) {                                                                    \
          int64_t index = index_at(indices, index_bytes, begin + k * next + j * apart);                               \
          if ((uint64_t)index >= (uint64_t)limit) index = index_from_front(args->fault, args->step, index, limit);    \
          if (index < 0) continue;                                                                                    \
          int64_t e = j;                                                                                              \
          for (; step == 1 && e + 8 <= j + run; e += 8) {                                                             \
            INGOT_UNROLL for (int64_t lane = 0; lane < 8; lane++) {                                                   \
              const int64_t from = first + k * lines.inner + e + lane, place = line + e + lane + index * stride;      \
              update;                                                                                                 \
            }                                                                                                         \
          }                                                                                                           \
          for (; e < j + run; e++) {                                                                                  \
            const int64_t from = first + k * lines.inner + e, place = line + e * step + index * stride;               \
            update;                                                                                                   \
          }                                                                                                           \
        }                                                                                                             \
      }                                                                                                               \
    }                                                                                                                 \
  }

/* The kernel of one type that merges. */
#define SCATTER(name, type, update)                                                                                   \
  SCATTER_LINES(name, update)                                                                                         \
                                                                                                                      \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                          \
    const int32_t merge = ((const scatter_args *)p)->merge;                                                           \
    if (merge == INGOT_MERGE_add)                                                                                     \
      K(name##_lines)(p, INGOT_MERGE_add, sizeof(type), part, parts);                                                 \
    else if (merge == INGOT_MERGE_mul)                                                                                \
      K(name##_lines)(p, INGOT_MERGE_mul, sizeof(type), part, parts);                                                 \
    else if (merge == INGOT_MERGE_max)                                                                                \
      K(name##_lines)(p, INGOT_MERGE_max, sizeof(type), part, parts);                                                 \
    else                                                                                                              \
      K(name##_lines)(p, INGOT_MERGE_min, sizeof(type), part, parts);                                                 \
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

#define SCATTER_MERGE(type, from_type, merged)                                \
  type *y = (type *)out + place;                                              \
  *y = merged(*y, (type)((const from_type *)updates)[from], merge)

/* An element as it is, of a size that is known where it is 4 or 8. */
static inline __attribute__((always_inline)) void scatter_move(char *out, int64_t place, const char *updates,
                                                               int64_t from, const size_t bytes) {
  if (bytes == 4)
    ((uint32_t *)out)[place] = ((const uint32_t *)updates)[from];
  else if (bytes == 8)
    ((uint64_t *)out)[place] = ((const uint64_t *)updates)[from];
  else
    memcpy(out + (size_t)place * bytes, updates + (size_t)from * bytes, bytes);
}

SCATTER_LINES(scatter_b, scatter_move(out, place, updates, from, bytes))

/* What replaces what is there, of any size. */
void K(scatter_b)(const void *p, int32_t part, int32_t parts) {
  const size_t bytes = (size_t)((const scatter_args *)p)->item_bytes;
  if (bytes == 4)
    K(scatter_b_lines)(p, INGOT_MERGE_none, 4, part, parts);
  else if (bytes == 8)
    K(scatter_b_lines)(p, INGOT_MERGE_none, 8, part, parts);
  else
    K(scatter_b_lines)(p, INGOT_MERGE_none, bytes, part, parts);
}

SCATTER(scatter_f32, double, SCATTER_MERGE(double, float, scatter_merged_f64))
SCATTER(scatter_f64, double, SCATTER_MERGE(double, double, scatter_merged_f64))
SCATTER(scatter_i64, int64_t, SCATTER_MERGE(int64_t, int64_t, scatter_merged_i64))
SCATTER(scatter_u64, uint64_t, SCATTER_MERGE(uint64_t, uint64_t, scatter_merged_u64))

#undef SCATTER
#undef SCATTER_LINES
#undef SCATTER_MERGE

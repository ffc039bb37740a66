/* copy.c: strided copies of 1, 2, 4 and 8-byte elements: permute, concat, pad, expand, slice. */
#include <string.h>

#include "kernel.h"
#include "elementwise/strided.h"
#include "elementwise/transpose.h"

/* The dim whose elements are adjacent in `a`, if the copy transposes: out's last dim is adjacent, a's is not. */
static inline int32_t copy_transposed_dim(const elementwise_args *args) {
  int32_t last = args->rank - 1;
  if (last < 1 || args->out_strides[last] != 1 || args->a_strides[last] == 1 || args->shape[last] < 4) return -1;
  for (int32_t d = 0; d < last; d++)
    if (args->a_strides[d] == 1 && args->shape[d] >= 4) return d;
  return -1;
}

/* The work of a transposing copy in bands: 16 elements of the adjacent dim times the whole last dim. A band begins at
 * these offsets and has `height` elements of the adjacent dim. */
typedef struct { int64_t a; int64_t out; int64_t height; } copy_band;

static inline copy_band copy_band_at(const elementwise_args *args, int32_t adjacent, int64_t band) {
  int64_t tall = args->shape[adjacent], bands = (tall + 15) / 16;
  int64_t first = band % bands * 16;
  copy_band s = {first, first * args->out_strides[adjacent], tall - first < 16 ? tall - first : 16};
  band /= bands;
  for (int32_t d = args->rank - 2; d >= 0; d--) {
    if (d == adjacent) continue;
    s.a += band % args->shape[d] * args->a_strides[d];
    s.out += band % args->shape[d] * args->out_strides[d];
    band /= args->shape[d];
  }
  return s;
}

static inline int64_t copy_band_count(const elementwise_args *args, int32_t adjacent) {
  int64_t count = (args->shape[adjacent] + 15) / 16;
  for (int32_t d = 0; d < args->rank - 1; d++)
    if (d != adjacent) count *= args->shape[d];
  return args->shape[args->rank - 1] ? count : 0;
}

/* How often each element of the second last dim is repeated, if the last dim only repeats; else 1. */
static inline int64_t copy_repeats(const elementwise_args *args) {
  int32_t last = args->rank - 1;
  if (last < 1 || args->a_strides[last] != 0 || args->out_strides[last] != 1 || args->shape[last] >= 16) return 1;
  return args->out_strides[last - 1] == args->shape[last] ? args->shape[last] : 1;
}

/* A band is copied in blocks of 16 x 16, which read each cache line of `a` while it is in the cache; whole blocks are
 * transposed in registers. In a row whose elements are repeated, restricted pointers let two repetitions be one
 * shuffle. */
#define COPY(name, type)                                                                                               \
  static inline void K(name##_transposed)(const type *a, int64_t a_step, type *out, int64_t out_row) {                 \
    typedef type eight __attribute__((vector_size(8 * sizeof(type))));                                                 \
    typedef type unaligned __attribute__((vector_size(8 * sizeof(type)), aligned(1), may_alias));                      \
    for (int64_t row = 0; row < 16; row += 8)                                                                          \
      for (int64_t begin = 0; begin < 16; begin += 8) {                                                                \
        eight r[8];                                                                                                    \
        INGOT_UNROLL for (int i = 0; i < 8; i++) r[i] = *(const unaligned *)(a + row + (begin + i) * a_step);          \
        TRANSPOSE8(eight, eight, r);                                                                                   \
        INGOT_UNROLL for (int i = 0; i < 8; i++) *(unaligned *)(out + (row + i) * out_row + begin) = r[i];             \
      }                                                                                                                \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_band)(const elementwise_args *args, int32_t adjacent, int64_t band) {                    \
    copy_band s = copy_band_at(args, adjacent, band);                                                                  \
    int64_t width = args->shape[args->rank - 1];                                                                       \
    int64_t a_step = args->a_strides[args->rank - 1], out_row = args->out_strides[adjacent];                           \
    for (int64_t begin = 0; begin < width; begin += 16) {                                                              \
      int64_t n = width - begin < 16 ? width - begin : 16;                                                             \
      const type *a = (const type *)args->a + s.a + begin * a_step;                                                    \
      type *out = (type *)args->out + s.out + begin;                                                                   \
      if (s.height == 16 && n == 16) {                                                                                 \
        K(name##_transposed)(a, a_step, out, out_row);                                                                 \
        continue;                                                                                                      \
      }                                                                                                                \
      for (int64_t row = 0; row < s.height; row++)                                                                     \
        for (int64_t i = 0; i < n; i++) out[row * out_row + i] = a[row + i * a_step];                                  \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_repeated)(const type *restrict a, int64_t a_step, type *restrict out,                    \
                                        int64_t count, int64_t times) {                                                \
    if (times == 2 && a_step == 1)                                                                                     \
      for (int64_t i = 0; i < count; i++) out[2 * i] = out[2 * i + 1] = a[i];                                          \
    else                                                                                                               \
      for (int64_t i = 0; i < count; i++)                                                                              \
        for (int64_t j = 0; j < times; j++) out[i * times + j] = a[i * a_step];                                        \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    int32_t adjacent = copy_transposed_dim(args);                                                                      \
    if (adjacent >= 0) {                                                                                               \
      int64_t bands = copy_band_count(args, adjacent), end = task_begin(bands, task + 1, num_tasks);                   \
      for (int64_t i = task_begin(bands, task, num_tasks); i < end; i++) K(name##_band)(args, adjacent, i);            \
      return;                                                                                                          \
    }                                                                                                                  \
    const int64_t times = copy_repeats(args);                                                                          \
    elementwise_args walked = *args;                                                                                   \
    if (times > 1) walked.rank--;                                                                                      \
    for (row_walk w = row_walk_begin(&walked, task, num_tasks); w.rows; row_walk_next(&w)) {                           \
      const type *a = (const type *)args->a + w.a;                                                                     \
      type *out = (type *)args->out + w.out;                                                                           \
      if (times > 1)                                                                                                   \
        K(name##_repeated)(a, w.a_step, out, w.count, times);                                                          \
      else if (w.a_step == 1 && w.out_step == 1)                                                                       \
        memcpy(out, a, (size_t)w.count * sizeof(type));                                                                \
      else                                                                                                             \
        for (int64_t i = 0; i < w.count; i++) out[i * w.out_step] = a[i * w.a_step];                                   \
    }                                                                                                                  \
  }

COPY(copy_b1, uint8_t)
COPY(copy_b2, uint16_t)
COPY(copy_b4, uint32_t)
COPY(copy_b8, uint64_t)

#undef COPY

/* pooling.c: 2-D max and average pooling; channels are the lanes, and a window's elements are combined in row-major
 * order. */
#include <string.h>

#include "kernel.h"
#include "math/vmath.h"

/* The kernel positions [begin, end) that are inside an image. */
typedef struct { int64_t begin, end; } pooling_taps;

static inline pooling_taps pooling_inside(int64_t start, int64_t dilation, int64_t kernel, int64_t size) {
  if (start >= 0 && start + (kernel - 1) * dilation < size) return (pooling_taps){0, kernel};
  const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t end = start < size ? (size - 1 - start) / dilation + 1 : 0;
  return (pooling_taps){begin, end < kernel ? end : kernel};
}

/* The window of an output pixel: its offset in x, the pixel's offset in out, and how many elements count. */
typedef struct { int64_t x; int64_t out; pooling_taps rows; pooling_taps columns; int64_t count; } pooling_window;

/* An output pixel. */
typedef struct { int64_t image, line, column; } pooling_position;

static inline pooling_position pooling_position_at(const pool_args *g, int64_t pixel) {
  const int64_t line = g->out_width ? pixel / g->out_width : 0, image = g->out_height ? line / g->out_height : 0;
  return (pooling_position){image, line - image * g->out_height, pixel - line * g->out_width};
}

static inline pooling_position pooling_next(const pool_args *g, pooling_position p) {
  if (++p.column < g->out_width) return p;
  if (++p.line < g->out_height) return (pooling_position){p.image, p.line, 0};
  return (pooling_position){p.image + 1, 0, 0};
}

static inline pooling_window pooling_window_at(const pool_args *g, pooling_position p) {
  const int64_t top = p.line * g->stride_h - g->pad_top, left = p.column * g->stride_w - g->pad_left;
  pooling_window w;
  w.rows = pooling_inside(top, g->dilation_h, g->kernel_h, g->height);
  w.columns = pooling_inside(left, g->dilation_w, g->kernel_w, g->width);
  const int64_t inside = (w.rows.end > w.rows.begin ? w.rows.end - w.rows.begin : 0) *
                         (w.columns.end > w.columns.begin ? w.columns.end - w.columns.begin : 0);
  w.count = g->count_include_pad ? g->kernel_h * g->kernel_w : inside;
  w.x = p.image * g->x_strides[0] + top * g->x_strides[1] + left * g->x_strides[2];
  w.out = p.image * g->out_strides[0] + p.line * g->out_strides[1] + p.column * g->out_strides[2];
  return w;
}

/* Load and store 1 <= lanes <= 16 elements, floats or bf16. */
static inline vf pooling_load_f32(const float *p, int64_t lanes) { return lanes < 16 ? v_load_n(p, lanes) : v_load(p); }

static inline void pooling_store_f32(float *p, vf v, int64_t lanes) {
  if (lanes < 16)
    v_store_n(p, v, lanes);
  else
    v_store(p, v);
}

static inline vf pooling_load_bf16(const uint16_t *p, int64_t lanes) {
  uint16_t some[16] = {0};
  if (lanes < 16) memcpy(some, p, (size_t)lanes * sizeof *p);
  return v_load_bf16(lanes < 16 ? some : p);
}

static inline void pooling_store_bf16(uint16_t *p, vf v, int64_t lanes) {
  uint16_t some[16];
  v_store_bf16(lanes < 16 ? some : p, v);
  if (lanes < 16) memcpy(p, some, (size_t)lanes * sizeof *p);
}

/* Compute one output pixel: x points to the window's first position, whether or not it is inside the image. */
typedef void (*pooling_pixel)(const pool_args *g, const pooling_window *w, const void *x, void *out);

/* A task's pixels. item_bytes: of an element. */
static inline __attribute__((always_inline)) void pooling(const pool_args *g, const int64_t item_bytes,
                                                          pooling_pixel compute, int32_t task, int32_t num_tasks) {
  const int64_t pixels = g->batch * g->out_height * g->out_width, end = task_begin(pixels, task + 1, num_tasks);
  int64_t pixel = task_begin(pixels, task, num_tasks);
  for (pooling_position p = pooling_position_at(g, pixel); pixel < end; pixel++, p = pooling_next(g, p)) {
    const pooling_window w = pooling_window_at(g, p);
    compute(g, &w, (const char *)g->x + w.x * item_bytes, (char *)g->out + w.out * item_bytes);
  }
}

/* The offset of a window's element in row i and column j. */
static inline int64_t pooling_offset(const pool_args *g, int64_t i, int64_t j) {
  return i * g->dilation_h * g->x_strides[1] + j * g->dilation_w * g->x_strides[2];
}

/* 16 channels at a time. */
#define POOL(name, type, load, store, neutral, combine, finalize)                                                      \
  static inline void K(name##_pixel)(const pool_args *g, const pooling_window *w, const void *x, void *out) {          \
    const vf count = v_set((float)w->count);                                                                           \
    (void)count;                                                                                                       \
    for (int64_t channel = 0; channel < g->channels; channel += 16) {                                                  \
      const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;                                   \
      vf total = v_set(neutral);                                                                                       \
      for (int64_t i = w->rows.begin; i < w->rows.end; i++)                                                            \
        for (int64_t j = w->columns.begin; j < w->columns.end; j++)                                                    \
          total = combine(total, load((const type *)x + channel + pooling_offset(g, i, j), lanes));                    \
      store((type *)out + channel, finalize, lanes);                                                                   \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    pooling(args, sizeof(type), K(name##_pixel), task, num_tasks);                                                     \
  }

POOL(max_pool_f32, float, pooling_load_f32, pooling_store_f32, -INFINITY, v_maximum, total)
POOL(max_pool_bf16, uint16_t, pooling_load_bf16, pooling_store_bf16, -INFINITY, v_maximum, total)
POOL(avg_pool_f32, float, pooling_load_f32, pooling_store_f32, 0, v_add, v_div(total, count))

/* x: an element of the window, total: the result for the elements before it. */
#define POOL_WIDE(name, type, neutral, expression, finalize)                                                           \
  static inline void K(name##_pixel)(const pool_args *g, const pooling_window *w, const void *from, void *out) {       \
    for (int64_t channel = 0; channel < g->channels; channel++) {                                                      \
      type total = neutral;                                                                                            \
      for (int64_t i = w->rows.begin; i < w->rows.end; i++)                                                            \
        for (int64_t j = w->columns.begin; j < w->columns.end; j++) {                                                  \
          const type x = ((const type *)from)[channel + pooling_offset(g, i, j)];                                      \
          total = expression;                                                                                          \
        }                                                                                                              \
      ((type *)out)[channel] = finalize;                                                                               \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    pooling(args, sizeof(type), K(name##_pixel), task, num_tasks);                                                     \
  }

POOL_WIDE(max_pool_f64, double, -INFINITY, x != x || x > total ? x : total, total)
POOL_WIDE(max_pool_i64, int64_t, INT64_MIN, x > total ? x : total, total)
POOL_WIDE(avg_pool_f64, double, 0, total + x, total / (double)w->count)

/* Bytes, 64 channels at a time, then 16. */
#define POOL_BYTES(name, type, neutral)                                                                                \
  /* `width` channels, a constant, of which `lanes` exist, of one output pixel; x points to the first of them. */      \
  static inline __attribute__((always_inline)) void K(name##_lanes)(const int width, const pool_args *g,               \
                                                                    const pooling_window *w, size_t lanes,             \
                                                                    const type *x, type *out) {                        \
    type total[64], some[64] = {0};                                                                                    \
    for (int l = 0; l < width; l++) total[l] = neutral;                                                                \
    for (int64_t i = w->rows.begin; i < w->rows.end; i++)                                                              \
      for (int64_t j = w->columns.begin; j < w->columns.end; j++) {                                                    \
        memcpy(some, x + pooling_offset(g, i, j), lanes);                                                              \
        for (int l = 0; l < width; l++) total[l] = some[l] > total[l] ? some[l] : total[l];                            \
      }                                                                                                                \
    memcpy(out, total, lanes);                                                                                         \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_pixel)(const pool_args *g, const pooling_window *w, const void *from, void *to) {        \
    const type *x = from;                                                                                              \
    type *out = to;                                                                                                    \
    int64_t channel = 0;                                                                                               \
    for (; channel + 64 <= g->channels; channel += 64) K(name##_lanes)(64, g, w, 64, x + channel, out + channel);      \
    for (; channel + 16 <= g->channels; channel += 16) K(name##_lanes)(16, g, w, 16, x + channel, out + channel);      \
    const size_t left = (size_t)(g->channels - channel);                                                               \
    if (left) K(name##_lanes)(16, g, w, left, x + channel, out + channel);                                             \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    pooling(args, sizeof(type), K(name##_pixel), task, num_tasks);                                                     \
  }

POOL_BYTES(max_pool_u8, uint8_t, 0)
POOL_BYTES(max_pool_i8, int8_t, -128)

#undef POOL_BYTES
#undef POOL
#undef POOL_WIDE

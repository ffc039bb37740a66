/* pooling.c: 2-D max and average pooling; channels are the lanes, a window's elements go in row-major order. */
#include <string.h>

#include "kernel.h"
#include "vmath.h"

/* The kernel positions [begin, end) that fall inside an image. */
typedef struct { int64_t begin, end; } pooling_taps;

static inline pooling_taps pooling_inside(int64_t start, int64_t dilation, int64_t kernel, int64_t size) {
  if (start >= 0 && start + (kernel - 1) * dilation < size) return (pooling_taps){0, kernel};
  const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t end = start < size ? (size - 1 - start) / dilation + 1 : 0;
  return (pooling_taps){begin, end < kernel ? end : kernel};
}

/* The window of an output pixel: where it begins in x, where the pixel lies in out, and how many elements count. */
typedef struct { int64_t x; int64_t out; pooling_taps rows; pooling_taps columns; int64_t count; } pooling_window;

static inline pooling_window pooling_window_at(const pool_args *g, int64_t pixel) {
  const int64_t column = pixel % g->out_width, line = pixel / g->out_width % g->out_height;
  const int64_t image = pixel / g->out_width / g->out_height;
  const int64_t top = line * g->stride_h - g->pad_top, left = column * g->stride_w - g->pad_left;
  pooling_window w;
  w.rows = pooling_inside(top, g->dilation_h, g->kernel_h, g->height);
  w.columns = pooling_inside(left, g->dilation_w, g->kernel_w, g->width);
  const int64_t inside = (w.rows.end > w.rows.begin ? w.rows.end - w.rows.begin : 0) *
                         (w.columns.end > w.columns.begin ? w.columns.end - w.columns.begin : 0);
  w.count = g->count_include_pad ? g->kernel_h * g->kernel_w : inside;
  w.x = image * g->x_strides[0] + top * g->x_strides[1] + left * g->x_strides[2];
  w.out = image * g->out_strides[0] + line * g->out_strides[1] + column * g->out_strides[2];
  return w;
}

/* 1 <= lanes <= 16 elements, floats or bf16, and back. */
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

#define POOL(name, type, load, store, neutral, combine, finish)                                                  \
  /* Up to 16 channels of one output pixel; x points to the first of them at the window's first position. */     \
  static inline vf K(name##_window)(const pool_args *g, const type *x, pooling_taps rows, pooling_taps columns,  \
                                    int64_t lanes) {                                                             \
    vf total = v_set(neutral);                                                                                   \
    for (int64_t i = rows.begin; i < rows.end; i++)                                                              \
      for (int64_t j = columns.begin; j < columns.end; j++) {                                                    \
        const type *from = x + i * g->dilation_h * g->x_strides[1] + j * g->dilation_w * g->x_strides[2];        \
        total = combine(total, load(from, lanes));                                                               \
      }                                                                                                          \
    return total;                                                                                                \
  }                                                                                                              \
                                                                                                                 \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                     \
    const pool_args *g = p;                                                                                      \
    const int64_t pixels = g->batch * g->out_height * g->out_width, end = part_begin(pixels, part + 1, parts);   \
    for (int64_t pixel = part_begin(pixels, part, parts); pixel < end; pixel++) {                                \
      const pooling_window w = pooling_window_at(g, pixel);                                                      \
      const vf count = v_set((float)w.count);                                                                    \
      (void)count;                                                                                               \
      const type *x = (const type *)g->x + w.x;                                                                  \
      type *out = (type *)g->out + w.out;                                                                        \
      for (int64_t channel = 0; channel < g->channels; channel += 16) {                                          \
        const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;                           \
        const vf total = K(name##_window)(g, x + channel, w.rows, w.columns, lanes);                             \
        store(out + channel, finish, lanes);                                                                     \
      }                                                                                                          \
    }                                                                                                            \
  }

POOL(max_pool_f32, float, pooling_load_f32, pooling_store_f32, -INFINITY, v_maximum, total)
POOL(max_pool_bf16, uint16_t, pooling_load_bf16, pooling_store_bf16, -INFINITY, v_maximum, total)
POOL(avg_pool_f32, float, pooling_load_f32, pooling_store_f32, 0, v_add, v_div(total, count))

/* x: an element of the window, total: what came before it. */
#define POOL_WIDE(name, type, neutral, expression, finish)                                                       \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                     \
    const pool_args *g = p;                                                                                      \
    const int64_t pixels = g->batch * g->out_height * g->out_width, end = part_begin(pixels, part + 1, parts);   \
    for (int64_t pixel = part_begin(pixels, part, parts); pixel < end; pixel++) {                                \
      const pooling_window w = pooling_window_at(g, pixel);                                                      \
      for (int64_t channel = 0; channel < g->channels; channel++) {                                              \
        const type *from = (const type *)g->x + w.x + channel;                                                   \
        type total = neutral;                                                                                    \
        for (int64_t i = w.rows.begin; i < w.rows.end; i++)                                                      \
          for (int64_t j = w.columns.begin; j < w.columns.end; j++) {                                            \
            const type x = from[i * g->dilation_h * g->x_strides[1] + j * g->dilation_w * g->x_strides[2]];      \
            total = expression;                                                                                  \
          }                                                                                                      \
        ((type *)g->out)[w.out + channel] = finish;                                                              \
      }                                                                                                          \
    }                                                                                                            \
  }

POOL_WIDE(max_pool_f64, double, -INFINITY, x != x || x > total ? x : total, total)
POOL_WIDE(max_pool_i64, int64_t, INT64_MIN, x > total ? x : total, total)
POOL_WIDE(avg_pool_f64, double, 0, total + x, total / (double)w.count)

/* Bytes, 16 channels at a time. */
#define POOL_BYTES(name, type, neutral)                                                                          \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                     \
    const pool_args *g = p;                                                                                      \
    const int64_t pixels = g->batch * g->out_height * g->out_width, end = part_begin(pixels, part + 1, parts);   \
    for (int64_t pixel = part_begin(pixels, part, parts); pixel < end; pixel++) {                                \
      const pooling_window w = pooling_window_at(g, pixel);                                                      \
      for (int64_t channel = 0; channel < g->channels; channel += 16) {                                          \
        const size_t lanes = g->channels - channel < 16 ? (size_t)(g->channels - channel) : 16;                  \
        type total[16], x[16] = {0};                                                                             \
        for (int l = 0; l < 16; l++) total[l] = neutral;                                                         \
        for (int64_t i = w.rows.begin; i < w.rows.end; i++)                                                      \
          for (int64_t j = w.columns.begin; j < w.columns.end; j++) {                                            \
            const int64_t at = i * g->dilation_h * g->x_strides[1] + j * g->dilation_w * g->x_strides[2];        \
            const type *from = (const type *)g->x + w.x + channel + at;                                          \
            if (lanes == 16) memcpy(x, from, 16); else memcpy(x, from, lanes);                                   \
            for (int l = 0; l < 16; l++) total[l] = x[l] > total[l] ? x[l] : total[l];                           \
          }                                                                                                      \
        if (lanes == 16) memcpy((type *)g->out + w.out + channel, total, 16);                                    \
        else memcpy((type *)g->out + w.out + channel, total, lanes);                                             \
      }                                                                                                          \
    }                                                                                                            \
  }

POOL_BYTES(max_pool_u8, uint8_t, 0)
POOL_BYTES(max_pool_i8, int8_t, -128)

#undef POOL_BYTES
#undef POOL
#undef POOL_WIDE

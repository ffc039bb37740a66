/* pooling.c: 2-D max and average pooling; channels are the lanes, a window's elements go in row-major order. */
#include "kernel.h"
#include "vmath.h"

/* The kernel positions [begin, end) that fall inside an image. */
typedef struct { int64_t begin, end; } pooling_taps;

static inline pooling_taps pooling_inside(int64_t start, int64_t dilation, int64_t kernel, int64_t size) {
  const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t end = start < size ? (size - 1 - start) / dilation + 1 : 0;
  return (pooling_taps){begin, end < kernel ? end : kernel};
}

#define POOL(name, neutral, combine, finish)                                                                     \
  /* Up to 16 channels of one output pixel; x points to the first of them at the window's first position. */     \
  static inline vf K(name##_window)(const pool_args *g, const float *x, pooling_taps rows, pooling_taps columns, \
                                    int64_t lanes) {                                                             \
    vf total = v_set(neutral);                                                                                   \
    for (int64_t i = rows.begin; i < rows.end; i++)                                                              \
      for (int64_t j = columns.begin; j < columns.end; j++) {                                                    \
        const float *from = x + i * g->dilation_h * g->x_strides[1] + j * g->dilation_w * g->x_strides[2];       \
        total = combine(total, lanes < 16 ? v_load_n(from, lanes) : v_load(from));                               \
      }                                                                                                          \
    return total;                                                                                                \
  }                                                                                                              \
                                                                                                                 \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                     \
    const pool_args *g = p;                                                                                      \
    const int64_t pixels = g->batch * g->out_height * g->out_width, end = part_begin(pixels, part + 1, parts);   \
    for (int64_t pixel = part_begin(pixels, part, parts); pixel < end; pixel++) {                                \
      const int64_t column = pixel % g->out_width, line = pixel / g->out_width % g->out_height;                  \
      const int64_t image = pixel / g->out_width / g->out_height;                                                \
      const int64_t top = line * g->stride_h - g->pad_top, left = column * g->stride_w - g->pad_left;            \
      const pooling_taps rows = pooling_inside(top, g->dilation_h, g->kernel_h, g->height);                      \
      const pooling_taps columns = pooling_inside(left, g->dilation_w, g->kernel_w, g->width);                   \
      const int64_t inside = (rows.end > rows.begin ? rows.end - rows.begin : 0) *                               \
                             (columns.end > columns.begin ? columns.end - columns.begin : 0);                    \
      const vf count = v_set((float)(g->count_include_pad ? g->kernel_h * g->kernel_w : inside));                \
      (void)count;                                                                                               \
      const float *x = g->x + image * g->x_strides[0] + top * g->x_strides[1] + left * g->x_strides[2];          \
      float *out = g->out + image * g->out_strides[0] + line * g->out_strides[1] + column * g->out_strides[2];   \
      for (int64_t channel = 0; channel < g->channels; channel += 16) {                                          \
        const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;                           \
        const vf total = K(name##_window)(g, x + channel, rows, columns, lanes);                                 \
        if (lanes < 16) v_store_n(out + channel, finish, lanes); else v_store(out + channel, finish);            \
      }                                                                                                          \
    }                                                                                                            \
  }

POOL(max_pool_f32, -INFINITY, v_maximum, total)
POOL(avg_pool_f32, 0, v_add, v_div(total, count))

#undef POOL

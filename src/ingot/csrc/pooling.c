/* pooling.c: 2-D max and average pooling over contiguous planes; a window's elements go in row-major order. */
#include "kernel.h"
#include "vmath.h"

/* The kernel positions [begin, end) that fall inside `size` when the window starts at `start`. */
static inline int64_t pooling_begin(int64_t start, int64_t dilation) {
  return start >= 0 ? 0 : (-start + dilation - 1) / dilation;
}

static inline int64_t pooling_end(int64_t start, int64_t dilation, int64_t kernel, int64_t size) {
  int64_t inside = start < size ? (size - 1 - start) / dilation + 1 : 0;
  return inside < kernel ? inside : kernel;
}

#define POOL(name, neutral, step, finish)                                                              \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                           \
    const pool_args *args = p;                                                                         \
    int64_t rows = args->planes * args->out_height, end = part_begin(rows, part + 1, parts);           \
    for (int64_t row = part_begin(rows, part, parts); row < end; row++) {                              \
      const float *plane = args->x + row / args->out_height * args->height * args->width;              \
      float *out = args->out + row * args->out_width;                                                  \
      int64_t top = row % args->out_height * args->stride_h - args->pad_top;                           \
      int64_t y0 = pooling_begin(top, args->dilation_h);                                               \
      int64_t y1 = pooling_end(top, args->dilation_h, args->kernel_h, args->height);                   \
      for (int64_t i = 0; i < args->out_width; i++) {                                                  \
        int64_t left = i * args->stride_w - args->pad_left;                                            \
        int64_t x0 = pooling_begin(left, args->dilation_w);                                            \
        int64_t x1 = pooling_end(left, args->dilation_w, args->kernel_w, args->width);                 \
        float total = neutral;                                                                         \
        for (int64_t y = y0; y < y1; y++)                                                              \
          for (int64_t x = x0; x < x1; x++) {                                                          \
            float value = plane[(top + y * args->dilation_h) * args->width + left + x * args->dilation_w]; \
            total = step;                                                                              \
          }                                                                                            \
        int64_t inside = (y1 > y0 ? y1 - y0 : 0) * (x1 > x0 ? x1 - x0 : 0);                            \
        int64_t count = args->count_include_pad ? args->kernel_h * args->kernel_w : inside;            \
        (void)count;                                                                                   \
        out[i] = finish;                                                                               \
      }                                                                                                \
    }                                                                                                  \
  }

/* A NaN fails both comparisons' way out: it replaces the total, and nothing replaces it. */
POOL(max_pool_f32, -INFINITY, value <= total || total != total ? total : value, total)
POOL(avg_pool_f32, 0, total + value, total / (float)count)

#undef POOL

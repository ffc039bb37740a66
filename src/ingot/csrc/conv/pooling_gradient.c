/* pooling_gradient.c: the gradient of max pooling; channels are the lanes. */
#include "kernel.h"
#include "math/vmath.h"

/* Positions [begin, end) of a window along an axis that are inside an image, and its start. */
typedef struct { int64_t start, begin, end; } pooled_span;

static inline pooled_span pooled_at(int64_t start, int64_t dilation, int64_t kernel, int64_t size) {
  const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t end = start < size ? (size - 1 - start) / dilation + 1 : 0;
  return (pooled_span){start, begin, end < kernel ? end : kernel};
}

static inline vf pooled_load(const float *p, int64_t lanes) { return lanes < 16 ? v_load_n(p, lanes) : v_load(p); }

static inline void pooled_store(float *p, vf v, int64_t lanes) {
  if (lanes < 16)
    v_store_n(p, v, lanes);
  else
    v_store(p, v);
}

/* Add d to the largest element of a window, for up to 16 channels; x and out point to the image's first pixel. */
static inline void pooled_window(const max_pool_gradient_args *g, pooled_span rows, pooled_span columns, const float *x,
                                 vf d, int64_t lanes, float *out) {
  vf best = v_set(-INFINITY), found = v_set(-1), tap = v_set(0);
  for (int64_t i = rows.begin; i < rows.end; i++) {
    const float *line = x + (rows.start + i * g->dilation_h) * g->x_strides[1];
    for (int64_t j = columns.begin; j < columns.end; j++, tap = v_add(tap, v_set(1))) {
      const vf v = pooled_load(line + (columns.start + j * g->dilation_w) * g->x_strides[2], lanes);
      const vf first = v_select(v_lt(best, v), tap, v_select(v_eq(found, v_set(-1)), tap, found));
      found = v_select(v_isnan(best), found, v_select(v_isnan(v), tap, first));
      best = v_maximum(best, v);
    }
  }
  tap = v_set(0);
  for (int64_t i = rows.begin; i < rows.end; i++) {
    float *line = out + (rows.start + i * g->dilation_h) * g->out_strides[1];
    for (int64_t j = columns.begin; j < columns.end; j++, tap = v_add(tap, v_set(1))) {
      float *to = line + (columns.start + j * g->dilation_w) * g->out_strides[2];
      pooled_store(to, v_add(pooled_load(to, lanes), v_select(v_eq(found, tap), d, v_set(0))), lanes);
    }
  }
}

/* Set rows [begin, end) of an image's gradient to zeros, in `channels` channels. */
static inline void pooled_clear(const max_pool_gradient_args *g, int64_t begin, int64_t end, int64_t channels,
                                float *out) {
  for (int64_t y = begin; y < end; y++) {
    for (int64_t x = 0; x < g->width; x++) {
      float *to = out + y * g->out_strides[1] + x * g->out_strides[2];
      for (int64_t j = 0; j < channels; j += 16)
        pooled_store(to + j, v_set(0), channels - j < 16 ? channels - j : 16);
    }
  }
}

/* Adjacent channels of an image. Rows are cleared just before the first window that reaches them. */
static inline void pooled_image(const max_pool_gradient_args *g, const float *x, const float *d, int64_t channels,
                                float *out) {
  int64_t cleared = 0;
  for (int64_t y = 0; y < g->out_height; y++) {
    const pooled_span rows = pooled_at(y * g->stride_h - g->pad_top, g->dilation_h, g->kernel_h, g->height);
    const int64_t reach = rows.end > rows.begin ? rows.start + (rows.end - 1) * g->dilation_h + 1 : 0;
    pooled_clear(g, cleared, reach, channels, out);
    if (reach > cleared) cleared = reach;
    for (int64_t column = 0; column < g->out_width; column++) {
      const pooled_span columns = pooled_at(column * g->stride_w - g->pad_left, g->dilation_w, g->kernel_w, g->width);
      const float *given = d + y * g->d_strides[1] + column * g->d_strides[2];
      for (int64_t j = 0; j < channels; j += 16) {
        const int64_t lanes = channels - j < 16 ? channels - j : 16;
        pooled_window(g, rows, columns, x + j, pooled_load(given + j, lanes), lanes, out + j);
      }
    }
  }
  pooled_clear(g, cleared, g->height, channels, out);
}

/* A task owns images, and some groups of 16 channels of its first and last image. */
void K(max_pool_gradient_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const max_pool_gradient_args *g = p;
  const int64_t groups = (g->channels + 15) / 16, end = task_begin(g->batch * groups, task + 1, num_tasks);
  for (int64_t i = task_begin(g->batch * groups, task, num_tasks), next; i < end; i = next) {
    const int64_t image = i / groups, channel = i % groups * 16;
    next = (image + 1) * groups < end ? (image + 1) * groups : end;
    const int64_t left = g->channels - channel, count = (next - i) * 16;
    pooled_image(g, g->x + image * g->x_strides[0] + channel, g->d + image * g->d_strides[0] + channel,
                 left < count ? left : count, g->out + image * g->out_strides[0] + channel);
  }
}

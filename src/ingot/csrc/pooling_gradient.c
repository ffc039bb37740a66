/* pooling_gradient.c: the gradient of max pooling; channels are the lanes. */
#include "kernel.h"
#include "vmath.h"

/* Taps [begin, end) of a window along an axis that lie inside an image, and where it begins. */
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

/* d goes to the largest of a window, for up to 16 channels; x and out point to the image's first pixel. */
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

/* A part takes images, up to 16 channels of each. */
void K(max_pool_gradient_f32)(const void *p, int32_t part, int32_t parts) {
  const max_pool_gradient_args *g = p;
  const int64_t groups = (g->channels + 15) / 16, end = part_begin(g->batch * groups, part + 1, parts);
  for (int64_t i = part_begin(g->batch * groups, part, parts); i < end; i++) {
    const int64_t image = i / groups, channel = i % groups * 16;
    const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;
    const float *x = g->x + image * g->x_strides[0] + channel, *d = g->d + image * g->d_strides[0] + channel;
    float *out = g->out + image * g->out_strides[0] + channel;
    for (int64_t y = 0; y < g->height; y++)
      for (int64_t column = 0; column < g->width; column++)
        pooled_store(out + y * g->out_strides[1] + column * g->out_strides[2], v_set(0), lanes);
    for (int64_t y = 0; y < g->out_height; y++) {
      const pooled_span rows = pooled_at(y * g->stride_h - g->pad_top, g->dilation_h, g->kernel_h, g->height);
      for (int64_t column = 0; column < g->out_width; column++) {
        const pooled_span columns =
            pooled_at(column * g->stride_w - g->pad_left, g->dilation_w, g->kernel_w, g->width);
        const vf given = pooled_load(d + y * g->d_strides[1] + column * g->d_strides[2], lanes);
        pooled_window(g, rows, columns, x, given, lanes, out);
      }
    }
  }
}

/* conv_depthwise.c: depthwise 2-D convolution. Channels are the lanes; some pixels of one or two output rows are
 * computed together, so that a weight is loaded once for all of them, and an element once for all its uses. */
#include "conv/conv.h"

/* Output pixels of a row, and rows, that are computed together: as many as fit the registers with rows of a filter.
 * Image widths in networks, halved from 224, are multiples of 7. */
#if defined(ISA_avx512)
#define DEPTHWISE_PIXELS 7
#define DEPTHWISE_ROWS 2
#define DEPTHWISE_NARROW 1 /* whether bf16 images have specialised bodies; they do in every set that has bf16 kernels */
#else
#define DEPTHWISE_PIXELS 4
#define DEPTHWISE_ROWS 1
#define DEPTHWISE_NARROW 0
#endif
#define INGOT_MEANS 1 /* the case of is_given for the means of rows */
#define DEPTHWISE_TAPS 7 /* the widest filter with a specialised body */
#define DEPTHWISE_CHANNELS 128 /* computed together: their windows stay in the L1 cache */

/* Output pixels [x, x + pixels) of rows [y, y + rows) of image n. One vector of channels is computed from `channel` on,
 * of which only `lanes` exist; those from `skip` on are wanted. vectorized: the epilogue is applied in registers. */
typedef struct {
  const conv_args *g;
  int64_t n, y, x, rows, pixels, channel, lanes, skip;
  const gemm_epilogue *epilogue;
  int vectorized;
} depthwise_block;

/* The offset of the block's channels of its image, in elements of x. */
static inline int64_t depthwise_image(const depthwise_block *b) {
  return b->n * b->g->x_strides[0] + b->channel;
}

/* The destinations in an output row from pixel x on, for the first wanted channel. */
typedef struct { const float *residual; float *out; uint16_t *rounded; } depthwise_place;

static inline depthwise_place depthwise_place_at(const depthwise_block *b, int64_t row) {
  const conv_args *g = b->g;
  const int64_t *r = g->residual_strides, *o = g->out_strides, *w = g->rounded_strides;
  const int64_t y = b->y + row, channel = b->channel + b->skip;
  return (depthwise_place){g->residual ? g->residual + b->n * r[0] + y * r[1] + b->x * r[2] + channel : NULL,
                           g->out ? g->out + b->n * o[0] + y * o[1] + b->x * o[2] + channel : NULL,
                           g->rounded ? g->rounded + b->n * w[0] + y * w[1] + b->x * w[2] + channel : NULL};
}

/* sums[pixel][16] of one row; filters of any size. */
static inline __attribute__((always_inline)) void depthwise_any(const int narrow, const depthwise_block *b,
                                                                float *sums) {
  const conv_args *g = b->g;
  for (int64_t t = 0; t < DEPTHWISE_PIXELS; t++) {
    const float *weight = g->weight + b->channel;
    const int64_t top = b->y * g->stride_h - g->pad_top;
    const int64_t left = (b->x + t) * g->stride_w - g->pad_left;
    vf sum = v_set(0.0f);
    for (int64_t i = 0; i < g->kernel_h; i++) {
      const int64_t line = top + i * g->dilation_h;
      for (int64_t j = 0; j < g->kernel_w; j++, weight += g->channels) {
        const int64_t column = left + j * g->dilation_w;
        const int inside = line >= 0 && line < g->height && column >= 0 && column < g->width;
        const int64_t from = depthwise_image(b) + line * g->x_strides[1] + column * g->x_strides[2];
        const vf v = inside ? conv_load(narrow, g->x, from, b->lanes) : v_set(0.0f);
        sum = v_fma(v, b->lanes < 16 ? v_load_n(weight, b->lanes) : v_load(weight), sum);
      }
    }
    v_store(sums + t * 16, sum);
  }
}

/* 16 elements at x, or zeros where they are outside of the image; branch-free. */
static inline __attribute__((always_inline)) vf depthwise_load(const int narrow, const float *x, int64_t from,
                                                               const int inside) {
  static const float outside[16];
  const float *at = narrow ? (const float *)(const void *)((const uint16_t *)(const void *)x + from) : x + from;
  return conv_load(narrow, inside ? at : outside, 0, 16);
}

/* One row of the image for output rows [first, last): weight points to the row of the filter for row 0; the one for row
 * 1 is `back` before it. `left` is the first column, in elements of `from`. */
static inline __attribute__((always_inline)) void depthwise_line(
    const int taps, const int stride, const int inner, const int narrow, const int first, const int last,
    const depthwise_block *b, int64_t from, int64_t left, int64_t width, const float *weight, int64_t back,
    vf sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS]) {
  const int columns = (DEPTHWISE_PIXELS - 1) * stride + taps;
  vf w[DEPTHWISE_ROWS][DEPTHWISE_TAPS];
  INGOT_UNROLL for (int row = first; row < last; row++) {
    INGOT_UNROLL for (int j = 0; j < taps; j++) w[row][j] = v_load(weight - row * back + j * b->g->channels);
  }
  INGOT_UNROLL for (int c = 0; c < columns; c++, from += b->g->x_strides[2]) {
    const vf v = depthwise_load(narrow, b->g->x, from, inner || (uint64_t)(left + c) < (uint64_t)width);
    INGOT_UNROLL for (int row = first; row < last; row++) {
      INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
        if (c >= t * stride && c < t * stride + taps) sum[row][t] = v_fma(v, w[row][c - t * stride], sum[row][t]);
      }
    }
  }
}

/* The vectorized epilogue store. */
static inline __attribute__((always_inline)) void depthwise_store(const depthwise_block *b,
                                                                  vf sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS]) {
  const gemm_store f = epilogue_store(b->epilogue, 0, b->channel, NULL, 0);
  const vf bias = f.bias ? v_load(f.bias) : v_set(-0.0f), low = v_set(f.low), high = v_set(f.high);
  INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++) {
    if (row >= b->rows) break;
    const depthwise_place p = depthwise_place_at(b, row);
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
      if (t >= b->pixels) break;
      const vf rest = p.residual ? v_load(p.residual + t * b->g->residual_strides[2]) : v_set(-0.0f);
      vf v = v_add(sum[row][t], bias);
      if (f.residual_first) v = v_add(v, rest);
      v = v_min(high, v_max(low, v));
      if (!f.residual_first) v = v_add(v, rest);
      if (p.out) v_store(p.out + t * b->g->out_strides[2], v);
      if (p.rounded) v_store_bf16(p.rounded + t * b->g->rounded_strides[2], v);
    }
  }
}

/* sums[row][DEPTHWISE_PIXELS][16], or results where the epilogue is vectorized, for filters `taps` wide with a stride,
 * both constants at every call, without dilation. inner: the windows are inside the image. */
static inline __attribute__((always_inline)) void depthwise_body(const int taps, const int stride, const int inner,
                                                                 const int narrow, const depthwise_block *b,
                                                                 float *sums) {
  const conv_args *g = b->g;
  const int64_t left = b->x * stride - g->pad_left, top = b->y * g->stride_h - g->pad_top;
  const int64_t line_weights = taps * g->channels, back = g->stride_h * line_weights;
  const int64_t lines = g->kernel_h + (b->rows - 1) * g->stride_h;
  const float *weight = g->weight + b->channel;
  int64_t from = depthwise_image(b) + top * g->x_strides[1] + left * g->x_strides[2];
  vf sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS];
  INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++) {
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) sum[row][t] = v_set(0.0f);
  }
  for (int64_t i = 0; i < lines; i++, from += g->x_strides[1], weight += line_weights) {
    const int64_t width = inner || (top + i >= 0 && top + i < g->height) ? g->width : 0;
    const int lower = DEPTHWISE_ROWS > 1 && b->rows > 1 && i >= g->stride_h;
    if (i < g->kernel_h && lower)
      depthwise_line(taps, stride, inner, narrow, 0, DEPTHWISE_ROWS, b, from, left, width, weight, back, sum);
    else if (i < g->kernel_h)
      depthwise_line(taps, stride, inner, narrow, 0, 1, b, from, left, width, weight, back, sum);
    else if (lower)
      depthwise_line(taps, stride, inner, narrow, 1, DEPTHWISE_ROWS, b, from, left, width, weight, back, sum);
  }
  if (b->vectorized) {
    depthwise_store(b, sum);
    return;
  }
  INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++, sums += DEPTHWISE_PIXELS * 16) {
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) v_store(sums + t * 16, sum[row][t]);
  }
}

/* Whether the block's windows are inside the image. */
static inline int depthwise_is_inner(const depthwise_block *b) {
  const conv_args *g = b->g;
  const int64_t top = b->y * g->stride_h - g->pad_top, left = b->x * g->stride_w - g->pad_left;
  return top >= 0 && top + (b->rows - 1) * g->stride_h + g->kernel_h <= g->height && left >= 0 &&
         left + (DEPTHWISE_PIXELS - 1) * g->stride_w + g->kernel_w <= g->width;
}

/* The shape of a filter with a specialised body, as width * 10 + stride; else 0. */
static inline int64_t depthwise_shape(const conv_args *g) {
  const int64_t shape = g->kernel_w * 10 + g->stride_w;
  if (g->channels < 16 || g->dilation_w != 1 || g->dilation_h != 1) return 0;
  return shape == 31 || shape == 32 || shape == 51 || shape == 52 || shape == 71 ? shape : 0;
}

static inline __attribute__((always_inline)) void depthwise_sums(const int narrow, int64_t shape,
                                                                 int inner, const depthwise_block *b, float *sums) {
  if (shape == 31 && inner)
    depthwise_body(3, 1, 1, narrow, b, sums);
  else if (shape == 31)
    depthwise_body(3, 1, 0, narrow, b, sums);
  else if (shape == 32 && inner)
    depthwise_body(3, 2, 1, narrow, b, sums);
  else if (shape == 32)
    depthwise_body(3, 2, 0, narrow, b, sums);
  else if (shape == 51)
    depthwise_body(5, 1, 0, narrow, b, sums);
  else if (shape == 52)
    depthwise_body(5, 2, 0, narrow, b, sums);
  else if (shape == 71 && inner)
    depthwise_body(7, 1, 1, narrow, b, sums);
  else if (shape == 71)
    depthwise_body(7, 1, 0, narrow, b, sums);
  else
    depthwise_any(narrow, b, sums);
}

/* The epilogue of the block's sums. */
static inline void depthwise_apply(const depthwise_block *b, const float *sums) {
  const conv_args *g = b->g;
  gemm_epilogue epilogue = *b->epilogue;
  epilogue.column_bias = g->bias ? g->bias + b->channel + b->skip : NULL;
  epilogue.slopes = g->slopes ? g->slopes + b->channel + b->skip : NULL;
  for (int64_t row = 0; row < b->rows; row++) {
    const depthwise_place p = depthwise_place_at(b, row);
    epilogue.residual = p.residual;
    epilogue.rounded = p.rounded;
    epilogue_apply(&epilogue, 0, 0, b->pixels, b->lanes - b->skip, sums + row * DEPTHWISE_PIXELS * 16 + b->skip, 16,
                   p.out, g->out_strides[2]);
  }
}

/* The same for a bias and an activation only, on a full vector of channels. */
static inline void depthwise_activate(const depthwise_block *b, const float *sums) {
  const conv_args *g = b->g;
  const vf bias = g->bias ? v_load(g->bias + b->channel) : v_set(-0.0f);
  for (int64_t row = 0; row < b->rows; row++)
    epilogue_activate(b->epilogue, bias, b->pixels, sums + row * DEPTHWISE_PIXELS * 16, 16,
                      depthwise_place_at(b, row).out, g->out_strides[2]);
}

/* Add the block's results to the sums of their rows, which become means at the end. */
static inline void depthwise_mean(const depthwise_block *b) {
  const conv_args *g = b->g;
  const int64_t channel = b->channel + b->skip, lanes = b->lanes - b->skip;
  const int ends = b->x + b->pixels == g->out_width;
  for (int64_t row = 0; row < b->rows; row++) {
    const float *out = depthwise_place_at(b, row).out;
    float *to = g->means + (b->n * g->out_height + b->y + row) * g->channels + channel;
    vf sum = b->x ? epilogue_load(to, lanes) : v_set(0.0f);
    for (int64_t t = 0; t < b->pixels; t++) sum = v_add(sum, epilogue_load(out + t * g->out_strides[2], lanes));
    if (ends) sum = v_div(sum, v_set((float)g->out_width));
    if (lanes < 16)
      v_store_n(to, sum, lanes);
    else
      v_store(to, sum);
  }
}

/* Channels [channel, channel + count) of output rows [begin, end), counted over the batch. */
static inline __attribute__((always_inline)) void depthwise_channels(const int narrow, const conv_args *g,
                                                                     int64_t begin, int64_t end, int64_t channel,
                                                                     int64_t count) {
  float sums[DEPTHWISE_ROWS * DEPTHWISE_PIXELS * 16 + 16];
  const gemm_epilogue epilogue = {g->bias, g->slopes, NULL, g->residual, g->residual_strides[2], 1.0f, g->act_alpha,
                                  g->act_beta, g->activation, g->residual_first, g->rounded, g->rounded_strides[2]};
  /* Channels that do not fill the lanes are computed together with some channels before them. */
  const int64_t lanes = g->channels < 16 ? g->channels : 16, skip = count < lanes ? lanes - count : 0;
  const int64_t shape = narrow && !DEPTHWISE_NARROW ? 0 : depthwise_shape(g);
  const int vectorized = shape && count % 16 == 0 && epilogue_is_vectorized(&epilogue);
  const int plain = !vectorized && count % 16 == 0 && epilogue_is_plain(&epilogue, 16, g->out);
  depthwise_block b = {.g = g, .lanes = lanes, .skip = skip, .epilogue = &epilogue, .vectorized = vectorized};
  for (; begin < end; begin += b.rows) {
    b.n = begin / g->out_height;
    b.y = begin % g->out_height;
    b.rows = shape && b.y + DEPTHWISE_ROWS <= g->out_height && begin + DEPTHWISE_ROWS <= end ? DEPTHWISE_ROWS : 1;
    for (b.x = 0; b.x < g->out_width; b.x += b.pixels) {
      b.pixels = g->out_width - b.x < DEPTHWISE_PIXELS ? g->out_width - b.x : DEPTHWISE_PIXELS;
      const int inner = depthwise_is_inner(&b);
      for (int64_t at = 0; at < count; at += 16) {
        b.channel = channel + at - skip;
        depthwise_sums(narrow, shape, inner, &b, sums);
        switch (plain) {
          case INGOT_ACTIVATED: depthwise_activate(&b, sums); break;
          default:
            if (!vectorized) depthwise_apply(&b, sums);
        }
        switch (is_given(g->means)) {
          case INGOT_MEANS: depthwise_mean(&b);
        }
      }
    }
  }
}

typedef void (*depthwise_part)(const conv_args *g, int64_t begin, int64_t end, int64_t channel, int64_t count);

static inline void depthwise(depthwise_part channels, const conv_args *g, int32_t task, int32_t num_tasks) {
  /* Panels are rows of pixels here, and rows are vectors of channels. */
  const gemm_share share = gemm_cut(g->batch * g->out_height, (g->channels + 15) / 16, task, num_tasks);
  const int64_t whole = g->channels / 16 < share.row_end ? g->channels / 16 : share.row_end;
  const int64_t vectors = whole > share.row_begin ? whole - share.row_begin : 0, most = DEPTHWISE_CHANNELS / 16;
  const int32_t groups = (int32_t)((vectors + most - 1) / most);
  for (int32_t group = 0; group < groups; group++) {
    const int64_t first = share.row_begin + task_begin(vectors, group, groups);
    const int64_t last = share.row_begin + task_begin(vectors, group + 1, groups);
    channels(g, share.panel_begin, share.panel_end, first * 16, (last - first) * 16);
  }
  /* Channels that do not fill the lanes are computed separately. */
  if (whole < share.row_end)
    channels(g, share.panel_begin, share.panel_end, whole * 16, g->channels - whole * 16);
}

/* Both calls share one body, which compiles for seconds. */
#define DEPTHWISE(name, narrow)                                                                                        \
  static void K(name##_channels)(const conv_args *g, int64_t begin, int64_t end, int64_t channel, int64_t count) {     \
    depthwise_channels(narrow, g, begin, end, channel, count);                                                         \
  }                                                                                                                    \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    depthwise(K(name##_channels), args, task, num_tasks);                                                              \
  }
DEPTHWISE(conv2d_f32_depthwise, 0)
DEPTHWISE(conv2d_bf16_depthwise, 1)

#undef DEPTHWISE
#undef DEPTHWISE_PIXELS
#undef DEPTHWISE_ROWS
#undef DEPTHWISE_NARROW
#undef DEPTHWISE_TAPS
#undef DEPTHWISE_CHANNELS

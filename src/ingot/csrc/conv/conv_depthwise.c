/* conv_depthwise.c: depthwise 2-D convolution. Channels are the lanes; some pixels of one or two output rows are
 * computed together, so that a weight is loaded once for all of them, and an element once for all its uses. */
#include "conv/conv.h"

/* Output pixels of a row, and rows, that are computed together, DEPTHWISE_LANES channels at a time: as many as fit the
 * registers together with rows of the filter. Image widths in networks, halved from 224, are multiples of 7. */
#if defined(ISA_avx512)
#define DEPTHWISE_PIXELS 7
#define DEPTHWISE_ROWS 2
#define DEPTHWISE_NARROW 1 /* whether bf16 images have specialised bodies; they do in every set that has bf16 kernels */
#elif defined(ISA_avx2)
#define DEPTHWISE_PIXELS 7
#define DEPTHWISE_ROWS 1
#define DEPTHWISE_NARROW 0
#else
#define DEPTHWISE_PIXELS 4
#define DEPTHWISE_ROWS 1
#define DEPTHWISE_NARROW 0
#endif

/* A register of channels. On AVX2 it is half a vector: rows of the filter and sums of whole ones fill the registers
 * with fewer pixels. */
#if defined(ISA_avx2)
#define DEPTHWISE_LANES 8
typedef __m256 depthwise_v;
#define DEPTHWISE_LOAD(p) _mm256_loadu_ps(p)
#define DEPTHWISE_STORE(p, v) _mm256_storeu_ps(p, v)
#define DEPTHWISE_SET(a) _mm256_set1_ps(a)
#define DEPTHWISE_ADD(x, y) _mm256_add_ps(x, y)
#define DEPTHWISE_FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define DEPTHWISE_CLIP(low, high, v) _mm256_min_ps(high, _mm256_max_ps(low, v))
#else
#define DEPTHWISE_LANES 16
typedef vf depthwise_v;
#define DEPTHWISE_LOAD(p) v_load(p)
#define DEPTHWISE_STORE(p, v) v_store(p, v)
#define DEPTHWISE_SET(a) v_set(a)
#define DEPTHWISE_ADD(x, y) v_add(x, y)
#define DEPTHWISE_FMA(x, y, z) v_fma(x, y, z)
#define DEPTHWISE_CLIP(low, high, v) v_min(high, v_max(low, v))
#endif
#define INGOT_MEANS 1 /* the case of is_given for the means of rows */
#define DEPTHWISE_TAPS 7   /* the widest filter with a specialised body; it is not higher than wide */
#define DEPTHWISE_STRIDE 2 /* the largest stride of one */
#define DEPTHWISE_LINES (DEPTHWISE_TAPS + (DEPTHWISE_ROWS - 1) * DEPTHWISE_STRIDE)
#define DEPTHWISE_COLUMNS ((DEPTHWISE_PIXELS - 1) * DEPTHWISE_STRIDE + DEPTHWISE_TAPS)
#define DEPTHWISE_CHANNELS 128 /* computed together: their windows stay in the L1 cache */

/* Output pixels [x, x + pixels) of rows [y, y + rows) of image n, for `count` channels from channel + skip on. Vectors
 * of channels begin at `channel`; `lanes` of each exist. A vector with unwanted lanes is the only one. vectorized: the
 * epilogue is applied in registers; plain: see epilogue_is_plain. */
typedef struct {
  const conv_args *g;
  int64_t n, y, x, rows, pixels, channel, lanes, skip, count;
  const gemm_epilogue *epilogue;
  int vectorized, plain;
} depthwise_block;

/* The offset of the block's channels of its image, in elements of x. */
static inline int64_t depthwise_image(const depthwise_block *b) {
  return b->n * b->g->x_strides[0] + b->channel;
}

/* The destinations in an output row from pixel x on, for the first wanted channel. */
typedef struct { const float *residual; float *out; uint16_t *rounded; } depthwise_target;

static inline depthwise_target depthwise_target_at(const depthwise_block *b, int64_t row) {
  const conv_args *g = b->g;
  const int64_t *r = g->residual_strides, *o = g->out_strides, *w = g->rounded_strides;
  const int64_t y = b->y + row, channel = b->channel + b->skip;
  return (depthwise_target){g->residual ? g->residual + b->n * r[0] + y * r[1] + b->x * r[2] + channel : NULL,
                           g->out ? g->out + b->n * o[0] + y * o[1] + b->x * o[2] + channel : NULL,
                           g->rounded ? g->rounded + b->n * w[0] + y * w[1] + b->x * w[2] + channel : NULL};
}

/* Apply an epilogue that is not vectorized to the sums [DEPTHWISE_PIXELS][16] of a row, for the vector of channels `at`
 * channels after the block's first. */
static inline void depthwise_apply(const depthwise_block *b, const depthwise_target *p, int64_t at, const float *sums) {
  const conv_args *g = b->g;
  const int64_t channel = b->channel + b->skip + at;
  gemm_epilogue epilogue = *b->epilogue;
  epilogue.column_bias = g->bias ? g->bias + channel : NULL;
  epilogue.slopes = g->slopes ? g->slopes + channel : NULL;
  epilogue.residual = p->residual ? p->residual + at : NULL;
  epilogue.rounded = p->rounded ? p->rounded + at : NULL;
  epilogue_apply(&epilogue, 0, 0, b->pixels, b->lanes - b->skip, sums + b->skip, 16, p->out ? p->out + at : NULL,
                 g->out_strides[2]);
}

/* The same for a bias and an activation only, on a full vector of channels. */
static inline void depthwise_activate(const depthwise_block *b, const depthwise_target *p, int64_t at,
                                      const float *sums) {
  epilogue_activate(b->epilogue, b->channel + at, b->pixels, sums, 16, p->out + at, b->g->out_strides[2]);
}

/* Apply it to the sums of all rows. */
static __attribute__((noinline)) void K(depthwise_finish)(const depthwise_block *b, const depthwise_target *targets,
                                                          int64_t at, const float *sums) {
  for (int64_t row = 0; row < b->rows; row++, sums += DEPTHWISE_PIXELS * 16) {
    switch (b->plain) {
      case INGOT_ACTIVATED: depthwise_activate(b, targets + row, at, sums); break;
      default: depthwise_apply(b, targets + row, at, sums);
    }
  }
}

/* Add the results of the vector of channels `at` channels after the block's first to the sums of their rows, which
 * become means at the end. */
static inline void depthwise_mean(const depthwise_block *b, const depthwise_target *targets, int64_t at) {
  const conv_args *g = b->g;
  const int64_t channel = b->channel + b->skip + at, lanes = b->lanes - b->skip;
  const int ends = b->x + b->pixels == g->out_width;
  for (int64_t row = 0; row < b->rows; row++) {
    const float *out = targets[row].out + at;
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

/* The block's results, of one row; filters of any size. */
static inline __attribute__((always_inline)) void depthwise_any(const int narrow, const depthwise_block *b) {
  const conv_args *g = b->g;
  const depthwise_target target = depthwise_target_at(b, 0);
  float sums[DEPTHWISE_PIXELS * 16 + 16];
  for (int64_t at = 0; at < b->count; at += 16) {
    for (int64_t t = 0; t < DEPTHWISE_PIXELS; t++) {
      const float *weight = g->weight + b->channel + at;
      const int64_t top = b->y * g->stride_h - g->pad_top;
      const int64_t left = (b->x + t) * g->stride_w - g->pad_left;
      vf sum = v_set(0.0f);
      for (int64_t i = 0; i < g->kernel_h; i++) {
        const int64_t line = top + i * g->dilation_h;
        for (int64_t j = 0; j < g->kernel_w; j++, weight += g->channels) {
          const int64_t column = left + j * g->dilation_w;
          const int inside = line >= 0 && line < g->height && column >= 0 && column < g->width;
          const int64_t from = depthwise_image(b) + at + line * g->x_strides[1] + column * g->x_strides[2];
          const vf v = inside ? conv_load(narrow, g->x, from, b->lanes) : v_set(0.0f);
          sum = v_fma(v, b->lanes < 16 ? v_load_n(weight, b->lanes) : v_load(weight), sum);
        }
      }
      v_store(sums + t * 16, sum);
    }
    K(depthwise_finish)(b, &target, at, sums);
    switch (is_given(g->means)) {
      case INGOT_MEANS: depthwise_mean(b, &target, at);
    }
  }
}

/* Addresses of the elements that a block reads of its first channel, in their lines of the image; zeros where they are
 * outside. */
typedef struct { const char *at[DEPTHWISE_LINES][DEPTHWISE_COLUMNS]; } depthwise_window;

static inline void depthwise_find(const int narrow, const depthwise_block *b, int64_t columns, depthwise_window *w) {
  static const float outside[DEPTHWISE_CHANNELS];
  const conv_args *g = b->g;
  const int64_t lines = g->kernel_h + (b->rows - 1) * g->stride_h, size = narrow ? sizeof(uint16_t) : sizeof(float);
  const int64_t top = b->y * g->stride_h - g->pad_top, left = b->x * g->stride_w - g->pad_left;
  const char *from = (const char *)g->x + size * depthwise_image(b);
  for (int64_t i = 0; i < lines; i++) {
    const int64_t width = top + i >= 0 && top + i < g->height ? g->width : 0;
    for (int64_t c = 0; c < columns; c++) {
      const int64_t offset = (top + i) * g->x_strides[1] + (left + c) * g->x_strides[2];
      w->at[i][c] = (uint64_t)(left + c) < (uint64_t)width ? from + size * offset : (const char *)outside;
    }
  }
}

/* A register at `offset` from an address. */
static inline __attribute__((always_inline)) depthwise_v depthwise_load(const int narrow, const char *at,
                                                                        int64_t offset) {
  #if DEPTHWISE_NARROW
  if (narrow) return conv_load(1, at + offset * 2, 0, 16);
  #endif
  (void)narrow;
  return DEPTHWISE_LOAD((const float *)(const void *)at + offset);
}

/* One row of the image for output rows [first, last). weight points to the row of the filter for row 0; the one for row
 * 1 is `back` before it. An element is at `offset` from an address of `window`, or, if it is null, in the columns from
 * `from` on. */
static inline __attribute__((always_inline)) void depthwise_line(
    const int taps, const int stride, const int narrow, const int first, const int last, const depthwise_block *b,
    const char *from, const char *const *window, int64_t offset, const float *weight, int64_t back,
    depthwise_v sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS]) {
  const int64_t channels = b->g->channels, step = b->g->x_strides[2] * (narrow ? 2 : 4);
  depthwise_v w[DEPTHWISE_ROWS][DEPTHWISE_TAPS];
  INGOT_UNROLL for (int row = first; row < last; row++) {
    INGOT_UNROLL for (int j = 0; j < taps; j++) w[row][j] = DEPTHWISE_LOAD(weight - row * back + j * channels);
  }
  INGOT_UNROLL for (int c = 0; c < (DEPTHWISE_PIXELS - 1) * stride + taps; c++, from += step) {
    const depthwise_v v = depthwise_load(narrow, window ? window[c] : from, offset);
    INGOT_UNROLL for (int row = first; row < last; row++) {
      INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
        if (c >= t * stride && c < t * stride + taps)
          sum[row][t] = DEPTHWISE_FMA(v, w[row][c - t * stride], sum[row][t]);
      }
    }
  }
}

/* The vectorized epilogue store, of the register of channels `at` channels after the first; f: that of the first. */
static inline __attribute__((always_inline)) void depthwise_store(
    const depthwise_block *b, const gemm_store *f, const depthwise_target *targets, int64_t at,
    depthwise_v sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS]) {
  const depthwise_v bias = f->bias ? DEPTHWISE_LOAD(f->bias + at) : DEPTHWISE_SET(-0.0f);
  const depthwise_v low = DEPTHWISE_SET(f->low), high = DEPTHWISE_SET(f->high);
  const int all = b->pixels == DEPTHWISE_PIXELS; /* the usual case has no branches */
  if (all && !targets[0].residual && !targets[0].rounded) {
    INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++) {
      if (row >= b->rows) break;
      float *out = targets[row].out + at;
      INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++)
        DEPTHWISE_STORE(out + t * b->g->out_strides[2], DEPTHWISE_CLIP(low, high, DEPTHWISE_ADD(sum[row][t], bias)));
    }
    return;
  }
  INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++) {
    if (row >= b->rows) break;
    const depthwise_target p = targets[row];
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
      if (t >= b->pixels) break;
      const depthwise_v rest =
          p.residual ? DEPTHWISE_LOAD(p.residual + at + t * b->g->residual_strides[2]) : DEPTHWISE_SET(-0.0f);
      depthwise_v v = DEPTHWISE_ADD(sum[row][t], bias);
      if (f->residual_first) v = DEPTHWISE_ADD(v, rest);
      v = DEPTHWISE_CLIP(low, high, v);
      if (!f->residual_first) v = DEPTHWISE_ADD(v, rest);
      if (p.out) DEPTHWISE_STORE(p.out + at + t * b->g->out_strides[2], v);
      #if DEPTHWISE_LANES == 16
      if (p.rounded) v_store_bf16(p.rounded + at + t * b->g->rounded_strides[2], v);
      #endif
    }
  }
}

/* The sums of a register of channels, `at` channels after the block's first. window: null if the windows are inside the
 * image, which the first begins at `from`. */
static inline __attribute__((always_inline)) void depthwise_sum(
    const int taps, const int stride, const int narrow, const depthwise_block *b, const char *from,
    const depthwise_window *window, int64_t at, depthwise_v sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS]) {
  const conv_args *g = b->g;
  const int64_t line_weights = taps * g->channels, back = g->stride_h * line_weights;
  const int64_t line = g->x_strides[1] * (narrow ? 2 : 4), lines = g->kernel_h + (b->rows - 1) * g->stride_h;
  const float *weight = g->weight + b->channel + at;
  INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++) {
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) sum[row][t] = DEPTHWISE_SET(0.0f);
  }
  if (DEPTHWISE_ROWS == 1 && taps == 3) { /* a row is so short that the loop itself would take time */
    INGOT_UNROLL for (int i = 0; i < taps; i++, from += line, weight += line_weights) {
      if (i >= lines) break;
      depthwise_line(taps, stride, narrow, 0, 1, b, from, window ? window->at[i] : NULL, at, weight, back, sum);
    }
    return;
  }
  for (int64_t i = 0; i < lines; i++, from += line, weight += line_weights) {
    const char *const *columns = window ? window->at[i] : NULL;
    const int lower = DEPTHWISE_ROWS > 1 && b->rows > 1 && i >= g->stride_h;
    if (i < g->kernel_h && lower)
      depthwise_line(taps, stride, narrow, 0, DEPTHWISE_ROWS, b, from, columns, at, weight, back, sum);
    else if (i < g->kernel_h)
      depthwise_line(taps, stride, narrow, 0, 1, b, from, columns, at, weight, back, sum);
    else if (lower)
      depthwise_line(taps, stride, narrow, 1, DEPTHWISE_ROWS, b, from, columns, at, weight, back, sum);
  }
}

/* The block's results for filters `taps` wide with a stride, both constants at every call, without dilation. inner: the
 * windows are inside the image. */
static inline __attribute__((always_inline)) void depthwise_body(const int taps, const int stride, const int inner,
                                                                 const int narrow, const depthwise_block *b) {
  const conv_args *g = b->g;
  const int64_t size = narrow ? 2 : 4, left = b->x * stride - g->pad_left, top = b->y * g->stride_h - g->pad_top;
  const gemm_store f = epilogue_store(b->epilogue, 0, b->channel, NULL, 0);
  depthwise_window window;
  depthwise_target targets[DEPTHWISE_ROWS];
  for (int64_t row = 0; row < b->rows; row++) targets[row] = depthwise_target_at(b, row);
  if (!inner) depthwise_find(narrow, b, (DEPTHWISE_PIXELS - 1) * stride + taps, &window);
  const char *image = NULL;
  if (inner)
    image = (const char *)g->x + (depthwise_image(b) + left * g->x_strides[2] + top * g->x_strides[1]) * size;
  for (int64_t at = 0; at < b->count; at += 16) {
    float sums[DEPTHWISE_ROWS * DEPTHWISE_PIXELS * 16 + 16];
    for (int64_t part = 0; part < 16; part += DEPTHWISE_LANES) {
      depthwise_v sum[DEPTHWISE_ROWS][DEPTHWISE_PIXELS];
      depthwise_sum(taps, stride, narrow, b, image, inner ? NULL : &window, at + part, sum);
      if (b->vectorized) {
        depthwise_store(b, &f, targets, at + part, sum);
        continue;
      }
      INGOT_UNROLL for (int row = 0; row < DEPTHWISE_ROWS; row++) {
        INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++)
          DEPTHWISE_STORE(sums + (row * DEPTHWISE_PIXELS + t) * 16 + part, sum[row][t]);
      }
    }
    if (!b->vectorized) K(depthwise_finish)(b, targets, at, sums);
    switch (is_given(g->means)) {
      case INGOT_MEANS: depthwise_mean(b, targets, at);
    }
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
  if (g->kernel_h > g->kernel_w || g->stride_h > DEPTHWISE_STRIDE) return 0;
  return shape == 31 || shape == 32 || shape == 51 || shape == 52 || shape == 71 ? shape : 0;
}

static inline __attribute__((always_inline)) void depthwise_compute(const int narrow, int64_t shape, int inner,
                                                                    const depthwise_block *b) {
  if (shape == 31 && inner)
    depthwise_body(3, 1, 1, narrow, b);
  else if (shape == 31)
    depthwise_body(3, 1, 0, narrow, b);
  else if (shape == 32 && inner)
    depthwise_body(3, 2, 1, narrow, b);
  else if (shape == 32)
    depthwise_body(3, 2, 0, narrow, b);
  else if (shape == 51)
    depthwise_body(5, 1, 0, narrow, b);
  else if (shape == 52)
    depthwise_body(5, 2, 0, narrow, b);
  else if (shape == 71 && inner)
    depthwise_body(7, 1, 1, narrow, b);
  else if (shape == 71)
    depthwise_body(7, 1, 0, narrow, b);
  else
    depthwise_any(narrow, b);
}

/* Channels [channel, channel + count) of output rows [begin, end), counted over the batch. */
static inline __attribute__((always_inline)) void depthwise_channels(const int narrow, const conv_args *g,
                                                                     int64_t begin, int64_t end, int64_t channel,
                                                                     int64_t count) {
  const gemm_epilogue epilogue = {g->bias, g->slopes, NULL, g->residual, g->residual_strides[2], 1.0f, g->act_alpha,
                                  g->act_beta, g->activation, g->residual_first, g->rounded, g->rounded_strides[2]};
  /* Channels that do not fill the lanes are computed together with some channels before them. */
  const int64_t lanes = g->channels < 16 ? g->channels : 16, skip = count < lanes ? lanes - count : 0;
  const int64_t shape = narrow && !DEPTHWISE_NARROW ? 0 : depthwise_shape(g);
  depthwise_block b = {.g = g, .channel = channel - skip, .lanes = lanes, .skip = skip, .count = count,
                       .epilogue = &epilogue};
  b.vectorized = shape && count % 16 == 0 && epilogue_is_vectorized(&epilogue) &&
                 (DEPTHWISE_LANES == 16 || !g->rounded);
  b.plain = count % 16 == 0 && epilogue_is_plain(&epilogue, 16, g->out);
  for (; begin < end; begin += b.rows) {
    b.n = begin / g->out_height;
    b.y = begin % g->out_height;
    b.rows = shape && b.y + DEPTHWISE_ROWS <= g->out_height && begin + DEPTHWISE_ROWS <= end ? DEPTHWISE_ROWS : 1;
    for (b.x = 0; b.x < g->out_width; b.x += b.pixels) {
      b.pixels = g->out_width - b.x < DEPTHWISE_PIXELS ? g->out_width - b.x : DEPTHWISE_PIXELS;
      depthwise_compute(narrow, shape, depthwise_is_inner(&b), &b);
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
#undef DEPTHWISE_LANES
#undef DEPTHWISE_LOAD
#undef DEPTHWISE_STORE
#undef DEPTHWISE_SET
#undef DEPTHWISE_ADD
#undef DEPTHWISE_FMA
#undef DEPTHWISE_CLIP
#undef DEPTHWISE_NARROW
#undef DEPTHWISE_TAPS
#undef DEPTHWISE_STRIDE
#undef DEPTHWISE_LINES
#undef DEPTHWISE_COLUMNS
#undef DEPTHWISE_CHANNELS

/* conv_depthwise.c: 2-D convolution of each channel with its own filter. Channels are the lanes; some pixels of an
 * output row go together, so that a weight in a register serves all of them. */
#include "gemm.h"

/* Output pixels that go together: what the registers hold beside a row of a filter. Image widths that networks halve
 * from 224 are multiples of 7. */
#if defined(ISA_avx512)
#define DEPTHWISE_PIXELS 7
#else
#define DEPTHWISE_PIXELS 4
#endif
#define DEPTHWISE_TAPS 7 /* of the widest filter with a body of its own */
#define DEPTHWISE_CHANNELS 128 /* that go together: their windows stay in the first cache */

/* Up to DEPTHWISE_PIXELS output pixels at (y, x...) of an image, and `vectors` times 16 channels of each; image and
 * weight point to the first channel. Of a single vector only `lanes` may exist. */
typedef struct {
  const conv_args *g;
  const float *image, *weight;
  int64_t y, x, vectors, lanes;
} depthwise_block;

static inline vf depthwise_load(const float *p, int64_t lanes) { return lanes < 16 ? v_load_n(p, lanes) : v_load(p); }

/* sums[pixel][DEPTHWISE_CHANNELS]; filters of any size. */
static inline void depthwise_any(const depthwise_block *b, float *sums) {
  const conv_args *g = b->g;
  for (int64_t at = 0; at < DEPTHWISE_PIXELS * b->vectors; at++) {
    const int64_t t = at / b->vectors, channel = at % b->vectors * 16;
    const float *weight = b->weight + channel;
    const int64_t top = b->y * g->stride_h - g->pad_top, left = (b->x + t) * g->stride_w - g->pad_left;
    vf sum = v_set(0.0f);
    for (int64_t i = 0; i < g->kernel_h; i++) {
      const int64_t line = top + i * g->dilation_h;
      for (int64_t j = 0; j < g->kernel_w; j++, weight += g->channels) {
        const int64_t column = left + j * g->dilation_w;
        const int inside = line >= 0 && line < g->height && column >= 0 && column < g->width;
        const float *from = b->image + line * g->x_strides[1] + column * g->x_strides[2] + channel;
        sum = v_fma(inside ? depthwise_load(from, b->lanes) : v_set(0.0f), depthwise_load(weight, b->lanes), sum);
      }
    }
    v_store(sums + t * DEPTHWISE_CHANNELS + channel, sum);
  }
}

/* The same for filters `taps` wide with a stride, both constants at every call, without dilation of columns. With
 * `inner` the windows lie inside the image. */
static inline __attribute__((always_inline)) void depthwise_body(const int taps, const int stride, const int inner,
                                                                 const depthwise_block *b, float *sums) {
  const conv_args *g = b->g;
  const int columns = (DEPTHWISE_PIXELS - 1) * stride + taps;
  const int64_t left = b->x * stride - g->pad_left, top = b->y * g->stride_h - g->pad_top;
  const int64_t x_stride = g->x_strides[2], y_stride = g->dilation_h * g->x_strides[1], channels = g->channels;
  for (int64_t vector = 0; vector < b->vectors; vector++) {
    const float *weight = b->weight + vector * 16;
    const float *row = b->image + top * g->x_strides[1] + left * x_stride + vector * 16;
    vf sum[DEPTHWISE_PIXELS];
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) sum[t] = v_set(0.0f);
    for (int64_t i = 0; i < g->kernel_h; i++, row += y_stride) {
      const int64_t line = top + i * g->dilation_h;
      const int64_t width = inner || (line >= 0 && line < g->height) ? g->width : 0;
      const float *from = row;
      vf w[DEPTHWISE_TAPS];
      INGOT_UNROLL for (int j = 0; j < taps; j++, weight += channels) w[j] = v_load(weight);
      INGOT_UNROLL for (int c = 0; c < columns; c++, from += x_stride) {
        const vf v = inner || (left + c >= 0 && left + c < width) ? v_load(from) : v_set(0.0f);
        INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
          if (c >= t * stride && c < t * stride + taps) sum[t] = v_fma(v, w[c - t * stride], sum[t]);
        }
      }
    }
    INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
      v_store(sums + t * DEPTHWISE_CHANNELS + vector * 16, sum[t]);
    }
  }
}

static inline void depthwise_sums(const depthwise_block *b, float *sums) {
  const conv_args *g = b->g;
  const int64_t top = b->y * g->stride_h - g->pad_top, left = b->x * g->stride_w - g->pad_left;
  const int64_t inner = top >= 0 && top + (g->kernel_h - 1) * g->dilation_h < g->height && left >= 0 &&
                        left + (DEPTHWISE_PIXELS - 1) * g->stride_w + g->kernel_w <= g->width;
  const int64_t shape = b->lanes == 16 && g->dilation_w == 1 ? g->kernel_w * 10 + g->stride_w : 0;
  if (shape == 31 && inner)
    depthwise_body(3, 1, 1, b, sums);
  else if (shape == 31)
    depthwise_body(3, 1, 0, b, sums);
  else if (shape == 32 && inner)
    depthwise_body(3, 2, 1, b, sums);
  else if (shape == 32)
    depthwise_body(3, 2, 0, b, sums);
  else if (shape == 51)
    depthwise_body(5, 1, 0, b, sums);
  else if (shape == 52)
    depthwise_body(5, 2, 0, b, sums);
  else if (shape == 71 && inner)
    depthwise_body(7, 1, 1, b, sums);
  else if (shape == 71)
    depthwise_body(7, 1, 0, b, sums);
  else
    depthwise_any(b, sums);
}

/* Channels [channel, channel + count) of one row of output pixels. */
static inline void depthwise_row(const conv_args *g, int64_t image, int64_t y, int64_t channel, int64_t count) {
  float sums[DEPTHWISE_PIXELS * DEPTHWISE_CHANNELS + 16];
  const int64_t residual = image * g->residual_strides[0] + y * g->residual_strides[1];
  const int64_t rounded = image * g->rounded_strides[0] + y * g->rounded_strides[1];
  const gemm_epilogue epilogue = {g->bias, NULL, g->residual ? g->residual + residual : NULL, g->residual_strides[2],
                                  1.0f, g->act_alpha, g->act_beta, g->activation, g->residual_first,
                                  g->rounded ? g->rounded + rounded : NULL, g->rounded_strides[2]};
  /* Channels that do not fill the lanes are computed together with some before them. */
  const int64_t lanes = g->channels < 16 ? g->channels : 16, skip = count < lanes ? lanes - count : 0;
  const float *x = g->x + image * g->x_strides[0] + channel - skip;
  float *out = g->out ? g->out + image * g->out_strides[0] + y * g->out_strides[1] + channel : NULL;
  for (int64_t at = 0; at < g->out_width; at += DEPTHWISE_PIXELS) {
    const int64_t pixels = g->out_width - at < DEPTHWISE_PIXELS ? g->out_width - at : DEPTHWISE_PIXELS;
    const depthwise_block block = {g, x, g->weight + channel - skip, y, at, (count + 15) / 16, lanes};
    depthwise_sums(&block, sums);
    epilogue_apply(&epilogue, at, channel, pixels, count, sums + skip, DEPTHWISE_CHANNELS,
                   out ? out + at * g->out_strides[2] : NULL, g->out_strides[2]);
  }
}

void K(conv2d_f32_depthwise)(const void *args, int32_t part, int32_t parts) {
  const conv_args *g = args;
  const int64_t most = DEPTHWISE_CHANNELS / 16;
  /* Panels are rows of pixels here, and rows are vectors of channels. */
  const gemm_share share = gemm_cut(g->batch * g->out_height, (g->channels + 15) / 16, part, parts);
  for (int64_t vector = share.row_begin; vector < share.row_end;) {
    const int64_t channel = vector * 16, left = g->channels - channel;
    int64_t count = share.row_end - vector < most ? share.row_end - vector : most;
    if (count * 16 > left && count > 1) count--; /* channels that do not fill the lanes go by themselves */
    for (int64_t row = share.panel_begin; row < share.panel_end; row++)
      depthwise_row(g, row / g->out_height, row % g->out_height, channel, count * 16 < left ? count * 16 : left);
    vector += count;
  }
}

#undef DEPTHWISE_PIXELS
#undef DEPTHWISE_TAPS
#undef DEPTHWISE_CHANNELS

/* conv_depthwise.c: 2-D convolution of each channel with its own filter. Channels are the lanes; some pixels of an
 * output row go together, so that a weight in a register serves all of them. */
#include "gemm.h"

#define DEPTHWISE_PIXELS 4

/* Up to DEPTHWISE_PIXELS output pixels at (y, x...) of an image, 16 channels of each; image and weight point to the
 * first channel. `lanes` below 16 are loaded with care. */
typedef struct {
  const conv_args *g;
  const float *image, *weight;
  int64_t y, x, lanes;
} depthwise_block;

static inline vf depthwise_load(const float *p, int64_t lanes) { return lanes < 16 ? v_load_n(p, lanes) : v_load(p); }

/* sums[pixel][16]; filters of any size. */
static inline void depthwise_any(const depthwise_block *b, float *sums) {
  const conv_args *g = b->g;
  for (int64_t t = 0; t < DEPTHWISE_PIXELS; t++) {
    const float *weight = b->weight;
    const int64_t top = b->y * g->stride_h - g->pad_top, left = (b->x + t) * g->stride_w - g->pad_left;
    vf sum = v_set(0.0f);
    for (int64_t i = 0; i < g->kernel_h; i++) {
      const int64_t line = top + i * g->dilation_h;
      for (int64_t j = 0; j < g->kernel_w; j++, weight += g->channels) {
        const int64_t column = left + j * g->dilation_w;
        const int inside = line >= 0 && line < g->height && column >= 0 && column < g->width;
        const float *from = b->image + line * g->x_strides[1] + column * g->x_strides[2];
        sum = v_fma(inside ? depthwise_load(from, b->lanes) : v_set(0.0f), depthwise_load(weight, b->lanes), sum);
      }
    }
    v_store(sums + t * 16, sum);
  }
}

/* The same for filters `taps` wide with a stride, both constants at every call, without dilation of columns. With
 * `inner` the windows lie inside the image. */
static inline __attribute__((always_inline)) void depthwise_body(const int taps, const int stride, const int inner,
                                                                 const depthwise_block *b, float *sums) {
  const conv_args *g = b->g;
  const int columns = (DEPTHWISE_PIXELS - 1) * stride + taps;
  const int64_t left = b->x * stride - g->pad_left, x_stride = g->x_strides[2];
  const float *weight = b->weight;
  vf sum[DEPTHWISE_PIXELS];
  INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) sum[t] = v_set(0.0f);
  for (int64_t i = 0; i < g->kernel_h; i++) {
    const int64_t line = b->y * g->stride_h - g->pad_top + i * g->dilation_h;
    const int64_t width = inner || (line >= 0 && line < g->height) ? g->width : 0;
    const float *from = b->image + line * g->x_strides[1] + left * x_stride;
    vf w[5];
    INGOT_UNROLL for (int j = 0; j < taps; j++, weight += g->channels) w[j] = v_load(weight);
    INGOT_UNROLL for (int c = 0; c < columns; c++, from += x_stride) {
      const vf v = inner || (left + c >= 0 && left + c < width) ? v_load(from) : v_set(0.0f);
      INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) {
        if (c >= t * stride && c < t * stride + taps) sum[t] = v_fma(v, w[c - t * stride], sum[t]);
      }
    }
  }
  INGOT_UNROLL for (int t = 0; t < DEPTHWISE_PIXELS; t++) v_store(sums + t * 16, sum[t]);
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
  else
    depthwise_any(b, sums);
}

/* One row of output pixels. */
static inline void depthwise_row(const conv_args *g, int64_t image, int64_t y) {
  float sums[DEPTHWISE_PIXELS * 16 + 16];
  const int64_t residual = image * g->residual_strides[0] + y * g->residual_strides[1];
  const gemm_epilogue epilogue = {g->bias, NULL, g->residual ? g->residual + residual : NULL, g->residual_strides[2],
                                  1.0f, g->act_alpha, g->act_beta, g->activation, g->residual_first};
  float *out = g->out + image * g->out_strides[0] + y * g->out_strides[1];
  for (int64_t x = 0; x < g->out_width; x += DEPTHWISE_PIXELS) {
    const int64_t pixels = g->out_width - x < DEPTHWISE_PIXELS ? g->out_width - x : DEPTHWISE_PIXELS;
    for (int64_t channel = 0; channel < g->channels; channel += 16) {
      const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;
      /* The last channels are computed together with some before them, to fill the lanes. */
      const int64_t skip = g->channels < 16 ? 0 : 16 - lanes;
      const depthwise_block block = {g, g->x + image * g->x_strides[0] + channel - skip, g->weight + channel - skip,
                                     y, x, lanes + skip};
      depthwise_sums(&block, sums);
      epilogue_apply(&epilogue, x, channel, pixels, lanes, sums + skip, 16, out + x * g->out_strides[2] + channel,
                     g->out_strides[2]);
    }
  }
}

void K(conv2d_f32_depthwise)(const void *args, int32_t part, int32_t parts) {
  const conv_args *g = args;
  const int64_t rows = g->batch * g->out_height, end = part_begin(rows, part + 1, parts);
  for (int64_t row = part_begin(rows, part, parts); row < end; row++)
    depthwise_row(g, row / g->out_height, row % g->out_height);
}

#undef DEPTHWISE_PIXELS

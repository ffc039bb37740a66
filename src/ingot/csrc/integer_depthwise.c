/* integer_depthwise.c: convolutions of integers of 8 bits of each channel with its own filter. Channels are the lanes.
 * Sums are floats, which are exact below 2^24. */
#include "integer.h"

/* Output pixels that go together: what the registers hold beside a row of a filter. */
#if defined(ISA_avx512)
#define CHANNELWISE_PIXELS 7
#else
#define CHANNELWISE_PIXELS 4
#endif
#define CHANNELWISE_TAPS 5 /* of the widest filter with a body of its own */

/* 16 channels, or the first `lanes` of them; is_u8, a constant where it matters: else they are i8. */
static inline __attribute__((always_inline)) vf channelwise_load(const int is_u8, const uint8_t *p, int64_t lanes) {
  uint8_t bytes[16] = {0};
  if (lanes < 16) {
    memcpy(bytes, p, (size_t)lanes);
    p = bytes;
  }
  return is_u8 ? v_load_u8(p) : v_load_i8((const int8_t *)p);
}

/* Up to CHANNELWISE_PIXELS output pixels at (y, x...) of an image, 16 channels of each. image and weight point to the
 * first of these; zero: what lies beyond the image. */
typedef struct {
  const integer_args *g;
  const uint8_t *image;
  const float *weight;
  int64_t y, x, lanes;
  float zero;
} channelwise_block;

/* sums[pixel][16] for filters of any size. */
static inline void channelwise_any(const channelwise_block *b, float *sums) {
  const integer_args *g = b->g;
  for (int64_t t = 0; t < CHANNELWISE_PIXELS; t++) {
    const float *weight = b->weight;
    const int64_t top = b->y * g->stride_h - g->pad_top, left = (b->x + t) * g->stride_w - g->pad_left;
    vf sum = v_set(0.0f);
    for (int64_t i = 0; i < g->kernel_h; i++) {
      const int64_t line = top + i * g->dilation_h;
      for (int64_t j = 0; j < g->kernel_w; j++, weight += g->channels) {
        const int64_t column = left + j * g->dilation_w;
        const int inside = line >= 0 && line < g->height && column >= 0 && column < g->width;
        const uint8_t *from = b->image + line * g->x_strides[1] + column * g->x_strides[2];
        const vf w = b->lanes < 16 ? v_load_n(weight, b->lanes) : v_load(weight);
        sum = v_fma(inside ? channelwise_load(!g->x_flip, from, b->lanes) : v_set(b->zero), w, sum);
      }
    }
    v_store(sums + t * 16, sum);
  }
}

/* The same for filters `taps` wide with a stride, and either dtype, constants at every call, without dilation. */
static inline __attribute__((always_inline)) void channelwise_body(const int taps, const int stride, const int is_u8,
                                                                   const channelwise_block *b, float *sums) {
  const integer_args *g = b->g;
  const int columns = (CHANNELWISE_PIXELS - 1) * stride + taps;
  const int64_t left = b->x * stride - g->pad_left, top = b->y * g->stride_h - g->pad_top;
  const float *weight = b->weight;
  vf sum[CHANNELWISE_PIXELS];
  INGOT_UNROLL for (int t = 0; t < CHANNELWISE_PIXELS; t++) sum[t] = v_set(0.0f);
  for (int64_t i = 0; i < g->kernel_h; i++) {
    const int64_t line = top + i * g->dilation_h, width = line >= 0 && line < g->height ? g->width : 0;
    const uint8_t *from = b->image + line * g->x_strides[1] + left * g->x_strides[2];
    vf w[CHANNELWISE_TAPS];
    INGOT_UNROLL for (int j = 0; j < taps; j++, weight += g->channels) w[j] = v_load(weight);
    INGOT_UNROLL for (int c = 0; c < columns; c++, from += g->x_strides[2]) {
      const vf v = left + c >= 0 && left + c < width ? channelwise_load(is_u8, from, 16) : v_set(b->zero);
      INGOT_UNROLL for (int t = 0; t < CHANNELWISE_PIXELS; t++) {
        if (c >= t * stride && c < t * stride + taps) sum[t] = v_fma(v, w[c - t * stride], sum[t]);
      }
    }
  }
  INGOT_UNROLL for (int t = 0; t < CHANNELWISE_PIXELS; t++) v_store(sums + t * 16, sum[t]);
}

static inline void channelwise_sums(const channelwise_block *b, float *sums) {
  const integer_args *g = b->g;
  const int is_plain = b->lanes == 16 && g->dilation_w == 1 && g->dilation_h == 1;
  switch (is_plain ? g->kernel_w * 100 + g->stride_w * 10 + !g->x_flip : 0) {
    case 310: channelwise_body(3, 1, 0, b, sums); break;
    case 311: channelwise_body(3, 1, 1, b, sums); break;
    case 320: channelwise_body(3, 2, 0, b, sums); break;
    case 321: channelwise_body(3, 2, 1, b, sums); break;
    case 510: channelwise_body(5, 1, 0, b, sums); break;
    case 511: channelwise_body(5, 1, 1, b, sums); break;
    default: channelwise_any(b, sums);
  }
}

/* 16 channels of one row of output pixels. */
static inline void channelwise_row(const integer_args *g, const integer_finish *f, int64_t image, int64_t y,
                                   int64_t channel) {
  const int64_t left = g->channels - channel, lanes = left < 16 ? left : 16;
  const int32_t zero = !g->x_zero ? 0 : g->x_flip ? *(const int8_t *)g->x_zero : *(const uint8_t *)g->x_zero;
  float sums[CHANNELWISE_PIXELS * 16];
  int32_t added[16] = {0};
  int64_t to[CHANNELWISE_PIXELS];
  for (int64_t j = 0; j < lanes; j++)
    added[j] = (g->bias ? g->bias[channel + j] : 0) - zero * g->column_sums[channel + j];
  const uint8_t *x = (const uint8_t *)g->x + image * g->x_strides[0] + channel;
  for (int64_t at = 0; at < g->out_width; at += CHANNELWISE_PIXELS) {
    const int64_t pixels = g->out_width - at < CHANNELWISE_PIXELS ? g->out_width - at : CHANNELWISE_PIXELS;
    const channelwise_block block = {g, x, (const float *)g->weight + channel, y, at, lanes, (float)zero};
    channelwise_sums(&block, sums);
    for (int64_t t = 0; t < pixels; t++) {
      to[t] = image * g->out_strides[0] + y * g->out_strides[1] + (at + t) * g->out_strides[2];
      v_store(sums + t * 16, v_from_bits(v_to_int(v_load(sums + t * 16))));
    }
    integer_rows(f, (const int32_t *)(const void *)sums, 16, added, channel, lanes, pixels, (uint8_t *)g->out, to);
  }
}

void K(integer_depthwise)(const void *args, int32_t part, int32_t parts) {
  const integer_args *g = args;
  const integer_finish finish = {g->scale, g->shift, g->scale_step, g->act_alpha, g->act_beta, g->activation,
                                 g->result, g->out_scale, g->out_zero};
  /* Panels are rows of pixels here, and rows are vectors of channels. */
  const gemm_share share = gemm_cut(g->batch * g->out_height, (g->channels + 15) / 16, part, parts);
  for (int64_t row = share.panel_begin; row < share.panel_end; row++)
    for (int64_t vector = share.row_begin; vector < share.row_end; vector++)
      channelwise_row(g, &finish, row / g->out_height, row % g->out_height, vector * 16);
}

#undef CHANNELWISE_PIXELS
#undef CHANNELWISE_TAPS

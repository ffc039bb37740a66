/* conv_depthwise.c: 2-D convolution of each channel with its own filter; channels are the lanes. */
#include "gemm.h"

static inline vf depthwise_load(const float *p, int64_t lanes) { return lanes < 16 ? v_load_n(p, lanes) : v_load(p); }

/* Up to 16 channels of one output pixel; image points to the first of them. */
static inline vf depthwise_sum(const conv_args *g, const float *image, const float *weight, int64_t y, int64_t x,
                               int64_t lanes) {
  const int64_t top = y * g->stride_h - g->pad_top, left = x * g->stride_w - g->pad_left;
  vf sum = v_set(0.0f);
  for (int64_t i = 0; i < g->kernel_h; i++) {
    const int64_t line = top + i * g->dilation_h;
    for (int64_t j = 0; j < g->kernel_w; j++, weight += g->channels) {
      const int64_t column = left + j * g->dilation_w;
      const int inside = line >= 0 && line < g->height && column >= 0 && column < g->width;
      const float *from = image + line * g->x_strides[1] + column * g->x_strides[2];
      sum = v_fma(inside ? depthwise_load(from, lanes) : v_set(0.0f), depthwise_load(weight, lanes), sum);
    }
  }
  return sum;
}

void K(conv2d_f32_depthwise)(const void *args, int32_t part, int32_t parts) {
  const conv_args *g = args;
  const int64_t rows = g->batch * g->out_height, end = part_begin(rows, part + 1, parts);
  for (int64_t row = part_begin(rows, part, parts); row < end; row++) {
    const int64_t image = row / g->out_height, y = row % g->out_height;
    const int64_t residual = image * g->residual_strides[0] + y * g->residual_strides[1];
    for (int64_t x = 0; x < g->out_width; x++) {
      for (int64_t channel = 0; channel < g->channels; channel += 16) {
        const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;
        const gemm_epilogue epilogue = {g->bias, NULL, g->residual ? g->residual + residual : NULL,
                                        g->residual_strides[2], 1.0f,
                                        g->act_alpha, g->act_beta, g->activation, g->residual_first};
        float sums[16];
        v_store(sums, depthwise_sum(g, g->x + image * g->x_strides[0] + channel, g->weight + channel, y, x, lanes));
        epilogue_apply(&epilogue, x, channel, 1, lanes, sums, 16,
                       g->out + image * g->out_strides[0] + y * g->out_strides[1] + x * g->out_strides[2] + channel,
                       g->out_strides[2]);
      }
    }
  }
}

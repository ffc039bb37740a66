/* conv.c: 2-D convolution as a matrix product (im2col). The windows of 32 output pixels are gathered into a panel
 * [k][32], k over (channel, kernel row, kernel column); the rows of the weight are the rows of a. */
#include "gemm/gemm.h"

/* Output pixels of one panel that are adjacent in one output row. */
typedef struct { int64_t at, count, y, x; } conv_run;

/* Split pixels [first, first + count) at the ends of output rows. */
static inline int64_t conv_runs(const conv_nchw_args *g, int64_t first, int64_t count, conv_run *runs) {
  int64_t n = 0;
  for (int64_t at = 0; at < count; n++) {
    const int64_t x = (first + at) % g->out_width;
    const int64_t length = g->out_width - x < count - at ? g->out_width - x : count - at;
    runs[n] = (conv_run){at, length, (first + at) / g->out_width, x};
    at += length;
  }
  return n;
}

/* row[t] = line[x + t * stride] where that is inside [0, width), else 0. */
static inline void conv_gather(const float *line, int64_t width, int64_t x, int64_t stride, int64_t count, float *row) {
  int64_t t = 0;
  for (; t < count && x < 0; t++, x += stride) row[t] = 0.0f;
  if (stride == 1) {
    const int64_t inside = width - x < count - t ? width - x : count - t; /* may be negative */
    for (const int64_t end = t + inside; t < end;) {
      const int64_t lanes = end - t < 16 ? end - t : 16;
      if (lanes < 16)
        v_store_n(row + t, v_load_n(line + x, lanes), lanes);
      else
        v_store(row + t, v_load(line + x));
      t += lanes;
      x += lanes;
    }
  }
  for (; t < count && x < width; t++, x += stride) row[t] = line[x];
  for (; t < count; t++) row[t] = 0.0f;
}

/* The panel of pixels [first, first + count): x points to the group's first channel. */
static inline void conv_panel(const conv_nchw_args *g, const float *x, int64_t first, int64_t count, float *panel) {
  conv_run runs[INGOT_PANEL];
  const int64_t n = conv_runs(g, first, count, runs);
  for (int64_t channel = 0; channel < g->channels / g->groups; channel++, x += g->height * g->width) {
    for (int64_t i = 0; i < g->kernel_h; i++) {
      for (int64_t j = 0; j < g->kernel_w; j++, panel += INGOT_PANEL) {
        for (int64_t r = 0; r < n; r++) {
          const int64_t y = runs[r].y * g->stride_h - g->pad_top + i * g->dilation_h;
          const int64_t width = y >= 0 && y < g->height ? g->width : 0;
          conv_gather(width ? x + y * g->width : x, width, runs[r].x * g->stride_w - g->pad_left + j * g->dilation_w,
                      g->stride_w, runs[r].count, panel + runs[r].at);
        }
        for (int64_t t = count; t < INGOT_PANEL; t++) panel[t] = 0.0f;
      }
    }
  }
}

void K(conv2d_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_nchw_args *g = args;
  const int64_t pixels = g->out_height * g->out_width, panels = (pixels + INGOT_PANEL - 1) / INGOT_PANEL;
  const int64_t rows = g->out_channels / g->groups, channels = g->channels / g->groups;
  const int64_t k = channels * g->kernel_h * g->kernel_w;
  float *panel = g->scratch + task * g->scratch_stride;
  const gemm_share share = gemm_cut(g->batch * g->groups * panels, rows, task, num_tasks);
  for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {
    const int64_t image = unit / panels; /* batch and group */
    const int64_t first = unit % panels * INGOT_PANEL;
    const int64_t count = pixels - first < INGOT_PANEL ? pixels - first : INGOT_PANEL;
    const int64_t group_row = image % g->groups * rows, out = image * rows * pixels;
    const gemm_epilogue epilogue = {NULL, NULL, g->bias ? g->bias + group_row : NULL,
                                    g->residual ? g->residual + out : NULL, pixels, 1.0f,
                                    g->act_alpha, g->act_beta, g->activation, g->residual_first, NULL, 0};
    conv_panel(g, g->x + image * channels * g->height * g->width, first, count, panel);
    const gemm_factors factors = {K(gemm_tile), k, g->weight + group_row * k, k, panel, k * INGOT_PANEL};
    gemm_panel(&epilogue, share.row_begin, share.row_end, first, count, &factors, INGOT_PANEL, g->out + out + first,
               pixels, NULL);
  }
}

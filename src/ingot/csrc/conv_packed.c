/* conv_packed.c: 2-D convolution as a product. The windows of some output pixels are gathered as rows [k] in scratch,
 * and meet the packed panels of the weight there. */
#include "gemm.h"

/* How the windows lie: `planes` planes `plane_stride` apart, in which a tap is `unit` adjacent elements. */
typedef struct { int64_t planes, plane_stride, unit; } conv_window;

/* to[i] = from[i] or, without from, zero, for i < count and up to 15 beyond. */
static inline void conv_copy(const float *from, int64_t count, float *to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) v_store(to + i, from ? v_load(from + i) : v_set(0.0f));
  if (i < count) v_store(to + i, from ? v_load_n(from + i, count - i) : v_set(0.0f));
}

/* Taps of a window that starts at `start` before the first one inside [0, size). */
static inline int64_t conv_taps_before(int64_t start, int64_t dilation, int64_t taps) {
  const int64_t before = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  return before < taps ? before : taps;
}

/* The window of the output pixel at (y, x) of an image. Up to 15 elements behind it are overwritten. */
static inline void conv_gather_window(const conv_args *g, const conv_window *w, const float *image, int64_t y,
                                      int64_t x, float *row) {
  const int64_t top = y * g->stride_h - g->pad_top, left = x * g->stride_w - g->pad_left;
  const int64_t tap_stride = g->dilation_w * g->x_strides[2];
  const int64_t begin = conv_taps_before(left, g->dilation_w, g->kernel_w);
  int64_t end = left < g->width ? (g->width - 1 - left) / g->dilation_w + 1 : 0;
  if (end > g->kernel_w) end = g->kernel_w;
  if (end < begin) end = begin;
  /* Adjacent taps go in one piece. */
  const int64_t together = tap_stride == w->unit ? end - begin : 1;
  for (int64_t plane = 0; plane < w->planes; plane++) {
    for (int64_t i = 0; i < g->kernel_h; i++, row += g->kernel_w * w->unit) {
      const int64_t line = top + i * g->dilation_h;
      if (line < 0 || line >= g->height) {
        conv_copy(NULL, g->kernel_w * w->unit, row);
        continue;
      }
      const float *from = image + plane * w->plane_stride + line * g->x_strides[1] + left * g->x_strides[2];
      conv_copy(NULL, begin * w->unit, row);
      for (int64_t tap = begin; tap < end; tap += together)
        conv_copy(from + tap * tap_stride, together * w->unit, row + tap * w->unit);
      conv_copy(NULL, (g->kernel_w - end) * w->unit, row + end * w->unit);
    }
  }
}

/* Where an output pixel, counted over the whole batch, lies. */
typedef struct { int64_t image, y, x; } conv_pixel;

static inline conv_pixel conv_pixel_at(const conv_args *g, int64_t pixel) {
  return (conv_pixel){pixel / g->out_width / g->out_height, pixel / g->out_width % g->out_height,
                      pixel % g->out_width};
}

/* out = the epilogue of sums[count][32], which belong to the output pixels from `pixel` on; row by row of the image. */
static inline void conv_finish(const conv_args *g, int64_t pixel, int64_t count, int64_t channel, int64_t columns,
                               const float *sums) {
  for (int64_t done = 0; done < count;) {
    const conv_pixel at = conv_pixel_at(g, pixel + done);
    const int64_t length = g->out_width - at.x < count - done ? g->out_width - at.x : count - done;
    const int64_t residual = at.image * g->residual_strides[0] + at.y * g->residual_strides[1] +
                             at.x * g->residual_strides[2];
    const gemm_epilogue epilogue = {g->bias, NULL, g->residual ? g->residual + residual : NULL,
                                    g->residual_strides[2], 1.0f,
                                    g->act_alpha, g->act_beta, g->activation, g->residual_first};
    const int64_t out = at.image * g->out_strides[0] + at.y * g->out_strides[1] + at.x * g->out_strides[2];
    epilogue_apply(&epilogue, 0, channel, length, columns, sums + done * INGOT_PANEL, INGOT_PANEL,
                   g->out + out + channel, g->out_strides[2]);
    done += length;
  }
}

/* One panel of output channels for `count` pixels whose windows are rows[count][row_stride]. */
static inline void conv_panel_of(const conv_args *g, int64_t pixel, int64_t count, int64_t k, const float *rows,
                                 int64_t row_stride, const float *panel, int64_t channel, int64_t columns) {
  const int64_t blocks = gemm_blocks(count, row_stride);
  float sums[GEMM_ROWS * INGOT_PANEL];
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t first = part_begin(count, (int32_t)block, (int32_t)blocks);
    const int64_t length = part_begin(count, (int32_t)block + 1, (int32_t)blocks) - first;
    K(gemm_tile)(length, 1, k, rows + first * row_stride, row_stride, panel, INGOT_PANEL, 0, sums, INGOT_PANEL, panel,
                 0);
    conv_finish(g, pixel + first, length, channel, columns, sums);
  }
}

static inline void conv_share(const conv_args *g, const conv_window *w, int32_t part, int32_t parts) {
  const int64_t channels = g->channels / g->groups, out_channels = g->out_channels / g->groups;
  const int64_t k = channels * g->kernel_h * g->kernel_w, row_stride = (k + 15) / 16 * 16 + 16;
  const int64_t pixels = g->batch * g->out_height * g->out_width;
  const int64_t panels = (out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  const gemm_share share = gemm_cut(pixels, g->groups * panels, part, parts);
  const int64_t count = share.panel_end - share.panel_begin;
  const int32_t blocks = (int32_t)((count + INGOT_CONV_PIXELS - 1) / INGOT_CONV_PIXELS);
  float *rows = g->scratch + part * g->scratch_stride;
  for (int32_t block = 0; block < blocks; block++) {
    const int64_t pixel = share.panel_begin + part_begin(count, block, blocks);
    const int64_t length = share.panel_begin + part_begin(count, block + 1, blocks) - pixel;
    for (int64_t unit = share.row_begin; unit < share.row_end; unit++) {
      const int64_t group = unit / panels, column = unit % panels * INGOT_PANEL;
      if (unit == share.row_begin || column == 0) {
        for (int64_t i = 0; i < length; i++) {
          const conv_pixel at = conv_pixel_at(g, pixel + i);
          const float *image = g->x + at.image * g->x_strides[0] + group * channels * g->x_strides[3];
          conv_gather_window(g, w, image, at.y, at.x, rows + i * row_stride);
        }
      }
      const int64_t columns = out_channels - column < INGOT_PANEL ? out_channels - column : INGOT_PANEL;
      conv_panel_of(g, pixel, length, k, rows, row_stride, g->weight + unit * k * INGOT_PANEL,
                    group * out_channels + column, columns);
    }
  }
}

void K(conv2d_f32_packed)(const void *args, int32_t part, int32_t parts) {
  const conv_args *g = args;
  const conv_window window = {1, 0, g->channels / g->groups};
  conv_share(g, &window, part, parts);
}

void K(conv2d_f32_planes)(const void *args, int32_t part, int32_t parts) {
  const conv_args *g = args;
  const conv_window window = {g->channels / g->groups, g->x_strides[3], 1};
  conv_share(g, &window, part, parts);
}

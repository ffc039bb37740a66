/* conv_filter.c: the gradient of filters, and their Winograd transform for conv2d_f32_winograd.
 *
 * A gradient sums over all output pixels of a batch, INGOT_K_BLOCK of them at a time: the image elements that the
 * filter reads there are gathered as a panel, and d^T @ panel is added to sums that stay in the L2 cache. The sums
 * belong to one block of channels and all its kernel positions, so that they are stored in the order of the filter. */
#include <string.h>

#include "gemm/gemm_columns.h"

#define FILTER_CHANNELS INGOT_PANEL /* of a block: each panel is then one kernel position */

/* A gradient in progress. Columns of a block count over (kernel position, channel); `line` of them are adjacent in x:
 * those of one kernel position, or of a kernel row where its positions are adjacent in x. */
typedef struct {
  const conv_filter_args *g;
  int64_t channel, channels; /* the block */
  int64_t columns, line;
  int joined; /* a line is a kernel row */
  float *panel, *tiles, *sums;
} filter_task;

/* Columns [at, at + count) of a panel: `skip` elements after the first of a line, which begins at a kernel position. */
typedef struct { int64_t row, column, skip, at, count; } filter_piece;

/* Copy elements [begin, end) of a piece from a pixel; the others are zeros. */
static inline void filter_copy(const float *from, int64_t begin, int64_t end, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t lanes = count - i < 16 ? count - i : 16;
    const int whole = begin <= i && i + lanes <= end;
    if (whole && lanes == 16) {
      v_store(to + i, v_load(from + i));
    } else if (whole) {
      v_store_n(to + i, v_load_n(from + i, lanes), lanes);
    } else {
      for (int64_t j = i; j < i + lanes; j++) to[j] = j >= begin && j < end ? from[j] : 0.0f;
    }
  }
}

/* A piece of `count` adjacent output pixels, from (image, y, x) on. */
static inline void filter_gather(const filter_task *t, const filter_piece *p, int64_t image, int64_t y, int64_t x,
                                 int64_t count, float *to) {
  const conv_filter_args *g = t->g;
  const int64_t line = y * g->stride_h - g->pad_top + p->row * g->dilation_h, step = g->x_strides[2];
  const int64_t inside = line >= 0 && line < g->height;
  const float *from = g->x + image * g->x_strides[0] + (inside ? line : 0) * g->x_strides[1] + t->channel + p->skip;
  int64_t left = x * g->stride_w - g->pad_left + p->column * g->dilation_w;
  for (int64_t i = 0; i < count; i++, left += g->stride_w, to += INGOT_PANEL) {
    int64_t begin = 0, end = p->count;
    if (t->joined) {
      if (left * step + p->skip < 0) begin = -left * step - p->skip;
      if ((g->width - left) * step - p->skip < end) end = (g->width - left) * step - p->skip;
    } else if (left < 0 || left >= g->width) {
      end = 0;
    }
    filter_copy(from + left * step, begin, inside ? end : 0, p->count, to);
  }
}

/* Column block `index` at output pixels [first, first + count): [count][32]. */
static inline void filter_panel(const filter_task *t, int64_t index, int64_t first, int64_t count) {
  const conv_filter_args *g = t->g;
  const int64_t begin = index * INGOT_PANEL, left = t->columns - begin;
  const int64_t columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  filter_piece piece;
  for (int64_t at = 0; at < columns; at += piece.count) {
    const int64_t run = (begin + at) / t->line, skip = (begin + at) % t->line;
    const int64_t row = t->joined ? run : run / g->kernel_w;
    piece = (filter_piece){row, t->joined ? 0 : run % g->kernel_w, skip, at, t->line - skip};
    if (piece.count > columns - at) piece.count = columns - at;
    for (int64_t done = 0; done < count;) {
      const int64_t pixel = first + done, x = pixel % g->out_width, y = pixel / g->out_width % g->out_height;
      const int64_t run_length = g->out_width - x < count - done ? g->out_width - x : count - done;
      filter_gather(t, &piece, pixel / g->out_width / g->out_height, y, x, run_length,
                    t->panel + done * INGOT_PANEL + at);
      done += run_length;
    }
  }
  for (int64_t i = 0; i < count && columns < INGOT_PANEL; i++)
    memset(t->panel + i * INGOT_PANEL + columns, 0, (size_t)(INGOT_PANEL - columns) * sizeof(float));
}

/* Add the contributions of some pixels to the sums of rows [row_begin, row_end), panel by panel. */
static inline void filter_add(const filter_task *t, int64_t first, int64_t count, int64_t row_begin, int64_t row_end) {
  const conv_filter_args *g = t->g;
  const int64_t rows = row_end - row_begin, panels = (t->columns + INGOT_PANEL - 1) / INGOT_PANEL;
  const int32_t tiles = gemm_column_tiles(rows);
  gemm_pack_columns(g->d + first * g->d_stride + row_begin, count, rows, g->d_stride, t->tiles);
  for (int64_t index = 0; index < panels; index++) {
    filter_panel(t, index, first, count);
    for (int32_t tile = 0; tile < tiles; tile++) {
      const int64_t row = task_begin(rows, tile, tiles);
      const gemm_product product = {
          .k = count, .a = t->tiles + tile * count * GEMM_ROWS, .a_stride = GEMM_ROWS, .b = t->panel,
          .b_stride = INGOT_PANEL, .sums = t->sums + (index * rows + row) * INGOT_PANEL, .sums_stride = INGOT_PANEL,
          .more = first > 0, .halved = t->columns - index * INGOT_PANEL <= INGOT_PANEL / 2};
      K(gemm_tile_columns)(task_begin(rows, tile + 1, tiles) - row, 1, &product);
    }
  }
}

/* Store the sums of rows [row_begin, row_end) in the order of the filter. */
static inline void filter_write(const filter_task *t, int64_t row_begin, int64_t row_end) {
  const conv_filter_args *g = t->g;
  const int64_t taps = g->kernel_h * g->kernel_w, rows = row_end - row_begin, panel = rows * INGOT_PANEL;
  for (int64_t row = 0; row < rows; row++) {
    const float *sums = t->sums + row * INGOT_PANEL;
    float *out = g->out + ((row_begin + row) * g->channels + t->channel) * taps;
    if (t->channels == INGOT_PANEL) {
      for (int64_t i = 0; i < INGOT_PANEL; i++)
        for (int64_t tap = 0; tap < taps; tap++) *out++ = sums[tap * panel + i];
      continue;
    }
    for (int64_t column = 0; column < t->columns; column++)
      out[column % t->channels * taps + column / t->channels] =
          sums[column / INGOT_PANEL * panel + column % INGOT_PANEL];
  }
}

void K(conv2d_filter_gradient_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_filter_args *g = args;
  const int64_t pixels = g->batch * g->out_height * g->out_width;
  const int64_t blocks = (g->channels + FILTER_CHANNELS - 1) / FILTER_CHANNELS;
  const gemm_share share = gemm_cut(blocks, g->out_channels, task, num_tasks);
  float *panel = g->scratch + task * g->scratch_stride;
  for (int64_t block = share.panel_begin; block < share.panel_end; block++) {
    const int64_t channel = block * FILTER_CHANNELS, left = g->channels - channel;
    const int64_t channels = left < FILTER_CHANNELS ? left : FILTER_CHANNELS;
    const int joined = g->dilation_w == 1 && g->x_strides[2] == channels;
    const filter_task state = {
        .g = g, .channel = channel, .channels = channels, .columns = g->kernel_h * g->kernel_w * channels,
        .line = joined ? g->kernel_w * channels : channels, .joined = joined, .panel = panel,
        .tiles = panel + INGOT_K_BLOCK * INGOT_PANEL,
        .sums = panel + INGOT_K_BLOCK * (INGOT_PANEL + g->out_channels + GEMM_ROWS)};
    for (int64_t first = 0; first == 0 || first < pixels; first += INGOT_K_BLOCK) {
      const int64_t count = pixels - first < INGOT_K_BLOCK ? pixels - first : INGOT_K_BLOCK;
      filter_add(&state, first, count, share.row_begin, share.row_end);
    }
    filter_write(&state, share.row_begin, share.row_end);
  }
}

/* Transform three filter weights to four points: the first, half the sum of all, half the sum with the middle one
 * negated, the last. */
static inline void filter_points(const vf from[3], vf to[4]) {
  const vf outer = v_add(from[0], from[2]), half = v_set(0.5f);
  to[0] = from[0];
  to[1] = v_mul(v_add(outer, from[1]), half);
  to[2] = v_mul(v_sub(outer, from[1]), half);
  to[3] = from[2];
}

void K(conv2d_filter_points_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const filter_points_args *g = args;
  const int64_t panels = (g->out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  const int64_t end = task_begin(g->channels, task + 1, num_tasks);
  for (int64_t channel = task_begin(g->channels, task, num_tasks); channel < end; channel++) {
    for (int64_t column = 0; column < panels * INGOT_PANEL; column += 16) {
      const int64_t left = g->out_channels - column, lanes = left < 0 ? 0 : left < 16 ? left : 16;
      const float *from = g->weight + channel * g->strides[1] + (lanes ? column : 0) * g->strides[0];
      float taps[9][16] = {{0}};
      for (int64_t lane = 0; lane < lanes; lane++, from += g->strides[0]) {
        for (int tap = 0; tap < 9; tap++) taps[tap][lane] = from[tap / 3 * g->strides[2] + tap % 3 * g->strides[3]];
      }
      vf rows[3][4];
      INGOT_UNROLL for (int j = 0; j < 3; j++) {
        const vf down[3] = {v_load(taps[j]), v_load(taps[3 + j]), v_load(taps[6 + j])};
        filter_points(down, rows[j]);
      }
      INGOT_UNROLL for (int i = 0; i < 4; i++) {
        const vf across[3] = {rows[0][i], rows[1][i], rows[2][i]};
        vf points[4];
        filter_points(across, points);
        INGOT_UNROLL for (int j = 0; j < 4; j++) {
          const int64_t panel = (4 * i + j) * panels + column / INGOT_PANEL;
          v_store(g->out + (panel * g->channels + channel) * INGOT_PANEL + column % INGOT_PANEL, points[j]);
        }
      }
    }
  }
}

#undef FILTER_CHANNELS

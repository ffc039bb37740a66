/* conv_filter_winograd.c: the gradient of 3 x 3 filters by Winograd's F(3 x 3, 2 x 2) (Lavin and Gray, "Fast algorithms
 * for convolutional neural networks", 2016): 2 x 2 pixels of d and the 4 x 4 pixels of x that their windows read need
 * 16 products for a pair of channels instead of 36. Both are transformed to 4 x 4 points, one row of points at a time,
 * for INGOT_K_BLOCK tiles; d^T @ x of each point is added to sums that stay in the L2 cache. Additions have the same
 * order on every instruction set. */
#include "gemm/gemm.h"

#define FILTER_COLUMNS 64 /* channels of x, and of d, computed together, so that sums stay in the cache; kernels.def
                             uses both */
#define FILTER_ROWS 128

/* A gradient in progress. Points of x: [4][panel][INGOT_K_BLOCK][32], of d: [4][INGOT_K_BLOCK][stride]; sums:
 * [16][panel][rows][32]. */
typedef struct {
  const conv_filter_args *g;
  int64_t row, rows, channel, channels, panels; /* of d's channels, and of x's */
  int64_t across, down, stride;
  float *x, *d, *sums;
} filter_tiles;

/* Adjacent tiles: the coordinates of the first in an image, and its index in a block. */
typedef struct { int64_t image, y, x, at, count; } filter_run;

/* The combination of two rows for 16 channels of column x; a row outside of the image is null. */
static inline vf filter_column(const conv_filter_args *g, const float *first, const float *second, int64_t x,
                               int64_t lanes, int adds) {
  const vf zero = v_set(0.0f);
  if (x < 0 || x >= g->width) return zero;
  x *= g->x_strides[2];
  const vf a = !first ? zero : lanes < 16 ? v_load_n(first + x, lanes) : v_load(first + x);
  const vf b = !second ? zero : lanes < 16 ? v_load_n(second + x, lanes) : v_load(second + x);
  return adds ? v_add(a, b) : v_sub(a, b);
}

/* Row `point` of the points of x. Two columns of a tile belong to the next tile too. */
static inline void filter_read_x(const filter_tiles *t, int point, const filter_run *run) {
  static const int8_t pairs[4][2] = {{0, 2}, {1, 2}, {2, 1}, {3, 1}};
  const conv_filter_args *g = t->g;
  const int64_t point_stride = t->panels * INGOT_K_BLOCK * INGOT_PANEL;
  for (int64_t channel = 0; channel < t->panels * INGOT_PANEL; channel += 16) {
    const int64_t left = t->channels - channel, lanes = left < 0 ? 0 : left < 16 ? left : 16;
    const float *rows[2];
    for (int i = 0; i < 2; i++) {
      const int64_t y = 2 * run->y - g->pad_top + pairs[point][i];
      const int64_t from = run->image * g->x_strides[0] + y * g->x_strides[1] + t->channel + channel;
      rows[i] = lanes && y >= 0 && y < g->height ? g->x + from : NULL;
    }
    int64_t x = 2 * run->x - g->pad_left;
    float *to = t->x + (channel / INGOT_PANEL * INGOT_K_BLOCK + run->at) * INGOT_PANEL + channel % INGOT_PANEL;
    vf half[4];
    INGOT_UNROLL for (int j = 0; j < 2; j++) half[j] = filter_column(g, rows[0], rows[1], x + j, lanes, point == 1);
    for (int64_t tile = 0; tile < run->count; tile++, x += 2, to += INGOT_PANEL) {
      INGOT_UNROLL for (int j = 2; j < 4; j++) half[j] = filter_column(g, rows[0], rows[1], x + j, lanes, point == 1);
      v_store(to, v_sub(half[0], half[2]));
      v_store(to + point_stride, v_add(half[1], half[2]));
      v_store(to + 2 * point_stride, v_sub(half[2], half[1]));
      v_store(to + 3 * point_stride, v_sub(half[3], half[1]));
      half[0] = half[2];
      half[1] = half[3];
    }
  }
}

/* Transform two pixels of an axis to a point of it. */
static inline vf filter_point(int point, vf first, vf second) {
  return point == 0 ? first : point == 1 ? v_add(first, second) : point == 2 ? v_sub(first, second) : second;
}

/* Row `point` of the points of d. */
static inline void filter_read_d(const filter_tiles *t, int point, const filter_run *run) {
  const conv_filter_args *g = t->g;
  const int64_t pixel = (run->image * g->out_height + 2 * run->y) * g->out_width + 2 * run->x;
  const float *from = g->d + pixel * g->d_stride + t->row;
  const int64_t below = 2 * run->y + 1 < g->out_height ? g->out_width * g->d_stride : 0;
  const vf zero = v_set(0.0f);
  float *to = t->d + run->at * t->stride;
  for (int64_t tile = 0; tile < run->count; tile++, from += 2 * g->d_stride, to += t->stride) {
    const int64_t next = 2 * (run->x + tile) + 1 < g->out_width ? g->d_stride : 0;
    for (int64_t row = 0; row < t->rows; row += 16) {
      const int64_t lanes = t->rows - row < 16 ? t->rows - row : 16;
      vf half[2] = {zero, zero};
      INGOT_UNROLL for (int j = 0; j < 2; j++) {
        if (j && !next) continue;
        const float *at = from + j * next + row;
        const vf first = point == 3 ? zero : lanes < 16 ? v_load_n(at, lanes) : v_load(at);
        const vf second = !point || !below ? zero : lanes < 16 ? v_load_n(at + below, lanes) : v_load(at + below);
        half[j] = filter_point(point, first, second);
      }
      INGOT_UNROLL for (int j = 0; j < 4; j++)
        v_store(to + j * INGOT_K_BLOCK * t->stride + row, filter_point(j, half[0], half[1]));
    }
  }
}

/* Add the products of `count` tiles to the sums of the four points of row `point`. more: not the first tiles. */
static inline void filter_multiply(const filter_tiles *t, int point, int64_t count, int more) {
  const int32_t tiles = (int32_t)((t->rows + GEMM_ROWS - 1) / GEMM_ROWS);
  for (int64_t i = 0; i < 4 * t->panels; i++) { /* panels of the row */
    float *sums = t->sums + (point * 4 * t->panels + i) * t->rows * INGOT_PANEL;
    for (int32_t tile = 0; tile < tiles; tile++) {
      const int64_t row = task_begin(t->rows, tile, tiles), rows = task_begin(t->rows, tile + 1, tiles) - row;
      const gemm_product product = {
          .k = count, .a = t->d + i / t->panels * INGOT_K_BLOCK * t->stride + row, .a_stride = t->stride,
          .b = t->x + i * INGOT_K_BLOCK * INGOT_PANEL, .b_stride = INGOT_PANEL, .sums = sums + row * INGOT_PANEL,
          .sums_stride = INGOT_PANEL, .more = more,
          .halved = t->channels - i % t->panels * INGOT_PANEL <= INGOT_PANEL / 2};
      if (more) gemm_expect(product.sums, INGOT_PANEL, rows);
      K(gemm_tile_columns)(rows, 1, &product);
    }
  }
}

/* Transform four points of an axis to three filter weights. */
static inline void filter_taps(const vf from[4], vf to[3]) {
  const vf half = v_set(0.5f), sum = v_mul(v_add(from[1], from[2]), half);
  to[0] = v_add(from[0], sum);
  to[1] = v_mul(v_sub(from[1], from[2]), half);
  to[2] = v_add(sum, from[3]);
}

/* Store the sums of a block in the order of the filter. */
static inline void filter_write_taps(const filter_tiles *t) {
  const int64_t point_stride = t->panels * t->rows * INGOT_PANEL;
  for (int64_t row = 0; row < t->rows; row++) {
    float *out = t->g->out + ((t->row + row) * t->g->channels + t->channel) * 9;
    for (int64_t channel = 0; channel < t->channels; channel += 16) {
      const int64_t left = t->channels - channel, lanes = left < 16 ? left : 16;
      const float *sums = t->sums + (channel / INGOT_PANEL * t->rows + row) * INGOT_PANEL + channel % INGOT_PANEL;
      vf half[3][4];
      float taps[9][16];
      INGOT_UNROLL for (int j = 0; j < 4; j++) {
        vf points[4], down[3];
        INGOT_UNROLL for (int i = 0; i < 4; i++) points[i] = v_load(sums + (4 * i + j) * point_stride);
        filter_taps(points, down);
        INGOT_UNROLL for (int i = 0; i < 3; i++) half[i][j] = down[i];
      }
      INGOT_UNROLL for (int i = 0; i < 3; i++) {
        vf across[3];
        filter_taps(half[i], across);
        INGOT_UNROLL for (int j = 0; j < 3; j++) v_store(taps[3 * i + j], across[j]);
      }
      for (int64_t lane = 0; lane < lanes; lane++)
        for (int tap = 0; tap < 9; tap++) *out++ = taps[tap][lane];
    }
  }
}

/* The gradient of a block of channels. */
static inline void filter_block(const filter_tiles *t) {
  const int64_t tiles = t->g->batch * t->down * t->across;
  for (int64_t first = 0; first == 0 || first < tiles; first += INGOT_K_BLOCK) {
    const int64_t count = tiles - first < INGOT_K_BLOCK ? tiles - first : INGOT_K_BLOCK;
    for (int point = 0; point < 4; point++) {
      filter_run run;
      for (int64_t at = 0; at < count; at += run.count) {
        const int64_t tile = first + at, x = tile % t->across, left = t->across - x;
        run = (filter_run){tile / t->across / t->down, tile / t->across % t->down, x, at,
                           left < count - at ? left : count - at};
        filter_read_x(t, point, &run);
        filter_read_d(t, point, &run);
      }
      filter_multiply(t, point, count, first > 0);
    }
  }
  filter_write_taps(t);
}

void K(conv2d_filter_gradient_f32_winograd)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_filter_args *g = args;
  const int64_t blocks = (g->channels + FILTER_COLUMNS - 1) / FILTER_COLUMNS;
  const gemm_share share = gemm_cut(blocks, g->out_channels, task, num_tasks);
  const int64_t rows = share.row_end - share.row_begin;
  const int32_t pieces = (int32_t)((rows + FILTER_ROWS - 1) / FILTER_ROWS);
  float *scratch = g->scratch + task * g->scratch_stride;
  for (int64_t block = share.panel_begin; block < share.panel_end; block++) {
    for (int32_t piece = 0; piece < pieces; piece++) {
      const int64_t row = share.row_begin + task_begin(rows, piece, pieces);
      const int64_t channel = block * FILTER_COLUMNS, left = g->channels - channel;
      filter_tiles t = {
          .g = g, .row = row, .rows = share.row_begin + task_begin(rows, piece + 1, pieces) - row, .channel = channel,
          .channels = left < FILTER_COLUMNS ? left : FILTER_COLUMNS, .across = (g->out_width + 1) / 2,
          .down = (g->out_height + 1) / 2, .x = scratch};
      t.panels = (t.channels + INGOT_PANEL - 1) / INGOT_PANEL;
      t.stride = (t.rows + 15) / 16 * 16 + 16; /* so that rows do not all share a cache set */
      t.d = t.x + 4 * t.panels * INGOT_K_BLOCK * INGOT_PANEL;
      t.sums = t.d + 4 * INGOT_K_BLOCK * t.stride;
      filter_block(&t);
    }
  }
}

#undef FILTER_COLUMNS
#undef FILTER_ROWS

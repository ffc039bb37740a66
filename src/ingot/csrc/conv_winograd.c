/* conv_winograd.c: 2-D convolution with filters of 3 x 3 by F(2 x 2, 3 x 3) of Winograd (Lavin and Gray, "Fast
 * algorithms for convolutional neural networks", 2016): a tile of 2 x 2 output pixels takes 16 products a channel
 * instead of 36. Tiles are transformed into 16 matrices [tile][channel], which are multiplied with those of the filter;
 * additions go in one order everywhere. With `narrow` images are bf16 and so are both factors of the products; what is
 * added is f32. */
#include "conv.h"

#define WINOGRAD_POINTS 16     /* matrices */
#define WINOGRAD_STEPS 128     /* of k: with more of them fewer tiles are transformed together, for the second cache */
#define WINOGRAD_FEW 24        /* tiles then */

/* Output pixels (2y, 2x) to (2y + 1, 2x + 1) of an image. */
typedef struct { int64_t image, y, x; } winograd_tile;

/* What is multiplied: values[point][tile][row_stride] of `most` tiles, and products[point][tile][32] of one panel and
 * GEMM_ROWS tiles; `across` tiles lie beside one another. An element of k is what `tile` multiplies, a channel or a
 * pair of them; there are `steps`. */
typedef struct {
  const conv_args *g;
  void (*tile)(int64_t rows, int64_t panels, const gemm_product *p);
  float *values, *products;
  int64_t steps, most, row_stride, across, down, panels;
} winograd_task;

static inline winograd_tile winograd_tile_at(const winograd_task *t, int64_t tile) {
  return (winograd_tile){tile / t->across / t->down, tile / t->across % t->down, tile % t->across};
}

/* Four rows or columns of a tile as four points. */
static inline void winograd_forward(const vf from[4], vf to[4]) {
  to[0] = v_sub(from[0], from[2]);
  to[1] = v_add(from[1], from[2]);
  to[2] = v_sub(from[2], from[1]);
  to[3] = v_sub(from[1], from[3]);
}

/* The values of a tile, at `to` for the first point. With `inner` what it reads lies inside the image. */
static inline __attribute__((always_inline)) void winograd_read(const winograd_task *t, winograd_tile at,
                                                                const int inner, const int narrow, float *to) {
  const conv_args *g = t->g;
  const int64_t top = 2 * at.y - g->pad_top, left = 2 * at.x - g->pad_left, point_stride = t->most * t->row_stride;
  const int64_t image = at.image * g->x_strides[0] + top * g->x_strides[1] + left * g->x_strides[2];
  for (int64_t channel = 0; channel < g->channels; channel += 16) {
    const int64_t lanes = g->channels - channel < 16 ? g->channels - channel : 16;
    vf half[4][4];
    INGOT_UNROLL for (int j = 0; j < 4; j++) {
      vf column[4], points[4];
      INGOT_UNROLL for (int i = 0; i < 4; i++) {
        const int64_t from = image + i * g->x_strides[1] + j * g->x_strides[2] + channel;
        const int inside = inner || (top + i >= 0 && top + i < g->height && left + j >= 0 && left + j < g->width);
        column[i] = inside ? conv_load(narrow, g->x, from, lanes) : v_set(0.0f);
      }
      winograd_forward(column, points);
      INGOT_UNROLL for (int i = 0; i < 4; i++) half[i][j] = points[i];
    }
    INGOT_UNROLL for (int i = 0; i < 4; i++) {
      vf points[4];
      winograd_forward(half[i], points);
      INGOT_UNROLL for (int j = 0; j < 4; j++) {
        float *values = to + (4 * i + j) * point_stride;
        if (narrow)
          v_store_bf16((uint16_t *)(void *)values + channel, points[j]);
        else
          v_store(values + channel, points[j]);
      }
    }
  }
}

/* The values of `count` tiles. */
static inline __attribute__((always_inline)) void winograd_read_tiles(const winograd_task *t, const int narrow,
                                                                      int64_t first, int64_t count) {
  const conv_args *g = t->g;
  for (int64_t i = 0; i < count; i++) {
    const winograd_tile at = winograd_tile_at(t, first + i);
    const int64_t top = 2 * at.y - g->pad_top, left = 2 * at.x - g->pad_left;
    if (top >= 0 && top + 4 <= g->height && left >= 0 && left + 4 <= g->width)
      winograd_read(t, at, 1, narrow, t->values + i * t->row_stride);
    else
      winograd_read(t, at, 0, narrow, t->values + i * t->row_stride);
  }
}

/* Four points as two rows or columns of pixels. */
static inline void winograd_backward(vf a, vf b, vf c, vf d, vf to[2]) {
  to[0] = v_add(v_add(a, b), c);
  to[1] = v_sub(v_sub(b, c), d);
}

/* 16 columns of a tile's four pixels from its products, to[row][pixel][32]. */
static inline void winograd_pixels(const float *products, float *to, int64_t row_stride) {
  const int64_t point = GEMM_ROWS * INGOT_PANEL;
  vf half[2][4];
  INGOT_UNROLL for (int j = 0; j < 4; j++) {
    vf rows[2];
    const float *p = products + j * point;
    winograd_backward(v_load(p), v_load(p + 4 * point), v_load(p + 8 * point), v_load(p + 12 * point), rows);
    half[0][j] = rows[0];
    half[1][j] = rows[1];
  }
  INGOT_UNROLL for (int i = 0; i < 2; i++) {
    vf pixels[2];
    winograd_backward(half[i][0], half[i][1], half[i][2], half[i][3], pixels);
    v_store(to + i * row_stride, pixels[0]);
    v_store(to + i * row_stride + INGOT_PANEL, pixels[1]);
  }
}

/* The pixels of `count` tiles of one panel from their products, which begin with those of the tile `first`; run by run
 * of tiles that lie beside one another. */
static inline void winograd_write(const winograd_task *t, int64_t first, int64_t count, int64_t panel) {
  const conv_args *g = t->g;
  const int64_t channel = panel * INGOT_PANEL, left = g->out_channels - channel;
  const int64_t columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  float pixels[2][2 * GEMM_ROWS * INGOT_PANEL];
  for (int64_t done = 0, run; done < count; done += run) {
    const winograd_tile at = winograd_tile_at(t, first + done);
    run = t->across - at.x < count - done ? t->across - at.x : count - done;
    for (int64_t i = 0; i < run; i++) {
      for (int64_t j = 0; j < columns; j += 16)
        winograd_pixels(t->products + (done + i) * INGOT_PANEL + j, pixels[0] + 2 * i * INGOT_PANEL + j,
                        2 * GEMM_ROWS * INGOT_PANEL);
    }
    const int64_t x = 2 * at.x, length = g->out_width - x < 2 * run ? g->out_width - x : 2 * run;
    for (int64_t row = 0; row < 2 && 2 * at.y + row < g->out_height; row++) {
      const int64_t y = 2 * at.y + row, *r = g->residual_strides, *o = g->out_strides, *w = g->rounded_strides;
      const gemm_epilogue epilogue = {
        g->bias, g->slopes, NULL, g->residual ? g->residual + at.image * r[0] + y * r[1] + x * r[2] : NULL, r[2], 1.0f,
        g->act_alpha, g->act_beta, g->activation, g->residual_first,
        g->rounded ? g->rounded + at.image * w[0] + y * w[1] + x * w[2] : NULL, w[2]};
      epilogue_apply(&epilogue, 0, channel, length, columns, pixels[row], INGOT_PANEL,
                     g->out ? g->out + at.image * o[0] + y * o[1] + x * o[2] + channel : NULL, o[2]);
    }
  }
}

/* `count` tiles, of which the values are there, for panels [begin, end). */
static inline void winograd_multiply(const winograd_task *t, int64_t first, int64_t count, int64_t begin, int64_t end) {
  const conv_args *g = t->g;
  const int64_t panel_size = t->steps * INGOT_PANEL;
  const int32_t blocks = (int32_t)((count + GEMM_ROWS - 1) / GEMM_ROWS);
  for (int64_t panel = begin; panel < end; panel++) {
    for (int32_t block = 0; block < blocks; block++) {
      const int64_t skip = part_begin(count, block, blocks), rows = part_begin(count, block + 1, blocks) - skip;
      for (int64_t point = 0; point < WINOGRAD_POINTS; point++) {
        const gemm_product product = {
          .k = t->steps, .a = t->values + (point * t->most + skip) * t->row_stride, .a_stride = t->row_stride,
          .b = g->weight + (point * t->panels + panel) * panel_size, .b_stride = INGOT_PANEL,
          .sums = t->products + point * GEMM_ROWS * INGOT_PANEL, .sums_stride = INGOT_PANEL,
          .halved = g->out_channels - panel * INGOT_PANEL <= INGOT_PANEL / 2};
        t->tile(rows, 1, &product);
      }
      winograd_write(t, first + skip, rows, panel);
    }
  }
}

/* t holds what images of a kind, floats or bf16, are multiplied by. */
static inline __attribute__((always_inline)) void winograd(const int narrow, winograd_task t, int32_t part,
                                                           int32_t parts) {
  const conv_args *g = t.g;
  t.steps = narrow ? g->channels / 2 : g->channels;
  t.across = (g->out_width + 1) / 2;
  t.down = (g->out_height + 1) / 2;
  t.panels = (g->out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t.most = t.steps > WINOGRAD_STEPS ? WINOGRAD_FEW : INGOT_CONV_PIXELS;
  t.row_stride = (t.steps + 15) / 16 * 16 + 16; /* 16 more, so that rows do not all share a set of the cache */
  t.products = g->scratch + part * g->scratch_stride;
  t.values = t.products + WINOGRAD_POINTS * GEMM_ROWS * INGOT_PANEL;
  const int64_t tiles = g->batch * t.down * t.across;
  /* A filter larger than the second cache is read by one part only. */
  const int by_panels = WINOGRAD_POINTS * t.steps * g->out_channels > 1 << 18;
  const gemm_share share = by_panels ? gemm_turn(gemm_cut(t.panels, tiles, part, parts))
                                     : gemm_cut(tiles, t.panels, part, parts);
  const int64_t count = share.panel_end - share.panel_begin;
  const int32_t blocks = share.row_end > share.row_begin ? (int32_t)((count + t.most - 1) / t.most) : 0;
  for (int32_t i = 0; i < blocks; i++) {
    const int64_t first = share.panel_begin + part_begin(count, i, blocks);
    const int64_t end = share.panel_begin + part_begin(count, i + 1, blocks);
    winograd_read_tiles(&t, narrow, first, end - first);
    winograd_multiply(&t, first, end - first, share.row_begin, share.row_end);
  }
}

void K(conv2d_f32_winograd)(const void *args, int32_t part, int32_t parts) {
  winograd(0, (winograd_task){.g = args, .tile = K(gemm_tile)}, part, parts);
}

void K(conv2d_bf16_winograd)(const void *args, int32_t part, int32_t parts) {
  const conv_args *g = args;
  winograd(1, (winograd_task){.g = g, .tile = GEMM_BF16_TILE(g)}, part, parts);
}

#undef WINOGRAD_POINTS
#undef WINOGRAD_STEPS
#undef WINOGRAD_FEW

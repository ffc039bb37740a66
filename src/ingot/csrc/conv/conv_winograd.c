/* conv_winograd.c: 2-D convolution with 3 x 3 filters by Winograd's F(2 x 2, 3 x 3) (Lavin and Gray, "Fast algorithms
 * for convolutional neural networks", 2016): a tile of 2 x 2 output pixels needs 16 products a channel instead of 36.
 * Tiles are transformed into 16 matrices [tile][channel], which are multiplied with those of the filter; additions have
 * the same order on every instruction set. With `narrow` images and both factors of the products are bf16, and sums are
 * f32. */
#include "conv/conv.h"

#define WINOGRAD_POINTS 16 /* matrices */
#if defined(INGOT_SMALL)
#define WINOGRAD_RUN 2 /* tiles whose pixels are written together */
#else
#define WINOGRAD_RUN 12
#endif

/* Output pixels (2y, 2x) to (2y + 1, 2x + 1) of an image. */
typedef struct { int64_t image, y, x; } winograd_tile;

/* The operands: values[point][tile][row_stride] of `most` tiles, and products[point][tile][32] of these and one panel;
 * `across` tiles are in a row. An element of k is the tile function's, a channel or a pair of them; there are
 * `steps`. Per group: `channels`, `out_channels`, `steps`, `panels`. */
typedef struct {
  const conv_args *g;
  void (*tile)(int64_t rows, int64_t panels, const gemm_product *p);
  float *values, *products;
  int64_t channels, out_channels, steps, most, row_stride, across, down, panels;
} winograd_task;

/* Tiles that are transformed together, for some panels of a group. */
typedef struct { int64_t first, count, group, panel_begin, panel_end; } winograd_block;

static inline winograd_tile winograd_tile_at(const winograd_task *t, int64_t tile) {
  return (winograd_tile){tile / t->across / t->down, tile / t->across % t->down, tile % t->across};
}

/* Transform four rows or columns of a tile to four points. */
static inline void winograd_forward(const vf from[4], vf to[4]) {
  to[0] = v_sub(from[0], from[2]);
  to[1] = v_add(from[1], from[2]);
  to[2] = v_sub(from[2], from[1]);
  to[3] = v_sub(from[1], from[3]);
}

/* Transform up to 16 channels of four pixels of a column to four points; from: the first of them. whole: 16 channels,
 * and all pixels of a column that is inside the image are inside too. */
static inline __attribute__((always_inline)) void winograd_column(const winograd_task *t, const int narrow, int whole,
                                                                  int64_t from, int64_t top, int64_t column,
                                                                  int64_t lanes, vf points[4][4], int at) {
  const conv_args *g = t->g;
  vf x[4], to[4];
  if (column < 0 || column >= g->width) {
    INGOT_UNROLL for (int i = 0; i < 4; i++) x[i] = v_set(0.0f);
  } else if (whole) {
    INGOT_UNROLL for (int i = 0; i < 4; i++) x[i] = conv_load(narrow, g->x, from + i * g->x_strides[1], 16);
  } else {
    INGOT_UNROLL for (int i = 0; i < 4; i++) {
      const int inside = top + i >= 0 && top + i < g->height;
      x[i] = inside ? conv_load(narrow, g->x, from + i * g->x_strides[1], lanes) : v_set(0.0f);
    }
  }
  winograd_forward(x, to);
  INGOT_UNROLL for (int i = 0; i < 4; i++) points[i][at] = to[i];
}

/* The values of a group for `count` adjacent tiles from `at` on. Two columns of a tile belong to the next tile too. */
static inline __attribute__((always_inline)) void winograd_read(const winograd_task *t, winograd_tile at,
                                                                int64_t group, int64_t count, const int narrow,
                                                                float *values) {
  const conv_args *g = t->g;
  const int64_t top = 2 * at.y - g->pad_top, point_stride = t->most * t->row_stride;
  for (int64_t channel = 0; channel < t->channels; channel += 16) {
    const int64_t lanes = t->channels - channel < 16 ? t->channels - channel : 16;
    const int whole = lanes == 16 && top >= 0 && top + 4 <= g->height;
    int64_t left = 2 * at.x - g->pad_left;
    int64_t from = at.image * g->x_strides[0] + top * g->x_strides[1] + left * g->x_strides[2] +
                   group * t->channels + channel;
    vf half[4][4];
    INGOT_UNROLL for (int j = 0; j < 2; j++)
      winograd_column(t, narrow, whole, from + j * g->x_strides[2], top, left + j, lanes, half, j);
    for (int64_t tile = 0; tile < count; tile++, left += 2, from += 2 * g->x_strides[2]) {
      float *to = values + tile * t->row_stride;
      INGOT_UNROLL for (int j = 2; j < 4; j++)
        winograd_column(t, narrow, whole, from + j * g->x_strides[2], top, left + j, lanes, half, j);
      INGOT_UNROLL for (int i = 0; i < 4; i++, to += 4 * point_stride) {
        vf points[4];
        winograd_forward(half[i], points);
        INGOT_UNROLL for (int j = 0; j < 4; j++) {
          if (narrow)
            v_store_bf16((uint16_t *)(void *)(to + j * point_stride) + channel, points[j]);
          else
            v_store(to + j * point_stride + channel, points[j]);
        }
        half[i][0] = half[i][2];
        half[i][1] = half[i][3];
      }
    }
  }
}

/* The values of a block's tiles. */
static inline __attribute__((always_inline)) void winograd_read_tiles(const winograd_task *t, const int narrow,
                                                                      const winograd_block *b) {
  for (int64_t done = 0, run; done < b->count; done += run) {
    const winograd_tile at = winograd_tile_at(t, b->first + done);
    run = t->across - at.x < b->count - done ? t->across - at.x : b->count - done;
    winograd_read(t, at, b->group, run, narrow, t->values + done * t->row_stride);
  }
}

/* Transform four points to two rows or columns of pixels. */
static inline void winograd_backward(vf a, vf b, vf c, vf d, vf to[2]) {
  to[0] = v_add(v_add(a, b), c);
  to[1] = v_sub(v_sub(b, c), d);
}

/* 16 columns of a tile's pixels from its products; the products of a point are `point` floats after those of the point
 * before. */
static inline void winograd_pixels(const float *products, int64_t point, vf pixels[2][2]) {
  vf half[2][4];
  INGOT_UNROLL for (int j = 0; j < 4; j++) {
    vf rows[2];
    const float *p = products + j * point;
    winograd_backward(v_load(p), v_load(p + 4 * point), v_load(p + 8 * point), v_load(p + 12 * point), rows);
    half[0][j] = rows[0];
    half[1][j] = rows[1];
  }
  INGOT_UNROLL for (int i = 0; i < 2; i++)
    winograd_backward(half[i][0], half[i][1], half[i][2], half[i][3], pixels[i]);
}

/* A row of output pixels. */
typedef struct { gemm_epilogue epilogue; gemm_store store; float *out; } winograd_row;

/* The pixels of at most WINOGRAD_RUN adjacent tiles from `at` on, from their products. */
static inline void winograd_write_run(const winograd_task *t, winograd_tile at, int64_t run, int64_t group,
                                      int64_t panel, const float *products) {
  const conv_args *g = t->g;
  const int64_t left = t->out_channels - panel * INGOT_PANEL, x = 2 * at.x;
  const int64_t channel = group * t->out_channels + panel * INGOT_PANEL;
  const int64_t columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  const int64_t length = g->out_width - x < 2 * run ? g->out_width - x : 2 * run;
  const int64_t rows = g->out_height - 2 * at.y < 2 ? 1 : 2;
  winograd_row to[2];
  float waiting[2][2 * WINOGRAD_RUN * INGOT_PANEL];
  for (int64_t row = 0; row < rows; row++) {
    const conv_pixel pixel = {at.image, 2 * at.y + row, x};
    float *out = conv_out(g, pixel);
    if (out) out += channel;
    const gemm_epilogue epilogue = conv_epilogue(g, pixel);
    to[row] = (winograd_row){epilogue, epilogue_store(&epilogue, 0, channel, out, g->out_strides[2]), out};
  }
  const int vectorized = columns % 16 == 0 && epilogue_is_vectorized(&to[0].epilogue);
  for (int64_t j = 0; j < columns; j += 16) {
    const vf bias = vectorized && g->bias ? v_load(g->bias + channel + j) : v_set(-0.0f);
    for (int64_t i = 0; i < run; i++) {
      vf pixels[2][2];
      winograd_pixels(products + i * INGOT_PANEL + j, t->most * INGOT_PANEL, pixels);
      INGOT_UNROLL for (int row = 0; row < 2; row++) {
        INGOT_UNROLL for (int column = 0; column < 2; column++) {
          const int64_t pixel = 2 * i + column;
          if (!vectorized)
            v_store(waiting[row] + pixel * INGOT_PANEL + j, pixels[row][column]);
          else if (row < rows && pixel < length)
            store_sums(&to[row].store, bias, pixel, j, pixels[row][column]);
        }
      }
    }
  }
  for (int64_t row = 0; row < rows && !vectorized; row++)
    epilogue_apply(&to[row].epilogue, 0, channel, length, columns, waiting[row], INGOT_PANEL, to[row].out,
                   g->out_strides[2]);
}

/* The pixels of a block's tiles of one panel from their products. */
static inline void winograd_write(const winograd_task *t, const winograd_block *b, int64_t panel) {
  for (int64_t done = 0, run; done < b->count; done += run) {
    const winograd_tile at = winograd_tile_at(t, b->first + done);
    run = t->across - at.x < b->count - done ? t->across - at.x : b->count - done;
    if (run > WINOGRAD_RUN) run = WINOGRAD_RUN;
    winograd_write_run(t, at, run, b->group, panel, t->products + done * INGOT_PANEL);
  }
}

/* A block's tiles, whose values are computed, times its panels: a panel of a point stays in the L1 cache for all
 * tiles. */
static inline void winograd_multiply(const winograd_task *t, const winograd_block *b) {
  const int64_t panel_size = t->steps * INGOT_PANEL, point_size = t->g->groups * t->panels * panel_size;
  const int32_t blocks = (int32_t)((b->count + GEMM_ROWS - 1) / GEMM_ROWS);
  const int64_t prefetch_step = (4 * INGOT_PANEL + blocks - 1) / blocks;
  for (int64_t panel = b->panel_begin; panel < b->panel_end; panel++) {
    const float *weight = t->g->weight + (b->group * t->panels + panel) * panel_size;
    for (int64_t point = 0; point < WINOGRAD_POINTS; point++, weight += point_size) {
      const float *next = point + 1 < WINOGRAD_POINTS ? weight + point_size
                          : panel + 1 < b->panel_end  ? weight + panel_size - point * point_size
                                                      : NULL;
      for (int32_t block = 0; block < blocks; block++) {
        const int64_t skip = task_begin(b->count, block, blocks), rows = task_begin(b->count, block + 1, blocks) - skip;
        const gemm_product product = {
          .k = t->steps, .a = t->values + (point * t->most + skip) * t->row_stride, .a_stride = t->row_stride,
          .b = weight, .b_stride = INGOT_PANEL, .sums = t->products + (point * t->most + skip) * INGOT_PANEL,
          .sums_stride = INGOT_PANEL, .prefetch = next ? (const char *)next + block * t->steps * prefetch_step : NULL,
          .prefetch_step = next ? prefetch_step : 0,
          .halved = t->out_channels - panel * INGOT_PANEL <= INGOT_PANEL / 2};
        t->tile(rows, 1, &product);
      }
    }
    winograd_write(t, b, panel);
  }
}

/* t holds the tile function and its fields for images of floats or bf16. */
static inline __attribute__((always_inline)) void winograd(const int narrow, winograd_task t, int32_t task,
                                                           int32_t num_tasks) {
  const conv_args *g = t.g;
  t.channels = g->channels / g->groups;
  t.out_channels = g->out_channels / g->groups;
  t.steps = narrow ? t.channels / 2 : t.channels;
  t.across = (g->out_width + 1) / 2;
  t.down = (g->out_height + 1) / 2;
  t.panels = (t.out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t.row_stride = (t.steps + 15) / 16 * 16;
  if (t.steps > INGOT_WINOGRAD_CHANNELS) t.row_stride += 16; /* so that rows do not all share a cache set */
  t.most = g->scratch_stride / (WINOGRAD_POINTS * (t.row_stride + INGOT_PANEL));
  t.products = g->scratch + task * g->scratch_stride;
  t.values = t.products + WINOGRAD_POINTS * t.most * INGOT_PANEL;
  const int64_t tiles = g->batch * t.down * t.across, units = g->groups * t.panels;
  const int by_panels = conv_by_panels(WINOGRAD_POINTS * t.steps * g->out_channels, tiles, t.most, num_tasks);
  const gemm_share share = by_panels ? gemm_swap(gemm_cut(units, tiles, task, num_tasks))
                                     : gemm_cut(tiles, units, task, num_tasks);
  const int64_t count = share.panel_end - share.panel_begin;
  const int32_t blocks = (int32_t)((count + t.most - 1) / t.most);
  for (int64_t unit = share.row_begin, stop; unit < share.row_end; unit = stop) {
    const int64_t group = unit / t.panels, left = (group + 1) * t.panels;
    stop = left < share.row_end ? left : share.row_end;
    for (int32_t i = 0; i < blocks; i++) {
      const int64_t first = share.panel_begin + task_begin(count, i, blocks);
      const int64_t end = share.panel_begin + task_begin(count, i + 1, blocks);
      const winograd_block block = {first, end - first, group, unit - group * t.panels, stop - group * t.panels};
      winograd_read_tiles(&t, narrow, &block);
      winograd_multiply(&t, &block);
    }
  }
}

void K(conv2d_f32_winograd)(const void *args, int32_t task, int32_t num_tasks) {
  winograd(0, (winograd_task){.g = args, .tile = K(gemm_tile)}, task, num_tasks);
}

void K(conv2d_bf16_winograd)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_args *g = args;
  winograd(1, (winograd_task){.g = g, .tile = GEMM_BF16_TILE(g)}, task, num_tasks);
}

#undef WINOGRAD_POINTS
#undef WINOGRAD_RUN

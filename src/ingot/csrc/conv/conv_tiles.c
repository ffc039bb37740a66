/* conv_tiles.c: 2-D convolution of bf16 pairs with split sums, without gathered windows: rows of the image are copied
 * once with their padding, so that the windows of adjacent pixels are evenly spaced, and the next row's windows follow
 * them. The pixels between rows are multiplied too, but their results are discarded. */
#include <string.h>

#include "gemm/split_sums.h"
#include "conv/conv.h"

#if defined(INGOT_LIBRARY)
/* Rows of an image that are computed together, at most `lines`: as many as scratch has space for. Of their input rows
 * every stride_h-th is in the same plane; there are `planes` planes of `depth` rows, and a row has space for `pitch`
 * output pixels. A row of a window, or of a dilated window each kernel position, is a run of `run` pairs; there are
 * `runs` of them. Per group: `channels` in pairs, and so on. */
typedef struct {
  const conv_args *g;
  int64_t channels, out_channels, panels;
  int64_t pitch, lines, planes, depth, runs, run;
  float *image, *sums; /* scratch */
  int64_t offsets[INGOT_TILE_RUNS];
} tiles_task;

/* The output rows [y, y + count) of an image, for panels of a group. */
typedef struct { int64_t image, y, count, group, panel_begin, panel_end; } tiles_block;

static inline int64_t tiles_line(const tiles_task *t) { return t->pitch * t->g->stride_w * t->channels; }

/* One row of the image with its padding. from: the group's first channel of column 0, or null for a row of zeros. */
static inline void tiles_copy(const tiles_task *t, const float *from, float *to) {
  const conv_args *g = t->g;
  const int64_t pixels = t->pitch * g->stride_w, unit = t->channels, left = g->pad_left < pixels ? g->pad_left : pixels;
  const int64_t count = g->width < pixels - left ? g->width : pixels - left;
  if (!from) {
    memset(to, 0, (size_t)(pixels * unit) * sizeof *to);
    return;
  }
  memset(to, 0, (size_t)(left * unit) * sizeof *to);
  to += left * unit;
  if (g->x_strides[2] == unit)
    memcpy(to, from, (size_t)(count * unit) * sizeof *to);
  else
    for (int64_t i = 0; i < count; i++) memcpy(to + i * unit, from + i * g->x_strides[2], (size_t)unit * sizeof *to);
  memset(to + count * unit, 0, (size_t)((pixels - left - count) * unit) * sizeof *to);
}

/* Copy all rows that a block reads. */
static inline void tiles_read(const tiles_task *t, const tiles_block *b) {
  const conv_args *g = t->g;
  const float *image = g->x + b->image * g->x_strides[0] + b->group * t->channels;
  const int64_t span = (g->kernel_h - 1) * g->dilation_h, top = b->y * g->stride_h - g->pad_top;
  for (int64_t i = 0; i <= (b->count - 1) * g->stride_h + span; i++) {
    const int64_t plane = i % g->stride_h, line = top + i;
    if (plane >= t->planes) continue;
    tiles_copy(t, line >= 0 && line < g->height ? image + line * g->x_strides[1] : NULL,
               t->image + (plane * t->depth + i / g->stride_h) * tiles_line(t));
  }
}

/* Store the results of `rows` positions of a block from `first` on. */
static inline void tiles_store(const tiles_task *t, const tiles_block *b, int64_t panel, int64_t first, int64_t rows,
                               const float *sums) {
  const conv_args *g = t->g;
  const int64_t column = panel * INGOT_PANEL, left = t->out_channels - column;
  const int64_t channel = b->group * t->out_channels + column, columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  for (int64_t at = first, next; at < first + rows; at = next) {
    const int64_t x = at % t->pitch, y = at / t->pitch, last = (y + 1) * t->pitch;
    next = last < first + rows ? last : first + rows;
    const int64_t count = g->out_width - x < next - at ? g->out_width - x : next - at;
    if (count <= 0 || y >= b->count) continue;
    const conv_pixel pixel = {b->image, b->y + y, x};
    const gemm_epilogue epilogue = conv_epilogue(g, pixel);
    const float *of = sums + (at - first) * INGOT_PANEL;
    float *out = conv_out(g, pixel);
    if (out) out += channel;
    if (epilogue_is_vectorized(&epilogue)) {
      const gemm_store store = epilogue_store(&epilogue, 0, channel, out, g->out_strides[2]);
      K(split_store)(&store, count, columns, of);
    } else {
      epilogue_apply(&epilogue, 0, channel, count, columns, of, INGOT_PANEL, out, g->out_strides[2]);
    }
  }
}

/* A piece of a window, as many runs as stay in the cache or a slice of one, for all positions. product: all fields
 * except the positions' own. next: the piece that is read afterwards. */
static inline void tiles_piece(const tiles_task *t, const tiles_block *b, split_product product, int64_t panel,
                               const float *next, int last) {
  const int64_t positions = (b->count - 1) * t->pitch + t->g->out_width, half = SPLIT_ROWS / 2;
  const int64_t blocks = (positions + SPLIT_ROWS - 1) / SPLIT_ROWS;
  const int64_t steps = product.runs * (product.k / SPLIT_PAIRS);
  const float *a = product.a;
  product.prefetch_step = split_prefetch(next, blocks);
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t first = block * SPLIT_ROWS, rows = positions - first > half ? SPLIT_ROWS : half;
    float *sums = t->sums + first * INGOT_PANEL;
    product.a = a + first * product.a_stride;
    product.prefetch = next ? (const char *)next + block * steps * product.prefetch_step : NULL;
    K(split_sums)(rows, &product, sums);
    if (last) tiles_store(t, b, panel, first, rows, sums);
  }
}

static inline void tiles_multiply(const tiles_task *t, const tiles_block *b) {
  const int64_t together = SPLIT_NEAR / t->run > 1 ? SPLIT_NEAR / t->run : 1, piece = split_piece(t->run);
  const int64_t size = t->runs * t->run * INGOT_PANEL;
  for (int64_t panel = b->panel_begin; panel < b->panel_end; panel++) {
    const float *weight = t->g->weight + (b->group * t->panels + panel) * size, *end = weight + size;
    for (int64_t run = 0; run < t->runs; run += together) {
      for (int64_t k = 0; k < t->run; k += piece) {
        const float *of = weight + (run * t->run + k) * INGOT_PANEL;
        const split_product product = {
          .runs = t->runs - run < together ? t->runs - run : together, .k = t->run - k < piece ? t->run - k : piece,
          .offsets = t->offsets + run, .a = t->image + k, .a_stride = t->g->stride_w * t->channels, .b = of,
          .more = run + k > 0, .halved = t->out_channels - panel * INGOT_PANEL <= INGOT_PANEL / 2};
        const float *next = of + product.runs * product.k * INGOT_PANEL;
        tiles_piece(t, b, product, panel, next < end || panel + 1 < b->panel_end ? next : NULL, next == end);
      }
    }
  }
}

static inline tiles_task tiles_task_of(const conv_args *g, int32_t task) {
  const int64_t across = (g->kernel_w - 1) * g->dilation_w, span = (g->kernel_h - 1) * g->dilation_h;
  tiles_task t = {.g = g, .channels = g->channels / g->groups, .out_channels = g->out_channels / g->groups};
  t.panels = (t.out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t.pitch = g->out_width + across / g->stride_w;
  t.planes = span + 1 < g->stride_h ? span + 1 : g->stride_h;
  const int64_t read = t.planes * tiles_line(&t), below = span / g->stride_h;
  const int64_t beyond = SPLIT_ROWS * INGOT_PANEL + t.channels * ((SPLIT_ROWS - 1) * g->stride_w + across + 1) + 16;
  t.lines = (g->scratch_stride - beyond - below * read) / (t.pitch * INGOT_PANEL + read);
  t.depth = t.lines + below;
  t.sums = g->scratch + task * g->scratch_stride;
  t.image = t.sums + (t.lines * t.pitch + SPLIT_ROWS) * INGOT_PANEL;
  const int64_t taps = g->dilation_w == 1 ? 1 : g->kernel_w;
  t.run = t.channels * g->kernel_w / taps;
  for (int64_t i = 0; i < g->kernel_h; i++) {
    const int64_t line = i * g->dilation_h;
    for (int64_t j = 0; j < taps; j++)
      t.offsets[t.runs++] = (line % g->stride_h * t.depth + line / g->stride_h) * tiles_line(&t) +
                            j * g->dilation_w * t.channels;
  }
  return t;
}

void K(conv2d_bf16_tiles)(const void *args, int32_t task, int32_t num_tasks) {
  conv_args g = *(const conv_args *)args; /* counted in pairs */
  g.channels /= 2;
  for (int i = 0; i < 3; i++) g.x_strides[i] /= 2;
  const tiles_task t = tiles_task_of(&g, task);
  const int64_t lines = g.batch * g.out_height, units = g.groups * t.panels;
  /* Only one task reads a filter that is larger than the L2 cache. */
  const int by_panels = t.runs * t.run * g.out_channels > 1 << 18;
  const gemm_share share = by_panels ? gemm_swap(gemm_cut(units, lines, task, num_tasks))
                                     : gemm_cut(lines, units, task, num_tasks);
  K(split_begin)(SPLIT_ROWS, t.run);
  for (int64_t unit = share.row_begin; unit < share.row_end;) {
    const int64_t group = unit / t.panels, left = (group + 1) * t.panels;
    const int64_t stop = left < share.row_end ? left : share.row_end;
    for (int64_t line = share.panel_begin, count; line < share.panel_end; line += count) {
      const int64_t y = line % g.out_height, rest = g.out_height - y;
      count = rest < share.panel_end - line ? rest : share.panel_end - line;
      count = count < t.lines ? count : t.lines;
      const tiles_block block = {line / g.out_height, y, count, group, unit - group * t.panels,
                                 stop - group * t.panels};
      tiles_read(&t, &block);
      tiles_multiply(&t, &block);
    }
    unit = stop;
  }
  K(split_end)();
}
#endif

/* integer.c: integer convolutions with constant filters, and products with constant matrices, which are convolutions of
 * one row of pixels. Windows are gathered as rows in scratch, some pixels at a time, unless they are stored as rows
 * already. */
#include "quant/integer_conv.h"
#include "quant/integer_tile.h"

#if defined(ISA_amx)
#include "quant/integer_regions.h"
#endif

/* Per group: `channels`, `out_channels`, `panels`. line: bytes of a row of a window, padded to a multiple of 4; k:
 * bytes of a window. */
typedef struct {
  const integer_args *g;
  integer_tiles tiles;
  int64_t channels, out_channels, panels, line, k, row_stride;
  const uint8_t *end; /* of x */
  uint8_t *gathered;
  int32_t in_place, counts_rows;
  int32_t is_short; /* whether a row of a window is one piece that fits a vector */
} integer_task;

#define INTEGER_VECTOR 32 /* bytes */

/* Copy `count` bytes as u8, in whole vectors where the bytes after them may be read; as many bytes after `to` are
 * overwritten. */
static inline void integer_copy(const integer_task *t, const uint8_t *restrict from, int64_t count,
                                uint8_t *restrict to) {
  const uint8_t flip = (uint8_t)t->g->x_flip;
  int64_t i = 0;
  for (; i + 64 <= count; i += 64)
    for (int j = 0; j < 64; j++) to[i + j] = from[i + j] ^ flip;
  if (t->end - from < (count + INTEGER_VECTOR - 1) / INTEGER_VECTOR * INTEGER_VECTOR) {
    for (; i < count; i++) to[i] = from[i] ^ flip;
    return;
  }
  for (; i < count; i += INTEGER_VECTOR)
    for (int j = 0; j < INTEGER_VECTOR; j++) to[i + j] = from[i + j] ^ flip;
}

/* Fill the padding after a row of a window: weights there are zeros, so only sums of rows depend on it. */
static inline void integer_fill_up(const integer_task *t, uint8_t *end) {
  if (t->counts_rows) memset(end, 0, 4);
}

/* A window of short rows inside the image, where whole vectors may be read: each row overwrites the excess of the one
 * before. */
static inline void integer_gather_short(const integer_task *t, const uint8_t *restrict from, uint8_t *restrict row) {
  const integer_args *g = t->g;
  const uint8_t flip = (uint8_t)g->x_flip;
  const int64_t step = g->dilation_h * g->x_strides[1], own = g->kernel_w * t->channels;
  for (int64_t i = 0; i < g->kernel_h; i++, from += step, row += t->line) {
    for (int j = 0; j < INTEGER_VECTOR; j++) row[j] = from[j] ^ flip;
    integer_fill_up(t, row + own);
  }
}

/* The window of an output pixel whose first element is at column `left` of row `top`; image points to the group's first
 * channel. Outside of the image there are zero points. */
static inline void integer_gather(const integer_task *t, const uint8_t *image, int64_t top, int64_t left, int32_t zero,
                                  uint8_t *row) {
  const integer_args *g = t->g;
  const int64_t step = g->dilation_w * g->x_strides[2], unit = t->channels;
  const int64_t bottom = top + (g->kernel_h - 1) * g->dilation_h, right = left + (g->kernel_w - 1) * g->dilation_w;
  if (t->is_short && left >= 0 && top >= 0 && right < g->width && bottom < g->height &&
      t->end - image >= bottom * g->x_strides[1] + left * g->x_strides[2] + INTEGER_VECTOR) {
    integer_gather_short(t, image + top * g->x_strides[1] + left * g->x_strides[2], row);
    return;
  }
  int64_t first = left >= 0 ? 0 : (-left + g->dilation_w - 1) / g->dilation_w;
  int64_t last = left < g->width ? (g->width - 1 - left) / g->dilation_w + 1 : 0;
  last = last < g->kernel_w ? last : g->kernel_w;
  first = first < last ? first : last;
  last = first < last ? last : first;
  /* Adjacent kernel positions are copied in one piece. */
  const int64_t together = step == unit && last > first ? last - first : 1;
  for (int64_t i = 0; i < g->kernel_h; i++, row += t->line) {
    const int64_t line = top + i * g->dilation_h;
    if (line < 0 || line >= g->height) {
      memset(row, zero, (size_t)(g->kernel_w * unit));
      integer_fill_up(t, row + g->kernel_w * unit);
      continue;
    }
    const uint8_t *from = image + line * g->x_strides[1] + left * g->x_strides[2];
    if (first) memset(row, zero, (size_t)(first * unit));
    for (int64_t tap = first; tap < last; tap += together)
      integer_copy(t, from + tap * step, together * unit, row + tap * unit);
    if (last < g->kernel_w) memset(row + last * unit, zero, (size_t)((g->kernel_w - last) * unit));
    integer_fill_up(t, row + g->kernel_w * unit);
  }
}

/* Pixels [pixel, pixel + count) for one group. */
static inline void integer_take(const integer_task *t, int64_t pixel, int64_t count, int64_t group, integer_block *b) {
  const integer_args *g = t->g;
  const uint8_t *x = (const uint8_t *)g->x + group * t->channels;
  const int64_t *o = g->out_strides, *r = g->residual_strides;
  b->count = count;
  b->rows = t->in_place ? x + pixel * g->x_strides[2] : t->gathered;
  b->row_stride = t->in_place ? g->x_strides[2] : t->row_stride;
  int64_t column = pixel % g->out_width, line = pixel / g->out_width % g->out_height;
  int64_t image = pixel / g->out_width / g->out_height;
  const int32_t zero = integer_zero(g, image);
  integer_place to = {image * o[0] + line * o[1] + column * o[2], image * r[0] + line * r[1] + column * r[2]};
  for (int64_t i = 0; i < count; i++, to.out += o[2], to.residual += r[2]) {
    b->to[i] = to;
    if (!t->in_place)
      integer_gather(t, x + image * g->x_strides[0], line * g->stride_h - g->pad_top,
                     column * g->stride_w - g->pad_left, zero, t->gathered + i * t->row_stride);
    if (t->counts_rows) b->row_sums[i] = integer_row_sum(b->rows + i * b->row_stride, t->k);
    if (++column < g->out_width) continue;
    column = 0;
    line = line + 1 < g->out_height ? line + 1 : 0;
    image += line == 0;
    to.out = image * o[0] + line * o[1] - o[2];
    to.residual = image * r[0] + line * r[1] - r[2];
  }
}

/* The results of pixels of an image and one panel of a group. */
static inline void integer_unit(const integer_task *t, const integer_store *f, const integer_block *b, int64_t image,
                                int64_t unit) {
  const integer_args *g = t->g;
  const int64_t column = unit % t->panels * INGOT_PANEL, left = t->out_channels - column;
  const int64_t channel = unit / t->panels * t->out_channels + column;
  const int64_t columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  const int64_t panel_bytes = t->k * INGOT_PANEL, taps = t->channels * g->kernel_h * g->kernel_w;
  int32_t added[INGOT_PANEL], zeros[INGOT_PANEL];
  integer_added(g, taps, integer_zero(g, image), channel, columns, added, zeros);
  const integer_panel panel = {(const int8_t *)g->weight + unit * panel_bytes, t->k, columns, channel, added,
                               t->counts_rows ? zeros : NULL};
  integer_results(t->tiles, f, b, &panel, g->out);
}

static inline integer_task integer_task_of(const integer_args *g, int32_t task) {
  integer_task t = {.g = g, .tiles = INTEGER_TILES, .channels = g->channels / g->groups,
                    .out_channels = g->out_channels / g->groups};
  t.panels = (t.out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t.line = (t.channels * g->kernel_w + 3) / 4 * 4;
  t.k = t.line * g->kernel_h;
  t.row_stride = (t.k + 63) / 64 * 64 + 64; /* not a power of two, whose rows would share a cache set */
  t.end = (const uint8_t *)g->x + (g->batch - 1) * g->x_strides[0] + (g->height - 1) * g->x_strides[1] +
          (g->width - 1) * g->x_strides[2] + g->channels;
  t.gathered = (uint8_t *)(g->scratch + task * g->scratch_stride);
  t.counts_rows = g->weight_zero != NULL;
  t.is_short = g->dilation_w * g->x_strides[2] == t.channels && g->kernel_w * t.channels <= INTEGER_VECTOR;
  const int is_dense = g->x_strides[1] == g->width * g->x_strides[2] && g->x_strides[0] == g->height * g->x_strides[1];
  t.in_place = g->kernel_h * g->kernel_w == 1 && g->stride_h * g->stride_w == 1 && is_dense &&
               g->pad_top + g->pad_left == 0 && g->out_height == g->height && g->out_width == g->width &&
               t.channels % 4 == 0 && !g->x_flip;
  return t;
}

#define INTEGER_LARGE (1 << 19) /* bytes of a filter that only one task reads */

/* Compute the convolution by AMX without gathered windows, if its shapes allow. Returns whether it did. */
#if defined(ISA_amx)
#define INTEGER_REGIONS(g, task, num_tasks) (AMX_IS_USED && integer_regions(g, task, num_tasks))
#else
#define INTEGER_REGIONS(g, task, num_tasks) 0
#endif

void K(integer_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const integer_args *g = args;
  if (INTEGER_REGIONS(g, task, num_tasks)) return;
  const integer_task t = integer_task_of(g, task);
  const int64_t units = g->groups * t.panels, image = g->out_height * g->out_width, pixels = g->batch * image;
  const gemm_share share = t.k * g->out_channels > INTEGER_LARGE ? gemm_cut(units, pixels, task, num_tasks)
                                                                 : gemm_cut_fixed(units, pixels, task, num_tasks);
  /* Pixels that are computed together have one zero point and step. */
  const int64_t each = g->x_zero_step || g->steps ? image : pixels;
  const int is_many = t.tiles.many && share.row_end - share.row_begin >= AMX_ROWS;
  integer_block block = {.count = 0};
  AMX_BEGIN(is_many, t.k / 4 % AMX_QUADS);
  for (int64_t begin = share.row_begin; begin < share.row_end;) {
    const int64_t stop = (begin / each + 1) * each < share.row_end ? (begin / each + 1) * each : share.row_end;
    const int32_t chunks = (int32_t)((stop - begin + INGOT_CONV_PIXELS - 1) / INGOT_CONV_PIXELS);
    const integer_store store = integer_store_of(g, begin / image);
    for (int32_t i = 0; i < chunks; i++) {
      const int64_t first = begin + task_begin(stop - begin, i, chunks);
      const int64_t count = begin + task_begin(stop - begin, i + 1, chunks) - first;
      for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {
        if (unit == share.panel_begin || unit % t.panels == 0)
          integer_take(&t, first, count, unit / t.panels, &block);
        integer_unit(&t, &store, &block, begin / image, unit);
      }
    }
    begin = stop;
  }
  AMX_END(is_many);
}

/* integer.c: convolutions of integers of 8 bits with fixed filters, and products with fixed matrices, which are
 * convolutions of one line of pixels. Windows are gathered as rows in scratch, some pixels at a time, unless they lie
 * as rows already. */
#include "integer.h"
#include "integer_tile.h"

/* Per group: `channels`, `out_channels`, `panels`. k: elements of a window. zero: of x, as u8. */
typedef struct {
  const integer_args *g;
  integer_tile tile;
  int64_t channels, out_channels, panels, k, row_stride;
  const uint8_t *end; /* of x */
  uint8_t *gathered;
  int32_t zero;
  int32_t in_place, counts_rows;
} integer_task;

/* Output pixels that go together: their rows, the sums of these, and where results go. */
typedef struct {
  const uint8_t *rows;
  int64_t row_stride, count;
  int32_t row_sums[INGOT_INTEGER_PIXELS];
  int64_t out[INGOT_INTEGER_PIXELS];
} integer_block;

/* `count` bytes, in whole vectors where what lies behind them may be read; as much behind `to` is overwritten. */
static inline void integer_copy(const integer_task *t, const uint8_t *from, int64_t count, uint8_t *to) {
  if (t->end - from < (count + 15) / 16 * 16) {
    memcpy(to, from, (size_t)count);
    return;
  }
  for (int64_t i = 0; i < count; i += 16) memcpy(to + i, from + i, 16);
}

/* One line of a window. */
static inline void integer_line(const integer_task *t, const uint8_t *from, int64_t left, uint8_t *to) {
  const integer_args *g = t->g;
  const int64_t unit = t->channels, step = g->dilation_w * g->x_strides[2];
  if (step == unit && left >= 0 && left + g->kernel_w <= g->width) {
    integer_copy(t, from, g->kernel_w * unit, to);
    return;
  }
  for (int64_t j = 0; j < g->kernel_w; j++, to += unit) {
    const int64_t column = left + j * g->dilation_w;
    if (column < 0 || column >= g->width)
      memset(to, t->zero ^ g->x_flip, (size_t)unit);
    else
      memcpy(to, from + j * step, (size_t)unit);
  }
}

/* The window of an output pixel. Beyond the image there are zero points. */
static inline void integer_gather(const integer_task *t, const uint8_t *image, int64_t y, int64_t x, uint8_t *row) {
  const integer_args *g = t->g;
  const int64_t top = y * g->stride_h - g->pad_top, left = x * g->stride_w - g->pad_left;
  const int64_t width = g->kernel_w * t->channels;
  uint8_t *to = row;
  for (int64_t i = 0; i < g->kernel_h; i++, to += width) {
    const int64_t line = top + i * g->dilation_h;
    if (line < 0 || line >= g->height)
      memset(to, t->zero ^ g->x_flip, (size_t)width);
    else
      integer_line(t, image + line * g->x_strides[1] + left * g->x_strides[2], left, to);
  }
  memset(to, 0, 4);
  for (int64_t i = 0; g->x_flip && i < t->k; i += 8) {
    uint64_t eight;
    memcpy(&eight, row + i, 8);
    eight ^= 0x8080808080808080u;
    memcpy(row + i, &eight, 8);
  }
}

static inline int32_t integer_row_sum(const uint8_t *row, int64_t k) {
  int32_t sum = 0;
  for (int64_t i = 0; i < k; i++) sum += row[i];
  return sum;
}

/* Pixels [pixel, pixel + count) for one group. */
static inline void integer_take(const integer_task *t, int64_t pixel, int64_t count, int64_t group, integer_block *b) {
  const integer_args *g = t->g;
  const uint8_t *x = (const uint8_t *)g->x + group * t->channels;
  b->count = count;
  b->rows = t->in_place ? x + pixel * g->x_strides[2] : t->gathered;
  b->row_stride = t->in_place ? g->x_strides[2] : t->row_stride;
  int64_t column = pixel % g->out_width, line = pixel / g->out_width % g->out_height;
  int64_t image = pixel / g->out_width / g->out_height;
  for (int64_t i = 0; i < count; i++) {
    b->out[i] = image * g->out_strides[0] + line * g->out_strides[1] + column * g->out_strides[2];
    if (!t->in_place)
      integer_gather(t, x + image * g->x_strides[0], line, column, t->gathered + i * t->row_stride);
    if (t->counts_rows) b->row_sums[i] = integer_row_sum(b->rows + i * b->row_stride, t->k);
    if (++column < g->out_width) continue;
    column = 0;
    if (++line < g->out_height) continue;
    line = 0;
    image++;
  }
}

/* What is added to the sums of a panel's columns: (x - zero) (w - w_zero) = x w - zero w - w_zero x + zero w_zero. */
static inline void integer_added(const integer_task *t, int64_t channel, int64_t columns, int32_t *added,
                                 int32_t *zeros) {
  const integer_args *g = t->g;
  const uint8_t *w_zero = g->weight_zero;
  const int32_t k = (int32_t)t->k;
  memset(added, 0, INGOT_PANEL * sizeof *added);
  memset(zeros, 0, INGOT_PANEL * sizeof *zeros);
  for (int64_t j = 0; j < columns; j++) {
    if (w_zero) zeros[j] = (int8_t)(w_zero[(channel + j) * g->weight_zero_step] ^ g->weight_flip);
    const int32_t sum = g->column_sums[channel + j] - (g->weight_flip ? 128 * k : 0);
    added[j] = (g->bias ? g->bias[channel + j] : 0) - t->zero * (sum - k * zeros[j]);
  }
}

/* The results of one panel of a group. */
static inline void integer_results(const integer_task *t, const integer_finish *f, const integer_block *b,
                                   int64_t group, int64_t panel) {
  const integer_args *g = t->g;
  const int64_t column = panel * INGOT_PANEL, channel = group * t->out_channels + column;
  const int64_t columns = t->out_channels - column < INGOT_PANEL ? t->out_channels - column : INGOT_PANEL;
  int32_t sums[INGOT_INTEGER_PIXELS * INGOT_PANEL], added[INGOT_PANEL], zeros[INGOT_PANEL];
  const int64_t panel_bytes = (t->k + 3) / 4 * 4 * INGOT_PANEL;
  const int8_t *weight = (const int8_t *)g->weight + (group * t->panels + panel) * panel_bytes;
  integer_panel(t->tile, b->rows, b->row_stride, b->count, t->k, weight, columns, sums);
  integer_added(t, channel, columns, added, zeros);
  for (int64_t i = 0; t->counts_rows && i < b->count; i++)
    for (int64_t j = 0; j < columns; j++) sums[i * INGOT_PANEL + j] -= zeros[j] * b->row_sums[i];
  for (int64_t j = 0; j < columns; j += 16)
    integer_rows(f, sums + j, INGOT_PANEL, added + j, channel + j, columns - j < 16 ? columns - j : 16, b->count,
                 (uint8_t *)g->out, b->out);
}

static inline integer_task integer_task_of(const integer_args *g, int32_t part) {
  integer_task t = {.g = g, .tile = INTEGER_BEST, .channels = g->channels / g->groups,
                    .out_channels = g->out_channels / g->groups};
  t.panels = (t.out_channels + INGOT_PANEL - 1) / INGOT_PANEL;
  t.k = t.channels * g->kernel_h * g->kernel_w;
  t.row_stride = (t.k + 63) / 64 * 64 + 64; /* not a power of two, whose rows would share a set of a cache */
  t.end = (const uint8_t *)g->x + (g->batch - 1) * g->x_strides[0] + (g->height - 1) * g->x_strides[1] +
          (g->width - 1) * g->x_strides[2] + g->channels;
  t.gathered = (uint8_t *)(g->scratch + part * g->scratch_stride);
  t.zero = (g->x_zero ? *(const uint8_t *)g->x_zero : 0) ^ g->x_flip;
  t.counts_rows = g->weight_zero != NULL;
  const int is_dense = g->x_strides[1] == g->width * g->x_strides[2] && g->x_strides[0] == g->height * g->x_strides[1];
  t.in_place = g->kernel_h * g->kernel_w == 1 && g->stride_h * g->stride_w == 1 && g->groups == 1 && is_dense &&
               g->pad_top + g->pad_left == 0 && g->out_height == g->height && g->out_width == g->width &&
               t.k % 4 == 0 && !g->x_flip;
  return t;
}

void K(integer_packed)(const void *args, int32_t part, int32_t parts) {
  const integer_args *g = args;
  const integer_task t = integer_task_of(g, part);
  const integer_finish finish = {g->scale, g->shift, g->scale_step, g->act_alpha, g->act_beta, g->activation,
                                 g->result, g->out_scale, g->out_zero};
  const gemm_share share =
      gemm_cut_fixed(g->groups * t.panels, g->batch * g->out_height * g->out_width, part, parts);
  const int64_t pixels = share.row_end - share.row_begin;
  const int32_t chunks = (int32_t)((pixels + INGOT_INTEGER_PIXELS - 1) / INGOT_INTEGER_PIXELS);
  integer_block block = {.count = 0};
  for (int32_t i = 0; i < chunks; i++) {
    const int64_t begin = share.row_begin + part_begin(pixels, i, chunks);
    const int64_t end = share.row_begin + part_begin(pixels, i + 1, chunks);
    for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {
      if (unit == share.panel_begin || unit % t.panels == 0)
        integer_take(&t, begin, end - begin, unit / t.panels, &block);
      integer_results(&t, &finish, &block, unit / t.panels, unit % t.panels);
    }
  }
}

/* conv_lines.c: 2-D convolution with 1 x 3 filters and stride 2, by Winograd's F(2, 2) for the two weights that share
 * pixels (Winograd, "Arithmetic complexity of computations", 1980): two output pixels need 5 products a channel instead
 * of 6. With their input pixels x0 to x4, the outputs are w0 (x0 - x2) + w1 x1 + s and w1 x3 + w2 (x4 - x2) + s with s
 * = (w0 + w2) x2; additions have the same order on every instruction set. */
#include "conv/conv.h"

#define LINES_PIXELS 5 /* input pixels of two output pixels */
#define LINES_SUMS 3   /* sums of products: one for each output, and the shared one */

/* Output pixels 2x and 2x + 1 of a row. */
typedef struct { int64_t image, y, x; } lines_pair;

/* The operands: values[pair][row_stride] of INGOT_CONV_PAIRS pairs, five pieces with all channels each, and
 * sums[LINES_SUMS][pair][32] of these and one panel; `across` pairs are in a row. */
typedef struct {
  const conv_args *g;
  float *values, *sums;
  int64_t row_stride, across, panels;
} lines_task;

static inline lines_pair lines_pair_at(const lines_task *t, int64_t pair) {
  return (lines_pair){pair / t->across / t->g->out_height, pair / t->across % t->g->out_height, pair % t->across};
}

/* The values of a pair: x0 - x2, x1, x3, x4 - x2 and x2 of all channels. inner: the input is inside the row and fills
 * vectors. */
static inline __attribute__((always_inline)) void lines_read(const lines_task *t, lines_pair at, const int inner,
                                                             float *to) {
  const conv_args *g = t->g;
  const int64_t line = at.y * g->stride_h - g->pad_top, left = 4 * at.x - g->pad_left;
  const int64_t width = line >= 0 && line < g->height ? g->width : 0;
  const float *from = width ? g->x + at.image * g->x_strides[0] + line * g->x_strides[1] : g->x;
  for (int64_t channel = 0; channel < g->channels; channel += 16) {
    const int64_t lanes = inner || g->channels - channel >= 16 ? 16 : g->channels - channel;
    vf x[LINES_PIXELS];
    INGOT_UNROLL for (int i = 0; i < LINES_PIXELS; i++) {
      const int64_t column = left + i, at_column = column * g->x_strides[2] + channel;
      x[i] = inner || (column >= 0 && column < width) ? conv_load(0, from, at_column, lanes) : v_set(0.0f);
    }
    const vf pieces[LINES_PIXELS] = {v_sub(x[0], x[2]), x[1], x[3], v_sub(x[4], x[2]), x[2]};
    INGOT_UNROLL for (int i = 0; i < LINES_PIXELS; i++) {
      if (lanes < 16)
        v_store_n(to + i * g->channels + channel, pieces[i], lanes);
      else
        v_store(to + i * g->channels + channel, pieces[i]);
    }
  }
}

/* The values of `count` pairs. */
static inline void lines_read_pairs(const lines_task *t, int64_t first, int64_t count) {
  const conv_args *g = t->g;
  for (int64_t i = 0; i < count; i++) {
    const lines_pair at = lines_pair_at(t, first + i);
    const int64_t line = at.y * g->stride_h - g->pad_top, left = 4 * at.x - g->pad_left;
    float *to = t->values + i * t->row_stride;
    if (g->channels % 16 == 0 && line >= 0 && line < g->height && left >= 0 && left + LINES_PIXELS <= g->width)
      lines_read(t, at, 1, to);
    else
      lines_read(t, at, 0, to);
  }
}

/* The output pixels of at most GEMM_ROWS pairs of one panel from `first` on, row by row. sums: theirs, the first of
 * LINES_SUMS. */
static inline void lines_write(const lines_task *t, int64_t first, int64_t count, int64_t panel, const float *sums) {
  const conv_args *g = t->g;
  const int64_t channel = panel * INGOT_PANEL, left = g->out_channels - channel, size = INGOT_CONV_PAIRS * INGOT_PANEL;
  const int64_t columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  float pixels[2 * GEMM_ROWS * INGOT_PANEL];
  for (int64_t i = 0; i < 2 * count; i++) {
    const float *own = sums + i % 2 * size + i / 2 * INGOT_PANEL, *shared = sums + 2 * size + i / 2 * INGOT_PANEL;
    for (int64_t j = 0; j < columns; j += 16)
      v_store(pixels + i * INGOT_PANEL + j, v_add(v_load(own + j), v_load(shared + j)));
  }
  for (int64_t done = 0, run; done < count; done += run) {
    const lines_pair at = lines_pair_at(t, first + done);
    run = t->across - at.x < count - done ? t->across - at.x : count - done;
    const int64_t x = 2 * at.x, length = g->out_width - x < 2 * run ? g->out_width - x : 2 * run;
    const int64_t *r = g->residual_strides, *o = g->out_strides, *w = g->rounded_strides;
    const gemm_epilogue epilogue = {
      g->bias, g->slopes, NULL, g->residual ? g->residual + at.image * r[0] + at.y * r[1] + x * r[2] : NULL, r[2], 1.0f,
      g->act_alpha, g->act_beta, g->activation, g->residual_first,
      g->rounded ? g->rounded + at.image * w[0] + at.y * w[1] + x * w[2] : NULL, w[2]};
    epilogue_apply(&epilogue, 0, channel, length, columns, pixels + 2 * done * INGOT_PANEL, INGOT_PANEL,
                   g->out ? g->out + at.image * o[0] + at.y * o[1] + x * o[2] + channel : NULL, o[2]);
  }
}

/* `count` pairs, whose values are computed, times panels [begin, end): INGOT_K_BLOCK rows of a panel stay in the L1
 * cache for all pairs. */
static inline void lines_multiply(const lines_task *t, int64_t first, int64_t count, int64_t begin, int64_t end) {
  const conv_args *g = t->g;
  const int64_t panel_size = 4 * g->channels * INGOT_PANEL, sums_size = INGOT_CONV_PAIRS * INGOT_PANEL;
  const int32_t blocks = (int32_t)((count + GEMM_ROWS - 1) / GEMM_ROWS);
  const int64_t prefetch_step = (4 * 4 * INGOT_PANEL + LINES_PIXELS * blocks - 1) / (LINES_PIXELS * blocks);
  for (int64_t panel = begin; panel < end; panel++) {
    const float *weight = g->weight + panel * panel_size;
    const char *prefetch = panel + 1 < end ? (const char *)(weight + panel_size) : NULL;
    for (int64_t sum = 0; sum < LINES_SUMS; sum++) {
      const int64_t k = sum < 2 ? 2 * g->channels : g->channels;
      const int64_t row = sum == 0 ? 0 : sum == 1 ? g->channels : 3 * g->channels; /* of the panel */
      for (int64_t done = 0; done < k; done += INGOT_K_BLOCK) {
        const int64_t steps = k - done < INGOT_K_BLOCK ? k - done : INGOT_K_BLOCK;
        for (int32_t block = 0; block < blocks; block++) {
          const int64_t skip = task_begin(count, block, blocks), rows = task_begin(count, block + 1, blocks) - skip;
          const gemm_product product = {
            .k = steps, .a = t->values + skip * t->row_stride + 2 * sum * g->channels + done,
            .a_stride = t->row_stride, .b = weight + (row + done) * INGOT_PANEL, .b_stride = INGOT_PANEL,
            .sums = t->sums + sum * sums_size + skip * INGOT_PANEL, .sums_stride = INGOT_PANEL, .prefetch = prefetch,
            .prefetch_step = prefetch ? prefetch_step : 0, .more = done > 0,
            .halved = g->out_channels - panel * INGOT_PANEL <= INGOT_PANEL / 2};
          K(gemm_tile)(rows, 1, &product);
          if (prefetch) prefetch += steps * prefetch_step;
        }
      }
    }
    for (int32_t block = 0; block < blocks; block++) {
      const int64_t skip = task_begin(count, block, blocks), pairs = task_begin(count, block + 1, blocks) - skip;
      lines_write(t, first + skip, pairs, panel, t->sums + skip * INGOT_PANEL);
    }
  }
}

void K(conv2d_f32_lines)(const void *args, int32_t task, int32_t num_tasks) {
  const conv_args *g = args;
  lines_task t = {.g = g, .row_stride = (LINES_PIXELS * g->channels + 15) / 16 * 16 + 16, /* no power of two */
                  .across = (g->out_width + 1) / 2, .panels = (g->out_channels + INGOT_PANEL - 1) / INGOT_PANEL};
  t.sums = g->scratch + task * g->scratch_stride;
  t.values = t.sums + LINES_SUMS * INGOT_CONV_PAIRS * INGOT_PANEL;
  const int64_t pairs = g->batch * g->out_height * t.across;
  const int by_panels = conv_by_panels(4 * g->channels * g->out_channels, pairs, INGOT_CONV_PAIRS, num_tasks);
  const gemm_share share = by_panels ? gemm_swap(gemm_cut(t.panels, pairs, task, num_tasks))
                                     : gemm_cut(pairs, t.panels, task, num_tasks);
  const int64_t count = share.panel_end - share.panel_begin;
  const int32_t blocks =
      share.row_end > share.row_begin ? (int32_t)((count + INGOT_CONV_PAIRS - 1) / INGOT_CONV_PAIRS) : 0;
  for (int32_t i = 0; i < blocks; i++) {
    const int64_t first = share.panel_begin + task_begin(count, i, blocks);
    const int64_t end = share.panel_begin + task_begin(count, i + 1, blocks);
    lines_read_pairs(&t, first, end - first);
    lines_multiply(&t, first, end - first, share.row_begin, share.row_end);
  }
}

#undef LINES_PIXELS
#undef LINES_SUMS

/* integer_matmul.c: products of two integer activations, for each of a batch. A task packs its panels. */
#include "quant/integer_tile.h"

/* A task's scratch: a panel, then rows. */
typedef struct {
  const integer_matmul_args *g;
  integer_tiles tiles;
  int64_t row_stride;
  int8_t *panel;
  uint8_t *rows;
  int32_t zero, other_zero;
} integer_pairs;

/* Four elements of each column of a panel, adjacent: `count` of them present, the rest zeros. */
static inline void integer_quads(const integer_matmul_args *g, const uint8_t *b, int64_t columns, int64_t count,
                                 uint8_t *to) {
  const uint32_t flip = (uint32_t)g->b_flip * 0x01010101u;
  if (count == 4 && columns == INGOT_PANEL && g->b_n_stride == 1) {
    const uint8_t *row[4] = {b, b + g->b_k_stride, b + 2 * g->b_k_stride, b + 3 * g->b_k_stride};
    uint32_t quads[INGOT_PANEL];
    for (int j = 0; j < INGOT_PANEL; j++)
      quads[j] = (row[0][j] | (uint32_t)row[1][j] << 8 | (uint32_t)row[2][j] << 16 | (uint32_t)row[3][j] << 24) ^ flip;
    memcpy(to, quads, sizeof quads);
    return;
  }
  memset(to, 0, 4 * INGOT_PANEL);
  for (int64_t j = 0; j < columns; j++) {
    const uint8_t *from = b + j * g->b_n_stride;
    if (count == 4 && g->b_k_stride == 1) {
      uint32_t four;
      memcpy(&four, from, 4);
      four ^= flip;
      memcpy(to + 4 * j, &four, 4);
    } else {
      for (int64_t i = 0; i < count; i++) to[4 * j + i] = from[i * g->b_k_stride] ^ (uint8_t)g->b_flip;
    }
  }
}

/* Pack the panel of `columns` columns at b, as i8, and compute the terms that are added to the sums of each. */
static inline void integer_pack(const integer_pairs *t, const uint8_t *b, int64_t columns, int32_t *added) {
  const integer_matmul_args *g = t->g;
  memset(added, 0, INGOT_PANEL * sizeof *added);
  for (int64_t k = 0; k < g->k; k += 4) {
    uint8_t *to = (uint8_t *)t->panel + k * INGOT_PANEL;
    integer_quads(g, b + k * g->b_k_stride, columns, g->k - k < 4 ? g->k - k : 4, to);
  }
  if (!t->zero) return;
  uint8_t ones[256];
  memset(ones, 1, sizeof ones);
  for (int64_t k = 0; k < g->k; k += (int64_t)sizeof ones) {
    const int64_t quads = (g->k - k + 3) / 4, most = sizeof ones / 4;
    const integer_product product = {ones, 0, t->panel + k * INGOT_PANEL, quads < most ? quads : most, columns, added,
                                     added};
    t->tiles.few(1, &product);
  }
  for (int64_t j = 0; j < columns; j++) added[j] = -t->zero * (added[j] - (int32_t)g->k * t->other_zero);
}

/* Rows as u8, padded to a multiple of 4. */
static inline const uint8_t *integer_lines(const integer_pairs *t, const uint8_t *a, int64_t count, int64_t *stride) {
  const integer_matmul_args *g = t->g;
  *stride = g->a_stride;
  if (g->k % 4 == 0 && !g->a_flip) return a;
  *stride = t->row_stride;
  for (int64_t i = 0; i < count; i++) {
    uint8_t *row = t->rows + i * t->row_stride;
    memcpy(row, a + i * g->a_stride, (size_t)g->k);
    memset(row + g->k, 0, 4);
    for (int64_t j = 0; g->a_flip && j < g->k; j++) row[j] ^= 128;
  }
  return t->rows;
}

/* All rows of one panel of one batch item. */
static inline void integer_pair(const integer_pairs *t, const integer_store *f, const uint8_t *a, const uint8_t *b,
                                int64_t column, uint8_t *c) {
  const integer_matmul_args *g = t->g;
  const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
  int32_t added[INGOT_PANEL], zeros[INGOT_PANEL];
  integer_block block;
  integer_pack(t, b + column * g->b_n_stride, columns, added);
  for (int j = 0; j < INGOT_PANEL; j++) zeros[j] = t->other_zero;
  const integer_panel panel = {t->panel, g->k, columns, column, added, t->other_zero ? zeros : NULL};
  for (int64_t begin = 0; begin < g->m; begin += block.count) {
    block.count = g->m - begin < INGOT_CONV_PIXELS ? g->m - begin : INGOT_CONV_PIXELS;
    block.rows = integer_lines(t, a + begin * g->a_stride, block.count, &block.row_stride);
    for (int64_t i = 0; i < block.count; i++) {
      block.to[i] = (integer_place){(begin + i) * g->c_stride, 0};
      if (panel.zeros) block.row_sums[i] = integer_row_sum(block.rows + i * block.row_stride, g->k);
    }
    integer_results(t->tiles, f, &block, &panel, c);
  }
}

void K(integer_matmul)(const void *args, int32_t task, int32_t num_tasks) {
  const integer_matmul_args *g = args;
  integer_store store = {
    .scale = g->scale, .scale_step = g->scale_step, .step = 1.0f, .act_alpha = g->act_alpha, .act_beta = g->act_beta,
    .activation = g->activation, .result = g->result, .out_scale = g->out_scale, .out_zero = g->out_zero};
  integer_vectorize(&store);
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  uint8_t *scratch = (uint8_t *)(g->scratch + task * g->scratch_stride);
  const uint8_t *zero = g->a_zero, *other_zero = g->b_zero;
  const integer_pairs pairs = {
    .g = g, .tiles = INTEGER_TILES, .row_stride = (g->k + 63) / 64 * 64 + 64, .panel = (int8_t *)scratch,
    .rows = scratch + (g->k + 3) / 4 * 4 * INGOT_PANEL, .zero = (zero ? *zero : 0) ^ g->a_flip,
    .other_zero = (int8_t)((other_zero ? *other_zero : 0) ^ g->b_flip)};
  const int is_many = pairs.tiles.many && g->m >= AMX_ROWS;
  int64_t count = panels;
  for (int32_t d = 0; d < g->batch_rank; d++) count *= g->batch_shape[d];
  const int64_t end = task_begin(count, task + 1, num_tasks);
  AMX_BEGIN(is_many, (g->k + 3) / 4 % AMX_QUADS);
  for (int64_t i = task_begin(count, task, num_tasks); i < end; i++) {
    int64_t batch = i / panels, a = 0, b = 0, c = 0;
    for (int32_t d = g->batch_rank - 1; d >= 0; d--) {
      const int64_t at = batch % g->batch_shape[d];
      batch /= g->batch_shape[d];
      a += at * g->a_batch_strides[d];
      b += at * g->b_batch_strides[d];
      c += at * g->c_batch_strides[d];
    }
    integer_pair(&pairs, &store, (const uint8_t *)g->a + a, (const uint8_t *)g->b + b, i % panels * INGOT_PANEL,
                 (uint8_t *)g->c + c * integer_bytes(store.result));
  }
  AMX_END(is_many);
}

/* matmul.c: batches of c = activation(alpha * a @ b + bias) + residual where b is computed in the same run. */
#include "gemm_columns.h"

/* Where batch `index`, counted in row-major order, lies in each operand. */
typedef struct { int64_t a, b, residual, c; } matmul_offsets;

static inline matmul_offsets matmul_batch(const matmul_args *g, int64_t index) {
  matmul_offsets at = {0, 0, 0, 0};
  for (int32_t d = g->batch_rank - 1; d >= 0; d--) {
    const int64_t i = index % g->batch_shape[d];
    index /= g->batch_shape[d];
    at.a += i * g->a_batch_strides[d];
    at.b += i * g->b_batch_strides[d];
    at.residual += i * g->residual_batch_strides[d];
    at.c += i * g->c_batch_strides[d];
  }
  return at;
}

static inline int64_t matmul_batches(const matmul_args *g) {
  int64_t batches = 1;
  for (int32_t d = 0; d < g->batch_rank; d++) batches *= g->batch_shape[d];
  return batches;
}

static inline gemm_epilogue matmul_epilogue(const matmul_args *g, const float *residual) {
  return (gemm_epilogue){g->bias, NULL, NULL, residual, g->residual_stride, g->alpha, g->act_alpha, g->act_beta,
                         g->activation, g->residual_first, NULL, 0};
}

#define MATMUL_NEAR (1 << 17) /* floats of packed panels that stay in the second cache beside rows */
#define MATMUL_PANELS 8       /* at most; kernels.def knows both */
#define MATMUL_ROWS 48        /* that go by them together */

/* The panels that a part's rows go by together: c is then written in longer pieces, and a is read from near. */
static inline int64_t matmul_together(const matmul_args *g) {
  const int64_t fit = MATMUL_NEAR / INGOT_PANEL / (g->k ? g->k : 1);
  return fit < 1 ? 1 : fit < MATMUL_PANELS ? fit : MATMUL_PANELS;
}

/* Panels [begin, end) of one of the batch, for the rows of a share. */
static inline void matmul_panels(const matmul_args *g, matmul_offsets at, const gemm_share *share, int64_t begin,
                                 int64_t end, float *packed) {
  const gemm_epilogue epilogue = matmul_epilogue(g, g->residual ? g->residual + at.residual : NULL);
  const int64_t rows = share->row_end - share->row_begin, size = g->k * INGOT_PANEL;
  const int32_t chunks = end - begin > 1 ? (int32_t)((rows + MATMUL_ROWS - 1) / MATMUL_ROWS) : 1;
  /* A panel that is read only once or twice is read where it lies, if its rows are whole. */
  const int lies = g->b_n_stride == 1 && end * INGOT_PANEL <= g->n && rows <= 2 * GEMM_ROWS;
  const float *b = g->b + at.b + begin * INGOT_PANEL * g->b_n_stride;
  for (int64_t panel = begin; panel < end && !lies; panel++) {
    const int64_t left = g->n - panel * INGOT_PANEL, columns = left < INGOT_PANEL ? left : INGOT_PANEL;
    K(pack_panel)(b + (panel - begin) * INGOT_PANEL * g->b_n_stride, g->k, columns, g->b_k_stride, g->b_n_stride, 1.0f,
                  packed + (panel - begin) * size);
  }
  for (int32_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t first = share->row_begin + part_begin(rows, chunk, chunks);
    const int64_t last = share->row_begin + part_begin(rows, chunk + 1, chunks);
    for (int64_t panel = begin; panel < end; panel++) {
      const int64_t column = panel * INGOT_PANEL, left = g->n - column;
      const float *own = lies ? b + (panel - begin) * INGOT_PANEL : packed + (panel - begin) * size;
      const gemm_factors factors = {K(gemm_tile), g->k, g->a + at.a, g->a_stride, own, size};
      gemm_panel(&epilogue, first, last, column, left < INGOT_PANEL ? left : INGOT_PANEL, &factors,
                 lies ? g->b_k_stride : INGOT_PANEL, g->c + at.c + column, g->c_stride, NULL);
    }
  }
}

void K(matmul_f32)(const void *args, int32_t part, int32_t parts) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL, together = matmul_together(g);
  const gemm_share share = gemm_cut(matmul_batches(g) * panels, g->m, part, parts);
  for (int64_t unit = share.panel_begin, end; unit < share.panel_end; unit = end) {
    const int64_t last = (unit / panels + 1) * panels;
    end = unit + together;
    if (end > last) end = last;
    if (end > share.panel_end) end = share.panel_end;
    matmul_panels(g, matmul_batch(g, unit / panels), &share, unit % panels, unit % panels + end - unit,
                  g->scratch + part * g->scratch_stride);
  }
}

void K(matmul_f32_bf16)(const void *args, int32_t part, int32_t parts) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const gemm_share share = gemm_cut(matmul_batches(g) * panels, g->m, part, parts);
  float *packed = g->scratch + part * g->scratch_stride;
  for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {
    const matmul_offsets at = matmul_batch(g, unit / panels);
    const int64_t column = unit % panels * INGOT_PANEL;
    const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
    const gemm_epilogue epilogue = matmul_epilogue(g, g->residual ? g->residual + at.residual : NULL);
    const uint16_t *b = (const uint16_t *)(const void *)g->b + at.b + column * g->b_n_stride;
    K(pack_pairs)(b, g->k, columns, g->b_k_stride, g->b_n_stride, packed);
    const gemm_factors factors = {K(gemm_tile_widened), g->k, g->a + at.a, g->a_stride, packed, 0};
    gemm_panel(&epilogue, share.row_begin, share.row_end, column, columns, &factors, INGOT_PANEL,
               g->c + at.c + column, g->c_stride, NULL);
  }
}

/* One of the batch in matmul_tn_f32: its operands, and some of the rows of c, whose columns of a are in tiles for a
 * block of k. */
typedef struct {
  const float *a, *b, *residual;
  float *c;
  int64_t row_begin, row_end;
  float *scratch, *tiles;
} matmul_tn_item;

/* Where the sums of a row wait: in c itself, but for a last panel whose columns fill no vectors. */
typedef struct { float *row; int64_t stride; } matmul_tn_sums;

static inline matmul_tn_sums matmul_tn_at(const matmul_args *g, const matmul_tn_item *t, int64_t row, int64_t column) {
  if ((g->n - column) % (INGOT_PANEL / 2) == 0 || g->n - column >= INGOT_PANEL)
    return (matmul_tn_sums){t->c + row * g->c_stride + column, g->c_stride};
  return (matmul_tn_sums){t->scratch + (row - t->row_begin) * INGOT_PANEL, INGOT_PANEL};
}

/* The sums of a panel begin with the residual. */
static inline void matmul_tn_begin(const matmul_args *g, const matmul_tn_item *t, int64_t column, int64_t columns) {
  for (int64_t row = t->row_begin; row < t->row_end; row++) {
    const float *from = t->residual + row * g->residual_stride + column;
    float *to = matmul_tn_at(g, t, row, column).row;
    for (int64_t j = 0; j < columns; j += 16)
      v_store(to + j, columns - j < 16 ? v_load_n(from + j, columns - j) : v_load(from + j));
  }
}

/* k elements from `done` on of one panel. */
static inline void matmul_tn_panel(const matmul_args *g, const gemm_epilogue *e, const matmul_tn_item *t, int64_t done,
                                   int64_t k, int64_t column, float *panel) {
  const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
  const int64_t rows = t->row_end - t->row_begin;
  const int32_t tiles = gemm_column_tiles(rows);
  const int light = columns % (INGOT_PANEL / 2) == 0 && epilogue_is_light(e), completes = done + k >= g->k;
  if (g->continues && done == 0) matmul_tn_begin(g, t, column, columns);
  K(pack_panel)(t->b + done * g->b_k_stride + column * g->b_n_stride, k, columns, g->b_k_stride, g->b_n_stride, 1.0f,
                panel);
  for (int32_t tile = 0; tile < tiles; tile++) {
    const int64_t row = t->row_begin + part_begin(rows, tile, tiles);
    const int64_t count = t->row_begin + part_begin(rows, tile + 1, tiles) - row;
    float *to = t->c + row * g->c_stride + column;
    const matmul_tn_sums sums = matmul_tn_at(g, t, row, column);
    const gemm_finish finish = epilogue_finish(e, row, column, to, g->c_stride);
    const gemm_product product = {
        .k = k, .a = t->tiles + tile * k * GEMM_ROWS, .a_stride = GEMM_ROWS, .b = panel, .b_stride = INGOT_PANEL,
        .sums = sums.row, .sums_stride = sums.stride, .finish = light && completes ? &finish : NULL,
        .more = done > 0 || g->continues, .halved = columns <= INGOT_PANEL / 2};
    K(gemm_tile_columns)(count, 1, &product);
    if (completes && !light) epilogue_apply(e, row, column, count, columns, sums.row, sums.stride, to, g->c_stride);
  }
}

/* A block of k goes through all that a part has of one of the batch before the next, some rows of c after the other. */
void K(matmul_tn_f32)(const void *args, int32_t part, int32_t parts) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const gemm_share share = gemm_cut(matmul_batches(g) * panels, g->m, part, parts);
  const int64_t rows = share.row_end - share.row_begin;
  const int32_t pieces = gemm_column_pieces(rows);
  float *panel = g->scratch + part * g->scratch_stride, *sums = panel + INGOT_K_BLOCK * INGOT_PANEL;
  float *tiles = sums + g->m * INGOT_PANEL;
  for (int64_t unit = share.panel_begin, end; unit < share.panel_end; unit = end) {
    const matmul_offsets at = matmul_batch(g, unit / panels);
    end = (unit / panels + 1) * panels < share.panel_end ? (unit / panels + 1) * panels : share.panel_end;
    for (int64_t done = 0; done == 0 || done < g->k; done += INGOT_K_BLOCK) {
      const int64_t k = g->k - done < INGOT_K_BLOCK ? g->k - done : INGOT_K_BLOCK;
      for (int32_t piece = 0; piece < pieces; piece++) {
        const int64_t begin = part_begin(rows, piece, pieces), stop = part_begin(rows, piece + 1, pieces);
        const matmul_tn_item item = {
            g->a + at.a, g->b + at.b, g->residual ? g->residual + at.residual : NULL, g->c + at.c,
            share.row_begin + begin, share.row_begin + stop, sums + begin * INGOT_PANEL, tiles};
        const gemm_epilogue epilogue = matmul_epilogue(g, g->continues ? NULL : item.residual);
        gemm_pack_columns(item.a + done * g->a_stride + item.row_begin, k, stop - begin, g->a_stride, tiles);
        for (int64_t i = unit; i < end; i++)
          matmul_tn_panel(g, &epilogue, &item, done, k, i % panels * INGOT_PANEL, panel);
      }
    }
  }
}

#undef MATMUL_NEAR
#undef MATMUL_PANELS
#undef MATMUL_ROWS

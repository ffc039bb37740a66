/* gemm.c: c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias) + residual, b packed in panels, 5 rows and more. */
#include "gemm.h"

#define GEMM_NEAR (1 << 17) /* bytes that stay in a cache of one core beside others */
#define GEMM_CHUNK 48       /* rows at least that are taken together */
#define GEMM_CHUNK_BYTES (1 << 19)
#define GEMM_CHUNK_ROWS 256

static inline void gemm_packed(const gemm_args *g, gemm_factors f, int32_t part, int32_t parts) {
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const gemm_share share = gemm_cut_fixed((g->n + INGOT_PANEL - 1) / INGOT_PANEL, g->m, part, parts);
  const int64_t rows = share.row_end - share.row_begin, panels = share.panel_end - share.panel_begin;
  /* Beside a small matrix, rows go by in chunks that stay near, too, and are read and written in one piece. */
  const int64_t bytes = rows * (f.k + panels * INGOT_PANEL) * 4, most = rows / GEMM_CHUNK;
  int64_t chunks = panels > 1 && panels * f.panel_size * 4 <= GEMM_NEAR ? (bytes + GEMM_NEAR - 1) / GEMM_NEAR : 1;
  if (chunks > most) chunks = most ? most : 1;
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t begin = share.row_begin + part_begin(rows, (int32_t)chunk, (int32_t)chunks);
    const int64_t end = share.row_begin + part_begin(rows, (int32_t)chunk + 1, (int32_t)chunks);
    gemm_factors of = f;
    of.b += share.panel_begin * f.panel_size;
    for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++, of.b += f.panel_size) {
      const int64_t column = panel * INGOT_PANEL;
      const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
      gemm_panel(&epilogue, begin, end, column, columns, &of, INGOT_PANEL, g->c ? g->c + column : NULL, g->c_stride,
                 chunks == 1 && panel + 1 < share.panel_end ? of.b + f.panel_size : NULL);
    }
  }
}

void K(gemm_f32_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_packed(args, gemm_f32_factors(args), part, parts);
}

void K(gemm_f32_bf16_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_packed(args, gemm_f32_bf16_factors(args), part, parts);
}

void K(gemm_f32_f16_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_packed(args, gemm_f32_f16_factors(args), part, parts);
}

/* By sums that are apart: rows go by in chunks that stay near while panels pass. */
#if defined(INGOT_LIBRARY)
static inline void gemm_apart_rows(const gemm_epilogue *e, int64_t begin, int64_t end, int64_t column, int64_t columns,
                                   apart_product product, float *c, int64_t c_stride) {
  const int light = epilogue_is_light(e);
  const int32_t blocks = (int32_t)((end - begin + APART_ROWS - 1) / APART_ROWS);
  const float *a = product.a;
  _Alignas(64) float sums[APART_ROWS * INGOT_PANEL];
  for (int32_t block = 0; block < blocks; block++) {
    const int64_t row = begin + part_begin(end - begin, block, blocks);
    const int64_t rows = begin + part_begin(end - begin, block + 1, blocks) - row;
    float *to = c ? c + row * c_stride : NULL;
    product.a = a + row * product.a_stride;
    K(apart_sums)(rows, &product, sums);
    if (light) {
      const gemm_finish finish = epilogue_finish(e, row, column, to, c_stride);
      K(apart_finish)(&finish, rows, columns, sums);
    } else {
      epilogue_apply(e, row, column, rows, columns, sums, INGOT_PANEL, to, c_stride);
    }
  }
}

static inline void gemm_apart(const gemm_args *g, int32_t part, int32_t parts) {
  static const int64_t none[1] = {0};
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const gemm_factors f = gemm_bf16_factors(g);
  const gemm_share share = gemm_cut_fixed((g->n + INGOT_PANEL - 1) / INGOT_PANEL, g->m, part, parts);
  const int64_t rows = share.row_end - share.row_begin, bytes = rows * f.k * 4;
  int64_t chunks = bytes / GEMM_CHUNK_BYTES + 1;
  if (chunks > rows / GEMM_CHUNK_ROWS) chunks = rows < GEMM_CHUNK_ROWS ? 1 : rows / GEMM_CHUNK_ROWS;
  if (!rows) return;
  K(apart_begin)(rows, f.k);
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t begin = share.row_begin + part_begin(rows, (int32_t)chunk, (int32_t)chunks);
    const int64_t end = share.row_begin + part_begin(rows, (int32_t)chunk + 1, (int32_t)chunks);
    for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++) {
      const int64_t column = panel * INGOT_PANEL;
      const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
      const apart_product product = {1, f.k, none, f.a, f.a_stride, f.b + panel * f.panel_size,
                                     columns <= INGOT_PANEL / 2};
      gemm_apart_rows(&epilogue, begin, end, column, columns, product, g->c ? g->c + column : NULL, g->c_stride);
    }
  }
  K(apart_end)();
}

#define GEMM_BF16(g, part, parts) \
  ((g)->apart ? gemm_apart(g, part, parts) : gemm_packed(g, gemm_bf16_factors(g), part, parts))
#else
#define GEMM_BF16(g, part, parts) gemm_packed(g, gemm_bf16_factors(g), part, parts)
#endif

void K(gemm_bf16_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args *g = args;
  GEMM_BF16(g, part, parts);
}

#undef GEMM_NEAR
#undef GEMM_CHUNK
#undef GEMM_CHUNK_BYTES
#undef GEMM_CHUNK_ROWS
#undef GEMM_BF16

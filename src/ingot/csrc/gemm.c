/* gemm.c: c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias) + residual, b packed in panels, 5 rows and more. */
#include "gemm.h"

#define GEMM_NEAR (1 << 17) /* bytes that stay in a cache of one core beside others */
#define GEMM_CHUNK 48       /* rows at least that are taken together */

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

void K(gemm_bf16_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_packed(args, gemm_bf16_factors(args), part, parts);
}

#undef GEMM_NEAR
#undef GEMM_CHUNK

/* gemm.c: c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias) + residual, b packed in panels, 5 rows and more. */
#include "gemm.h"

static inline void gemm_packed(const gemm_args *g, gemm_factors f, int32_t part, int32_t parts) {
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const gemm_share share = gemm_cut_fixed((g->n + INGOT_PANEL - 1) / INGOT_PANEL, g->m, part, parts);
  f.b += share.panel_begin * f.panel_size;
  for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++, f.b += f.panel_size) {
    const int64_t column = panel * INGOT_PANEL;
    const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
    gemm_panel(&epilogue, share.row_begin, share.row_end, column, columns, &f, INGOT_PANEL,
               g->c ? g->c + column : NULL, g->c_stride,
               panel + 1 < share.panel_end ? f.b + f.panel_size : NULL);
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

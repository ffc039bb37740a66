/* gemm.c: c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias) + residual, b packed in panels, 5 rows and more. */
#include "gemm.h"

void K(gemm_f32_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args *g = args;
  const gemm_epilogue epilogue = {g->bias, NULL, g->residual, g->residual_stride, g->alpha,
                                  g->act_alpha, g->act_beta, g->activation, g->residual_first};
  const gemm_share share = gemm_cut_fixed((g->n + INGOT_PANEL - 1) / INGOT_PANEL, g->m, part, parts);
  for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++) {
    const int64_t column = panel * INGOT_PANEL;
    const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
    gemm_panel(&epilogue, share.row_begin, share.row_end, column, columns, g->k, g->a, g->a_stride,
               g->b + column * g->k, INGOT_PANEL, g->c + column, g->c_stride,
               panel + 1 < share.panel_end ? g->b + (column + INGOT_PANEL) * g->k : NULL);
  }
}

/* gemv.c: gemm of 1 to 4 rows. The weights are streamed once, several panels side by side; the bits are gemm's. */
#include "gemm.h"

#define GEMV_PANELS 4 /* the widest tile of any instruction set */

void K(gemv_f32_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args *g = args;
  const gemm_epilogue epilogue = {g->bias, NULL, g->residual, g->residual_stride, g->alpha,
                                  g->act_alpha, g->act_beta, g->activation, g->residual_first};
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const int64_t end = part_begin(panels, part + 1, parts);
  float sums[4 * GEMV_PANELS * INGOT_PANEL];
  if (g->m == 0) return;
  for (int64_t panel = part_begin(panels, part, parts); panel < end; panel += GEMV_PANELS) {
    const int64_t column = panel * INGOT_PANEL;
    const int64_t count = end - panel < GEMV_PANELS ? end - panel : GEMV_PANELS;
    const int64_t columns = g->n - column < count * INGOT_PANEL ? g->n - column : count * INGOT_PANEL;
    const gemm_product product = {
      .k = g->k, .a = g->a, .a_stride = g->a_stride, .b = g->b + column * g->k, .b_stride = INGOT_PANEL,
      .panel_stride = INGOT_PANEL * g->k, .sums = sums, .sums_stride = GEMV_PANELS * INGOT_PANEL,
      .halved = count * INGOT_PANEL - columns >= INGOT_PANEL / 2};
    K(gemm_tile)(g->m, count, &product);
    epilogue_apply(&epilogue, 0, column, g->m, columns, sums, GEMV_PANELS * INGOT_PANEL, g->c + column, g->c_stride);
  }
}

#undef GEMV_PANELS

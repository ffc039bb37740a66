/* gemv.c: gemm of 1 to 4 rows. The weights are streamed once, several panels at a time; the bits are gemm's. */
#include "gemm/gemm.h"

#define GEMV_PANELS 4 /* the widest tile of any instruction set */

static inline void gemv_packed(const gemm_args *g, gemm_factors f, int32_t task, int32_t num_tasks) {
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  int64_t begin = task_begin(panels, task % num_tasks, num_tasks);
  int64_t end = task_begin(panels, task % num_tasks + 1, num_tasks);
  float sums[4 * GEMV_PANELS * INGOT_PANEL];
  if (g->m == 0) return;
  chunk_cut(&begin, &end, task / num_tasks, g->chunks);
  for (int64_t panel = begin; panel < end; panel += GEMV_PANELS) {
    const int64_t column = panel * INGOT_PANEL;
    const int64_t count = end - panel < GEMV_PANELS ? end - panel : GEMV_PANELS;
    const int64_t columns = g->n - column < count * INGOT_PANEL ? g->n - column : count * INGOT_PANEL;
    const gemm_product product = {
      .k = f.k, .a = f.a, .a_stride = f.a_stride, .b = f.b + panel * f.panel_size, .b_stride = INGOT_PANEL,
      .panel_stride = f.panel_size, .sums = sums, .sums_stride = GEMV_PANELS * INGOT_PANEL,
      .halved = count * INGOT_PANEL - columns >= INGOT_PANEL / 2};
    f.tile(g->m, count, &product);
    epilogue_apply(&epilogue, 0, column, g->m, columns, sums, GEMV_PANELS * INGOT_PANEL,
                   g->c ? g->c + column : NULL, g->c_stride);
  }
}

void K(gemv_f32_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemv_packed(args, gemm_f32_factors(args), task, num_tasks);
}

void K(gemv_f32_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemv_packed(args, gemm_f32_bf16_factors(args), task, num_tasks);
}

void K(gemv_f32_f16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemv_packed(args, gemm_f32_f16_factors(args), task, num_tasks);
}

void K(gemv_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemv_packed(args, gemm_bf16_factors(args), task, num_tasks);
}

#undef GEMV_PANELS

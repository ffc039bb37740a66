/* gemm_gated.c: gemm whose columns are two halves, one of which gates the other, for any number of rows. A panel holds
 * 16 columns of each half, so that the sums of one tile have both factors of a result. */
#include "gemm/gemm.h"

#define GATED_ROWS 4   /* most rows for which several panels are read at once */
#define GATED_PANELS 4 /* the widest tile of any instruction set */

static inline void gemm_gated(const gemm_args *g, const gemm_factors *f, int32_t task, int32_t num_tasks) {
  const gemm_share share = gemm_args_share(g, g->n / 16, task, num_tasks);
  const int64_t all_rows = share.row_end - share.row_begin;
  const int64_t most = all_rows <= GATED_ROWS ? GATED_PANELS : 1;
  float sums[(GEMM_ROWS > GATED_ROWS * GATED_PANELS ? GEMM_ROWS : GATED_ROWS * GATED_PANELS) * INGOT_PANEL];
  for (int64_t panel = share.panel_begin; panel < share.panel_end; panel += most) {
    const int64_t panels = share.panel_end - panel < most ? share.panel_end - panel : most;
    const float *b = f->b + panel * f->panel_size;
    const float *next = most == 1 && panel + 1 < share.panel_end ? b + f->panel_size : NULL;
    const int64_t blocks = gemm_panel_blocks(all_rows, f->a_stride, next);
    const int64_t prefetch_step = gemm_prefetch_step(f, blocks, next);
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = share.row_begin + task_begin(all_rows, (int32_t)block, (int32_t)blocks);
      const int64_t rows = share.row_begin + task_begin(all_rows, (int32_t)block + 1, (int32_t)blocks) - row;
      const gemm_product product = {
        .k = f->k, .a = f->a + row * f->a_stride, .a_stride = f->a_stride, .b = b, .b_stride = INGOT_PANEL,
        .panel_stride = f->panel_size, .sums = sums, .sums_stride = most * INGOT_PANEL, .prefetch_step = prefetch_step,
        .prefetch = prefetch_step ? (const char *)next + block * f->k * prefetch_step : NULL};
      float *c = g->c ? g->c + row * g->c_stride + panel * 16 : NULL;
      uint16_t *rounded = g->rounded ? g->rounded + row * g->rounded_stride + panel * 16 : NULL;
      f->tile(rows, panels, &product);
      gated_columns(g, panel * 16, rows, panels, sums, most * INGOT_PANEL, c, rounded);
    }
  }
}

void K(gemm_f32_gated)(const void *args, int32_t task, int32_t num_tasks) {
  const gemm_factors factors = gemm_f32_factors(args);
  gemm_gated(args, &factors, task, num_tasks);
}

void K(gemm_f32_bf16_gated)(const void *args, int32_t task, int32_t num_tasks) {
  const gemm_factors factors = gemm_f32_bf16_factors(args);
  gemm_gated(args, &factors, task, num_tasks);
}

void K(gemm_f32_f16_gated)(const void *args, int32_t task, int32_t num_tasks) {
  const gemm_factors factors = gemm_f32_f16_factors(args);
  gemm_gated(args, &factors, task, num_tasks);
}

void K(gemm_bf16_gated)(const void *args, int32_t task, int32_t num_tasks) {
  const gemm_factors factors = gemm_bf16_factors(args);
  gemm_gated(args, &factors, task, num_tasks);
}

#undef GATED_ROWS
#undef GATED_PANELS

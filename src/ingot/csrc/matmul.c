/* matmul.c: batches of c = activation(alpha * a @ b + bias) + residual where b is computed in the same run. */
#include "gemm.h"

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

void K(matmul_f32)(const void *args, int32_t part, int32_t parts) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  int64_t batches = 1;
  for (int32_t d = 0; d < g->batch_rank; d++) batches *= g->batch_shape[d];
  const gemm_share share = gemm_cut(batches * panels, g->m, part, parts);
  for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {
    const matmul_offsets at = matmul_batch(g, unit / panels);
    const int64_t column = unit % panels * INGOT_PANEL;
    const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
    const gemm_epilogue epilogue = {g->bias, NULL, NULL, g->residual ? g->residual + at.residual : NULL,
                                    g->residual_stride, g->alpha, g->act_alpha, g->act_beta, g->activation,
                                    g->residual_first, NULL, 0};
    const float *b = g->b + at.b + column * g->b_n_stride;
    int64_t b_stride = g->b_k_stride;
    /* A panel that is read only once or twice is read where it lies, if its rows are whole. */
    if (g->b_n_stride != 1 || columns < INGOT_PANEL || share.row_end - share.row_begin > 2 * GEMM_ROWS) {
      float *packed = g->scratch + part * g->scratch_stride;
      K(pack_panel)(b, g->k, columns, g->b_k_stride, g->b_n_stride, 1.0f, packed);
      b = packed;
      b_stride = INGOT_PANEL;
    }
    const gemm_factors factors = {K(gemm_tile), g->k, g->a + at.a, g->a_stride, b, g->k * INGOT_PANEL};
    gemm_panel(&epilogue, share.row_begin, share.row_end, column, columns, &factors, b_stride, g->c + at.c + column,
               g->c_stride, NULL);
  }
}

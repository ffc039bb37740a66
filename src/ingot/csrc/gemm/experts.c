/* experts.c: products of rows with the experts that were chosen for them. Rows are grouped by expert, so that each
 * chosen matrix is read once and other matrices are not read. The bits are gemm's, or those of gemm_int8 and so on for
 * quantized experts. */
#include <string.h>

#include "quant/quant_panel.h"
#include "gemm/gemm.h"

#define EXPERT_FEW 4    /* most rows for which several panels are read at once */
#define EXPERT_PANELS 4 /* the widest tile of any instruction set */

/* Panels [begin, end) of one expert's product with `rows` rows; row i is pair members[i] of out. */
static inline void expert_rows(const expert_args *e, const gemm_factors *f, int64_t begin, int64_t end, int64_t rows,
                               const int64_t *members) {
  const int64_t most = rows <= EXPERT_FEW ? EXPERT_PANELS : 1;
  float sums[(GEMM_ROWS > EXPERT_FEW * EXPERT_PANELS ? GEMM_ROWS : EXPERT_FEW * EXPERT_PANELS) * INGOT_PANEL];
  for (int64_t panel = begin; panel < end; panel += most) {
    const int64_t panels = end - panel < most ? end - panel : most, column = panel * INGOT_PANEL;
    const int64_t columns = e->n - column < panels * INGOT_PANEL ? e->n - column : panels * INGOT_PANEL;
    const float *b = f->b + panel * f->panel_size, *next = most == 1 && panel + 1 < end ? b + f->panel_size : NULL;
    const int64_t blocks = gemm_panel_blocks(rows, f->a_stride, next);
    const int64_t prefetch_step = gemm_prefetch_step(f, blocks, next);
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = task_begin(rows, (int32_t)block, (int32_t)blocks);
      const int64_t count = task_begin(rows, (int32_t)block + 1, (int32_t)blocks) - row;
      const gemm_product product = {
        .k = f->k, .a = f->a + row * f->a_stride, .a_stride = f->a_stride, .b = b, .b_stride = INGOT_PANEL,
        .panel_stride = f->panel_size, .sums = sums, .sums_stride = most * INGOT_PANEL, .prefetch_step = prefetch_step,
        .prefetch = prefetch_step ? (const char *)next + block * f->k * prefetch_step : NULL};
      f->tile(count, panels, &product);
      for (int64_t i = 0; i < count; i++)
        memcpy(e->out + members[row + i] * e->n + column, sums + i * most * INGOT_PANEL,
               (size_t)columns * sizeof(float));
    }
  }
}

/* The address of x for pair i, a row and one of its slots. */
static inline const float *expert_x(const expert_args *e, int64_t i) {
  return e->x + i / e->slots * e->x_strides[0] + i % e->slots * e->x_strides[1];
}

/* Report invalid expert indices; their results are zeros. */
static inline void expert_faults(const expert_args *e, int64_t begin, int64_t end) {
  const int64_t first = begin * INGOT_PANEL, last = end * INGOT_PANEL < e->n ? end * INGOT_PANEL : e->n;
  for (int64_t i = 0; i < e->rows * e->slots; i++) {
    if (e->chosen[i] >= 0 && e->chosen[i] < e->count) continue;
    report_fault(e->fault, 2, e->step, e->chosen[i], e->count);
    memset(e->out + i * e->n + first, 0, (size_t)(last - first) * sizeof(float));
  }
}

/* f: the tile for the experts, the elements of a row, and the size of panels. */
static inline void expert_matmul(const expert_args *e, gemm_factors f, int32_t task, int32_t num_tasks) {
  const int32_t own = task % num_tasks;
  const int64_t panels = (e->n + INGOT_PANEL - 1) / INGOT_PANEL, pairs = e->rows * e->slots;
  const int64_t begin = task_begin(panels, own, num_tasks), end = task_begin(panels, own + 1, num_tasks);
  int64_t first = 0, last = e->count;
  float *gathered = e->scratch + own * e->scratch_stride;
  int64_t members[INGOT_EXPERT_ROWS];
  if (begin == end) return;
  expert_faults(e, begin, end);
  chunk_cut(&first, &last, task / num_tasks, e->chunks);
  for (int64_t expert = first; expert < last; expert++) {
    f.b = (const float *)e->experts + expert * panels * f.panel_size;
    int64_t rows = 0;
    for (int64_t i = 0; i < pairs; i++) {
      if (e->chosen[i] == expert) members[rows++] = i;
      if (rows == 0 || (rows < INGOT_EXPERT_ROWS && i + 1 < pairs)) continue;
      f.a = rows == 1 ? expert_x(e, members[0]) : gathered;
      for (int64_t j = 0; f.a == gathered && j < rows; j++)
        memcpy(gathered + j * f.a_stride, expert_x(e, members[j]), (size_t)f.k * sizeof(float));
      expert_rows(e, &f, begin, end, rows, members);
      rows = 0;
    }
  }
}

void K(expert_matmul_f32_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const expert_args *e = args;
  const gemm_factors f = {K(gemm_tile), e->k, NULL, e->k + INGOT_EXPERT_PAD, NULL, e->k * INGOT_PANEL};
  expert_matmul(e, f, task, num_tasks);
}

void K(expert_matmul_f32_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const expert_args *e = args;
  const int64_t panel_size = (e->k + 1) / 2 * INGOT_PANEL;
  const gemm_factors f = {K(gemm_tile_widened), e->k, NULL, e->k + INGOT_EXPERT_PAD, NULL, panel_size};
  expert_matmul(e, f, task, num_tasks);
}

void K(expert_matmul_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const expert_args *e = args;
  const int64_t pairs = e->k / 2;
  const gemm_factors f = {K(gemm_tile_dots), pairs, NULL, pairs + INGOT_EXPERT_PAD, NULL, pairs * INGOT_PANEL};
  expert_matmul(e, f, task, num_tasks);
}

void K(expert_matmul_f32_f16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const expert_args *e = args;
  const int64_t panel_size = (e->k + 1) / 2 * INGOT_PANEL;
  const gemm_factors f = {K(gemm_tile_halves), e->k, NULL, e->k + INGOT_EXPERT_PAD, NULL, panel_size};
  expert_matmul(e, f, task, num_tasks);
}

/* Panels [begin, end) of one expert's product with quantized rows `stride` bytes apart; row i is pair members[i] of
 * out. */
static inline void expert_quant(const expert_args *e, quant_way way, quant_sizes sizes, int64_t limbs,
                                const int8_t *a, int64_t stride, const uint8_t *experts, int64_t begin, int64_t end,
                                int64_t rows, const int64_t *members) {
  const int64_t tile_rows = way.rows / limbs, tiles = (rows + tile_rows - 1) / tile_rows;
  const int64_t panel_bytes = quant_sized(sizes, quant_row_of(e->k).blocks);
  const quant_share all = {rows, quant_grain(way), tiles, 0, tiles, limbs};
  _Alignas(64) float sums[INGOT_QUANT_ROWS * INGOT_PANEL];
  AMX_BEGIN(way.many != NULL, QUANT_LEFT);
  for (int64_t panel = begin; panel < end; panel++) {
    const int64_t column = panel * INGOT_PANEL;
    const int64_t columns = e->n - column < INGOT_PANEL ? e->n - column : INGOT_PANEL;
    quant_panel(e->k, stride, way, sizes, a, &all, experts + panel * panel_bytes, sums);
    if (limbs > 1) quant_join(rows, sums);
    for (int64_t i = 0; i < rows; i++)
      memcpy(e->out + members[i] * e->n + column, sums + i * INGOT_PANEL, (size_t)columns * sizeof(float));
  }
  AMX_END(way.many != NULL);
}

/* expert_matmul with quantized experts and quantized rows; x_strides are in bytes. */
static inline void expert_matmul_quant(const expert_args *e, quant_way way, quant_sizes sizes, int64_t limbs,
                                       int32_t task, int32_t num_tasks) {
  const int32_t own = task % num_tasks;
  const int64_t panels = (e->n + INGOT_PANEL - 1) / INGOT_PANEL, pairs = e->rows * e->slots;
  const int64_t begin = task_begin(panels, own, num_tasks), end = task_begin(panels, own + 1, num_tasks);
  int64_t first = 0, last = e->count;
  const int64_t row_bytes = (quant_row_of(e->k).bytes + 63) / 64 * 64 * limbs, most = INGOT_QUANT_ROWS / limbs;
  const int64_t expert_bytes = panels * quant_sized(sizes, quant_row_of(e->k).blocks);
  int8_t *gathered = (int8_t *)(e->scratch + own * e->scratch_stride);
  int64_t members[INGOT_QUANT_ROWS];
  if (begin == end) return;
  expert_faults(e, begin, end);
  chunk_cut(&first, &last, task / num_tasks, e->chunks);
  for (int64_t expert = first; expert < last; expert++) {
    int64_t rows = 0;
    for (int64_t i = 0; i < pairs; i++) {
      if (e->chosen[i] == expert) {
        const int8_t *x = (const int8_t *)e->x + i / e->slots * e->x_strides[0] + i % e->slots * e->x_strides[1];
        memcpy(gathered + rows * row_bytes, x, (size_t)row_bytes);
        members[rows++] = i;
      }
      if (rows == 0 || (rows < most && i + 1 < pairs)) continue;
      expert_quant(e, quant_way_for(way, sizes.span, rows * limbs), sizes, limbs, gathered, row_bytes,
                   (const uint8_t *)e->experts + expert * expert_bytes, begin, end, rows, members);
      rows = 0;
    }
  }
}

#define EXPERT_QUANT(kernel, limbs, sizes, ...)                                                                        \
  void K(kernel##_packed)(const void *args, int32_t task, int32_t num_tasks) {                                         \
    const quant_way way = QUANT_WAY(__VA_ARGS__);                                                                      \
    expert_matmul_quant(args, way, sizes, limbs, task, num_tasks);                                                     \
  }

#define QUANT_FORMAT(name, ...)                                                                                        \
  EXPERT_QUANT(expert_matmul_##name, 1, quant_sizes_of(__VA_ARGS__), quant_tile_##name, NULL, NULL)                    \
  EXPERT_QUANT(expert_matmul_i24_##name, QUANT_LIMBS, quant_sizes_of(__VA_ARGS__), quant_tile_##name, NULL, NULL)
#define BLOCK_TYPE(name, ...)                                                                                          \
  EXPERT_QUANT(expert_matmul_##name, 1, blocks_sizes(blocks_##name()), blocks_tile_##name, NULL, NULL)                 \
  EXPERT_QUANT(expert_matmul_i24_##name, QUANT_LIMBS, blocks_sizes(blocks_##name()), blocks_tile_##name, NULL, NULL)
#define OPENED_TYPE(name, ...)                                                                                         \
  EXPERT_QUANT(expert_matmul_##name, 1, blocks_sizes(blocks_##name()), blocks_tile_##name,                             \
               QUANT_BEST(blocks_open_##name), QUANT_BEST(blocks_opened_##name))                                       \
  EXPERT_QUANT(expert_matmul_i24_##name, QUANT_LIMBS, blocks_sizes(blocks_##name()), blocks_tile_##name,               \
               QUANT_BEST(blocks_open_##name), QUANT_BEST(blocks_opened_##name))
#include "weight_formats.def"

#undef EXPERT_FEW
#undef EXPERT_PANELS
#undef EXPERT_QUANT

/* gemm_quant.c: gemm of rows that were quantized to int8 with panels of quantized weights, for any number of rows. A
 * slice of a panel, as long as a group of the rows, is multiplied with all rows at hand before the next slice is read;
 * sums are held on the stack.
 * gemm_int8, gemm_int4: rows of a are those of round_rows_i8, a_stride is in bytes, and b has the panels of pack_int8
 * or pack_int4, with _128, _zp and so on those of the packing kernels of these names. Products of quantized values are
 * summed exactly in blocks of INGOT_QUANT_BLOCK, with _128 of INGOT_QUANT_WIDE; in groups of INGOT_ROUND_GROUP these
 * sums are converted to floats, multiplied with their scales and added by one fused multiply-add each, and so are the
 * results with the row's scales, both in order.
 * gemm_i24_int8 and so on: rows of a are those of round_rows_i24, three rows of int8; their results, each computed as
 * above, are added: the first to the sum of the others.
 * gemm_q4_k and so on: b has the panels of pack_q4_k. In a group of INGOT_ROUND_GROUP elements, which is a block,
 * products of values minus their offset times their scales are summed exactly, and so are mins times the row's values;
 * the first sum, as a float, times d, minus the second times m by one fused multiply-add, is the group's result, used
 * as above. Blocks of 32 elements are computed as in gemm_int4; where they have an m, the sum of the row's values times
 * m is added after each.
 * gemm_i24_q4_k and so on: the same for each row of round_rows_i24, added as in gemm_i24_int8. */
#include "quant/blocks.h"
#include "quant/quant_panel.h"

#define QUANT_NEAR (384 << 10) /* bytes of rows that stay in a core's cache together with panels and one more chunk */

/* Prefetch the lines of c that a panel will write. */
static inline void quant_expect_c(const float *c, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++, c += stride) {
    for (int64_t j = 0; j < columns; j += 16) __builtin_prefetch(c + j, 1, 2);
  }
}

/* Chunks of rows that stay in the cache are multiplied with one panel after the other, before the next chunk. limbs: 1,
 * or QUANT_LIMBS of each row, which are multiplied one by one. */
static inline void gemm_quant(const gemm_args *g, quant_way any, quant_sizes sizes, const int limbs, const int gated,
                              int32_t task, int32_t num_tasks) {
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const int64_t width = gated ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of c in a panel */
  const gemm_share share = gemm_args_share(g, (g->n + width - 1) / width, task, num_tasks);
  const int64_t all_rows = share.row_end - share.row_begin;
  const quant_way way = quant_way_for(any, sizes.span, all_rows * limbs);
  const int64_t tile_rows = way.rows / limbs;
  const int64_t tiles = (all_rows + tile_rows - 1) / tile_rows, most = INGOT_QUANT_ROWS / way.rows;
  const int64_t chunks = (tiles + most - 1) / most;
  const quant_row row = quant_row_of(g->k);
  const int64_t panel_bytes = quant_sized(sizes, row.blocks);
  _Alignas(64) float sums[INGOT_QUANT_ROWS * INGOT_PANEL];
  const int64_t near = 1 + QUANT_NEAR / (INGOT_QUANT_ROWS * (row.bytes + 1));
  AMX_BEGIN(way.many != NULL, QUANT_LEFT);
  for (int64_t first = 0; first < chunks; first += near) {
    const int64_t last = first + near < chunks ? first + near : chunks;
    for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++) {
      const int64_t column = panel * width, columns = g->n - column < width ? g->n - column : width;
      for (int64_t chunk = first; chunk < last; chunk++) {
        const quant_share part_of = {all_rows, quant_grain(way), tiles,
                                     task_begin(tiles, (int32_t)chunk, (int32_t)chunks),
                                     task_begin(tiles, (int32_t)chunk + 1, (int32_t)chunks), limbs};
        const int64_t begin = share.row_begin + quant_row_at(&part_of, part_of.begin) / limbs;
        const int64_t rows = share.row_begin + quant_row_at(&part_of, part_of.end) / limbs - begin;
        float *c = g->c + begin * g->c_stride + column;
        quant_expect_c(c, g->c_stride, rows, columns);
        quant_panel(g->k, g->a_stride, way, sizes, (const int8_t *)g->a + begin * g->a_stride, &part_of,
                    (const uint8_t *)g->b + panel * panel_bytes, sums);
        if (limbs > 1) quant_join(rows, sums);
        if (gated)
          gated_columns(g, column, rows, 1, sums, INGOT_PANEL, c, NULL);
        else
          epilogue_apply(&epilogue, begin, column, rows, columns, sums, INGOT_PANEL, c, g->c_stride);
      }
    }
  }
  AMX_END(way.many != NULL);
}

#define GEMM_QUANT(kernel, limbs, sizes, ...)                                                                          \
  void K(kernel##_packed)(const void *args, int32_t task, int32_t num_tasks) {                                         \
    gemm_quant(args, (quant_way)QUANT_WAY(__VA_ARGS__), sizes, limbs, 0, task, num_tasks);                             \
  }                                                                                                                    \
  void K(kernel##_gated)(const void *args, int32_t task, int32_t num_tasks) {                                          \
    gemm_quant(args, (quant_way)QUANT_WAY(__VA_ARGS__), sizes, limbs, 1, task, num_tasks);                             \
  }

#define QUANT_FORMAT(name, ...)                                                                                        \
  GEMM_QUANT(gemm_##name, 1, quant_sizes_of(__VA_ARGS__), quant_tile_##name, NULL, NULL)                               \
  GEMM_QUANT(gemm_i24_##name, QUANT_LIMBS, quant_sizes_of(__VA_ARGS__), quant_tile_##name, NULL, NULL)
#define BLOCK_TYPE(name, ...)                                                                                          \
  GEMM_QUANT(gemm_##name, 1, blocks_sizes(blocks_##name()), blocks_tile_##name, NULL, NULL)                            \
  GEMM_QUANT(gemm_i24_##name, QUANT_LIMBS, blocks_sizes(blocks_##name()), blocks_tile_##name, NULL, NULL)
#define OPENED_TYPE(name, ...)                                                                                         \
  GEMM_QUANT(gemm_##name, 1, blocks_sizes(blocks_##name()), blocks_tile_##name, QUANT_BEST(blocks_open_##name),        \
             QUANT_BEST(blocks_opened_##name))                                                                         \
  GEMM_QUANT(gemm_i24_##name, QUANT_LIMBS, blocks_sizes(blocks_##name()), blocks_tile_##name,                          \
             QUANT_BEST(blocks_open_##name), QUANT_BEST(blocks_opened_##name))
#include "weight_formats.def"

#undef GEMM_QUANT

/* gemm_codes.c: gemm of rows that were rounded to int8 with panels of codes, for any number of rows. A strip of a
 * panel, as long as a group of the rows, is read by all rows at hand before the next is: their sums wait on the stack.
 */
#include <string.h>

#include "blocks.h"

typedef void (*codes_tile_of)(int64_t rows, const codes_strip *s);

/* Asks for a share of what is read next, `nbytes` in all, when tile `tile` of `tiles` is summed. One tile alone reads
 * on without end, which a processor sees by itself. */
static inline void codes_expect(const uint8_t *next, int64_t nbytes, int64_t tile, int64_t tiles) {
  const int64_t end = nbytes * (tile + 1) / tiles;
  for (int64_t i = nbytes * tile / tiles; i < end; i += 64) __builtin_prefetch(next + i, 0, 2);
}

/* sums[rows, 32] of one panel. */
static inline void codes_panel(const gemm_args *g, codes_tile_of tile, int64_t block_bytes, const int8_t *a,
                               int64_t rows, const uint8_t *b, float *sums) {
  const codes_row row = codes_row_of(g->k);
  const int64_t tiles = (rows + CODES_ROWS - 1) / CODES_ROWS;
  memset(sums, 0, (size_t)rows * INGOT_PANEL * sizeof *sums);
  for (int64_t first = 0; first < row.blocks; first += CODES_BLOCKS) {
    const int64_t left = row.blocks - first, count = left < CODES_BLOCKS ? left : CODES_BLOCKS;
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t begin = part_begin(rows, (int32_t)i, (int32_t)tiles);
      const codes_strip strip = {
        .a = a + begin * g->a_stride, .a_stride = g->a_stride, .offsets = row.offsets, .steps = row.steps,
        .halves = row.halves, .wholes = row.wholes, .first = first, .count = count, .b = b,
        .sums = sums + begin * INGOT_PANEL};
      if (tiles > 1) codes_expect(b + count * block_bytes, count * block_bytes, i, tiles);
      tile(part_begin(rows, (int32_t)i + 1, (int32_t)tiles) - begin, &strip);
    }
    b += count * block_bytes;
  }
}

static inline void gemm_codes(const gemm_args *g, codes_tile_of tile, int64_t block_bytes, const int gated,
                              int32_t part, int32_t parts) {
  const gemm_epilogue epilogue = {g->bias, NULL, g->residual, g->residual_stride, g->alpha,
                                  g->act_alpha, g->act_beta, g->activation, g->residual_first, NULL, 0};
  const int64_t width = gated ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of c in a panel */
  const gemm_share share = gemm_cut_fixed((g->n + width - 1) / width, g->m, part, parts);
  const int64_t all_rows = share.row_end - share.row_begin;
  const int64_t chunks = (all_rows + INGOT_CODES_ROWS - 1) / INGOT_CODES_ROWS;
  const int64_t panel_bytes = codes_row_of(g->k).blocks * block_bytes;
  float sums[INGOT_CODES_ROWS * INGOT_PANEL];
  for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++) {
    const int64_t column = panel * width, columns = g->n - column < width ? g->n - column : width;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const int64_t begin = share.row_begin + part_begin(all_rows, (int32_t)chunk, (int32_t)chunks);
      const int64_t rows = share.row_begin + part_begin(all_rows, (int32_t)chunk + 1, (int32_t)chunks) - begin;
      float *c = g->c + begin * g->c_stride + column;
      codes_panel(g, tile, block_bytes, (const int8_t *)g->a + begin * g->a_stride, rows,
                  (const uint8_t *)g->b + panel * panel_bytes, sums);
      if (gated)
        gated_columns(g, column, rows, 1, sums, INGOT_PANEL, c, NULL);
      else
        epilogue_apply(&epilogue, begin, column, rows, columns, sums, INGOT_PANEL, c, g->c_stride);
    }
  }
}

/* The tile of this CPU: on AVX-512 only some have dot products of int8. */
#if defined(ISA_avx512)
#define CODES_TILE(name) (__builtin_cpu_supports("avx512vnni") ? K(name) : K(name##_widened))
#else
#define CODES_TILE(name) K(name)
#endif

void K(gemm_int8_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int8), codes_block_bytes(8, 0), 0, part, parts);
}

void K(gemm_int8_gated)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int8), codes_block_bytes(8, 0), 1, part, parts);
}

void K(gemm_int8_zeros_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int8_zeros), codes_block_bytes(8, 1), 0, part, parts);
}

void K(gemm_int8_zeros_gated)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int8_zeros), codes_block_bytes(8, 1), 1, part, parts);
}

void K(gemm_int4_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int4), codes_block_bytes(4, 0), 0, part, parts);
}

void K(gemm_int4_gated)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int4), codes_block_bytes(4, 0), 1, part, parts);
}

void K(gemm_int4_zeros_packed)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int4_zeros), codes_block_bytes(4, 1), 0, part, parts);
}

void K(gemm_int4_zeros_gated)(const void *args, int32_t part, int32_t parts) {
  gemm_codes(args, CODES_TILE(codes_tile_int4_zeros), codes_block_bytes(4, 1), 1, part, parts);
}

/* A type of blocks. */
#define GEMM_BLOCKS(name, type)                                                                           \
  void K(name##_packed)(const void *args, int32_t part, int32_t parts) {                                  \
    gemm_codes(args, CODES_TILE(blocks_tile_##type), blocks_bytes(blocks_##type()), 0, part, parts);      \
  }                                                                                                       \
                                                                                                          \
  void K(name##_gated)(const void *args, int32_t part, int32_t parts) {                                   \
    gemm_codes(args, CODES_TILE(blocks_tile_##type), blocks_bytes(blocks_##type()), 1, part, parts);      \
  }

GEMM_BLOCKS(gemm_q4_1, q4_1)
GEMM_BLOCKS(gemm_q5_0, q5_0)
GEMM_BLOCKS(gemm_q5_1, q5_1)
GEMM_BLOCKS(gemm_iq4_nl, iq4_nl)
GEMM_BLOCKS(gemm_iq4_xs, iq4_xs)
GEMM_BLOCKS(gemm_q2_k, q2_k)
GEMM_BLOCKS(gemm_q3_k, q3_k)
GEMM_BLOCKS(gemm_q4_k, q4_k)
GEMM_BLOCKS(gemm_q5_k, q5_k)
GEMM_BLOCKS(gemm_q6_k, q6_k)

#undef CODES_TILE
#undef GEMM_BLOCKS

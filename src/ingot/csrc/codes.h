/* codes.h: products of rows that were rounded to int8 with matrices of codes. Sums over 32 elements are integers and
 * exact; what is done with them in floats has one order, so that bits depend on no instruction set, part or batch. */
#ifndef INGOT_CODES_H
#define INGOT_CODES_H

#include "gemm.h"

/* Rows of the largest tile. */
#if defined(ISA_avx512)
#define CODES_ROWS 6
#else
#define CODES_ROWS 4
#endif

#define CODES_BLOCKS (INGOT_ROUND_GROUP / INGOT_CODES_BLOCK) /* of a strip: those whose rows share a step */

/* Where a rounded row has what; see round_rows_args. */
typedef struct { int64_t blocks, offsets, steps, halves, wholes, bytes; } codes_row;

static inline codes_row codes_row_of(int64_t k) {
  codes_row r = {.blocks = (k + INGOT_CODES_BLOCK - 1) / INGOT_CODES_BLOCK};
  r.offsets = r.blocks * INGOT_CODES_BLOCK;
  r.steps = r.offsets + 4 * r.blocks;
  r.halves = r.steps + 4 * ((r.blocks + CODES_BLOCKS - 1) / CODES_BLOCKS);
  r.wholes = r.halves + 4 * r.blocks;
  r.bytes = r.wholes + 2 * r.blocks + 2 * (r.blocks % 2);
  return r;
}

/* sums[rows, 32] += step[rows] * (for each block: the sum of codes of a and b, scaled), over blocks [first, first +
 * count) of one group of the rows. a: the rounded rows; b: the blocks of one panel, from `first` on. */
typedef struct {
  const int8_t *a;
  int64_t a_stride, offsets, steps, halves, wholes;
  int64_t first, count;
  const uint8_t *b;
  float *sums; /* [rows][32] */
} codes_strip;

/* A tile of 1 <= rows <= CODES_ROWS. b has codes of 8 bits, or of 4, with or without zeros. */
void K(codes_tile_int8)(int64_t rows, const codes_strip *s);
void K(codes_tile_int4)(int64_t rows, const codes_strip *s);
void K(codes_tile_int8_zeros)(int64_t rows, const codes_strip *s);
void K(codes_tile_int4_zeros)(int64_t rows, const codes_strip *s);

/* The same, for a CPU with AVX-512 but no dot products of int8. */
void K(codes_tile_int8_widened)(int64_t rows, const codes_strip *s);
void K(codes_tile_int4_widened)(int64_t rows, const codes_strip *s);
void K(codes_tile_int8_zeros_widened)(int64_t rows, const codes_strip *s);
void K(codes_tile_int4_zeros_widened)(int64_t rows, const codes_strip *s);

/* The bytes of a block of a panel: codes of so many bits, scales, and perhaps zeros. */
static inline int64_t codes_block_bytes(const int bits, const int zeros) {
  return INGOT_PANEL * (INGOT_CODES_BLOCK * bits / 8 + 2 + zeros);
}

#endif

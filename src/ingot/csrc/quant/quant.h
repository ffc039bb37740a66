/* quant.h: products of rows that were rounded to int8 with matrices of codes. Sums over 32 elements are integers and
 * exact; what is done with them in floats has one order, so that bits depend on no instruction set, part or batch. */
#ifndef INGOT_QUANT_H
#define INGOT_QUANT_H

#include "gemm/amx.h"
#include "gemm/gemm.h"

/* Rows of the largest tile, and of the largest where codes of a column share one scale: it holds nothing but sums. */
#if defined(ISA_avx512)
#define QUANT_ROWS 6
#define QUANT_TALL 12
#else
#define QUANT_ROWS 4
#define QUANT_TALL 4
#endif

#define QUANT_LIMBS 3 /* rows of int8 that a row of integers of 24 bits is */

#define QUANT_BLOCKS (INGOT_ROUND_GROUP / INGOT_QUANT_BLOCK) /* of a strip: those whose rows share a step */

#define QUANT_WIDE (INGOT_QUANT_WIDE / INGOT_QUANT_BLOCK) /* of a wide group, which has one scale */
#define QUANT_LONGEST (INGOT_QUANT_LONGEST / INGOT_QUANT_BLOCK) /* of a row of the matrix that has one scale */

/* How codes lie in panels: bits, whether there are zero points, and how many blocks share a scale. */
#define QUANT_INT8 8, 0, 1
#define QUANT_INT8_ZP 8, 1, 1
#define QUANT_INT8_128 8, 0, QUANT_WIDE
#define QUANT_INT8_128_ZP 8, 1, QUANT_WIDE
#define QUANT_INT8_ROW 8, 0, QUANT_LONGEST
#define QUANT_INT4 4, 0, 1
#define QUANT_INT4_ZP 4, 1, 1
#define QUANT_INT4_128 4, 0, QUANT_WIDE
#define QUANT_INT4_128_ZP 4, 1, QUANT_WIDE

/* Bytes of a scale. What sums integers has scales of f16. */
#define QUANT_F16 2
#define QUANT_F32 4

/* Where a rounded row has what; see round_rows_args. */
typedef struct { int64_t blocks, offsets, wide_offsets, group_offsets, steps, halves, wholes, bytes; } quant_row;

static inline quant_row quant_row_of(int64_t k) {
  quant_row r = {.blocks = (k + INGOT_QUANT_BLOCK - 1) / INGOT_QUANT_BLOCK};
  r.offsets = r.blocks * INGOT_QUANT_BLOCK;
  r.wide_offsets = r.offsets + 4 * r.blocks;
  r.group_offsets = r.wide_offsets + 4 * ((r.blocks + QUANT_WIDE - 1) / QUANT_WIDE);
  r.steps = r.group_offsets + 4 * ((r.blocks + QUANT_BLOCKS - 1) / QUANT_BLOCKS);
  r.halves = r.steps + 4 * ((r.blocks + QUANT_BLOCKS - 1) / QUANT_BLOCKS);
  r.wholes = r.halves + 4 * r.blocks;
  r.bytes = r.wholes + 2 * r.blocks + 2 * (r.blocks % 2);
  return r;
}

/* Sums of integers of up to two tiles of rows and 32 columns that wait, in turns, to become floats while the next are
 * multiplied: where the rows begin, from which on each is new, and where their floats go. */
typedef struct {
  _Alignas(64) int32_t sums[2][4 * 16 * 16];
  const int8_t *a[2];
  float *to[2];
  const uint8_t *shared;
  int64_t a_stride, offset, step, from[2];
  int32_t tiles, turn, begins;
} quant_waiting;

/* sums[rows, 32] += step[rows] * (for each scale: the sum of codes of a and b, scaled), over blocks [first, first +
 * count) of one group of the rows. a: the rounded rows; b: the blocks of one panel, from `first` on; shared: their
 * scales, where blocks behind the strip share them, too. offsets: where a row has those of as many blocks as are summed
 * together. */
typedef struct {
  const int8_t *a;
  int64_t a_stride, offsets, steps, halves, wholes;
  int64_t first, count;
  const uint8_t *b, *shared;
  const struct blocks_opened *opened; /* the same of b, where the tile reads this */
  const uint8_t *prefetch; int64_t prefetch_step; /* the prefetch cursor; AMX prefetches prefetch_step bytes per row */
  float *sums;                        /* [rows][32] */
  quant_waiting *waiting;             /* of what AMX does with one scale for a row of the matrix */
} quant_slice;

/* What gemm_tile_amx.inc has in the place of a tile. */
#if defined(ISA_amx)
#define QUANT_TILED(name) K(name##_many)
#else
#define QUANT_TILED(name) NULL
#endif

/* Of what is compiled for CPUs with dot products of int8 too, which only some with AVX-512 have: what this CPU runs,
 * and the declaration of the other. In emitted C these CPUs have a set of their own, and so have those with AMX.
 * QUANT_MANY: what AMX does for any number of rows, or null. */
#if defined(INGOT_LIBRARY) && defined(ISA_avx512)
#define QUANT_ALSO(name, parameters) void name##_avx512vnni parameters;
#define QUANT_BEST(name) (__builtin_cpu_supports("avx512vnni") ? name##_avx512vnni : K(name))
#define QUANT_MANY(name) (ingot_amx ? name##_many_avx512vnni : NULL)
#else
#define QUANT_ALSO(name, parameters)
#define QUANT_BEST(name) K(name)
#define QUANT_MANY(name) QUANT_TILED(name)
#endif

/* A tile of 1 <= rows <= QUANT_ROWS for each way, of codes with one scale for a row of the matrix up to QUANT_TALL. */
#define QUANT_TILES(name)                                                                                              \
  void K(name)(int64_t rows, const quant_slice *s);                                                                    \
  QUANT_ALSO(name, (int64_t rows, const quant_slice *s))                                                               \
  QUANT_ALSO(name##_many, (int64_t rows, const quant_slice *s))
QUANT_TILES(quant_tile_int8)
QUANT_TILES(quant_tile_int8_zp)
QUANT_TILES(quant_tile_int8_128)
QUANT_TILES(quant_tile_int8_128_zp)
QUANT_TILES(quant_tile_int8_row)
QUANT_TILES(quant_tile_int4)
QUANT_TILES(quant_tile_int4_zp)
QUANT_TILES(quant_tile_int4_128)
QUANT_TILES(quant_tile_int4_128_zp)

/* The bytes of a block of a panel, and of what `span` blocks share behind them. */
typedef struct { int64_t block, shared; int span; } quant_sizes;

static inline quant_sizes quant_sizes_by(const int bits, const int zeros, const int span, const int scale) {
  return (quant_sizes){INGOT_PANEL * INGOT_QUANT_BLOCK * bits / 8, INGOT_PANEL * (scale + zeros), span};
}

static inline quant_sizes quant_sizes_of(const int bits, const int zeros, const int span) {
  return quant_sizes_by(bits, zeros, span, QUANT_F16);
}

/* The bytes of so many blocks of a panel, from the first of a scale on. */
static inline int64_t quant_sized(quant_sizes s, int64_t blocks) {
  return s.block * blocks + s.shared * ((blocks + s.span - 1) / s.span);
}

/* Codes, and the scales behind those that share them, perhaps with zeros. */
static inline int64_t quant_bytes(int64_t blocks, const int bits, const int zeros, const int span, const int scale) {
  return quant_sized(quant_sizes_by(bits, zeros, span, scale), blocks);
}

/* Blocks of a strip whose products are summed as integers: those that share a scale. */
static inline int quant_summed(const int span) { return span < QUANT_BLOCKS ? span : QUANT_BLOCKS; }

/* Where in a panel a strip begins whose first block is this one. */
static inline int64_t quant_begin(quant_sizes s, int64_t first) {
  return s.block * first + s.shared * (first / s.span);
}

/* Where in a panel of so many blocks the scales of a block stand. */
static inline int64_t quant_shared(quant_sizes s, int64_t block, int64_t blocks) {
  const int64_t first = block - block % s.span, left = blocks - first;
  return quant_begin(s, first) + s.block * (left < s.span ? left : s.span);
}

/* Asks for bytes [begin, end) of what is read next. */
static inline void quant_expect(const uint8_t *next, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 64) __builtin_prefetch(next + i, 0, 2);
}

#endif

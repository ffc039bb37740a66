/* quant.h: products of rows quantized to int8 with quantized matrices. Sums over 32 elements are integers and exact;
 * the float arithmetic on them has one order, so that bits depend on no instruction set, task or batch. */
#ifndef INGOT_QUANT_H
#define INGOT_QUANT_H

#include "gemm/amx.h"
#include "gemm/gemm.h"

/* Rows of the largest tile, and of the largest with one scale a column, which holds nothing but sums. */
#if defined(ISA_avx512)
#define QUANT_ROWS 6
#define QUANT_TALL 12
#else
#define QUANT_ROWS 4
#define QUANT_TALL 4
#endif

#define QUANT_LIMBS 3 /* rows of int8 (limbs) of a row of 24-bit integers */

#define QUANT_BLOCKS (INGOT_ROUND_GROUP / INGOT_QUANT_BLOCK) /* blocks of a slice, whose elements of a row share a
                                                                scale */

#define QUANT_WIDE (INGOT_QUANT_WIDE / INGOT_QUANT_BLOCK) /* blocks of a wide group, which has one scale */
#define QUANT_LONGEST (INGOT_QUANT_LONGEST / INGOT_QUANT_BLOCK) /* blocks of a matrix row that has one scale */

/* Bytes of a scale. Integer products have f16 scales. */
#define QUANT_F16 2
#define QUANT_F32 4

/* The byte offsets in a quantized row; see round_rows_args. */
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

/* Integer sums of up to two row tiles and 32 columns, held until they are converted to floats while the next are
 * multiplied: the rows, the first new row of each tile, and the destination. */
typedef struct {
  _Alignas(64) int32_t sums[2][4 * 16 * 16];
  const int8_t *a[2];
  float *to[2];
  const uint8_t *shared;
  int64_t a_stride, offset, step, from[2];
  int32_t tiles, turn, begins;
} quant_waiting;

/* sums[rows, 32] += scale[rows] * (for each scale of b: the sum of values of a and b, scaled), over blocks [first,
 * first + count) of one group of the rows. a: the quantized rows; b: the blocks of one panel, from `first` on; shared:
 * their scales, where later blocks share them too. offsets: the offset in a row of the sums over as many blocks as are
 * summed together. */
typedef struct {
  const int8_t *a;
  int64_t a_stride, offsets, steps, halves, wholes;
  int64_t first, count;
  const uint8_t *b, *shared;
  const struct blocks_opened *opened; /* the unpacked slice of b, for the tiles that read it */
  const uint8_t *prefetch; int64_t prefetch_step; /* the prefetch cursor; AMX prefetches prefetch_step bytes per row */
  float *sums; /* [rows][32]; AMX writes those of the first slice, and adds the others */
  quant_waiting *waiting;             /* for AMX with one scale a matrix row */
} quant_slice;

/* The AMX replacement of a tile. */
#if defined(ISA_amx)
#define QUANT_TILED(name) K(name##_many)
#else
#define QUANT_TILED(name) NULL
#endif

/* Files that are also compiled for AVX-512 CPUs with int8 dot products (VNNI): the declaration of that function, and
 * the choice for this CPU. In emitted C these CPUs, and those with AMX, have separate instruction sets. QUANT_MANY: the
 * AMX function for any number of rows, or null. */
#if defined(INGOT_LIBRARY) && defined(ISA_avx512)
#define QUANT_ALSO(name, parameters) void name##_avx512vnni parameters;
#define QUANT_BEST(name) (__builtin_cpu_supports("avx512vnni") ? name##_avx512vnni : K(name))
#define QUANT_MANY(name) (ingot_amx ? name##_many_avx512vnni : NULL)
#else
#define QUANT_ALSO(name, parameters)
#define QUANT_BEST(name) K(name)
#define QUANT_MANY(name) QUANT_TILED(name)
#endif

/* A tile of 1 <= rows <= QUANT_ROWS for each format; with one scale a matrix row up to QUANT_TALL. */
#define QUANT_TILES(name)                                                                                              \
  void K(name)(int64_t rows, const quant_slice *s);                                                                    \
  QUANT_ALSO(name, (int64_t rows, const quant_slice *s))                                                               \
  QUANT_ALSO(name##_many, (int64_t rows, const quant_slice *s))

#define QUANT_FORMAT(name, ...) QUANT_TILES(quant_tile_##name)
#include "weight_formats.def"

/* The bytes of a block of a panel, and of the scales that follow `span` blocks. */
typedef struct { int64_t block, shared; int span; } quant_sizes;

static inline quant_sizes quant_sizes_by(const int bits, const int zeros, const int span, const int scale) {
  return (quant_sizes){INGOT_PANEL * INGOT_QUANT_BLOCK * bits / 8, INGOT_PANEL * (scale + zeros), span};
}

static inline quant_sizes quant_sizes_of(const int bits, const int zeros, const int span) {
  return quant_sizes_by(bits, zeros, span, QUANT_F16);
}

/* The bytes of so many blocks of a panel, from the first block of a scale on. */
static inline int64_t quant_sized(quant_sizes s, int64_t blocks) {
  return s.block * blocks + s.shared * ((blocks + s.span - 1) / s.span);
}

/* Bytes of quantized values and of the scales after the blocks that share them, perhaps with zero points. */
static inline int64_t quant_bytes(int64_t blocks, const int bits, const int zeros, const int span, const int scale) {
  return quant_sized(quant_sizes_by(bits, zeros, span, scale), blocks);
}

/* Blocks of a slice whose products are summed as integers: those that share a scale. */
static inline int quant_summed(const int span) { return span < QUANT_BLOCKS ? span : QUANT_BLOCKS; }

/* The offset in a panel of the slice that begins with this block. */
static inline int64_t quant_begin(quant_sizes s, int64_t first) {
  return s.block * first + s.shared * (first / s.span);
}

/* The offset of a block's scales in a panel of so many blocks. */
static inline int64_t quant_shared(quant_sizes s, int64_t block, int64_t blocks) {
  const int64_t first = block - block % s.span, left = blocks - first;
  return quant_begin(s, first) + s.block * (left < s.span ? left : s.span);
}

/* Prefetch bytes [begin, end) of the memory that is read next. */
static inline void quant_expect(const uint8_t *next, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 64) __builtin_prefetch(next + i, 0, 2);
}

#endif

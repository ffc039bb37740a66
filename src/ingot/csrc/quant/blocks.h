/* blocks.h: matrices of GGUF blocks in panels of the same size: the layout of each block type. */
#ifndef INGOT_BLOCKS_H
#define INGOT_BLOCKS_H

#include "quant/quant.h"
#include "math/f16.h"

/* Storage formats of a block's sub-block scales. BLOCKS_ALONE: a block has one scale. */
#define BLOCKS_ALONE 0
#define BLOCKS_SIXES 1   /* six bits, and a min of six bits; the upper two bits of the last four are in the first
                            ones */
#define BLOCKS_NIBBLES 2 /* four bits, and a min of four bits above */
#define BLOCKS_BYTES 3   /* signed bytes */
#define BLOCKS_SPLIT 4   /* six bits minus 32: the low four bits, two in a byte, then the upper two bits */
#define BLOCKS_HALVES 5  /* six bits minus 32: two bytes of upper bits after four bytes of lower bits */

/* A block type. In the file a block of `elements` has, at these byte offsets: `low`, the lower four bits of its
 * quantized values (two, where a value has fewer than four bits): every low_width bytes hold the lowest field of each
 * element first, then the fields above; `high`, the other bits in the same order; `d` and `m`, its f16; `scales`, one
 * for each `part` elements (a sub-block). An element is d * scale * (q - offset) - m * min, or d * (q - offset) + m
 * where the block has one scale; with `steps`, q is an index into blocks_steps. A panel has, for each block of its
 * columns, `scale_bytes` of scales, first by quads and then by pairs, f16 d, f16 m, then `bits` words for each 32
 * elements of a column: four with the lower four bits of values (two with the lower two bits), whose bytes are four
 * adjacent elements, then the words of the other bits. */
typedef struct {
  int elements, nbytes, bits, part, offset, steps;
  int low, low_width, high, high_width;
  int d, has_m, m;
  int held, scales, scale_bytes;
} blocks_type;

static inline blocks_type blocks_q4_1(void) {
  return (blocks_type){.elements = 32, .nbytes = 20, .bits = 4, .part = 32, .low = 4, .low_width = 16, .has_m = 1,
                       .m = 2};
}

static inline blocks_type blocks_q5_0(void) {
  return (blocks_type){.elements = 32, .nbytes = 22, .bits = 5, .part = 32, .offset = 16, .low = 6, .low_width = 16,
                       .high = 2, .high_width = 1};
}

static inline blocks_type blocks_q5_1(void) {
  return (blocks_type){.elements = 32, .nbytes = 24, .bits = 5, .part = 32, .low = 8, .low_width = 16, .high = 4,
                       .high_width = 1, .has_m = 1, .m = 2};
}

static inline blocks_type blocks_iq4_nl(void) {
  return (blocks_type){.elements = 32, .nbytes = 18, .bits = 4, .part = 32, .offset = 128, .steps = 1, .low = 2,
                       .low_width = 16};
}

static inline blocks_type blocks_iq4_xs(void) {
  return (blocks_type){.elements = 256, .nbytes = 136, .bits = 4, .part = 32, .offset = 128, .steps = 1, .low = 8,
                       .low_width = 16, .held = BLOCKS_HALVES, .scales = 2, .scale_bytes = 6};
}

static inline blocks_type blocks_q2_k(void) {
  return (blocks_type){.elements = 256, .nbytes = 84, .bits = 2, .part = 16, .low = 16, .low_width = 32, .d = 80,
                       .has_m = 1, .m = 82, .held = BLOCKS_NIBBLES, .scale_bytes = 16};
}

static inline blocks_type blocks_q3_k(void) {
  return (blocks_type){.elements = 256, .nbytes = 110, .bits = 3, .part = 16, .offset = 4, .low = 32, .low_width = 32,
                       .high_width = 32, .d = 108, .held = BLOCKS_SPLIT, .scales = 96, .scale_bytes = 12};
}

static inline blocks_type blocks_q4_k(void) {
  return (blocks_type){.elements = 256, .nbytes = 144, .bits = 4, .part = 32, .low = 16, .low_width = 32, .has_m = 1,
                       .m = 2, .held = BLOCKS_SIXES, .scales = 4, .scale_bytes = 12};
}

static inline blocks_type blocks_q5_k(void) {
  return (blocks_type){.elements = 256, .nbytes = 176, .bits = 5, .part = 32, .low = 48, .low_width = 32, .high = 16,
                       .high_width = 32, .has_m = 1, .m = 2, .held = BLOCKS_SIXES, .scales = 4, .scale_bytes = 12};
}

static inline blocks_type blocks_q6_k(void) {
  return (blocks_type){.elements = 256, .nbytes = 210, .bits = 6, .part = 16, .offset = 32, .low_width = 64,
                       .high = 128, .high_width = 32, .d = 208, .held = BLOCKS_BYTES, .scales = 192,
                       .scale_bytes = 16};
}

/* The code book of types with `steps`, plus 128. */
static const uint8_t blocks_steps[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* The lower bits of a value, which are stored together. */
static inline int blocks_low_bits(const blocks_type t) { return t.bits < 4 ? 2 : 4; }

/* The bytes of a panel before the quantized values of a block. */
static inline int64_t blocks_head(const blocks_type t) { return INGOT_PANEL * (t.scale_bytes + 2 + 2 * t.has_m); }

/* The bytes of a panel for each INGOT_QUANT_BLOCK elements of k. */
static inline int64_t blocks_bytes(const blocks_type t) {
  return INGOT_PANEL * t.nbytes * INGOT_QUANT_BLOCK / t.elements;
}

static inline quant_sizes blocks_sizes(const blocks_type t) { return (quant_sizes){blocks_bytes(t), 0, 1}; }

/* An unpacked slice of blocks of 256, for products with many row tiles: values are bytes, four of a column adjacent;
 * each sub-block has a word with its scale, and each two sub-blocks have a pair of factors for the sums of a row's
 * values; m is negated. */
typedef struct blocks_opened {
  uint32_t bytes[INGOT_ROUND_GROUP / 4 * INGOT_PANEL];
  int32_t scales[INGOT_ROUND_GROUP / 16 * INGOT_PANEL];
  uint32_t factors[INGOT_ROUND_GROUP / 32 * INGOT_PANEL];
  float d[INGOT_PANEL], m[INGOT_PANEL];
} blocks_opened;

/* Tiles of 1 <= rows <= QUANT_ROWS, like those of quant.h. */
QUANT_TILES(blocks_tile_q4_1)
QUANT_TILES(blocks_tile_q5_0)
QUANT_TILES(blocks_tile_q5_1)
QUANT_TILES(blocks_tile_iq4_nl)
QUANT_TILES(blocks_tile_iq4_xs)
QUANT_TILES(blocks_tile_q2_k)
QUANT_TILES(blocks_tile_q3_k)
QUANT_TILES(blocks_tile_q4_k)
QUANT_TILES(blocks_tile_q5_k)
QUANT_TILES(blocks_tile_q6_k)

/* Tiles of unpacked slices, for the types with the most scales, whose sums leave too little time for unpacking. */
QUANT_TILES(blocks_opened_q2_k)
QUANT_TILES(blocks_opened_q3_k)
QUANT_TILES(blocks_opened_q6_k)

/* Unpack a slice. */
#define BLOCKS_OPEN(name)                                                                                              \
  void K(name)(const quant_slice *s, blocks_opened *o);                                                                \
  QUANT_ALSO(name, (const quant_slice *s, blocks_opened *o))
BLOCKS_OPEN(blocks_open_q2_k)
BLOCKS_OPEN(blocks_open_q3_k)
BLOCKS_OPEN(blocks_open_q6_k)

#endif

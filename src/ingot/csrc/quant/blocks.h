/* blocks.h: matrices of blocks of GGUF files, in panels of the same size: what a type of blocks has, and where. */
#ifndef INGOT_BLOCKS_H
#define INGOT_BLOCKS_H

#include "quant/quant.h"
#include "math/f16.h"

/* How the scales of a block's parts are held; BLOCKS_ALONE: a block has one scale. */
#define BLOCKS_ALONE 0
#define BLOCKS_SIXES 1   /* six bits, and six of a min: the upper two of the last four in the first ones */
#define BLOCKS_NIBBLES 2 /* four bits, and four of a min above */
#define BLOCKS_BYTES 3   /* signed bytes */
#define BLOCKS_SPLIT 4   /* six bits less 32: four of each, two in a byte, then the upper two */
#define BLOCKS_HALVES 5  /* six bits less 32: two bytes of upper ones behind four of lower ones */

/* A type. In the file a block of `elements` has, from byte on: `low`, the lower four bits of its codes (two, where a
 * code has fewer than four), of every low_width bytes first the lowest field of each, then those above; `high`, the
 * other bits likewise; `d` and `m`, its f16; `scales`, one for each `part` elements. A number is
 * d * scale * (code - offset) - m * min, or d * (code - offset) + m where the block has one scale; codes with steps
 * stand for blocks_steps. A panel has, for each block of its columns, `scale_bytes` of scales, by fours and then by
 * pairs, f16 d, f16 m, then `bits` words for each 32 elements of a column: four of lower halves of codes (two of lower
 * quarters), whose bytes are four elements side by side, then those of the other bits. */
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

/* What the four bits of codes with steps stand for, and 128. */
static const uint8_t blocks_steps[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* The lower bits of a code that lie together. */
static inline int blocks_low_bits(const blocks_type t) { return t.bits < 4 ? 2 : 4; }

/* The bytes of a panel before the codes of a block. */
static inline int64_t blocks_head(const blocks_type t) { return INGOT_PANEL * (t.scale_bytes + 2 + 2 * t.has_m); }

/* The bytes of a panel for each INGOT_QUANT_BLOCK elements of k. */
static inline int64_t blocks_bytes(const blocks_type t) {
  return INGOT_PANEL * t.nbytes * INGOT_QUANT_BLOCK / t.elements;
}

static inline quant_sizes blocks_sizes(const blocks_type t) { return (quant_sizes){blocks_bytes(t), 0, 1}; }

/* A strip of blocks of 256 that many tiles of rows read, opened once for all of them: codes are bytes, four of a column
 * side by side; a word for each part has its scale, one for each two parts, as pairs, what multiplies the sums of a
 * row's codes; m is taken times -1. */
typedef struct blocks_opened {
  uint32_t bytes[INGOT_ROUND_GROUP / 4 * INGOT_PANEL];
  int32_t scales[INGOT_ROUND_GROUP / 16 * INGOT_PANEL];
  uint32_t beside[INGOT_ROUND_GROUP / 32 * INGOT_PANEL];
  float d[INGOT_PANEL], m[INGOT_PANEL];
} blocks_opened;

/* Tiles of 1 <= rows <= QUANT_ROWS, as quant.h has those of codes. */
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

/* Tiles of opened strips, for the types with the most scales: their sums leave too little time for unpacking. */
QUANT_TILES(blocks_opened_q2_k)
QUANT_TILES(blocks_opened_q3_k)
QUANT_TILES(blocks_opened_q6_k)

/* Opens a strip. */
#define BLOCKS_OPEN(name)                                                                                              \
  void K(name)(const quant_slice *s, blocks_opened *o);                                                                \
  QUANT_ALSO(name, (const quant_slice *s, blocks_opened *o))
BLOCKS_OPEN(blocks_open_q2_k)
BLOCKS_OPEN(blocks_open_q3_k)
BLOCKS_OPEN(blocks_open_q6_k)

#endif

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
#define BLOCKS_ODDS 6    /* four bits, two in a byte, for twice their number plus 1 */

/* Code books, each a row of blocks_steps. */
#define BLOCKS_IQ4 1
#define BLOCKS_ODD 2 /* the odd numbers from -15 to 15 */
#define BLOCKS_FP4 3 /* twice the numbers of MXFP4; d is half of a power of two, bf16 in panels, whose exponent plus 127
                        is one byte in a file */

/* A block type. In the file a block of `elements` has `nbytes` bytes and, at these byte offsets: `low`, the lower four
 * bits of its quantized values (two, where a value has fewer than four bits): every low_width bytes hold the lowest
 * field of each element first, then the fields above; `high`, the other bits in the same order; `d` and `m`, its f16;
 * `scales`, one for each `part` elements (a sub-block), in the format `held`. Where `signs` is not 0, four adjacent
 * elements have an index into blocks_grid instead, with its lower eight bits at `low` and the ninth at `high`, and a
 * sign bit each at `signs`. An element is d * scale * (q - offset) - m * min, or d * (q - offset) + m where the block
 * has one scale; with `steps`, q is an index into a code book, and offset is 128. A panel has, for each block of a
 * column, `packed` bytes: `scale_bytes` of scales, first by quads and then by pairs, f16 d, f16 m, then `bits` words
 * for each 32 elements of a column: four with the lower four bits of values (two with the lower two bits), whose bytes
 * are four adjacent elements, then the words of the other bits. (q - offset) * scale fits in 16 bits. */
typedef struct {
  int elements, nbytes, packed, bits, part, offset, steps;
  int low, low_width, high, high_width, signs;
  int d, has_m, m;
  int held, scales, scale_bytes;
} blocks_type;

#define BLOCK_TYPE(name, ...)                                                                                          \
  static inline blocks_type blocks_##name(void) {                                                                      \
    return (blocks_type){__VA_ARGS__};                                                                                 \
  }
#include "weight_formats.def"

/* The code books of types with `steps`, plus 128; the first row is unused. */
static const uint8_t blocks_steps[][16] = {
  {0},
  {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
  {113, 115, 117, 119, 121, 123, 125, 127, 129, 131, 133, 135, 137, 139, 141, 143},
  {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116},
};

/* The lower bits of a value, which are stored together. */
static inline int blocks_low_bits(const blocks_type t) { return t.bits < 4 ? 2 : 4; }

/* The bytes of a panel before the quantized values of a block. */
static inline int64_t blocks_head(const blocks_type t) { return INGOT_PANEL * (t.scale_bytes + 2 + 2 * t.has_m); }

/* The bytes of a panel for each INGOT_QUANT_BLOCK elements of k. */
static inline int64_t blocks_bytes(const blocks_type t) {
  return INGOT_PANEL * t.packed * INGOT_QUANT_BLOCK / t.elements;
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

/* Unpack a slice. */
#define BLOCKS_OPEN(name)                                                                                              \
  void K(name)(const quant_slice *s, blocks_opened *o);                                                                \
  QUANT_ALSO(name, (const quant_slice *s, blocks_opened *o))

/* Tiles of 1 <= rows <= QUANT_ROWS, like those of quant.h, and tiles of unpacked slices. */
#define BLOCK_TYPE(name, ...) QUANT_TILES(blocks_tile_##name)
#define OPENED_TYPE(name, ...)                                                                                         \
  QUANT_TILES(blocks_tile_##name)                                                                                      \
  QUANT_TILES(blocks_opened_##name)                                                                                    \
  BLOCKS_OPEN(blocks_open_##name)
#include "weight_formats.def"

#endif

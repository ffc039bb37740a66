/* pack_blocks.c: pack rows of GGUF blocks into panels: scales and quantized values are moved, and none is recomputed;
 * indices into a grid become their values. */
#include <string.h>

#include "quant/blocks.h"
#include "quant/blocks_grid.h"

/* Add fields of so many bits to bytes, shifted: every `width` bytes hold the lowest fields first, then those above. */
static inline __attribute__((always_inline)) void blocks_fields(const uint8_t *bytes, int64_t elements, const int width,
                                                                const int bits, const int shift, uint8_t *qweight) {
  for (int64_t e = 0; e < elements; bytes += width) {
    for (int low = 0; low < 8; low += bits, e += width)
      for (int i = 0; i < width; i++) qweight[e + i] |= (uint8_t)((bytes[i] >> low & ((1 << bits) - 1)) << shift);
  }
}

/* Values by their indices into the grid: the magnitude 2m + 1 is entry 8 + m of the odd numbers, or 7 - m, whose bits
 * are the others. */
static inline void blocks_unfold(const blocks_type t, const uint8_t *block, uint8_t *qweight) {
  for (int i = 0; i < t.elements / 4; i++) {
    const uint32_t entry = blocks_grid[block[t.low + i] | (block[t.high + i / 8] >> i % 8 & 1) << 8];
    const uint32_t signs = block[t.signs + i / 2] >> i % 2 * 4 & 15;
    uint32_t quad = (entry | entry << 10) & 0x003f003fu;
    quad = (quad | quad << 5) & 0x07070707u;
    quad = (quad | 0x08080808u) ^ (signs * 0x00204081u & 0x01010101u) * 15;
    memcpy(qweight + 4 * i, &quad, sizeof quad);
  }
}

static inline __attribute__((always_inline)) void blocks_fill(const blocks_type t, const uint8_t *block,
                                                              uint8_t *qweight) {
  const int low = blocks_low_bits(t);
  if (t.signs) {
    blocks_unfold(t, block, qweight);
    return;
  }
  memset(qweight, 0, (size_t)t.elements);
  blocks_fields(block + t.low, t.elements, t.low_width, low, 0, qweight);
  if (t.bits > low) blocks_fields(block + t.high, t.elements, t.high_width, t.bits - low, low, qweight);
}

/* The words of 32 values of a column, a panel's row apart. */
static inline __attribute__((always_inline)) void blocks_put(const int bits, const uint8_t *qweight, uint8_t *panel) {
  uint32_t quads[8], words[6] = {0};
  memcpy(quads, qweight, sizeof quads);
  INGOT_UNROLL for (int q = 0; q < 8; q++) {
    if (bits < 4)
      words[q / 4] |= (quads[q] & 0x03030303u) << 2 * (q % 4);
    else
      words[q % 4] |= (quads[q] & 0x0f0f0f0fu) << 4 * (q / 4);
    if (bits == 3) words[2] |= (quads[q] >> 2 & 0x01010101u) << q;
    if (bits == 5) words[4] |= (quads[q] >> 4 & 0x01010101u) << q;
    if (bits == 6) words[4 + q / 4] |= (quads[q] >> 4 & 0x03030303u) << 2 * (q % 4);
  }
  INGOT_UNROLL for (int i = 0; i < bits; i++) memcpy(panel + 4 * INGOT_PANEL * i, words + i, 4);
}

/* Half of a power of two as bf16; its exponent plus 127 is given. */
static inline uint16_t blocks_power(uint8_t exponent) {
  return (uint16_t)(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

/* A block of one column. */
static inline __attribute__((always_inline)) void blocks_pack(const blocks_type t, const uint8_t *block, int64_t column,
                                                              uint8_t *panel) {
  uint8_t qweight[256];
  uint8_t *halves = panel + INGOT_PANEL * t.scale_bytes + 2 * column;
  INGOT_UNROLL for (int i = 0; i < t.scale_bytes / 4; i++)
    memcpy(panel + 4 * (INGOT_PANEL * i + column), block + t.scales + 4 * i + t.scale_bytes % 4, 4);
  if (t.scale_bytes % 4) memcpy(panel + 4 * INGOT_PANEL + 2 * column, block + t.scales, 2);
  if (t.steps == BLOCKS_FP4) {
    const uint16_t d = blocks_power(block[t.d]);
    memcpy(halves, &d, sizeof d);
  } else {
    memcpy(halves, block + t.d, 2);
  }
  if (t.has_m) memcpy(halves + 2 * INGOT_PANEL, block + t.m, 2);
  blocks_fill(t, block, qweight);
  for (int i = 0; i < t.elements / INGOT_QUANT_BLOCK; i++)
    blocks_put(t.bits, qweight + i * INGOT_QUANT_BLOCK,
               panel + blocks_head(t) + 4 * (i * t.bits * INGOT_PANEL + column));
}

typedef void (*blocks_packer)(const uint8_t *block, int64_t column, uint8_t *panel);

/* elements, nbytes, packed: of a block, in a file and in a column of a panel. */
static inline __attribute__((always_inline)) void blocks_panels(const pack_args *g, const int elements,
                                                                const int nbytes, const int packed, blocks_packer pack,
                                                                int32_t task, int32_t num_tasks) {
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t blocks = g->k / elements, panels = (g->n + width - 1) / width, block_bytes = INGOT_PANEL * packed;
  const int64_t end = task_begin(panels, task + 1, num_tasks);
  for (int64_t i = task_begin(panels, task, num_tasks); i < end; i++) {
    uint8_t *panel = (uint8_t *)g->dst + i * blocks * block_bytes;
    if (g->n - i * width < width) memset(panel, 0, (size_t)(blocks * block_bytes));
    for (int64_t j = i * width; j < g->n && j < (i + 1) * width; j++) {
      const uint8_t *row = (const uint8_t *)g->src + j * g->n_stride;
      for (int64_t b = 0; b < blocks; b++) pack(row + b * nbytes, j - i * width, panel + b * block_bytes);
      if (!g->second) continue;
      row = (const uint8_t *)g->second + j * g->n_stride;
      for (int64_t b = 0; b < blocks; b++) pack(row + b * nbytes, j - i * width + width, panel + b * block_bytes);
    }
  }
}

#define PACK_BLOCKS(name, type)                                                                                        \
  static void K(name##_block)(const uint8_t *block, int64_t column, uint8_t *panel) {                                  \
    blocks_pack(type(), block, column, panel);                                                                         \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    blocks_panels(args, type().elements, type().nbytes, type().packed, K(name##_block), task, num_tasks);              \
  }

#define BLOCK_TYPE(name, ...) PACK_BLOCKS(pack_##name, blocks_##name)
#include "weight_formats.def"

/* The panels of pack_int4: a scale, then sixteen bytes of two elements, which panels also have in one byte. */
static void K(pack_q4_0_block)(const uint8_t *block, int64_t column, uint8_t *panel) {
  INGOT_UNROLL for (int i = 0; i < 4; i++) memcpy(panel + 4 * (i * INGOT_PANEL + column), block + 2 + 4 * i, 4);
  memcpy(panel + 16 * INGOT_PANEL + 2 * column, block, 2);
}

void K(pack_q4_0)(const void *args, int32_t task, int32_t num_tasks) {
  blocks_panels(args, 32, 18, 18, K(pack_q4_0_block), task, num_tasks);
}

/* The panels of pack_int8, whose values are unsigned. */
static void K(pack_q8_0_block)(const uint8_t *block, int64_t column, uint8_t *panel) {
  uint32_t quads[8];
  memcpy(quads, block + 2, sizeof quads);
  INGOT_UNROLL for (int i = 0; i < 8; i++) quads[i] ^= 0x80808080u;
  INGOT_UNROLL for (int i = 0; i < 8; i++) memcpy(panel + 4 * (i * INGOT_PANEL + column), quads + i, 4);
  memcpy(panel + 32 * INGOT_PANEL + 2 * column, block, 2);
}

void K(pack_q8_0)(const void *args, int32_t task, int32_t num_tasks) {
  blocks_panels(args, 32, 34, 34, K(pack_q8_0_block), task, num_tasks);
}

#undef PACK_BLOCKS

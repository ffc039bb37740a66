/* pack_codes.c: matrices of codes into panels, with the scales of each block of 32 elements behind its codes. */
#include <string.h>

#include "codes.h"

/* Codes of four bits, two in a byte, as fours of a panel, whose upper halves are the elements 16 further on. */
static inline void pack_codes_of_pairs(const uint8_t *src, int64_t count, uint32_t *fours) {
  uint64_t low, high;
  uint8_t some[INGOT_CODES_BLOCK / 2] = {0};
  if (count < INGOT_CODES_BLOCK) src = memcpy(some, src, (size_t)count / 2);
  memcpy(&low, src, 8);
  memcpy(&high, src + 8, 8);
  INGOT_UNROLL for (int q = 0; q < 4; q++) {
    uint64_t both = (low >> 16 * q & 0xffff) | (high >> 16 * q & 0xffff) << 32;
    both = (both | both << 8) & 0x00ff00ff00ff00ff;
    both = (both | both << 4) & 0x0f0f0f0f0f0f0f0f;
    fours[q] = (uint32_t)both | (uint32_t)(both >> 32) << 4;
  }
}

/* The same of codes in a byte each. `bits` is a constant at every call. */
static inline __attribute__((always_inline)) void pack_codes_of_bytes(const uint8_t *src, int64_t count,
                                                                      int64_t k_stride, const int bits,
                                                                      uint32_t *fours) {
  uint32_t bytes[INGOT_CODES_BLOCK / 4] = {0};
  if (k_stride == 1 && count == INGOT_CODES_BLOCK)
    memcpy(bytes, src, INGOT_CODES_BLOCK);
  else
    for (int64_t i = 0; i < count; i++) ((uint8_t *)bytes)[i] = src[i * k_stride];
  INGOT_UNROLL for (int q = 0; q < bits; q++) {
    fours[q] = bits == 8 ? bytes[q] : (bytes[q] & 0x0f0f0f0f) | (bytes[(q + 4) % 8] & 0x0f0f0f0f) << 4;
  }
}

/* A matrix, its scales and its zeros. */
typedef struct { const uint8_t *codes; const uint16_t *scales; const uint8_t *zeros; } pack_codes_source;

/* The codes from row k on of columns [begin, end) of a matrix, from their place in the block of a panel on. */
static inline __attribute__((always_inline)) void pack_codes_block(const pack_args *g, const pack_codes_source *src,
                                                                   const int bits, int64_t k, int64_t begin,
                                                                   int64_t end, uint8_t *block) {
  const int64_t left = g->k - k, count = left < INGOT_CODES_BLOCK ? left : INGOT_CODES_BLOCK;
  const uint32_t flip = (bits == 4 ? 0x11111111u : 0x01010101u) * (uint32_t)g->flip;
  for (int64_t j = begin; j < end; j++, block += 4) {
    uint32_t fours[INGOT_CODES_BLOCK / 4];
    const uint8_t *codes = src->codes + j * g->n_stride;
    if (bits == 4 && g->pairs)
      pack_codes_of_pairs(codes + k / 2, count, fours);
    else
      pack_codes_of_bytes(codes + k * g->k_stride, count, g->k_stride, bits, fours);
    INGOT_UNROLL for (int q = 0; q < bits; q++) {
      const uint32_t four = fours[q] ^ flip;
      memcpy(block + 4 * q * INGOT_PANEL, &four, 4);
    }
  }
}

/* The scales of such columns, and their zeros behind those of all columns, for the group that row k is in. */
static inline void pack_codes_beside(const pack_args *g, const pack_codes_source *src, int bits, int64_t k,
                                     int64_t begin, int64_t end, int64_t column, uint8_t *beside) {
  for (int64_t j = begin; j < end; j++, column++) {
    const int64_t scale = k / g->group * g->scale_k_stride + j * g->scale_n_stride;
    memcpy(beside + 2 * column, src->scales + scale, 2);
    if (src->zeros) beside[2 * INGOT_PANEL + column] = (uint8_t)((src->zeros[scale] ^ g->flip) << (8 - bits));
  }
}

static inline __attribute__((always_inline)) void pack_codes(const pack_args *g, const int bits, const int zeros,
                                                             const int span, int32_t part, int32_t parts) {
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t blocks = (g->k + INGOT_CODES_BLOCK - 1) / INGOT_CODES_BLOCK;
  const int64_t panels = (g->n + width - 1) / width, panel_bytes = codes_bytes(blocks, bits, zeros, span);
  const int64_t last = part_begin(panels, part + 1, parts);
  const pack_codes_source halves[2] = {{g->src, g->scales, zeros ? g->zeros : NULL},
                                       {g->second, g->second_scales, zeros ? g->second_zeros : NULL}};
  for (int64_t i = part_begin(panels, part, parts); i < last; i++) {
    uint8_t *block = (uint8_t *)g->dst + i * panel_bytes;
    const int64_t begin = i * width, end = g->n - begin < width ? g->n : begin + width;
    if (end - begin < width) memset(block, 0, (size_t)panel_bytes);
    for (int64_t k = 0; k < g->k; k += INGOT_CODES_BLOCK) {
      for (int h = 0; h < (g->second ? 2 : 1); h++)
        pack_codes_block(g, &halves[h], bits, k, begin, end, block + 4 * h * width);
      block += INGOT_PANEL * INGOT_CODES_BLOCK * bits / 8;
      /* A scale comes behind the last that share it. */
      if (k + INGOT_CODES_BLOCK < g->k && (k / INGOT_CODES_BLOCK + 1) % span) continue;
      for (int h = 0; h < (g->second ? 2 : 1); h++)
        pack_codes_beside(g, &halves[h], bits, k, begin, end, h * width, block);
      block += (2 + zeros) * INGOT_PANEL;
    }
  }
}

#define PACK_CODES(name, ...)                                    \
  void K(name)(const void *args, int32_t part, int32_t parts) { \
    pack_codes(args, __VA_ARGS__, part, parts);                 \
  }
PACK_CODES(pack_int8, CODES_INT8)
PACK_CODES(pack_int8_zeros, CODES_INT8_ZEROS)
PACK_CODES(pack_int8_128, CODES_INT8_128)
PACK_CODES(pack_int8_128_zeros, CODES_INT8_128_ZEROS)
PACK_CODES(pack_int8_row, CODES_INT8_ROW)
PACK_CODES(pack_int4, CODES_INT4)
PACK_CODES(pack_int4_zeros, CODES_INT4_ZEROS)
PACK_CODES(pack_int4_128, CODES_INT4_128)
PACK_CODES(pack_int4_128_zeros, CODES_INT4_128_ZEROS)

#undef PACK_CODES

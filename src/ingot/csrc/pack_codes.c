/* pack_codes.c: matrices of codes into panels, with the scales of each block of 32 elements behind its codes. */
#include <string.h>

#include "codes.h"

/* The codes of a block of one column, bytes from `k` on, filled up with zeros. */
static inline void pack_codes_of(const uint8_t *src, int64_t k, int64_t k_stride, uint8_t *codes) {
  const int64_t count = k < INGOT_CODES_BLOCK ? k : INGOT_CODES_BLOCK;
  if (count < INGOT_CODES_BLOCK) memset(codes, 0, INGOT_CODES_BLOCK);
  if (k_stride == 1)
    memcpy(codes, src, (size_t)count);
  else
    for (int64_t i = 0; i < count; i++) codes[i] = src[i * k_stride];
}

/* A matrix, its scales and its zeros, from a column on. */
typedef struct { const uint8_t *codes; const uint16_t *scales; const uint8_t *zeros; } pack_codes_source;

/* One column of a panel. `bits` and `zeros` are constants at every call. */
static inline __attribute__((always_inline)) void pack_codes_column(const pack_args *g, pack_codes_source src,
                                                                    const int bits, const int zeros,
                                                                    const int span, int64_t column, uint8_t *panel) {
  const uint32_t flip = 0x01010101u * (uint32_t)g->flip, nibbles = 0x0f0f0f0fu;
  for (int64_t k = 0; k < g->k; k += INGOT_CODES_BLOCK) {
    uint32_t fours[INGOT_CODES_BLOCK / 4];
    pack_codes_of(src.codes + k * g->k_stride, g->k - k, g->k_stride, (uint8_t *)fours);
    INGOT_UNROLL for (int q = 0; q < bits; q++) {
      uint32_t four = fours[q] ^ flip;
      if (bits == 4) four = (four & nibbles) | ((fours[q + 4] ^ flip) & nibbles) << 4;
      memcpy(panel + 4 * (q * INGOT_PANEL + column), &four, 4);
    }
    panel += INGOT_PANEL * INGOT_CODES_BLOCK * bits / 8;
    /* A scale comes behind the last that share it. */
    if (k + INGOT_CODES_BLOCK < g->k && (k / INGOT_CODES_BLOCK + 1) % span) continue;
    const int64_t scale = k / g->group * g->scale_k_stride;
    memcpy(panel + 2 * column, src.scales + scale, 2);
    if (zeros) panel[2 * INGOT_PANEL + column] = (uint8_t)((src.zeros[scale] ^ g->flip) << (8 - bits));
    panel += (2 + zeros) * INGOT_PANEL;
  }
}

static inline __attribute__((always_inline)) void pack_codes(const pack_args *g, const int bits, const int zeros,
                                                             const int span, int32_t part, int32_t parts) {
  const int64_t width = g->second ? INGOT_PANEL / 2 : INGOT_PANEL; /* columns of a matrix in a panel */
  const int64_t blocks = (g->k + INGOT_CODES_BLOCK - 1) / INGOT_CODES_BLOCK;
  const int64_t panels = (g->n + width - 1) / width, panel_bytes = codes_bytes(blocks, bits, zeros, span);
  const int64_t end = part_begin(panels, part + 1, parts);
  for (int64_t i = part_begin(panels, part, parts); i < end; i++) {
    uint8_t *panel = (uint8_t *)g->dst + i * panel_bytes;
    if (g->n - i * width < width) memset(panel, 0, (size_t)panel_bytes);
    for (int64_t j = i * width; j < g->n && j < (i + 1) * width; j++) {
      const int64_t at = j * g->n_stride, scale = j * g->scale_n_stride;
      pack_codes_source src = {(const uint8_t *)g->src + at, (const uint16_t *)g->scales + scale, NULL};
      if (zeros) src.zeros = (const uint8_t *)g->zeros + scale;
      pack_codes_column(g, src, bits, zeros, span, j - i * width, panel);
      if (!g->second) continue;
      src = (pack_codes_source){(const uint8_t *)g->second + at, (const uint16_t *)g->second_scales + scale, NULL};
      if (zeros) src.zeros = (const uint8_t *)g->second_zeros + scale;
      pack_codes_column(g, src, bits, zeros, span, j - i * width + width, panel);
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
PACK_CODES(pack_int4, CODES_INT4)
PACK_CODES(pack_int4_zeros, CODES_INT4_ZEROS)
PACK_CODES(pack_int4_128, CODES_INT4_128)
PACK_CODES(pack_int4_128_zeros, CODES_INT4_128_ZEROS)

#undef PACK_CODES

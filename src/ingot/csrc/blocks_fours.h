/* blocks_fours.h: the scales and codes of blocks by fours, as bytes of a word. Included by files that first define
 * BLOCKS_W, a word of uint32_t or a vector of them, all of which go the same way. */

/* Bytes of six bits, less 32. */
static inline BLOCKS_W blocks_centred(BLOCKS_W w) { return ((w | 0x80808080u) - 0x20202020u) ^ 0x80808080u; }

/* Four fields of two bits, the lowest of a word, as bytes. */
static inline BLOCKS_W blocks_spread(BLOCKS_W w) {
  w = (w | w << 12) & 0x000f000fu;
  return (w | w << 6) & 0x03030303u;
}

/* Scales 4j to 4j + 3 of a block, as signed bytes. w: words 0, 1 and so on of the scales. */
static inline __attribute__((always_inline)) BLOCKS_W blocks_scales(const int held, const BLOCKS_W w[], int j) {
  if (held == BLOCKS_SIXES)
    return j == 0 ? w[0] & 0x3f3f3f3fu : (w[2] & 0x0f0f0f0fu) | (w[0] >> 2 & 0x30303030u);
  if (held == BLOCKS_NIBBLES) return w[j] & 0x0f0f0f0fu;
  if (held == BLOCKS_BYTES) return w[j];
  if (held == BLOCKS_SPLIT)
    return blocks_centred((w[j % 2] >> 4 * (j / 2) & 0x0f0f0f0fu) | (w[2] >> 2 * j & 0x03030303u) << 4);
  BLOCKS_W low = w[0] >> 16 * j & 0xffffu;
  low = (low | low << 8) & 0x00ff00ffu;
  low = (low | low << 4) & 0x0f0f0f0fu;
  return blocks_centred(low | blocks_spread(w[1] >> 8 * j & 0xffu) << 4);
}

/* The mins beside them. */
static inline __attribute__((always_inline)) BLOCKS_W blocks_mins(const int held, const BLOCKS_W w[], int j) {
  if (held == BLOCKS_NIBBLES) return w[j] >> 4 & 0x0f0f0f0fu;
  return j == 0 ? w[1] & 0x3f3f3f3fu : (w[2] >> 4 & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u);
}

/* Codes 4q to 4q + 3 of 32. low, high: the words that hold their lower bits and the others. */
static inline __attribute__((always_inline)) BLOCKS_W blocks_codes(const int bits, BLOCKS_W low, BLOCKS_W high,
                                                                   const int q) {
  if (bits == 2) return low >> 2 * (q % 4) & 0x03030303u;
  if (bits == 3) {
    const BLOCKS_W above = q < 2 ? high << (2 - q) : high >> (q - 2);
    return (low >> 2 * (q % 4) & 0x03030303u) | (above & 0x04040404u);
  }
  low = (q < 4 ? low : low >> 4) & 0x0f0f0f0fu;
  if (bits == 4) return low;
  if (bits == 5) return low | ((q < 4 ? high << (4 - q) : high >> (q - 4)) & 0x10101010u);
  return low | ((q % 4 < 2 ? high << (4 - 2 * (q % 4)) : high >> (2 * (q % 4) - 4)) & 0x30303030u);
}

/* The words that hold the lower bits of codes 4q to 4q + 3, and the others. */
static inline int blocks_low_word(const int bits, const int q) { return bits < 4 ? q / 4 : q % 4; }

static inline int blocks_high_word(const int bits, const int q) { return bits < 4 ? 2 : bits == 6 ? 4 + q / 4 : 4; }

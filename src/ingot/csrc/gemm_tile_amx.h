/* gemm_tile_amx.h: codes_tile_<format>_many and blocks_tile_<type>_many: what tiles do, for all rows at hand, by AMX.
 * Included behind gemm_tile_blocks.h by a file whose macros have 16 lanes. Sums of integers are exact in any order;
 * floats keep the order of tiles. */

#define AMX_SUMS (AMX_ROWS * CODES_LANES) /* of a tile */

typedef uint16_t amx_halves __attribute__((vector_size(64)));
typedef uint8_t amx_bytes __attribute__((vector_size(64)));

/* A strip as signed bytes, [fours][32][4]; of codes times their scales the lower bytes, and the upper ones. */
typedef struct {
  _Alignas(64) uint32_t low[INGOT_ROUND_GROUP / 4 * INGOT_PANEL];
  _Alignas(64) uint32_t high[INGOT_ROUND_GROUP / 4 * INGOT_PANEL];
} amx_digits;

/* The sums of some blocks of a tile of rows. b: their bytes, which are codes as they lie or signed. */
static inline __attribute__((always_inline)) void amx_blocks(const int is_signed, const int8_t *a, int64_t stride,
                                                             int64_t blocks, const uint8_t *b, int32_t *sums) {
  AMX_ZERO(0);
  for (; blocks > 1; blocks -= 2, a += 2 * INGOT_CODES_BLOCK, b += 2 * INGOT_CODES_BLOCK * INGOT_PANEL) {
    AMX_LOAD(5, b, 4 * INGOT_PANEL);
    AMX_LOAD(4, a, stride);
    if (is_signed)
      AMX_DOT(tdpbssd, 0, 4, 5);
    else
      AMX_DOT(tdpbsud, 0, 4, 5);
  }
  if (blocks) {
    AMX_LOAD(7, b, 4 * INGOT_PANEL);
    AMX_LOAD(6, a, stride);
    if (is_signed)
      AMX_DOT(tdpbssd, 0, 6, 7);
    else
      AMX_DOT(tdpbsud, 0, 6, 7);
  }
  AMX_STORE(0, sums, 4 * CODES_LANES);
}

/* How codes and their scales lie: bits as in panels, or less than 8 where they are signed; has_less: whether sums of a
 * row's codes are multiplied with floats. */
typedef struct { int bits, zeros, span, has_less; } amx_way;

/* What the groups of a strip with one scale have for 16 columns. */
typedef struct {
  const uint8_t *codes[CODES_BLOCKS];
  CODES_F scale[CODES_BLOCKS], less[CODES_BLOCKS];
  CODES_I zero[CODES_BLOCKS];
} amx_groups;

/* A row's sums of a strip, times scales and the row's step. */
static inline __attribute__((always_inline)) void amx_row(const amx_way w, const int64_t groups, const amx_groups *g,
                                                          const int8_t *offsets, const int8_t *step,
                                                          const int32_t *sums, float *to) {
  CODES_F inner = CODES_ZERO();
  INGOT_UNROLL for (int i = 0; i < groups; i++) {
    CODES_I sum = CODES_LOAD(sums + i * AMX_SUMS);
    if (w.bits == 8 && w.zeros)
      sum = CODES_TAKEN(sum, g->zero[i], CODES_SET(offsets + 4 * i));
    else if (w.bits == 8)
      sum = (CODES_I)((BLOCKS_W)sum + (BLOCKS_W)CODES_SET(offsets + 4 * i));
    inner = CODES_FMA(CODES_FLOATS(sum), g->scale[i], inner);
    if (w.has_less) inner = CODES_FMA(CODES_FLOATS(CODES_SET(offsets + 4 * i)), g->less[i], inner);
  }
  CODES_WRITE(to, CODES_FMA(inner, (CODES_F)CODES_SET(step), CODES_READ(to)));
}

/* 16 columns of a strip whose scales are floats, times all rows. is_whole: no block is missing, a constant. */
static inline __attribute__((always_inline)) void amx_columns(const amx_way w, const int is_whole, int64_t rows,
                                                              const amx_groups *groups, const codes_strip *s,
                                                              int64_t column) {
  const int64_t count = is_whole ? CODES_BLOCKS / w.span : (s->count + w.span - 1) / w.span;
  const int64_t offsets = s->offsets + 4 * (s->first / w.span), step = s->steps + 4 * (s->first / CODES_BLOCKS);
  const amx_groups g = *groups;
  _Alignas(64) int32_t sums[CODES_BLOCKS][AMX_SUMS];
  for (int64_t row = 0; row < rows; row += AMX_ROWS) {
    const int64_t first = amx_first(rows, row / AMX_ROWS);
    const int8_t *a = s->a + first * s->a_stride, *codes = a + s->first * INGOT_CODES_BLOCK;
    INGOT_UNROLL for (int64_t i = 0; i < count; i++, codes += w.span * INGOT_CODES_BLOCK) {
      const int64_t left = s->count - i * w.span, blocks = is_whole || left > w.span ? w.span : left;
      amx_blocks(w.bits < 8, codes, s->a_stride, blocks, g.codes[i], sums[i]);
    }
    for (int64_t r = row - first; r < AMX_ROWS; r++)
      amx_row(w, count, &g, a + r * s->a_stride + offsets, a + r * s->a_stride + step, sums[0] + r * CODES_LANES,
              s->sums + (first + r) * INGOT_PANEL + column);
  }
}

/* Codes of 4 bits of a group, less their zeros, of 16 columns. b: the group's blocks. */
static inline __attribute__((always_inline)) void amx_open_codes(int64_t blocks, const uint8_t *b, BLOCKS_W zero,
                                                                 uint32_t *to) {
  for (; blocks; blocks--, to += 8 * INGOT_PANEL) {
    INGOT_UNROLL for (int q = 0; q < 4; q++, b += 4 * INGOT_PANEL) {
      const BLOCKS_W fours = (BLOCKS_W)CODES_LOAD(b);
      const amx_bytes low = (amx_bytes)(fours & 0x0f0f0f0fu) - (amx_bytes)zero;
      const amx_bytes high = (amx_bytes)(fours >> 4 & 0x0f0f0f0fu) - (amx_bytes)zero;
      memcpy(to + q * INGOT_PANEL, &low, sizeof low);
      memcpy(to + (q + 4) * INGOT_PANEL, &high, sizeof high);
    }
  }
}

static inline __attribute__((always_inline)) void amx_codes(const int bits, const int zeros, const int span,
                                                            int64_t rows, const codes_strip *s) {
  amx_digits digits;
  amx_groups g;
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_LANES) {
    const uint8_t *b = s->b;
    for (int64_t i = 0; i * span < s->count; i++) {
      const int64_t left = s->count - i * span, blocks = left < span ? left : span;
      const uint8_t *shared = b + blocks * INGOT_PANEL * INGOT_CODES_BLOCK * bits / 8;
      BLOCKS_W zero = (BLOCKS_W)CODES_NONE() + 8 * 0x01010101u;
      g.scale[i] = CODES_SCALES((const uint16_t *)shared + column);
      if (zeros) g.zero[i] = CODES_ZEROS(shared + 2 * INGOT_PANEL + column);
      if (zeros) zero = ((BLOCKS_W)g.zero[i] >> 4) * 0x01010101u;
      uint32_t *open = digits.low + i * span * 8 * INGOT_PANEL + column;
      if (bits == 4) amx_open_codes(blocks, b + 4 * column, zero, open);
      g.codes[i] = bits == 4 ? (const uint8_t *)open : b + 4 * column;
      b = shared + (2 + zeros) * INGOT_PANEL;
    }
    if (s->count == CODES_BLOCKS)
      amx_columns((amx_way){bits, zeros, span, 0}, 1, rows, &g, s, column);
    else
      amx_columns((amx_way){bits, zeros, span, 0}, 0, rows, &g, s, column);
  }
}

/* Blocks of 32 with one scale. */
static inline __attribute__((always_inline)) void amx_alone(const blocks_type t, int64_t rows, const codes_strip *s) {
  const amx_bytes offset = (amx_bytes)((BLOCKS_W)CODES_NONE() + (uint32_t)t.offset * 0x01010101u);
  amx_digits digits;
  amx_groups g;
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_LANES) {
    const uint8_t *b = s->b;
    for (int64_t i = 0; i < s->count; i++, b += blocks_bytes(t)) {
      const uint16_t *halves = (const uint16_t *)b + column;
      uint32_t *open = digits.low + i * 8 * INGOT_PANEL + column;
      g.codes[i] = (const uint8_t *)open;
      g.scale[i] = CODES_SCALES(halves);
      if (t.has_m) g.less[i] = CODES_MUL(CODES_SCALES(halves + INGOT_PANEL), CODES_SPREAD(-1.0f / 128));
      INGOT_UNROLL for (int q = 0; q < 8; q++, open += INGOT_PANEL) {
        const amx_bytes four = (amx_bytes)blocks_four(t, b + blocks_head(t) + 4 * column, q) - offset;
        memcpy(open, &four, sizeof four);
      }
    }
    amx_columns((amx_way){t.bits, 0, 1, t.has_m}, 0, rows, &g, s, column);
  }
}

/* Codes less their offset, times their scales, of 16 columns of a strip with a block of 256. */
static inline __attribute__((always_inline)) void amx_open_blocks(const blocks_type t, const codes_strip *s,
                                                                  int64_t column, amx_digits *d) {
  const uint8_t *b = s->b + blocks_head(t) + 4 * column;
  const int parts = INGOT_CODES_BLOCK / t.part;
  for (int n = 0; n < CODES_BLOCKS; n++, b += 4 * INGOT_PANEL * t.bits) {
    INGOT_UNROLL for (int q = 0; q < 8; q++) {
      const int part = n * parts + q * parts / 8, at = (8 * n + q) * INGOT_PANEL + (int)column;
      const BLOCKS_W fours = blocks_four(t, b, q);
      BLOCKS_W scale = blocks_of(t, s->b, column, part / 4, 0) << (24 - part % 4 * 8);
      scale = (BLOCKS_W)((BLOCKS_S)scale >> 24);
      scale = (scale & 0xffffu) | scale << 16;
      const amx_halves even = (((amx_halves)fours & 255) - (uint16_t)t.offset) * (amx_halves)scale;
      const amx_halves odd = (((amx_halves)fours >> 8) - (uint16_t)t.offset) * (amx_halves)scale;
      const amx_halves low = (even & 255) | odd << 8, high = even >> 8 | (odd & 0xff00);
      memcpy(d->low + at, &low, sizeof low);
      memcpy(d->high + at, &high, sizeof high);
    }
  }
}

/* A row's sums of digits, times scales, less mins, times the row's step. */
static inline __attribute__((always_inline)) void amx_digits_row(const blocks_type t, const CODES_I beside[8],
                                                                 CODES_F d, CODES_F m, const int8_t *wholes,
                                                                 const int8_t *step, const int32_t *sums, float *to) {
  const BLOCKS_W low = (BLOCKS_W)CODES_LOAD(sums), high = (BLOCKS_W)CODES_LOAD(sums + AMX_SUMS);
  CODES_F group = CODES_MUL(CODES_FLOATS((CODES_I)(low + (high << 8))), d);
  if (t.has_m) {
    CODES_I taken = CODES_NONE();
    INGOT_UNROLL for (int n = 0; n < 128 / t.part; n++) taken = BLOCKS_PAIRS(taken, beside[n], wholes + 4 * n);
    group = CODES_FMA(CODES_FLOATS(taken), m, group);
  }
  CODES_WRITE(to, CODES_FMA(group, (CODES_F)CODES_SET(step), CODES_READ(to)));
}

/* Blocks of 256: their codes times scales are integers of 16 bits, and so two digits. */
static inline __attribute__((always_inline)) void amx_blocks_256(const blocks_type t, int64_t rows,
                                                                 const codes_strip *s) {
  const int64_t wholes = t.part == 32 ? s->wholes + 2 * s->first : s->halves + 4 * s->first;
  const int64_t step = s->steps + 4 * (s->first / CODES_BLOCKS);
  amx_digits digits;
  _Alignas(64) int32_t sums[2][AMX_SUMS];
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_LANES) {
    const uint16_t *halves = (const uint16_t *)(s->b + INGOT_PANEL * t.scale_bytes) + column;
    const CODES_F d = CODES_SCALES(halves), m = t.has_m ? blocks_less(halves + INGOT_PANEL) : CODES_ZERO();
    CODES_I beside[8];
    if (t.has_m) {
      INGOT_UNROLL for (int n = 0; n < 128 / t.part; n++) beside[n] = blocks_beside(t, s->b, column, n);
    }
    amx_open_blocks(t, s, column, &digits);
    for (int64_t row = 0; row < rows; row += AMX_ROWS) {
      const int64_t first = amx_first(rows, row / AMX_ROWS), stride = s->a_stride;
      const int8_t *a = s->a + first * stride, *codes = a + s->first * INGOT_CODES_BLOCK;
      amx_blocks(0, codes, stride, CODES_BLOCKS, (const uint8_t *)(digits.low + column), sums[0]);
      amx_blocks(1, codes, stride, CODES_BLOCKS, (const uint8_t *)(digits.high + column), sums[1]);
      for (int64_t r = row - first; r < AMX_ROWS; r++)
        amx_digits_row(t, beside, d, m, a + r * stride + wholes, a + r * stride + step, sums[0] + r * CODES_LANES,
                       s->sums + (first + r) * INGOT_PANEL + column);
    }
  }
}

#define AMX_CODES(name, ...) \
  void K(name##_many)(int64_t rows, const codes_strip *s) { amx_codes(__VA_ARGS__, rows, s); }
AMX_CODES(codes_tile_int8, CODES_INT8)
AMX_CODES(codes_tile_int8_zeros, CODES_INT8_ZEROS)
AMX_CODES(codes_tile_int8_128, CODES_INT8_128)
AMX_CODES(codes_tile_int8_128_zeros, CODES_INT8_128_ZEROS)
AMX_CODES(codes_tile_int4, CODES_INT4)
AMX_CODES(codes_tile_int4_zeros, CODES_INT4_ZEROS)
AMX_CODES(codes_tile_int4_128, CODES_INT4_128)
AMX_CODES(codes_tile_int4_128_zeros, CODES_INT4_128_ZEROS)

static inline __attribute__((always_inline)) void amx_type(const blocks_type t, int64_t rows, const codes_strip *s) {
  if (t.held == BLOCKS_ALONE)
    amx_alone(t, rows, s);
  else
    amx_blocks_256(t, rows, s);
}

#define AMX_BLOCKS(name, type)                                                                    \
  void K(name##_many)(int64_t rows, const codes_strip *s) { amx_type(type(), rows, s); }
AMX_BLOCKS(blocks_tile_q4_1, blocks_q4_1)
AMX_BLOCKS(blocks_tile_q5_0, blocks_q5_0)
AMX_BLOCKS(blocks_tile_q5_1, blocks_q5_1)
AMX_BLOCKS(blocks_tile_iq4_nl, blocks_iq4_nl)
AMX_BLOCKS(blocks_tile_iq4_xs, blocks_iq4_xs)
AMX_BLOCKS(blocks_tile_q2_k, blocks_q2_k)
AMX_BLOCKS(blocks_tile_q3_k, blocks_q3_k)
AMX_BLOCKS(blocks_tile_q4_k, blocks_q4_k)
AMX_BLOCKS(blocks_tile_q5_k, blocks_q5_k)
AMX_BLOCKS(blocks_tile_q6_k, blocks_q6_k)

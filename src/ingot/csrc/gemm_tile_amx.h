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

/* The sums of some blocks: tall tiles of rows, at a and below, times wide tiles of columns, which stand in this order
 * in sums. b: their bytes, which are codes as they lie or signed. */
static inline __attribute__((always_inline)) void amx_blocks(const int is_signed, const int tall, const int wide,
                                                             const int8_t *a, const int8_t *below, int64_t stride,
                                                             int64_t blocks, const uint8_t *b, int32_t *sums) {
  AMX_ZERO(0);
  if (wide) AMX_ZERO(1);
  if (tall) AMX_ZERO(2);
  if (tall && wide) AMX_ZERO(3);
  for (; blocks > 1; blocks -= 2, b += 2 * INGOT_CODES_BLOCK * INGOT_PANEL) {
    if (is_signed)
      AMX_SQUARE(tdpbssd, tall, wide, a, below, stride, b, 4, 5);
    else
      AMX_SQUARE(tdpbsud, tall, wide, a, below, stride, b, 4, 5);
    a += 2 * INGOT_CODES_BLOCK;
    below += 2 * INGOT_CODES_BLOCK;
  }
  if (blocks && is_signed) AMX_SQUARE(tdpbssd, tall, wide, a, below, stride, b, 6, 7);
  if (blocks && !is_signed) AMX_SQUARE(tdpbsud, tall, wide, a, below, stride, b, 6, 7);
  AMX_STORE(0, sums, 4 * CODES_LANES);
  if (wide) AMX_STORE(1, sums + AMX_SUMS, 4 * CODES_LANES);
  if (tall) AMX_STORE(2, sums + (1 + wide) * AMX_SUMS, 4 * CODES_LANES);
  if (tall && wide) AMX_STORE(3, sums + 3 * AMX_SUMS, 4 * CODES_LANES);
}

/* How codes and their scales lie: bits as in panels, or less than 8 where they are signed; has_less: whether sums of a
 * row's codes are multiplied with floats. */
typedef struct { int bits, zeros, span, has_less; } amx_way;

/* What the groups of a strip with one scale have for 16 columns. */
typedef struct { CODES_F scale[CODES_BLOCKS], less[CODES_BLOCKS]; CODES_I zero[CODES_BLOCKS]; } amx_scales;

/* Those groups, and what they have for 32 columns, or for 16 where there are many of them. */
typedef struct { const uint8_t *codes[CODES_BLOCKS]; amx_scales scales[2]; } amx_groups;

/* Whether 32 columns go together. */
static inline int amx_is_wide(const amx_way w) { return w.span > 1; }

/* The integers from the sums of a group of a strip to those of the next, for so many tiles of rows. */
static inline int64_t amx_apart(const amx_way w, int64_t tall) { return (1 + amx_is_wide(w)) * tall * AMX_SUMS; }

/* The groups of a strip. whole: that many, none of which lacks a block, or 0; a constant. */
static inline int64_t amx_count(const amx_way w, const int whole, const codes_strip *s) {
  return whole ? whole : (s->count + w.span - 1) / w.span;
}

/* The sums of a strip for one or two tiles of rows. */
static inline __attribute__((always_inline)) void amx_products(const amx_way w, const int whole, const int tall,
                                                               const int8_t *a, const int8_t *below,
                                                               const amx_groups *g, const codes_strip *s,
                                                               int32_t *sums) {
  const int64_t count = amx_count(w, whole, s), group_bytes = w.span * INGOT_CODES_BLOCK;
  INGOT_UNROLL for (int i = 0; i < CODES_BLOCKS / w.span; i++, sums += amx_apart(w, 1 + tall)) {
    if (i >= count) break;
    const int64_t left = s->count - i * w.span, blocks = whole || left > w.span ? w.span : left;
    amx_blocks(w.bits < 8, tall, amx_is_wide(w), a + i * group_bytes, below + i * group_bytes, s->a_stride, blocks,
               g->codes[i], sums);
  }
}

/* A row's sums of a strip for 16 columns, those of groups `apart` integers apart, times scales and the row's step.
 * begins: whether the strip is the first. */
static inline __attribute__((always_inline)) void amx_row(const amx_way w, const int64_t groups, const amx_scales *g,
                                                          const int8_t *offsets, const int8_t *step, int begins,
                                                          const int32_t *sums, int64_t apart, float *to) {
  CODES_F inner = CODES_ZERO();
  INGOT_UNROLL for (int i = 0; i < CODES_BLOCKS / w.span; i++) {
    if (i >= groups) break;
    CODES_I sum = CODES_LOAD(sums + i * apart);
    if (w.bits == 8 && w.zeros)
      sum = CODES_TAKEN(sum, g->zero[i], CODES_SET(offsets + 4 * i));
    else if (w.bits == 8)
      sum = (CODES_I)((BLOCKS_W)sum + (BLOCKS_W)CODES_SET(offsets + 4 * i));
    inner = CODES_FMA(CODES_FLOATS(sum), g->scale[i], inner);
    if (w.has_less) inner = CODES_FMA(CODES_FLOATS(CODES_SET(offsets + 4 * i)), g->less[i], inner);
  }
  CODES_WRITE(to, CODES_FMA(inner, (CODES_F)CODES_SET(step), begins ? CODES_ZERO() : CODES_READ(to)));
}

/* What becomes of the sums of a tile of rows, which begins at row `first`, from its own row `from` on. */
static inline __attribute__((always_inline)) void amx_results(const amx_way w, const int whole, const amx_groups *all,
                                                              const codes_strip *s, int64_t column, int64_t first,
                                                              int64_t from, const int32_t *sums, int64_t apart) {
  const int64_t count = amx_count(w, whole, s);
  const int64_t offsets = s->offsets + 4 * (s->first / w.span), step = s->steps + 4 * (s->first / CODES_BLOCKS);
  const int8_t *a = s->a + (first + from) * s->a_stride;
  float *to = s->sums + (first + from) * INGOT_PANEL + column;
  amx_scales g[2];
  INGOT_UNROLL for (int half = 0; half <= amx_is_wide(w); half++) g[half] = all->scales[half];
  const uint8_t *ahead = s->ahead + (first + from) * s->ahead_step;
  const int64_t ahead_step = column ? 0 : s->ahead_step;
  for (int64_t r = from; r < AMX_ROWS; r++, a += s->a_stride, to += INGOT_PANEL, ahead += ahead_step) {
    codes_expect(ahead, 0, ahead_step);
    INGOT_UNROLL for (int half = 0; half <= amx_is_wide(w); half++)
      amx_row(w, count, &g[half], a + offsets, a + step, s->first == 0, sums + half * AMX_SUMS + r * CODES_LANES,
              apart, to + half * CODES_LANES);
  }
}

/* Columns of a strip whose scales are floats, times all rows. */
static inline __attribute__((always_inline)) void amx_columns(const amx_way w, const int whole, int64_t rows,
                                                              const amx_groups *g, const codes_strip *s,
                                                              int64_t column) {
  const int64_t tiles = (rows + AMX_ROWS - 1) / AMX_ROWS;
  const int8_t *codes = s->a + s->first * INGOT_CODES_BLOCK;
  _Alignas(64) int32_t sums[2 * CODES_BLOCKS * AMX_SUMS];
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    const int64_t together = tile + 1 < tiles ? 2 : 1, apart = amx_apart(w, together);
    const int8_t *a = codes + amx_first(rows, tile) * s->a_stride;
    const int8_t *below = codes + amx_first(rows, tile + together - 1) * s->a_stride;
    if (together > 1)
      amx_products(w, whole, 1, a, below, g, s, sums);
    else
      amx_products(w, whole, 0, a, below, g, s, sums);
    for (int64_t t = tile; t < tile + together; t++) {
      const int64_t first = amx_first(rows, t);
      amx_results(w, whole, g, s, column, first, t * AMX_ROWS - first, sums + (t - tile) * amx_apart(w, 1), apart);
    }
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
  const int summed = codes_summed(span);
  const amx_way way = {bits, zeros, summed, 0};
  const int64_t width = amx_is_wide(way) ? INGOT_PANEL : CODES_LANES;
  amx_digits digits;
  amx_groups g;
  for (int64_t column = 0; column < INGOT_PANEL; column += width) {
    const uint8_t *b = s->b;
    for (int64_t i = 0; i * summed < s->count; i++) {
      const int64_t left = s->count - i * summed, blocks = left < summed ? left : summed;
      const uint8_t *behind = b + blocks * INGOT_PANEL * INGOT_CODES_BLOCK * bits / 8;
      const uint8_t *shared = span > CODES_BLOCKS ? s->shared : behind;
      uint32_t *open = digits.low + i * summed * 8 * INGOT_PANEL + column;
      g.codes[i] = bits == 4 ? (const uint8_t *)open : b + 4 * column;
      for (int64_t half = 0, at = column; half * CODES_LANES < width; half++, at += CODES_LANES) {
        BLOCKS_W zero = (BLOCKS_W)CODES_NONE() + 8 * 0x01010101u;
        g.scales[half].scale[i] = CODES_SCALES((const uint16_t *)shared + at);
        if (zeros) g.scales[half].zero[i] = CODES_ZEROS(shared + 2 * INGOT_PANEL + at);
        if (zeros) zero = ((BLOCKS_W)g.scales[half].zero[i] >> 4) * 0x01010101u;
        if (bits == 4) amx_open_codes(blocks, b + 4 * at, zero, open + half * CODES_LANES);
      }
      b = behind + (2 + zeros) * INGOT_PANEL;
    }
    if (s->count == CODES_BLOCKS)
      amx_columns(way, CODES_BLOCKS / summed, rows, &g, s, column);
    else if (s->count == summed)
      amx_columns(way, 1, rows, &g, s, column);
    else
      amx_columns(way, 0, rows, &g, s, column);
  }
}

/* Rows of the sums that wait become floats: a quarter of those of a tile, less rows before `from`. begins: whether they
 * are the first of their results; a constant. */
static inline __attribute__((always_inline)) void amx_settle_rows(const codes_waiting *w, const int begins, int tile,
                                                                  int64_t quarter, CODES_F left, CODES_F right) {
  const int64_t end = (quarter + 1) * (AMX_ROWS / 4), first = end - AMX_ROWS / 4, from = w->from[tile];
  int64_t r = first < from ? from : first;
  const int64_t a_stride = w->a_stride, step = w->step - w->offset;
  const int32_t *sums = w->sums[w->turn] + 2 * tile * AMX_SUMS + r * CODES_LANES;
  const int8_t *a = w->a[tile] + w->offset + r * a_stride;
  float *to = w->to[tile] + r * INGOT_PANEL;
  for (; r < end; r++, sums += CODES_LANES, a += a_stride, to += INGOT_PANEL) {
    const BLOCKS_W offset = (BLOCKS_W)CODES_SET(a);
    const CODES_F steps = (CODES_F)CODES_SET(a + step);
    const CODES_I low = (CODES_I)((BLOCKS_W)CODES_LOAD(sums) + offset);
    const CODES_I high = (CODES_I)((BLOCKS_W)CODES_LOAD(sums + AMX_SUMS) + offset);
    const CODES_F before = begins ? CODES_ZERO() : CODES_READ(to);
    const CODES_F beside = begins ? CODES_ZERO() : CODES_READ(to + CODES_LANES);
    CODES_WRITE(to, CODES_FMA(CODES_FMA(CODES_FLOATS(low), left, CODES_ZERO()), steps, before));
    CODES_WRITE(to + CODES_LANES, CODES_FMA(CODES_FMA(CODES_FLOATS(high), right, CODES_ZERO()), steps, beside));
  }
}

/* A quarter of the sums that wait become floats. */
static inline __attribute__((always_inline)) void amx_settle(const codes_waiting *w, int64_t quarter) {
  if (!w->tiles) return;
  const CODES_F left = CODES_SCALES((const uint16_t *)w->shared);
  const CODES_F right = CODES_SCALES((const uint16_t *)w->shared + CODES_LANES);
  for (int tile = 0; tile < w->tiles; tile++) {
    if (w->begins)
      amx_settle_rows(w, 1, tile, quarter, left, right);
    else
      amx_settle_rows(w, 0, tile, quarter, left, right);
  }
}

/* The sums of a strip for one or two tiles of rows, beside which those that wait become floats: tiles are multiplied by
 * a unit of their own. ahead: of the bytes that are read next, those that these rows ask for. */
static inline __attribute__((always_inline)) void amx_beside(const int tall, const int8_t *a, const int8_t *below,
                                                             const codes_strip *s, const uint8_t *ahead,
                                                             codes_waiting *w) {
  const int64_t quarter_bytes = (1 + tall) * AMX_ROWS / 4 * s->ahead_step;
  const uint8_t *b = s->b;
  int32_t *sums = w->sums[!w->turn];
  int64_t left = s->count;
  AMX_ZERO(0);
  AMX_ZERO(1);
  if (tall) AMX_ZERO(2);
  if (tall) AMX_ZERO(3);
  for (int64_t quarter = 0; quarter < 4; quarter++, left -= 2, b += 2 * INGOT_CODES_BLOCK * INGOT_PANEL) {
    if (left > 1) AMX_SQUARE(tdpbsud, tall, 1, a, below, s->a_stride, b, 4, 5);
    if (left == 1) AMX_SQUARE(tdpbsud, tall, 1, a, below, s->a_stride, b, 6, 7);
    a += 2 * INGOT_CODES_BLOCK;
    below += 2 * INGOT_CODES_BLOCK;
    amx_settle(w, quarter);
    codes_expect(ahead, quarter * quarter_bytes, (quarter + 1) * quarter_bytes);
  }
  AMX_STORE(0, sums, 4 * CODES_LANES);
  AMX_STORE(1, sums + AMX_SUMS, 4 * CODES_LANES);
  if (tall) AMX_STORE(2, sums + 2 * AMX_SUMS, 4 * CODES_LANES);
  if (tall) AMX_STORE(3, sums + 3 * AMX_SUMS, 4 * CODES_LANES);
}

/* One scale for a row of the matrix. Of no rows, what waits becomes floats. */
static inline void amx_codes_row(int64_t rows, const codes_strip *s) {
  const int64_t tiles = (rows + AMX_ROWS - 1) / AMX_ROWS;
  codes_waiting *w = s->waiting;
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    const int64_t together = tile + 1 < tiles ? 2 : 1;
    const int64_t first[2] = {amx_first(rows, tile), amx_first(rows, tile + together - 1)};
    const int8_t *a = s->a + s->first * INGOT_CODES_BLOCK;
    const uint8_t *ahead = s->ahead + tile * AMX_ROWS * s->ahead_step;
    if (together > 1)
      amx_beside(1, a + first[0] * s->a_stride, a + first[1] * s->a_stride, s, ahead, w);
    else
      amx_beside(0, a + first[0] * s->a_stride, a + first[0] * s->a_stride, s, ahead, w);
    for (int i = 0; i < together; i++) {
      w->a[i] = s->a + first[i] * s->a_stride;
      w->to[i] = s->sums + first[i] * INGOT_PANEL;
      w->from[i] = (tile + i) * AMX_ROWS - first[i];
    }
    w->offset = s->offsets + 4 * (s->first / CODES_BLOCKS);
    w->step = s->steps + 4 * (s->first / CODES_BLOCKS);
    w->shared = s->shared, w->a_stride = s->a_stride, w->begins = s->first == 0;
    w->tiles = (int32_t)together, w->turn = !w->turn;
  }
  for (int64_t quarter = 0; quarter < 4 && !rows; quarter++) amx_settle(w, quarter);
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
      g.scales->scale[i] = CODES_SCALES(halves);
      if (t.has_m) g.scales->less[i] = CODES_MUL(CODES_SCALES(halves + INGOT_PANEL), CODES_SPREAD(-1.0f / 128));
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
                                                                 const int8_t *step, int begins, const int32_t *sums,
                                                                 float *to) {
  const BLOCKS_W low = (BLOCKS_W)CODES_LOAD(sums), high = (BLOCKS_W)CODES_LOAD(sums + AMX_SUMS);
  CODES_F group = CODES_MUL(CODES_FLOATS((CODES_I)(low + (high << 8))), d);
  if (t.has_m) {
    CODES_I taken = CODES_NONE();
    INGOT_UNROLL for (int n = 0; n < 128 / t.part; n++) taken = BLOCKS_PAIRS(taken, beside[n], wholes + 4 * n);
    group = CODES_FMA(CODES_FLOATS(taken), m, group);
  }
  CODES_WRITE(to, CODES_FMA(group, (CODES_F)CODES_SET(step), begins ? CODES_ZERO() : CODES_READ(to)));
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
      amx_blocks(0, 0, 0, codes, codes, stride, CODES_BLOCKS, (const uint8_t *)(digits.low + column), sums[0]);
      amx_blocks(1, 0, 0, codes, codes, stride, CODES_BLOCKS, (const uint8_t *)(digits.high + column), sums[1]);
      for (int64_t r = row - first; r < AMX_ROWS; r++) {
        if (!column) codes_expect(s->ahead, (first + r) * s->ahead_step, (first + r + 1) * s->ahead_step);
        amx_digits_row(t, beside, d, m, a + r * stride + wholes, a + r * stride + step, s->first == 0,
                       sums[0] + r * CODES_LANES, s->sums + (first + r) * INGOT_PANEL + column);
      }
    }
  }
}

#define AMX_CODES(name, ...) \
  void K(name##_many)(int64_t rows, const codes_strip *s) { amx_codes(__VA_ARGS__, rows, s); }
#define AMX_ROW_CODES(name) \
  void K(name##_many)(int64_t rows, const codes_strip *s) { amx_codes_row(rows, s); }
AMX_CODES(codes_tile_int8, CODES_INT8)
AMX_CODES(codes_tile_int8_zeros, CODES_INT8_ZEROS)
AMX_CODES(codes_tile_int8_128, CODES_INT8_128)
AMX_CODES(codes_tile_int8_128_zeros, CODES_INT8_128_ZEROS)
AMX_ROW_CODES(codes_tile_int8_row)
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

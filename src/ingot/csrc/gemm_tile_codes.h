/* gemm_tile_codes.h: the bodies of codes_tile_<format>. Included by files that first define CODES_I, the register of
 * CODES_LANES sums, with CODES_NONE(), CODES_SET(p) (one int32 in all), CODES_LOAD(p) (four codes a lane), CODES_LOW(w)
 * and CODES_HIGH(w) (CODES_TIMES x the lower and upper halves of each byte), CODES_DOT8(sum, w, p) and
 * CODES_DOT4(sum, w, p) (sum + the four codes of each lane, those of 8 bits less CODES_LESS, 0 or 128, x four int8 at
 * p), CODES_ZEROS(p) (a byte for each lane), CODES_TAKEN(sum, z, offset) (sum + z * offset / 128), CODES_SMALLER(i) (i
 * / 16, exactly), BLOCKS_S, the same register in operators; CODES_F, as many floats, with CODES_FLOATS(i),
 * CODES_SCALES(p) (from f16), CODES_ZERO(), CODES_READ(p), CODES_WRITE(p, v), CODES_SPREAD(x), CODES_FMA(x, y, z);
 * CODES_SHAPES(X, ...): X(rows, ...) for every number of rows up to CODES_ROWS, and CODES_TALL_SHAPES(X, ...) up to
 * CODES_TALL; CODES_WIDTH, the registers of a row of a tile; and CODES_NEXT(p), which asks for what one row reads as
 * far ahead of p as memory is slow. */

/* One lane's worth of four elements of k: sums += a x w. */
static inline __attribute__((always_inline)) void codes_step(const int rows, const int bits, const CODES_I w[],
                                                             const int8_t *const a[], int64_t at,
                                                             CODES_I sum[][CODES_WIDTH]) {
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
      sum[i][j] = bits == 8 ? CODES_DOT8(sum[i][j], w[j], a[i] + at) : CODES_DOT4(sum[i][j], w[j], a[i] + at);
  }
}

/* Where sums begin, without zero points: at -128 times the sum of the row's codes, which stands at p; of codes of 4
 * bits at -8 times it, as large as codes are taken. Where products are of codes less 128, that is in them. */
static inline CODES_I codes_first(const int bits, const int zeros, const int8_t *p) {
  if (bits == 8 && CODES_LESS != 0) return zeros ? (CODES_I)-(BLOCKS_S)CODES_SET(p) : CODES_NONE();
  if (zeros) return CODES_NONE();
  return bits == 8 || CODES_TIMES == 16 ? CODES_SET(p) : CODES_SMALLER(CODES_SET(p));
}

/* Zero points, 16 times as large for codes of 4 bits, as codes are taken. */
static inline CODES_I codes_zero(const int bits, CODES_I zero) {
  return bits == 8 || CODES_TIMES == 16 ? zero : CODES_SMALLER(zero);
}

/* `rows`, `bits` (of a code), `zeros` and `span` (blocks that share a scale) are constants at every call. Codes of 4
 * bits lie in bytes by halves: the lower are those of the first half of a block. They are taken CODES_TIMES as large,
 * which `step` undoes. */
static inline __attribute__((always_inline)) void codes_body(const int rows, const int bits, const int zeros,
                                                             const int span, const codes_strip *s, int64_t column) {
  const int64_t end = s->first + s->count, summed = codes_summed(span);
  const int8_t *a[CODES_ROWS];
  CODES_F inner[CODES_ROWS][CODES_WIDTH];
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    a[i] = s->a + i * s->a_stride;
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) inner[i][j] = CODES_ZERO();
  }
  const uint8_t *b = s->b + 4 * column;
  for (int64_t block = s->first; block < end;) {
    const int64_t stop = span == 1 || block + summed < end ? block + summed : end;
    const int64_t offset = s->offsets + 4 * (block / summed);
    CODES_I sum[CODES_ROWS][CODES_WIDTH];
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) sum[i][j] = codes_first(bits, zeros, a[i] + offset);
    }
    do {
      INGOT_UNROLL for (int q = 0; q < bits; q++) {
        CODES_I w[CODES_WIDTH], part[CODES_WIDTH];
        INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
          const uint8_t *four = b + 4 * (q * INGOT_PANEL + j * CODES_LANES);
          w[j] = CODES_LOAD(four);
          if (rows == 1) CODES_NEXT(four);
        }
        if (bits == 8) {
          codes_step(rows, bits, w, a, block * INGOT_CODES_BLOCK + 4 * q, sum);
        } else {
          INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) part[j] = CODES_LOW(w[j]);
          codes_step(rows, bits, part, a, block * INGOT_CODES_BLOCK + 4 * q, sum);
          INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) part[j] = CODES_HIGH(w[j]);
          codes_step(rows, bits, part, a, block * INGOT_CODES_BLOCK + INGOT_CODES_BLOCK / 2 + 4 * q, sum);
        }
      }
      b += INGOT_PANEL * INGOT_CODES_BLOCK * bits / 8;
    } while (++block < stop);
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
      const CODES_F scale = CODES_SCALES((const uint16_t *)(b - 2 * column) + j * CODES_LANES);
      if (zeros) {
        const CODES_I zero = codes_zero(bits, CODES_ZEROS(b + 2 * INGOT_PANEL - 3 * column + j * CODES_LANES));
        INGOT_UNROLL for (int i = 0; i < rows; i++)
          sum[i][j] = CODES_TAKEN(sum[i][j], zero, CODES_SET(a[i] + offset));
      }
      INGOT_UNROLL for (int i = 0; i < rows; i++)
        inner[i][j] = CODES_FMA(CODES_FLOATS(sum[i][j]), scale, inner[i][j]);
    }
    b += (2 + zeros) * INGOT_PANEL;
  }
  const int64_t at = s->steps + 4 * (s->first / CODES_BLOCKS);
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    float step;
    memcpy(&step, a[i] + at, sizeof step);
    step = bits == 4 ? step * (1.0f / CODES_TIMES) : step;
    float *to = s->sums + i * INGOT_PANEL + column;
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
      CODES_WRITE(to + j * CODES_LANES, CODES_FMA(inner[i][j], CODES_SPREAD(step), CODES_READ(to + j * CODES_LANES)));
  }
}

#define CODES_TALL_ROW(i) (third[(i) / 3] + (i) % 3 * s->a_stride)

/* The same of codes of 8 bits without zero points of which a column has one scale. Every third row has a register of
 * its own: from it the next two are reached by the stride. */
static inline __attribute__((always_inline)) void codes_tall_body(const int rows, const codes_strip *s,
                                                                  int64_t column) {
  const int fours = rows < 4 ? INGOT_CODES_BLOCK / 4 : 1; /* of a turn of the loop, which should cost little */
  const int64_t group = s->first / CODES_BLOCKS, end = (s->first + s->count) * INGOT_CODES_BLOCK;
  const int8_t *third[(CODES_TALL + 2) / 3];
  CODES_I sum[CODES_TALL][CODES_WIDTH];
  INGOT_UNROLL for (int i = 0; i < rows; i += 3) third[i / 3] = s->a + i * s->a_stride;
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
      sum[i][j] = codes_first(8, 0, CODES_TALL_ROW(i) + s->offsets + 4 * group);
  }
  const uint8_t *b = s->b + 4 * column;
  for (int64_t k = s->first * INGOT_CODES_BLOCK; k < end; k += 4 * fours) {
    INGOT_UNROLL for (int q = 0; q < fours; q++, b += 4 * INGOT_PANEL) {
      CODES_I w[CODES_WIDTH];
      INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
        w[j] = CODES_LOAD(b + 4 * j * CODES_LANES);
        if (rows == 1) CODES_NEXT(b + 4 * j * CODES_LANES);
      }
      INGOT_UNROLL for (int i = 0; i < rows; i++) {
        INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
          sum[i][j] = CODES_DOT8(sum[i][j], w[j], CODES_TALL_ROW(i) + k + 4 * q);
      }
    }
  }
  INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
    const CODES_F scale = CODES_SCALES((const uint16_t *)(const void *)s->shared + column + j * CODES_LANES);
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      float step, *to = s->sums + i * INGOT_PANEL + column + j * CODES_LANES;
      memcpy(&step, CODES_TALL_ROW(i) + s->steps + 4 * group, sizeof step);
      const CODES_F scaled = CODES_MUL(CODES_FLOATS(sum[i][j]), scale);
      CODES_WRITE(to, CODES_FMA(scaled, CODES_SPREAD(step), CODES_READ(to)));
    }
  }
}

typedef void (*codes_tile)(const codes_strip *s, int64_t column);

static inline void codes_run(codes_tile tile, const codes_strip *s) {
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_WIDTH * CODES_LANES) tile(s, column);
}

#define CODES_INSTANCE(rows, name, ...)                                  \
  static void K(name##_##rows)(const codes_strip *s, int64_t column) { \
    codes_body(rows, __VA_ARGS__, s, column);                          \
  }

#define CODES_ROW(rows, name) K(name##_##rows),

#define CODES_TILE(name, ...)                                          \
  CODES_SHAPES(CODES_INSTANCE, name, __VA_ARGS__)                      \
  void K(name)(int64_t rows, const codes_strip *s) {                   \
    static const codes_tile tiles[] = {CODES_SHAPES(CODES_ROW, name)}; \
    codes_run(tiles[rows - 1], s);                                     \
  }
CODES_TILE(codes_tile_int8, CODES_INT8)
CODES_TILE(codes_tile_int8_zeros, CODES_INT8_ZEROS)
CODES_TILE(codes_tile_int8_128, CODES_INT8_128)
CODES_TILE(codes_tile_int8_128_zeros, CODES_INT8_128_ZEROS)
CODES_TILE(codes_tile_int4, CODES_INT4)
CODES_TILE(codes_tile_int4_zeros, CODES_INT4_ZEROS)
CODES_TILE(codes_tile_int4_128, CODES_INT4_128)
CODES_TILE(codes_tile_int4_128_zeros, CODES_INT4_128_ZEROS)

#define CODES_TALL_INSTANCE(rows, name)                                \
  static void K(name##_##rows)(const codes_strip *s, int64_t column) { \
    codes_tall_body(rows, s, column);                                  \
  }

#define CODES_TALL_TILE(name)                                               \
  CODES_TALL_SHAPES(CODES_TALL_INSTANCE, name)                              \
  void K(name)(int64_t rows, const codes_strip *s) {                        \
    static const codes_tile tiles[] = {CODES_TALL_SHAPES(CODES_ROW, name)}; \
    codes_run(tiles[rows - 1], s);                                          \
  }
CODES_TALL_TILE(codes_tile_int8_row)

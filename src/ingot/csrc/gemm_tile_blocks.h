/* gemm_tile_blocks.h: the bodies of blocks_tile_<type>. Included after gemm_tile_codes.h by files that also define
 * BLOCKS_W, a vector of CODES_LANES words, and BLOCKS_S, the same signed; BLOCKS_LOAD16(p), a word for each of so many
 * uint16; BLOCKS_STEPS(w), blocks_steps of each byte; BLOCKS_DOT(sum, w, p), as CODES_DOT where no byte of w is above
 * 127; BLOCKS_PAIR(w, i, j), signed bytes i and j of each word as a pair of int16; BLOCKS_PAIRS(sum, w, p), sum + the
 * pairs of w x those at p; CODES_MUL(x, y). */

#include "blocks_fours.h"

/* A tile's rows, and where theirs begins that a strip is multiplied with. */
typedef struct { const int8_t *a[CODES_ROWS]; } blocks_rows;

/* Sums of codes x rows for codes [first, last) of fours of 32. b: the words of the 32; at: of the rows. */
static inline __attribute__((always_inline)) void blocks_dots(const int rows, const blocks_type t, const int first,
                                                              const int last, const uint8_t *b, const blocks_rows *r,
                                                              int64_t at, CODES_I sum[][CODES_WIDTH]) {
  INGOT_UNROLL for (int q = first; q < last; q++) {
    BLOCKS_W w[CODES_WIDTH];
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
      const uint8_t *column = b + 4 * j * CODES_LANES;
      const BLOCKS_W low = (BLOCKS_W)CODES_LOAD(column + 4 * INGOT_PANEL * blocks_low_word(t.bits, q));
      const int other = t.bits == 2 || t.bits == 4 ? 0 : blocks_high_word(t.bits, q);
      w[j] = blocks_codes(t.bits, low, (BLOCKS_W)CODES_LOAD(column + 4 * INGOT_PANEL * other), q);
      if (t.steps) w[j] = (BLOCKS_W)BLOCKS_STEPS((CODES_I)w[j]);
    }
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
        sum[i][j] = t.steps ? CODES_DOT(sum[i][j], (CODES_I)w[j], r->a[i] + at + 4 * q)
                            : BLOCKS_DOT(sum[i][j], (CODES_I)w[j], r->a[i] + at + 4 * q);
    }
  }
}

/* sums += step x what a group of the rows comes to. */
static inline __attribute__((always_inline)) void blocks_close(const int rows, const codes_strip *s,
                                                               const blocks_rows *r, int64_t column, const int j,
                                                               CODES_F group[][CODES_WIDTH]) {
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    float step, *to = s->sums + i * INGOT_PANEL + column + j * CODES_LANES;
    memcpy(&step, r->a[i] + s->steps + 4 * (s->first / CODES_BLOCKS), sizeof step);
    CODES_WRITE(to, CODES_FMA(group[i][j], CODES_SPREAD(step), CODES_READ(to)));
  }
}

/* The words of the scales of one register of columns. */
static inline __attribute__((always_inline)) void blocks_words(const blocks_type t, const uint8_t *head, BLOCKS_W w[]) {
  INGOT_UNROLL for (int i = 0; i < t.scale_bytes / 4; i++) w[i] = (BLOCKS_W)CODES_LOAD(head + 4 * INGOT_PANEL * i);
}

/* Scales 4 * j to 4 * j + 3 (or mins) of a register of columns, the first of which is `column`. */
static inline __attribute__((always_inline)) BLOCKS_W blocks_of(const blocks_type t, const uint8_t *head,
                                                                int64_t column, int j, const int mins) {
  BLOCKS_W w[4];
  blocks_words(t, head + 4 * column, w);
  if (t.held == BLOCKS_HALVES) w[1] = (BLOCKS_W)BLOCKS_LOAD16(head + 4 * INGOT_PANEL + 2 * column);
  return mins ? blocks_mins(t.held, w, j) : blocks_scales(t.held, w, j);
}

/* The sum of what multiplies each part of a row, signed bytes by fours, x the sum of the part. */
static inline __attribute__((always_inline)) CODES_I blocks_beside(const blocks_type t, const BLOCKS_W fours[],
                                                                   const int8_t *sums) {
  CODES_I total = CODES_NONE();
  INGOT_UNROLL for (int n = 0; n < 256 / t.part; n += 4) {
    const CODES_I four = (CODES_I)fours[n / 4];
    total = BLOCKS_PAIRS(total, BLOCKS_PAIR(four, 0, 1), sums + 2 * n);
    total = BLOCKS_PAIRS(total, BLOCKS_PAIR(four, 2, 3), sums + 2 * n + 4);
  }
  return total;
}

/* Blocks of 256: sums of parts are integers, times their scales, too; so is what their offset or mins take off. */
static inline __attribute__((always_inline)) void blocks_body(const int rows, const blocks_type t, const codes_strip *s,
                                                              int64_t column) {
  const int parts = INGOT_CODES_BLOCK / t.part, fours = 256 / t.part / 4;
  const uint8_t *b = s->b + blocks_head(t) + 4 * column, *halves = s->b + INGOT_PANEL * t.scale_bytes + 2 * column;
  blocks_rows r;
  CODES_I total[CODES_ROWS][CODES_WIDTH];
  CODES_F group[CODES_ROWS][CODES_WIDTH];
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    r.a[i] = s->a + i * s->a_stride;
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) total[i][j] = CODES_NONE();
  }
  int64_t block = s->first;
  for (int four = 0; four < fours; four++) {
    BLOCKS_W scales[CODES_WIDTH];
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
      scales[j] = blocks_of(t, s->b, column + j * CODES_LANES, four, 0);
    for (int n = 0; n < 4 / parts; n++, block++, b += 4 * INGOT_PANEL * t.bits) {
      INGOT_UNROLL for (int part = 0; part < parts; part++) {
        CODES_I sum[CODES_ROWS][CODES_WIDTH];
        INGOT_UNROLL for (int i = 0; i < rows; i++) {
          INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
            sum[i][j] = t.steps ? CODES_SET(r.a[i] + s->offsets + 4 * block) : CODES_NONE();
        }
        blocks_dots(rows, t, part * 8 / parts, (part + 1) * 8 / parts, b, &r, block * INGOT_CODES_BLOCK, sum);
        INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
          const BLOCKS_W scale = (BLOCKS_W)((BLOCKS_S)(scales[j] << 24) >> 24);
          scales[j] >>= 8;
          INGOT_UNROLL for (int i = 0; i < rows; i++)
            total[i][j] = (CODES_I)((BLOCKS_W)total[i][j] + (BLOCKS_W)sum[i][j] * scale);
        }
      }
    }
  }
  INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
    const CODES_F d = CODES_SCALES((const uint16_t *)halves + j * CODES_LANES);
    const int takes = t.has_m || (t.offset && !t.steps);
    BLOCKS_W beside[4];
    CODES_F m = CODES_ZERO();
    if (t.has_m)
      m = CODES_MUL(CODES_SCALES((const uint16_t *)halves + INGOT_PANEL + j * CODES_LANES), CODES_SPREAD(-1.0f));
    if (takes)
      INGOT_UNROLL for (int n = 0; n < fours; n++)
        beside[n] = blocks_of(t, s->b, column + j * CODES_LANES, n, t.has_m);
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      CODES_I taken = CODES_NONE();
      if (takes)
        taken = blocks_beside(t, beside, r.a[i] + (t.part == 32 ? s->wholes + 2 * s->first : s->halves + 4 * s->first));
      if (takes && !t.has_m) total[i][j] = (CODES_I)((BLOCKS_W)total[i][j] - (BLOCKS_W)taken * (uint32_t)t.offset);
      group[i][j] = CODES_MUL(CODES_FLOATS(total[i][j]), d);
      if (t.has_m) group[i][j] = CODES_FMA(CODES_FLOATS(taken), m, group[i][j]);
    }
    blocks_close(rows, s, &r, column, j, group);
  }
}

/* Blocks of 32 with one scale. */
static inline __attribute__((always_inline)) void blocks_alone(const int rows, const blocks_type t,
                                                               const codes_strip *s, int64_t column) {
  const uint8_t *b = s->b;
  blocks_rows r;
  CODES_F group[CODES_ROWS][CODES_WIDTH];
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    r.a[i] = s->a + i * s->a_stride;
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) group[i][j] = CODES_ZERO();
  }
  for (int64_t block = s->first; block < s->first + s->count; block++, b += blocks_bytes(t)) {
    CODES_I sum[CODES_ROWS][CODES_WIDTH], offset[CODES_ROWS];
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      offset[i] = CODES_SET(r.a[i] + s->offsets + 4 * block);
      INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
        sum[i][j] = t.offset ? (CODES_I)((BLOCKS_S)offset[i] >> (t.offset == 16 ? 3 : 0)) : CODES_NONE();
    }
    blocks_dots(rows, t, 0, 8, b + blocks_head(t) + 4 * column, &r, block * INGOT_CODES_BLOCK, sum);
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
      const uint16_t *halves = (const uint16_t *)b + column + j * CODES_LANES;
      const CODES_F d = CODES_SCALES(halves);
      CODES_F m = CODES_ZERO();
      if (t.has_m) m = CODES_MUL(CODES_SCALES(halves + INGOT_PANEL), CODES_SPREAD(-1.0f / 128));
      INGOT_UNROLL for (int i = 0; i < rows; i++) {
        group[i][j] = CODES_FMA(CODES_FLOATS(sum[i][j]), d, group[i][j]);
        if (t.has_m) group[i][j] = CODES_FMA(CODES_FLOATS(offset[i]), m, group[i][j]);
      }
    }
  }
  INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) blocks_close(rows, s, &r, column, j, group);
}

#define BLOCKS_CASE(rows, t)                             \
  case rows:                                             \
    if (t.elements == INGOT_CODES_BLOCK)                 \
      blocks_alone(rows, t, s, column);                  \
    else                                                 \
      blocks_body(rows, t, s, column);                   \
    break;

static inline __attribute__((always_inline)) void blocks_run(const blocks_type t, int64_t rows, const codes_strip *s) {
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_WIDTH * CODES_LANES) {
    switch (rows) { CODES_SHAPES(BLOCKS_CASE, t) }
  }
}

void CODES_NAME(blocks_tile_q4_1)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q4_1(), rows, s); }

void CODES_NAME(blocks_tile_q5_0)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q5_0(), rows, s); }

void CODES_NAME(blocks_tile_q5_1)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q5_1(), rows, s); }

void CODES_NAME(blocks_tile_iq4_nl)(int64_t rows, const codes_strip *s) { blocks_run(blocks_iq4_nl(), rows, s); }

void CODES_NAME(blocks_tile_iq4_xs)(int64_t rows, const codes_strip *s) { blocks_run(blocks_iq4_xs(), rows, s); }

void CODES_NAME(blocks_tile_q2_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q2_k(), rows, s); }

void CODES_NAME(blocks_tile_q3_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q3_k(), rows, s); }

void CODES_NAME(blocks_tile_q4_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q4_k(), rows, s); }

void CODES_NAME(blocks_tile_q5_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q5_k(), rows, s); }

void CODES_NAME(blocks_tile_q6_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q6_k(), rows, s); }

#undef BLOCKS_CASE

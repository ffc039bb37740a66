/* gemm_tile_blocks.h: the bodies of blocks_tile_<type>. Included after gemm_tile_codes.h by files that also define
 * BLOCKS_W, a vector of CODES_LANES words, and BLOCKS_S, the same signed; BLOCKS_LOAD16(p), a word for each of so many
 * uint16; BLOCKS_STEPS(w), blocks_steps of each byte; BLOCKS_DOT(sum, w, p), as CODES_DOT where no byte of w is above
 * 127; BLOCKS_PAIR(w, i, j), signed bytes i and j of each word as a pair of int16; BLOCKS_PAIRS(sum, w, p), sum + the
 * pairs of w x those at p; CODES_MUL(x, y). */

#include "blocks_fours.h"

/* A tile's rows, and where theirs begins that a strip is multiplied with. */
typedef struct { const int8_t *a[CODES_ROWS]; } blocks_rows;

/* Codes 4q to 4q + 3 of 32, or what they stand for, of a register of columns. b: the words of the 32. */
static inline __attribute__((always_inline)) BLOCKS_W blocks_four(const blocks_type t, const uint8_t *b, const int q) {
  const BLOCKS_W low = (BLOCKS_W)CODES_LOAD(b + 4 * INGOT_PANEL * blocks_low_word(t.bits, q));
  const int other = t.bits == 2 || t.bits == 4 ? 0 : blocks_high_word(t.bits, q);
  const BLOCKS_W w = blocks_codes(t.bits, low, (BLOCKS_W)CODES_LOAD(b + 4 * INGOT_PANEL * other), q);
  return t.steps ? (BLOCKS_W)BLOCKS_STEPS((CODES_I)w) : w;
}

/* Sums of codes x rows for codes [first, last) of fours of 32. b: the words of the 32, or where the strip is `open` the
 * bytes; at: of the rows. */
static inline __attribute__((always_inline)) void blocks_dots(const int rows, const blocks_type t, const int open,
                                                              const int first, const int last, const uint8_t *b,
                                                              const blocks_rows *r, int64_t at,
                                                              CODES_I sum[][CODES_WIDTH]) {
  INGOT_UNROLL for (int q = first; q < last; q++) {
    BLOCKS_W w[CODES_WIDTH];
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
      const uint8_t *column = b + 4 * j * CODES_LANES;
      w[j] = open ? (BLOCKS_W)CODES_LOAD(column + 4 * INGOT_PANEL * q) : blocks_four(t, column, q);
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

/* Of a register of columns, what multiplies the sums of parts 2 * i and 2 * i + 1 of a row, as pairs. */
static inline __attribute__((always_inline)) CODES_I blocks_beside(const blocks_type t, const uint8_t *head,
                                                                   int64_t column, int i) {
  const CODES_I four = (CODES_I)blocks_of(t, head, column, i / 2, t.has_m);
  return i % 2 ? BLOCKS_PAIR(four, 2, 3) : BLOCKS_PAIR(four, 0, 1);
}

/* The m of a register of columns, times -1. */
static inline __attribute__((always_inline)) CODES_F blocks_less(const uint16_t *m) {
  return CODES_MUL(CODES_SCALES(m), CODES_SPREAD(-1.0f));
}

/* sums += step x what a group of the rows comes to: their total times d, less the sums beside them times m or the
 * offset. */
static inline __attribute__((always_inline)) void blocks_finish(const int rows, const blocks_type t,
                                                                const blocks_opened *o, const codes_strip *s,
                                                                const blocks_rows *r, int64_t column, const int j,
                                                                CODES_I total[][CODES_WIDTH]) {
  const int64_t sums = t.part == 32 ? s->wholes + 2 * s->first : s->halves + 4 * s->first;
  const int64_t at = column + j * CODES_LANES;
  const uint16_t *halves = (const uint16_t *)(s->b + INGOT_PANEL * t.scale_bytes) + at;
  const CODES_F d = o ? CODES_READ(o->d + at) : CODES_SCALES(halves);
  CODES_I taken[CODES_ROWS];
  CODES_F group[CODES_ROWS][CODES_WIDTH], m = CODES_ZERO();
  if (t.has_m) { m = o ? CODES_READ(o->m + at) : blocks_less(halves + INGOT_PANEL); }
  INGOT_UNROLL for (int i = 0; i < rows; i++) taken[i] = CODES_NONE();
  if (t.has_m || (t.offset && !t.steps)) {
    INGOT_UNROLL for (int n = 0; n < 128 / t.part; n++) {
      const CODES_I pair = o ? CODES_LOAD(o->beside + n * INGOT_PANEL + at) : blocks_beside(t, s->b, at, n);
      INGOT_UNROLL for (int i = 0; i < rows; i++) taken[i] = BLOCKS_PAIRS(taken[i], pair, r->a[i] + sums + 4 * n);
    }
  }
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    if (!t.has_m) total[i][j] = (CODES_I)((BLOCKS_W)total[i][j] - (BLOCKS_W)taken[i] * (uint32_t)t.offset);
    group[i][j] = CODES_MUL(CODES_FLOATS(total[i][j]), d);
    if (t.has_m) group[i][j] = CODES_FMA(CODES_FLOATS(taken[i]), m, group[i][j]);
  }
  blocks_close(rows, s, r, column, j, group);
}

/* Blocks of 256: sums of parts are integers, times their scales, too; so is what their offset or mins take off. o: the
 * strip where it is open, or null. */
static inline __attribute__((always_inline)) void blocks_body(const int rows, const blocks_type t,
                                                              const blocks_opened *o, const codes_strip *s,
                                                              int64_t column) {
  const int parts = INGOT_CODES_BLOCK / t.part, fours = 256 / t.part / 4;
  const uint8_t *b = (o ? (const uint8_t *)o->bytes : s->b + blocks_head(t)) + 4 * column;
  blocks_rows r;
  CODES_I total[CODES_ROWS][CODES_WIDTH];
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    r.a[i] = s->a + i * s->a_stride;
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) total[i][j] = CODES_NONE();
  }
  int64_t block = s->first;
  for (int four = 0; four < fours; four++) {
    BLOCKS_W scales[CODES_WIDTH];
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
      scales[j] = o ? (BLOCKS_W)CODES_NONE() : blocks_of(t, s->b, column + j * CODES_LANES, four, 0);
    for (int n = 0; n < 4 / parts; n++, block++, b += 4 * INGOT_PANEL * (o ? 8 : t.bits)) {
      INGOT_UNROLL for (int part = 0; part < parts; part++) {
        CODES_I sum[CODES_ROWS][CODES_WIDTH];
        INGOT_UNROLL for (int i = 0; i < rows; i++) {
          INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++)
            sum[i][j] = t.steps ? codes_first(8, 0, r.a[i] + s->offsets + 4 * block) : CODES_NONE();
        }
        blocks_dots(rows, t, o != NULL, part * 8 / parts, (part + 1) * 8 / parts, b, &r, block * INGOT_CODES_BLOCK,
                    sum);
        INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
          const int64_t at = ((block - s->first) * parts + part) * INGOT_PANEL + column + j * CODES_LANES;
          const BLOCKS_W scale =
              o ? (BLOCKS_W)CODES_LOAD(o->scales + at) : (BLOCKS_W)((BLOCKS_S)(scales[j] << 24) >> 24);
          scales[j] >>= 8;
          INGOT_UNROLL for (int i = 0; i < rows; i++)
            total[i][j] = (CODES_I)((BLOCKS_W)total[i][j] + (BLOCKS_W)sum[i][j] * scale);
        }
      }
    }
  }
  INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) blocks_finish(rows, t, o, s, &r, column, j, total);
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
        sum[i][j] = t.steps    ? codes_first(8, 0, r.a[i] + s->offsets + 4 * block)
                    : t.offset ? (CODES_I)((BLOCKS_S)offset[i] >> (t.offset == 16 ? 3 : 0))
                               : CODES_NONE();
    }
    blocks_dots(rows, t, 0, 0, 8, b + blocks_head(t) + 4 * column, &r, block * INGOT_CODES_BLOCK, sum);
    INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) {
      const uint16_t *halves = (const uint16_t *)b + column + j * CODES_LANES;
      const CODES_F d = CODES_SCALES(halves);
      CODES_F m = CODES_ZERO();
      if (t.has_m) { m = CODES_MUL(CODES_SCALES(halves + INGOT_PANEL), CODES_SPREAD(-1.0f / 128)); }
      INGOT_UNROLL for (int i = 0; i < rows; i++) {
        group[i][j] = CODES_FMA(CODES_FLOATS(sum[i][j]), d, group[i][j]);
        if (t.has_m) group[i][j] = CODES_FMA(CODES_FLOATS(offset[i]), m, group[i][j]);
      }
    }
  }
  INGOT_UNROLL for (int j = 0; j < CODES_WIDTH; j++) blocks_close(rows, s, &r, column, j, group);
}

/* Opens a register of columns of a strip with blocks of 256. */
static inline __attribute__((always_inline)) void blocks_open_columns(const blocks_type t, const codes_strip *s,
                                                                      int64_t column, blocks_opened *o) {
  const uint16_t *halves = (const uint16_t *)(s->b + INGOT_PANEL * t.scale_bytes) + column;
  const uint8_t *codes = s->b + blocks_head(t) + 4 * column;
  for (int64_t n = 0; n < CODES_BLOCKS; n++, codes += 4 * INGOT_PANEL * t.bits) {
    INGOT_UNROLL for (int q = 0; q < 8; q++) {
      const BLOCKS_W four = blocks_four(t, codes, q);
      memcpy(o->bytes + (8 * n + q) * INGOT_PANEL + column, &four, sizeof four);
    }
  }
  CODES_WRITE(o->d + column, CODES_SCALES(halves));
  if (t.has_m) CODES_WRITE(o->m + column, blocks_less(halves + INGOT_PANEL));
  INGOT_UNROLL for (int n = 0; n < 256 / t.part; n++) {
    const BLOCKS_W scales = blocks_of(t, s->b, column, n / 4, 0);
    const BLOCKS_W scale = (BLOCKS_W)((BLOCKS_S)(scales << (24 - n % 4 * 8)) >> 24);
    memcpy(o->scales + n * INGOT_PANEL + column, &scale, sizeof scale);
  }
  INGOT_UNROLL for (int n = 0; n < 128 / t.part; n++) {
    const CODES_I pair = blocks_beside(t, s->b, column, n);
    memcpy(o->beside + n * INGOT_PANEL + column, &pair, sizeof pair);
  }
}

static inline __attribute__((always_inline)) void blocks_open(const blocks_type t, const codes_strip *s,
                                                              blocks_opened *o) {
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_LANES) blocks_open_columns(t, s, column, o);
}

#define BLOCKS_CASE(rows, t, o)                          \
  case rows:                                             \
    if (t.held == BLOCKS_ALONE)                          \
      blocks_alone(rows, t, s, column);                  \
    else                                                 \
      blocks_body(rows, t, o, s, column);                \
    break;

static inline __attribute__((always_inline)) void blocks_run(const blocks_type t, int64_t rows, const codes_strip *s) {
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_WIDTH * CODES_LANES) {
    switch (rows) { CODES_SHAPES(BLOCKS_CASE, t, NULL) }
  }
}

static inline __attribute__((always_inline)) void blocks_run_opened(const blocks_type t, int64_t rows,
                                                                    const codes_strip *s) {
  for (int64_t column = 0; column < INGOT_PANEL; column += CODES_WIDTH * CODES_LANES) {
    switch (rows) { CODES_SHAPES(BLOCKS_CASE, t, s->opened) }
  }
}

void K(blocks_tile_q4_1)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q4_1(), rows, s); }

void K(blocks_tile_q5_0)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q5_0(), rows, s); }

void K(blocks_tile_q5_1)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q5_1(), rows, s); }

void K(blocks_tile_iq4_nl)(int64_t rows, const codes_strip *s) { blocks_run(blocks_iq4_nl(), rows, s); }

void K(blocks_tile_iq4_xs)(int64_t rows, const codes_strip *s) { blocks_run(blocks_iq4_xs(), rows, s); }

void K(blocks_tile_q2_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q2_k(), rows, s); }

void K(blocks_tile_q3_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q3_k(), rows, s); }

void K(blocks_tile_q4_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q4_k(), rows, s); }

void K(blocks_tile_q5_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q5_k(), rows, s); }

void K(blocks_tile_q6_k)(int64_t rows, const codes_strip *s) { blocks_run(blocks_q6_k(), rows, s); }

void K(blocks_open_q2_k)(const codes_strip *s, blocks_opened *o) { blocks_open(blocks_q2_k(), s, o); }

void K(blocks_opened_q2_k)(int64_t rows, const codes_strip *s) {
  blocks_run_opened(blocks_q2_k(), rows, s);
}

void K(blocks_open_q3_k)(const codes_strip *s, blocks_opened *o) { blocks_open(blocks_q3_k(), s, o); }

void K(blocks_opened_q3_k)(int64_t rows, const codes_strip *s) {
  blocks_run_opened(blocks_q3_k(), rows, s);
}

void K(blocks_open_q6_k)(const codes_strip *s, blocks_opened *o) { blocks_open(blocks_q6_k(), s, o); }

void K(blocks_opened_q6_k)(int64_t rows, const codes_strip *s) {
  blocks_run_opened(blocks_q6_k(), rows, s);
}

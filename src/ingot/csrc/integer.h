/* integer.h: products of integers of 8 bits. Their sums are exact, so that bits depend on no instruction set, part or
 * batch; what is done with them in floats has one order. */
#ifndef INGOT_INTEGER_H
#define INGOT_INTEGER_H

#include <string.h>

#include "gemm.h"

/* sums[rows, 32], to which earlier ones are added where `more` is set: a[rows, 4 fours] of u8 times one panel of i8,
 * [fours][32][4]; of the panel as many columns as there are, or some more. */
typedef struct {
  const uint8_t *a;
  int64_t a_stride;
  const int8_t *b;
  int64_t fours, columns;
  int32_t *sums;
  int32_t more;
} integer_strip;

/* Rows of the largest tile, and the registers of one of its rows; a lane has the sums of a column. */
#if defined(ISA_avx512)
#define INTEGER_ROWS 12
#define INTEGER_WIDTH 2
#define INTEGER_LANES 16
#define INTEGER_SHAPES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#elif defined(ISA_avx2)
#define INTEGER_ROWS 4
#define INTEGER_WIDTH 1
#define INTEGER_LANES 8
#define INTEGER_SHAPES(X) X(1) X(2) X(3) X(4)
#else
#define INTEGER_ROWS 2
#define INTEGER_WIDTH 1
#define INTEGER_LANES 1
#define INTEGER_SHAPES(X) X(1) X(2)
#endif

/* The register of INTEGER_LANES sums; four bytes for all lanes, or for each; sum + their products. */
#if defined(ISA_avx512)
typedef __m512i integer_sums;
static inline integer_sums integer_none(void) { return _mm512_setzero_si512(); }
static inline integer_sums integer_read(const void *p) { return _mm512_loadu_si512(p); }
static inline void integer_write(void *p, integer_sums v) { _mm512_storeu_si512(p, v); }

static inline integer_sums integer_spread(const uint8_t *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

static inline integer_sums integer_widened(integer_sums sum, integer_sums a, integer_sums w) {
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(255)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(w, 8));
  return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
}
#elif defined(ISA_avx2)
typedef __m256i integer_sums;
static inline integer_sums integer_none(void) { return _mm256_setzero_si256(); }
static inline integer_sums integer_read(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void integer_write(void *p, integer_sums v) { _mm256_storeu_si256((__m256i *)p, v); }

static inline integer_sums integer_spread(const uint8_t *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}

static inline integer_sums integer_widened(integer_sums sum, integer_sums a, integer_sums w) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(w, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#else
typedef struct { int32_t sum; uint8_t four[4]; } integer_sums;
static inline integer_sums integer_none(void) { return (integer_sums){0}; }

static inline integer_sums integer_read(const void *p) {
  integer_sums r;
  memcpy(&r.sum, p, 4);
  memcpy(r.four, p, 4);
  return r;
}

static inline void integer_write(void *p, integer_sums v) { memcpy(p, &v.sum, sizeof v.sum); }
static inline integer_sums integer_spread(const uint8_t *p) { return integer_read(p); }

static inline integer_sums integer_widened(integer_sums sum, integer_sums a, integer_sums w) {
  for (int i = 0; i < 4; i++) sum.sum += a.four[i] * (int8_t)w.four[i];
  return sum;
}
#endif

/* A tile of `rows` and `width` registers a row, constants, whose products `dot` adds; attributes: of a function that
 * has it. */
#define INTEGER_TILE(name, attributes, rows, width, dot)                                                       \
  static attributes void K(name##_##rows##_##width)(const integer_strip *s) {                                  \
    for (int64_t column = 0; column < s->columns; column += width * INTEGER_LANES) {                           \
      integer_sums sum[rows][width];                                                                           \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                            \
        INGOT_UNROLL for (int j = 0; j < width; j++)                                                           \
          sum[i][j] = s->more ? integer_read(s->sums + i * INGOT_PANEL + column + j * INTEGER_LANES)           \
                              : integer_none();                                                                \
      }                                                                                                        \
      const int8_t *b = s->b + 4 * column;                                                                     \
      const uint8_t *a = s->a;                                                                                 \
      for (int64_t k = 0; k < s->fours; k++, a += 4, b += 4 * INGOT_PANEL) {                                   \
        integer_sums w[width];                                                                                 \
        INGOT_UNROLL for (int j = 0; j < width; j++) w[j] = integer_read(b + 4 * j * INTEGER_LANES);           \
        INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                          \
          const integer_sums four = integer_spread(a + i * s->a_stride);                                       \
          INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = dot(sum[i][j], four, w[j]);                 \
        }                                                                                                      \
      }                                                                                                        \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                            \
        INGOT_UNROLL for (int j = 0; j < width; j++)                                                           \
          integer_write(s->sums + i * INGOT_PANEL + column + j * INTEGER_LANES, sum[i][j]);                    \
      }                                                                                                        \
    }                                                                                                          \
  }

typedef void (*integer_tile)(const integer_strip *s);

/* By rows, those of one register a row first: for panels of so few columns. */
#define INTEGER_WIDENED(rows) \
  INTEGER_TILE(integer_widened, , rows, 1, integer_widened) INTEGER_TILE(integer_widened, , rows, 2, integer_widened)
#define INTEGER_WIDENED_OF(rows) {K(integer_widened_##rows##_1), K(integer_widened_##rows##_2)},
INTEGER_SHAPES(INTEGER_WIDENED)
static const integer_tile integer_widened_tiles[][2] = {INTEGER_SHAPES(INTEGER_WIDENED_OF)};

/* On AVX-512 only some CPUs have dot products of bytes. */
#if defined(ISA_avx512)
#define INTEGER_VNNI __attribute__((target("avx512vnni")))
#define INTEGER_DOTS(rows)                                                    \
  INTEGER_TILE(integer_dots, INTEGER_VNNI, rows, 1, _mm512_dpbusd_epi32)      \
  INTEGER_TILE(integer_dots, INTEGER_VNNI, rows, 2, _mm512_dpbusd_epi32)
#define INTEGER_DOTS_OF(rows) {K(integer_dots_##rows##_1), K(integer_dots_##rows##_2)},
INTEGER_SHAPES(INTEGER_DOTS)
static const integer_tile integer_dots_tiles[][2] = {INTEGER_SHAPES(INTEGER_DOTS_OF)};
#define INTEGER_TILES (__builtin_cpu_supports("avx512vnni") ? integer_dots_tiles : integer_widened_tiles)
#else
#define INTEGER_TILES integer_widened_tiles
#endif

#define INTEGER_STRIP 1024 /* elements of k that rows and a panel share a cache for */

/* Of the tiles of a row count, the one for so many columns. */
static inline int integer_wide(int64_t columns) { return INTEGER_WIDTH > 1 && columns > INTEGER_LANES; }

/* sums[rows, 32] = a[rows, k] times one panel, as far as there are columns; whole fours are read, those past the end
 * meet zeros. */
static inline void integer_panel(const integer_tile (*tiles)[2], const uint8_t *a, int64_t a_stride, int64_t rows,
                                 int64_t k, const int8_t *b, int64_t columns, int32_t *sums) {
  const int64_t fours = (k + 3) / 4, blocks = (rows + INTEGER_ROWS - 1) / INTEGER_ROWS;
  if (!fours) memset(sums, 0, (size_t)rows * INGOT_PANEL * sizeof *sums);
  for (int64_t first = 0; first < fours; first += INTEGER_STRIP / 4) {
    const int64_t left = fours - first;
    for (int64_t i = 0; i < blocks; i++) {
      const int64_t begin = part_begin(rows, (int32_t)i, (int32_t)blocks);
      const integer_strip strip = {
        .a = a + begin * a_stride + 4 * first, .a_stride = a_stride, .b = b + 4 * first * INGOT_PANEL,
        .fours = left < INTEGER_STRIP / 4 ? left : INTEGER_STRIP / 4, .columns = columns,
        .sums = sums + begin * INGOT_PANEL, .more = first > 0};
      const int64_t count = part_begin(rows, (int32_t)i + 1, (int32_t)blocks) - begin;
      tiles[count - 1][integer_wide(columns)](&strip);
    }
  }
}

/* What becomes of sums. */
typedef struct {
  const float *scale, *shift;
  int64_t scale_step;
  float act_alpha, act_beta;
  int32_t activation, result;
  float out_scale, out_zero;
} integer_finish;

static inline int64_t integer_bytes(int32_t result) {
  return result == INGOT_INTEGER_U8 || result == INGOT_INTEGER_I8 ? 1 : 4;
}

/* 16 numbers rounded to bytes, NaN to the zero point where there may be one; the first `lanes` are written. */
static inline __attribute__((always_inline)) void integer_round(const int is_u8, const int finite, vf v, float zero,
                                                                int64_t lanes, uint8_t *to) {
  uint8_t bytes[16];
  const vf low = v_set((is_u8 ? 0.0f : -128.0f) - zero), high = v_set((is_u8 ? 255.0f : 127.0f) - zero);
  if (!finite) v = v_select(v_isnan(v), v_set(0.0f), v);
  v = v_add(v_round(v_min(v_max(v, low), high)), v_set(zero));
  if (is_u8)
    v_store_u8(lanes < 16 ? bytes : to, v);
  else
    v_store_i8((int8_t *)(lanes < 16 ? bytes : to), v);
  if (lanes < 16) memcpy(to, bytes, (size_t)lanes);
}

/* Sums as what `result` says, a constant where it matters. channel: of the first of up to 16; added: to their sums;
 * row i is sums[i * sums_stride ...], its result at out + to[i]. */
static inline __attribute__((always_inline)) void integer_rows_as(const int result, const integer_finish *f,
                                                                  const int32_t *sums, int64_t sums_stride,
                                                                  const int32_t *added, int64_t channel, int64_t lanes,
                                                                  int64_t rows, uint8_t *out, const int64_t *to) {
  const vi more = v_bits(v_load((const float *)(const void *)added));
  vf scale = v_set(0.0f), shift = v_set(0.0f);
  if (result != INGOT_INTEGER_I32)
    scale = !f->scale_step ? v_set(*f->scale) : lanes < 16 ? v_load_n(f->scale + channel, lanes)
                                                           : v_load(f->scale + channel);
  if (f->shift) shift = lanes < 16 ? v_load_n(f->shift + channel, lanes) : v_load(f->shift + channel);
  const int finite = !v_any(v_isnan(v_fma(scale, v_set(0.0f), v_mul(shift, v_set(0.0f)))));
  const int64_t item = result == INGOT_INTEGER_I32 || result == INGOT_INTEGER_F32 ? 4 : 1;
  for (int64_t i = 0; i < rows; i++) {
    uint8_t *at = out + (to[i] + channel) * item;
    const vi total = vi_add(v_bits(v_load((const float *)(const void *)(sums + i * sums_stride))), more);
    vf v = result == INGOT_INTEGER_I32 ? v_from_bits(total) : v_mul(v_from_int(total), scale);
    if (result != INGOT_INTEGER_I32) {
      if (f->shift) v = v_add(v, shift);
      if (f->activation != INGOT_ACT_none) v = v_activate(v, f->activation, f->act_alpha, f->act_beta);
    }
    if (item == 1) {
      if (f->out_scale != 1.0f) v = v_div(v, v_set(f->out_scale));
      integer_round(result == INGOT_INTEGER_U8, finite, v, f->out_zero, lanes, at);
    } else if (lanes < 16) {
      float whole[16];
      v_store(whole, v);
      memcpy(at, whole, (size_t)lanes * 4);
    } else {
      v_store((float *)(void *)at, v);
    }
  }
}

static inline void integer_rows(const integer_finish *f, const int32_t *sums, int64_t sums_stride, const int32_t *added,
                                int64_t channel, int64_t lanes, int64_t rows, uint8_t *out, const int64_t *to) {
  switch (f->result) {
    case INGOT_INTEGER_I32:
      integer_rows_as(INGOT_INTEGER_I32, f, sums, sums_stride, added, channel, lanes, rows, out, to);
      break;
    case INGOT_INTEGER_F32:
      integer_rows_as(INGOT_INTEGER_F32, f, sums, sums_stride, added, channel, lanes, rows, out, to);
      break;
    case INGOT_INTEGER_I8:
      integer_rows_as(INGOT_INTEGER_I8, f, sums, sums_stride, added, channel, lanes, rows, out, to);
      break;
    default:
      integer_rows_as(INGOT_INTEGER_U8, f, sums, sums_stride, added, channel, lanes, rows, out, to);
  }
}

#endif

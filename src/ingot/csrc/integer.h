/* integer.h: products of integers of 8 bits. Their sums are exact, so that bits depend on no instruction set, part or
 * batch; what is done with them in floats has one order. */
#ifndef INGOT_INTEGER_H
#define INGOT_INTEGER_H

#include <string.h>

#include "gemm.h"

/* sums[rows, 32], to which earlier ones are added where `more` is set: a[rows, 4 fours] of u8 times one panel of i8,
 * [fours][32][4]. */
typedef struct {
  const uint8_t *a;
  int64_t a_stride;
  const int8_t *b;
  int64_t fours;
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

/* A tile of `rows`, a constant, whose products `dot` adds; attributes: of a function that has it. */
#define INTEGER_TILE(name, attributes, rows, dot)                                                              \
  static attributes void K(name##_##rows)(const integer_strip *s) {                                            \
    for (int64_t column = 0; column < INGOT_PANEL; column += INTEGER_WIDTH * INTEGER_LANES) {                  \
      integer_sums sum[rows][INTEGER_WIDTH];                                                                   \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                            \
        INGOT_UNROLL for (int j = 0; j < INTEGER_WIDTH; j++)                                                   \
          sum[i][j] = s->more ? integer_read(s->sums + i * INGOT_PANEL + column + j * INTEGER_LANES)           \
                              : integer_none();                                                                \
      }                                                                                                        \
      const int8_t *b = s->b + 4 * column;                                                                     \
      const uint8_t *a = s->a;                                                                                 \
      for (int64_t k = 0; k < s->fours; k++, a += 4, b += 4 * INGOT_PANEL) {                                   \
        integer_sums w[INTEGER_WIDTH];                                                                         \
        INGOT_UNROLL for (int j = 0; j < INTEGER_WIDTH; j++) w[j] = integer_read(b + 4 * j * INTEGER_LANES);   \
        INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                          \
          const integer_sums four = integer_spread(a + i * s->a_stride);                                       \
          INGOT_UNROLL for (int j = 0; j < INTEGER_WIDTH; j++) sum[i][j] = dot(sum[i][j], four, w[j]);         \
        }                                                                                                      \
      }                                                                                                        \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                            \
        INGOT_UNROLL for (int j = 0; j < INTEGER_WIDTH; j++)                                                   \
          integer_write(s->sums + i * INGOT_PANEL + column + j * INTEGER_LANES, sum[i][j]);                    \
      }                                                                                                        \
    }                                                                                                          \
  }

typedef void (*integer_tile)(const integer_strip *s);

#define INTEGER_WIDENED(rows) INTEGER_TILE(integer_widened, , rows, integer_widened)
#define INTEGER_WIDENED_OF(rows) K(integer_widened_##rows),
INTEGER_SHAPES(INTEGER_WIDENED)
static const integer_tile integer_widened_tiles[] = {INTEGER_SHAPES(INTEGER_WIDENED_OF)};

/* On AVX-512 only some CPUs have dot products of bytes. */
#if defined(ISA_avx512)
#define INTEGER_VNNI __attribute__((target("avx512vnni")))
#define INTEGER_DOTS(rows) INTEGER_TILE(integer_dots, INTEGER_VNNI, rows, _mm512_dpbusd_epi32)
#define INTEGER_DOTS_OF(rows) K(integer_dots_##rows),
INTEGER_SHAPES(INTEGER_DOTS)
static const integer_tile integer_dots_tiles[] = {INTEGER_SHAPES(INTEGER_DOTS_OF)};
#define INTEGER_TILES (__builtin_cpu_supports("avx512vnni") ? integer_dots_tiles : integer_widened_tiles)
#else
#define INTEGER_TILES integer_widened_tiles
#endif

#define INTEGER_STRIP 1024 /* elements of k that rows and a panel share a cache for */

/* sums[rows, 32] = a[rows, k] times one panel; whole fours are read, those past the end meet zeros. */
static inline void integer_panel(const integer_tile *tiles, const uint8_t *a, int64_t a_stride, int64_t rows, int64_t k,
                                 const int8_t *b, int32_t *sums) {
  const int64_t fours = (k + 3) / 4, blocks = (rows + INTEGER_ROWS - 1) / INTEGER_ROWS;
  if (!fours) memset(sums, 0, (size_t)rows * INGOT_PANEL * sizeof *sums);
  for (int64_t first = 0; first < fours; first += INTEGER_STRIP / 4) {
    const int64_t left = fours - first;
    for (int64_t i = 0; i < blocks; i++) {
      const int64_t begin = part_begin(rows, (int32_t)i, (int32_t)blocks);
      const integer_strip strip = {
        .a = a + begin * a_stride + 4 * first, .a_stride = a_stride, .b = b + 4 * first * INGOT_PANEL,
        .fours = left < INTEGER_STRIP / 4 ? left : INTEGER_STRIP / 4, .sums = sums + begin * INGOT_PANEL,
        .more = first > 0};
      tiles[part_begin(rows, (int32_t)i + 1, (int32_t)blocks) - begin - 1](&strip);
    }
  }
}

/* What becomes of sums. first: the channel of the first of them. */
typedef struct {
  const float *scale, *shift;
  int64_t scale_step;
  float act_alpha, act_beta;
  int32_t activation, result;
  float out_scale, out_zero;
} integer_finish;

/* Up to 16 numbers to where the result has them. */
static inline void integer_store(const integer_finish *f, vf v, int64_t lanes, uint8_t *to) {
  uint8_t bytes[16];
  if (f->result == INGOT_INTEGER_F32) {
    if (lanes < 16)
      v_store_n((float *)(void *)to, v, lanes);
    else
      v_store((float *)(void *)to, v);
    return;
  }
  const int is_u8 = f->result == INGOT_INTEGER_U8;
  if (f->out_scale != 1.0f) v = v_div(v, v_set(f->out_scale));
  v = v_round(v);
  v = v_add(v_select(v_isnan(v), v_set(0.0f), v), v_set(f->out_zero));
  v = v_min(v_max(v, v_set(is_u8 ? 0.0f : -128.0f)), v_set(is_u8 ? 255.0f : 127.0f));
  if (is_u8)
    v_store_u8(lanes < 16 ? bytes : to, v);
  else
    v_store_i8((int8_t *)(lanes < 16 ? bytes : to), v);
  if (lanes < 16) memcpy(to, bytes, (size_t)lanes);
}

/* Up to 16 columns of sums[32] at `channel`, and what is added to each. */
static inline void integer_columns(const integer_finish *f, const int32_t *sums, const int32_t *added, int64_t channel,
                                   int64_t lanes, uint8_t *to) {
  const vi total = vi_add(v_bits(v_load((const float *)(const void *)sums)),
                          v_bits(v_load((const float *)(const void *)added)));
  if (f->result == INGOT_INTEGER_I32) {
    float whole[16];
    v_store(whole, v_from_bits(total));
    memcpy(to, whole, (size_t)lanes * 4);
    return;
  }
  const float *scale = f->scale + channel * f->scale_step;
  vf v = v_from_int(total);
  v = v_mul(v, !f->scale_step ? v_set(*scale) : lanes < 16 ? v_load_n(scale, lanes) : v_load(scale));
  if (f->shift) v = v_add(v, lanes < 16 ? v_load_n(f->shift + channel, lanes) : v_load(f->shift + channel));
  if (f->activation != INGOT_ACT_none) v = v_activate(v, f->activation, f->act_alpha, f->act_beta);
  integer_store(f, v, lanes, to);
}

static inline int64_t integer_bytes(int32_t result) {
  return result == INGOT_INTEGER_U8 || result == INGOT_INTEGER_I8 ? 1 : 4;
}

#endif

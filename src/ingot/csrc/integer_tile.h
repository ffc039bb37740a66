/* integer_tile.h: the products of integers of 8 bits of a few rows with a panel, exact on every instruction set. */
#ifndef INGOT_INTEGER_TILE_H
#define INGOT_INTEGER_TILE_H

#include <string.h>

#include "kernel.h"

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

/* Rows of the largest tile; a lane of its registers has the sums of a column. */
#if defined(ISA_avx512)
#define INTEGER_ROWS 12
#define INTEGER_LANES 16
#elif defined(ISA_avx2)
#define INTEGER_ROWS 4
#define INTEGER_LANES 8
#else
#define INTEGER_ROWS 2
#define INTEGER_LANES 1
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

static inline integer_sums integer_madd(integer_sums sum, integer_sums a, integer_sums w) {
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

static inline integer_sums integer_madd(integer_sums sum, integer_sums a, integer_sums w) {
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

static inline integer_sums integer_madd(integer_sums sum, integer_sums a, integer_sums w) {
  for (int i = 0; i < 4; i++) sum.sum += a.four[i] * (int8_t)w.four[i];
  return sum;
}
#endif

/* Rows that no tile has count as one, so that arrays hold them. */
#define INTEGER_SOME(rows) ((rows) <= INTEGER_ROWS ? (rows) : 1)

#define INTEGER_CASE(name, rows)                       \
  case rows:                                           \
    if (wide)                                          \
      K(name##_body)(INTEGER_SOME(rows), 2, s);        \
    else                                               \
      K(name##_body)(INTEGER_SOME(rows), 1, s);        \
    break;

/* name_tile(rows, s): a tile of up to INTEGER_ROWS rows, with two registers a row where columns fill more than one.
 * Products are added by `dot`; attributes: of functions that have it. */
#define INTEGER_TILE(name, attributes, dot)                                                                           \
  static inline __attribute__((always_inline)) attributes void K(name##_body)(const int rows, const int width,        \
                                                                              const integer_strip *s) {               \
    for (int64_t column = 0; column < s->columns; column += width * INTEGER_LANES) {                                  \
      integer_sums sum[INTEGER_ROWS][2];                                                                              \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                   \
        INGOT_UNROLL for (int j = 0; j < width; j++)                                                                  \
          sum[i][j] = s->more ? integer_read(s->sums + i * INGOT_PANEL + column + j * INTEGER_LANES) : integer_none();\
      }                                                                                                               \
      const int8_t *b = s->b + 4 * column;                                                                            \
      const uint8_t *a = s->a;                                                                                        \
      for (int64_t k = 0; k < s->fours; k++, a += 4, b += 4 * INGOT_PANEL) {                                          \
        integer_sums w[2];                                                                                            \
        INGOT_UNROLL for (int j = 0; j < width; j++) w[j] = integer_read(b + 4 * j * INTEGER_LANES);                  \
        INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                 \
          const integer_sums four = integer_spread(a + i * s->a_stride);                                              \
          INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = dot(sum[i][j], four, w[j]);                        \
        }                                                                                                             \
      }                                                                                                               \
      INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                   \
        INGOT_UNROLL for (int j = 0; j < width; j++)                                                                  \
          integer_write(s->sums + i * INGOT_PANEL + column + j * INTEGER_LANES, sum[i][j]);                           \
      }                                                                                                               \
    }                                                                                                                 \
  }                                                                                                                   \
  static attributes void K(name##_tile)(int64_t rows, const integer_strip *s) {                                       \
    const int wide = INTEGER_LANES > 8 && s->columns > INTEGER_LANES;                                                 \
    switch (rows) {                                                                                                   \
      INTEGER_CASE(name, 12)                                                                                          \
      INTEGER_CASE(name, 11)                                                                                          \
      INTEGER_CASE(name, 10)                                                                                          \
      INTEGER_CASE(name, 9)                                                                                           \
      INTEGER_CASE(name, 8)                                                                                           \
      INTEGER_CASE(name, 7)                                                                                           \
      INTEGER_CASE(name, 6)                                                                                           \
      INTEGER_CASE(name, 5)                                                                                           \
      INTEGER_CASE(name, 4)                                                                                           \
      INTEGER_CASE(name, 3)                                                                                           \
      INTEGER_CASE(name, 2)                                                                                           \
      INTEGER_CASE(name, 1)                                                                                           \
    }                                                                                                                 \
  }

typedef void (*integer_tile)(int64_t rows, const integer_strip *s);

INTEGER_TILE(integer_widened, , integer_madd)

/* On AVX-512 only some CPUs have dot products of bytes. */
#if defined(ISA_avx512)
#define INTEGER_VNNI __attribute__((target("avx512vnni")))
INTEGER_TILE(integer_dots, INTEGER_VNNI, _mm512_dpbusd_epi32)
#define INTEGER_BEST (__builtin_cpu_supports("avx512vnni") ? K(integer_dots_tile) : K(integer_widened_tile))
#else
#define INTEGER_BEST K(integer_widened_tile)
#endif

#define INTEGER_STRIP 1024 /* elements of k that rows and a panel share a cache for */

/* sums[rows, 32] = a[rows, k] times one panel, as far as there are columns; whole fours are read, those past the end
 * meet zeros. */
static inline void integer_panel(integer_tile tile, const uint8_t *a, int64_t a_stride, int64_t rows,
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
      tile(part_begin(rows, (int32_t)i + 1, (int32_t)blocks) - begin, &strip);
    }
  }
}

#endif

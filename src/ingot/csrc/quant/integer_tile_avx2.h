/* integer_tile_avx2.h: the tile of integer_tile.h for more rows, without dot products of bytes. Products of unsigned by
 * signed bytes are added in pairs of int16, which saturate: quads of k whose pairs cannot do so, with the largest bytes
 * of these rows, are multiplied as bytes. The other quads are widened to int16, once for all rows and columns. */
#ifndef INGOT_INTEGER_TILE_AVX2_H
#define INGOT_INTEGER_TILE_AVX2_H

#define WIDE_QUADS 32 /* quads of k together: widened, those of all rows and of half a panel stay in the L1 cache */
#define WIDE_ROWS 6   /* of the largest tile, for 16 columns */
#define WIDE_PAIRS (2 * WIDE_QUADS)
#define WIDE_SHARE 16 /* where more than one of so many quads is widened, all are */

/* Bytes 0 and 2 of a quad form one pair of int16, bytes 1 and 3 the other. Rows and half a panel have all first pairs
 * before the others. most: the largest byte of all rows at each k; kept: half a panel with zeros for widened quads. */
typedef struct {
  _Alignas(64) int32_t rows[INGOT_CONV_PIXELS][WIDE_PAIRS];
  int32_t panel[WIDE_PAIRS][16];
  int8_t kept[WIDE_QUADS][64];
  uint8_t most[4 * WIDE_QUADS];
  int32_t has_rows; /* whether `rows` has all quads */
} integer_wide;

/* A slice of k of half a panel: b[quads][b_step]. */
typedef struct {
  const uint8_t *a;
  int64_t a_stride;
  const int8_t *b;
  int64_t b_step, quads;
} integer_slice;

/* The sums of a slice, and those they begin with: before_stride is 0 where these are the same for all rows. */
typedef struct {
  const int32_t *before;
  int64_t before_stride;
  int32_t *sums;
} integer_sink;

static inline void integer_widen_quad(const uint8_t *a, int32_t *first, int32_t *second) {
  uint32_t four;
  memcpy(&four, a, sizeof four);
  *first = (int32_t)(four & 0x00ff00ffu);
  *second = (int32_t)(four >> 8 & 0x00ff00ffu);
}

static inline void integer_wide_row(const uint8_t *a, int64_t quads, int32_t *to) {
  int64_t i = 0;
  for (; i + 8 <= quads; i += 8) {
    const __m256i bytes = integer_read(a + 4 * i);
    integer_write(to + i, _mm256_and_si256(bytes, _mm256_set1_epi16(255)));
    integer_write(to + WIDE_QUADS + i, _mm256_srli_epi16(bytes, 8));
  }
  if (i + 4 <= quads) {
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(a + 4 * i));
    _mm_storeu_si128((__m128i *)(to + i), _mm_and_si128(bytes, _mm_set1_epi16(255)));
    _mm_storeu_si128((__m128i *)(to + WIDE_QUADS + i), _mm_srli_epi16(bytes, 8));
    i += 4;
  }
  for (; i < quads; i++) integer_widen_quad(a + 4 * i, to + i, to + WIDE_QUADS + i);
}

/* Widen 16 columns of a quad. */
static inline void integer_wide_columns(const int8_t *b, int32_t *to) {
  for (int64_t j = 0; j < 16; j += 8) {
    const __m256i bytes = integer_read(b + 4 * j);
    integer_write(to + j, _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8));
    integer_write(to + j + 16 * WIDE_QUADS, _mm256_srai_epi16(bytes, 8));
  }
}

/* Widen all quads of a slice; its rows only if the other half of the panel did not. */
static inline void integer_widen_all(const integer_slice *s, int64_t rows, integer_wide *of) {
  for (int64_t i = 0; !of->has_rows && i < rows; i++) integer_wide_row(s->a + i * s->a_stride, s->quads, of->rows[i]);
  for (int64_t i = 0; i < s->quads; i++) integer_wide_columns(s->b + i * s->b_step, of->panel[i]);
  of->has_rows = 1;
}

/* Widen the quads of a mask, one after another. Returns their number. */
static inline int64_t integer_widen(const integer_slice *s, int64_t rows, uint32_t mask, integer_wide *of) {
  int64_t count = 0;
  for (; mask; mask &= mask - 1, count++) {
    const int64_t quad = __builtin_ctz(mask);
    const uint8_t *a = s->a + 4 * quad;
    for (int64_t i = 0; i < rows; i++, a += s->a_stride)
      integer_widen_quad(a, &of->rows[i][count], &of->rows[i][WIDE_QUADS + count]);
    integer_wide_columns(s->b + quad * s->b_step, of->panel[count]);
  }
  of->has_rows = 0;
  return count;
}

/* sum[j] + pair x w[j]. In assembly, because GCC would add products to one another first, and there is no register to
 * spare. */
static inline void integer_wide_dots(__m256i sum[2], const int32_t *pair, const __m256i w[2]) {
  __m256i spread, products;
  __asm__("vpbroadcastd %4, %2\n\tvpmaddwd %5, %2, %3\n\tvpaddd %3, %0, %0\n\tvpmaddwd %6, %2, %2\n\t"
          "vpaddd %2, %1, %1"
          : "+x"(sum[0]), "+x"(sum[1]), "=&x"(spread), "=&x"(products)
          : "m"(*pair), "x"(w[0]), "x"(w[1]));
}

/* sum + four x w in bytes; w is in memory, as sums fill the registers. */
static inline __m256i integer_byte_dot(__m256i sum, __m256i four, const int8_t *w, __m256i ones) {
  __m256i products;
  __asm__("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
          : "+x"(sum), "=&x"(products)
          : "x"(four), "m"(*(const __m256i_u *)(const void *)w), "x"(ones));
  return sum;
}

#define WIDE_FIRST(t)                                                                                                  \
  __m256i sum[WIDE_ROWS][2];                                                                                           \
  INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                        \
    INGOT_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = integer_read((t)->before + i * (t)->before_stride + 8 * j);   \
  }
#define WIDE_LAST(t)                                                                                                   \
  INGOT_UNROLL for (int i = 0; i < rows; i++) {                                                                        \
    INGOT_UNROLL for (int j = 0; j < 2; j++) integer_write((t)->sums + i * INGOT_PANEL + 8 * j, sum[i][j]);            \
  }

/* sums[rows][16] = before + products of widened quads. */
static inline __attribute__((always_inline)) void integer_wide_tile(const int rows, int64_t quads, const int32_t *a,
                                                                    const int32_t *b, const integer_sink *t) {
  WIDE_FIRST(t)
  /* Not unrolled: GCC would load values of the second pairs while there is no register for them. */
  for (int second = 0; second < 2; second++, a += WIDE_QUADS, b += WIDE_QUADS * 16) {
    for (int64_t k = 0; k < quads; k++) {
      const __m256i w[2] = {integer_read(b + 16 * k), integer_read(b + 16 * k + 8)};
      INGOT_UNROLL for (int i = 0; i < rows; i++) integer_wide_dots(sum[i], a + i * WIDE_PAIRS + k, w);
    }
  }
  WIDE_LAST(t)
}

/* The same of bytes whose pairs do not saturate. */
static inline __attribute__((always_inline)) void integer_byte_tile(const int rows, const integer_slice *s,
                                                                    const uint8_t *a, const integer_sink *t) {
  const __m256i ones = _mm256_set1_epi16(1);
  const uint8_t *third[2] = {a, a + 3 * s->a_stride};
  const int8_t *b = s->b;
  WIDE_FIRST(t)
  for (int64_t k = 0; k < 4 * s->quads; k += 4, b += s->b_step) {
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      const __m256i four = integer_spread(third[i / 3] + k + i % 3 * s->a_stride);
      INGOT_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = integer_byte_dot(sum[i][j], four, b + 32 * j, ones);
    }
  }
  WIDE_LAST(t)
}

#define WIDE_CASE(rows, tile, ...) case rows: tile(rows, __VA_ARGS__); break;
#define WIDE_CASES(count, ...)                                                                                         \
  switch (count) {                                                                                                     \
    WIDE_CASE(6, __VA_ARGS__)                                                                                          \
    WIDE_CASE(5, __VA_ARGS__)                                                                                          \
    WIDE_CASE(4, __VA_ARGS__)                                                                                          \
  }

/* Rows of a tile, and their sums. */
typedef struct { int64_t first, count; integer_sink sink; } integer_rows_of;

static inline integer_rows_of integer_rows_at(int64_t rows, int32_t tile, int32_t tiles, const integer_sink *s) {
  const int64_t first = task_begin(rows, tile, tiles), count = task_begin(rows, tile + 1, tiles) - first;
  return (integer_rows_of){
    first, count, {s->before + first * s->before_stride, s->before_stride, s->sums + first * INGOT_PANEL}};
}

/* All rows of a slice, by quads that are widened, or as bytes. Not inlined: tiles of both kinds in one function do not
 * fit the registers. */
static __attribute__((noinline)) void integer_wide_rows(int64_t rows, int64_t quads, const integer_wide *of,
                                                        const integer_sink *sink) {
  const int32_t tiles = (int32_t)((rows + WIDE_ROWS - 1) / WIDE_ROWS);
  for (int32_t tile = 0; tile < tiles; tile++) {
    const integer_rows_of r = integer_rows_at(rows, tile, tiles, sink);
    WIDE_CASES(r.count, integer_wide_tile, quads, of->rows[r.first], of->panel[0], &r.sink)
  }
}

static __attribute__((noinline)) void integer_byte_rows(int64_t rows, const integer_slice *s,
                                                        const integer_sink *sink) {
  const int32_t tiles = (int32_t)((rows + WIDE_ROWS - 1) / WIDE_ROWS);
  for (int32_t tile = 0; tile < tiles; tile++) {
    const integer_rows_of r = integer_rows_at(rows, tile, tiles, sink);
    WIDE_CASES(r.count, integer_byte_tile, s, s->a + r.first * s->a_stride, &r.sink)
  }
}

/* The largest byte of all rows at each k of a slice, in four vectors, or those of 32, 16 and 4. */
static inline void integer_most(const integer_slice *s, int64_t rows, uint8_t *most) {
  int64_t k = 0;
  if (s->quads == WIDE_QUADS) {
    __m256i largest[4];
    INGOT_UNROLL for (int j = 0; j < 4; j++) largest[j] = _mm256_setzero_si256();
    const uint8_t *a = s->a;
    for (int64_t i = 0; i < rows; i++, a += s->a_stride)
      INGOT_UNROLL for (int j = 0; j < 4; j++) largest[j] = _mm256_max_epu8(largest[j], integer_read(a + 32 * j));
    INGOT_UNROLL for (int j = 0; j < 4; j++) integer_write(most + 32 * j, largest[j]);
    return;
  }
  for (; k + 32 <= 4 * s->quads; k += 32) {
    __m256i largest = integer_read(s->a + k);
    for (int64_t i = 1; i < rows; i++) largest = _mm256_max_epu8(largest, integer_read(s->a + i * s->a_stride + k));
    integer_write(most + k, largest);
  }
  if (k + 16 <= 4 * s->quads) {
    __m128i largest = _mm_setzero_si128();
    for (int64_t i = 0; i < rows; i++)
      largest = _mm_max_epu8(largest, _mm_loadu_si128((const __m128i *)(s->a + i * s->a_stride + k)));
    _mm_storeu_si128((__m128i *)(most + k), largest);
    k += 16;
  }
  for (; k < 4 * s->quads; k += 4) {
    __m128i largest = _mm_setzero_si128();
    for (int64_t i = 0; i < rows; i++)
      largest = _mm_max_epu8(largest, _mm_loadu_si32(s->a + i * s->a_stride + k));
    _mm_storeu_si32(most + k, largest);
  }
}

/* The largest products of pairs in a quad of half a panel. The magnitude of -128 counts as 127 here, which two products
 * of at most 255 make smaller by 510 together. */
static inline __m256i integer_largest(const int8_t *b, const uint8_t *most) {
  const __m256i four = integer_spread(most), largest = _mm256_set1_epi8(127);
  const __m256i low = _mm256_min_epu8(_mm256_abs_epi8(integer_read(b)), largest);
  const __m256i high = _mm256_min_epu8(_mm256_abs_epi8(integer_read(b + 32)), largest);
  return _mm256_max_epi16(_mm256_maddubs_epi16(four, low), _mm256_maddubs_epi16(four, high));
}

static inline int integer_saturates(__m256i sums) {
  const __m256i beyond = _mm256_cmpgt_epi16(sums, _mm256_set1_epi16(32767 - 510));
  return !_mm256_testz_si256(beyond, beyond);
}

/* A mask of the quads in which a pair of products could saturate: mostly none. */
static inline uint32_t integer_saturating(const integer_slice *s, const uint8_t *most) {
  __m256i sums = _mm256_setzero_si256();
  uint32_t mask = 0;
  for (int64_t i = 0; i < s->quads; i++)
    sums = _mm256_max_epi16(sums, integer_largest(s->b + i * s->b_step, most + 4 * i));
  if (!integer_saturates(sums)) return 0;
  for (int64_t i = 0; i < s->quads; i++)
    mask |= (uint32_t)integer_saturates(integer_largest(s->b + i * s->b_step, most + 4 * i)) << i;
  return mask;
}

/* Half a panel with zeros in the quads of a mask. */
static inline void integer_keep(const integer_slice *s, uint32_t mask, integer_wide *of) {
  for (int64_t i = 0; i < s->quads; i++) {
    const __m256i kept = _mm256_set1_epi32((int32_t)(mask >> i & 1) - 1);
    integer_write(of->kept[i], _mm256_and_si256(integer_read(s->b + i * s->b_step), kept));
    integer_write(of->kept[i] + 32, _mm256_and_si256(integer_read(s->b + i * s->b_step + 32), kept));
  }
}

static inline void integer_wide_half(int64_t rows, const integer_slice *s, integer_wide *of, integer_sink sink) {
  const uint32_t mask = integer_saturating(s, of->most);
  if (WIDE_SHARE * __builtin_popcount(mask) > s->quads) {
    integer_widen_all(s, rows, of);
    integer_wide_rows(rows, s->quads, of, &sink);
    return;
  }
  integer_slice kept = *s;
  if (mask) {
    integer_keep(s, mask, of);
    kept.b = of->kept[0];
    kept.b_step = 64;
  }
  integer_byte_rows(rows, &kept, &sink);
  if (!mask) return;
  const int64_t widened = integer_widen(s, rows, mask, of);
  integer_wide_rows(rows, widened, of, &(integer_sink){sink.sums, INGOT_PANEL, sink.sums});
}

static inline void K(integer_wide_many)(int64_t rows, const integer_product *p) {
  _Alignas(64) integer_wide of;
  for (int64_t begin = 0; begin < p->quads || !begin; begin += WIDE_QUADS) {
    const int64_t left = p->quads - begin, quads = left < WIDE_QUADS ? left : WIDE_QUADS;
    integer_slice s = {p->a + 4 * begin, p->a_stride, p->b + 4 * begin * INGOT_PANEL, 4 * INGOT_PANEL, quads};
    integer_most(&s, rows, of.most);
    of.has_rows = 0;
    for (int64_t column = 0; column < p->columns; column += 16, s.b += 64) {
      const integer_sink sink = begin ? (integer_sink){p->sums + column, INGOT_PANEL, p->sums + column}
                                      : (integer_sink){p->first + column, 0, p->sums + column};
      integer_wide_half(rows, &s, &of, sink);
    }
  }
}

#endif

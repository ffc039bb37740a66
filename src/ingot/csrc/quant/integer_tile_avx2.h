/* integer_tile_avx2.h: the tile of integer_tile.h for more rows, without dot products of bytes. Rows and panel are
 * widened to int16 once for all products, a slice of k at a time. */
#ifndef INGOT_INTEGER_TILE_AVX2_H
#define INGOT_INTEGER_TILE_AVX2_H

#define WIDE_QUADS 32 /* quads of k: widened, those of all rows and of a panel stay in the L1 cache */
#define WIDE_ROWS 6   /* of the largest tile, for 16 columns */
#define WIDE_PAIRS (2 * WIDE_QUADS)

/* Bytes 0 and 2 of a quad form one pair of int16, bytes 1 and 3 the other. Rows have all first pairs before the others;
 * halves of a panel have for each quad those of all columns. */
typedef struct {
  int32_t rows[INGOT_CONV_PIXELS][WIDE_PAIRS];
  int32_t panel[INGOT_PANEL / 16][WIDE_PAIRS][16];
} integer_wide;

static inline void integer_wide_row(const uint8_t *a, int64_t quads, int32_t *to) {
  int64_t i = 0;
  for (; i + 8 <= quads; i += 8) {
    const __m256i bytes = integer_read(a + 4 * i);
    integer_write(to + i, _mm256_and_si256(bytes, _mm256_set1_epi16(255)));
    integer_write(to + WIDE_QUADS + i, _mm256_srli_epi16(bytes, 8));
  }
  for (; i < quads; i++) {
    uint32_t four;
    memcpy(&four, a + 4 * i, sizeof four);
    to[i] = (int32_t)(four & 0x00ff00ffu);
    to[WIDE_QUADS + i] = (int32_t)(four >> 8 & 0x00ff00ffu);
  }
}

static inline void integer_wide_panel(const int8_t *b, int64_t quads, int64_t columns, integer_wide *to) {
  for (int64_t i = 0; i < quads; i++, b += 4 * INGOT_PANEL) {
    for (int64_t j = 0; j < columns; j += 8) {
      const __m256i bytes = integer_read(b + 4 * j);
      int32_t *pair = to->panel[j / 16][2 * i] + j % 16;
      integer_write(pair, _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8));
      integer_write(pair + 16, _mm256_srai_epi16(bytes, 8));
    }
  }
}

/* sum + pair x w; keeps GCC from adding products to one another first, for which there are too few registers. */
static inline __m256i integer_wide_dot(__m256i sum, __m256i pair, __m256i w) {
  __m256i products;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(pair), "x"(w));
  return sum;
}

/* sums[rows][16] = before + a[rows, 4 quads] times half a panel. */
static inline __attribute__((always_inline)) void integer_wide_tile(const int rows, int64_t quads, const int32_t *a,
                                                                    const int32_t *b, const int32_t *before,
                                                                    int64_t before_stride, int32_t *sums) {
  __m256i sum[WIDE_ROWS][2];
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    INGOT_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = integer_read(before + i * before_stride + 8 * j);
  }
  for (int64_t k = 0; k < quads; k++, a++) {
    INGOT_UNROLL for (int second = 0; second < 2; second++, b += 16) {
      const __m256i w[2] = {integer_read(b), integer_read(b + 8)};
      INGOT_UNROLL for (int i = 0; i < rows; i++) {
        const __m256i pair = _mm256_set1_epi32(a[i * WIDE_PAIRS + second * WIDE_QUADS]);
        INGOT_UNROLL for (int j = 0; j < 2; j++) sum[i][j] = integer_wide_dot(sum[i][j], pair, w[j]);
      }
    }
  }
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    INGOT_UNROLL for (int j = 0; j < 2; j++) integer_write(sums + i * INGOT_PANEL + 8 * j, sum[i][j]);
  }
}

#define WIDE_CASE(rows) case rows: integer_wide_tile(rows, quads, a, b, before, before_stride, sums); break;

static inline void K(integer_wide_many)(int64_t rows, const integer_product *p) {
  integer_wide of;
  const int32_t tiles = (int32_t)((rows + WIDE_ROWS - 1) / WIDE_ROWS);
  for (int64_t begin = 0; begin < p->quads || !begin; begin += WIDE_QUADS) {
    const int64_t left = p->quads - begin, quads = left < WIDE_QUADS ? left : WIDE_QUADS;
    integer_wide_panel(p->b + 4 * begin * INGOT_PANEL, quads, p->columns > 16 ? INGOT_PANEL : 16, &of);
    for (int64_t i = 0; i < rows; i++) integer_wide_row(p->a + i * p->a_stride + 4 * begin, quads, of.rows[i]);
    for (int64_t column = 0; column < p->columns; column += 16) {
      for (int32_t tile = 0; tile < tiles; tile++) {
        const int64_t first = task_begin(rows, tile, tiles), count = task_begin(rows, tile + 1, tiles) - first;
        const int32_t *a = of.rows[first], *b = of.panel[column / 16][0];
        int32_t *sums = p->sums + first * INGOT_PANEL + column;
        const int32_t *before = begin ? sums : p->first + column;
        const int64_t before_stride = begin ? INGOT_PANEL : 0;
        switch (count) {
          WIDE_CASE(6)
          WIDE_CASE(5)
          WIDE_CASE(4)
        }
      }
    }
  }
}

#endif

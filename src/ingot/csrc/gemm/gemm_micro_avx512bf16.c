/* gemm_micro_avx512bf16.c: gemm_tile_dots by the dot products of AVX512_BF16, with the tiles of AVX-512, and
 * gemm_tile_split by AMX. */
#include <immintrin.h>

#include "gemm/amx.h"
#include "gemm/split_sums.h"

#define TILE_V __m512
#define TILE_LANES 16
#define TILE_ZERO() _mm512_setzero_ps()
#define TILE_LOAD(p) _mm512_loadu_ps(p)
#define TILE_STORE(p, v) _mm512_storeu_ps(p, v)
#define TILE_HALVES(p) ((void)(p), _mm512_setzero_ps()) /* no tile here widens */
#define TILE_LOW(p) _mm512_loadu_ps(p)
#define TILE_HIGH(p) _mm512_loadu_ps(p)
#define TILE_SET1(p) _mm512_set1_ps(*(p))
#define TILE_ADD(x, y) _mm512_add_ps(x, y)
#define TILE_FMA(x, y, z) _mm512_dpbf16_ps(z, (__m512bh)(x), (__m512bh)(y))
#define TILE_MIN(x, y) _mm512_min_ps(x, y)
#define TILE_MAX(x, y) _mm512_max_ps(x, y)
#define TILE_ROUND(to, v) _mm256_storeu_si256((__m256i *)(void *)(to), (__m256i)_mm512_cvtneps_pbh(v))
#define TILE_WIDEST 8
#define TILE_GROUP 4
#define TILE_SHAPES(X, n)                                                                                              \
  X(12, 2, n) X(12, 1, n) X(11, 2, n) X(11, 1, n) X(10, 2, n) X(10, 1, n) X(9, 2, n) X(9, 1, n) X(8, 2, n)             \
  X(8, 1, n) X(7, 2, n) X(7, 1, n) X(6, 2, n) X(6, 1, n) X(5, 2, n) X(5, 1, n) X(4, 4, n) X(4, 2, n) X(4, 1, n)        \
  X(3, 8, n) X(3, 4, n) X(3, 2, n) X(3, 1, n) X(2, 8, n) X(2, 4, n) X(2, 2, n) X(2, 1, n) X(1, 8, n) X(1, 4, n)        \
  X(1, 2, n) X(1, 1, n)
#include "gemm/gemm_tile_pairs.inc"

#if defined(INGOT_LIBRARY)
#define SPLIT_SOME(n) ((__mmask16)(0xffffu >> (16 - (n))))
#define SPLIT_LOAD(p, n) _mm512_maskz_loadu_ps(SPLIT_SOME(n), p)
#define SPLIT_STORE(p, v, n) _mm512_mask_storeu_ps(p, SPLIT_SOME(n), v)
#define SPLIT_ROUND(p, v, n) _mm256_mask_storeu_epi16(p, SPLIT_SOME(n), (__m256i)_mm512_cvtneps_pbh(v))

/* Tiles 0 to 3: sums; 4: rows, 5: columns, of SPLIT_PAIRS pairs; 6, 7: the same for the remaining pairs, if any. */
void K(split_begin)(int64_t rows, int64_t k) {
  const uint8_t all = (uint8_t)(rows < AMX_ROWS ? rows : AMX_ROWS), pairs = (uint8_t)(k % SPLIT_PAIRS);
  const amx_shapes s = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, (uint16_t)(4 * pairs), pairs ? 64 : 0},
    .rows = {all, all, all, all, all, SPLIT_PAIRS, pairs ? all : 0, pairs}};
  __asm__ volatile("ldtilecfg %0" : : "m"(s));
}

void K(split_end)(void) { __asm__ volatile("tilerelease" : : : "memory"); }

/* both: whether there are two row tiles, which may overlap. */
static inline __attribute__((always_inline)) void split_tiles(const int both, const int wide, int64_t rows,
                                                              const split_product *p, float *sums) {
  const int64_t a_stride = 4 * p->a_stride, second = both ? rows - AMX_ROWS : 0;
  const float *b = p->b;
  const char *prefetch = p->prefetch;
  if (p->more) {
    AMX_LOAD(0, sums, 4 * INGOT_PANEL);
    if (wide) AMX_LOAD(1, sums + AMX_QUADS, 4 * INGOT_PANEL);
    if (both) AMX_LOAD(2, sums + second * INGOT_PANEL, 4 * INGOT_PANEL);
    if (both && wide) AMX_LOAD(3, sums + second * INGOT_PANEL + AMX_QUADS, 4 * INGOT_PANEL);
  } else {
    AMX_ZERO(0);
    if (wide) AMX_ZERO(1);
    if (both) AMX_ZERO(2);
    if (both && wide) AMX_ZERO(3);
  }
  for (int64_t run = 0; run < p->runs; run++) {
    const float *a = p->a + p->offsets[run], *other = a + second * p->a_stride;
    int64_t k = 0;
    for (; k + SPLIT_PAIRS <= p->k; k += SPLIT_PAIRS, b += SPLIT_PAIRS * INGOT_PANEL) {
      const char *end = prefetch + p->prefetch_step;
      for (; prefetch < end; prefetch += 64) __builtin_prefetch(prefetch, 0, 2);
      AMX_SQUARE(tdpbf16ps, both, wide, a + k, other + k, a_stride, b, 4, 5);
    }
    if (k < p->k) AMX_SQUARE(tdpbf16ps, both, wide, a + k, other + k, a_stride, b, 6, 7);
    b += (p->k - k) * INGOT_PANEL;
  }
  AMX_STORE(0, sums, 4 * INGOT_PANEL);
  if (wide) AMX_STORE(1, sums + AMX_QUADS, 4 * INGOT_PANEL);
  if (both) AMX_STORE(2, sums + second * INGOT_PANEL, 4 * INGOT_PANEL);
  if (both && wide) AMX_STORE(3, sums + second * INGOT_PANEL + AMX_QUADS, 4 * INGOT_PANEL);
}

void K(split_sums)(int64_t rows, const split_product *p, float *sums) {
  if (rows <= AMX_ROWS && p->halved)
    split_tiles(0, 0, rows, p, sums);
  else if (rows <= AMX_ROWS)
    split_tiles(0, 1, rows, p, sums);
  else if (p->halved)
    split_tiles(1, 0, rows, p, sums);
  else
    split_tiles(1, 1, rows, p, sums);
}

#include "gemm/gemm_tile_split.inc"
#endif

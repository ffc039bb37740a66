/* gemm_micro_avx512bf16.c: gemm_tile_dots by the dot products of AVX512_BF16, with the tiles of AVX-512, and
 * gemm_tile_apart by those of AMX. */
#include <immintrin.h>

#include "amx.h"
#include "gemm.h"

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
#define TILE_SHAPES(X, n)                                                                                       \
  X(12, 2, n) X(12, 1, n) X(11, 2, n) X(11, 1, n) X(10, 2, n) X(10, 1, n) X(9, 2, n) X(9, 1, n) X(8, 2, n)      \
  X(8, 1, n) X(7, 2, n) X(7, 1, n) X(6, 2, n) X(6, 1, n) X(5, 2, n) X(5, 1, n) X(4, 4, n) X(4, 2, n) X(4, 1, n) \
  X(3, 8, n) X(3, 4, n) X(3, 2, n) X(3, 1, n) X(2, 8, n) X(2, 4, n) X(2, 2, n) X(2, 1, n) X(1, 8, n) X(1, 4, n) \
  X(1, 2, n) X(1, 1, n)
#include "gemm_tile_pairs.h"

#if defined(INGOT_LIBRARY)
#include "gemm_tile_apart.h"

/* Tiles 0 and 1: sums; 4: rows, 5: columns, of AMX_FOURS pairs; 6, 7: the same of the pairs that are left. */
static inline void apart_shape(int64_t rows, int64_t pairs) {
  const uint8_t all = (uint8_t)rows, left = pairs ? all : 0;
  const amx_shapes s = {
    .palette = 1, .row_bytes = {64, 64, 0, 0, 64, 64, (uint16_t)(4 * pairs), pairs ? 64 : 0},
    .rows = {all, all, 0, 0, all, AMX_FOURS, left, (uint8_t)pairs}};
  __asm__ volatile("ldtilecfg %0" : : "m"(s));
}

/* sums[rows][32] of one panel, b. */
static inline void apart_sums(const gemm_product *p, const float *b, float *sums) {
  const int64_t a_stride = 4 * p->a_stride, b_stride = 4 * p->b_stride;
  int64_t k = 0;
  AMX_ZERO(0);
  AMX_ZERO(1);
  for (; k + AMX_FOURS <= p->k; k += AMX_FOURS, b += AMX_FOURS * p->b_stride) {
    AMX_LOAD(4, p->a + k, a_stride);
    AMX_LOAD(5, b, b_stride);
    AMX_DOT(tdpbf16ps, 0, 4, 5);
    AMX_LOAD(5, b + 16, b_stride);
    AMX_DOT(tdpbf16ps, 1, 4, 5);
  }
  if (k < p->k) {
    AMX_LOAD(6, p->a + k, a_stride);
    AMX_LOAD(7, b, b_stride);
    AMX_DOT(tdpbf16ps, 0, 6, 7);
    AMX_LOAD(7, b + 16, b_stride);
    AMX_DOT(tdpbf16ps, 1, 6, 7);
  }
  AMX_STORE(0, sums, 4 * INGOT_PANEL);
  AMX_STORE(1, sums + 16, 4 * INGOT_PANEL);
}

void K(gemm_tile_apart)(int64_t rows, int64_t panels, const gemm_product *p) {
  _Alignas(64) float sums[GEMM_ROWS * INGOT_PANEL];
  apart_shape(rows, p->k % AMX_FOURS);
  for (int64_t panel = 0; panel < panels; panel++) {
    apart_sums(p, p->b + panel * p->panel_stride, sums);
    apart_close(p, rows, panel * INGOT_PANEL, apart_columns(p, panel, panels), sums);
  }
  AMX_END(1);
}
#endif

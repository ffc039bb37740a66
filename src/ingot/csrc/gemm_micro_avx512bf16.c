/* gemm_micro_avx512bf16.c: gemm_tile_dots by the dot products of AVX512_BF16; the tiles are those of AVX-512. */
#include <immintrin.h>

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

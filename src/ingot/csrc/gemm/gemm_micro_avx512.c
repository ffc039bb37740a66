/* gemm_micro_avx512.c: 32 registers hold 12 rows x 1 panel, 8 rows x 3 halves, or 3 rows x 4 panels. */
#include <immintrin.h>

#include "gemm/gemm.h"

#define TILE_V __m512
#define TILE_LANES 16
#define TILE_ZERO() _mm512_setzero_ps()
#define TILE_LOAD(p) _mm512_loadu_ps(p)
#define TILE_STORE(p, v) _mm512_storeu_ps(p, v)
#define TILE_LOW(p) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))
#define TILE_HIGH(p) _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-0x10000)))
#define TILE_HALVES(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define TILE_SET1(p) _mm512_set1_ps(*(p))
#define TILE_ADD(x, y) _mm512_add_ps(x, y)
#define TILE_FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#define TILE_MIN(x, y) _mm512_min_ps(x, y)
#define TILE_MAX(x, y) _mm512_max_ps(x, y)
#define TILE_ROUND(to, v) tile_round(to, v)
#define TILE_WIDEST 8
#define TILE_GROUP 4
#define TILE_SHAPES(X, n)                                                                                              \
  X(12, 2, n) X(12, 1, n) X(11, 2, n) X(11, 1, n) X(10, 2, n) X(10, 1, n) X(9, 2, n) X(9, 1, n) X(8, 3, n)             \
  X(8, 2, n) X(8, 1, n) X(7, 2, n) X(7, 1, n) X(6, 2, n) X(6, 1, n) X(5, 2, n) X(5, 1, n) X(4, 4, n)                   \
  X(4, 2, n) X(4, 1, n) X(3, 8, n) X(3, 4, n) X(3, 2, n) X(3, 1, n) X(2, 8, n) X(2, 4, n) X(2, 2, n)                   \
  X(2, 1, n) X(1, 8, n) X(1, 4, n) X(1, 2, n) X(1, 1, n)
#include "gemm/gemm_tile_floats.inc"

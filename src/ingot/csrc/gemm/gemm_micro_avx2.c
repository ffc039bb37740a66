/* gemm_micro_avx2.c: 16 registers hold 6 rows x half a panel, 3 rows x 1 panel, or 1 row x 2 panels. */
#include <immintrin.h>

#include "gemm/gemm.h"

#define TILE_V __m256
#define TILE_LANES 8
#define TILE_ZERO() _mm256_setzero_ps()
#define TILE_LOAD(p) _mm256_loadu_ps(p)
#define TILE_STORE(p, v) _mm256_storeu_ps(p, v)
#define TILE_LOW(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(p)), 16))
#define TILE_HIGH(p) _mm256_and_ps(_mm256_loadu_ps(p), _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)))
#define TILE_HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define TILE_SET1(p) _mm256_broadcast_ss(p)
#define TILE_ADD(x, y) _mm256_add_ps(x, y)
#define TILE_FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define TILE_MIN(x, y) _mm256_min_ps(x, y)
#define TILE_MAX(x, y) _mm256_max_ps(x, y)
#define TILE_ROUND(to, v) tile_round(to, v)
#define TILE_WIDEST 8
#define TILE_GROUP 8
#define TILE_SHAPES(X, n)                                                                                              \
  X(6, 2, n) X(5, 2, n) X(4, 2, n) X(3, 4, n) X(3, 2, n) X(2, 4, n) X(2, 2, n) X(1, 8, n) X(1, 4, n) X(1, 2, n)
#include "gemm/gemm_tile_floats.inc"

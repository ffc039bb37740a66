/* gemm_micro_scalar.c: one float at a time; the reference for the other instruction sets. Where the CPU has no fused
 * multiply-add, four at a time, in double precision. */
#include <math.h>
#include <string.h>

#include "math/bf16.h"
#include "math/f16.h"
#include "gemm/gemm.h"

/* The first or second number of a pair of bf16, as a float. */
static inline float half_of(const float *pair, int second) {
  uint16_t halves[2];
  memcpy(halves, pair, sizeof halves);
  return bf16_to_float(halves[second]);
}

#if defined(__x86_64__) && !defined(__FMA__)
#define TILE_V __m128
#define TILE_LANES 4
#define TILE_ZERO() _mm_setzero_ps()
#define TILE_LOAD(p) _mm_loadu_ps(p)
#define TILE_STORE(p, v) _mm_storeu_ps(p, v)
#define TILE_SET1(p) _mm_set1_ps(*(p))
#define TILE_ADD(x, y) _mm_add_ps(x, y)
#define TILE_FMA(x, y, z) fma_four(x, y, z)
#define TILE_MIN(x, y) _mm_min_ps(x, y)
#define TILE_MAX(x, y) _mm_max_ps(x, y)
#else
#define TILE_V float
#define TILE_LANES 1
#define TILE_ZERO() 0.0f
#define TILE_LOAD(p) (*(p))
#define TILE_STORE(p, v) (*(p) = (v))
#define TILE_SET1(p) (*(p))
#define TILE_ADD(x, y) ((x) + (y))
#define TILE_FMA(x, y, z) fmaf(x, y, z)
#define TILE_MIN(x, y) ((x) < (y) ? (x) : (y))
#define TILE_MAX(x, y) ((x) > (y) ? (x) : (y))
#endif

#if defined(__x86_64__) && !defined(__FMA__)
#define TILE_LOW(p) _mm_castsi128_ps(_mm_slli_epi32(_mm_loadu_si128((const __m128i *)(p)), 16))
#define TILE_HIGH(p) _mm_and_ps(_mm_loadu_ps(p), _mm_castsi128_ps(_mm_set1_epi32(-0x10000)))
#else
#define TILE_LOW(p) half_of(p, 0)
#define TILE_HIGH(p) half_of(p, 1)
#endif

#if defined(__x86_64__) && !defined(__FMA__)
#define TILE_HALVES(p)                                                                                                 \
  _mm_setr_ps(f16_to_float((p)[0]), f16_to_float((p)[1]), f16_to_float((p)[2]), f16_to_float((p)[3]))
#else
#define TILE_HALVES(p) f16_to_float(*(p))
#endif

#define TILE_ROUND(to, v) tile_round(to, v)
#if defined(INGOT_SMALL)
#define TILE_WIDEST 8
#define TILE_GROUP 1
#define TILE_SHAPES(X, n) X(1, 8, n)
#else
#define TILE_WIDEST 2
#define TILE_GROUP 1
#define TILE_SHAPES(X, n) X(4, 2, n) X(3, 2, n) X(2, 2, n) X(1, 2, n)
#endif
#include "gemm/gemm_tile_floats.inc"

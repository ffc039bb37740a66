/* gemm_micro_dots.c: gemm_tile_dots where there is no instruction for it: AVX-512's, one float at a time. */
#include <math.h>
#include <string.h>

#include "bf16.h"
#include "gemm.h"

static inline float without_denormal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static inline float bf16_element(const float *pair, int second) {
  uint16_t halves[2];
  memcpy(halves, pair, sizeof halves);
  return without_denormal(bf16_to_float(halves[second]));
}

/* sum + the products of two pairs. */
static inline float dot_pairs(float x, float y, float sum) {
  for (int second = 1; second >= 0; second--)
    sum = without_denormal(fmaf(bf16_element(&x, second), bf16_element(&y, second), sum));
  return sum;
}

#define TILE_V float
#define TILE_LANES 1
#define TILE_ZERO() 0.0f
#define TILE_LOAD(p) (*(p))
#define TILE_STORE(p, v) (*(p) = (v))
#define TILE_HALVES(p) ((void)(p), 0.0f) /* no tile here widens */
#define TILE_LOW(p) (*(p))
#define TILE_HIGH(p) (*(p))
#define TILE_SET1(p) (*(p))
#define TILE_ADD(x, y) ((x) + (y))
#define TILE_FMA(x, y, z) dot_pairs(x, y, z)
#define TILE_MIN(x, y) ((x) < (y) ? (x) : (y))
#define TILE_MAX(x, y) ((x) > (y) ? (x) : (y))
#define TILE_ROUND(to, v) (*(to) = float_to_bf16(without_denormal(v)))
#define TILE_WIDEST 2
#if GEMM_ROWS > 4
#define TILE_SHAPES(X, n) X(6, 2, n) X(5, 2, n) X(4, 2, n) X(3, 2, n) X(2, 2, n) X(1, 2, n)
#else
#define TILE_SHAPES(X, n) X(4, 2, n) X(3, 2, n) X(2, 2, n) X(1, 2, n)
#endif
#include "gemm_tile_pairs.h"

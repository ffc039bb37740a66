/* gemm_micro_scalar.c: one float at a time; the reference for the other instruction sets. */
#include <math.h>
#include <string.h>

#include "gemm.h"

/* The bf16 in the lower half of 32 bits, and in the upper, as a float. */
static inline float low_half(const float *p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  bits <<= 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float high_half(const float *p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  bits &= 0xffff0000u;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#define TILE_V float
#define TILE_LANES 1
#define TILE_ZERO() 0.0f
#define TILE_LOAD(p) (*(p))
#define TILE_STORE(p, v) (*(p) = (v))
#define TILE_LOW(p) low_half(p)
#define TILE_HIGH(p) high_half(p)
#define TILE_SET1(p) (*(p))
#define TILE_ADD(x, y) ((x) + (y))
#define TILE_FMA(x, y, z) fmaf(x, y, z)
#define TILE_MIN(x, y) ((x) < (y) ? (x) : (y))
#define TILE_MAX(x, y) ((x) > (y) ? (x) : (y))
#define TILE_ROUND(to, v) tile_round(to, v)
#define TILE_WIDEST 2
#define TILE_SHAPES(X, n) X(4, 2, n) X(3, 2, n) X(2, 2, n) X(1, 2, n)
#include "gemm_tile_floats.h"

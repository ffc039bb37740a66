/* gemm_micro_scalar.c: one float at a time; the reference for the other instruction sets. */
#include <math.h>

#include "gemm.h"

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
#define TILE_WIDEST 2
#define TILE_SHAPES(X) X(4, 2) X(3, 2) X(2, 2) X(1, 2)
#include "gemm_tile.h"

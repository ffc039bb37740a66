/* gemm_tile_floats.h: gemm_tile over panels of floats, and over those of bf16 and f16. */
#include "gemm_tile.h"

TILE(gemm_tile, TILE_WHOLE)
TILE(gemm_tile_widened, TILE_FIRST)
TILE(gemm_tile_halves, TILE_UPPER)

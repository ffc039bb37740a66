/* gemm_tile_floats.h: gemm_tile over panels of floats, and over those of bf16. */
#include "gemm_tile.h"

TILE(gemm_tile, 0)
TILE(gemm_tile_widened, 1)

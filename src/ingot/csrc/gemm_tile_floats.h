/* gemm_tile_floats.h: gemm_tile over panels of floats, by rows and by columns of a, and over those of bf16 and f16. */
#include "gemm_tile.h"

TILE(gemm_tile, INGOT_TILE_FLOATS, 1, 1)
TILE(gemm_tile_columns, INGOT_TILE_COLUMNS, 1, 1)
TILE(gemm_tile_widened, INGOT_TILE_PAIRS, 2, 1)
TILE(gemm_tile_halves, INGOT_TILE_HALVES, 2, 2)

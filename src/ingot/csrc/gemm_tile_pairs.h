/* gemm_tile_pairs.h: gemm_tile over pairs of bf16, by a TILE_FMA that multiplies pairs. */
#include "gemm_tile.h"

TILE(gemm_tile_dots, INGOT_TILE_FLOATS, 1, 1)

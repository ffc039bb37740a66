/* gemm_micro_blocks_widened.c: blocks_tile without dot products of int8. */
#include "quant/registers_widened.h"

#include "quant/gemm_tile_blocks.inc"

/* gemm_micro_opened_widened.c: blocks_opened without dot products of int8. */
#include "quant/registers_widened.h"

#include "quant/gemm_tile_opened.inc"

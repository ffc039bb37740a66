/* gemm_micro_quant_widened.c: quant_tile without dot products of int8. */
#include "quant/registers_widened.h"

#include "quant/gemm_tile_quant.inc"

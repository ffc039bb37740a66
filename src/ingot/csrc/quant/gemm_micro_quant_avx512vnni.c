/* gemm_micro_quant_avx512vnni.c: quant_tile by the dot products of AVX512_VNNI. */
#include "quant/registers_vnni.h"

#include "quant/gemm_tile_quant.inc"

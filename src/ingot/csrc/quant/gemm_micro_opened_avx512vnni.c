/* gemm_micro_opened_avx512vnni.c: blocks_opened by the dot products of AVX512_VNNI. */
#include "quant/registers_vnni.h"

#include "quant/gemm_tile_opened.inc"

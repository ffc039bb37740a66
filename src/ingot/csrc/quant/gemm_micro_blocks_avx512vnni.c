/* gemm_micro_blocks_avx512vnni.c: blocks_tile by the dot products of AVX512_VNNI. */
#include "quant/registers_vnni.h"

#include "quant/gemm_tile_blocks.inc"

/* gemm_micro_amx_avx512vnni.c: quant_tile and blocks_tile for many rows, by AMX. */
#include "quant/registers_vnni.h"

#if defined(ISA_amx)
#include "quant/gemm_tile_amx.inc"
#endif

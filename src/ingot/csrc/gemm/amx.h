/* amx.h: what kernels do around products by tiles of AMX, where a set may have them. */
#ifndef INGOT_AMX_H
#define INGOT_AMX_H

#include "kernel.h"

#define AMX_ROWS 16  /* of a tile */
#define AMX_QUADS 16 /* of elements of k that it holds */

#if defined(ISA_amx)
#include "gemm/amx_tiles.h"
#endif

/* Tiles have shapes from AMX_BEGIN to AMX_END alone, as the system keeps them for a thread that has some; both take
 * longer than many products. They are for a thread that then multiplies by tiles. */
#if defined(ISA_amx)
#define AMX_BEGIN(is_used, quads) if (is_used) amx_shape(AMX_ROWS, quads)
#define AMX_END(is_used) if (is_used) __asm__ volatile("tilerelease" : : : "memory")
#else
#define AMX_BEGIN(is_used, quads) (void)(is_used)
#define AMX_END(is_used) (void)(is_used)
#endif

#endif

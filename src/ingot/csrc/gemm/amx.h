/* amx.h: setup and teardown around AMX products, for the instruction sets that may have AMX. */
#ifndef INGOT_AMX_H
#define INGOT_AMX_H

#include "kernel.h"

#define AMX_ROWS 16  /* of a tile */
#define AMX_QUADS 16 /* quads of k in a tile */

#if defined(ISA_amx)
#include "gemm/amx_tiles.h"
#endif

/* Tile shapes are set only from AMX_BEGIN to AMX_END, because the system saves the tiles of a thread that has
 * configured them. Both take longer than many products; only a thread that then multiplies by AMX calls them. */
#if defined(ISA_amx)
#define AMX_BEGIN(is_used, quads) if (is_used) amx_shape(AMX_ROWS, quads)
#define AMX_END(is_used) if (is_used) __asm__ volatile("tilerelease" : : : "memory")
#else
#define AMX_BEGIN(is_used, quads) (void)(is_used)
#define AMX_END(is_used) (void)(is_used)
#endif

#endif

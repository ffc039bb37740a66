/* amx_tiles.h: tiles of AMX, registers of up to 16 rows of 64 bytes, of which an instruction multiplies two. */
#ifndef INGOT_AMX_TILES_H
#define INGOT_AMX_TILES_H

#include "gemm/amx.h"

#define AMX_TILES 4 /* of sums */

/* Whether this process uses tiles, of which emitted C has a set of its own; see ingot_use_amx. */
#if defined(INGOT_LIBRARY)
extern int32_t ingot_amx;
#define AMX_IS_USED ingot_amx
#else
#define AMX_IS_USED 1
#endif

/* Numbers of tiles are literals. The rows of p lie `stride` bytes apart. */
#define AMX_LOAD(tile, p, stride)                                                                                      \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_STORE(tile, p, stride)                                                                                     \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)

/* c[rows][16] of int32 += a[rows][fours][4] x b[fours][16][4]. op: tdpbssd, or with u for what is unsigned. */
#define AMX_DOT(op, c, a, b) __asm__ volatile(#op " %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

/* Tiles of sums, a constant number up to AMX_TILES, += rows from byte `at` of each a[], which go to tile x, times what
 * lies at b, a panel's columns, which goes to tile w. */
#define AMX_STEP(op, tiles, a, at, stride, b, x, w)                                                                    \
  do {                                                                                                                 \
    AMX_LOAD(w, b, 4 * INGOT_PANEL);                                                                                   \
    AMX_LOAD(x, (a)[0] + (at), stride);                                                                                \
    AMX_DOT(op, 0, x, w);                                                                                              \
    if ((tiles) > 1) AMX_LOAD(x, (a)[1] + (at), stride);                                                               \
    if ((tiles) > 1) AMX_DOT(op, 1, x, w);                                                                             \
    if ((tiles) > 2) AMX_LOAD(x, (a)[2] + (at), stride);                                                               \
    if ((tiles) > 2) AMX_DOT(op, 2, x, w);                                                                             \
    if ((tiles) > 3) AMX_LOAD(x, (a)[3] + (at), stride);                                                               \
    if ((tiles) > 3) AMX_DOT(op, 3, x, w);                                                                             \
  } while (0)

/* Tiles 0 to 3 of sums += those of up to two tiles of rows, at a and below, which go to tile x, times those of up to
 * two tiles of columns of a panel, at b, which go to tile w. tall, wide: whether there are two of rows, and of columns;
 * constants. Sums of the second tile of columns are in tiles 1 and 3, of the second of rows in 2 and 3. */
#define AMX_SQUARE(op, tall, wide, a, below, stride, b, x, w)                                                          \
  do {                                                                                                                 \
    AMX_LOAD(w, b, 4 * INGOT_PANEL);                                                                                   \
    AMX_LOAD(x, a, stride);                                                                                            \
    AMX_DOT(op, 0, x, w);                                                                                              \
    if (tall) AMX_LOAD(x, below, stride);                                                                              \
    if (tall) AMX_DOT(op, 2, x, w);                                                                                    \
    if (wide) AMX_LOAD(w, (const char *)(b) + 4 * AMX_QUADS, 4 * INGOT_PANEL);                                         \
    if ((tall) && (wide)) AMX_DOT(op, 3, x, w);                                                                        \
    if ((tall) && (wide)) AMX_LOAD(x, a, stride);                                                                      \
    if (wide) AMX_DOT(op, 1, x, w);                                                                                    \
  } while (0)

typedef struct { uint8_t palette, start, none[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } amx_shapes;

/* 0 to 3: sums; 4: up to AMX_ROWS rows, 5: columns, of AMX_QUADS fours; 6, 7: the same of the fours that are left, if
 * any. */
static inline void amx_shape(int64_t rows, int64_t quads) {
  const uint8_t all = (uint8_t)rows;
  amx_shapes s = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64}, .rows = {all, all, all, all, all, AMX_QUADS}};
  if (quads) s.row_bytes[6] = (uint16_t)(4 * quads), s.rows[6] = all;
  if (quads) s.row_bytes[7] = 64, s.rows[7] = (uint8_t)quads;
  __asm__ volatile("ldtilecfg %0" : : "m"(s));
}

/* Where a tile of at least AMX_ROWS rows begins: the last may share some with the one before. */
static inline int64_t amx_first(int64_t rows, int64_t tile) {
  return (tile + 1) * AMX_ROWS < rows ? tile * AMX_ROWS : rows - AMX_ROWS;
}

#endif

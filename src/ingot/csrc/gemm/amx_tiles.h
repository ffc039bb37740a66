/* amx_tiles.h: AMX tiles, registers of up to 16 rows of 64 bytes; one instruction multiplies two of them. */
#ifndef INGOT_AMX_TILES_H
#define INGOT_AMX_TILES_H

#include "gemm/amx.h"

#define AMX_TILES 4 /* tiles of sums */

/* Whether this process uses AMX (ingot_use_amx). Emitted C has a separate instruction set for it. */
#if defined(INGOT_LIBRARY)
extern int32_t ingot_amx;
#define AMX_IS_USED ingot_amx
#else
#define AMX_IS_USED 1
#endif

/* Tile numbers are literals. The rows of p are `stride` bytes apart. */
#define AMX_LOAD(tile, p, stride)                                                                                      \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_STORE(tile, p, stride)                                                                                     \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)

/* c[rows][16] of int32 += a[rows][quads][4] x b[quads][16][4]. op: tdpbssd, or with u for unsigned operands. */
#define AMX_DOT(op, c, a, b) __asm__ volatile(#op " %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

/* Tiles of sums, a constant number up to AMX_TILES, += rows from byte `at` of each a[], loaded into tile x, times the
 * columns of a panel at b, loaded into tile w. */
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

/* Tiles 0 to 3 of sums += up to two row tiles, at a and below, loaded into tile x, times up to two column tiles of a
 * panel, at b, loaded into tile w. tall, wide: whether there are two row tiles, and two column tiles; constants. Sums
 * of the second column tile are in tiles 1 and 3, of the second row tile in 2 and 3. */
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

/* 0 to 3: sums; 4: up to AMX_ROWS rows, 5: columns, of AMX_QUADS quads; 6, 7: the same for the remaining quads, if
 * any. */
static inline void amx_shape(int64_t rows, int64_t quads) {
  const uint8_t all = (uint8_t)rows;
  amx_shapes s = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64}, .rows = {all, all, all, all, all, AMX_QUADS}};
  if (quads) s.row_bytes[6] = (uint16_t)(4 * quads), s.rows[6] = all;
  if (quads) s.row_bytes[7] = 64, s.rows[7] = (uint8_t)quads;
  __asm__ volatile("ldtilecfg %0" : : "m"(s));
}

/* The first row of a tile of at least AMX_ROWS rows: the last tile may overlap the one before. */
static inline int64_t amx_first(int64_t rows, int64_t tile) {
  return (tile + 1) * AMX_ROWS < rows ? tile * AMX_ROWS : rows - AMX_ROWS;
}

#endif

/* gemm_columns.h: products of the transpose of a matrix that lies in rows, x^T @ g: some of its columns as tiles. */
#ifndef INGOT_GEMM_COLUMNS_H
#define INGOT_GEMM_COLUMNS_H

#include "gemm/gemm.h"

#define GEMM_COLUMN_ROWS 8 /* that are copied together: so many of one set fit a cache */

/* The tiles that so many columns are cut into, as part_begin does. */
static inline int32_t gemm_column_tiles(int64_t columns) { return (int32_t)((columns + GEMM_ROWS - 1) / GEMM_ROWS); }

/* The first columns of a[k][a_stride] for gemm_tile_columns, a_stride GEMM_ROWS there: tile after tile, each
 * [k][GEMM_ROWS]. Read where they lie, the elements of a tile may be a page apart from one k to the next. Some rows go
 * together: those of a tile are then written in one piece, and all tiles begin in the same set of a cache. */
static inline void gemm_pack_columns(const float *a, int64_t k, int64_t columns, int64_t a_stride, float *to) {
  const int32_t tiles = gemm_column_tiles(columns);
  for (int64_t first = 0; first < k; first += GEMM_COLUMN_ROWS) {
    const int64_t end = k - first < GEMM_COLUMN_ROWS ? k : first + GEMM_COLUMN_ROWS;
    int64_t at = 0;
    for (int32_t tile = 0; tile < tiles; tile++) {
      const int64_t next = part_begin(columns, tile + 1, tiles), count = next - at;
      for (int64_t i = first; i < end; i++) {
        const float *from = a + i * a_stride + at;
        __builtin_prefetch(from + GEMM_COLUMN_ROWS * a_stride);
        float *row = to + (tile * k + i) * GEMM_ROWS;
        if (count == GEMM_ROWS) /* a masked store takes some of AMD's CPUs as long as fifteen others */
          memcpy(row, from, GEMM_ROWS * sizeof *row);
        else
          v_store_n(row, v_load_n(from, count), count);
      }
      at = next;
    }
  }
}

#endif

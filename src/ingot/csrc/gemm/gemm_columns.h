/* gemm_columns.h: the transposed operand of x^T @ g, where x is stored by rows: columns of x copied as tiles. */
#ifndef INGOT_GEMM_COLUMNS_H
#define INGOT_GEMM_COLUMNS_H

#include "gemm/gemm.h"

#define GEMM_COLUMN_ROWS 8 /* rows that are copied together: so many of one cache set fit a cache */

/* The number of tiles that so many columns are divided into, with task_begin's boundaries. */
static inline int32_t gemm_column_tiles(int64_t columns) { return (int32_t)((columns + GEMM_ROWS - 1) / GEMM_ROWS); }

/* Copy the first columns of a[k][a_stride] for gemm_tile_columns with the stride GEMM_ROWS: tile after tile, each
 * [k][GEMM_ROWS]. In place, the elements of a tile may be a page apart from one k to the next. Some rows are copied
 * together, because all tiles begin in the same cache set, and the rows of a tile are then written in one piece. */
static inline void gemm_pack_columns(const float *a, int64_t k, int64_t columns, int64_t a_stride, float *to) {
  const int32_t tiles = gemm_column_tiles(columns);
  for (int64_t first = 0; first < k; first += GEMM_COLUMN_ROWS) {
    const int64_t end = k - first < GEMM_COLUMN_ROWS ? k : first + GEMM_COLUMN_ROWS;
    int64_t at = 0;
    for (int32_t tile = 0; tile < tiles; tile++) {
      const int64_t next = task_begin(columns, tile + 1, tiles), count = next - at;
      for (int64_t i = first; i < end; i++) {
        const float *from = a + i * a_stride + at;
        __builtin_prefetch(from + GEMM_COLUMN_ROWS * a_stride);
        float *row = to + (tile * k + i) * GEMM_ROWS;
        if (count == GEMM_ROWS) /* a masked store takes some AMD CPUs as long as fifteen others */
          memcpy(row, from, GEMM_ROWS * sizeof *row);
        else
          v_store_n(row, v_load_n(from, count), count);
      }
      at = next;
    }
  }
}

#endif

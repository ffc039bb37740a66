/* integer_tile_amx.h: the tile of integer_tile.h for more rows, by AMX. */
#ifndef INGOT_INTEGER_TILE_AMX_H
#define INGOT_INTEGER_TILE_AMX_H

static inline __attribute__((always_inline)) void integer_columns_many(const int tiles, int64_t rows,
                                                                       const integer_product *p, int64_t column) {
  const int64_t end = 4 * p->quads;
  const int8_t *b = p->b + 4 * column;
  const uint8_t *a[AMX_TILES];
  int32_t *to[AMX_TILES];
  int64_t k = 0;
  /* Tiles load slowly from rows at one address, so the first sums are repeated. */
  _Alignas(64) int32_t first[AMX_ROWS * INTEGER_LANES];
  for (int i = 0; i < AMX_ROWS; i++) memcpy(first + i * INTEGER_LANES, p->first + column, 4 * INTEGER_LANES);
  for (int i = 0; i < tiles; i++) {
    a[i] = p->a + amx_first(rows, i) * p->a_stride;
    to[i] = p->sums + amx_first(rows, i) * INGOT_PANEL + column;
  }
  AMX_LOAD(0, first, 4 * INTEGER_LANES);
  if (tiles > 1) AMX_LOAD(1, first, 4 * INTEGER_LANES);
  if (tiles > 2) AMX_LOAD(2, first, 4 * INTEGER_LANES);
  if (tiles > 3) AMX_LOAD(3, first, 4 * INTEGER_LANES);
  for (; k + 4 * AMX_QUADS <= end; k += 4 * AMX_QUADS, b += 4 * AMX_QUADS * INGOT_PANEL)
    AMX_STEP(tdpbusd, tiles, a, k, p->a_stride, b, 4, 5);
  if (k < end) AMX_STEP(tdpbusd, tiles, a, k, p->a_stride, b, 6, 7);
  AMX_STORE(0, to[0], 4 * INGOT_PANEL);
  if (tiles > 1) AMX_STORE(1, to[1], 4 * INGOT_PANEL);
  if (tiles > 2) AMX_STORE(2, to[2], 4 * INGOT_PANEL);
  if (tiles > 3) AMX_STORE(3, to[3], 4 * INGOT_PANEL);
}

static void K(integer_tile_many)(int64_t rows, const integer_product *p) {
  for (int64_t column = 0; column < p->columns; column += INTEGER_LANES) {
    switch ((rows + AMX_ROWS - 1) / AMX_ROWS) {
      case 1: integer_columns_many(1, rows, p, column); break;
      case 2: integer_columns_many(2, rows, p, column); break;
      case 3: integer_columns_many(3, rows, p, column); break;
      default: integer_columns_many(AMX_TILES, rows, p, column);
    }
  }
}

#endif

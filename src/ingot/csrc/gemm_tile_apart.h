/* gemm_tile_apart.h: the end of gemm_tile_apart, for files that have a tile's sums in memory; behind gemm_tile.h. */

/* Where sums go, or what a finish makes of them; columns: a multiple of TILE_LANES. */
static inline void apart_close(const gemm_product *p, int64_t rows, int64_t column, int64_t columns,
                               const float *sums) {
  const float unchanged = -0.0f;
  for (int64_t j = 0; j < columns; j += TILE_LANES) {
    const gemm_finish *f = p->finish;
    const int64_t at = column + j;
    const TILE_V bias = f && f->bias ? TILE_LOAD(f->bias + at) : TILE_SET1(&unchanged);
    for (int64_t i = 0; i < rows; i++) {
      TILE_V v = TILE_LOAD(sums + i * INGOT_PANEL + j);
      if (p->more) v = TILE_ADD(TILE_LOAD(p->sums + i * p->sums_stride + at), v);
      if (!f) {
        TILE_STORE(p->sums + i * p->sums_stride + at, v);
        continue;
      }
      v = tile_finish(f, v, bias, i, at);
      if (f->out) TILE_STORE(f->out + i * f->out_stride + at, v);
      if (f->rounded) TILE_ROUND(f->rounded + i * f->rounded_stride + at, v);
    }
  }
}

/* The wanted columns of a panel. */
static inline int64_t apart_columns(const gemm_product *p, int64_t panel, int64_t panels) {
  return panel == panels - 1 && p->halved ? INGOT_PANEL / 2 : INGOT_PANEL;
}

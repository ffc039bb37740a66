/* gemm_tile_apart.h: gemm_tile_apart of apart_sums, and the finish of these, for files that define apart_begin,
 * apart_sums and apart_end, and loads and stores of the first n columns of a register; behind gemm_tile.h. */

/* out, rounded: whether results go there, constants at every call. */
static inline __attribute__((always_inline)) void apart_finish_to(const int out, const int rounded, const gemm_finish f,
                                                                  int64_t rows, int64_t columns, const float *sums) {
  const float unchanged = -0.0f;
  const TILE_V low = TILE_SET1(&f.low), high = TILE_SET1(&f.high);
  for (int64_t j = 0; j < columns; j += TILE_LANES) {
    const int64_t n = columns - j < TILE_LANES ? columns - j : TILE_LANES;
    const TILE_V bias = f.bias ? APART_LOAD(f.bias + j, n) : TILE_SET1(&unchanged);
    for (int64_t i = 0; i < rows; i++) {
      TILE_V v = TILE_ADD(TILE_LOAD(sums + i * INGOT_PANEL + j), bias);
      const TILE_V rest = f.residual ? APART_LOAD(f.residual + i * f.residual_stride + j, n) : TILE_SET1(&unchanged);
      if (f.residual_first) v = TILE_ADD(v, rest);
      v = TILE_MIN(high, TILE_MAX(low, v));
      if (!f.residual_first) v = TILE_ADD(v, rest);
      if (out) APART_STORE(f.out + i * f.out_stride + j, v, n);
      if (rounded) APART_ROUND(f.rounded + i * f.rounded_stride + j, v, n);
    }
  }
}

void K(apart_finish)(const gemm_finish *f, int64_t rows, int64_t columns, const float *sums) {
  if (!f->rounded)
    apart_finish_to(1, 0, *f, rows, columns, sums);
  else if (!f->out)
    apart_finish_to(0, 1, *f, rows, columns, sums);
  else
    apart_finish_to(1, 1, *f, rows, columns, sums);
}

void K(gemm_tile_apart)(int64_t rows, int64_t panels, const gemm_product *p) {
  static const int64_t none[1] = {0};
  _Alignas(64) float sums[APART_ROWS * INGOT_PANEL];
  K(apart_begin)(rows, p->k);
  for (int64_t panel = 0; panel < panels; panel++) {
    const int64_t column = panel * INGOT_PANEL;
    const int halved = panel == panels - 1 && p->halved;
    const int64_t columns = halved ? INGOT_PANEL / 2 : INGOT_PANEL;
    const apart_product product = {
      .runs = 1, .k = p->k, .offsets = none, .a = p->a, .a_stride = p->a_stride, .b = p->b + panel * p->panel_stride,
      .halved = halved};
    K(apart_sums)(rows, &product, sums);
    for (int64_t i = 0; i < rows && (p->more || !p->finish); i++) {
      for (int64_t j = 0; j < columns; j += TILE_LANES) {
        float *to = p->sums + i * p->sums_stride + column + j, *own = sums + i * INGOT_PANEL + j;
        const TILE_V v = TILE_LOAD(own);
        TILE_STORE(p->finish ? own : to, p->more ? TILE_ADD(TILE_LOAD(to), v) : v);
      }
    }
    if (!p->finish) continue;
    gemm_finish finish = *p->finish;
    if (finish.out) finish.out += column;
    if (finish.rounded) finish.rounded += column;
    if (finish.bias) finish.bias += column;
    if (finish.residual) finish.residual += column;
    K(apart_finish)(&finish, rows, columns, sums);
  }
  K(apart_end)();
}

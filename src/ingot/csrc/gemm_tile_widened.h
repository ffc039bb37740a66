/* gemm_tile_widened.h: gemm_tile over panels of bf16. Included by gemm_micro_<isa>.c after gemm_tile.h. */

#define TILE_INSTANCE(rows, width)                                                                              \
  static void K(widened_##rows##x##width)(const gemm_product *p, int64_t column, const char *ahead, int64_t step) { \
    tile_body(rows, width, 1, p, column, ahead, step);                                                          \
  }
TILE_SHAPES(TILE_INSTANCE)

static const tile_row gemm_tiles_widened[] = {
  #define TILE_ROW(rows, width) {rows, width, K(widened_##rows##x##width)},
  TILE_SHAPES(TILE_ROW)
};

void K(gemm_tile_widened)(int64_t rows, int64_t panels, const gemm_product *p) {
  tile_run(gemm_tiles_widened, rows, panels, p);
}

#undef TILE_INSTANCE
#undef TILE_ROW

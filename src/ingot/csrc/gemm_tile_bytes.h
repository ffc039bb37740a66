/* gemm_tile_bytes.h: the body of bytes_tile. Included by files that first define BYTES_I, the register of BYTES_LANES
 * sums, with BYTES_FIRST(p), BYTES_FOUR(p) (four bytes in all lanes), BYTES_LOAD(p) (four of b a lane), BYTES_DOT(sum,
 * a, w) (sum + the four unsigned bytes of each lane x four signed ones) and BYTES_FINISH(to, sum, scales) (as floats,
 * by the scales); BYTES_WIDTH, the registers of a row of a tile; BYTES_SHAPES(X): X(rows) for every number of rows up
 * to BYTES_ROWS; and BYTES_NAME(name), a tile's name. */

/* `rows` is a constant at every call. */
static inline __attribute__((always_inline)) void bytes_body(const int rows, const bytes_product *p, int64_t column) {
  const uint8_t *third[(BYTES_ROWS + 2) / 3];
  BYTES_I sum[BYTES_ROWS][BYTES_WIDTH];
  INGOT_UNROLL for (int i = 0; i < rows; i += 3) third[i / 3] = p->a + i * p->a_stride;
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    INGOT_UNROLL for (int j = 0; j < BYTES_WIDTH; j++) sum[i][j] = BYTES_FIRST(p->first + column + j * BYTES_LANES);
  }
  const int8_t *b = p->b + 4 * column;
  for (int64_t k = 0; k < 4 * p->fours; k += 4, b += 4 * INGOT_PANEL) {
    BYTES_I w[BYTES_WIDTH];
    INGOT_UNROLL for (int j = 0; j < BYTES_WIDTH; j++) w[j] = BYTES_LOAD(b + 4 * j * BYTES_LANES);
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      const BYTES_I four = BYTES_FOUR(third[i / 3] + k + i % 3 * p->a_stride);
      INGOT_UNROLL for (int j = 0; j < BYTES_WIDTH; j++) sum[i][j] = BYTES_DOT(sum[i][j], four, w[j]);
    }
  }
  INGOT_UNROLL for (int i = 0; i < rows; i++) {
    INGOT_UNROLL for (int j = 0; j < BYTES_WIDTH; j++) {
      const int64_t at = column + j * BYTES_LANES;
      BYTES_FINISH(p->out + i * INGOT_PANEL + at, sum[i][j], p->scales + at);
    }
  }
}

#define BYTES_INSTANCE(rows) \
  static void BYTES_NAME(bytes_##rows)(const bytes_product *p, int64_t column) { bytes_body(rows, p, column); }
BYTES_SHAPES(BYTES_INSTANCE)

void BYTES_NAME(bytes_tile)(int64_t rows, const bytes_product *p) {
  #define BYTES_ROW(rows) BYTES_NAME(bytes_##rows),
  static void (*const tiles[])(const bytes_product *, int64_t) = {BYTES_SHAPES(BYTES_ROW)};
  #undef BYTES_ROW
  for (int64_t column = 0; column < INGOT_PANEL; column += BYTES_WIDTH * BYTES_LANES) tiles[rows - 1](p, column);
}

#undef BYTES_INSTANCE

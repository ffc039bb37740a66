/* gemm_tile.h: the body of gemm_tile. Included by gemm_micro_<isa>.c, which first defines the register TILE_V with
 * TILE_LANES floats, the operations TILE_ZERO, TILE_LOAD, TILE_STORE, TILE_SET1, TILE_ADD and TILE_FMA, and
 * TILE_SHAPES(X): X(rows, width) for each tile to compile. Every number of rows up to GEMM_ROWS is there, widest tile
 * first; the last of each divides a panel. TILE_WIDEST is the largest width. */

#define TILE_PANEL (INGOT_PANEL / TILE_LANES) /* registers in a row of a panel */

/* `rows` and `width` (registers in a row of c) are constants at every call: the arrays become registers. */
static inline __attribute__((always_inline)) void tile_body(const int rows, const int width, int64_t k, const float *a,
                                                            int64_t a_stride, const float *b, int64_t b_stride,
                                                            int64_t panel_stride, float *c, int64_t c_stride,
                                                            const char *ahead, int64_t ahead_step, int more) {
  int64_t done = 0;
  do {
    const int64_t steps = k - done < INGOT_K_BLOCK ? k - done : INGOT_K_BLOCK;
    TILE_V sum[GEMM_ROWS][TILE_WIDEST];
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = TILE_ZERO();
    }
    /* A pointer for every third row and two strides address all rows without running out of integer registers. */
    const float *third[(GEMM_ROWS + 2) / 3];
    INGOT_UNROLL for (int i = 0; i < rows; i += 3) third[i / 3] = a + i * a_stride + done;
    for (int64_t s = 0; s < steps; s++) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += ahead_step;
      if (width <= 2) {
        TILE_V bv[2];
        INGOT_UNROLL for (int j = 0; j < width; j++) bv[j] = TILE_LOAD(b + TILE_LANES * j);
        INGOT_UNROLL for (int i = 0; i < rows; i++) {
          const TILE_V av = TILE_SET1(third[i / 3] + i % 3 * a_stride);
          INGOT_UNROLL for (int j = 0; j < width; j++) sum[i][j] = TILE_FMA(av, bv[j], sum[i][j]);
        }
      } else {
        TILE_V av[GEMM_ROWS];
        INGOT_UNROLL for (int i = 0; i < rows; i++) av[i] = TILE_SET1(third[i / 3] + i % 3 * a_stride);
        INGOT_UNROLL for (int j = 0; j < width; j++) {
          const TILE_V bv = TILE_LOAD(b + j / TILE_PANEL * panel_stride + j % TILE_PANEL * TILE_LANES);
          INGOT_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = TILE_FMA(av[i], bv, sum[i][j]);
        }
      }
      INGOT_UNROLL for (int i = 0; i < rows; i += 3) third[i / 3]++;
      b += b_stride;
    }
    INGOT_UNROLL for (int i = 0; i < rows; i++) {
      INGOT_UNROLL for (int j = 0; j < width; j++) {
        float *to = c + i * c_stride + j * TILE_LANES;
        TILE_STORE(to, more || done > 0 ? TILE_ADD(TILE_LOAD(to), sum[i][j]) : sum[i][j]);
      }
    }
    done += steps;
  } while (done < k);
}

#define TILE_INSTANCE(rows, width)                                                                                   \
  static void K(tile_##rows##x##width)(int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride, \
                                       int64_t panel_stride, float *c, int64_t c_stride, const char *ahead,           \
                                       int64_t ahead_step, int more) {                                                \
    tile_body(rows, width, k, a, a_stride, b, b_stride, panel_stride, c, c_stride, ahead, ahead_step, more);          \
  }
TILE_SHAPES(TILE_INSTANCE)

static const struct {
  int64_t rows, width;
  void (*tile)(int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t panel_stride,
               float *c, int64_t c_stride, const char *ahead, int64_t ahead_step, int more);
} gemm_tiles[] = {
#define TILE_ROW(rows, width) {rows, width, K(tile_##rows##x##width)},
  TILE_SHAPES(TILE_ROW)
};

static inline void gemm_tile_any(int64_t rows, int64_t panels, int64_t k, const float *a, int64_t a_stride,
                                 const float *b, int64_t b_stride, int64_t panel_stride, float *c, int64_t c_stride,
                                 const void *ahead, int64_t ahead_step, int more) {
  int64_t t = 0;
  while (gemm_tiles[t].rows != rows) t++;
  const int64_t passes = (panels * TILE_PANEL + gemm_tiles[t].width - 1) / gemm_tiles[t].width;
  const int64_t step = (ahead_step + passes - 1) / passes;
  for (int64_t j = 0; j < panels * TILE_PANEL; j += gemm_tiles[t].width) {
    while (gemm_tiles[t].width > panels * TILE_PANEL - j) t++;
    gemm_tiles[t].tile(k, a, a_stride, b + j / TILE_PANEL * panel_stride + j % TILE_PANEL * TILE_LANES, b_stride,
                       panel_stride, c + j * TILE_LANES, c_stride, ahead, step, more);
    ahead = (const char *)ahead + k * step;
  }
}

void K(gemm_tile)(int64_t rows, int64_t panels, int64_t k, const float *a, int64_t a_stride,
                  const float *b, int64_t b_stride, int64_t panel_stride, float *c, int64_t c_stride,
                  const void *ahead, int64_t ahead_step) {
  gemm_tile_any(rows, panels, k, a, a_stride, b, b_stride, panel_stride, c, c_stride, ahead, ahead_step, 0);
}

void K(gemm_tile_more)(int64_t rows, int64_t panels, int64_t k, const float *a, int64_t a_stride,
                       const float *b, int64_t b_stride, int64_t panel_stride, float *c, int64_t c_stride,
                       const void *ahead, int64_t ahead_step) {
  gemm_tile_any(rows, panels, k, a, a_stride, b, b_stride, panel_stride, c, c_stride, ahead, ahead_step, 1);
}

#undef TILE_PANEL
#undef TILE_INSTANCE
#undef TILE_ROW
#undef TILE_SHAPES
#undef TILE_WIDEST
#undef TILE_V
#undef TILE_LANES
#undef TILE_ZERO
#undef TILE_LOAD
#undef TILE_STORE
#undef TILE_SET1
#undef TILE_ADD
#undef TILE_FMA

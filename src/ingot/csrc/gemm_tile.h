/* gemm_tile.h: the bodies of tiles of products of floats. Included by gemm_tile_floats.h and gemm_tile_pairs.h, for
 * files that first define the register TILE_V with TILE_LANES floats, the operations TILE_ZERO, TILE_LOAD, TILE_STORE,
 * TILE_SET1, TILE_ADD, TILE_FMA, TILE_MIN and TILE_MAX (which give their second operand when one is NaN), TILE_LOW and
 * TILE_HIGH (loads of pairs of bf16 that give the first or the second as floats), TILE_HALVES (a load of f16 that
 * gives floats), TILE_ROUND (a store as bf16), and TILE_SHAPES(X, n): X(rows, width, n) for each tile to compile. Every
 * number of rows up to GEMM_ROWS is there, widest tile first; the last of each divides half a panel. TILE_WIDEST is the
 * largest width. */

/* Loops over registers, which are registers only where it is unrolled. */
#if defined(INGOT_SMALL)
#define TILE_UNROLL SMALL_UNROLL
#else
#define TILE_UNROLL INGOT_UNROLL
#endif

#define TILE_PANEL (INGOT_PANEL / TILE_LANES) /* registers in a row of a panel */
#define TILE_EACH (GEMM_ROWS > 6 ? 3 : 1)     /* rows that share a pointer: integer registers are few */

/* What the finish makes of a register of complete sums, which belongs at (row, column) of the tile. */
static inline TILE_V tile_finish(const gemm_finish *f, TILE_V v, TILE_V bias, int64_t row, int64_t column) {
  const TILE_V low = TILE_SET1(&f->low), high = TILE_SET1(&f->high);
  v = TILE_ADD(v, bias);
  if (!f->residual) return TILE_MIN(high, TILE_MAX(low, v));
  const float *residual = f->residual + row * f->residual_stride + column;
  if (f->residual_first) return TILE_MIN(high, TILE_MAX(low, TILE_ADD(v, TILE_LOAD(residual))));
  return TILE_ADD(TILE_MIN(high, TILE_MAX(low, v)), TILE_LOAD(residual));
}

/* A register as bf16, where there is no instruction for it. */
static inline void tile_round(uint16_t *to, TILE_V v) {
  float all[16] = {0};
  uint16_t some[16];
  TILE_STORE(all, v);
  v_store_bf16(TILE_LANES == 16 ? to : some, v_load(all));
  if (TILE_LANES < 16) memcpy(to, some, TILE_LANES * sizeof *to);
}

/* The factors of register j of a row of b, whose panels are panel_stride apart. second: of the two elements of k that a
 * row has. */
static inline __attribute__((always_inline)) TILE_V tile_factor(const float *b, const int j, int64_t panel_stride,
                                                                const int kind, const int second) {
  const int at = j % TILE_PANEL * TILE_LANES;
  b += j / TILE_PANEL * panel_stride;
  switch (kind) {
    case INGOT_TILE_HALVES: return TILE_HALVES((const uint16_t *)(const void *)b + second * INGOT_PANEL + at);
    case INGOT_TILE_PAIRS: return second ? TILE_HIGH(b + at) : TILE_LOW(b + at);
    default: return TILE_LOAD(b + at);
  }
}

/* Where a row has its element of k, or a later one. `at` points to it in every TILE_EACHth row of a, or in the first
 * where rows lie side by side. */
static inline __attribute__((always_inline)) const float *tile_left(const int kind, const float *const at[],
                                                                    const int i, const int later, int64_t a_stride) {
  if (kind == INGOT_TILE_COLUMNS) return at[0] + later * a_stride + i;
  return at[i / TILE_EACH] + i % TILE_EACH * a_stride + later;
}

/* An element of k, so many `later` than those at `at`: sum += a x b. b points to its row, or to that of two elements
 * of which it may be the second, in the panel of the first column, which is register `from`: 0 but for width 3. */
static inline __attribute__((always_inline)) void tile_step(const int rows, const int width, const int kind,
                                                            const int from, const int later, const int second,
                                                            const gemm_product *p, const float *b,
                                                            const float *const at[], TILE_V sum[][TILE_WIDEST]) {
  const int64_t a_stride = p->a_stride;
  if (width <= 3) {
    TILE_V bv[3];
    TILE_UNROLL for (int j = 0; j < width; j++) bv[j] = tile_factor(b, from + j, p->panel_stride, kind, second);
    TILE_UNROLL for (int i = 0; i < rows; i++) {
      const TILE_V av = TILE_SET1(tile_left(kind, at, i, later, a_stride));
      TILE_UNROLL for (int j = 0; j < width; j++) sum[i][j] = TILE_FMA(av, bv[j], sum[i][j]);
    }
  } else {
    TILE_V av[GEMM_ROWS];
    TILE_UNROLL for (int i = 0; i < rows; i++) av[i] = TILE_SET1(tile_left(kind, at, i, later, a_stride));
    TILE_UNROLL for (int j = 0; j < width; j++) {
      const TILE_V bv = tile_factor(b, j, p->panel_stride, kind, second);
      TILE_UNROLL for (int i = 0; i < rows; i++) sum[i][j] = TILE_FMA(av[i], bv, sum[i][j]);
    }
  }
}

/* A block's sums go to memory: added to what lies there, or, where they complete a result, finished. */
static inline __attribute__((always_inline)) void tile_close(const int rows, const int width, const gemm_product *p,
                                                           int64_t column, const int adds, const int completes,
                                                           TILE_V sum[][TILE_WIDEST]) {
  if (adds) {
    TILE_UNROLL for (int i = 0; i < rows; i++) {
      TILE_UNROLL for (int j = 0; j < width; j++)
        sum[i][j] = TILE_ADD(TILE_LOAD(p->sums + i * p->sums_stride + column + j * TILE_LANES), sum[i][j]);
    }
  }
  if (completes && is_finished_in_tile(p)) {
    const gemm_finish *f = p->finish;
    const float unchanged = -0.0f;
    TILE_UNROLL for (int j = 0; j < width; j++) {
      const int64_t at = column + j * TILE_LANES;
      const TILE_V bias = f->bias ? TILE_LOAD(f->bias + at) : TILE_SET1(&unchanged);
      TILE_UNROLL for (int i = 0; i < rows; i++) {
        const TILE_V v = tile_finish(f, sum[i][j], bias, i, at);
        if (f->out) TILE_STORE(f->out + i * f->out_stride + at, v);
        switch (is_given(f->rounded)) {
          case INGOT_ROUNDED: TILE_ROUND(f->rounded + i * f->rounded_stride + at, v);
        }
      }
    }
  } else {
    TILE_UNROLL for (int i = 0; i < rows; i++) {
      TILE_UNROLL for (int j = 0; j < width; j++)
        TILE_STORE(p->sums + i * p->sums_stride + column + j * TILE_LANES, sum[i][j]);
    }
  }
}

/* `rows`, `width` (registers in a row of sums), `kind` (what b holds), `stride` (elements of k in a row of b), `shrink`
 * (columns in a float) and `from` (as tile_step has it) are constants at every call: the arrays become registers. */
static inline __attribute__((always_inline)) void tile_body(const int rows, const int width, const int kind,
                                                            const int stride, const int shrink, const int from,
                                                            const gemm_product *p, int64_t column, const char *ahead,
                                                            int64_t ahead_step) {
  const int64_t within = (column % INGOT_PANEL - from * TILE_LANES) / shrink; /* in floats */
  const float *b = p->b + column / INGOT_PANEL * p->panel_stride + within;
  const int64_t k = p->k, a_stride = p->a_stride, b_stride = p->b_stride;
  const int by_columns = kind == INGOT_TILE_COLUMNS;
  /* Where a tile is long to fill, what a loop takes beside its sums counts: two elements of k share it. */
  const int elements = width == 3 ? 2 : stride;
  int64_t done = 0;
  do {
    const int64_t steps = k - done < INGOT_K_BLOCK ? k - done : INGOT_K_BLOCK;
    TILE_V sum[GEMM_ROWS][TILE_WIDEST];
    TILE_UNROLL for (int i = 0; i < rows; i++) {
      TILE_UNROLL for (int j = 0; j < width; j++) sum[i][j] = TILE_ZERO();
    }
    const float *at[(GEMM_ROWS + TILE_EACH - 1) / TILE_EACH];
    TILE_UNROLL for (int i = 0; i < rows; i += TILE_EACH)
      at[i / TILE_EACH] = p->a + (by_columns ? done * a_stride : i * a_stride + done);
    for (int64_t s = 0; s + elements <= steps; s += elements) {
      __builtin_prefetch(ahead, 0, 2);
      tile_step(rows, width, kind, from, 0, 0, p, b, at, sum);
      if (elements > stride) __builtin_prefetch(ahead + ahead_step, 0, 2);
      if (elements > 1) tile_step(rows, width, kind, from, 1, stride - 1, p, b + (2 - stride) * b_stride, at, sum);
      ahead += elements * ahead_step;
      TILE_UNROLL for (int i = 0; i < rows; i += TILE_EACH) at[i / TILE_EACH] += elements * (by_columns ? a_stride : 1);
      b += elements / stride * b_stride;
    }
    if (steps % elements) tile_step(rows, width, kind, from, 0, 0, p, b, at, sum);
    tile_close(rows, width, p, column, p->more || done > 0, done + steps >= k, sum);
    done += steps;
  } while (done < k);
}

/* A compiled tile. */
typedef struct {
  int64_t rows, width;
  void (*tile)(const gemm_product *p, int64_t column, const char *ahead, int64_t step);
} tile_row;

/* Covers a row of panels with the tiles for so many rows, of which t is the first. */
static inline void tile_run(const tile_row *t, int64_t rows, int64_t panels, const gemm_product *p) {
  while (t->rows != rows) t++;
  const int64_t registers = (2 * panels - p->halved) * TILE_PANEL / 2; /* in a row */
  const int64_t passes = (registers + t->width - 1) / t->width;
  const int64_t step = (p->ahead_step + passes - 1) / passes;
  const char *ahead = p->ahead_step ? p->ahead : (const void *)p->b;
  for (int64_t j = 0; j < registers; j += t->width) {
    while (t->width > registers - j) t++;
    t->tile(p, j * TILE_LANES, ahead, step);
    ahead += p->k * step;
  }
}

#define TILE_INSTANCE(rows, width, name)                                                                            \
  static void K(name##_##rows##x##width)(const gemm_product *p, int64_t column, const char *ahead, int64_t step) { \
    K(name##_body)(rows, width, p, column, ahead, step);                                                           \
  }

#define TILE_ROW(rows, width, name) {rows, width, K(name##_##rows##x##width)},

/* kind, stride, shrink: as `tile_body` has them. */
#define TILE(name, kind, stride, shrink)                                                                              \
  static inline __attribute__((always_inline)) void K(name##_body)(const int rows, const int width,                   \
                                                                   const gemm_product *p, int64_t column,             \
                                                                   const char *ahead, int64_t step) {                 \
    if (width == 3 && column % INGOT_PANEL)                                                                           \
      tile_body(rows, width, kind, stride, shrink, 1, p, column, ahead, step);                                        \
    else                                                                                                              \
      tile_body(rows, width, kind, stride, shrink, 0, p, column, ahead, step);                                        \
  }                                                                                                                   \
  TILE_SHAPES(TILE_INSTANCE, name)                                                                                    \
  void K(name)(int64_t rows, int64_t panels, const gemm_product *p) {                                                 \
    static const tile_row tiles[] = {TILE_SHAPES(TILE_ROW, name)};                                                    \
    tile_run(tiles, rows, panels, p);                                                                                 \
  }

/* matmul.c: batched c = activation(alpha * a @ b + bias) + residual, where b is an activation. */
#include "gemm/gemm_columns.h"

/* The offset of batch item `index`, in row-major order, in each operand. */
typedef struct { int64_t a, b, residual, c; } matmul_offsets;

static inline matmul_offsets matmul_batch(const matmul_args *g, int64_t index) {
  matmul_offsets at = {0, 0, 0, 0};
  for (int32_t d = g->batch_rank - 1; d >= 0; d--) {
    const int64_t i = index % g->batch_shape[d];
    index /= g->batch_shape[d];
    at.a += i * g->a_batch_strides[d];
    at.b += i * g->b_batch_strides[d];
    at.residual += i * g->residual_batch_strides[d];
    at.c += i * g->c_batch_strides[d];
  }
  return at;
}

static inline int64_t matmul_batches(const matmul_args *g) {
  int64_t batches = 1;
  for (int32_t d = 0; d < g->batch_rank; d++) batches *= g->batch_shape[d];
  return batches;
}

static inline gemm_epilogue matmul_epilogue(const matmul_args *g, const float *residual) {
  return (gemm_epilogue){g->bias, NULL, NULL, residual, g->residual_stride, g->alpha, g->act_alpha, g->act_beta,
                         g->activation, g->residual_first, NULL, 0};
}

/* Floats of packed panels that stay in the L2 cache together with rows. Most CPUs without AVX-512 have 512 KiB of
 * it. */
#if defined(ISA_avx512)
#define MATMUL_NEAR (1 << 17)
#else
#define MATMUL_NEAR (1 << 16)
#endif
#define MATMUL_PANELS 16      /* most panels at once; kernels.def uses all three constants */
#define MATMUL_TN_PANELS (MATMUL_NEAR / INGOT_PANEL / INGOT_K_BLOCK) /* with a transposed */
#define MATMUL_ROWS 48        /* rows that are multiplied with the panels together */
#define MATMUL_MANY_ROWS 512  /* rows of each task from which on packing is a small share of the work, so that every
                                 task may pack all of b */

/* One batch item: its operands, and the task's rows of c. */
typedef struct {
  const float *a, *b;
  float *c;
  gemm_epilogue epilogue;
  int64_t row_begin, row_end;
} matmul_item;

/* The share of a task. Rows that only one task has stay in its cache from step to step. */
static inline gemm_share matmul_share(const matmul_args *g, int64_t panels, int32_t task, int32_t num_tasks) {
  return panels > 0 && g->m >= MATMUL_MANY_ROWS * num_tasks ? gemm_swap(gemm_cut(g->m, panels, task, num_tasks))
                                                        : gemm_cut(panels, g->m, task, num_tasks);
}

/* Elements [done, done + k) of `columns` columns of b as panels, one after the other. */
static inline void matmul_pack(const matmul_args *g, const float *b, int64_t done, int64_t k, int64_t column,
                               int64_t columns, float *packed) {
  const float *from = b + done * g->b_k_stride + column * g->b_n_stride;
  const int64_t size = k * INGOT_PANEL;
  if (g->b_n_stride != 1 || columns % INGOT_PANEL) {
    for (int64_t j = 0; j < columns; j += INGOT_PANEL, packed += size)
      K(pack_panel)(from + j * g->b_n_stride, k, columns - j < INGOT_PANEL ? columns - j : INGOT_PANEL, g->b_k_stride,
                    g->b_n_stride, 1.0f, packed);
    return;
  }
  for (int64_t i = 0; i < k; i++, from += g->b_k_stride, packed += INGOT_PANEL) { /* each row in one piece */
    float *to = packed;
    for (int64_t j = 0; j < columns; j += INGOT_PANEL, to += size) {
      v_store(to, v_load(from + j));
      v_store(to + INGOT_PANEL / 2, v_load(from + j + INGOT_PANEL / 2));
    }
  }
}

/* Memory that is read next: `runs` of `bytes` each, `stride` bytes apart. They are prefetched over `calls` of a tile on
 * the packed panels, of which `call` are done. */
typedef struct { const char *from; int64_t stride, bytes, runs, calls, call; } matmul_prefetch;

static inline matmul_prefetch matmul_next(const matmul_args *g, const float *b, int64_t done, int64_t k, int64_t column,
                                       int64_t columns, int64_t calls) {
  const float *from = b + done * g->b_k_stride + column * g->b_n_stride;
  if (g->b_n_stride == 1) return (matmul_prefetch){(const char *)from, 4 * g->b_k_stride, 4 * columns, k, calls, 0};
  return (matmul_prefetch){(const char *)from, 4 * g->b_n_stride, 4 * k, columns, calls, 0};
}

/* Prefetch a call's share at once; with a product, the tile prefetches the first run step by step. */
static inline void matmul_fetch(matmul_prefetch *prefetch, gemm_product *product) {
  if (prefetch->call >= prefetch->calls) return;
  int64_t run = prefetch->call * prefetch->runs / prefetch->calls;
  const int64_t end = ++prefetch->call * prefetch->runs / prefetch->calls;
  if (product && product->k && run < end) {
    product->prefetch = prefetch->from + run++ * prefetch->stride;
    product->prefetch_step = (prefetch->bytes + product->k - 1) / product->k;
  }
  for (; run < end; run++) {
    const char *from = prefetch->from + run * prefetch->stride;
    for (int64_t i = 0; i < prefetch->bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  }
}

/* Add elements [done, done + k) to rows [first, last) of a panel; incomplete sums are accumulated in c. */
static inline void matmul_add(const matmul_args *g, const matmul_item *t, int64_t first, int64_t last, int64_t done,
                              int64_t k, int64_t column, const float *panel, matmul_prefetch *prefetch,
                              matmul_prefetch *prefetch_a) {
  const int64_t left = g->n - column, columns = left < INGOT_PANEL ? left : INGOT_PANEL;
  const int completes = done + k >= g->k, waits = k < g->k;
  const int vectorized = columns % (INGOT_PANEL / 2) == 0 && epilogue_is_vectorized(&t->epilogue);
  const int32_t tiles = (int32_t)gemm_blocks(last - first, g->a_stride);
  float own[GEMM_ROWS * INGOT_PANEL];
  for (int32_t tile = 0; tile < tiles; tile++) {
    const int64_t row = first + task_begin(last - first, tile, tiles);
    const int64_t rows = first + task_begin(last - first, tile + 1, tiles) - row;
    float *to = t->c + row * g->c_stride + column, *sums = waits ? to : own;
    const int64_t sums_stride = waits ? g->c_stride : INGOT_PANEL;
    const gemm_store store = epilogue_store(&t->epilogue, row, column, to, g->c_stride);
    gemm_product product = {
        .k = k, .a = t->a + row * g->a_stride + done, .a_stride = g->a_stride, .b = panel, .b_stride = INGOT_PANEL,
        .sums = sums, .sums_stride = sums_stride, .store = vectorized && completes ? &store : NULL, .more = done > 0,
        .halved = columns <= INGOT_PANEL / 2};
    matmul_fetch(prefetch, &product);
    matmul_fetch(prefetch_a, NULL);
    gemm_expect(to, g->c_stride, rows);
    if (t->epilogue.residual && completes)
      gemm_expect(t->epilogue.residual + row * g->residual_stride + column, g->residual_stride, rows);
    K(gemm_tile)(rows, 1, &product);
    if (completes && !vectorized)
      epilogue_apply(&t->epilogue, row, column, rows, columns, sums, sums_stride, to, g->c_stride);
  }
}

/* Panels [begin, end) of those up to `last`, `depth` elements of k at a time; sums are accumulated in c meanwhile. The
 * first panels also prefetch rows of a, which are then in the cache for the next panels. */
static inline void matmul_panels(const matmul_args *g, const matmul_item *t, int64_t begin, int64_t end, int64_t last,
                                 int64_t depth, const int is_first, float *packed) {
  const int64_t rows = t->row_end - t->row_begin, column = begin * INGOT_PANEL;
  const int64_t limit = last * INGOT_PANEL < g->n ? last * INGOT_PANEL : g->n;
  const int64_t stop = end * INGOT_PANEL < limit ? end * INGOT_PANEL : limit;
  const int32_t chunks = end - begin > 1 ? (int32_t)((rows + MATMUL_ROWS - 1) / MATMUL_ROWS) : 1;
  const int64_t calls = (end - begin) * ((rows + GEMM_ROWS - 1) / GEMM_ROWS); /* or a few more */
  for (int64_t done = 0; done == 0 || done < g->k; done += depth) {
    const int64_t k = g->k - done < depth ? g->k - done : depth;
    matmul_prefetch prefetch = {0}; /* nothing */
    if (done + k < g->k) {
      const int64_t left = g->k - done - k;
      prefetch = matmul_next(g, t->b, done + k, left < depth ? left : depth, column, stop - column, calls);
    } else if (stop < limit) {
      const int64_t left = limit - stop, columns = left < stop - column ? left : stop - column;
      prefetch = matmul_next(g, t->b, 0, g->k < depth ? g->k : depth, stop, columns, calls);
    }
    matmul_pack(g, t->b, done, k, column, stop - column, packed);
    for (int32_t chunk = 0; chunk < chunks; chunk++) {
      const int64_t from = t->row_begin + task_begin_grain(rows, GEMM_ROWS, chunk, chunks);
      const int64_t to = t->row_begin + task_begin_grain(rows, GEMM_ROWS, chunk + 1, chunks);
      matmul_prefetch prefetch_a = {0};
      if (is_first && to < t->row_end) {
        const char *next = (const char *)(t->a + to * g->a_stride + done);
        const int64_t count = t->row_end - to < MATMUL_ROWS ? t->row_end - to : MATMUL_ROWS;
        const int64_t runs = (end - begin) * (MATMUL_ROWS / GEMM_ROWS);
        prefetch_a = (matmul_prefetch){next, 4 * g->a_stride, 4 * k, count, runs, 0};
      }
      for (int64_t panel = begin; panel < end; panel++)
        matmul_add(g, t, from, to, done, k, panel * INGOT_PANEL, packed + (panel - begin) * k * INGOT_PANEL, &prefetch,
                   &prefetch_a);
    }
  }
}

/* A panel that is read only once or twice, in place, if its rows are whole. */
static inline void matmul_in_place(const matmul_args *g, const matmul_item *t, int64_t panel) {
  const int64_t column = panel * INGOT_PANEL;
  const gemm_factors factors = {K(gemm_tile), g->k, t->a, g->a_stride, t->b + column, 0};
  gemm_panel(&t->epilogue, t->row_begin, t->row_end, column, INGOT_PANEL, &factors, g->b_k_stride, t->c + column,
             g->c_stride, NULL);
}

/* How many panels from `begin` on are multiplied together, and by how many elements of k at a time. A last panel of an
 * odd width has no space in c for accumulated sums: it is multiplied alone, over all of k. */
static inline int64_t matmul_together(const matmul_args *g, int64_t begin, int64_t end, int64_t *depth) {
  const int is_deep = g->k > INGOT_MATMUL_DEPTH;
  const int is_split = is_deep && end * INGOT_PANEL > g->n && g->n % (INGOT_PANEL / 2) != 0;
  if (is_split && begin == end - 1) {
    *depth = g->k;
    return 1;
  }
  *depth = is_deep ? INGOT_MATMUL_DEPTH : g->k ? g->k : 1;
  const int64_t fit = MATMUL_NEAR / INGOT_PANEL / *depth, left = end - begin - is_split;
  const int64_t most = fit < MATMUL_PANELS ? fit : MATMUL_PANELS;
  return left < most ? left : most;
}

void K(matmul_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const gemm_share share = matmul_share(g, matmul_batches(g) * panels, task, num_tasks);
  float *packed = g->scratch + task * g->scratch_stride;
  for (int64_t unit = share.panel_begin, next; unit < share.panel_end; unit = next) {
    const matmul_offsets at = matmul_batch(g, unit / panels);
    const int64_t begin = unit % panels, left = share.panel_end - unit;
    const int64_t end = begin + left < panels ? begin + left : panels;
    const matmul_item item = {g->a + at.a, g->b + at.b, g->c + at.c,
                              matmul_epilogue(g, g->residual ? g->residual + at.residual : NULL), share.row_begin,
                              share.row_end};
    const int few = item.row_end - item.row_begin <= 2 * GEMM_ROWS;
    if (g->b_n_stride == 1 && (begin + 1) * INGOT_PANEL <= g->n && few) {
      matmul_in_place(g, &item, begin);
      next = unit + 1;
      continue;
    }
    int64_t depth;
    next = unit + matmul_together(g, begin, end, &depth);
    matmul_panels(g, &item, begin, begin + next - unit, end, depth, begin == 0 || unit == share.panel_begin, packed);
  }
}

void K(matmul_f32_bf16)(const void *args, int32_t task, int32_t num_tasks) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const gemm_share share = gemm_cut(matmul_batches(g) * panels, g->m, task, num_tasks);
  float *packed = g->scratch + task * g->scratch_stride;
  for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {
    const matmul_offsets at = matmul_batch(g, unit / panels);
    const int64_t column = unit % panels * INGOT_PANEL;
    const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
    const gemm_epilogue epilogue = matmul_epilogue(g, g->residual ? g->residual + at.residual : NULL);
    const uint16_t *b = (const uint16_t *)(const void *)g->b + at.b + column * g->b_n_stride;
    K(pack_pairs)(b, g->k, columns, g->b_k_stride, g->b_n_stride, packed);
    const gemm_factors factors = {K(gemm_tile_widened), g->k, g->a + at.a, g->a_stride, packed, 0};
    gemm_panel(&epilogue, share.row_begin, share.row_end, column, columns, &factors, INGOT_PANEL,
               g->c + at.c + column, g->c_stride, NULL);
  }
}

/* One batch item of matmul_tn_f32: its operands, and the task's rows of c. tiles: some columns of a for a block of k;
 * sums: accumulators of a last panel whose columns fill no vectors. */
typedef struct {
  const float *a, *b, *residual;
  float *c;
  gemm_epilogue epilogue;
  int64_t row_begin, row_end;
  float *tiles, *sums;
} matmul_tn_item;

/* The accumulators of a row: c itself, except for a last panel whose columns fill no vectors. */
typedef struct { float *row; int64_t stride; } matmul_tn_sums;

static inline matmul_tn_sums matmul_tn_at(const matmul_args *g, const matmul_tn_item *t, int64_t row, int64_t column) {
  if ((g->n - column) % (INGOT_PANEL / 2) == 0 || g->n - column >= INGOT_PANEL)
    return (matmul_tn_sums){t->c + row * g->c_stride + column, g->c_stride};
  return (matmul_tn_sums){t->sums + (row - t->row_begin) * INGOT_PANEL, INGOT_PANEL};
}

/* Start the sums of rows [first, last) of a panel with the residual. */
static inline void matmul_tn_begin(const matmul_args *g, const matmul_tn_item *t, int64_t first, int64_t last,
                                   int64_t column, int64_t columns) {
  for (int64_t row = first; row < last; row++) {
    const float *from = t->residual + row * g->residual_stride + column;
    float *to = matmul_tn_at(g, t, row, column).row;
    for (int64_t j = 0; j < columns; j += 16)
      v_store(to + j, columns - j < 16 ? v_load_n(from + j, columns - j) : v_load(from + j));
  }
}

/* Rows of a, then of b, that are copied next: a cache line of each row at a time is prefetched while a tile reads as
 * many elements of k. */
typedef struct { const float *a, *b; int64_t a_lines, b_lines, call; } matmul_tn_prefetch;

static inline void matmul_tn_fetch(const matmul_args *g, matmul_tn_prefetch *prefetch, gemm_product *product) {
  const int64_t line = prefetch->call++, of_b = line - prefetch->a_lines;
  if (line < prefetch->a_lines) {
    product->prefetch = prefetch->a + line * 16;
    product->prefetch_step = 4 * g->a_stride;
  } else if (of_b < prefetch->b_lines) {
    product->prefetch = prefetch->b + of_b * 16;
    product->prefetch_step = 4 * g->b_k_stride;
  }
}

/* Add elements [done, done + k) to rows [first, last) of a panel. */
static inline void matmul_tn_add(const matmul_args *g, const matmul_tn_item *t, int64_t first, int64_t last,
                                 int64_t done, int64_t k, int64_t column, const float *panel,
                                 matmul_tn_prefetch *prefetch) {
  const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
  const int32_t tiles = gemm_column_tiles(last - first);
  const int vectorized = columns % (INGOT_PANEL / 2) == 0 && epilogue_is_vectorized(&t->epilogue);
  const int completes = done + k >= g->k;
  if (g->continues && done == 0) matmul_tn_begin(g, t, first, last, column, columns);
  for (int32_t tile = 0; tile < tiles; tile++) {
    const int64_t row = first + task_begin(last - first, tile, tiles);
    const int64_t count = first + task_begin(last - first, tile + 1, tiles) - row;
    float *to = t->c + row * g->c_stride + column;
    const matmul_tn_sums sums = matmul_tn_at(g, t, row, column);
    const gemm_store store = epilogue_store(&t->epilogue, row, column, to, g->c_stride);
    gemm_product product = {
        .k = k, .a = t->tiles + tile * k * GEMM_ROWS, .a_stride = GEMM_ROWS, .b = panel, .b_stride = INGOT_PANEL,
        .sums = sums.row, .sums_stride = sums.stride, .store = vectorized && completes ? &store : NULL,
        .more = done > 0 || g->continues, .halved = columns <= INGOT_PANEL / 2};
    matmul_tn_fetch(g, prefetch, &product);
    gemm_expect(sums.row, sums.stride, count);
    K(gemm_tile_columns)(count, 1, &product);
    if (completes && !vectorized)
      epilogue_apply(&t->epilogue, row, column, count, columns, sums.row, sums.stride, to, g->c_stride);
  }
}

/* Panels [begin, end), a block of k at a time, each times some rows of c, whose columns of a are copied for it. */
static inline void matmul_tn_panels(const matmul_args *g, const matmul_tn_item *t, int64_t begin, int64_t end,
                                    float *packed) {
  const int64_t rows = t->row_end - t->row_begin, column = begin * INGOT_PANEL;
  const int64_t stop = end * INGOT_PANEL < g->n ? end * INGOT_PANEL : g->n;
  const int32_t chunks = (int32_t)((rows + MATMUL_ROWS - 1) / MATMUL_ROWS);
  for (int64_t done = 0; done == 0 || done < g->k; done += INGOT_K_BLOCK) {
    const int64_t k = g->k - done < INGOT_K_BLOCK ? g->k - done : INGOT_K_BLOCK;
    const float *a = t->a + done * g->a_stride;
    matmul_pack(g, t->b, done, k, column, stop - column, packed);
    for (int32_t chunk = 0; chunk < chunks; chunk++) {
      const int64_t first = t->row_begin + task_begin_grain(rows, GEMM_ROWS, chunk, chunks);
      const int64_t last = t->row_begin + task_begin_grain(rows, GEMM_ROWS, chunk + 1, chunks);
      matmul_tn_prefetch prefetch = {0}; /* nothing */
      if (last < t->row_end) {
        prefetch = (matmul_tn_prefetch){.a = a + last, .a_lines = MATMUL_ROWS / 16 + 1};
      } else if (done + 2 * k <= g->k) {
        const int64_t b_lines = g->b_n_stride == 1 ? (stop - column + 15) / 16 : 0;
        prefetch = (matmul_tn_prefetch){a + k * g->a_stride + t->row_begin,
                                  t->b + (done + k) * g->b_k_stride + column * g->b_n_stride, MATMUL_ROWS / 16 + 1,
                                  b_lines, 0};
      }
      gemm_pack_columns(a + first, k, last - first, g->a_stride, t->tiles);
      for (int64_t panel = begin; panel < end; panel++)
        matmul_tn_add(g, t, first, last, done, k, panel * INGOT_PANEL, packed + (panel - begin) * k * INGOT_PANEL,
                      &prefetch);
    }
  }
}

/* Divide c so that a task copies as few rows of a and columns of b as possible. */
static inline gemm_share matmul_tn_share(const matmul_args *g, int64_t panels, int32_t task, int32_t num_tasks) {
  return panels > 0 && panels * INGOT_PANEL <= g->m ? gemm_swap(gemm_cut(g->m, panels, task, num_tasks))
                                                   : gemm_cut(panels, g->m, task, num_tasks);
}

void K(matmul_tn_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const matmul_args *g = args;
  const int64_t panels = (g->n + INGOT_PANEL - 1) / INGOT_PANEL;
  const gemm_share share = matmul_tn_share(g, matmul_batches(g) * panels, task, num_tasks);
  float *tiles = g->scratch + task * g->scratch_stride, *sums = tiles + INGOT_K_BLOCK * MATMUL_ROWS;
  for (int64_t unit = share.panel_begin, next; unit < share.panel_end; unit = next) {
    const matmul_offsets at = matmul_batch(g, unit / panels);
    const int64_t begin = unit % panels, left = share.panel_end - unit;
    const int64_t most = begin + left < panels ? begin + left : panels;
    const int64_t end = begin + MATMUL_TN_PANELS < most ? begin + MATMUL_TN_PANELS : most;
    const float *residual = g->residual ? g->residual + at.residual : NULL;
    const matmul_tn_item item = {g->a + at.a, g->b + at.b, residual, g->c + at.c,
                                 matmul_epilogue(g, g->continues ? NULL : residual), share.row_begin, share.row_end,
                                 tiles, sums};
    matmul_tn_panels(g, &item, begin, end, sums + g->m * INGOT_PANEL);
    next = unit + end - begin;
  }
}

#undef MATMUL_NEAR
#undef MATMUL_PANELS
#undef MATMUL_TN_PANELS
#undef MATMUL_ROWS
#undef MATMUL_MANY_ROWS

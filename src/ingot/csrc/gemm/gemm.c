/* gemm.c: c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias) + residual, b in panels, for at least 5 rows. */
#include "gemm/split_sums.h"

#define GEMM_NEAR (1 << 17) /* bytes that stay in a core's cache together with other data */
#define GEMM_CHUNK 48       /* fewest rows of a chunk */
#define GEMM_CHUNK_ROWS 256 /* most rows of a chunk with its sums */

static inline void gemm_packed(const gemm_args *g, gemm_factors f, int32_t task, int32_t num_tasks) {
  const gemm_epilogue epilogue = gemm_args_epilogue(g);
  const gemm_share share = gemm_args_share(g, (g->n + INGOT_PANEL - 1) / INGOT_PANEL, task, num_tasks);
  const int64_t rows = share.row_end - share.row_begin, panels = share.panel_end - share.panel_begin;
  /* With a small matrix, rows are multiplied in chunks that stay in the cache too, to be read and written once. */
  const int64_t bytes = rows * (f.k + panels * INGOT_PANEL) * 4, most = rows / GEMM_CHUNK;
  int64_t chunks = panels > 1 && panels * f.panel_size * 4 <= GEMM_NEAR ? (bytes + GEMM_NEAR - 1) / GEMM_NEAR : 1;
  if (chunks > most) chunks = most ? most : 1;
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t begin = share.row_begin + task_begin(rows, (int32_t)chunk, (int32_t)chunks);
    const int64_t end = share.row_begin + task_begin(rows, (int32_t)chunk + 1, (int32_t)chunks);
    gemm_factors of = f;
    of.b += share.panel_begin * f.panel_size;
    for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++, of.b += f.panel_size) {
      const int64_t column = panel * INGOT_PANEL;
      const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
      gemm_panel(&epilogue, begin, end, column, columns, &of, INGOT_PANEL, g->c ? g->c + column : NULL, g->c_stride,
                 chunks == 1 && panel + 1 < share.panel_end ? of.b + f.panel_size : NULL);
    }
  }
}

void K(gemm_f32_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemm_packed(args, gemm_f32_factors(args), task, num_tasks);
}

void K(gemm_f32_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemm_packed(args, gemm_f32_bf16_factors(args), task, num_tasks);
}

void K(gemm_f32_f16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  gemm_packed(args, gemm_f32_f16_factors(args), task, num_tasks);
}

/* gemm with split sums. Rows are multiplied in chunks whose sums stay in the cache for all pieces of a panel. */
#if defined(INGOT_LIBRARY)
/* A chunk of rows times one panel; product: all fields except rows and pieces. next: the panel that is read
 * afterwards. */
static inline void gemm_split_panel(const gemm_args *g, split_product product, int64_t begin, int64_t end,
                                    int64_t panel, const float *next) {
  const gemm_epilogue e = gemm_args_epilogue(g);
  const int64_t column = panel * INGOT_PANEL, k = product.k;
  const int64_t columns = g->n - column < INGOT_PANEL ? g->n - column : INGOT_PANEL;
  const int32_t blocks = (int32_t)((end - begin + SPLIT_ROWS - 1) / SPLIT_ROWS);
  /* A single block reads a panel once and sequentially, which the CPU prefetches by itself. */
  const int64_t piece = blocks > 1 || !k ? split_piece(k) : k;
  const float *a = product.a, *b = product.b;
  _Alignas(64) float sums[GEMM_CHUNK_ROWS * INGOT_PANEL];
  product.halved = columns <= INGOT_PANEL / 2;
  for (int64_t done = 0; done < k || !done; done += piece) {
    const float *after = blocks == 1 ? NULL : done + piece < k ? b + (done + piece) * INGOT_PANEL : next;
    product.k = k - done < piece ? k - done : piece;
    product.b = b + done * INGOT_PANEL;
    product.more = done > 0;
    product.prefetch_step = split_prefetch(after, blocks);
    for (int32_t block = 0; block < blocks; block++) {
      const int64_t first = task_begin(end - begin, block, blocks), row = begin + first;
      const int64_t rows = task_begin(end - begin, block + 1, blocks) - first;
      float *to = g->c ? g->c + row * g->c_stride + column : NULL;
      float *own = sums + (piece < k ? first : 0) * INGOT_PANEL; /* one buffer where a single piece completes the
                                                                    sums */
      const int last = done + piece >= k;
      product.a = a + row * product.a_stride + done;
      product.prefetch = after ? (const char *)after + block * (product.k / SPLIT_PAIRS) * product.prefetch_step : NULL;
      if (last && to) gemm_expect(to, g->c_stride, rows);
      if (last && e.residual) gemm_expect(e.residual + row * e.residual_stride + column, e.residual_stride, rows);
      K(split_sums)(rows, &product, own);
      if (last && epilogue_is_vectorized(&e)) {
        const gemm_store store = epilogue_store(&e, row, column, to, g->c_stride);
        K(split_store)(&store, rows, columns, own);
      } else if (last) {
        epilogue_apply(&e, row, column, rows, columns, own, INGOT_PANEL, to, g->c_stride);
      }
    }
  }
}

static inline void gemm_split(const gemm_args *g, int32_t task, int32_t num_tasks) {
  static const int64_t none[1] = {0};
  const gemm_factors f = gemm_bf16_factors(g);
  const gemm_share share = gemm_args_share(g, (g->n + INGOT_PANEL - 1) / INGOT_PANEL, task, num_tasks);
  const int64_t rows = share.row_end - share.row_begin, panels = share.panel_end - share.panel_begin;
  const int64_t bytes = rows * (f.k + panels * INGOT_PANEL) * 4, most = rows / SPLIT_ROWS;
  int64_t chunks = (rows + GEMM_CHUNK_ROWS - 1) / GEMM_CHUNK_ROWS;
  if (panels * f.panel_size * 4 <= GEMM_NEAR && bytes / GEMM_NEAR > chunks) chunks = bytes / GEMM_NEAR;
  if (chunks > most) chunks = most ? most : 1;
  if (!rows) return;
  K(split_begin)(rows, f.k);
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t begin = share.row_begin + task_begin(rows, (int32_t)chunk, (int32_t)chunks);
    const int64_t end = share.row_begin + task_begin(rows, (int32_t)chunk + 1, (int32_t)chunks);
    split_product product = {
      .runs = 1, .k = f.k, .offsets = none, .a = f.a, .a_stride = f.a_stride,
      .b = f.b + share.panel_begin * f.panel_size};
    for (int64_t panel = share.panel_begin; panel < share.panel_end; panel++, product.b += f.panel_size)
      gemm_split_panel(g, product, begin, end, panel,
                       panel + 1 < share.panel_end ? product.b + f.panel_size : NULL);
  }
  K(split_end)();
}

#define GEMM_BF16(g, task, num_tasks)                                                                                  \
  ((g)->split_sums ? gemm_split(g, task, num_tasks) : gemm_packed(g, gemm_bf16_factors(g), task, num_tasks))
#else
#define GEMM_BF16(g, task, num_tasks) gemm_packed(g, gemm_bf16_factors(g), task, num_tasks)
#endif

void K(gemm_bf16_packed)(const void *args, int32_t task, int32_t num_tasks) {
  const gemm_args *g = args;
  GEMM_BF16(g, task, num_tasks);
}

#undef GEMM_NEAR
#undef GEMM_CHUNK
#undef GEMM_CHUNK_ROWS
#undef GEMM_BF16

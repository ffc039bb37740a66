/* product.c: matrix products of 64-bit types; each element is one sum over k, in order. */
#include <string.h>

#include "gemm/gemm.h"

#if defined(ISA_avx512)
#define PRODUCT_VECTOR 64 /* bytes */
#define PRODUCT_ROWS 4    /* rows of a that are multiplied with a panel at once */
#elif defined(ISA_avx2)
#define PRODUCT_VECTOR 32
#define PRODUCT_ROWS 2
#else
#define PRODUCT_VECTOR 16
#define PRODUCT_ROWS 1
#endif

#define PRODUCT_COLUMNS 16 /* columns of a panel of b */
#define PRODUCT_DEPTH 256  /* elements of k in a panel */

/* For element i over the first `rank` dims: the offsets of its row of a, its column of b and its result. */
typedef struct { int64_t a; int64_t b; int64_t out; } product_place;

static inline product_place product_at(const product_args *args, int32_t rank, int64_t i) {
  product_place at = {0, 0, 0};
  for (int32_t d = rank - 1; d >= 0; d--) {
    const int64_t index = i % args->shape[d];
    at.a += index * args->a_strides[d];
    at.b += index * args->b_strides[d];
    at.out += index * args->out_strides[d];
    i /= args->shape[d];
  }
  return at;
}

/* The same product with a and b exchanged. */
static inline product_args product_transposed(const product_args *args) {
  product_args swapped = *args;
  swapped.a = args->b;
  swapped.b = args->a;
  swapped.a_k_stride = args->b_k_stride;
  swapped.b_k_stride = args->a_k_stride;
  memcpy(swapped.a_strides, args->b_strides, sizeof swapped.a_strides);
  memcpy(swapped.b_strides, args->a_strides, sizeof swapped.b_strides);
  return swapped;
}

/* The product of rows of a with a panel, whose rows are panel_row apart and of which n columns are wanted. more: add to
 * the sums of earlier elements in out. */
#define PRODUCT_TILE(name, type)                                                                                       \
  static inline __attribute__((always_inline)) void K(name)(                                                           \
      const int rows, int64_t k, const type *a, int64_t a_row, int64_t a_k, const type *panel, int64_t panel_row,      \
      type *out, int64_t out_row, int64_t out_step, int64_t n, int more) {                                             \
    typedef type lanes __attribute__((vector_size(PRODUCT_VECTOR), aligned(8), may_alias));                            \
    enum { WIDTH = PRODUCT_VECTOR / 8, VECTORS = PRODUCT_COLUMNS / WIDTH };                                            \
    type sums[PRODUCT_ROWS][PRODUCT_COLUMNS] = {{0}};                                                                  \
    lanes total[PRODUCT_ROWS][VECTORS];                                                                                \
    for (int r = 0; r < rows && more; r++)                                                                             \
      for (int64_t j = 0; j < n; j++) sums[r][j] = out[r * out_row + j * out_step];                                    \
    INGOT_UNROLL for (int r = 0; r < rows; r++) {                                                                      \
      INGOT_UNROLL for (int v = 0; v < VECTORS; v++) total[r][v] = *(const lanes *)(sums[r] + v * WIDTH);              \
    }                                                                                                                  \
    for (int64_t i = 0; i < k; i++) {                                                                                  \
      INGOT_UNROLL for (int r = 0; r < rows; r++) {                                                                    \
        INGOT_UNROLL for (int v = 0; v < VECTORS; v++)                                                                 \
          total[r][v] += a[r * a_row + i * a_k] * *(const lanes *)(panel + i * panel_row + v * WIDTH);                 \
      }                                                                                                                \
    }                                                                                                                  \
    INGOT_UNROLL for (int r = 0; r < rows; r++) {                                                                      \
      INGOT_UNROLL for (int v = 0; v < VECTORS; v++) *(lanes *)(sums[r] + v * WIDTH) = total[r][v];                    \
    }                                                                                                                  \
    for (int r = 0; r < rows; r++)                                                                                     \
      for (int64_t j = 0; j < n; j++) out[r * out_row + j * out_step] = sums[r][j];                                    \
  }

/* The last dim is a dim of b alone: a panel of b is multiplied with all rows of a matrix that the task has before the
 * next panel. The panel is copied unless it is contiguous and few rows read it. */
#define PRODUCT_PANELS(name, tile, type)                                                                               \
  static inline void K(name)(const product_args *g, int32_t task, int32_t num_tasks) {                                 \
    const int32_t last = g->rank - 1, shared = last > 0 && g->b_strides[last - 1] == 0, rank = last - shared;          \
    const int64_t rows = shared ? g->shape[last - 1] : 1, width = g->shape[last];                                      \
    const int64_t a_row = shared ? g->a_strides[last - 1] : 0, out_row = shared ? g->out_strides[last - 1] : 0;        \
    const int64_t b_step = g->b_strides[last], out_step = g->out_strides[last], a_k = g->a_k_stride;                   \
    const int64_t panels = (width + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;                                            \
    int64_t matrices = 1;                                                                                              \
    for (int32_t d = 0; d < rank; d++) matrices *= g->shape[d];                                                        \
    const gemm_share share = gemm_cut(matrices * panels, rows, task, num_tasks);                                       \
    const int is_read_often = share.row_end - share.row_begin > 2 * PRODUCT_ROWS;                                      \
    type packed[PRODUCT_DEPTH * PRODUCT_COLUMNS];                                                                      \
    for (int64_t unit = share.panel_begin; unit < share.panel_end; unit++) {                                           \
      const product_place at = product_at(g, rank, unit / panels);                                                     \
      const int64_t column = unit % panels * PRODUCT_COLUMNS;                                                          \
      const int64_t n = width - column < PRODUCT_COLUMNS ? width - column : PRODUCT_COLUMNS;                           \
      for (int64_t done = 0; done == 0 || done < g->k; done += PRODUCT_DEPTH) {                                        \
        const int64_t k = g->k - done < PRODUCT_DEPTH ? g->k - done : PRODUCT_DEPTH;                                   \
        const type *a = (const type *)g->a + at.a + done * a_k, *panel = packed;                                       \
        const type *b = (const type *)g->b + at.b + column * b_step + done * g->b_k_stride;                            \
        type *out = (type *)g->out + at.out + column * out_step;                                                       \
        const int copies = is_read_often || b_step != 1 || n < PRODUCT_COLUMNS;                                        \
        const int64_t panel_row = copies ? PRODUCT_COLUMNS : g->b_k_stride;                                            \
        if (!copies) panel = b;                                                                                        \
        for (int64_t i = 0; copies && i < k; i++)                                                                      \
          for (int64_t j = 0; j < PRODUCT_COLUMNS; j++)                                                                \
            packed[i * PRODUCT_COLUMNS + j] = j < n ? b[i * g->b_k_stride + j * b_step] : 0;                           \
        int64_t row = share.row_begin;                                                                                 \
        for (; row + PRODUCT_ROWS <= share.row_end; row += PRODUCT_ROWS)                                               \
          K(tile)(PRODUCT_ROWS, k, a + row * a_row, a_row, a_k, panel, panel_row, out + row * out_row, out_row,        \
                  out_step, n, done > 0);                                                                              \
        for (; row < share.row_end; row++)                                                                             \
          K(tile)(1, k, a + row * a_row, a_row, a_k, panel, panel_row, out + row * out_row, out_row, out_step, n,      \
                  done > 0);                                                                                           \
      }                                                                                                                \
    }                                                                                                                  \
  }

/* If the last dim is one of a alone, a is the packed operand; if it is one of both, elements are computed one by
 * one. */
#define PRODUCT(name, panels, type)                                                                                    \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    const product_args *g = args;                                                                                      \
    const product_args swapped = product_transposed(g);                                                                \
    if (g->rank > 0 && g->a_strides[g->rank - 1] != 0) g = &swapped;                                                   \
    if (g->rank > 0 && g->a_strides[g->rank - 1] == 0) {                                                               \
      K(panels)(g, task, num_tasks);                                                                                   \
      return;                                                                                                          \
    }                                                                                                                  \
    int64_t count = 1;                                                                                                 \
    for (int32_t d = 0; d < g->rank; d++) count *= g->shape[d];                                                        \
    for (int64_t i = task_begin(count, task, num_tasks); i < task_begin(count, task + 1, num_tasks); i++) {            \
      const product_place at = product_at(g, g->rank, i);                                                              \
      const type *a = (const type *)g->a + at.a, *b = (const type *)g->b + at.b;                                       \
      type total = 0;                                                                                                  \
      for (int64_t k = 0; k < g->k; k++) total += a[k * g->a_k_stride] * b[k * g->b_k_stride];                         \
      ((type *)g->out)[at.out] = total;                                                                                \
    }                                                                                                                  \
  }

PRODUCT_TILE(product_tile_f64, double)
PRODUCT_TILE(product_tile_i64, uint64_t)
PRODUCT_PANELS(product_panels_f64, product_tile_f64, double)
PRODUCT_PANELS(product_panels_i64, product_tile_i64, uint64_t)
PRODUCT(product_f64, product_panels_f64, double)
PRODUCT(product_i64, product_panels_i64, uint64_t)

#undef PRODUCT_TILE
#undef PRODUCT_PANELS
#undef PRODUCT
#undef PRODUCT_VECTOR
#undef PRODUCT_ROWS
#undef PRODUCT_COLUMNS
#undef PRODUCT_DEPTH

/* norm_columns.c: layer_norm over interleaved rows, such as the channels of an image that is normalised over its
 * pixels. Rows are the lanes; the bits are those of layer_norm_f32. */
#include "kernel.h"
#include "reduce/norm.h"

#define COLUMNS_ROWS 128 /* rows that are computed together: their 16 sums each stay in the L1 cache */

/* Statistics of rows that are computed together. */
typedef struct {
  float pivot[COLUMNS_ROWS], high[COLUMNS_ROWS], low[COLUMNS_ROWS];
  float total[COLUMNS_ROWS], scale[COLUMNS_ROWS], shift[COLUMNS_ROWS];
} columns_rows;

static inline vf columns_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

/* The sums of 16 lanes of each row, added as v_sum does, 16 rows at a time. */
static inline vf columns_join(float sums[16][COLUMNS_ROWS], int64_t row) {
  for (int64_t half = 8; half; half /= 2) {
    for (int64_t i = 0; i < half; i++) {
      float *sum = sums[i] + row;
      v_store(sum, v_add(v_load(sum), v_load(sums[i + half] + row)));
    }
  }
  return v_load(sums[0] + row);
}

/* total = the sum of x - centre, or of its square, of each row: chunks of 16 lanes, joined in order. */
static inline __attribute__((always_inline)) void columns_sums(const norm_columns_args *g, const float *x, int64_t rows,
                                                               const int squares, const float *centre, float *total) {
  float sums[16][COLUMNS_ROWS];
  for (int64_t begin = 0; begin < g->cols; begin += INGOT_REDUCE_CHUNK) {
    const int64_t end = g->cols - begin < INGOT_REDUCE_CHUNK ? g->cols : begin + INGOT_REDUCE_CHUNK;
    for (int64_t lane = 0; lane < 16; lane++)
      for (int64_t row = 0; row < rows; row += 16) v_store(sums[lane] + row, v_set(0));
    for (int64_t j = begin; j < end; j++) {
      const float *from = x + j * g->x_strides[1];
      float *lane = sums[(j - begin) % 16];
      for (int64_t row = 0; row < rows; row += 16) {
        const vf d = v_sub(columns_load(from + row, rows - row), v_load(centre + row)), sum = v_load(lane + row);
        v_store(lane + row, squares ? v_fma(d, d, sum) : v_add(sum, d));
      }
    }
    for (int64_t row = 0; row < rows; row += 16) {
      const vf sum = columns_join(sums, row);
      v_store(total + row, begin ? v_add(v_load(total + row), sum) : sum);
    }
  }
}

/* Some rows of an item: x and out point to the first element of the first row. */
static inline void columns_some(const norm_columns_args *g, const float *x, float *out, int64_t rows) {
  const vf count = v_set((float)g->cols), eps = v_set(g->eps);
  columns_rows of = {{0}, {0}, {0}, {0}, {0}, {0}};
  for (int64_t row = 0; row < rows; row++) {
    float some[3] = {0};
    for (int64_t j = 0; j < 3 && j < g->cols; j++) some[j] = x[j * g->x_strides[1] + row];
    of.pivot[row] = norm_pivot(some, g->cols);
  }
  columns_sums(g, x, rows, 0, of.pivot, of.total);
  for (int64_t row = 0; row < rows; row += 16) {
    const norm_centre centre = norm_centre_of(v_load(of.pivot + row), v_div(v_load(of.total + row), count));
    v_store(of.high + row, centre.high);
    v_store(of.low + row, centre.low);
  }
  columns_sums(g, x, rows, 1, of.high, of.total);
  for (int64_t row = 0; row < rows; row += 16) {
    const vf low = v_load(of.low + row), scale = norm_scale(v_load(of.total + row), low, count, eps);
    v_store(of.scale + row, scale);
    v_store(of.shift + row, norm_shift(low, scale));
  }
  for (int64_t j = 0; j < g->cols; j++) {
    for (int64_t row = 0; row < rows; row += 16) {
      const vf v = norm_element(columns_load(x + j * g->x_strides[1] + row, rows - row), v_load(of.high + row),
                                v_load(of.scale + row), v_load(of.shift + row), v_set(1), v_set(0));
      if (rows - row < 16)
        v_store_n(out + j * g->out_strides[1] + row, v, rows - row);
      else
        v_store(out + j * g->out_strides[1] + row, v);
    }
  }
}

void K(layer_norm_f32_columns)(const void *args, int32_t task, int32_t num_tasks) {
  const norm_columns_args *g = args;
  const int64_t vectors = (g->rows + 15) / 16, most = COLUMNS_ROWS / 16;
  const int64_t end = g->cols ? task_begin(g->outer * vectors, task + 1, num_tasks) : 0;
  for (int64_t i = task_begin(g->outer * vectors, task, num_tasks), some; i < end; i += some) {
    const int64_t item = i / vectors, row = i % vectors * 16, left = vectors - i % vectors;
    some = left < most ? left : most;
    if (some > end - i) some = end - i;
    const int64_t rows = g->rows - row < some * 16 ? g->rows - row : some * 16;
    columns_some(g, g->x + item * g->x_strides[0] + row, g->out + item * g->out_strides[0] + row, rows);
  }
}

#undef COLUMNS_ROWS

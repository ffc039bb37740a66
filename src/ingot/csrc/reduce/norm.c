/* norm.c: layer_norm and rms_norm over rows of adjacent elements. Four rows are read together, so that the dependent
 * additions of one row overlap with those of the others; a remaining row is computed alone. */
#include "kernel.h"
#include "reduce/norm.h"

/* The difference from the centre in the first n lanes, zero in the rest. */
static inline vf norm_tail(const float *x, int64_t n, vf centre) {
  static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return v_select(v_lt(v_load(lane), v_set((float)n)), v_sub(v_load_n(x, n), centre), v_set(0));
}

/* out = (x - mean) scale weight + bias for one row. */
static inline void norm_write(const norm_args *args, const float *x, int64_t row, float high, float scale,
                              float shift) {
  float *out = args->out + row * args->out_stride;
  vf h = v_set(high), s = v_set(scale), t = v_set(shift);
  int64_t i = 0;
  for (; i + 16 <= args->cols; i += 16) {
    vf w = args->weight ? v_load(args->weight + i) : v_set(1);
    vf b = args->bias ? v_load(args->bias + i) : v_set(0);
    v_store(out + i, norm_element(v_load(x + i), h, s, t, w, b));
  }
  if (i < args->cols) {
    int64_t n = args->cols - i;
    vf w = args->weight ? v_load_n(args->weight + i, n) : v_set(1);
    vf b = args->bias ? v_load_n(args->bias + i, n) : v_set(0);
    v_store_n(out + i, norm_element(v_load_n(x + i, n), h, s, t, w, b), n);
  }
}

/* With INGOT_SMALL each row is computed alone. */
#if defined(INGOT_SMALL)
/* The sum of x - centre of a row, or of its squares: chunks of 16 lanes, joined in order. */
static inline float norm_sum(const float *x, int64_t cols, float centre, int squared) {
  const vf c = v_set(centre), one = v_set(1);
  float total = 0;
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK, x += INGOT_REDUCE_CHUNK) {
    const int64_t n = cols - begin < INGOT_REDUCE_CHUNK ? cols - begin : INGOT_REDUCE_CHUNK;
    vf sum = v_set(0);
    for (int64_t i = 0; i < n; i += 16) {
      const vf d = i + 16 <= n ? v_sub(v_load(x + i), c) : norm_tail(x + i, n - i, c);
      sum = v_fma(d, squared ? d : one, sum);
    }
    total = begin ? total + v_sum(sum) : v_sum(sum);
  }
  return total;
}

static inline void norm_run(const norm_args *args, int centred, int32_t task, int32_t num_tasks) {
  const int64_t end = task_begin(args->rows, task + 1, num_tasks);
  const vf count = v_set((float)args->cols);
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    norm_centre centre = {v_set(0), v_set(0)};
    if (centred) {
      const float pivot = norm_pivot(x, args->cols);
      centre = norm_centre_of(v_set(pivot), v_div(v_set(norm_sum(x, args->cols, pivot, 0)), count));
    }
    const vf squares = v_set(norm_sum(x, args->cols, centre.high.lane[0], 1));
    const vf scale = norm_scale(squares, centre.low, count, v_set(args->eps));
    const vf shift = centred ? norm_shift(centre.low, scale) : v_set(-0.0f);
    norm_write(args, x, row, centre.high.lane[0], scale.lane[0], shift.lane[0]);
  }
}
#else
typedef struct { const float *x[4]; } norm_rows;
typedef struct { float row[16]; } norm_values; /* of four rows; the rest is unused */

/* Rows row..row+3; the last row is repeated. */
static inline norm_rows norm_rows_at(const norm_args *args, int64_t row, int64_t end) {
  norm_rows r;
  for (int64_t k = 0; k < 4; k++) r.x[k] = args->x + (row + k < end ? row + k : end - 1) * args->x_stride;
  return r;
}

/* sum + x. As a product with one it leaves the adder units to the subtractions; one row does not need that. */
static inline vf norm_add(vf sum, vf x, int alone) { return alone ? v_add(sum, x) : v_fma(x, v_set(1), sum); }

/* The sum of x - pivot of each row: chunks of 16 lanes, joined in order. */
static inline norm_values norm_sums(norm_rows rows, int64_t cols, norm_values pivot, int alone) {
  norm_values total = {{0}};
  vf p0 = v_set(pivot.row[0]), p1 = v_set(pivot.row[1]), p2 = v_set(pivot.row[2]), p3 = v_set(pivot.row[3]);
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK) {
    int64_t n = cols - begin < INGOT_REDUCE_CHUNK ? cols - begin : INGOT_REDUCE_CHUNK, i = 0;
    const float *x0 = rows.x[0] + begin, *x1 = rows.x[1] + begin, *x2 = rows.x[2] + begin, *x3 = rows.x[3] + begin;
    vf s0 = v_set(0), s1 = s0, s2 = s0, s3 = s0;
    for (; i + 16 <= n; i += 16) {
      s0 = norm_add(s0, v_sub(v_load(x0 + i), p0), alone);
      if (alone) continue;
      s1 = norm_add(s1, v_sub(v_load(x1 + i), p1), alone);
      s2 = norm_add(s2, v_sub(v_load(x2 + i), p2), alone);
      s3 = norm_add(s3, v_sub(v_load(x3 + i), p3), alone);
    }
    if (i < n) {
      s0 = v_add(s0, norm_tail(x0 + i, n - i, p0));
      s1 = v_add(s1, norm_tail(x1 + i, n - i, p1));
      s2 = v_add(s2, norm_tail(x2 + i, n - i, p2));
      s3 = v_add(s3, norm_tail(x3 + i, n - i, p3));
    }
    float sums[4] = {v_sum(s0), v_sum(s1), v_sum(s2), v_sum(s3)};
    for (int k = 0; k < 4; k++) total.row[k] = begin ? total.row[k] + sums[k] : sums[k];
  }
  return total;
}

/* The sum of (x - centre)^2 of each row. */
static inline norm_values norm_squares(norm_rows rows, int64_t cols, norm_values centre, int alone) {
  norm_values total = {{0}};
  vf c0 = v_set(centre.row[0]), c1 = v_set(centre.row[1]), c2 = v_set(centre.row[2]), c3 = v_set(centre.row[3]);
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK) {
    int64_t n = cols - begin < INGOT_REDUCE_CHUNK ? cols - begin : INGOT_REDUCE_CHUNK, i = 0;
    const float *x0 = rows.x[0] + begin, *x1 = rows.x[1] + begin, *x2 = rows.x[2] + begin, *x3 = rows.x[3] + begin;
    vf s0 = v_set(0), s1 = s0, s2 = s0, s3 = s0;
    vf d0, d1, d2, d3;
    for (; i + 16 <= n; i += 16) {
      d0 = v_sub(v_load(x0 + i), c0);
      s0 = v_fma(d0, d0, s0);
      if (alone) continue;
      d1 = v_sub(v_load(x1 + i), c1);
      d2 = v_sub(v_load(x2 + i), c2);
      d3 = v_sub(v_load(x3 + i), c3);
      s1 = v_fma(d1, d1, s1);
      s2 = v_fma(d2, d2, s2);
      s3 = v_fma(d3, d3, s3);
    }
    if (i < n) {
      d0 = norm_tail(x0 + i, n - i, c0);
      d1 = norm_tail(x1 + i, n - i, c1);
      d2 = norm_tail(x2 + i, n - i, c2);
      d3 = norm_tail(x3 + i, n - i, c3);
      s0 = v_fma(d0, d0, s0);
      s1 = v_fma(d1, d1, s1);
      s2 = v_fma(d2, d2, s2);
      s3 = v_fma(d3, d3, s3);
    }
    float sums[4] = {v_sum(s0), v_sum(s1), v_sum(s2), v_sum(s3)};
    for (int k = 0; k < 4; k++) total.row[k] = begin ? total.row[k] + sums[k] : sums[k];
  }
  return total;
}

/* Rows row..row+3, or as many as there are; alone: one. */
static inline void norm_some(const norm_args *args, int centred, int64_t row, int64_t end, int alone) {
  const norm_rows rows = norm_rows_at(args, row, end);
  const vf count = v_set((float)args->cols);
  norm_values pivot = {{0}}, high, scale, shift;
  norm_centre centre = {v_set(0), v_set(0)};
  if (centred) {
    for (int64_t k = 0; k < 4; k++) pivot.row[k] = norm_pivot(rows.x[k], args->cols);
    norm_values sums = norm_sums(rows, args->cols, pivot, alone);
    centre = norm_centre_of(v_load(pivot.row), v_div(v_load(sums.row), count));
  }
  v_store(high.row, centre.high);
  norm_values squares = norm_squares(rows, args->cols, high, alone);
  vf scales = norm_scale(v_load(squares.row), centre.low, count, v_set(args->eps));
  v_store(scale.row, scales);
  v_store(shift.row, centred ? norm_shift(centre.low, scales) : v_set(-0.0f));
  for (int64_t k = 0; k < 4 && row + k < end; k++)
    norm_write(args, rows.x[k], row + k, high.row[k], scale.row[k], shift.row[k]);
}

static inline void norm_run(const norm_args *args, int centred, int32_t task, int32_t num_tasks) {
  int64_t row = task_begin(args->rows, task, num_tasks), end = task_begin(args->rows, task + 1, num_tasks);
  for (; row + 1 < end; row += 4) norm_some(args, centred, row, end, 0);
  if (row < end) norm_some(args, centred, row, end, 1);
}
#endif

void K(layer_norm_f32)(const void *p, int32_t task, int32_t num_tasks) {
  norm_run(p, 1, task, num_tasks);
}
void K(rms_norm_f32)(const void *p, int32_t task, int32_t num_tasks) { norm_run(p, 0, task, num_tasks); }

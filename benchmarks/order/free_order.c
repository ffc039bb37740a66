/* free_order.c: row kernels that sum in the order that is fastest: eight independent sums of 16 lanes, no chunks. */
#include "math/vmath.h"

#define CHAINS 8

/* The sum over a row, a multiple of 16 * CHAINS long, of TERM(x), which may also store at `to`. */
#define FREE_SUM(name, TERM)                                                                  \
  static inline float name(const float *row, int64_t cols, vf a, float *to) {                 \
    vf sum[CHAINS];                                                                           \
    for (int j = 0; j < CHAINS; j++) sum[j] = v_set(0);                                       \
    for (int64_t i = 0; i < cols; i += 16 * CHAINS) {                                         \
      _Pragma("GCC unroll 8") for (int j = 0; j < CHAINS; j++) {                              \
        const vf x = v_load(row + i + 16 * j);                                                \
        sum[j] = TERM(sum[j], x, a, to + i + 16 * j);                                         \
      }                                                                                       \
    }                                                                                         \
    for (int j = 1; j < CHAINS; j++) sum[0] = v_add(sum[0], sum[j]);                          \
    return v_sum(sum[0]);                                                                     \
  }

static inline vf term_plain(vf sum, vf x, vf a, float *to) {
  (void)a, (void)to;
  return v_add(sum, x);
}

static inline vf term_square(vf sum, vf x, vf a, float *to) {
  (void)to;
  const vf d = v_sub(x, a);
  return v_fma(d, d, sum);
}

static inline vf term_exp(vf sum, vf x, vf a, float *to) {
  const vf e = v_exp_negative(v_sub(x, a));
  v_store(to, e);
  return v_add(sum, e);
}

FREE_SUM(sum_plain, term_plain)
FREE_SUM(sum_squares, term_square)
FREE_SUM(sum_exp, term_exp)

void K(reduce_sum_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const reduce_args *args = p;
  const int64_t rows = args->outer_shape[0], end = task_begin(rows, task + 1, num_tasks);
  for (int64_t row = task_begin(rows, task, num_tasks); row < end; row++) {
    const float *x = (const float *)args->x + row * args->outer_strides[0];
    ((float *)args->out)[row] = sum_plain(x, args->reduced_shape[0], v_set(0), (float *)args->out);
  }
}

void K(layer_norm_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const norm_args *args = p;
  const int64_t end = task_begin(args->rows, task + 1, num_tasks), cols = args->cols;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    const vf mean = v_set(sum_plain(x, cols, v_set(0), out) / (float)cols);
    const vf variance = v_set(sum_squares(x, cols, mean, out) / (float)cols);
    const vf scale = v_div(v_set(1), v_sqrt(v_add(variance, v_set(args->eps))));
    for (int64_t i = 0; i < cols; i += 16) {
      const vf centred = v_mul(v_sub(v_load(x + i), mean), scale);
      v_store(out + i, v_fma(centred, v_load(args->weight + i), v_load(args->bias + i)));
    }
  }
}

void K(softmax_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const softmax_args *args = p;
  const int64_t end = task_begin(args->rows, task + 1, num_tasks), cols = args->cols;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    vf largest = v_load(x);
    for (int64_t i = 16; i < cols; i += 16) largest = v_max(v_load(x + i), largest);
    const vf scale = v_set(1 / sum_exp(x, cols, v_set(v_max_across(largest)), out));
    for (int64_t i = 0; i < cols; i += 16) v_store(out + i, v_mul(v_load(out + i), scale));
  }
}

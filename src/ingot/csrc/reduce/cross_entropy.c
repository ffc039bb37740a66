/* cross_entropy.c: cross-entropy of rows of logits, and its gradient, which may replace the logits in place. A row
 * whose label is ignored has no loss; a row whose label is no class is a fault of the run and has none either. */
#include "reduce/softmax.h"

/* Whether a row counts. */
static inline int cross_entropy_counts(const cross_entropy_args *args, int64_t label) {
  if (label == args->ignored) return 0;
  if (label >= 0 && label < args->cols) return 1;
  report_fault(args->fault, 2, args->step, label, args->cols);
  return 0;
}

/* The sum of x - max over a row, in chunks of 16 lanes. */
static inline float cross_entropy_below(const float *x, float max, int64_t cols) {
  float total = 0;
  const vf m = v_set(max);
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK) {
    const int64_t end = cols - begin < INGOT_REDUCE_CHUNK ? cols : begin + INGOT_REDUCE_CHUNK;
    vf sum = v_set(0);
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) sum = v_add(sum, v_sub(v_load(x + i), m));
    if (i < end) sum = v_add(sum, v_below(end - i, v_sub(v_load_n(x + i, end - i), m), 0));
    total = begin ? total + v_sum(sum) : v_sum(sum);
  }
  return total;
}

void K(cross_entropy_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const cross_entropy_args *args = p;
  const int64_t end = task_begin(args->rows, task + 1, num_tasks), cols = args->cols;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    const int64_t label = args->labels[row];
    args->out[row] = 0;
    if (!cross_entropy_counts(args, label)) continue;
    const float max = softmax_max(x, cols), below = x[label] - max;
    float log_sum;
    v_store_n(&log_sum, v_log(v_set(softmax_sum(x, max, cols, NULL))), 1);
    if (args->smoothing == 0) {
      args->out[row] = log_sum - below;
      continue;
    }
    const float mean = cross_entropy_below(x, max, cols) / (float)cols;
    const float own = (1 - args->smoothing) * below, others = args->smoothing * mean;
    args->out[row] = log_sum - own - others;
  }
}

void K(cross_entropy_gradient_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const cross_entropy_args *args = p;
  const int64_t end = task_begin(args->rows, task + 1, num_tasks), cols = args->cols;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    const int64_t label = args->labels[row];
    const int counts = cross_entropy_counts(args, label);
    const float d = counts ? args->d[row] : 0;
    const vf share = v_set(counts ? d / softmax_sum(x, softmax_max(x, cols), cols, out) : 0);
    const vf shift = v_set(d * (args->smoothing / (float)cols));
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16)
      v_store(out + i, counts ? v_sub(v_mul(v_load(out + i), share), shift) : v_set(0));
    if (i < cols)
      v_store_n(out + i, counts ? v_sub(v_mul(v_load_n(out + i, cols - i), share), shift) : v_set(0), cols - i);
    if (counts) out[label] -= d * (1 - args->smoothing);
  }
}

/* softmax.c: softmax and log_softmax over rows of adjacent elements: e^(x - max) divided by its sum, which never
 * overflows. A row with NaN, or with no element above -inf, gives NaN throughout. */
#include "reduce/softmax.h"

void K(softmax_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const softmax_args *args = p;
  int64_t end = task_begin(args->rows, task + 1, num_tasks), cols = args->cols;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    vf scale = v_set(1 / softmax_sum(x, softmax_max(x, cols), cols, out));
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) v_store(out + i, v_mul(v_load(out + i), scale));
    if (i < cols) v_store_n(out + i, v_mul(v_load_n(out + i, cols - i), scale), cols - i);
  }
}

void K(log_softmax_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const softmax_args *args = p;
  int64_t end = task_begin(args->rows, task + 1, num_tasks), cols = args->cols;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    float max = softmax_max(x, cols);
    vf m = v_set(max), log_sum = v_log(v_set(softmax_sum(x, max, cols, NULL)));
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) v_store(out + i, v_sub(v_sub(v_load(x + i), m), log_sum));
    if (i < cols) v_store_n(out + i, v_sub(v_sub(v_load_n(x + i, cols - i), m), log_sum), cols - i);
  }
}

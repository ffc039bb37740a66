/* softmax.c: softmax and log_softmax over rows of adjacent elements: e^(x - max) / sum of them, which never overflows.
 * A row with NaN, or with nothing above -inf, gives NaN throughout. */
#include "kernel.h"
#include "vmath.h"

static inline float softmax_max(const float *x, int64_t cols) {
  vf m = v_set(-INFINITY);
  int64_t i = 0;
  for (; i + 16 <= cols; i += 16) m = v_max(v_load(x + i), m);
  if (i < cols) m = v_max(v_below(cols - i, v_load_n(x + i, cols - i), -INFINITY), m);
  return v_max_across(m);
}

/* The sum of e^(x - max) over the row, in chunks of 16 lanes; the exponentials go to `out` unless it is null. */
static inline float softmax_sum(const float *x, float max, int64_t cols, float *out) {
  float total = 0;
  vf m = v_set(max);
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK) {
    int64_t end = cols - begin < INGOT_REDUCE_CHUNK ? cols : begin + INGOT_REDUCE_CHUNK, i = begin;
    vf sum = v_set(0);
    for (; i + 16 <= end; i += 16) {
      vf e = v_exp_negative(v_sub(v_load(x + i), m));
      if (out) v_store(out + i, e);
      sum = v_add(sum, e);
    }
    if (i < end) {
      vf e = v_below(end - i, v_exp_negative(v_sub(v_load_n(x + i, end - i), m)), 0);
      if (out) v_store_n(out + i, e, end - i);
      sum = v_add(sum, e);
    }
    total = begin ? total + v_sum(sum) : v_sum(sum);
  }
  return total;
}

void K(softmax_f32)(const void *p, int32_t part, int32_t parts) {
  const softmax_args *args = p;
  int64_t end = part_begin(args->rows, part + 1, parts), cols = args->cols;
  for (int64_t row = part_begin(args->rows, part, parts); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    vf scale = v_set(1 / softmax_sum(x, softmax_max(x, cols), cols, out));
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) v_store(out + i, v_mul(v_load(out + i), scale));
    if (i < cols) v_store_n(out + i, v_mul(v_load_n(out + i, cols - i), scale), cols - i);
  }
}

void K(log_softmax_f32)(const void *p, int32_t part, int32_t parts) {
  const softmax_args *args = p;
  int64_t end = part_begin(args->rows, part + 1, parts), cols = args->cols;
  for (int64_t row = part_begin(args->rows, part, parts); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    float *out = args->out + row * args->out_stride;
    float max = softmax_max(x, cols);
    vf m = v_set(max), log_sum = v_log(v_set(softmax_sum(x, max, cols, NULL)));
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) v_store(out + i, v_sub(v_sub(v_load(x + i), m), log_sum));
    if (i < cols) v_store_n(out + i, v_sub(v_sub(v_load_n(x + i, cols - i), m), log_sum), cols - i);
  }
}

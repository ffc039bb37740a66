/* rotary.c: rotary position embedding: out = x cos + rotate_half(x) sin, where rotate_half(x) = (-second, first). */
#include "kernel.h"
#include "elementwise/strided.h"

void K(rotary_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const rotary_args *args = p;
  int64_t half = args->head_dim / 2, rows = args->batch * args->heads * args->rows;
  int64_t end = task_begin(rows, task + 1, num_tasks);
  for (int64_t i = task_begin(rows, task, num_tasks); i < end; i++) {
    int64_t at[3] = {i / args->rows / args->heads, i / args->rows % args->heads, i % args->rows};
    const float *x = args->x, *cos = args->cos, *sin = args->sin;
    float *out = args->out;
    for (int d = 0; d < 3; d++) {
      x += at[d] * args->x_strides[d];
      cos += at[d] * args->cos_strides[d];
      sin += at[d] * args->sin_strides[d];
      out += at[d] * args->out_strides[d];
    }
    for (int64_t k = 0; k < half; k += 16) {
      int64_t n = half - k < 16 ? half - k : 16, second = half + k;
      vf a = load_lanes(x + k, 1, n), b = load_lanes(x + second, 1, n);
      vf rotated = v_mul(b, v_mul(load_lanes(sin + k, 1, n), v_set(-1)));
      store_lanes(out + k, 1, n, v_fma(a, load_lanes(cos + k, 1, n), rotated));
      rotated = v_mul(a, load_lanes(sin + second, 1, n));
      store_lanes(out + second, 1, n, v_fma(b, load_lanes(cos + second, 1, n), rotated));
    }
  }
}

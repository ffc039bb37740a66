/* strided.h: iterate over the rows of strided operands, and load and store lanes at a stride. */
#ifndef INGOT_STRIDED_H
#define INGOT_STRIDED_H

#include "kernel.h"

/* The rows of an element-wise kernel that one task owns: `rows` are left; of each, `count` elements. a, b, c and out
 * are the offsets of the row's first element, *_step the distance between its elements. */
typedef struct {
  const elementwise_args *args;
  int64_t rows; int64_t count;
  int64_t a; int64_t b; int64_t c; int64_t out;
  int64_t a_step; int64_t b_step; int64_t c_step; int64_t out_step;
  int64_t index[INGOT_MAX_RANK];
} row_walk;

/* Tasks divide the rows when there are enough of them to balance; otherwise each task owns a piece of every row. */
static inline row_walk row_walk_begin(const elementwise_args *args, int32_t task, int32_t num_tasks) {
  row_walk w = {.args = args, .rows = 1, .count = 1};
  int32_t last = args->rank - 1;
  for (int32_t d = 0; d < last; d++) w.rows *= args->shape[d];
  int64_t row = 0, begin = 0;
  if (last >= 0) {
    w.count = args->shape[last];
    w.a_step = args->a_strides[last];
    w.b_step = args->b_strides[last];
    w.c_step = args->c_strides[last];
    w.out_step = args->out_strides[last];
  }
  const int64_t few = 8 * (int64_t)num_tasks;
  if (w.rows < num_tasks || (w.rows % num_tasks && w.rows < few && w.count >= 8 * few)) {
    begin = task_begin_grain(w.count, 16, task, num_tasks);
    w.count = task_begin_grain(w.count, 16, task + 1, num_tasks) - begin;
  } else {
    row = task_begin(w.rows, task, num_tasks);
    w.rows = task_begin(w.rows, task + 1, num_tasks) - row;
  }
  if (w.count == 0) w.rows = 0;
  w.a = begin * w.a_step;
  w.b = begin * w.b_step;
  w.c = begin * w.c_step;
  w.out = begin * w.out_step;
  if (w.rows == 0) return w;
  for (int32_t d = last - 1; d >= 0; d--) {
    w.index[d] = row % args->shape[d];
    row /= args->shape[d];
    w.a += w.index[d] * args->a_strides[d];
    w.b += w.index[d] * args->b_strides[d];
    w.c += w.index[d] * args->c_strides[d];
    w.out += w.index[d] * args->out_strides[d];
  }
  return w;
}

static inline void row_walk_next(row_walk *w) {
  const elementwise_args *args = w->args;
  w->rows--;
  for (int32_t d = args->rank - 2; d >= 0; d--) {
    int64_t back = ++w->index[d] < args->shape[d] ? 0 : args->shape[d];
    w->a += args->a_strides[d] * (1 - back);
    w->b += args->b_strides[d] * (1 - back);
    w->c += args->c_strides[d] * (1 - back);
    w->out += args->out_strides[d] * (1 - back);
    if (!back) return;
    w->index[d] = 0;
  }
}

/* 1 <= n <= 16 lanes at a stride; the rest are zero. */
static inline vf load_lanes(const float *p, int64_t stride, int64_t n) {
  if (stride == 0) return v_set(*p);
  if (stride == 1) return n == 16 ? v_load(p) : v_load_n(p, n);
  float lanes[16] = {0};
  for (int64_t i = 0; i < n; i++) lanes[i] = p[i * stride];
  return v_load(lanes);
}

static inline void store_lanes(float *p, int64_t stride, int64_t n, vf x) {
  if (stride == 1 && n == 16) {
    v_store(p, x);
  } else if (stride == 1) {
    v_store_n(p, x, n);
  } else {
    float lanes[16];
    v_store(lanes, x);
    for (int64_t i = 0; i < n; i++) p[i * stride] = lanes[i];
  }
}

#endif

/* quantize.c: quantize floats to 8-bit integers, and dequantize: (q - zero point) * scale. */
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "elementwise/strided.h"
#include "math/vmath.h"

/* Up to 16 numbers at a stride. */
static inline vf quantize_u8_load(const void *p, int64_t step, int64_t n) {
  const uint8_t *from = p;
  uint8_t bytes[16] = {0};
  if (step == 0) return v_set((float)*from);
  if (step == 1 && n == 16) return v_load_u8(from);
  for (int64_t i = 0; i < n; i++) bytes[i] = from[i * step];
  return v_load_u8(bytes);
}

static inline vf quantize_i8_load(const void *p, int64_t step, int64_t n) {
  const int8_t *from = p;
  int8_t bytes[16] = {0};
  if (step == 0) return v_set((float)*from);
  if (step == 1 && n == 16) return v_load_i8(from);
  for (int64_t i = 0; i < n; i++) bytes[i] = from[i * step];
  return v_load_i8(bytes);
}

static inline vf quantize_i32_load(const void *p, int64_t step, int64_t n) {
  const int32_t *from = p;
  float lanes[16] = {0};
  for (int64_t i = 0; i < n; i++) lanes[i] = (float)from[i * step];
  return v_load(lanes);
}

/* Round a quotient, halves to even, and add the zero point; NaN becomes the zero point. */
static inline vf quantize_round(vf quotient, vf zero, float low, float high) {
  const vf steps = v_round(quotient);
  const vf moved = v_add(v_select(v_isnan(steps), v_set(0.0f), steps), zero);
  return v_min(v_max(moved, v_set(low)), v_set(high));
}

#define QUANTIZE(name, type, low, high, load, store)                                                                   \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const float *a = (const float *)args->a + w.a, *b = (const float *)args->b + w.b;                                \
      const type *c = args->c ? (const type *)args->c + w.c : NULL;                                                    \
      type *out = (type *)args->out + w.out;                                                                           \
      for (int64_t i = 0; i < w.count; i += 16) {                                                                      \
        const int64_t n = w.count - i < 16 ? w.count - i : 16;                                                         \
        const vf scale = load_lanes(b + i * w.b_step, w.b_step, n);                                                    \
        const vf zero = c ? load(c + i * w.c_step, w.c_step, n) : v_set(0.0f);                                         \
        const vf x = load_lanes(a + i * w.a_step, w.a_step, n);                                                        \
        const vf steps = quantize_round(v_div(x, scale), zero, low, high);                                             \
        type block[16];                                                                                                \
        if (n == 16 && w.out_step == 1) {                                                                              \
          store(out + i, steps);                                                                                       \
          continue;                                                                                                    \
        }                                                                                                              \
        store(block, steps);                                                                                           \
        for (int64_t l = 0; l < n; l++) out[(i + l) * w.out_step] = block[l];                                          \
      }                                                                                                                \
    }                                                                                                                  \
  }

QUANTIZE(quantize_u8, uint8_t, 0.0f, 255.0f, quantize_u8_load, v_store_u8)
QUANTIZE(quantize_i8, int8_t, -128.0f, 127.0f, quantize_i8_load, v_store_i8)

#define DEQUANTIZE(name, type, load)                                                                                   \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const type *a = (const type *)args->a + w.a, *c = args->c ? (const type *)args->c + w.c : NULL;                  \
      const float *b = (const float *)args->b + w.b;                                                                   \
      float *out = (float *)args->out + w.out;                                                                         \
      for (int64_t i = 0; i < w.count; i += 16) {                                                                      \
        const int64_t n = w.count - i < 16 ? w.count - i : 16;                                                         \
        vf x = load(a + i * w.a_step, w.a_step, n);                                                                    \
        if (c) x = v_sub(x, load(c + i * w.c_step, w.c_step, n));                                                      \
        store_lanes(out + i * w.out_step, w.out_step, n, v_mul(x, load_lanes(b + i * w.b_step, w.b_step, n)));         \
      }                                                                                                                \
    }                                                                                                                  \
  }

DEQUANTIZE(dequantize_u8, uint8_t, quantize_u8_load)
DEQUANTIZE(dequantize_i8, int8_t, quantize_i8_load)
DEQUANTIZE(dequantize_i32, int32_t, quantize_i32_load)

/* The first element of a task; tasks divide whole vectors. */
static inline int64_t dynamic_begin(const dynamic_quantize_args *g, int32_t task, int32_t num_tasks) {
  return task_begin_grain(g->count, 16, task, num_tasks);
}

/* The smallest and the largest of a task's elements and 0, stored at the start of the task's scratch. */
static inline void dynamic_range(const dynamic_quantize_args *g, int32_t task, int32_t num_tasks) {
  vf least = v_set(0.0f), most = v_set(0.0f);
  const int64_t end = dynamic_begin(g, task + 1, num_tasks);
  for (int64_t i = dynamic_begin(g, task, num_tasks); i < end; i += 16) {
    const vf x = end - i < 16 ? v_load_n(g->x + i, end - i) : v_load(g->x + i);
    least = v_min(x, least);
    most = v_max(x, most);
  }
  float *range = g->scratch + task * g->scratch_stride;
  range[0] = -v_max_across(v_neg(least));
  range[1] = v_max_across(most);
}

void K(dynamic_quantize_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const dynamic_quantize_args *g = args;
  if (task < num_tasks) {
    dynamic_range(g, task, num_tasks);
    return;
  }
  task -= num_tasks;
  float least = 0.0f, most = 0.0f;
  for (int32_t i = 0; i < num_tasks; i++) {
    const float *range = g->scratch + i * g->scratch_stride;
    least = range[0] < least ? range[0] : least;
    most = range[1] > most ? range[1] : most;
  }
  const float step = (most - least) / 255.0f, scale = step == 0.0f ? 1.0f : step;
  uint8_t zeros[16];
  v_store_u8(zeros, quantize_round(v_set((0.0f - least) / scale), v_set(0.0f), 0.0f, 255.0f));
  if (task == 0) {
    *g->scale = scale;
    *g->zero = zeros[0];
  }
  const int64_t end = dynamic_begin(g, task + 1, num_tasks);
  const vf zero = v_set((float)zeros[0]);
  for (int64_t i = dynamic_begin(g, task, num_tasks); i < end; i += 16) {
    const int64_t n = end - i < 16 ? end - i : 16;
    const vf x = n < 16 ? v_load_n(g->x + i, n) : v_load(g->x + i);
    const vf steps = quantize_round(v_div(x, v_set(scale)), zero, 0.0f, 255.0f);
    uint8_t block[16];
    v_store_u8(n < 16 ? block : g->out + i, steps);
    if (n < 16) memcpy(g->out + i, block, (size_t)n);
  }
}

#undef QUANTIZE
#undef DEQUANTIZE

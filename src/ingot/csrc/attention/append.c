/* append.c: write rows of keys or values to their slots in a cache, in its dtype. Tasks divide heads and dims, not
 * rows, so that several rows with one slot are written in order. */
#include <math.h>

#include "math/f16.h"
#include "attention/paged.h"
#include "math/vmath.h"

static inline paged_rows append_rows(const append_args *g) {
  return (paged_rows){g->positions, g->owners, g->blocks, g->sequences, g->blocks_each, g->total_blocks, g->fault,
                      g->step};
}

/* The slot of row r for a head: the block's index among all blocks of all heads, block * kv_heads + head, and the slot
 * in it; or a block of -1 after a fault. */
static inline int64_t append_block(const append_args *g, const paged_rows *t, int64_t r, int64_t head) {
  if (!paged_row(t, r)) return -1;
  const int64_t block = paged_block(t, t->owners[r], t->positions[r] / INGOT_CACHE_BLOCK);
  return block < 0 ? -1 : block * g->kv_heads + head;
}

static inline vf append_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

static inline void append_round_f32(float *to, vf x) { v_store(to, x); }
static inline void append_round_bf16(uint16_t *to, vf x) { v_store_bf16(to, x); }

/* Strides of a slot's elements: keys are stored with positions adjacent, values with dims adjacent. */
#define APPEND_KEYS_SLOT(dim) 1
#define APPEND_KEYS_STEP INGOT_CACHE_BLOCK
#define APPEND_VALUES_SLOT(dim) (dim)
#define APPEND_VALUES_STEP 1

/* Items are 16 dims of a head. */
#define APPEND_FLOATS(name, type, round, slot_step, step)                                                              \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const append_args *g = p;                                                                                          \
    const paged_rows t = append_rows(g);                                                                               \
    const int64_t groups = (g->dim + 15) / 16, end = task_begin(g->kv_heads * groups, task + 1, num_tasks);            \
    for (int64_t i = task_begin(g->kv_heads * groups, task, num_tasks); i < end; i++) {                                \
      const int64_t head = i / groups, d = i % groups * 16, lanes = g->dim - d < 16 ? g->dim - d : 16;                 \
      for (int64_t r = 0; r < g->rows; r++) {                                                                          \
        const int64_t block = append_block(g, &t, r, head);                                                            \
        if (block < 0) continue;                                                                                       \
        type rounded[16];                                                                                              \
        round(rounded, append_load(g->x + r * g->x_strides[0] + head * g->x_strides[1] + d, lanes));                   \
        type *to = (type *)g->cache + block * g->dim * INGOT_CACHE_BLOCK +                                             \
                   t.positions[r] % INGOT_CACHE_BLOCK * slot_step(g->dim) + d * step;                                  \
        for (int64_t l = 0; l < lanes; l++) to[l * step] = rounded[l];                                                 \
      }                                                                                                                \
    }                                                                                                                  \
  }

APPEND_FLOATS(append_keys_f32, float, append_round_f32, APPEND_KEYS_SLOT, APPEND_KEYS_STEP)
APPEND_FLOATS(append_keys_bf16, uint16_t, append_round_bf16, APPEND_KEYS_SLOT, APPEND_KEYS_STEP)
APPEND_FLOATS(append_values_f32, float, append_round_f32, APPEND_VALUES_SLOT, APPEND_VALUES_STEP)
APPEND_FLOATS(append_values_bf16, uint16_t, append_round_bf16, APPEND_VALUES_SLOT, APPEND_VALUES_STEP)

/* max |x| / 127; NaN where x has one. */
static inline float append_scale(const float *x, int64_t dim) {
  vf largest = v_set(0);
  for (int64_t d = 0; d < dim; d += 16) largest = v_maximum(v_abs(append_load(x + d, dim - d)), largest);
  float lanes[16], most = 0;
  v_store(lanes, largest);
  for (int l = 0; l < 16; l++) most = lanes[l] > most || lanes[l] != lanes[l] ? lanes[l] : most;
  return most / 127;
}

/* Quantize one head of a row to int8: x / scale, half to even, elements `step` apart. A scale of 0, infinity or NaN
 * gives zeros. */
static inline void append_quant(const float *x, int64_t dim, float scale, int8_t *to, int64_t step) {
  const int usable = scale > 0 && scale < INFINITY;
  for (int64_t d = 0; d < dim; d += 16) {
    float values[16];
    const vf code = v_round(v_div(append_load(x + d, dim - d), v_set(usable ? scale : 1)));
    v_store(values, v_min(v_set(127), v_max(v_set(-127), code)));
    for (int64_t l = 0; l < 16 && d + l < dim; l++) to[(d + l) * step] = usable ? (int8_t)values[l] : 0;
  }
}

/* Items are heads; all dims of a head share a scale. */
#define APPEND_INT8(name, slot_step, step)                                                                             \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const append_args *g = p;                                                                                          \
    const paged_rows t = append_rows(g);                                                                               \
    const int64_t end = task_begin(g->kv_heads, task + 1, num_tasks);                                                  \
    for (int64_t head = task_begin(g->kv_heads, task, num_tasks); head < end; head++) {                                \
      for (int64_t r = 0; r < g->rows; r++) {                                                                          \
        const int64_t block = append_block(g, &t, r, head), slot = t.positions[r] % INGOT_CACHE_BLOCK;                 \
        if (block < 0) continue;                                                                                       \
        const float *x = g->x + r * g->x_strides[0] + head * g->x_strides[1];                                          \
        const float scale = append_scale(x, g->dim);                                                                   \
        int8_t *to = (int8_t *)g->cache + block * g->dim * INGOT_CACHE_BLOCK + slot * slot_step(g->dim);               \
        ((float *)g->scales)[block * INGOT_CACHE_BLOCK + slot] = scale;                                                \
        append_quant(x, g->dim, scale, to, step);                                                                      \
      }                                                                                                                \
    }                                                                                                                  \
  }

APPEND_INT8(append_keys_i8, APPEND_KEYS_SLOT, APPEND_KEYS_STEP)
APPEND_INT8(append_values_i8, APPEND_VALUES_SLOT, APPEND_VALUES_STEP)

/* The smallest and the largest of up to 32 numbers; NaN where one is. */
static inline void append_range(const float *x, int64_t count, float *least, float *most) {
  vf low = append_load(x, count), high = low;
  float lows[16], highs[16];
  if (count < 16) low = v_below(count, low, x[0]), high = low;
  if (count > 16) {
    const vf more = v_below(count - 16, append_load(x + 16, count - 16), x[0]);
    low = v_minimum(more, low), high = v_maximum(more, high);
  }
  v_store(lows, low);
  v_store(highs, high);
  *least = lows[0], *most = highs[0];
  for (int l = 1; l < 16; l++) {
    *least = lows[l] < *least || lows[l] != lows[l] ? lows[l] : *least;
    *most = highs[l] > *most || highs[l] != highs[l] ? highs[l] : *most;
  }
}

/* Quantize a group of a head to int4: (x - least) / step, half to even; the scale `step` and the min `least` are f16. A
 * scale of 0, infinity or NaN gives zeros. to: bytes `distance` apart. */
static inline void append_quads(const float *x, int64_t count, uint16_t *scale, uint16_t *least, uint8_t *to,
                                int64_t distance) {
  float low, high, values[2 * INGOT_CACHE_GROUP];
  append_range(x, count, &low, &high);
  *scale = float_to_f16((high - low) / 15);
  *least = float_to_f16(low);
  const float step = f16_to_float(*scale), begin = f16_to_float(*least);
  const int usable = step > 0 && step < INFINITY && begin - begin == 0;
  for (int64_t d = 0; d < count; d += 16) {
    const vf code = v_round(v_div(v_sub(append_load(x + d, count - d), v_set(begin)), v_set(usable ? step : 1)));
    v_store(values + d, v_min(v_set(15), v_max(v_set(0), code)));
  }
  for (int64_t l = 0; l < count / 2; l++)
    to[l * distance] = usable ? (uint8_t)((int)values[l] | (int)values[count / 2 + l] << 4) : 0;
}

/* Items are heads. */
#define APPEND_INT4(name, slot_step, step)                                                                             \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const append_args *g = p;                                                                                          \
    const paged_rows t = append_rows(g);                                                                               \
    const int64_t half = g->dim / 2, groups = (g->dim + INGOT_CACHE_GROUP - 1) / INGOT_CACHE_GROUP;                    \
    const int64_t end = task_begin(g->kv_heads, task + 1, num_tasks);                                                  \
    for (int64_t head = task_begin(g->kv_heads, task, num_tasks); head < end; head++) {                                \
      for (int64_t r = 0; r < g->rows; r++) {                                                                          \
        const int64_t block = append_block(g, &t, r, head), slot = t.positions[r] % INGOT_CACHE_BLOCK;                 \
        if (block < 0) continue;                                                                                       \
        const float *x = g->x + r * g->x_strides[0] + head * g->x_strides[1];                                          \
        uint8_t *to = (uint8_t *)g->cache + block * half * INGOT_CACHE_BLOCK + slot * slot_step(half);                 \
        uint16_t *scale = (uint16_t *)g->scales + 2 * block * groups * INGOT_CACHE_BLOCK + slot;                       \
        for (int64_t d = 0; d < g->dim; d += INGOT_CACHE_GROUP, scale += 2 * INGOT_CACHE_BLOCK) {                      \
          const int64_t count = g->dim - d < INGOT_CACHE_GROUP ? g->dim - d : INGOT_CACHE_GROUP;                       \
          append_quads(x + d, count, scale, scale + INGOT_CACHE_BLOCK, to + d / 2 * step, step);                       \
        }                                                                                                              \
      }                                                                                                                \
    }                                                                                                                  \
  }

APPEND_INT4(append_keys_i4, APPEND_KEYS_SLOT, APPEND_KEYS_STEP)
APPEND_INT4(append_values_i4, APPEND_VALUES_SLOT, APPEND_VALUES_STEP)

#undef APPEND_FLOATS
#undef APPEND_INT4
#undef APPEND_INT8
#undef APPEND_KEYS_SLOT
#undef APPEND_KEYS_STEP
#undef APPEND_VALUES_SLOT
#undef APPEND_VALUES_STEP

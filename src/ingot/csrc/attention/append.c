/* append.c: rows of keys or values go to their places in a cache, in its dtype. Parts share heads and dims, not rows:
 * rows that meet in one place are then written in order. */
#include <math.h>

#include "math/f16.h"
#include "attention/paged.h"
#include "math/vmath.h"

static inline paged_rows append_rows(const append_args *g) {
  return (paged_rows){g->positions, g->owners, g->blocks, g->sequences, g->blocks_each, g->total_blocks, g->fault,
                      g->step};
}

/* The place of row r for a head: its block and slot among all of that head's, block * kv_heads + head and slot; or a
 * block of -1 after a fault. */
static inline int64_t append_block(const append_args *g, const paged_rows *t, int64_t r, int64_t head) {
  if (!paged_row(t, r)) return -1;
  const int64_t block = paged_block(t, t->owners[r], t->positions[r] / INGOT_CACHE_BLOCK);
  return block < 0 ? -1 : block * g->kv_heads + head;
}

static inline vf append_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

static inline void append_round_f32(float *to, vf x) { v_store(to, x); }
static inline void append_round_bf16(uint16_t *to, vf x) { v_store_bf16(to, x); }

/* Distances of a place's elements: keys lie with positions side by side, values with dims side by side. */
#define APPEND_KEYS_SLOT(dim) 1
#define APPEND_KEYS_STEP INGOT_CACHE_BLOCK
#define APPEND_VALUES_SLOT(dim) (dim)
#define APPEND_VALUES_STEP 1

/* Items are 16 dims of a head. */
#define APPEND_FLOATS(name, type, round, slot_step, step)                                                              \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                           \
    const append_args *g = p;                                                                                          \
    const paged_rows t = append_rows(g);                                                                               \
    const int64_t groups = (g->dim + 15) / 16, end = part_begin(g->kv_heads * groups, part + 1, parts);                \
    for (int64_t i = part_begin(g->kv_heads * groups, part, parts); i < end; i++) {                                    \
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

/* One head of a row as int8: codes x / scale, half to even, `step` apart. A scale of 0, infinity or NaN has codes 0. */
static inline void append_quant(const float *x, int64_t dim, float scale, int8_t *to, int64_t step) {
  const int usable = scale > 0 && scale < INFINITY;
  for (int64_t d = 0; d < dim; d += 16) {
    float codes[16];
    const vf code = v_round(v_div(append_load(x + d, dim - d), v_set(usable ? scale : 1)));
    v_store(codes, v_min(v_set(127), v_max(v_set(-127), code)));
    for (int64_t l = 0; l < 16 && d + l < dim; l++) to[(d + l) * step] = usable ? (int8_t)codes[l] : 0;
  }
}

/* Items are heads, whose scale is one of all dims. */
#define APPEND_INT8(name, slot_step, step)                                                                             \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                           \
    const append_args *g = p;                                                                                          \
    const paged_rows t = append_rows(g);                                                                               \
    const int64_t end = part_begin(g->kv_heads, part + 1, parts);                                                      \
    for (int64_t head = part_begin(g->kv_heads, part, parts); head < end; head++) {                                    \
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

/* The least and the largest of up to 32 numbers; NaN where one is. */
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

/* A group of a head as int4: codes (x - least) / step, half to even; `step` and `least` are f16. A step of 0, infinity
 * or NaN has codes 0. to: bytes `distance` apart. */
static inline void append_quads(const float *x, int64_t count, uint16_t *scale, uint16_t *least, uint8_t *to,
                                int64_t distance) {
  float low, high, codes[2 * INGOT_CACHE_GROUP];
  append_range(x, count, &low, &high);
  *scale = float_to_f16((high - low) / 15);
  *least = float_to_f16(low);
  const float step = f16_to_float(*scale), begin = f16_to_float(*least);
  const int usable = step > 0 && step < INFINITY && begin - begin == 0;
  for (int64_t d = 0; d < count; d += 16) {
    const vf code = v_round(v_div(v_sub(append_load(x + d, count - d), v_set(begin)), v_set(usable ? step : 1)));
    v_store(codes + d, v_min(v_set(15), v_max(v_set(0), code)));
  }
  for (int64_t l = 0; l < count / 2; l++)
    to[l * distance] = usable ? (uint8_t)((int)codes[l] | (int)codes[count / 2 + l] << 4) : 0;
}

/* Items are heads. */
#define APPEND_INT4(name, slot_step, step)                                                                             \
  void K(name)(const void *p, int32_t part, int32_t parts) {                                                           \
    const append_args *g = p;                                                                                          \
    const paged_rows t = append_rows(g);                                                                               \
    const int64_t half = g->dim / 2, groups = (g->dim + INGOT_CACHE_GROUP - 1) / INGOT_CACHE_GROUP;                    \
    const int64_t end = part_begin(g->kv_heads, part + 1, parts);                                                      \
    for (int64_t head = part_begin(g->kv_heads, part, parts); head < end; head++) {                                    \
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

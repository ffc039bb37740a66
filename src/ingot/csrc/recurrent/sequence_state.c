/* sequence_state.c: recurrences of channels over rows of several sequences. Channels are independent, so tasks divide
 * them in groups of 16, and each task computes all rows in order. */
#include "elementwise/strided.h"
#include "math/vmath.h"
#include "recurrent/slots.h"

/* Channels [first, first + lanes) that a task computes together. */
typedef struct { int64_t first; int64_t lanes; } state_channels;

/* Call `each` for the groups of channels of a task. */
#define STATE_BY_CHANNELS(name, arguments, each)                                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const arguments *g = p;                                                                                            \
    const int64_t groups = (g->channels + 15) / 16, end = task_begin(groups, task + 1, num_tasks);                     \
    for (int64_t i = task_begin(groups, task, num_tasks); i < end; i++) {                                              \
      const state_channels c = {16 * i, g->channels - 16 * i < 16 ? g->channels - 16 * i : 16};                        \
      each(g, c);                                                                                                      \
    }                                                                                                                  \
  }

static inline vf state_read(const float *row, state_channels c) { return load_lanes(row + c.first, 1, c.lanes); }

static inline void state_write(float *row, state_channels c, vf value) {
  store_lanes(row + c.first, 1, c.lanes, value);
}

static inline void causal_conv_rows(const causal_conv_args *g, state_channels c) {
  const paged_rows t = SLOT_ROWS(g);
  const int64_t before = g->taps - 1;
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t slot = slot_of(&t, r);
    const int begins = slot_begins(&t, r);
    vf total = g->bias && slot >= 0 ? state_read(g->bias, c) : v_set(0);
    if (slot >= 0) {
      float *seen = g->state + slot * before * g->channels;
      const vf present = state_read(g->x + r * g->x_stride, c);
      for (int64_t j = 0; j < before; j++) {
        const vf value = begins ? v_set(0) : state_read(seen + j * g->channels, c);
        total = v_fma(state_read(g->weight + j * g->channels, c), value, total);
        if (j > 0) state_write(seen + (j - 1) * g->channels, c, value);
      }
      total = v_fma(state_read(g->weight + before * g->channels, c), present, total);
      if (before > 0) state_write(seen + (before - 1) * g->channels, c, present);
    }
    state_write(g->out + r * g->out_stride, c, total);
  }
}

static inline void selective_scan_rows(const selective_scan_args *g, state_channels c) {
  const paged_rows t = SLOT_ROWS(g);
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t slot = slot_of(&t, r);
    const int begins = slot_begins(&t, r);
    vf total = v_set(0);
    if (slot >= 0) {
      const vf x = state_read(g->x + r * g->x_stride, c), step = state_read(g->steps + r * g->steps_stride, c);
      const vf added = v_mul(step, x);
      for (int64_t i = 0; i < g->size; i++) {
        float *row = g->state + (slot * g->size + i) * g->channels;
        const vf kept = begins ? v_set(0) : state_read(row, c);
        const vf factor = v_exp(v_mul(step, state_read(g->decay + i * g->channels, c)));
        const vf now = v_fma(added, v_set(g->b[r * g->b_stride + i]), v_mul(factor, kept));
        state_write(row, c, now);
        total = v_fma(now, v_set(g->c[r * g->c_stride + i]), total);
      }
      if (g->skip) total = v_fma(state_read(g->skip, c), x, total);
    }
    state_write(g->out + r * g->out_stride, c, total);
  }
}

static inline void linear_recurrence_rows(const linear_recurrence_args *g, state_channels c) {
  const paged_rows t = SLOT_ROWS(g);
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t slot = slot_of(&t, r);
    vf now = v_set(0);
    if (slot >= 0) {
      float *row = g->state + slot * g->channels;
      now = state_read(g->x + r * g->x_stride, c);
      if (!slot_begins(&t, r)) now = v_fma(state_read(g->decay + r * g->decay_stride, c), state_read(row, c), now);
      state_write(row, c, now);
    }
    state_write(g->out + r * g->out_stride, c, now);
  }
}

/* A state's sums after a row with a weight of exp(key), both divided by exp(most). */
typedef struct { vf total; vf weight; vf most; } wkv_sums;

static inline wkv_sums wkv_with(wkv_sums before, vf kept, vf key, vf value) {
  const vf most = v_max(kept, key), old = v_exp(v_sub(kept, most)), new = v_exp(v_sub(key, most));
  return (wkv_sums){v_fma(old, before.total, v_mul(new, value)), v_fma(old, before.weight, new), most};
}

static inline void wkv_rows(const wkv_args *g, state_channels c) {
  const paged_rows t = SLOT_ROWS(g);
  const vf decay = state_read(g->decay, c), first = state_read(g->first, c);
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t slot = slot_of(&t, r);
    vf mean = v_set(0);
    if (slot >= 0) {
      float *total = g->state + 3 * slot * g->channels, *weight = total + g->channels, *most = weight + g->channels;
      const vf key = state_read(g->k + r * g->k_stride, c), value = state_read(g->v + r * g->v_stride, c);
      wkv_sums now = {value, v_set(1), key};
      if (slot_begins(&t, r)) {
        mean = value;
      } else {
        const wkv_sums before = {state_read(total, c), state_read(weight, c), state_read(most, c)};
        const wkv_sums seen = wkv_with(before, before.most, v_add(key, first), value);
        mean = v_div(seen.total, seen.weight);
        now = wkv_with(before, v_add(before.most, decay), key, value);
      }
      state_write(total, c, now.total);
      state_write(weight, c, now.weight);
      state_write(most, c, now.most);
    }
    state_write(g->out + r * g->out_stride, c, mean);
  }
}

STATE_BY_CHANNELS(causal_conv_f32, causal_conv_args, causal_conv_rows)
STATE_BY_CHANNELS(selective_scan_f32, selective_scan_args, selective_scan_rows)
STATE_BY_CHANNELS(linear_recurrence_f32, linear_recurrence_args, linear_recurrence_rows)
STATE_BY_CHANNELS(wkv_f32, wkv_args, wkv_rows)

#undef STATE_BY_CHANNELS

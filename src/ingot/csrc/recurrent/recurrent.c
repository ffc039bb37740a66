/* recurrent.c: one direction of an LSTM, GRU or plain recurrent layer. An iteration is a time step: the product of the
 * hidden state with the packed weights of some units, with gemm's bits, and then their gates at once, while the sums
 * are in the L1 cache. Tasks divide units and rows; each reads the state that all tasks wrote in the iteration
 * before. */
#include <string.h>

#include "gemm/gemm.h"

#define RECURRENT_GATES 4 /* at most */
#define RECURRENT_SUMS (RECURRENT_GATES * INGOT_PANEL)
#define RECURRENT_INLINE static inline __attribute__((always_inline)) /* inlines a constant cell function */

/* A time step. h and next: the hidden state before and after, [batch, hidden]; seen and rounded: the same in bf16, for
 * products of bf16. */
typedef struct {
  const recurrent_args *r;
  int64_t time;
  const float *h;
  float *next;
  const uint16_t *seen;
  uint16_t *rounded;
  int32_t first, last; /* whether it is the first or last of the run */
} recurrent_time;

/* Up to 16 units of a row. sums: those of the first gate, `width` apart from gate to gate. at: the index of the first
 * of `lanes` units in [batch, hidden]. plain: all 16 exist, and the layer is `recurrent_is_plain`; a constant where
 * cells are inlined. */
typedef struct {
  const recurrent_time *t;
  const float *sums, *gates;
  int64_t width, row, unit, at, lanes;
  int plain;
} recurrent_units;

typedef void (*recurrent_cell)(const recurrent_units *u);

RECURRENT_INLINE vf recurrent_load(const float *p, int64_t lanes) {
  return lanes < 16 ? v_load_n(p, lanes) : v_load(p);
}

RECURRENT_INLINE void recurrent_store(float *p, vf x, int64_t lanes) {
  if (lanes < 16)
    v_store_n(p, x, lanes);
  else
    v_store(p, x);
}

/* Whether a layer has the usual form: sigmoid gates, tanh outputs, no clip and no peepholes. */
static inline int recurrent_is_plain(const recurrent_args *r) {
  const int lstm = r->c != NULL;
  return r->activation[0] == INGOT_ACT_sigmoid && r->activation[1] == INGOT_ACT_tanh && r->clip <= 0 &&
         (!lstm || (r->activation[2] == INGOT_ACT_tanh && !r->input_forget && !r->peepholes));
}

/* The layer's activation of that number. */
RECURRENT_INLINE vf recurrent_activate(const recurrent_units *u, int which, vf x) {
  const recurrent_args *r = u->t->r;
  if (u->plain) return which == 0 ? v_sigmoid(x) : v_tanh(x);
  return v_activate(x, r->activation[which], r->act_alpha[which], r->act_beta[which]);
}

/* The same after the clip. */
RECURRENT_INLINE vf recurrent_bounded(const recurrent_units *u, int which, vf x) {
  const float clip = u->t->r->clip;
  return recurrent_activate(u, which, !u->plain && clip > 0 ? v_clip(x, v_set(-clip), v_set(clip)) : x);
}

/* The product of a gate with the hidden state, plus the bias. */
RECURRENT_INLINE vf recurrent_sum(const recurrent_units *u, int gate) {
  const recurrent_args *r = u->t->r;
  const vf sum = recurrent_load(u->sums + gate * u->width, u->lanes);
  return r->bias ? v_add(sum, recurrent_load(r->bias + gate * r->hidden + u->unit, u->lanes)) : sum;
}

/* The input's contribution to a gate. */
RECURRENT_INLINE vf recurrent_input(const recurrent_units *u, int gate) {
  return recurrent_load(u->gates + gate * u->t->r->hidden + u->unit, u->lanes);
}

/* Store the hidden state of active units in every destination. */
RECURRENT_INLINE void recurrent_leave(const recurrent_units *u, vf h, vf out) {
  const recurrent_args *r = u->t->r;
  recurrent_store(u->t->next + u->at, h, u->lanes);
  if (u->t->rounded) epilogue_round(h, u->lanes, u->t->rounded + u->at);
  if (u->t->last) recurrent_store(r->last_h + u->at, h, u->lanes);
  recurrent_store(r->out + u->t->time * r->out_strides[0] + u->row * r->out_strides[1] + u->unit, out, u->lanes);
}

/* Units of a sequence that has ended or not begun keep their states. */
static inline void recurrent_rest(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  recurrent_leave(u, recurrent_load(u->t->h + u->at, u->lanes), v_set(0));
  if (r->c && u->t->first) recurrent_store(r->last_c + u->at, recurrent_load(r->c + u->at, u->lanes), u->lanes);
}

/* The gates: input, output, forget, cell. */
RECURRENT_INLINE void recurrent_lstm(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  vf c = recurrent_load((u->t->first ? r->c : r->last_c) + u->at, u->lanes), x[4];
  INGOT_UNROLL for (int gate = 0; gate < 4; gate++) x[gate] = v_add(recurrent_input(u, gate), recurrent_sum(u, gate));
  const float *peepholes = !u->plain && r->peepholes ? r->peepholes + u->unit : NULL;
  if (peepholes) {
    x[0] = v_fma(recurrent_load(peepholes, u->lanes), c, x[0]);
    x[2] = v_fma(recurrent_load(peepholes + 2 * r->hidden, u->lanes), c, x[2]);
  }
  const vf input = recurrent_bounded(u, 0, x[0]);
  const vf forget = !u->plain && r->input_forget ? v_sub(v_set(1), input) : recurrent_bounded(u, 0, x[2]);
  c = v_fma(forget, c, v_mul(input, recurrent_bounded(u, 1, x[3])));
  if (peepholes) x[1] = v_fma(recurrent_load(peepholes + r->hidden, u->lanes), c, x[1]);
  const vf output = recurrent_bounded(u, 0, x[1]);
  const vf h = v_mul(output, recurrent_activate(u, 2, c));
  recurrent_store(r->last_c + u->at, c, u->lanes);
  recurrent_leave(u, h, h);
}

/* The update or reset gate. */
RECURRENT_INLINE vf recurrent_gate(const recurrent_units *u, int gate) {
  return recurrent_bounded(u, 0, v_add(recurrent_input(u, gate), recurrent_sum(u, gate)));
}

/* The hidden state of a GRU. seen: the previous state as the hidden gate reads it. */
RECURRENT_INLINE void recurrent_update(const recurrent_units *u, vf update, vf seen) {
  const vf candidate = recurrent_bounded(u, 1, v_add(recurrent_input(u, 2), seen));
  const vf before = recurrent_load(u->t->h + u->at, u->lanes);
  const vf h = v_fma(v_sub(v_set(1), update), candidate, v_mul(update, before));
  recurrent_leave(u, h, h);
}

/* The gates: update, reset, hidden. */
RECURRENT_INLINE void recurrent_gru(const recurrent_units *u) {
  recurrent_update(u, recurrent_gate(u, 0), v_mul(recurrent_gate(u, 1), recurrent_sum(u, 2)));
}

/* The memory in which the first half step of a GRU stores reset * h and the update gates. */
static inline float *recurrent_reset_state(const recurrent_args *r) { return r->state + 2 * r->batch * r->hidden; }

static inline uint16_t *recurrent_reset_rounded(const recurrent_args *r) {
  return r->rounded + 2 * r->batch * r->hidden;
}

static inline float *recurrent_updates(const recurrent_args *r) { return r->state + 3 * r->batch * r->hidden; }

RECURRENT_INLINE void recurrent_gru_reset(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  const vf reset = v_mul(recurrent_gate(u, 1), recurrent_load(u->t->h + u->at, u->lanes));
  if (r->rounded)
    epilogue_round(reset, u->lanes, recurrent_reset_rounded(r) + u->at);
  else
    recurrent_store(recurrent_reset_state(r) + u->at, reset, u->lanes);
  recurrent_store(recurrent_updates(r) + u->at, recurrent_gate(u, 0), u->lanes);
}

RECURRENT_INLINE void recurrent_gru_hidden(const recurrent_units *u) {
  recurrent_update(u, recurrent_load(recurrent_updates(u->t->r) + u->at, u->lanes), recurrent_sum(u, 2));
}

RECURRENT_INLINE void recurrent_rnn(const recurrent_units *u) {
  const vf x = v_add(recurrent_input(u, 0), recurrent_sum(u, 0));
  const vf h = recurrent_bounded(u, 0, x);
  recurrent_leave(u, h, h);
}

/* The steps of a sequence; 0 for an invalid length. */
static inline int64_t recurrent_length(const recurrent_args *r, int64_t row) {
  if (!r->lengths) return r->steps;
  const int64_t length = r->lengths[row];
  if (length >= 0 && length <= r->steps) return length;
  report_fault(r->fault, 2, r->step, length, r->steps + 1);
  return 0;
}

/* Compute the cells of `rows` rows and `width` units at (row, unit) from their sums. */
RECURRENT_INLINE void recurrent_cells(const recurrent_time *t, recurrent_cell cell, int64_t row, int64_t rows,
                                      int64_t unit, int64_t width, const float *sums) {
  const recurrent_args *r = t->r;
  const int plain = recurrent_is_plain(r);
  for (int64_t i = 0; i < rows; i++) {
    const int live = t->time < recurrent_length(r, row + i);
    const float *gates = r->gates + t->time * r->gates_strides[0] + (row + i) * r->gates_strides[1];
    for (int64_t j = 0; j < width; j += 16) {
      const int64_t lanes = width - j < 16 ? width - j : 16;
      const recurrent_units units = {
        t, sums + i * RECURRENT_SUMS + j, gates, width, row + i, unit + j, (row + i) * r->hidden + unit + j, lanes, 0};
      if (!live)
        recurrent_rest(&units);
      else if (!plain || lanes < 16)
        cell(&units);
      else
        cell(&(recurrent_units){t, units.sums, gates, width, row + i, unit + j, units.at, 16, 1});
    }
  }
}

/* Prefetch the other operands of the cells of some rows and a tile's units. */
static inline void recurrent_expect(const recurrent_time *t, int64_t row, int64_t rows, int64_t unit) {
  const recurrent_args *r = t->r;
  const float *gates = r->gates + t->time * r->gates_strides[0] + row * r->gates_strides[1] + unit;
  for (int64_t gate = 0; gate < r->columns; gate += r->hidden) gemm_expect(gates + gate, r->gates_strides[1], rows);
  gemm_expect(r->out + t->time * r->out_strides[0] + row * r->out_strides[1] + unit, r->out_strides[1], rows);
}

/* One task of a time step: gates [begin, end) of its units and rows, from products with f.a. */
RECURRENT_INLINE void recurrent_task(const recurrent_time *t, gemm_factors f, recurrent_cell cell, int64_t begin,
                                  int64_t end, gemm_share share) {
  const int64_t hidden = t->r->hidden, gates = t->r->columns / hidden, count = share.row_end - share.row_begin;
  const int64_t blocks = gemm_blocks(count, f.a_stride);
  float sums[GEMM_ROWS * RECURRENT_SUMS];
  for (int64_t k = share.panel_begin; k < share.panel_end; k++) {
    /* Alternate directions: the units that one step reads last are still in the cache when the next step reads them
     * first. */
    const int64_t unit = (t->time % 2 ? share.panel_begin + share.panel_end - 1 - k : k) * INGOT_PANEL;
    const int64_t width = hidden - unit < INGOT_PANEL ? hidden - unit : INGOT_PANEL;
    const int64_t first = begin * width / INGOT_PANEL, last = (end * width + INGOT_PANEL - 1) / INGOT_PANEL;
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = share.row_begin + task_begin(count, (int32_t)block, (int32_t)blocks);
      const int64_t rows = share.row_begin + task_begin(count, (int32_t)block + 1, (int32_t)blocks) - row;
      const gemm_product product = {
        .k = f.k, .a = f.a + row * f.a_stride, .a_stride = f.a_stride,
        .b = f.b + (unit / INGOT_PANEL * gates + first) * f.panel_size, .b_stride = INGOT_PANEL,
        .panel_stride = f.panel_size, .sums = sums + first * INGOT_PANEL, .sums_stride = RECURRENT_SUMS,
        .halved = last * INGOT_PANEL - end * width >= INGOT_PANEL / 2};
      recurrent_expect(t, row, rows, unit);
      f.tile(rows, last - first, &product);
      recurrent_cells(t, cell, row, rows, unit, width, sums);
    }
  }
}

/* The units and rows of a task. */
static inline gemm_share recurrent_cut(const recurrent_args *r, int32_t task, int32_t num_tasks) {
  return gemm_cut((r->hidden + INGOT_PANEL - 1) / INGOT_PANEL, r->batch, task, num_tasks);
}

/* Time step `number` of the run. */
static inline recurrent_time recurrent_step(const recurrent_args *r, int64_t number) {
  const int64_t size = r->batch * r->hidden, before = (number + 1) % 2 * size, after = number % 2 * size;
  return (recurrent_time){
    .r = r, .time = r->reverse ? r->steps - 1 - number : number,
    .h = number == 0 ? r->h : r->state + before, .next = r->state + after,
    .seen = number == 0 || !r->rounded ? r->rounded_h : r->rounded + before,
    .rounded = r->rounded ? r->rounded + after : NULL,
    .first = number == 0, .last = number == r->steps - 1};
}

/* The operand of a product: in bf16 where there is such a state. */
static inline const float *recurrent_rows(const float *h, const uint16_t *rounded) {
  return rounded ? (const void *)rounded : h;
}

/* A layer without steps returns its initial state. */
static inline void recurrent_nothing(const recurrent_args *r) {
  for (int64_t row = 0; row < r->batch; row++) recurrent_length(r, row);
  const size_t bytes = (size_t)(r->batch * r->hidden) * sizeof(float);
  memcpy(r->last_h, r->h, bytes);
  if (r->c) memcpy(r->last_c, r->c, bytes);
}

/* One task of an iteration that is a time step. */
RECURRENT_INLINE void recurrent_turn(const recurrent_args *r, gemm_factors f, recurrent_cell cell, int32_t task,
                                  int32_t num_tasks) {
  if (task == 0 && r->steps == 0) recurrent_nothing(r);
  if (task / num_tasks >= r->steps) return;
  const recurrent_time t = recurrent_step(r, task / num_tasks);
  f.a = recurrent_rows(t.h, t.seen);
  recurrent_task(&t, f, cell, 0, r->columns / r->hidden, recurrent_cut(r, task % num_tasks, num_tasks));
}

/* One task of an iteration that is half a step of a GRU: the reset gates of all units, or the new state. */
RECURRENT_INLINE void recurrent_half_task(const recurrent_args *r, gemm_factors f, int32_t task, int32_t num_tasks) {
  const int32_t iteration = task / num_tasks;
  if (task == 0 && r->steps == 0) recurrent_nothing(r);
  if (iteration / 2 >= r->steps) return;
  const recurrent_time t = recurrent_step(r, iteration / 2);
  const gemm_share share = recurrent_cut(r, task % num_tasks, num_tasks);
  f.a = iteration % 2 ? recurrent_rows(recurrent_reset_state(r), r->rounded ? recurrent_reset_rounded(r) : NULL)
                 : recurrent_rows(t.h, t.seen);
  if (iteration % 2)
    recurrent_task(&t, f, recurrent_gru_hidden, 2, 3, share);
  else
    recurrent_task(&t, f, recurrent_gru_reset, 0, 2, share);
}

RECURRENT_INLINE void recurrent_gru_task(const recurrent_args *r, gemm_factors f, int32_t task, int32_t num_tasks) {
  if (r->linear_before_reset)
    recurrent_turn(r, f, recurrent_gru, task, num_tasks);
  else
    recurrent_half_task(r, f, task, num_tasks);
}

RECURRENT_INLINE void recurrent_lstm_task(const recurrent_args *r, gemm_factors f, int32_t task, int32_t num_tasks) {
  recurrent_turn(r, f, recurrent_lstm, task, num_tasks);
}

RECURRENT_INLINE void recurrent_rnn_task(const recurrent_args *r, gemm_factors f, int32_t task, int32_t num_tasks) {
  recurrent_turn(r, f, recurrent_rnn, task, num_tasks);
}

/* The product of the state with all weights, as arguments of gemm. */
static inline gemm_args recurrent_product(const recurrent_args *r) {
  return (gemm_args){.b = r->weights, .k = r->hidden, .a_stride = r->hidden};
}

#define RECURRENT(name, factors, run_task)                                                                             \
  void K(name)(const void *args, int32_t task, int32_t num_tasks) {                                                    \
    const gemm_args product = recurrent_product(args);                                                                 \
    run_task(args, factors(&product), task, num_tasks);                                                                \
  }

RECURRENT(lstm_f32_packed, gemm_f32_factors, recurrent_lstm_task)
RECURRENT(lstm_f32_bf16_packed, gemm_f32_bf16_factors, recurrent_lstm_task)
RECURRENT(lstm_f32_f16_packed, gemm_f32_f16_factors, recurrent_lstm_task)
RECURRENT(lstm_bf16_packed, gemm_bf16_factors, recurrent_lstm_task)
RECURRENT(gru_f32_packed, gemm_f32_factors, recurrent_gru_task)
RECURRENT(gru_f32_bf16_packed, gemm_f32_bf16_factors, recurrent_gru_task)
RECURRENT(gru_f32_f16_packed, gemm_f32_f16_factors, recurrent_gru_task)
RECURRENT(gru_bf16_packed, gemm_bf16_factors, recurrent_gru_task)
RECURRENT(rnn_f32_packed, gemm_f32_factors, recurrent_rnn_task)
RECURRENT(rnn_f32_bf16_packed, gemm_f32_bf16_factors, recurrent_rnn_task)
RECURRENT(rnn_f32_f16_packed, gemm_f32_f16_factors, recurrent_rnn_task)
RECURRENT(rnn_bf16_packed, gemm_bf16_factors, recurrent_rnn_task)

#if defined(INGOT_LIBRARY)
/* lstm_bf16_tiles and so on: like _bf16_packed, with split sums. */
static inline gemm_factors recurrent_split_factors(const gemm_args *product) {
  gemm_args split = *product;
  split.split_sums = 1;
  return gemm_bf16_factors(&split);
}

RECURRENT(lstm_bf16_tiles, recurrent_split_factors, recurrent_lstm_task)
RECURRENT(gru_bf16_tiles, recurrent_split_factors, recurrent_gru_task)
RECURRENT(rnn_bf16_tiles, recurrent_split_factors, recurrent_rnn_task)
#endif

#undef RECURRENT
#undef RECURRENT_GATES
#undef RECURRENT_SUMS
#undef RECURRENT_INLINE

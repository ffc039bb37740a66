/* recurrent.c: one direction of an LSTM, GRU or plain recurrent layer. A turn is a step of time: the product of the
 * hidden state with the packed weights of some units, gemm's bits, and then their gates at once, while the sums are in
 * the L1 cache. Parts share units and rows, and find in a turn what all of them left in the one before. */
#include <string.h>

#include "gemm.h"

#define RECURRENT_GATES 4 /* at most */
#define RECURRENT_SUMS (RECURRENT_GATES * INGOT_PANEL)

/* A step of time. h and next: the hidden state before and after, [batch, hidden]. */
typedef struct {
  const recurrent_args *r;
  int64_t time;
  const float *h;
  float *next;
  int32_t first, last; /* whether it is that of the run */
} recurrent_time;

/* Up to 16 units of a row. sums: those of the first gate, `width` apart from gate to gate. at: where the first of
 * `lanes` units lies in [batch, hidden]. */
typedef struct {
  const recurrent_time *t;
  const float *sums, *gates;
  int64_t width, row, unit, at, lanes;
} recurrent_units;

typedef void (*recurrent_cell)(const recurrent_units *u);

static inline vf recurrent_load(const float *p, int64_t lanes) { return lanes < 16 ? v_load_n(p, lanes) : v_load(p); }

static inline void recurrent_store(float *p, vf x, int64_t lanes) {
  if (lanes < 16)
    v_store_n(p, x, lanes);
  else
    v_store(p, x);
}

static inline vf recurrent_bounded(const recurrent_args *r, vf x) {
  return r->clip > 0 ? v_clip(x, v_set(-r->clip), v_set(r->clip)) : x;
}

/* The layer's activation of that number. */
static inline vf recurrent_activate(const recurrent_args *r, int which, vf x) {
  return v_activate(x, r->activation[which], r->act_alpha[which], r->act_beta[which]);
}

/* What a gate is given by the hidden state, biased. */
static inline vf recurrent_sum(const recurrent_units *u, int gate) {
  const recurrent_args *r = u->t->r;
  const vf sum = recurrent_load(u->sums + gate * u->width, u->lanes);
  return r->bias ? v_add(sum, recurrent_load(r->bias + gate * r->hidden + u->unit, u->lanes)) : sum;
}

/* And by the input. */
static inline vf recurrent_input(const recurrent_units *u, int gate) {
  return recurrent_load(u->gates + gate * u->t->r->hidden + u->unit, u->lanes);
}

/* The hidden state of live units, in all places that want it. */
static inline void recurrent_leave(const recurrent_units *u, vf h, vf out) {
  const recurrent_args *r = u->t->r;
  recurrent_store(u->t->next + u->at, h, u->lanes);
  if (u->t->last) recurrent_store(r->last_h + u->at, h, u->lanes);
  recurrent_store(r->out + u->t->time * r->out_strides[0] + u->row * r->out_strides[1] + u->unit, out, u->lanes);
}

/* Units of a sequence that has ended, or not begun: their states stay. */
static inline void recurrent_rest(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  recurrent_leave(u, recurrent_load(u->t->h + u->at, u->lanes), v_set(0));
  if (r->c && u->t->first) recurrent_store(r->last_c + u->at, recurrent_load(r->c + u->at, u->lanes), u->lanes);
}

/* The gates: input, output, forget, cell. */
static inline void recurrent_lstm(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  vf c = recurrent_load((u->t->first ? r->c : r->last_c) + u->at, u->lanes), x[4];
  for (int gate = 0; gate < 4; gate++) x[gate] = v_add(recurrent_input(u, gate), recurrent_sum(u, gate));
  const float *peepholes = r->peepholes ? r->peepholes + u->unit : NULL;
  if (peepholes) {
    x[0] = v_fma(recurrent_load(peepholes, u->lanes), c, x[0]);
    x[2] = v_fma(recurrent_load(peepholes + 2 * r->hidden, u->lanes), c, x[2]);
  }
  const vf input = recurrent_activate(r, 0, recurrent_bounded(r, x[0]));
  const vf forget = r->input_forget ? v_sub(v_set(1), input) : recurrent_activate(r, 0, recurrent_bounded(r, x[2]));
  c = v_fma(forget, c, v_mul(input, recurrent_activate(r, 1, recurrent_bounded(r, x[3]))));
  if (peepholes) x[1] = v_fma(recurrent_load(peepholes + r->hidden, u->lanes), c, x[1]);
  const vf output = recurrent_activate(r, 0, recurrent_bounded(r, x[1]));
  const vf h = v_mul(output, recurrent_activate(r, 2, c));
  recurrent_store(r->last_c + u->at, c, u->lanes);
  recurrent_leave(u, h, h);
}

/* Update or reset. */
static inline vf recurrent_gate(const recurrent_units *u, int gate) {
  const recurrent_args *r = u->t->r;
  return recurrent_activate(r, 0, recurrent_bounded(r, v_add(recurrent_input(u, gate), recurrent_sum(u, gate))));
}

/* The hidden state of a GRU. seen: what the hidden gate sees of the one before. */
static inline void recurrent_update(const recurrent_units *u, vf update, vf seen) {
  const recurrent_args *r = u->t->r;
  const vf made = recurrent_activate(r, 1, recurrent_bounded(r, v_add(recurrent_input(u, 2), seen)));
  const vf before = recurrent_load(u->t->h + u->at, u->lanes);
  const vf h = v_fma(v_sub(v_set(1), update), made, v_mul(update, before));
  recurrent_leave(u, h, h);
}

/* The gates: update, reset, hidden. */
static inline void recurrent_gru(const recurrent_units *u) {
  recurrent_update(u, recurrent_gate(u, 0), v_mul(recurrent_gate(u, 1), recurrent_sum(u, 2)));
}

/* Where the first turn of a GRU whose reset gate comes first leaves reset * h; the update gates follow. */
static inline float *recurrent_kept(const recurrent_args *r) { return r->state + 2 * r->batch * r->hidden; }

static inline void recurrent_gru_reset(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  float *kept = recurrent_kept(r) + u->at;
  const vf before = recurrent_load(u->t->h + u->at, u->lanes);
  recurrent_store(kept, v_mul(recurrent_gate(u, 1), before), u->lanes);
  recurrent_store(kept + r->batch * r->hidden, recurrent_gate(u, 0), u->lanes);
}

static inline void recurrent_gru_hidden(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  const vf update = recurrent_load(recurrent_kept(r) + r->batch * r->hidden + u->at, u->lanes);
  recurrent_update(u, update, recurrent_sum(u, 2));
}

static inline void recurrent_rnn(const recurrent_units *u) {
  const recurrent_args *r = u->t->r;
  const vf x = v_add(recurrent_input(u, 0), recurrent_sum(u, 0));
  const vf h = recurrent_activate(r, 0, recurrent_bounded(r, x));
  recurrent_leave(u, h, h);
}

/* The steps of a sequence; 0 for one that has no such length. */
static inline int64_t recurrent_length(const recurrent_args *r, int64_t row) {
  if (!r->lengths) return r->steps;
  const int64_t length = r->lengths[row];
  if (length >= 0 && length <= r->steps) return length;
  report_fault(r->fault, 2, r->step, length, r->steps + 1);
  return 0;
}

/* What becomes of the sums of `rows` rows and `width` units, which belong at (row, unit). */
static inline void recurrent_cells(const recurrent_time *t, recurrent_cell cell, int64_t row, int64_t rows,
                                   int64_t unit, int64_t width, const float *sums) {
  const recurrent_args *r = t->r;
  for (int64_t i = 0; i < rows; i++) {
    const int live = t->time < recurrent_length(r, row + i);
    const float *gates = r->gates + t->time * r->gates_strides[0] + (row + i) * r->gates_strides[1];
    for (int64_t j = 0; j < width; j += 16) {
      const recurrent_units units = {
        t, sums + i * RECURRENT_SUMS + j, gates, width, row + i, unit + j, (row + i) * r->hidden + unit + j,
        width - j < 16 ? width - j : 16};
      if (live)
        cell(&units);
      else
        recurrent_rest(&units);
    }
  }
}

/* Asks for what the cells of some rows and a tile's units will want beside their sums. */
static inline void recurrent_expect(const recurrent_time *t, int64_t row, int64_t rows, int64_t unit) {
  const recurrent_args *r = t->r;
  const float *gates = r->gates + t->time * r->gates_strides[0] + row * r->gates_strides[1] + unit;
  for (int64_t gate = 0; gate < r->columns; gate += r->hidden) gemm_expect(gates + gate, r->gates_strides[1], rows);
  gemm_expect(r->out + t->time * r->out_strides[0] + row * r->out_strides[1] + unit, r->out_strides[1], rows);
}

/* What one part computes in a step of time: gates [begin, end) of its units and rows, from products with f.a. */
static inline void recurrent_part(const recurrent_time *t, gemm_factors f, recurrent_cell cell, int64_t begin,
                                  int64_t end, gemm_share share) {
  const int64_t hidden = t->r->hidden, gates = t->r->columns / hidden, count = share.row_end - share.row_begin;
  const int64_t blocks = gemm_blocks(count, f.a_stride);
  float sums[GEMM_ROWS * RECURRENT_SUMS];
  for (int64_t k = share.panel_begin; k < share.panel_end; k++) {
    /* Back and forth: what a step reads last, the next one reads first, while it is in the cache. */
    const int64_t unit = (t->time % 2 ? share.panel_begin + share.panel_end - 1 - k : k) * INGOT_PANEL;
    const int64_t width = hidden - unit < INGOT_PANEL ? hidden - unit : INGOT_PANEL;
    const int64_t first = begin * width / INGOT_PANEL, last = (end * width + INGOT_PANEL - 1) / INGOT_PANEL;
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = share.row_begin + part_begin(count, (int32_t)block, (int32_t)blocks);
      const int64_t rows = share.row_begin + part_begin(count, (int32_t)block + 1, (int32_t)blocks) - row;
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

/* The units and rows of a part. */
static inline gemm_share recurrent_cut(const recurrent_args *r, int32_t part, int32_t parts) {
  return gemm_cut((r->hidden + INGOT_PANEL - 1) / INGOT_PANEL, r->batch, part, parts);
}

/* The step of time that is the `number`th of the run. */
static inline recurrent_time recurrent_step(const recurrent_args *r, int64_t number) {
  float *odd = r->state + r->batch * r->hidden;
  return (recurrent_time){
    r, r->reverse ? r->steps - 1 - number : number, number == 0 ? r->h : number % 2 ? r->state : odd,
    number % 2 ? odd : r->state, number == 0, number == r->steps - 1};
}

/* A layer of no steps ends as it begins. */
static inline void recurrent_nothing(const recurrent_args *r) {
  for (int64_t row = 0; row < r->batch; row++) recurrent_length(r, row);
  const size_t bytes = (size_t)(r->batch * r->hidden) * sizeof(float);
  memcpy(r->last_h, r->h, bytes);
  if (r->c) memcpy(r->last_c, r->c, bytes);
}

/* One part of a turn that is a step of time. */
static inline void recurrent_turn(const recurrent_args *r, gemm_factors f, recurrent_cell cell, int32_t part,
                                  int32_t parts) {
  if (part == 0 && r->steps == 0) recurrent_nothing(r);
  if (part / parts >= r->steps) return;
  const recurrent_time t = recurrent_step(r, part / parts);
  f.a = t.h;
  recurrent_part(&t, f, cell, 0, r->columns / r->hidden, recurrent_cut(r, part % parts, parts));
}

/* One part of a turn that is half a step of a GRU: the reset gates of all units, then what they leave of the state. */
static inline void recurrent_half_turn(const recurrent_args *r, gemm_factors f, int32_t part, int32_t parts) {
  const int32_t turn = part / parts;
  if (part == 0 && r->steps == 0) recurrent_nothing(r);
  if (turn / 2 >= r->steps) return;
  const recurrent_time t = recurrent_step(r, turn / 2);
  const gemm_share share = recurrent_cut(r, part % parts, parts);
  f.a = turn % 2 ? recurrent_kept(r) : t.h;
  if (turn % 2)
    recurrent_part(&t, f, recurrent_gru_hidden, 2, 3, share);
  else
    recurrent_part(&t, f, recurrent_gru_reset, 0, 2, share);
}

static inline void recurrent_gru_turn(const recurrent_args *r, gemm_factors f, int32_t part, int32_t parts) {
  if (r->linear_before_reset)
    recurrent_turn(r, f, recurrent_gru, part, parts);
  else
    recurrent_half_turn(r, f, part, parts);
}

/* The product of the state with all weights, for the factors of a format. */
static inline gemm_args recurrent_product(const recurrent_args *r) {
  return (gemm_args){.b = r->weights, .k = r->hidden, .a_stride = r->hidden};
}

void K(lstm_f32_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args product = recurrent_product(args);
  recurrent_turn(args, gemm_f32_factors(&product), recurrent_lstm, part, parts);
}

void K(lstm_f32_bf16_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args product = recurrent_product(args);
  recurrent_turn(args, gemm_f32_bf16_factors(&product), recurrent_lstm, part, parts);
}

void K(gru_f32_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args product = recurrent_product(args);
  recurrent_gru_turn(args, gemm_f32_factors(&product), part, parts);
}

void K(gru_f32_bf16_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args product = recurrent_product(args);
  recurrent_gru_turn(args, gemm_f32_bf16_factors(&product), part, parts);
}

void K(rnn_f32_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args product = recurrent_product(args);
  recurrent_turn(args, gemm_f32_factors(&product), recurrent_rnn, part, parts);
}

void K(rnn_f32_bf16_packed)(const void *args, int32_t part, int32_t parts) {
  const gemm_args product = recurrent_product(args);
  recurrent_turn(args, gemm_f32_bf16_factors(&product), recurrent_rnn, part, parts);
}

#undef RECURRENT_GATES
#undef RECURRENT_SUMS

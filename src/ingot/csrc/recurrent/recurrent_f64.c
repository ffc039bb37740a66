/* recurrent_f64.c: the layers of recurrent.c in f64, with the same iterations; tasks divide single units. */
#include <math.h>
#include <string.h>

#include "kernel.h"

#define REAL_LANES 8 /* partial sums of a product */

/* A time step. h and next: the hidden state before and after, [batch, hidden]. */
typedef struct {
  const recurrent_f64_args *r;
  int64_t time;
  const double *h;
  double *next;
  int32_t first, last; /* whether it is the first or last of the run */
} real_time;

typedef void (*real_cell)(const real_time *t, int64_t row, int64_t unit);

static inline double real_activate(int32_t activation, double x) {
  switch (activation) {
    case INGOT_ACT_sigmoid: return 1 / (1 + exp(-x));
    case INGOT_ACT_tanh: return tanh(x);
    case INGOT_ACT_relu: return x < 0 ? 0 : x;
    default: return x;
  }
}

/* The layer's activation of that number, after the clip. */
static inline double real_bounded(const recurrent_f64_args *r, int which, double x) {
  const double clip = (double)r->clip;
  if (clip > 0) x = x < -clip ? -clip : x > clip ? clip : x;
  return real_activate(r->activation[which], x);
}

/* The product of a gate's weights with `values`, a sequence's [hidden], plus the bias. */
static inline double real_sum(const recurrent_f64_args *r, int64_t gate, int64_t unit, const double *values) {
  const double *weights = r->weights + (gate * r->hidden + unit) * r->hidden;
  double lanes[REAL_LANES] = {0};
  int64_t i = 0;
  for (; i + REAL_LANES <= r->hidden; i += REAL_LANES)
    for (int lane = 0; lane < REAL_LANES; lane++) lanes[lane] += weights[i + lane] * values[i + lane];
  for (int lane = 0; i + lane < r->hidden; lane++) lanes[lane] += weights[i + lane] * values[i + lane];
  for (int half = REAL_LANES / 2; half; half /= 2)
    for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
  return r->bias ? lanes[0] + r->bias[gate * r->hidden + unit] : lanes[0];
}

/* The input's contribution to a gate. */
static inline double real_input(const real_time *t, int64_t row, int64_t gate, int64_t unit) {
  const recurrent_f64_args *r = t->r;
  return r->gates[t->time * r->gates_strides[0] + row * r->gates_strides[1] + gate * r->hidden + unit];
}

/* The sum of the contributions of input and hidden state. */
static inline double real_gate(const real_time *t, int64_t row, int64_t gate, int64_t unit) {
  return real_input(t, row, gate, unit) + real_sum(t->r, gate, unit, t->h + row * t->r->hidden);
}

/* Store a hidden state in every destination. */
static inline void real_leave(const real_time *t, int64_t row, int64_t unit, double h, double out) {
  const recurrent_f64_args *r = t->r;
  t->next[row * r->hidden + unit] = h;
  if (t->last) r->last_h[row * r->hidden + unit] = h;
  r->out[t->time * r->out_strides[0] + row * r->out_strides[1] + unit] = out;
}

/* A unit of a sequence that has ended or not begun keeps its states. */
static inline void real_rest(const real_time *t, int64_t row, int64_t unit) {
  const int64_t at = row * t->r->hidden + unit;
  real_leave(t, row, unit, t->h[at], 0);
  if (t->r->c && t->first) t->r->last_c[at] = t->r->c[at];
}

/* The gates: input, output, forget, cell. */
static inline void real_lstm(const real_time *t, int64_t row, int64_t unit) {
  const recurrent_f64_args *r = t->r;
  const int64_t hidden = r->hidden, at = row * hidden + unit;
  const double *peepholes = r->peepholes;
  double c = (t->first ? r->c : r->last_c)[at], x[4];
  for (int64_t gate = 0; gate < 4; gate++) x[gate] = real_gate(t, row, gate, unit);
  if (peepholes) {
    x[0] += peepholes[unit] * c;
    x[2] += peepholes[2 * hidden + unit] * c;
  }
  const double input = real_bounded(r, 0, x[0]);
  const double forget = r->input_forget ? 1 - input : real_bounded(r, 0, x[2]);
  c = forget * c + input * real_bounded(r, 1, x[3]);
  if (peepholes) x[1] += peepholes[hidden + unit] * c;
  const double h = real_bounded(r, 0, x[1]) * real_activate(r->activation[2], c);
  r->last_c[at] = c;
  real_leave(t, row, unit, h, h);
}

/* The hidden state of a GRU. seen: the previous state as the hidden gate reads it. */
static inline void real_update(const real_time *t, int64_t row, int64_t unit, double update, double seen) {
  const double candidate = real_bounded(t->r, 1, real_input(t, row, 2, unit) + seen);
  const double h = (1 - update) * candidate + update * t->h[row * t->r->hidden + unit];
  real_leave(t, row, unit, h, h);
}

/* The gates: update, reset, hidden. */
static inline void real_gru(const real_time *t, int64_t row, int64_t unit) {
  const recurrent_f64_args *r = t->r;
  const double seen = real_sum(r, 2, unit, t->h + row * r->hidden);
  const double reset = real_bounded(r, 0, real_gate(t, row, 1, unit));
  real_update(t, row, unit, real_bounded(r, 0, real_gate(t, row, 0, unit)), reset * seen);
}

/* The memory in which the first half step of a GRU stores reset * h, and after it the update gates. */
static inline double *real_kept(const recurrent_f64_args *r) { return r->state + 2 * r->batch * r->hidden; }

static inline void real_gru_reset(const real_time *t, int64_t row, int64_t unit) {
  const recurrent_f64_args *r = t->r;
  const int64_t at = row * r->hidden + unit;
  real_kept(r)[at] = real_bounded(r, 0, real_gate(t, row, 1, unit)) * t->h[at];
  real_kept(r)[r->batch * r->hidden + at] = real_bounded(r, 0, real_gate(t, row, 0, unit));
}

static inline void real_gru_hidden(const real_time *t, int64_t row, int64_t unit) {
  const recurrent_f64_args *r = t->r;
  const double update = real_kept(r)[(r->batch + row) * r->hidden + unit];
  real_update(t, row, unit, update, real_sum(r, 2, unit, real_kept(r) + row * r->hidden));
}

static inline void real_rnn(const real_time *t, int64_t row, int64_t unit) {
  const double h = real_bounded(t->r, 0, real_gate(t, row, 0, unit));
  real_leave(t, row, unit, h, h);
}

/* The steps of a sequence; 0 for an invalid length. */
static inline int64_t real_length(const recurrent_f64_args *r, int64_t row) {
  if (!r->lengths) return r->steps;
  const int64_t length = r->lengths[row];
  if (length >= 0 && length <= r->steps) return length;
  report_fault(r->fault, 2, r->step, length, r->steps + 1);
  return 0;
}

/* A layer without steps returns its initial state. */
static inline void real_nothing(const recurrent_f64_args *r) {
  for (int64_t row = 0; row < r->batch; row++) real_length(r, row);
  const size_t bytes = (size_t)(r->batch * r->hidden) * sizeof(double);
  memcpy(r->last_h, r->h, bytes);
  if (r->c) memcpy(r->last_c, r->c, bytes);
}

/* One task of time step `number` of the run. */
static inline void real_advance(const recurrent_f64_args *r, int64_t number, real_cell cell, int32_t task,
                                int32_t num_tasks) {
  const int64_t size = r->batch * r->hidden;
  const real_time t = {
    .r = r, .time = r->reverse ? r->steps - 1 - number : number,
    .h = number == 0 ? r->h : r->state + (number + 1) % 2 * size, .next = r->state + number % 2 * size,
    .first = number == 0, .last = number == r->steps - 1};
  const int64_t end = task_begin(size, task + 1, num_tasks);
  for (int64_t at = task_begin(size, task, num_tasks); at < end; at++) {
    const int64_t row = at / r->hidden, unit = at % r->hidden;
    if (t.time < real_length(r, row))
      cell(&t, row, unit);
    else
      real_rest(&t, row, unit);
  }
}

/* One task of an iteration that is a time step. */
static inline void real_task(const recurrent_f64_args *r, real_cell cell, int32_t task, int32_t num_tasks) {
  if (task == 0 && r->steps == 0) real_nothing(r);
  if (task / num_tasks < r->steps) real_advance(r, task / num_tasks, cell, task % num_tasks, num_tasks);
}

void K(lstm_f64)(const void *args, int32_t task, int32_t num_tasks) {
  real_task(args, real_lstm, task, num_tasks);
}

void K(rnn_f64)(const void *args, int32_t task, int32_t num_tasks) {
  real_task(args, real_rnn, task, num_tasks);
}

/* An iteration is half a step where the reset gate precedes the product: the reset gates of all units, then the new
 * state. */
void K(gru_f64)(const void *args, int32_t task, int32_t num_tasks) {
  const recurrent_f64_args *r = args;
  const int32_t iteration = task / num_tasks;
  if (r->linear_before_reset) {
    real_task(r, real_gru, task, num_tasks);
    return;
  }
  if (task == 0 && r->steps == 0) real_nothing(r);
  if (iteration / 2 >= r->steps) return;
  real_advance(r, iteration / 2, iteration % 2 ? real_gru_hidden : real_gru_reset, task % num_tasks, num_tasks);
}

#undef REAL_LANES

/* linear_attention.c: attention without softmax, step by step over a state. Columns of the state are independent, so
 * tasks divide them; sums run over its rows in order. */
#include <string.h>

#include "elementwise/strided.h"
#include "recurrent/slots.h"

#define STATE_VECTORS 4 /* vectors of columns that are computed together */
#define STATE_COLUMNS (16 * STATE_VECTORS)

/* Up to STATE_COLUMNS columns of one head's state [k_dim, v_dim]. lanes: of each vector; 0 to 16. */
typedef struct {
  float *state;
  int64_t k_dim, v_dim, columns;
  int64_t lanes[STATE_VECTORS];
} state_columns;

/* The operands of one step of a head. The factor of row i of the state is decay[i * decay_step]; beta may be null. v
 * and out: at the first column. */
typedef struct {
  const float *q, *k, *v, *decay, *beta;
  float *out;
  int64_t decay_step;
  float scale;
} state_operands;

/* The columns of part `part` of a head's state. */
static inline state_columns state_part(float *state, int64_t k_dim, int64_t v_dim, int64_t part) {
  const int64_t column = part * STATE_COLUMNS, rest = v_dim - column;
  state_columns c = {.state = state + column, .k_dim = k_dim, .v_dim = v_dim};
  c.columns = rest < STATE_COLUMNS ? rest : STATE_COLUMNS;
  for (int j = 0; j < STATE_VECTORS; j++) {
    const int64_t lanes = c.columns - 16 * j;
    c.lanes[j] = lanes < 0 ? 0 : lanes < 16 ? lanes : 16;
  }
  return c;
}

/* Vector j of a row. whole: all vectors are complete, a constant where these functions are inlined. */
static inline vf state_load(const state_columns *c, const float *row, int j, int whole) {
  return whole ? v_load(row + 16 * j) : load_lanes(row + 16 * j, 1, c->lanes[j]);
}

static inline void state_store(const state_columns *c, float *row, int j, int whole, vf value) {
  if (whole) v_store(row + 16 * j, value);
  else store_lanes(row + 16 * j, 1, c->lanes[j], value);
}

/* Subtract from `added` what the decayed state has of k, and multiply it by beta. */
static inline void state_correct(const state_columns *c, const state_operands *o, vf *added, int whole) {
  vf found[STATE_VECTORS];
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) found[j] = v_set(0);
  for (int64_t i = 0; i < c->k_dim; i++) {
    const vf factor = v_set(o->decay[i * o->decay_step]), key = v_set(o->k[i]);
    INGOT_UNROLL
    for (int j = 0; j < STATE_VECTORS; j++) {
      const vf row = state_load(c, c->state + i * c->v_dim, j, whole);
      found[j] = v_fma(v_mul(row, factor), key, found[j]);
    }
  }
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) added[j] = v_mul(v_sub(added[j], found[j]), v_set(*o->beta));
}

static inline void state_advance(const state_columns *c, const state_operands *o, int whole) {
  vf added[STATE_VECTORS], sums[STATE_VECTORS];
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) {
    added[j] = state_load(c, o->v, j, whole);
    sums[j] = v_set(0);
  }
  if (o->beta) state_correct(c, o, added, whole);
  for (int64_t i = 0; i < c->k_dim; i++) {
    float *row = c->state + i * c->v_dim;
    const vf factor = v_set(o->decay[i * o->decay_step]), key = v_set(o->k[i]), query = v_set(o->q[i]);
    INGOT_UNROLL
    for (int j = 0; j < STATE_VECTORS; j++) {
      const vf grown = v_fma(key, added[j], v_mul(state_load(c, row, j, whole), factor));
      state_store(c, row, j, whole, grown);
      sums[j] = v_fma(grown, query, sums[j]);
    }
  }
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) state_store(c, o->out, j, whole, v_mul(sums[j], v_set(o->scale)));
}

/* One step of a head. */
static inline void state_step(const state_columns *c, const state_operands *o) {
  if (c->columns == STATE_COLUMNS) state_advance(c, o, 1);
  else state_advance(c, o, 0);
}

void K(linear_attention_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const linear_attention_args *args = p;
  const int64_t parts = (args->v_dim + STATE_COLUMNS - 1) / STATE_COLUMNS, count = args->batch * args->heads * parts;
  const int64_t end = task_begin(count, task + 1, num_tasks);
  const float one = 1;
  for (int64_t u = task_begin(count, task, num_tasks); u < end; u++) {
    const int64_t head = u / parts, column = u % parts * STATE_COLUMNS, begin = head * args->k_dim * args->v_dim;
    const state_columns c = state_part(args->last + begin, args->k_dim, args->v_dim, u % parts);
    for (int64_t i = 0; i < args->k_dim; i++)
      memcpy(c.state + i * args->v_dim, args->state + begin + column + i * args->v_dim,
             (size_t)c.columns * sizeof(float));
    const int64_t batch = head / args->heads, own = head % args->heads;
    for (int64_t t = 0; t < args->steps; t++) {
      const int64_t at = (batch * args->steps + t) * args->heads + own;
      const state_operands o = {
        .q = args->q + at * args->k_dim, .k = args->k + at * args->k_dim, .v = args->v + at * args->v_dim + column,
        .decay = args->decay ? args->decay + at * args->decay_dim : &one, .decay_step = args->decay_dim > 1,
        .beta = args->beta ? args->beta + at : NULL, .out = args->out + at * args->v_dim + column,
        .scale = args->scale};
      state_step(&c, &o);
    }
  }
}

/* The columns of a head for all rows; column: the first one. A sequence begins with a state of zeros. */
static inline void state_rows(const linear_attention_of_rows_args *g, int64_t head, int64_t part) {
  const paged_rows t = SLOT_ROWS(g);
  const int64_t column = part * STATE_COLUMNS, group = head / (g->heads / g->groups);
  const float one = 1;
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t slot = slot_of(&t, r), at = r * g->heads + head, key = (r * g->groups + group) * g->k_dim;
    float *state = g->state + ((slot < 0 ? 0 : slot) * g->heads + head) * g->k_dim * g->v_dim;
    const state_columns c = state_part(state, g->k_dim, g->v_dim, part);
    const state_operands o = {
      .q = g->q + key, .k = g->k + key, .v = g->v + at * g->v_dim + column,
      .decay = g->decay ? g->decay + at * g->decay_dim : &one, .decay_step = g->decay_dim > 1,
      .beta = g->beta ? g->beta + at : NULL, .out = g->out + at * g->v_dim + column, .scale = g->scale};
    if (slot < 0) {
      memset(o.out, 0, (size_t)c.columns * sizeof(float));
      continue;
    }
    if (slot_begins(&t, r))
      for (int64_t i = 0; i < g->k_dim; i++) memset(c.state + i * g->v_dim, 0, (size_t)c.columns * sizeof(float));
    state_step(&c, &o);
  }
}

void K(linear_attention_of_rows_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const linear_attention_of_rows_args *g = p;
  const int64_t parts = (g->v_dim + STATE_COLUMNS - 1) / STATE_COLUMNS, count = g->heads * parts;
  const int64_t end = task_begin(count, task + 1, num_tasks);
  for (int64_t u = task_begin(count, task, num_tasks); u < end; u++) state_rows(g, u / parts, u % parts);
}

#undef STATE_COLUMNS
#undef STATE_VECTORS

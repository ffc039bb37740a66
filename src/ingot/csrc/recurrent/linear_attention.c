/* linear_attention.c: attention without softmax, step by step over a state. Columns of the state are independent, so
 * tasks divide them; sums run over its rows in order. */
#include <string.h>

#include "elementwise/strided.h"
#include "kernel.h"

#define STATE_VECTORS 4 /* vectors of columns that are computed together */
#define STATE_COLUMNS (16 * STATE_VECTORS)

/* Up to STATE_COLUMNS columns of one head's state. lanes: of each vector; 0 to 16. */
typedef struct {
  const linear_attention_args *args;
  float *state;
  int64_t column;
  int64_t lanes[STATE_VECTORS];
} state_columns;

/* Vector j of a row. whole: all vectors are complete, a constant where these functions are inlined. */
static inline vf state_load(const state_columns *c, const float *row, int j, int whole) {
  return whole ? v_load(row + 16 * j) : load_lanes(row + 16 * j, 1, c->lanes[j]);
}

static inline void state_store(const state_columns *c, float *row, int j, int whole, vf value) {
  if (whole) v_store(row + 16 * j, value);
  else store_lanes(row + 16 * j, 1, c->lanes[j], value);
}

/* The factors of a step's rows: decay[i * step]. */
typedef struct { const float *decay; int64_t step; } state_factors;

/* Subtract from `added` what the decayed state has of k, and multiply it by beta. */
static inline void state_correct(const state_columns *c, state_factors f, const float *k, float beta, vf *added,
                                 int whole) {
  vf found[STATE_VECTORS];
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) found[j] = v_set(0);
  for (int64_t i = 0; i < c->args->k_dim; i++) {
    const vf factor = v_set(f.decay[i * f.step]), key = v_set(k[i]);
    INGOT_UNROLL
    for (int j = 0; j < STATE_VECTORS; j++) {
      const vf row = state_load(c, c->state + i * c->args->v_dim, j, whole);
      found[j] = v_fma(v_mul(row, factor), key, found[j]);
    }
  }
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) added[j] = v_mul(v_sub(added[j], found[j]), v_set(beta));
}

/* Step `at` of [batch, steps, heads]. */
static inline void state_step(const state_columns *c, int64_t at, int whole) {
  const linear_attention_args *args = c->args;
  const float *q = args->q + at * args->k_dim, *k = args->k + at * args->k_dim, one = 1;
  const int64_t first = at * args->v_dim + c->column;
  const state_factors f = {args->decay ? args->decay + at * args->decay_dim : &one, args->decay_dim > 1};
  vf added[STATE_VECTORS], sums[STATE_VECTORS];
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) {
    added[j] = state_load(c, args->v + first, j, whole);
    sums[j] = v_set(0);
  }
  if (args->beta) state_correct(c, f, k, args->beta[at], added, whole);
  for (int64_t i = 0; i < args->k_dim; i++) {
    float *row = c->state + i * args->v_dim;
    const vf factor = v_set(f.decay[i * f.step]), key = v_set(k[i]), query = v_set(q[i]);
    INGOT_UNROLL
    for (int j = 0; j < STATE_VECTORS; j++) {
      const vf grown = v_fma(key, added[j], v_mul(state_load(c, row, j, whole), factor));
      state_store(c, row, j, whole, grown);
      sums[j] = v_fma(grown, query, sums[j]);
    }
  }
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++)
    state_store(c, args->out + first, j, whole, v_mul(sums[j], v_set(args->scale)));
}

void K(linear_attention_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const linear_attention_args *args = p;
  const int64_t parts = (args->v_dim + STATE_COLUMNS - 1) / STATE_COLUMNS, count = args->batch * args->heads * parts;
  const int64_t end = task_begin(count, task + 1, num_tasks);
  for (int64_t u = task_begin(count, task, num_tasks); u < end; u++) {
    const int64_t head = u / parts, column = u % parts * STATE_COLUMNS;
    const int64_t columns = args->v_dim - column < STATE_COLUMNS ? args->v_dim - column : STATE_COLUMNS;
    const int64_t begin = head * args->k_dim * args->v_dim + column;
    state_columns c = {.args = args, .state = args->last + begin, .column = column};
    for (int j = 0; j < STATE_VECTORS; j++) {
      const int64_t rest = columns - 16 * j;
      c.lanes[j] = rest < 0 ? 0 : rest < 16 ? rest : 16;
    }
    for (int64_t i = 0; i < args->k_dim; i++)
      memcpy(c.state + i * args->v_dim, args->state + begin + i * args->v_dim, (size_t)columns * sizeof(float));
    const int64_t batch = head / args->heads, own = head % args->heads;
    for (int64_t t = 0; t < args->steps; t++) {
      const int64_t at = (batch * args->steps + t) * args->heads + own;
      if (columns == STATE_COLUMNS) state_step(&c, at, 1);
      else state_step(&c, at, 0);
    }
  }
}

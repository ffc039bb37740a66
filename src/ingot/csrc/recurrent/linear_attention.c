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

/* Apply the decay to the state, and return state^T k in `found`. */
static inline void state_decay(const state_columns *c, int64_t at, const float *k, vf *found) {
  const linear_attention_args *args = c->args;
  const float *decay = args->decay ? args->decay + at * args->decay_dim : NULL;
  const int64_t step = args->decay_dim > 1;
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) found[j] = v_set(0);
  for (int64_t i = 0; i < args->k_dim; i++) {
    float *row = c->state + i * args->v_dim;
    const vf factor = v_set(decay ? decay[i * step] : 1), key = v_set(k[i]);
    INGOT_UNROLL
    for (int j = 0; j < STATE_VECTORS; j++) {
      const vf kept = v_mul(load_lanes(row + 16 * j, 1, c->lanes[j]), factor);
      store_lanes(row + 16 * j, 1, c->lanes[j], kept);
      found[j] = v_fma(kept, key, found[j]);
    }
  }
}

/* Step `at` of [batch, steps, heads]. */
static inline void state_step(const state_columns *c, int64_t at) {
  const linear_attention_args *args = c->args;
  const float *q = args->q + at * args->k_dim, *k = args->k + at * args->k_dim;
  const int64_t first = at * args->v_dim + c->column;
  vf added[STATE_VECTORS], sums[STATE_VECTORS];
  state_decay(c, at, k, sums);
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++) {
    added[j] = load_lanes(args->v + first + 16 * j, 1, c->lanes[j]);
    if (args->beta) added[j] = v_mul(v_sub(added[j], sums[j]), v_set(args->beta[at]));
    sums[j] = v_set(0);
  }
  for (int64_t i = 0; i < args->k_dim; i++) {
    float *row = c->state + i * args->v_dim;
    const vf key = v_set(k[i]), query = v_set(q[i]);
    INGOT_UNROLL
    for (int j = 0; j < STATE_VECTORS; j++) {
      const vf grown = v_fma(key, added[j], load_lanes(row + 16 * j, 1, c->lanes[j]));
      store_lanes(row + 16 * j, 1, c->lanes[j], grown);
      sums[j] = v_fma(grown, query, sums[j]);
    }
  }
  INGOT_UNROLL
  for (int j = 0; j < STATE_VECTORS; j++)
    store_lanes(args->out + first + 16 * j, 1, c->lanes[j], v_mul(sums[j], v_set(args->scale)));
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
    for (int64_t t = 0; t < args->steps; t++) state_step(&c, (batch * args->steps + t) * args->heads + own);
  }
}

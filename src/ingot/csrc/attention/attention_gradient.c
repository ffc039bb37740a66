/* attention_gradient.c: the gradients of q, k and v of attention without a mask. Nothing is stored by the forward pass:
 * weights are recomputed, in whole rows, for INGOT_ATTENTION_GRADIENT_ROWS rows at a time.
 *
 * A task owns heads of keys. For each it processes the query heads that read it and their rows in order, so that the
 * gradients of k and v are summed in one order: within a block as a product over its rows, then block by block. */
#include <math.h>

#include "attention/attention.h"
#include "elementwise/dropout.h"
#include "gemm/gemm.h"

#define BACK_ROWS INGOT_ATTENTION_GRADIENT_ROWS
#define BACK_SHARE 12 /* rows that are multiplied with the same number of keys: the rows of an AVX-512 tile */

/* A task's scratch. head and value: dims of a head of keys and of values, rounded up to panels. */
typedef struct {
  int64_t head, value, stride;
  float *keys_across;   /* k^T: [kv_len / 32][head_dim][32] */
  float *values_across; /* v^T: [kv_len / 32][v_dim][32] */
  float *keys;          /* k: [head / 32][kv_len][32] */
  float *d;             /* a block of d: [value / 32][BACK_ROWS][32] */
  float *q;             /* and of q: [head / 32][BACK_ROWS][32] */
  float *weights;       /* [BACK_ROWS][stride] */
  float *scores;        /* the gradients of weights, in the same layout */
  float *sums;          /* of one share of rows: [BACK_SHARE][head] */
  float *dk, *dv;       /* [kv_len][head], [kv_len][value] */
  float *kept;          /* the dropout factors of a row of weights: [kv_len] */
} back_slot;

/* A block of rows of one query head. visible[r]: how many keys row r attends to. row: the first, counted over all
 * heads. */
typedef struct {
  const float *q, *d;
  float *dq;
  int64_t rows, row;
  int64_t visible[BACK_ROWS];
} back_block;

static inline back_slot back_open(const attention_gradient_args *g, int32_t task) {
  const int64_t keys = (g->kv_len + 31) / 32 * 32;
  back_slot s = {.head = (g->head_dim + 31) / 32 * 32, .value = (g->v_dim + 31) / 32 * 32,
                 .stride = keys + INGOT_ATTENTION_PAD};
  s.keys_across = g->scratch + task * g->scratch_stride;
  s.values_across = s.keys_across + keys * g->head_dim;
  s.keys = s.values_across + keys * g->v_dim;
  s.d = s.keys + keys * s.head;
  s.q = s.d + BACK_ROWS * s.value;
  s.weights = s.q + BACK_ROWS * s.head;
  s.scores = s.weights + BACK_ROWS * s.stride;
  s.sums = s.scores + BACK_ROWS * s.stride;
  s.dk = s.sums + BACK_SHARE * s.head;
  s.dv = s.dk + keys * s.head;
  s.kept = s.dv + keys * s.value;
  return s;
}

/* Pack a matrix of k rows and n columns in panels, one after the other. */
static inline void back_pack(const float *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride, float *to,
                             int64_t panel_size) {
  for (int64_t column = 0; column < n; column += INGOT_PANEL, to += panel_size)
    K(pack_panel)(src + column * n_stride, k, n - column < INGOT_PANEL ? n - column : INGOT_PANEL, k_stride, n_stride,
                  1.0f, to);
}

/* The most keys that a row of the share from `first` on attends to. */
static inline int64_t back_reach(const back_block *b, int64_t first) {
  int64_t reach = 0;
  for (int64_t r = first; r < first + BACK_SHARE && r < b->rows; r++)
    if (b->visible[r] > reach) reach = b->visible[r];
  return reach;
}

/* to[rows, 32 panels] = a[rows, k] @ panels of b, for a share of at most BACK_SHARE rows. */
static inline void back_product(int64_t rows, int64_t panels, int64_t k, const float *a, int64_t a_stride,
                                const float *b, int64_t panel_size, float *to, int64_t to_stride) {
  const int64_t tiles = gemm_blocks(rows, a_stride);
  for (int64_t panel = 0; panel < panels; panel++) {
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t row = task_begin(rows, (int32_t)t, (int32_t)tiles);
      const gemm_product product = {
          .k = k, .a = a + row * a_stride, .a_stride = a_stride, .b = b + panel * panel_size, .b_stride = INGOT_PANEL,
          .sums = to + row * to_stride + panel * INGOT_PANEL, .sums_stride = to_stride};
      K(gemm_tile)(task_begin(rows, (int32_t)t + 1, (int32_t)tiles) - row, 1, &product);
    }
  }
}

/* to[keys, 32 panels] += a[rows, keys]^T @ panels of b[rows, ...]. */
static inline void back_add(int64_t rows, int64_t keys, int64_t panels, const float *a, int64_t a_stride,
                            const float *b, float *to, int64_t to_stride) {
  for (int64_t panel = 0; panel < panels; panel++) {
    for (int64_t key = 0; key < keys; key += GEMM_ROWS) {
      const gemm_product product = {
          .k = rows, .a = a + key, .a_stride = a_stride, .b = b + panel * BACK_ROWS * INGOT_PANEL,
          .b_stride = INGOT_PANEL, .sums = to + key * to_stride + panel * INGOT_PANEL, .sums_stride = to_stride,
          .more = 1};
      K(gemm_tile_columns)(keys - key < GEMM_ROWS ? keys - key : GEMM_ROWS, 1, &product);
    }
  }
}

/* Convert a row of `visible` unscaled scores to weights, followed by zeros up to `columns`. */
static inline void back_weights(float scale, int64_t visible, int64_t columns, float *row) {
  const vf factor = v_set(scale * INGOT_LOG2E);
  vf largest = v_set(-INFINITY), sum = v_set(0.0f);
  for (int64_t j = 0; j < visible; j += 16) {
    vf x = v_mul(v_load(row + j), factor);
    if (visible - j < 16) x = v_select(v_lt(v_load(attention_lanes), v_set((float)(visible - j))), x, v_set(-INFINITY));
    v_store(row + j, x);
    largest = v_max(largest, x);
  }
  const float most = v_max_across(largest);
  const vf shift = v_set(most == -INFINITY ? 0.0f : most);
  float total = 0.0f;
  for (int64_t j = 0; j < visible; j += 16) {
    const vf weight = attention_power(v_load(row + j), shift);
    v_store(row + j, weight);
    sum = v_add(sum, weight);
    if ((j + 16) % INGOT_REDUCE_CHUNK == 0) {
      total += v_sum(sum);
      sum = v_set(0.0f);
    }
  }
  total += v_sum(sum);
  const vf share = v_set(total == 0.0f ? 0.0f : 1.0f / total);
  int64_t j = 0;
  for (; j < visible; j += 16) v_store(row + j, v_mul(v_load(row + j), share));
  for (; j < columns; j += 16) v_store(row + j, v_set(0.0f));
}

/* Convert the gradients of a row of weights to gradients of scores: each weight times its gradient minus their weighted
 * mean. */
static inline void back_scores(int64_t visible, int64_t columns, const float *weights, float *row) {
  float mean = 0.0f;
  vf sum = v_set(0.0f);
  for (int64_t j = 0; j < visible; j += 16) {
    sum = v_fma(v_load(weights + j), v_load(row + j), sum);
    if ((j + 16) % INGOT_REDUCE_CHUNK == 0) {
      mean += v_sum(sum);
      sum = v_set(0.0f);
    }
  }
  const vf shift = v_set(mean + v_sum(sum));
  int64_t j = 0;
  for (; j < visible; j += 16) v_store(row + j, v_mul(v_load(weights + j), v_sub(v_load(row + j), shift)));
  for (; j < columns; j += 16) v_store(row + j, v_set(0.0f));
}

/* to[rows, columns] = scale * from, whose rows are adjacent panels. */
static inline void back_write(float scale, int64_t rows, int64_t columns, const float *from, int64_t from_stride,
                              float *to, int64_t to_stride) {
  const vf factor = v_set(scale);
  for (int64_t i = 0; i < rows; i++, from += from_stride, to += to_stride) {
    int64_t j = 0;
    for (; j + 16 <= columns; j += 16) v_store(to + j, v_mul(v_load(from + j), factor));
    if (j < columns) v_store_n(to + j, v_mul(v_load(from + j), factor), columns - j);
  }
}

/* Multiply a row with its dropout factors. */
static inline void back_keep(const back_slot *s, int64_t visible, float *row) {
  for (int64_t j = 0; j < visible; j += 16) v_store(row + j, v_mul(v_load(row + j), v_load(s->kept + j)));
}

/* Compute the weights of a row, and the gradients of its scores from those of its weights. A dropped weight has no
 * gradient and contributes nothing to v's. */
static inline void back_row(const attention_gradient_args *g, const back_slot *s, const back_block *b, int64_t r,
                            int64_t columns, const int drops, float *weights, float *scores) {
  back_weights(g->scale, b->visible[r], columns, weights);
  if (drops) {
    const dropout_draw draw = {(uint64_t)g->seed, (uint64_t)*g->step, g->stream, g->threshold, g->kept};
    const int64_t all = g->part ? (int64_t)*g->part * g->batch * g->heads * g->q_len : 0;
    for (int64_t j = 0; j < b->visible[r]; j += 16) v_store(s->kept + j, v_set(1.0f));
    dropout_elements(&draw, (uint64_t)((all + b->row + r) * g->kv_len), b->visible[r], s->kept, s->kept);
    back_keep(s, b->visible[r], scores);
  }
  back_scores(b->visible[r], columns, weights, scores);
  if (drops) back_keep(s, b->visible[r], weights);
}

/* Block by block: weights, their gradients, the gradients of scores, and from these the gradients of q, k and v. */
static inline void back_run(const attention_gradient_args *g, const back_slot *s, const back_block *b,
                            const int drops) {
  int64_t reach = 0;
  for (int64_t r = 0; r < b->rows; r++) reach = b->visible[r] > reach ? b->visible[r] : reach;
  const int64_t columns = (reach + 31) / 32 * 32;
  back_pack(b->q, b->rows, g->head_dim, g->q_strides[2], 1, s->q, BACK_ROWS * INGOT_PANEL);
  back_pack(b->d, b->rows, g->v_dim, g->d_strides[2], 1, s->d, BACK_ROWS * INGOT_PANEL);
  for (int64_t first = 0; first < b->rows; first += BACK_SHARE) {
    const int64_t rows = b->rows - first < BACK_SHARE ? b->rows - first : BACK_SHARE, keys = back_reach(b, first);
    float *weights = s->weights + first * s->stride, *scores = s->scores + first * s->stride;
    const int64_t panels = (keys + 31) / 32;
    back_product(rows, panels, g->head_dim, b->q + first * g->q_strides[2], g->q_strides[2], s->keys_across,
                 g->head_dim * INGOT_PANEL, weights, s->stride);
    back_product(rows, panels, g->v_dim, b->d + first * g->d_strides[2], g->d_strides[2], s->values_across,
                 g->v_dim * INGOT_PANEL, scores, s->stride);
    for (int64_t r = 0; r < rows; r++)
      back_row(g, s, b, first + r, columns, drops, weights + r * s->stride, scores + r * s->stride);
    back_product(rows, s->head / 32, keys, scores, s->stride, s->keys, g->kv_len * INGOT_PANEL, s->sums, s->head);
    back_write(g->scale, rows, g->head_dim, s->sums, s->head, b->dq + first * g->dq_strides[2], g->dq_strides[2]);
  }
  back_add(b->rows, reach, s->head / 32, s->scores, s->stride, s->q, s->dk, s->head);
  back_add(b->rows, reach, s->value / 32, s->weights, s->stride, s->d, s->dv, s->value);
}

/* All query heads and rows that read one head of keys. */
static inline void back_head(const attention_gradient_args *g, const back_slot *s, int64_t batch, int64_t kv_head,
                             const int drops) {
  const int64_t group = g->heads / g->kv_heads;
  const float *k = g->k + batch * g->k_strides[0] + kv_head * g->k_strides[1];
  const float *v = g->v + batch * g->v_strides[0] + kv_head * g->v_strides[1];
  back_pack(k, g->head_dim, g->kv_len, 1, g->k_strides[2], s->keys_across, g->head_dim * INGOT_PANEL);
  back_pack(v, g->v_dim, g->kv_len, 1, g->v_strides[2], s->values_across, g->v_dim * INGOT_PANEL);
  back_pack(k, g->kv_len, g->head_dim, g->k_strides[2], 1, s->keys, g->kv_len * INGOT_PANEL);
  for (int64_t i = 0; i < g->kv_len * s->head; i += 16) v_store(s->dk + i, v_set(0.0f));
  for (int64_t i = 0; i < g->kv_len * s->value; i += 16) v_store(s->dv + i, v_set(0.0f));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
    for (int64_t row = 0; row < g->q_len; row += BACK_ROWS) {
      back_block b = {g->q + batch * g->q_strides[0] + head * g->q_strides[1] + row * g->q_strides[2],
                      g->d + batch * g->d_strides[0] + head * g->d_strides[1] + row * g->d_strides[2],
                      g->dq + batch * g->dq_strides[0] + head * g->dq_strides[1] + row * g->dq_strides[2],
                      g->q_len - row < BACK_ROWS ? g->q_len - row : BACK_ROWS,
                      (batch * g->heads + head) * g->q_len + row, {0}};
      for (int64_t r = 0; r < b.rows; r++) {
        int64_t visible = g->kv_len;
        if (g->causal && g->causal_offset < visible - row - r) visible = row + r + g->causal_offset + 1;
        if (visible > g->kv_len) visible = g->kv_len;
        b.visible[r] = visible > 0 ? visible : 0;
      }
      back_run(g, s, &b, drops);
    }
  }
  back_write(g->scale, g->kv_len, g->head_dim, s->dk, s->head,
             g->dk + batch * g->dk_strides[0] + kv_head * g->dk_strides[1], g->dk_strides[2]);
  back_write(1.0f, g->kv_len, g->v_dim, s->dv, s->value,
             g->dv + batch * g->dv_strides[0] + kv_head * g->dv_strides[1], g->dv_strides[2]);
}

static inline void back_task(const attention_gradient_args *g, const int drops, int32_t task, int32_t num_tasks) {
  const back_slot slot = back_open(g, task);
  const int64_t count = g->batch * g->kv_heads, end = task_begin(count, task + 1, num_tasks);
  for (int64_t i = task_begin(count, task, num_tasks); i < end; i++)
    back_head(g, &slot, i / g->kv_heads, i % g->kv_heads, drops);
}

void K(attention_gradient_f32)(const void *args, int32_t task, int32_t num_tasks) {
  back_task(args, 0, task, num_tasks);
}

void K(attention_dropout_gradient_f32)(const void *args, int32_t task, int32_t num_tasks) {
  back_task(args, 1, task, num_tasks);
}

#undef BACK_ROWS
#undef BACK_SHARE

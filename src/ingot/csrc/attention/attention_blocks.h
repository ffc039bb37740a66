/* attention_blocks.h: blocks of rows that read the same keys, their division into tasks, masks and results. */
#ifndef INGOT_ATTENTION_BLOCKS_H
#define INGOT_ATTENTION_BLOCKS_H

#include "attention/attention.h"
#include "gemm/gemm.h"

#define ATTENTION_MOST 32 /* rows of a block */

/* The division of the rows of a key head into `blocks` of at most `most` rows: per_head blocks for each of its
 * `group` query heads; or, where heads_each is more than 1, one block for up to heads_each query heads. */
typedef struct { int64_t most, group, heads_each, per_head, blocks; } attention_cut;

/* Rows [row, row + rows) of query heads from `head` on. Row r of the block is row `at[r]` of query head `of[r]`; its
 * largest score so far is largest[r], and its weights add up to total[r]. */
typedef struct {
  int64_t batch, head, row, rows, count;
  float *sums;
  int32_t of[ATTENTION_MOST], at[ATTENTION_MOST];
  float largest[ATTENTION_MOST], total[ATTENTION_MOST];
} attention_block;

static inline attention_cut attention_plan(const attention_args *g, int64_t most) {
  attention_cut c = {.most = most, .group = g->heads / g->kv_heads, .heads_each = 1};
  if (g->q_len > 0 && g->q_len <= most / 2) c.heads_each = most / g->q_len;
  c.per_head = (g->q_len + most - 1) / most;
  c.blocks = c.heads_each > 1 ? (c.group + c.heads_each - 1) / c.heads_each : c.group * c.per_head;
  return c;
}

/* Return the number of columns in [begin, end) that a causal mask leaves visible to a row. */
static inline int64_t attention_visible(const attention_args *g, int64_t row, int64_t begin, int64_t end) {
  const int64_t end_visible = g->causal && g->causal_offset < end - row ? row + g->causal_offset + 1 : end;
  return end_visible > begin ? end_visible - begin : 0;
}

/* The element of the mask for row r of a block and column j. */
static inline int64_t attention_mask_at(const attention_args *g, const attention_block *b, int64_t r, int64_t j) {
  return b->batch * g->mask_strides[0] + b->of[r] * g->mask_strides[1] + b->at[r] * g->mask_strides[2] +
         j * g->mask_strides[3];
}

/* The float mask's contribution to scores. */
static inline vf attention_added(const attention_args *g, const float *mask, int64_t lanes) {
  float m[16];
  if (lanes < 16 || g->mask_strides[3] != 1) {
    for (int64_t l = 0; l < 16; l++) m[l] = l < lanes ? mask[l * g->mask_strides[3]] : 0.0f;
    mask = m;
  }
  /* The lowest float is often used as a mask and must not become -inf. */
  const vf added = v_load(mask), low = v_set(-0x1.fffffep+127f), scaled = v_mul(added, v_set(INGOT_LOG2E));
  return v_select(v_lt(added, low), added, v_max(low, scaled));
}

/* Scores where the boolean mask is true, else -inf. */
static inline vf attention_kept(const attention_args *g, vf score, const uint8_t *mask, int64_t lanes) {
  float m[16];
  for (int64_t l = 0; l < 16; l++) m[l] = l < lanes && mask[l * g->mask_strides[3]] ? 1.0f : 0.0f;
  return v_select(v_eq(v_load(m), v_set(0.0f)), v_set(-INFINITY), score);
}

/* Apply the mask from an element on to `lanes` scores; lanes after them get -inf. */
static inline vf attention_mask(const attention_args *g, vf score, int64_t element, int64_t lanes) {
  switch (g->mask_kind) {
    case INGOT_MASK_BOOL: score = attention_kept(g, score, (const uint8_t *)g->mask + element, lanes); break;
    case INGOT_MASK_FLOAT: score = v_add(score, attention_added(g, (const float *)g->mask + element, lanes)); break;
  }
  if (lanes < 16) score = v_select(v_lt(v_load(attention_lanes), v_set((float)lanes)), score, v_set(-INFINITY));
  return score;
}

/* out = sums / total; zeros or NaN in a row without visible columns or with NaN. Strides: of rows and of 32 columns. */
static inline void attention_store(const attention_args *g, const attention_block *b, int64_t row_stride,
                                   int64_t panel_stride) {
  for (int64_t r = 0; r < b->count; r++) {
    const float total = b->total[r];
    const int is_nan = total != total || (total == 0.0f && !g->safe);
    const vf nothing = v_set(is_nan && !g->zero_nan ? NAN : 0.0f);
    const float *sums = b->sums + r * row_stride;
    const int64_t at = b->batch * g->out_strides[0] + b->of[r] * g->out_strides[1] + b->at[r] * g->out_strides[2];
    float *out = g->out + at;
    for (int64_t j = 0; j < g->v_dim; j += 16) {
      const float *from = sums + j / INGOT_PANEL * panel_stride + j % INGOT_PANEL;
      const vf v = is_nan || total == 0.0f ? nothing : v_div(v_load(from), v_set(total));
      switch (g->rounds) {
        case INGOT_ROUNDED: epilogue_round(v, g->v_dim - j, (uint16_t *)(void *)g->out + at + j); continue;
      }
      if (g->v_dim - j < 16)
        v_store_n(out + j, v, g->v_dim - j);
      else
        v_store(out + j, v);
    }
  }
}

/* Block `index` of a head of keys. */
static inline attention_block attention_begin(const attention_args *g, const attention_cut *cut, int64_t index,
                                              float *sums) {
  const int64_t keys = index / cut->blocks, block = index % cut->blocks;
  attention_block b = {.batch = keys / g->kv_heads, .head = keys % g->kv_heads * cut->group, .sums = sums};
  if (cut->heads_each > 1) {
    const int64_t first = task_begin(cut->group, (int32_t)block, (int32_t)cut->blocks);
    b.rows = g->q_len;
    b.count = (task_begin(cut->group, (int32_t)block + 1, (int32_t)cut->blocks) - first) * b.rows;
    b.head += first;
  } else {
    b.head += block / cut->per_head;
    b.row = block % cut->per_head * cut->most;
    b.rows = b.count = g->q_len - b.row < cut->most ? g->q_len - b.row : cut->most;
  }
  for (int64_t r = 0, head = b.head; r < b.count; head++) {
    for (int64_t row = b.row; row < b.row + b.rows; row++, r++) {
      b.of[r] = (int32_t)head;
      b.at[r] = (int32_t)row;
    }
  }
  for (int64_t r = 0; r < ATTENTION_MOST; r++) b.largest[r] = -INFINITY;
  return b;
}

/* The cost of a block, in rows times columns. */
static inline int64_t attention_cost(const attention_args *g, const attention_cut *cut, int64_t block) {
  const attention_block b = attention_begin(g, cut, block, NULL);
  return b.count * (attention_visible(g, b.row + b.rows - 1, 0, g->kv_len) + INGOT_PANEL);
}

/* The first block of a task, such that tasks cost about the same. Every head of keys costs the same. */
static inline int64_t attention_share(const attention_args *g, const attention_cut *cut, int32_t task,
                                      int32_t num_tasks) {
  int64_t head_cost = 0, block = 0;
  for (int64_t i = 0; i < cut->blocks; i++) head_cost += attention_cost(g, cut, i);
  if (head_cost == 0) return 0;
  const int64_t heads = g->batch * g->kv_heads, share = heads * head_cost * task / num_tasks;
  int64_t rest = share % head_cost;
  while (rest > 0 && 2 * rest > attention_cost(g, cut, block)) rest -= attention_cost(g, cut, block++);
  return share / head_cost * cut->blocks + block;
}

/* The same arguments with head_dim and the strides along it counted in pairs. */
static inline attention_args attention_in_pairs(const attention_args *g) {
  attention_args pairs = *g;
  pairs.head_dim /= 2;
  for (int i = 0; i < 3; i++) {
    pairs.q_strides[i] /= 2;
    pairs.k_strides[i] /= 2;
  }
  return pairs;
}

#endif

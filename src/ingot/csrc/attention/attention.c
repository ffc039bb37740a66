/* attention.c: out = softmax(scale * q @ k^T + mask) @ v, a block of query rows at a time.
 *
 * Columns (keys) are processed in tiles: attention_f32 has one tile of kv_len columns, attention_f32_online tiles of
 * INGOT_KV_TILE whose partial results are rescaled to the largest score so far (online softmax: Milakov and Gimelshein,
 * 2018). A block is up to 24 rows that read the same keys: rows of one query head, or, where a head has few rows,
 * several heads of a group (Ainslie et al., "GQA", 2023). A causal block reads keys up to its last row's diagonal. All
 * of this depends on shapes only. Scores are in units of log2(e), so that a weight is a power of two; a masked score is
 * -inf and its weight exactly 0.
 *
 * attention_bf16 multiplies pairs of bf16, each stored in the space of a float: in queries and keys pairs along
 * head_dim, in weights and values along the columns. Scores are scaled after the product; weights are rounded for the
 * second product, but not for their sum. */
#include <math.h>
#include <string.h>

#include "attention/attention_blocks.h"
#include "elementwise/dropout.h"

#define ATTENTION_ROWS INGOT_ATTENTION_ROWS
#define ATTENTION_HALF 12 /* rows that are multiplied with the same number of values: the rows of an AVX-512 tile */
#define ATTENTION_BLOCKS INGOT_ATTENTION_BLOCKS
#define ATTENTION_FEW INGOT_ATTENTION_FEW

/* The element type: floats, or pairs of bf16, which `pairs` packs; scores of pairs are scaled after the product, and
 * their weights rounded. drop: applies dropout to the first weights of row r of a block, from a column on; or null. */
typedef struct {
  void (*tile)(int64_t rows, int64_t panels, const gemm_product *p);
  void (*pairs)(const uint16_t *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride, float *panel);
  void (*scale)(const attention_args *g, const gemm_product *p, int64_t rows, int64_t panels);
  void (*narrow)(int64_t columns, float *weights);
  void (*drop)(const attention_args *g, const attention_block *b, int64_t r, int64_t begin, int64_t count, float *w);
} attention_form;

/* A task's scratch slot, and the keys and values that are packed in it. head_dim counts floats or pairs. */
typedef struct {
  attention_form form;
  float *queries;  /* [24][q_stride]: q; for floats scale * log2(e) * q */
  float *keys;     /* packed k^T: [tile / 32][head_dim][32], or a few panels of it */
  float *values;   /* a partial last panel of v: [tile][32]; of pairs all panels: [v_dim / 32][tile / 2][32] */
  float *scores;   /* [24][score_stride] */
  float *sums;     /* [16 * 24][v_stride]: weights @ v so far */
  float *addend;   /* [24][v_stride]: weights @ v of one tile */
  int64_t q_stride, score_stride, v_stride;
  int64_t value_stride;               /* floats from a panel of values to the next */
  int keep;                           /* whether several blocks read the packed tile */
  int64_t head, begin;                /* the packed tile: this head of keys from column `begin` on, */
  int64_t packed_keys, packed_values; /* so many of its columns */
} attention_slot;

/* The causal view of a tile of keys. visible[r]: how many of its first columns row r of the block attends to. reach:
 * how many columns are multiplied for the first and for the second half of the rows: the most visible to one. */
typedef struct { int64_t visible[ATTENTION_ROWS], reach[2]; } attention_view;

static inline attention_slot attention_open(const attention_args *g, attention_form form, int64_t tile, int keep,
                                            int32_t task) {
  attention_slot s = {.form = form, .keep = keep, .head = -1};
  const int64_t columns = (tile + 31) / 32 * 32;
  const int64_t rows = g->heads / g->kv_heads * g->q_len, few = ATTENTION_FEW * INGOT_PANEL;
  s.v_stride = (g->v_dim + 31) / 32 * 32;
  s.q_stride = (g->head_dim + 15) / 16 * 16;
  s.score_stride = columns + INGOT_ATTENTION_PAD;
  s.value_stride = form.pairs ? columns / 2 * INGOT_PANEL : INGOT_PANEL;
  s.queries = g->scratch + task * g->scratch_stride;
  s.scores = s.queries + ATTENTION_ROWS * s.q_stride;
  s.addend = s.scores + (rows < ATTENTION_ROWS ? rows : ATTENTION_ROWS) * s.score_stride;
  s.sums = s.addend + ATTENTION_ROWS * s.v_stride;
  s.keys = s.sums + (tile < g->kv_len ? ATTENTION_BLOCKS : 1) * ATTENTION_ROWS * s.v_stride;
  s.values = s.keys + (keep || columns < few ? columns : few) * g->head_dim;
  return s;
}

/* Copy the block's rows of q to the slot; floats are scaled. */
static inline void attention_queries(const attention_args *g, const attention_slot *s, const attention_block *b) {
  const vf scale = v_set(g->scale * INGOT_LOG2E);
  for (int64_t r = 0; r < b->count; r++) {
    const float *q = g->q + b->batch * g->q_strides[0] + b->of[r] * g->q_strides[1] + b->at[r] * g->q_strides[2];
    float *to = s->queries + r * s->q_stride;
    for (int64_t j = 0; j < g->head_dim; j += 16) {
      const int64_t lanes = g->head_dim - j;
      const vf v = lanes < 16 ? v_load_n(q + j, lanes) : v_load(q + j);
      v_store(to + j, s->form.pairs ? v : v_mul(v, scale));
    }
  }
}

/* Panel `panel` of the tile's keys; it is packed now unless it already is. `count` columns are in the tile. */
static inline float *attention_keys(const attention_args *g, attention_slot *s, const float *k, int64_t panel,
                                    int64_t count) {
  const int64_t column = panel * INGOT_PANEL, columns = count - column;
  float *keys = s->keys + (s->keep ? panel : panel % ATTENTION_FEW) * INGOT_PANEL * g->head_dim;
  if (s->packed_keys <= column && s->form.pairs) {
    s->form.pairs((const uint16_t *)(const void *)(k + column * g->k_strides[2]), 2 * g->head_dim,
                       columns < INGOT_PANEL ? columns : INGOT_PANEL, 1, 2 * g->k_strides[2], keys);
    s->packed_keys = column + INGOT_PANEL;
  } else if (s->packed_keys <= column) {
    K(pack_panel)(k + column * g->k_strides[2], g->head_dim, columns < INGOT_PANEL ? columns : INGOT_PANEL, 1,
                  g->k_strides[2], 1.0f, keys);
    s->packed_keys = column + INGOT_PANEL;
  }
  return keys;
}

/* Scale the scores of pairs; for floats the queries are scaled instead. */
static inline void attention_scale(const attention_args *g, const gemm_product *p, int64_t rows, int64_t panels) {
  const vf scale = v_set(g->scale * INGOT_LOG2E);
  for (int64_t i = 0; i < rows; i++) {
    float *row = p->sums + i * p->sums_stride;
    for (int64_t j = 0; j < panels * INGOT_PANEL; j += 16) v_store(row + j, v_mul(v_load(row + j), scale));
  }
}

/* scores = queries @ k^T, for tiles in which some row attends to a column of the panel. */
static inline void attention_scores(const attention_args *g, attention_slot *s, const attention_block *b,
                                    const attention_view *view, const float *k, int64_t count) {
  const int64_t blocks = gemm_blocks(b->count, s->q_stride);
  const int64_t together = b->count <= ATTENTION_FEW ? ATTENTION_FEW : 1;
  const int64_t reach = view->reach[0] > view->reach[1] ? view->reach[0] : view->reach[1];
  const int64_t panels = (reach + INGOT_PANEL - 1) / INGOT_PANEL;
  for (int64_t panel = 0; panel < panels; panel += together) {
    const int64_t width = panels - panel < together ? panels - panel : together;
    const float *keys = attention_keys(g, s, k, panel, count);
    for (int64_t i = 1; i < width; i++) attention_keys(g, s, k, panel + i, count);
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = task_begin(b->count, (int32_t)block, (int32_t)blocks);
      const int64_t end = task_begin(b->count, (int32_t)block + 1, (int32_t)blocks);
      int64_t visible = 0;
      for (int64_t r = row; r < end; r++) visible = view->visible[r] > visible ? view->visible[r] : visible;
      if (visible <= panel * INGOT_PANEL) continue;
      const gemm_product product = {
        .k = g->head_dim, .a = s->queries + row * s->q_stride, .a_stride = s->q_stride, .b = keys,
        .b_stride = INGOT_PANEL, .panel_stride = INGOT_PANEL * g->head_dim,
        .sums = s->scores + row * s->score_stride + panel * INGOT_PANEL, .sums_stride = s->score_stride};
      s->form.tile(end - row, width, &product);
      if (s->form.scale) s->form.scale(g, &product, end - row, width);
    }
  }
}

/* Mask scores[0, visible) of row r; return the largest. */
static inline float attention_largest(const attention_args *g, const attention_block *b, int64_t r, int64_t begin,
                                      int64_t visible, float *scores) {
  const int64_t mask = attention_mask_at(g, b, r, begin);
  vf largest = v_set(-INFINITY);
  int64_t j = 0;
  if (g->mask_kind == INGOT_MASK_NONE)
    for (; j + 16 <= visible; j += 16) largest = v_max(largest, v_load(scores + j));
  for (; j < visible; j += 16) {
    const int64_t lanes = visible - j < 16 ? visible - j : 16;
    const vf score = attention_mask(g, v_load(scores + j), mask + j * g->mask_strides[3], lanes);
    v_store(scores + j, score);
    largest = v_max(largest, score);
  }
  return v_max_across(largest);
}

/* scores[0, visible) become 2^(score - shift), the rest of [0, columns) zeros; returns their sum. */
static inline float attention_weights(float shift, int64_t visible, int64_t columns, float *scores) {
  float total = 0.0f;
  vf sum = v_set(0.0f);
  const vf shifts = v_set(shift);
  int64_t j = 0;
  for (; j < visible; j += 16) {
    const vf weight = attention_power(v_load(scores + j), shifts);
    v_store(scores + j, weight);
    sum = v_add(sum, weight);
    if ((j + 16) % INGOT_REDUCE_CHUNK == 0) {
      total += v_sum(sum);
      sum = v_set(0.0f);
    }
  }
  for (; j < columns; j += 16) v_store(scores + j, v_set(0.0f));
  return total + v_sum(sum);
}

/* Round a row of weights to pairs, in place. */
static inline void attention_narrow(int64_t columns, float *weights) {
  for (int64_t j = 0; j < columns; j += 16) {
    uint16_t pairs[16];
    v_store_bf16(pairs, v_load(weights + j));
    memcpy(weights + j / 2, pairs, sizeof pairs);
  }
}

/* Apply dropout to weights after they were summed; the index of a weight selects its random number. */
static inline void attention_drop(const attention_args *g, const attention_block *b, int64_t r, int64_t begin,
                                  int64_t count, float *weights) {
  const dropout_draw draw = {(uint64_t)g->seed, (uint64_t)*g->step, g->stream, g->threshold, g->kept};
  const int64_t row = (b->batch * g->heads + b->of[r]) * g->q_len + b->at[r];
  const int64_t all = g->part ? (int64_t)*g->part * g->batch * g->heads * g->q_len : 0;
  dropout_elements(&draw, (uint64_t)((all + row) * g->kv_len + begin), count, weights, weights);
}

/* Convert the block's scores to weights; fade gets the factor for the sums of earlier tiles. */
static inline void attention_softmax(const attention_args *g, const attention_slot *s, attention_block *b,
                                     const attention_view *view, int64_t begin, float *fade) {
  float shift[32] = {0}, total[32] = {0};
  vf before[2] = {v_load(b->largest), v_load(b->largest + 16)};
  for (int64_t half = 0; half * ATTENTION_HALF < b->count; half++) {
    const int64_t first = half * ATTENTION_HALF, columns = (view->reach[half] + 15) / 16 * 16;
    const int64_t end = b->count - first < ATTENTION_HALF ? b->count : first + ATTENTION_HALF;
    for (int64_t r = first; r < end; r++) {
      const float largest = attention_largest(g, b, r, begin, view->visible[r], s->scores + r * s->score_stride);
      if (largest > b->largest[r]) b->largest[r] = largest;
      if (b->largest[r] != -INFINITY) shift[r] = b->largest[r];
    }
    for (int64_t r = first; r < end; r++) {
      total[r] = attention_weights(shift[r], view->visible[r], columns, s->scores + r * s->score_stride);
      if (s->form.drop) s->form.drop(g, b, r, begin, view->visible[r], s->scores + r * s->score_stride);
      if (s->form.narrow) s->form.narrow(columns, s->scores + r * s->score_stride);
    }
  }
  for (int64_t i = 0; i < 2; i++) {
    const vf faded = attention_power(before[i], v_load(shift + 16 * i));
    v_store(b->total + 16 * i, v_fma(v_load(b->total + 16 * i), faded, v_load(total + 16 * i)));
    v_store(fade + 16 * i, faded);
  }
}

/* The partial last panel of v, packed up to column `count` of the tile. */
static inline float *attention_values(const attention_args *g, attention_slot *s, const float *v, int64_t count) {
  const int64_t from = s->packed_values, column = g->v_dim / INGOT_PANEL * INGOT_PANEL;
  if (from < count) {
    K(pack_panel)(v + from * g->v_strides[2] + column, count - from, g->v_dim - column, g->v_strides[2], 1, 1.0f,
                  s->values + from * INGOT_PANEL);
    s->packed_values = count;
  }
  return s->values;
}

/* All of v as pairs, packed up to column `count` of the tile. v points to its first element. */
static inline float *attention_pairs(const attention_args *g, attention_slot *s, const uint16_t *v, int64_t count) {
  const int64_t from = s->packed_values / 2 * 2;
  if (s->packed_values < count) {
    for (int64_t column = 0; column < g->v_dim; column += INGOT_PANEL) {
      const int64_t columns = g->v_dim - column < INGOT_PANEL ? g->v_dim - column : INGOT_PANEL;
      s->form.pairs(v + from * g->v_strides[2] + column, count - from, columns, g->v_strides[2], 1,
                         s->values + column / INGOT_PANEL * s->value_stride + from / 2 * INGOT_PANEL);
    }
    s->packed_values = count;
  }
  return s->values;
}

/* to = weights @ panels of values, for the columns that each half of the block attends to. */
static inline void attention_mix(const attention_slot *s, const attention_block *b, const attention_view *view,
                                 int64_t panels, int32_t halved, const float *values, int64_t stride, float *to) {
  const int64_t together = b->count <= ATTENTION_FEW ? panels : 1;
  for (int64_t panel = 0; panel < panels; panel += together) {
    for (int64_t first = 0, half = 0; first < b->count; first += ATTENTION_HALF, half++) {
      const int64_t rows = b->count - first < ATTENTION_HALF ? b->count - first : ATTENTION_HALF;
      const int64_t tiles = gemm_blocks(rows, s->score_stride);
      for (int64_t t = 0; t < tiles; t++) {
        const int64_t row = first + task_begin(rows, (int32_t)t, (int32_t)tiles);
        const int64_t end = first + task_begin(rows, (int32_t)t + 1, (int32_t)tiles);
        const gemm_product product = {
            .k = s->form.pairs ? (view->reach[half] + 1) / 2 : view->reach[half],
            .a = s->scores + row * s->score_stride, .a_stride = s->score_stride,
            .b = values + panel * s->value_stride, .b_stride = stride, .panel_stride = s->value_stride,
            .sums = to + row * s->v_stride + panel * INGOT_PANEL, .sums_stride = s->v_stride, .halved = halved};
        s->form.tile(end - row, together, &product);
      }
    }
  }
}

/* The block's view of columns [begin, end). */
static inline attention_view attention_view_of(const attention_args *g, const attention_block *b, int64_t begin,
                                            int64_t end) {
  attention_view view = {.reach = {0, 0}};
  for (int64_t r = 0; r < b->count; r++) {
    view.visible[r] = attention_visible(g, b->at[r], begin, end);
    if (view.visible[r] > view.reach[r / ATTENTION_HALF]) view.reach[r / ATTENTION_HALF] = view.visible[r];
  }
  return view;
}

/* Add columns [begin, end) to the block's sums. */
static inline void attention_tile(const attention_args *g, attention_slot *s, attention_block *b, int64_t begin,
                                  int64_t end) {
  const attention_view view = attention_view_of(g, b, begin, end);
  if (begin > 0 && view.reach[0] == 0 && view.reach[1] == 0) return;
  const int64_t kv_head = b->head / (g->heads / g->kv_heads);
  const float *k = g->k + b->batch * g->k_strides[0] + kv_head * g->k_strides[1] + begin * g->k_strides[2];
  const int64_t v_at = b->batch * g->v_strides[0] + kv_head * g->v_strides[1] + begin * g->v_strides[2];
  if (!s->keep || s->head != b->batch * g->kv_heads + kv_head || s->begin != begin) {
    s->packed_keys = s->packed_values = 0;
    s->head = b->batch * g->kv_heads + kv_head;
    s->begin = begin;
  }
  float fade[32];
  attention_queries(g, s, b);
  attention_scores(g, s, b, &view, k, end - begin);
  attention_softmax(g, s, b, &view, begin, fade);
  float *to = begin == 0 ? b->sums : s->addend;
  const int64_t whole = g->v_dim / INGOT_PANEL, reach = view.reach[0] > view.reach[1] ? view.reach[0] : view.reach[1];
  const float *values =
      s->form.pairs ? attention_pairs(g, s, (const uint16_t *)(const void *)g->v + v_at, reach) : g->v + v_at;
  attention_mix(s, b, &view, whole, 0, values, s->form.pairs ? INGOT_PANEL : g->v_strides[2], to);
  if (g->v_dim % INGOT_PANEL) {
    const float *last = s->form.pairs ? values + whole * s->value_stride
                                           : attention_values(g, s, g->v + v_at, reach);
    attention_mix(s, b, &view, 1, g->v_dim % INGOT_PANEL <= INGOT_PANEL / 2, last, INGOT_PANEL,
                  to + whole * INGOT_PANEL);
  }
  if (begin == 0) return;
  for (int64_t r = 0; r < b->count; r++) {
    for (int64_t j = r * s->v_stride; j < (r + 1) * s->v_stride; j += 16)
      v_store(b->sums + j, v_fma(v_load(b->sums + j), v_set(fade[r]), v_load(s->addend + j)));
  }
}

/* Blocks are in the order batch, head of keys, query head, row; a task owns adjacent blocks that share keys. */
static inline void attention_run(const attention_args *g, attention_form form, int64_t tile, int32_t task,
                                 int32_t num_tasks) {
  const attention_cut cut = attention_plan(g, ATTENTION_ROWS);
  attention_slot slot = attention_open(g, form, tile, cut.blocks > 1, task);
  const int64_t end = attention_share(g, &cut, task + 1, num_tasks), most = tile < g->kv_len ? ATTENTION_BLOCKS : 1;
  for (int64_t index = attention_share(g, &cut, task, num_tasks); index < end;) {
    attention_block group[ATTENTION_BLOCKS];
    const int64_t head_end = (index / cut.blocks + 1) * cut.blocks < end ? (index / cut.blocks + 1) * cut.blocks : end;
    const int64_t count = head_end - index < most ? head_end - index : most;
    for (int64_t i = 0; i < count; i++)
      group[i] = attention_begin(g, &cut, index + i, slot.sums + i * ATTENTION_ROWS * slot.v_stride);
    for (int64_t begin = 0; begin < g->kv_len; begin += tile) {
      const int64_t tile_end = g->kv_len - begin < tile ? g->kv_len : begin + tile;
      for (int64_t i = 0; i < count; i++) attention_tile(g, &slot, &group[i], begin, tile_end);
    }
    for (int64_t i = 0; i < count; i++) attention_store(g, &group[i], slot.v_stride, INGOT_PANEL);
    index += count;
  }
}

void K(attention_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args *g = args;
  attention_run(g, (attention_form){.tile = K(gemm_tile)}, g->kv_len, task, num_tasks);
}

void K(attention_f32_online)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args *g = args;
  const int64_t tile = g->kv_len < INGOT_KV_TILE ? g->kv_len : INGOT_KV_TILE;
  attention_run(g, (attention_form){.tile = K(gemm_tile)}, tile, task, num_tasks);
}

void K(attention_dropout_f32)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args *g = args;
  attention_run(g, (attention_form){.tile = K(gemm_tile), .drop = attention_drop}, g->kv_len, task, num_tasks);
}

void K(attention_dropout_f32_online)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args *g = args;
  const int64_t tile = g->kv_len < INGOT_KV_TILE ? g->kv_len : INGOT_KV_TILE;
  attention_run(g, (attention_form){.tile = K(gemm_tile), .drop = attention_drop}, tile, task, num_tasks);
}

static inline attention_form attention_of_pairs(void) {
  return (attention_form){K(gemm_tile_dots), K(pack_pairs), attention_scale, attention_narrow, NULL};
}

void K(attention_bf16)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args g = attention_in_pairs(args);
  attention_run(&g, attention_of_pairs(), g.kv_len, task, num_tasks);
}

void K(attention_bf16_online)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args g = attention_in_pairs(args);
  const int64_t tile = g.kv_len < INGOT_KV_TILE ? g.kv_len : INGOT_KV_TILE;
  attention_run(&g, attention_of_pairs(), tile, task, num_tasks);
}

#undef ATTENTION_ROWS
#undef ATTENTION_HALF
#undef ATTENTION_BLOCKS
#undef ATTENTION_FEW

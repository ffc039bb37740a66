/* attention_tiles.c: attention_bf16_tiles, the online algorithm of attention.c with split sums, in products of 32 rows.
 * Scores are stored in the panels in which products are summed; weights replace them in place. */
#include <math.h>

#include "gemm/split_sums.h"
#include "attention/attention_blocks.h"

#if defined(INGOT_LIBRARY)
#define ATTEND_SUMS (SPLIT_ROWS * INGOT_PANEL)
#define ATTEND_PANEL (ATTEND_SUMS + INGOT_PANEL) /* floats from a panel of scores to the next: no power of two */
#define ATTEND_PANELS (INGOT_KV_TILE / INGOT_PANEL)

/* A task's scratch, and the keys and values that are packed in it; head_dim is counted in pairs. */
typedef struct {
  const attention_args *g;
  int64_t width;    /* pairs of queries and keys, zero-padded */
  int64_t v_panels;
  float *queries;   /* [32][width] */
  float *keys;      /* [panels][width][32] */
  float *values;    /* [v_panels][panels][16][32] */
  float *scores;    /* [panels], of [32][32]; weights are rows of 32 bf16 at the beginning of these */
  float *addend;    /* [v_panels][32][32]: weights @ v of a tile */
  float *sums;      /* [blocks][v_panels][32][32]: of all tiles so far */
  int64_t panels;   /* of a whole tile */
  int64_t head, begin, packed_keys, packed_values; /* the packed tile: panels of this head of keys from `begin` on */
  int64_t offsets[ATTEND_PANELS]; /* of panels of scores */
} attend_task;

static inline attend_task attend_open(const attention_args *g, int32_t task) {
  const int64_t tile = g->kv_len < INGOT_KV_TILE ? g->kv_len : INGOT_KV_TILE;
  attend_task t = {.g = g, .head = -1, .width = (g->head_dim + SPLIT_PAIRS - 1) / SPLIT_PAIRS * SPLIT_PAIRS};
  t.panels = (tile + INGOT_PANEL - 1) / INGOT_PANEL;
  t.v_panels = (g->v_dim + INGOT_PANEL - 1) / INGOT_PANEL;
  t.queries = g->scratch + task * g->scratch_stride;
  t.keys = t.queries + SPLIT_ROWS * t.width;
  t.values = t.keys + t.panels * t.width * INGOT_PANEL;
  t.scores = t.values + t.v_panels * t.panels * SPLIT_PAIRS * INGOT_PANEL;
  t.addend = t.scores + t.panels * ATTEND_PANEL;
  t.sums = t.addend + t.v_panels * ATTEND_SUMS;
  for (int64_t i = 0; i < t.panels; i++) t.offsets[i] = i * ATTEND_PANEL;
  return t;
}

static inline void attend_zero(float *to, int64_t rows) {
  for (int64_t i = 0; i < rows * INGOT_PANEL; i += 16) v_store(to + i, v_set(0.0f));
}

static inline void attend_queries(const attend_task *t, const attention_block *b) {
  const attention_args *g = t->g;
  for (int64_t r = 0; r < b->count; r++) {
    const float *q = g->q + b->batch * g->q_strides[0] + b->of[r] * g->q_strides[1] + b->at[r] * g->q_strides[2];
    for (int64_t j = 0; j < g->head_dim; j += 16) {
      const int64_t lanes = g->head_dim - j;
      v_store(t->queries + r * t->width + j, lanes < 16 ? v_load_n(q + j, lanes) : v_load(q + j));
    }
  }
}

/* Pack panels of keys up to `panels`, of `count` columns in the tile. k points to its first. */
static inline void attend_keys(attend_task *t, const float *k, int64_t panels, int64_t count) {
  const attention_args *g = t->g;
  for (; t->packed_keys < panels; t->packed_keys++) {
    const int64_t column = t->packed_keys * INGOT_PANEL, columns = count - column;
    float *to = t->keys + column * t->width;
    K(pack_pairs)((const uint16_t *)(const void *)(k + column * g->k_strides[2]), 2 * g->head_dim,
                  columns < INGOT_PANEL ? columns : INGOT_PANEL, 1, 2 * g->k_strides[2], to);
    attend_zero(to + g->head_dim * INGOT_PANEL, t->width - g->head_dim);
  }
}

/* Pack values in the same way: rows of them, then zeros. */
static inline void attend_values(attend_task *t, const uint16_t *v, int64_t panels, int64_t count) {
  const attention_args *g = t->g;
  for (; t->packed_values < panels; t->packed_values++) {
    const int64_t row = t->packed_values * INGOT_PANEL, rows = count - row < INGOT_PANEL ? count - row : INGOT_PANEL;
    for (int64_t i = 0; i < t->v_panels; i++) {
      const int64_t column = i * INGOT_PANEL, columns = g->v_dim - column, pairs = (rows + 1) / 2;
      float *to = t->values + (i * t->panels + t->packed_values) * SPLIT_PAIRS * INGOT_PANEL;
      K(pack_pairs)(v + row * g->v_strides[2] + column, rows, columns < INGOT_PANEL ? columns : INGOT_PANEL,
                    g->v_strides[2], 1, to);
      attend_zero(to + pairs * INGOT_PANEL, SPLIT_PAIRS - pairs);
    }
  }
}

/* Row r's scores in one half of a panel. */
static inline float *attend_scores(const attend_task *t, int64_t r, int64_t column) {
  return t->scores + column / INGOT_PANEL * ATTEND_PANEL + r * INGOT_PANEL + column % INGOT_PANEL;
}

/* Scale and mask the scores visible to row r; return the largest. */
static inline float attend_largest(const attend_task *t, const attention_block *b, int64_t r, int64_t begin,
                                   int64_t visible) {
  const attention_args *g = t->g;
  const int64_t mask = attention_mask_at(g, b, r, begin);
  const vf scale = v_set(g->scale * INGOT_LOG2E);
  vf largest = v_set(-INFINITY);
  for (int64_t j = 0; j < visible; j += 16) {
    const int64_t lanes = visible - j < 16 ? visible - j : 16;
    float *at = attend_scores(t, r, j);
    vf score = v_mul(v_load(at), scale);
    if (g->mask || lanes < 16) score = attention_mask(g, score, mask + j * g->mask_strides[3], lanes);
    v_store(at, score);
    largest = v_max(largest, score);
  }
  return v_max_across(largest);
}

/* Convert row r's scores to weights 2^(score - shift), and zeros where they are not visible; return their sum. */
static inline float attend_weights(const attend_task *t, int64_t r, float shift, int64_t visible, int64_t panels) {
  const vf shifts = v_set(shift);
  vf sum = v_set(0.0f);
  for (int64_t j = 0; j < panels * INGOT_PANEL; j += 16) {
    const float *from = attend_scores(t, r, j);
    const vf weight = j < visible ? attention_power(v_load(from), shifts) : v_set(0.0f);
    sum = v_add(sum, weight);
    v_store_bf16((uint16_t *)(void *)(attend_scores(t, r, j / INGOT_PANEL * INGOT_PANEL) + j % INGOT_PANEL / 2),
                 weight);
  }
  return v_sum(sum);
}

/* Convert the block's scores to weights; fade gets the factor for the sums of earlier tiles. */
static inline void attend_softmax(const attend_task *t, attention_block *b, int64_t begin, int64_t end, int64_t panels,
                                  float *fade) {
  float shift[ATTENTION_MOST] = {0}, total[ATTENTION_MOST] = {0};
  const vf before[2] = {v_load(b->largest), v_load(b->largest + 16)};
  for (int64_t r = 0; r < b->count; r++) {
    const int64_t visible = attention_visible(t->g, b->at[r], begin, end);
    const float largest = attend_largest(t, b, r, begin, visible);
    if (largest > b->largest[r]) b->largest[r] = largest;
    if (b->largest[r] != -INFINITY) shift[r] = b->largest[r];
    total[r] = attend_weights(t, r, shift[r], visible, panels);
  }
  for (int64_t i = 0; i < 2; i++) {
    const vf faded = attention_power(before[i], v_load(shift + 16 * i));
    v_store(b->total + 16 * i, v_fma(v_load(b->total + 16 * i), faded, v_load(total + 16 * i)));
    v_store(fade + 16 * i, faded);
  }
}

/* Add columns [begin, end) to the block's sums. */
static inline void attend_tile(attend_task *t, attention_block *b, int64_t begin, int64_t end) {
  const attention_args *g = t->g;
  const int64_t head = b->head / (g->heads / g->kv_heads);
  const int64_t rows = b->count > SPLIT_ROWS / 2 ? SPLIT_ROWS : SPLIT_ROWS / 2;
  int64_t reach = 0;
  for (int64_t r = 0; r < b->count; r++) {
    const int64_t visible = attention_visible(g, b->at[r], begin, end);
    if (visible > reach) reach = visible;
  }
  if (begin > 0 && reach == 0) return;
  if (t->head != b->batch * g->kv_heads + head || t->begin != begin) {
    t->packed_keys = t->packed_values = 0;
    t->head = b->batch * g->kv_heads + head;
    t->begin = begin;
  }
  const int64_t panels = (reach + INGOT_PANEL - 1) / INGOT_PANEL;
  const float *k = g->k + b->batch * g->k_strides[0] + head * g->k_strides[1] + begin * g->k_strides[2];
  const int64_t v_at = b->batch * g->v_strides[0] + head * g->v_strides[1] + begin * g->v_strides[2];
  float fade[ATTENTION_MOST];
  attend_queries(t, b);
  attend_keys(t, k, panels, end - begin);
  for (int64_t i = 0; i < panels; i++) {
    const split_product product = {.runs = 1, .k = t->width, .offsets = t->offsets, .a = t->queries,
                                   .a_stride = t->width, .b = t->keys + i * t->width * INGOT_PANEL};
    K(split_sums)(rows, &product, t->scores + t->offsets[i]);
  }
  attend_softmax(t, b, begin, end, panels, fade);
  attend_values(t, (const uint16_t *)(const void *)g->v + v_at, panels, end - begin);
  for (int64_t i = 0; i < t->v_panels; i++) {
    float *sums = b->sums + i * ATTEND_SUMS, *own = begin ? t->addend : sums;
    const split_product product = {
      .runs = panels, .k = SPLIT_PAIRS, .offsets = t->offsets, .a = t->scores, .a_stride = INGOT_PANEL,
      .b = t->values + i * t->panels * SPLIT_PAIRS * INGOT_PANEL,
      .halved = g->v_dim - i * INGOT_PANEL <= INGOT_PANEL / 2};
    K(split_sums)(rows, &product, own);
    for (int64_t j = 0; begin && j < b->count * INGOT_PANEL; j += 16)
      v_store(sums + j, v_fma(v_load(sums + j), v_set(fade[j / INGOT_PANEL]), v_load(own + j)));
  }
}

void K(attention_bf16_tiles)(const void *args, int32_t task, int32_t num_tasks) {
  const attention_args g = attention_in_pairs(args);
  const attention_cut cut = attention_plan(&g, SPLIT_ROWS);
  attend_task state = attend_open(&g, task);
  const int64_t end = attention_share(&g, &cut, task + 1, num_tasks);
  const int64_t tile = state.panels * INGOT_PANEL, most = g.kv_len > tile ? INGOT_ATTENTION_BLOCKS : 1;
  K(split_begin)(SPLIT_ROWS, SPLIT_PAIRS);
  for (int64_t index = attention_share(&g, &cut, task, num_tasks); index < end;) {
    attention_block group[INGOT_ATTENTION_BLOCKS];
    const int64_t head_end = (index / cut.blocks + 1) * cut.blocks < end ? (index / cut.blocks + 1) * cut.blocks : end;
    const int64_t count = head_end - index < most ? head_end - index : most;
    for (int64_t i = 0; i < count; i++)
      group[i] = attention_begin(&g, &cut, index + i, state.sums + i * state.v_panels * ATTEND_SUMS);
    for (int64_t begin = 0; begin < g.kv_len; begin += tile) {
      const int64_t tile_end = g.kv_len - begin < tile ? g.kv_len : begin + tile;
      for (int64_t i = 0; i < count; i++) attend_tile(&state, &group[i], begin, tile_end);
    }
    for (int64_t i = 0; i < count; i++) attention_store(&g, &group[i], INGOT_PANEL, ATTEND_SUMS);
    index += count;
  }
  K(split_end)();
}
#endif

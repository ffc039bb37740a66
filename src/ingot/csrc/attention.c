/* attention.c: out = softmax(scale * q @ k^T + mask) @ v, a block of query rows at a time.
 *
 * Columns (keys) are taken in tiles: attention_f32 has one tile of kv_len columns, attention_f32_online tiles of 256
 * whose partial results are rescaled to the largest score so far (online softmax: Milakov and Gimelshein, 2018).
 * A block is 24 query rows counted from row 0 on every instruction set, and a causal block reads keys up to its last
 * row's diagonal, so what a row computes depends on shapes only. A masked score is -inf and its weight exactly 0. */
#include <math.h>

#include "gemm.h"

#define ATTENTION_ROWS 24
#define ATTENTION_GROUP 4 /* blocks that share a packed tile of keys and values */

static const float attention_lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* A part's scratch slot, and which keys and values it holds. */
typedef struct {
  float *keys;     /* packed k^T: [tile / 32][head_dim][32] */
  float *values;   /* packed v: [v_dim / 32][tile][32] */
  float *scores;   /* [24][score_stride] */
  float *sums;     /* [4 * 24][v_stride]: weights @ v so far */
  float *addend;   /* [24][v_stride]: the same of one tile */
  int64_t score_stride, v_stride;
  int64_t batch, kv_head, begin, end; /* what is packed: columns [begin, end) of this head */
} attention_slot;

/* 24 rows of one head: the largest score and the sum of weights so far. */
typedef struct {
  int64_t batch, head, row, rows;
  float *sums;
  float largest[ATTENTION_ROWS], total[ATTENTION_ROWS];
} attention_block;

static inline attention_slot attention_open(const attention_args *g, int64_t tile, int32_t part) {
  attention_slot s;
  const int64_t columns = (tile + 31) / 32 * 32;
  s.v_stride = (g->v_dim + 31) / 32 * 32;
  s.score_stride = columns + 16; /* never a multiple of 4096 bytes */
  s.keys = g->scratch + part * g->scratch_stride;
  s.values = s.keys + columns * g->head_dim;
  s.scores = s.values + s.v_stride * tile;
  s.sums = s.scores + ATTENTION_ROWS * s.score_stride;
  s.addend = s.sums + ATTENTION_GROUP * ATTENTION_ROWS * s.v_stride;
  s.batch = -1;
  return s;
}

/* Puts columns [begin, end) of a head's k and v into the slot, unless they are there. */
static inline void attention_pack(const attention_args *g, attention_slot *s, int64_t batch, int64_t kv_head,
                                  int64_t begin, int64_t end) {
  if (s->batch == batch && s->kv_head == kv_head && s->begin == begin && s->end >= end) return;
  const float *k = g->k + batch * g->k_strides[0] + kv_head * g->k_strides[1] + begin * g->k_strides[2];
  const float *v = g->v + batch * g->v_strides[0] + kv_head * g->v_strides[1] + begin * g->v_strides[2];
  const int64_t count = end - begin;
  for (int64_t j = 0; j < count; j += INGOT_PANEL)
    K(pack_panel)(k + j * g->k_strides[2], g->head_dim, count - j < INGOT_PANEL ? count - j : INGOT_PANEL, 1,
                  g->k_strides[2], 1.0f, s->keys + j * g->head_dim);
  for (int64_t j = 0; j < g->v_dim; j += INGOT_PANEL)
    K(pack_panel)(v + j, count, g->v_dim - j < INGOT_PANEL ? g->v_dim - j : INGOT_PANEL, g->v_strides[2], 1, 1.0f,
                  s->values + j * count);
  s->batch = batch;
  s->kv_head = kv_head;
  s->begin = begin;
  s->end = end;
}

/* c[rows, 32 * panels] = a[rows, k] @ the packed panels of b, for any number of rows. */
static inline void attention_product(int64_t rows, int64_t panels, int64_t k, const float *a, int64_t a_stride,
                                     const float *b, int64_t panel_stride, float *c, int64_t c_stride) {
  const int64_t blocks = gemm_blocks(rows, a_stride);
  const int64_t together = blocks == 1 ? panels : 1; /* with more blocks, one panel at a time stays in L1 */
  for (int64_t panel = 0; panel < panels; panel += together) {
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t row = part_begin(rows, (int32_t)block, (int32_t)blocks);
      const int64_t count = part_begin(rows, (int32_t)block + 1, (int32_t)blocks) - row;
      K(gemm_tile)(count, together, k, a + row * a_stride, a_stride, b + panel * panel_stride, INGOT_PANEL,
                   panel_stride, c + row * c_stride + panel * INGOT_PANEL, c_stride, b, 0);
    }
  }
}

/* `lanes` scores with the mask at `mask` applied; a lane past them gets -inf. */
static inline vf attention_mask(const attention_args *g, vf score, const char *mask, int64_t lanes) {
  float m[16];
  if (g->mask_kind == INGOT_MASK_FLOAT) {
    const float *from = (const float *)(const void *)mask;
    if (lanes < 16 || g->mask_strides[3] != 1) {
      for (int64_t l = 0; l < 16; l++) m[l] = l < lanes ? from[l * g->mask_strides[3]] : 0.0f;
      from = m;
    }
    score = v_add(score, v_load(from));
  } else if (g->mask_kind == INGOT_MASK_BOOL) {
    const uint8_t *from = (const uint8_t *)mask;
    for (int64_t l = 0; l < 16; l++) m[l] = l < lanes && from[l * g->mask_strides[3]] ? 1.0f : 0.0f;
    score = v_select(v_eq(v_load(m), v_set(0.0f)), v_set(-INFINITY), score);
  }
  if (lanes < 16) score = v_select(v_lt(v_load(attention_lanes), v_set((float)lanes)), score, v_set(-INFINITY));
  return score;
}

/* Row i of the block: scores[0, visible) become masked and scaled; returns the largest. */
static inline float attention_scale(const attention_args *g, const attention_block *b, int64_t i, int64_t begin,
                                    int64_t visible, float *scores) {
  const int64_t item = g->mask_kind == INGOT_MASK_BOOL ? 1 : (int64_t)sizeof(float);
  const int64_t row = b->batch * g->mask_strides[0] + b->head * g->mask_strides[1] + (b->row + i) * g->mask_strides[2];
  const vf scale = v_set(g->scale);
  vf largest = v_set(-INFINITY);
  for (int64_t j = 0; j < visible; j += 16) {
    const int64_t lanes = visible - j < 16 ? visible - j : 16;
    vf score = v_mul(v_load(scores + j), scale);
    if (g->mask_kind != INGOT_MASK_NONE || lanes < 16) {
      const char *mask = (const char *)g->mask;
      if (mask) mask += item * (row + (begin + j) * g->mask_strides[3]);
      score = attention_mask(g, score, mask, lanes);
    }
    v_store(scores + j, score);
    largest = v_max(largest, score);
  }
  return v_max_across(largest);
}

/* scores[0, visible) become exp(score - shift), the rest of [0, columns) zeros; returns their sum. */
static inline float attention_weights(float shift, int64_t visible, int64_t columns, float *scores) {
  float total = 0.0f;
  vf sum = v_set(0.0f);
  const vf shifts = v_set(shift);
  for (int64_t j = 0; j < columns; j += 16) {
    const vf weight = j < visible ? v_exp(v_sub(v_load(scores + j), shifts)) : v_set(0.0f);
    v_store(scores + j, weight);
    sum = v_add(sum, weight);
    if ((j + 16) % INGOT_REDUCE_CHUNK == 0) {
      total += v_sum(sum);
      sum = v_set(0.0f);
    }
  }
  return total + v_sum(sum);
}

static inline float attention_exp(float x) {
  float lanes[16];
  v_store(lanes, v_exp(v_set(x)));
  return lanes[0];
}

/* Adds columns [begin, end) to the block's sums. */
static inline void attention_tile(const attention_args *g, attention_slot *s, attention_block *b, int64_t begin,
                                  int64_t end) {
  const int64_t q_row = b->row, kv_head = b->head / (g->heads / g->kv_heads);
  int64_t reach = end; /* past the last column that any row of the block sees */
  if (g->causal && q_row + b->rows + g->causal_offset < end) reach = q_row + b->rows + g->causal_offset;
  if (reach <= begin) return;
  attention_pack(g, s, b->batch, kv_head, begin, end);
  const int64_t count = reach - begin, columns = (count + 31) / 32 * 32;
  const float *q = g->q + b->batch * g->q_strides[0] + b->head * g->q_strides[1] + q_row * g->q_strides[2];
  attention_product(b->rows, columns / 32, g->head_dim, q, g->q_strides[2], s->keys, INGOT_PANEL * g->head_dim,
                    s->scores, s->score_stride);
  float fade[ATTENTION_ROWS]; /* what earlier tiles' weights are to be multiplied with */
  for (int64_t i = 0; i < b->rows; i++) {
    float *scores = s->scores + i * s->score_stride;
    int64_t visible = count;
    if (g->causal && q_row + i + g->causal_offset + 1 < reach) visible = q_row + i + g->causal_offset + 1 - begin;
    if (visible < 0) visible = 0;
    const float tile_largest = attention_scale(g, b, i, begin, visible, scores);
    const float largest = tile_largest > b->largest[i] ? tile_largest : b->largest[i];
    const float shift = largest == -INFINITY ? 0.0f : largest;
    const float total = attention_weights(shift, visible, columns, scores);
    fade[i] = begin == 0 ? 0.0f : attention_exp(b->largest[i] - shift);
    b->total[i] = b->total[i] * fade[i] + total;
    b->largest[i] = largest;
  }
  float *to = begin == 0 ? b->sums : s->addend;
  attention_product(b->rows, s->v_stride / 32, count, s->scores, s->score_stride, s->values,
                    INGOT_PANEL * (s->end - s->begin), to, s->v_stride);
  if (begin == 0) return;
  for (int64_t i = 0; i < b->rows; i++) {
    for (int64_t j = i * s->v_stride; j < (i + 1) * s->v_stride; j += 16)
      v_store(b->sums + j, v_fma(v_load(b->sums + j), v_set(fade[i]), v_load(s->addend + j)));
  }
}

/* out = sums / total, zeros in a row that saw nothing. */
static inline void attention_finish(const attention_args *g, const attention_block *b, int64_t v_stride) {
  for (int64_t i = 0; i < b->rows; i++) {
    const float *sums = b->sums + i * v_stride;
    float *out = g->out + b->batch * g->out_strides[0] + b->head * g->out_strides[1] + (b->row + i) * g->out_strides[2];
    for (int64_t j = 0; j < g->v_dim; j += 16) {
      const vf v = b->total[i] == 0.0f ? v_set(0.0f) : v_div(v_load(sums + j), v_set(b->total[i]));
      if (g->v_dim - j < 16)
        v_store_n(out + j, v, g->v_dim - j);
      else
        v_store(out + j, v);
    }
  }
}

static inline attention_block attention_begin(const attention_args *g, int64_t head, int64_t row, float *sums) {
  attention_block b = {.batch = head / g->heads, .head = head % g->heads, .row = row, .sums = sums};
  b.rows = g->q_len - row < ATTENTION_ROWS ? g->q_len - row : ATTENTION_ROWS;
  for (int64_t i = 0; i < ATTENTION_ROWS; i++) {
    b.largest[i] = -INFINITY;
    b.total[i] = 0.0f;
  }
  return b;
}

/* Blocks in the order batch, head, row; a part takes neighbours, which mostly share packed keys and values. */
static inline void attention_run(const attention_args *g, int64_t tile, int32_t part, int32_t parts) {
  const int64_t per_head = (g->q_len + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
  const int64_t blocks = g->batch * g->heads * per_head;
  const int64_t end = part_begin(blocks, part + 1, parts);
  attention_slot slot = attention_open(g, tile, part);
  for (int64_t index = part_begin(blocks, part, parts); index < end;) {
    attention_block group[ATTENTION_GROUP];
    const int64_t head = index / per_head, head_end = (head + 1) * per_head < end ? (head + 1) * per_head : end;
    const int64_t count = head_end - index < ATTENTION_GROUP ? head_end - index : ATTENTION_GROUP;
    for (int64_t i = 0; i < count; i++)
      group[i] = attention_begin(g, head, (index + i) % per_head * ATTENTION_ROWS,
                                 slot.sums + i * ATTENTION_ROWS * slot.v_stride);
    for (int64_t begin = 0; begin < g->kv_len; begin += tile) {
      const int64_t tile_end = g->kv_len - begin < tile ? g->kv_len : begin + tile;
      for (int64_t i = 0; i < count; i++) attention_tile(g, &slot, &group[i], begin, tile_end);
    }
    for (int64_t i = 0; i < count; i++) attention_finish(g, &group[i], slot.v_stride);
    index += count;
  }
}

void K(attention_f32)(const void *args, int32_t part, int32_t parts) {
  const attention_args *g = args;
  attention_run(g, g->kv_len, part, parts);
}

void K(attention_f32_online)(const void *args, int32_t part, int32_t parts) {
  const attention_args *g = args;
  attention_run(g, g->kv_len < INGOT_KV_TILE ? g->kv_len : INGOT_KV_TILE, part, parts);
}

#undef ATTENTION_ROWS
#undef ATTENTION_GROUP

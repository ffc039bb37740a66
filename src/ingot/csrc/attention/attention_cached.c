/* attention_cached.c: attention of new rows to the cached positions of their sequences.
 *
 * A unit is up to 24 (row, query head) pairs that read one head of keys of one sequence: adjacent rows, each with the
 * heads of a group (Ainslie et al., "GQA", 2023). Positions are processed in chunks of INGOT_CACHE_CHUNK, the first
 * beginning at 0. In a chunk each pair has its own softmax; its sums over values are chains over the 64 positions of a
 * block, added in order. Chunks are joined in order and rescaled to the largest score so far (Milakov and Gimelshein,
 * 2018). A masked position has the weight 0 and changes no bit, so a row's result depends on its own position only, not
 * on its unit, the other rows of the call, or the division into tasks. */
#include <string.h>

#include "attention/attention.h"
#include "math/f16.h"
#include "gemm/gemm.h"
#include "attention/paged.h"

#define CACHED_PAIRS INGOT_CACHED_PAIRS
#define CACHED_UNITS INGOT_CACHED_UNITS
#define CACHED_BLOCKS (INGOT_CACHE_CHUNK / INGOT_CACHE_BLOCK)
#define CACHED_F32 0
#define CACHED_BF16 1
#define CACHED_I8 2
#define CACHED_I4 3

/* The division of the pairs of a key head into units. */
typedef struct { int64_t group, pieces, heads_each, rows_each; } cached_cut;

/* Rows [row, row + rows) of a run of rows with one owner, query heads [head, head + heads). visible: the number of
 * positions up to the last that a row attends to. */
typedef struct {
  int64_t run, run_end, kv_head, piece;
  int64_t row, rows, head, heads, visible;
} cached_unit;

/* A unit's pairs, row by row, while chunks are added to them; and their visible range of a chunk: [begin, end). */
typedef struct {
  cached_unit unit;
  int64_t count;
  int64_t first[CACHED_PAIRS], last[CACHED_PAIRS]; /* visible positions: [first, last) */
  float largest[32], total[32];
  float *sums; /* [24][v_stride]: weights @ values so far */
} cached_pairs;

/* A task's scratch slot. */
typedef struct {
  float *queries; /* [24][q_stride]: scaled */
  float *scores;  /* [24][score_stride] of a chunk */
  float *addend;  /* [24][v_stride]: weights @ values of a chunk */
  float *sums;    /* [CACHED_UNITS][24][v_stride] */
  float *wide_keys, *wide_values; /* a chunk as f32, or a block of it, where the cache cannot be read in place */
  int64_t q_stride, score_stride, v_stride;
  int32_t kind;               /* of the cache */
  int32_t direct;             /* whether values are read in place */
  int32_t shared;             /* whether several units read a chunk */
  const cached_pairs *loaded; /* the pairs whose queries are loaded */
  const char *prefetch;          /* memory that is read next, to prefetch meanwhile, */
  int64_t prefetch_bytes;        /* and its size */
} cached_slot;

/* Positions [begin, high) of a chunk, by blocks of 64: the index of a head's block in the cache, and its widened copy
 * for all units. */
typedef struct {
  int64_t begin, high;
  int64_t block[CACHED_BLOCKS], next; /* next: the block after the chunk, or -1 */
  const float *keys[CACHED_BLOCKS], *values[CACHED_BLOCKS];
} cached_chunk;

/* The range of a chunk that is visible to some pair in [pair, end) of a register tile: positions [low, high). */
typedef struct { int64_t pair, end, low, high; } cached_tile;

static inline paged_rows cached_rows(const cached_attention_args *g) {
  return (paged_rows){g->positions, g->owners, g->blocks, g->sequences, g->blocks_each, g->total_blocks, g->fault,
                      g->step};
}

static inline cached_cut cached_plan(const cached_attention_args *g) {
  cached_cut c = {.group = g->heads / g->kv_heads};
  c.pieces = (c.group + CACHED_PAIRS - 1) / CACHED_PAIRS;
  c.heads_each = (c.group + c.pieces - 1) / c.pieces;
  c.rows_each = CACHED_PAIRS / c.heads_each;
  return c;
}

static inline cached_slot cached_open(const cached_attention_args *g, int32_t kind, int32_t task) {
  cached_slot s = {.kind = kind, .direct = kind == CACHED_F32 && g->v_dim % 16 == 0,
                   .q_stride = (g->head_dim + 15) / 16 * 16, .v_stride = (g->v_dim + 31) / 32 * 32,
                   .score_stride = INGOT_CACHE_CHUNK + INGOT_ATTENTION_PAD};
  s.queries = g->scratch + task * g->scratch_stride;
  s.scores = s.queries + CACHED_PAIRS * s.q_stride;
  s.addend = s.scores + CACHED_PAIRS * s.score_stride;
  s.sums = s.addend + CACHED_PAIRS * s.v_stride;
  s.wide_values = s.sums + CACHED_UNITS * CACHED_PAIRS * s.v_stride;
  s.wide_keys = s.wide_values + (s.direct ? 0 : INGOT_CACHE_CHUNK * s.v_stride);
  return s;
}

/* The number of positions up to row r's own; 0 for a row without a valid slot. */
static inline int64_t cached_visible(const paged_rows *t, int64_t r) {
  return paged_row(t, r) ? t->positions[r] + 1 : 0;
}

/* Advance to the next unit, in the order run, head of keys, piece of its group, row; 0 after the last. */
static inline int cached_next(const cached_attention_args *g, const paged_rows *t, const cached_cut *cut,
                              cached_unit *u) {
  u->row += u->rows;
  if (u->row == u->run_end) {
    u->row = u->run;
    if (++u->piece == cut->pieces) {
      u->piece = 0;
      if (++u->kv_head == g->kv_heads) {
        u->kv_head = 0;
        u->run = u->row = u->run_end;
        if (u->run == g->rows) return 0;
        while (u->run_end < g->rows && g->owners[u->run_end] == g->owners[u->run]) u->run_end++;
      }
    }
    u->head = task_begin(cut->group, (int32_t)u->piece, (int32_t)cut->pieces);
    u->heads = task_begin(cut->group, (int32_t)u->piece + 1, (int32_t)cut->pieces) - u->head;
    u->head += u->kv_head * cut->group;
  }
  u->rows = u->run_end - u->row < cut->rows_each ? u->run_end - u->row : cut->rows_each;
  u->visible = 0;
  for (int64_t r = u->row; r < u->row + u->rows; r++) {
    const int64_t visible = cached_visible(t, r);
    if (visible > u->visible) u->visible = visible;
  }
  return 1;
}

static inline cached_unit cached_first(const cached_attention_args *g, const cached_cut *cut) {
  return (cached_unit){.kv_head = g->kv_heads - 1, .piece = cut->pieces - 1};
}

/* The cost of a unit, in pairs times positions. */
static inline int64_t cached_cost(const cached_attention_args *g, const cached_unit *u) {
  int64_t visible = g->window && g->window + u->rows < u->visible ? g->window + u->rows : u->visible;
  if (g->segment && g->segment < visible) visible = g->segment;
  return u->rows * u->heads * (visible + INGOT_CACHE_BLOCK);
}

static inline cached_pairs cached_begin(const cached_attention_args *g, const paged_rows *t, const cached_unit *u,
                                        float *sums, int64_t v_stride) {
  cached_pairs p = {.unit = *u, .count = u->rows * u->heads, .sums = sums};
  for (int64_t i = 0; i < p.count; i++) {
    p.last[i] = cached_visible(t, u->row + i / u->heads);
    p.first[i] = g->window && p.last[i] > g->window ? p.last[i] - g->window : 0;
    const int64_t begin = g->segment && p.last[i] > 0 ? (p.last[i] - 1) / g->segment * g->segment : 0;
    if (begin > p.first[i]) p.first[i] = begin;
  }
  for (int64_t i = 0; i < 32; i++) p.largest[i] = -INFINITY;
  for (int64_t i = 0; i < p.count && g->sinks; i++) {
    p.largest[i] = g->sinks[u->head + i % u->heads] * INGOT_LOG2E;
    p.total[i] = 1;
  }
  memset(sums, 0, (size_t)(p.count * v_stride) * sizeof(float));
  return p;
}

/* Copy the unit's rows of q to the slot, scaled so that scores are in units of log2(e), or of the softcap. */
static inline void cached_queries(const cached_attention_args *g, cached_slot *s, const cached_pairs *p) {
  if (s->loaded == p) return;
  s->loaded = p;
  const vf scale = v_set(g->softcap > 0 ? g->scale / g->softcap : g->scale * INGOT_LOG2E);
  for (int64_t i = 0; i < p->count; i++) {
    const float *q = g->q + (p->unit.row + i / p->unit.heads) * g->q_strides[0] +
                     (p->unit.head + i % p->unit.heads) * g->q_strides[1];
    float *to = s->queries + i * s->q_stride;
    for (int64_t j = 0; j < g->head_dim; j += 16)
      v_store(to + j, v_mul(g->head_dim - j < 16 ? v_load_n(q + j, g->head_dim - j) : v_load(q + j), scale));
  }
}

/* to = `count` elements of a bf16 cache, rounded up to a multiple of 16. */
static inline void cached_widen_bf16(const uint16_t *from, int64_t count, float *to) {
  int64_t j = 0;
  for (; j + 16 <= count; j += 16) v_store(to + j, v_load_bf16(from + j));
  if (j == count) return;
  uint16_t rest[16] = {0};
  memcpy(rest, from + j, (size_t)(count - j) * sizeof *rest);
  v_store(to + j, v_load_bf16(rest));
}

/* to = scale times `count` elements of an int8 cache, rounded up to a multiple of 16. */
static inline void cached_widen_i8(const int8_t *from, int64_t count, float scale, float *to) {
  const vf scales = v_set(scale);
  int64_t j = 0;
  for (; j + 16 <= count; j += 16) v_store(to + j, v_mul(v_load_i8(from + j), scales));
  if (j == count) return;
  int8_t rest[16] = {0};
  memcpy(rest, from + j, (size_t)(count - j));
  v_store(to + j, v_mul(v_load_i8(rest), scales));
}

/* to = `count` elements of an f32 cache, rounded up to a multiple of 16. */
static inline void cached_copy_f32(const float *from, int64_t count, float *to) {
  int64_t j = 0;
  for (; j + 16 <= count; j += 16) v_store(to + j, v_load(from + j));
  if (j < count) v_store(to + j, v_load_n(from + j, count - j));
}

/* to = keys [head_dim][64] of an int8 cache, in which each position has a scale. */
static inline void cached_widen_keys_i8(const int8_t *from, const float *scales, int64_t head_dim, float *to) {
  for (int64_t k = 0; k < head_dim; k++, from += INGOT_CACHE_BLOCK, to += INGOT_CACHE_BLOCK)
    for (int64_t j = 0; j < INGOT_CACHE_BLOCK; j += 16) v_store(to + j, v_mul(v_load_i8(from + j), v_load(scales + j)));
}

/* Sixteen bytes of an int4 cache: the values of both halves as floats. */
static inline void cached_quads(const uint8_t *from, vf *low, vf *high) {
  const vi both = v_to_int(v_load_u8(from));
  *low = v_from_int(vi_and(both, vi_set(15)));
  *high = v_from_int(vi_sar(both, 4));
}

/* to = `count` elements of a position of an int4 cache, padded to a multiple of 16; scales and mins of its groups are
 * INGOT_CACHE_BLOCK apart. */
static inline void cached_widen_i4(const uint8_t *from, int64_t count, const uint16_t *scales, float *to) {
  for (int64_t d = 0; d < count; d += INGOT_CACHE_GROUP, scales += 2 * INGOT_CACHE_BLOCK) {
    const int64_t half = (count - d < INGOT_CACHE_GROUP ? count - d : INGOT_CACHE_GROUP) / 2;
    const vf step = v_set(f16_to_float(scales[0])), least = v_set(f16_to_float(scales[INGOT_CACHE_BLOCK]));
    uint8_t some[16] = {0};
    if (half < 16) memcpy(some, from + d / 2, (size_t)half);
    vf low, high;
    cached_quads(half < 16 ? some : from + d / 2, &low, &high);
    v_store(to + d, v_fma(low, step, least));
    v_store(to + d + half, v_fma(high, step, least));
  }
}

/* to = keys [head_dim][64] of an int4 cache. */
static inline void cached_widen_keys_i4(const uint8_t *from, const uint16_t *scales, int64_t head_dim, float *to) {
  for (int64_t d = 0; d < head_dim; d += INGOT_CACHE_GROUP, scales += 2 * INGOT_CACHE_BLOCK) {
    const int64_t half = (head_dim - d < INGOT_CACHE_GROUP ? head_dim - d : INGOT_CACHE_GROUP) / 2;
    for (int64_t j = 0; j < INGOT_CACHE_BLOCK; j += 16) {
      const vf step = v_load_f16(scales + j), least = v_load_f16(scales + INGOT_CACHE_BLOCK + j);
      for (int64_t i = 0; i < half; i++) {
        vf low, high;
        cached_quads(from + (d / 2 + i) * INGOT_CACHE_BLOCK + j, &low, &high);
        v_store(to + (d + i) * INGOT_CACHE_BLOCK + j, v_fma(low, step, least));
        v_store(to + (d + half + i) * INGOT_CACHE_BLOCK + j, v_fma(high, step, least));
      }
    }
  }
}

/* Return the number of scales and mins of one position of a head in an int4 cache. */
static inline int64_t cached_scales(int64_t dim) { return (dim + INGOT_CACHE_GROUP - 1) / INGOT_CACHE_GROUP * 2; }

/* Block i's keys as f32. A block that only one unit reads is widened just before it is read, to memory that stays in
 * the L1 cache. */
static inline const float *cached_keys(const cached_attention_args *g, const cached_slot *s, cached_chunk *c,
                                       int64_t i) {
  const int64_t from = c->block[i] * g->head_dim * INGOT_CACHE_BLOCK;
  if (s->kind == CACHED_F32) return (const float *)g->keys + from;
  if (c->keys[i]) return c->keys[i];
  float *to = s->wide_keys + (s->shared ? i * g->head_dim * INGOT_CACHE_BLOCK : 0);
  if (s->shared) c->keys[i] = to;
  const int64_t scales = c->block[i] * INGOT_CACHE_BLOCK;
  if (s->kind == CACHED_BF16)
    cached_widen_bf16((const uint16_t *)g->keys + from, g->head_dim * INGOT_CACHE_BLOCK, to);
  else if (s->kind == CACHED_I8)
    cached_widen_keys_i8((const int8_t *)g->keys + from, (const float *)g->key_scales + scales, g->head_dim, to);
  else
    cached_widen_keys_i4((const uint8_t *)g->keys + from / 2,
                         (const uint16_t *)g->key_scales + scales * cached_scales(g->head_dim), g->head_dim, to);
  return to;
}

/* Block i's values as f32, up to the last visible position. */
static inline const float *cached_values(const cached_attention_args *g, const cached_slot *s, cached_chunk *c,
                                         int64_t i) {
  const int64_t from = c->block[i] * INGOT_CACHE_BLOCK, left = c->high - c->begin - i * INGOT_CACHE_BLOCK;
  if (s->direct) return (const float *)g->values + from * g->v_dim;
  if (c->values[i]) return c->values[i];
  float *to = s->wide_values + (s->shared ? i * INGOT_CACHE_BLOCK * s->v_stride : 0);
  if (s->shared) c->values[i] = to;
  int64_t at = from * g->v_dim;
  for (int64_t k = 0; k < INGOT_CACHE_BLOCK && k < left; k++, at += g->v_dim) {
    float *row = to + k * s->v_stride;
    if (s->kind == CACHED_F32) cached_copy_f32((const float *)g->values + at, g->v_dim, row);
    if (s->kind == CACHED_BF16) cached_widen_bf16((const uint16_t *)g->values + at, g->v_dim, row);
    if (s->kind == CACHED_I8)
      cached_widen_i8((const int8_t *)g->values + at, g->v_dim, ((const float *)g->value_scales)[from + k], row);
    if (s->kind == CACHED_I4)
      cached_widen_i4((const uint8_t *)g->values + at / 2, g->v_dim,
                      (const uint16_t *)g->value_scales + from * cached_scales(g->v_dim) + k, row);
  }
  return to;
}

/* Look up the blocks of positions [low, c->high) of one owner and head; 0 after a fault. */
static inline int cached_find(const cached_attention_args *g, const paged_rows *t, const cached_unit *u, int64_t low,
                              cached_chunk *c) {
  for (int64_t i = (low - c->begin) / INGOT_CACHE_BLOCK; c->begin + i * INGOT_CACHE_BLOCK < c->high; i++) {
    const int64_t block = paged_block(t, g->owners[u->row], c->begin / INGOT_CACHE_BLOCK + i);
    if (block < 0) return 0;
    c->block[i] = block * g->kv_heads + u->kv_head;
  }
  c->next = -1;
  if (c->begin + INGOT_CACHE_CHUNK < u->visible) {
    const int64_t block = paged_block(t, g->owners[u->row], c->begin / INGOT_CACHE_BLOCK + CACHED_BLOCKS);
    if (block < 0) return 0;
    c->next = block * g->kv_heads + u->kv_head;
  }
  return 1;
}

/* The visible range of pairs [pair, end) in the chunk at `begin`; low == high where nothing is visible. */
static inline cached_tile cached_view(const cached_pairs *p, int64_t begin, int64_t pair, int64_t end) {
  cached_tile t = {.pair = pair, .end = end, .low = begin + INGOT_CACHE_CHUNK, .high = begin};
  for (int64_t i = pair; i < end; i++) {
    const int64_t first = p->first[i] > begin ? p->first[i] : begin;
    const int64_t last = p->last[i] < begin + INGOT_CACHE_CHUNK ? p->last[i] : begin + INGOT_CACHE_CHUNK;
    if (first >= last) continue;
    if (first < t.low) t.low = first;
    if (last > t.high) t.high = last;
  }
  if (t.low > t.high) t.low = t.high;
  return t;
}

/* A product of a tile's rows and `panels` panels. Memory that is read next is prefetched meanwhile, a share with each
 * panel: a step of k prefetches one line; where that is not enough, all lines are prefetched before. */
static inline void cached_product(cached_slot *s, int64_t rows, int64_t panels, gemm_product product) {
  if (s->prefetch_bytes == 0) {
    K(gemm_tile)(rows, panels, &product);
    return;
  }
  const int32_t halved = product.halved;
  const int64_t share = s->prefetch_bytes / panels;
  const int spread = share <= product.k * 64;
  for (int64_t i = 0; i < panels; i++) {
    product.prefetch = s->prefetch + i * share;
    product.prefetch_step = spread ? (share + product.k - 1) / product.k : 0;
    for (int64_t j = 0; !spread && j < share; j += 64) __builtin_prefetch(s->prefetch + i * share + j, 0, 2);
    product.halved = halved && i + 1 == panels;
    K(gemm_tile)(rows, 1, &product);
    product.b += INGOT_PANEL;
    product.sums += INGOT_PANEL;
  }
  s->prefetch_bytes = 0;
}

/* scores = queries @ keys of a block that is partly visible to a tile; rounded up to a multiple of 16 positions. */
static inline void cached_scores(const cached_attention_args *g, cached_slot *s, const cached_tile *t,
                                 int64_t position, const float *keys) {
  const int64_t left = t->high - position, panels = left > INGOT_PANEL ? 2 : 1;
  const gemm_product product = {
      .k = g->head_dim, .a = s->queries + t->pair * s->q_stride, .a_stride = s->q_stride, .b = keys,
      .b_stride = INGOT_CACHE_BLOCK, .panel_stride = INGOT_PANEL,
      .sums = s->scores + t->pair * s->score_stride + position % INGOT_CACHE_CHUNK, .sums_stride = s->score_stride,
      .halved = left <= panels * INGOT_PANEL - INGOT_PANEL / 2};
  cached_product(s, t->end - t->pair, panels, product);
}

/* addend += weights @ values of a block; for the tile's first visible block, addend = weights @ values. */
static inline void cached_mix(const cached_attention_args *g, cached_slot *s, const cached_tile *t, int64_t position,
                              const float *values) {
  const int64_t left = t->high - position, rest = g->v_dim % INGOT_PANEL;
  const gemm_product product = {
      .k = left < INGOT_CACHE_BLOCK ? left : INGOT_CACHE_BLOCK,
      .a = s->scores + t->pair * s->score_stride + position % INGOT_CACHE_CHUNK, .a_stride = s->score_stride,
      .b = values, .b_stride = s->direct ? g->v_dim : s->v_stride, .panel_stride = INGOT_PANEL,
      .sums = s->addend + t->pair * s->v_stride, .sums_stride = s->v_stride, .more = position > t->low,
      .halved = rest > 0 && rest <= INGOT_PANEL / 2};
  cached_product(s, t->end - t->pair, (g->v_dim + INGOT_PANEL - 1) / INGOT_PANEL, product);
}

/* Record the block of keys or values (dim wide) that a lone unit reads next; a shared chunk is prefetched only once. */
static inline void cached_expect(cached_slot *s, const void *cache, int64_t block, int64_t dim) {
  const int64_t bits = s->kind == CACHED_F32 ? 32 : s->kind == CACHED_BF16 ? 16 : s->kind == CACHED_I8 ? 8 : 4;
  const int64_t nbytes = dim * INGOT_CACHE_BLOCK * bits / 8;
  s->prefetch_bytes = s->shared ? 0 : nbytes;
  s->prefetch = (const char *)cache + block * nbytes;
}

/* Return whether part of the block at a position is visible to a tile. */
static inline int cached_sees(const cached_tile *t, int64_t position) {
  return t->low < position + INGOT_CACHE_BLOCK && position < t->high;
}

/* The biases of a pair's scores, of which the first is that of position `chunk`; null without any. */
static inline const float *cached_bias(const cached_attention_args *g, const cached_pairs *p, int64_t i,
                                       int64_t chunk) {
  if (!g->biases) return NULL;
  const int64_t columns = g->blocks_each * INGOT_CACHE_BLOCK, head = p->unit.head + i % p->unit.heads;
  return g->biases + head * columns + (g->relative ? columns - p->last[i] : 0) + chunk;
}

/* Cap 16 scores, add their biases, if any, and set those outside [begin, end) to -inf; the first is number j. */
static inline vf cached_cap(const cached_attention_args *g, vf score, const float *bias, int64_t j, int64_t begin,
                            int64_t end) {
  if (g->softcap > 0) score = v_mul(v_tanh(score), v_set(g->softcap * INGOT_LOG2E));
  if (bias)
    score = v_fma(j + 16 > end ? v_load_n(bias + j, end - j) : v_load(bias + j), v_set(INGOT_LOG2E), score);
  const vf lanes = v_load(attention_lanes);
  if (j + 16 > end) score = v_select(v_lt(lanes, v_set((float)(end - j))), score, v_set(-INFINITY));
  if (j < begin) score = v_select(v_lt(lanes, v_set((float)(begin - j))), v_set(-INFINITY), score);
  return score;
}

/* Convert scores [begin, end) of a chunk to weights, and the rest of [low, high) to zeros. Returns the largest score,
 * -inf where there is none; *total, which is 0, gets the sum of the weights. low and high are multiples of 16. */
static inline float cached_weights(const cached_attention_args *g, const float *bias, int64_t begin, int64_t end,
                                   int64_t low, int64_t high, float *scores, float *total) {
  vf most = v_set(-INFINITY), sum = v_set(0);
  int64_t j = low;
  if (begin >= end) {
    for (; j < high; j += 16) v_store(scores + j, v_set(0));
    return -INFINITY;
  }
  const int64_t from = begin / 16 * 16;
  for (; j < from; j += 16) v_store(scores + j, v_set(0));
  for (; j < end; j += 16) {
    vf score = v_load(scores + j);
    if (g->softcap > 0 || bias || j < begin || j + 16 > end) {
      score = cached_cap(g, score, bias, j, begin, end);
      v_store(scores + j, score);
    }
    most = v_max(most, score);
  }
  const float largest = v_max_across(most);
  const vf shift = v_set(largest == -INFINITY ? 0 : largest);
  for (j = from; j < end; j += 16) {
    const vf weight = attention_power(v_load(scores + j), shift);
    v_store(scores + j, weight);
    sum = v_add(sum, weight);
  }
  for (; j < high; j += 16) v_store(scores + j, v_set(0));
  *total = v_sum(sum);
  return largest;
}

/* Join the addend and the softmax of a chunk to the pairs' sums; pairs without a visible position are unchanged. */
static inline void cached_join(const cached_slot *s, cached_pairs *p, const float *largest, const float *total) {
  float fade[32], fresh[32];
  for (int64_t i = 0; i < 32; i += 16) {
    const vf before = v_load(p->largest + i), here = v_load(largest + i), after = v_max(before, here);
    const vf shift = v_select(v_eq(after, v_set(-INFINITY)), v_set(0), after);
    const vf keep = attention_power(before, shift), add = attention_power(here, shift);
    v_store(fade + i, keep);
    v_store(fresh + i, add);
    v_store(p->largest + i, after);
    v_store(p->total + i, v_fma(v_load(p->total + i), keep, v_mul(v_load(total + i), add)));
  }
  for (int64_t i = 0; i < p->count; i++) {
    if (total[i] == 0) continue;
    for (int64_t j = i * s->v_stride; j < (i + 1) * s->v_stride; j += 16)
      v_store(p->sums + j, v_fma(v_load(p->sums + j), v_set(fade[i]), v_mul(v_load(s->addend + j), v_set(fresh[i]))));
  }
}

/* The softmax of each pair's scores of a chunk. */
static inline void cached_softmax(const cached_attention_args *g, const cached_slot *s, const cached_pairs *p,
                                  int64_t chunk, const cached_tile *all, float *largest, float *total) {
  const int64_t low = (all->low - chunk) / INGOT_CACHE_BLOCK * INGOT_CACHE_BLOCK;
  const int64_t high = (all->high - chunk + 15) / 16 * 16;
  for (int64_t i = 0; i < 32; i++) largest[i] = -INFINITY, total[i] = 0;
  for (int64_t i = 0; i < p->count; i++) {
    const int64_t begin = p->first[i] > chunk ? p->first[i] - chunk : 0;
    const int64_t end = p->last[i] - chunk < INGOT_CACHE_CHUNK ? p->last[i] - chunk : INGOT_CACHE_CHUNK;
    largest[i] = cached_weights(g, cached_bias(g, p, i, chunk), begin, end, low, high,
                                s->scores + i * s->score_stride, &total[i]);
  }
}

/* Add a chunk to a unit's pairs. */
static inline void cached_add(const cached_attention_args *g, cached_slot *s, cached_pairs *p, cached_chunk *c) {
  const cached_tile all = cached_view(p, c->begin, 0, p->count);
  if (all.low == all.high) return;
  cached_tile tiles[CACHED_PAIRS];
  const int64_t count = gemm_blocks(p->count, s->score_stride);
  for (int64_t b = 0; b < count; b++)
    tiles[b] = cached_view(p, c->begin, task_begin(p->count, (int32_t)b, (int32_t)count),
                           task_begin(p->count, (int32_t)b + 1, (int32_t)count));
  const int64_t first = (all.low - c->begin) / INGOT_CACHE_BLOCK;
  const int64_t end = (all.high - c->begin + INGOT_CACHE_BLOCK - 1) / INGOT_CACHE_BLOCK;
  cached_queries(g, s, p);
  for (int64_t i = first; i < end; i++) {
    const int64_t position = c->begin + i * INGOT_CACHE_BLOCK;
    const float *keys = cached_keys(g, s, c, i);
    if (i + 1 < end)
      cached_expect(s, g->keys, c->block[i + 1], g->head_dim);
    else
      cached_expect(s, g->values, c->block[first], g->v_dim);
    for (int64_t b = 0; b < count; b++)
      if (cached_sees(&tiles[b], position)) cached_scores(g, s, &tiles[b], position, keys);
  }
  float largest[32], total[32];
  cached_softmax(g, s, p, c->begin, &all, largest, total);
  for (int64_t i = first; i < end; i++) {
    const int64_t position = c->begin + i * INGOT_CACHE_BLOCK;
    const float *values = cached_values(g, s, c, i);
    if (i + 1 < end)
      cached_expect(s, g->values, c->block[i + 1], g->v_dim);
    else if (c->next >= 0)
      cached_expect(s, g->keys, c->next, g->head_dim);
    for (int64_t b = 0; b < count; b++)
      if (cached_sees(&tiles[b], position)) cached_mix(g, s, &tiles[b], position, values);
  }
  cached_join(s, p, largest, total);
}

/* out = sums / total, zeros for a row without visible positions. */
static inline void cached_store(const cached_attention_args *g, const cached_slot *s, const cached_pairs *p) {
  for (int64_t i = 0; i < p->count; i++) {
    float *out = g->out + (p->unit.row + i / p->unit.heads) * g->out_strides[0] +
                 (p->unit.head + i % p->unit.heads) * g->out_strides[1];
    for (int64_t j = 0; j < g->v_dim; j += 16) {
      const vf v =
          p->total[i] == 0 ? v_set(0) : v_div(v_load(p->sums + i * s->v_stride + j), v_set(p->total[i]));
      if (g->v_dim - j < 16)
        v_store_n(out + j, v, g->v_dim - j);
      else
        v_store(out + j, v);
    }
  }
}

/* Units that read one head of one sequence, chunk after chunk. */
static inline void cached_units(const cached_attention_args *g, const paged_rows *t, cached_slot *s,
                                const cached_unit *units, int64_t count) {
  cached_pairs pairs[CACHED_UNITS];
  int64_t low = INT64_MAX, high = 0;
  s->loaded = NULL;
  s->shared = count > 1;
  for (int64_t i = 0; i < count; i++) {
    pairs[i] = cached_begin(g, t, &units[i], s->sums + i * CACHED_PAIRS * s->v_stride, s->v_stride);
    for (int64_t j = 0; j < pairs[i].count; j++) {
      if (pairs[i].last[j] > 0 && pairs[i].first[j] < low) low = pairs[i].first[j];
      if (pairs[i].last[j] > high) high = pairs[i].last[j];
    }
  }
  for (int64_t begin = low / INGOT_CACHE_CHUNK * INGOT_CACHE_CHUNK; begin < high; begin += INGOT_CACHE_CHUNK) {
    cached_chunk chunk = {.begin = begin};
    chunk.high = high < begin + INGOT_CACHE_CHUNK ? high : begin + INGOT_CACHE_CHUNK;
    if (!cached_find(g, t, &units[0], low > begin ? low : begin, &chunk)) break;
    for (int64_t i = 0; i < count; i++) cached_add(g, s, &pairs[i], &chunk);
  }
  for (int64_t i = 0; i < count; i++) cached_store(g, s, &pairs[i]);
}

/* A task owns adjacent units of about its share of the cost; so does a preemption chunk of it. */
static inline void cached_run(const cached_attention_args *g, int32_t kind, int32_t task, int32_t num_tasks) {
  const paged_rows t = cached_rows(g);
  const cached_cut cut = cached_plan(g);
  int64_t whole = 1, done = 0, count = 0;
  for (cached_unit u = cached_first(g, &cut); cached_next(g, &t, &cut, &u);) whole += cached_cost(g, &u);
  int64_t begin = task_begin(whole, task % num_tasks, num_tasks);
  int64_t end = task_begin(whole, task % num_tasks + 1, num_tasks);
  chunk_cut(&begin, &end, task / num_tasks, g->chunks);
  cached_slot slot = cached_open(g, kind, task % num_tasks);
  cached_unit units[CACHED_UNITS];
  for (cached_unit u = cached_first(g, &cut); cached_next(g, &t, &cut, &u);) {
    const int64_t cost = cached_cost(g, &u), middle = done + cost / 2;
    done += cost;
    if (middle < begin) continue;
    if (middle >= end) break;
    if (count == CACHED_UNITS || (count > 0 && (units[0].run != u.run || units[0].kv_head != u.kv_head))) {
      cached_units(g, &t, &slot, units, count);
      count = 0;
    }
    units[count++] = u;
  }
  if (count > 0) cached_units(g, &t, &slot, units, count);
}

void K(cached_attention_f32)(const void *args, int32_t task, int32_t num_tasks) {
  cached_run(args, CACHED_F32, task, num_tasks);
}

void K(cached_attention_bf16)(const void *args, int32_t task, int32_t num_tasks) {
  cached_run(args, CACHED_BF16, task, num_tasks);
}

void K(cached_attention_i8)(const void *args, int32_t task, int32_t num_tasks) {
  cached_run(args, CACHED_I8, task, num_tasks);
}

void K(cached_attention_i4)(const void *args, int32_t task, int32_t num_tasks) {
  cached_run(args, CACHED_I4, task, num_tasks);
}

#undef CACHED_PAIRS
#undef CACHED_UNITS
#undef CACHED_BLOCKS
#undef CACHED_F32
#undef CACHED_BF16
#undef CACHED_I8
#undef CACHED_I4

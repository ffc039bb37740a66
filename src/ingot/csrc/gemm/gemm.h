/* gemm.h: building blocks of every product-sum kernel (gemm, gemv, matmul, attention, conv): the register tile, panel
 * packing, the epilogue, and the division of panels x rows into tasks. */
#ifndef INGOT_GEMM_H
#define INGOT_GEMM_H

#include "kernel.h"
#include "math/vmath.h"

/* The vectorized epilogue store: complete sums in registers become clip(sum + bias) + residual, or clip(sum + bias +
 * residual), and go to out, and as bf16 to rounded. bias: [columns]; pointers may be null; out may be residual. */
typedef struct {
  float *out; int64_t out_stride;
  uint16_t *rounded; int64_t rounded_stride;
  const float *bias, *residual; int64_t residual_stride;
  float low, high; int32_t residual_first;
} gemm_store;

/* sums[rows, 32 * panels] = a[rows, k] @ b[k, 32 * panels]; row j of panel p: b + p * panel_stride + j * b_stride. */
typedef struct {
  int64_t k;
  const float *a;
  int64_t a_stride;
  const float *b;
  int64_t b_stride, panel_stride;
  float *sums;
  int64_t sums_stride;
  const void *prefetch; /* prefetched meanwhile: k * prefetch_step bytes */
  int64_t prefetch_step;
  const gemm_store *store;   /* or null: then the results are the sums */
  int32_t more;              /* add to the sums of earlier elements in `sums` */
  int32_t halved;            /* only the first 16 columns of the last panel are wanted */
} gemm_product;

/* A tile computes a product of 1 <= rows <= GEMM_ROWS; it writes all wanted columns, also where k is 0. With few rows
 * it reads several panels at once. Each element is summed in blocks of INGOT_K_BLOCK from zero, added in order. */
void K(gemm_tile)(int64_t rows, int64_t panels, const gemm_product *p);

/* The same with a stored by columns: element j of row i is at a + j * a_stride + i. */
void K(gemm_tile_columns)(int64_t rows, int64_t panels, const gemm_product *p);

/* The same with bf16 b: row j of a panel holds elements 2j and 2j + 1 of each column, adjacent. Bits are those of
 * gemm_tile with the same numbers as floats. */
void K(gemm_tile_widened)(int64_t rows, int64_t panels, const gemm_product *p);

/* The same with f16 b: row j of a panel holds elements 2j of all columns, then elements 2j + 1. */
void K(gemm_tile_halves)(int64_t rows, int64_t panels, const gemm_product *p);

/* The same with pairs of bf16 as elements of k in a and b; the order of sums is gemm_bf16's in abi.h. On AVX-512 it
 * uses dot products, which not every such CPU has. */
void K(gemm_tile_dots)(int64_t rows, int64_t panels, const gemm_product *p);

/* The same with gemm_bf16's split sums, without blocks of INGOT_K_BLOCK. On AVX-512 it uses AMX. Emitted C has no split
 * sums. */
#if defined(INGOT_LIBRARY)
void K(gemm_tile_split)(int64_t rows, int64_t panels, const gemm_product *p);
#define GEMM_BF16_TILE(g) ((g)->split_sums ? K(gemm_tile_split) : K(gemm_tile_dots))
#else
#define GEMM_BF16_TILE(g) ((void)(g), K(gemm_tile_dots))
#endif

/* The operands of a product and its tile. k and a_stride count the tile's elements. b: the first packed panel; each
 * panel is panel_size floats, or pairs. */
typedef struct {
  void (*tile)(int64_t rows, int64_t panels, const gemm_product *p);
  int64_t k;
  const float *a; int64_t a_stride;
  const float *b; int64_t panel_size;
} gemm_factors;

static inline gemm_factors gemm_f32_factors(const gemm_args *g) {
  return (gemm_factors){K(gemm_tile), g->k, g->a, g->a_stride, g->b, g->k * INGOT_PANEL};
}

static inline gemm_factors gemm_f32_bf16_factors(const gemm_args *g) {
  return (gemm_factors){K(gemm_tile_widened), g->k, g->a, g->a_stride, g->b, (g->k + 1) / 2 * INGOT_PANEL};
}

static inline gemm_factors gemm_f32_f16_factors(const gemm_args *g) {
  return (gemm_factors){K(gemm_tile_halves), g->k, g->a, g->a_stride, g->b, (g->k + 1) / 2 * INGOT_PANEL};
}

static inline gemm_factors gemm_bf16_factors(const gemm_args *g) {
  return (gemm_factors){GEMM_BF16_TILE(g), g->k / 2, g->a, g->a_stride / 2, g->b, g->k / 2 * INGOT_PANEL};
}

/* panel[k][32] = scale * src, with element (i, j) at i * k_stride + j * n_stride; columns from n on are zero. */
void K(pack_panel)(const float *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                   float scale, float *panel);

/* panel[(k + 1) / 2][32][2] of bf16, with element (i, j) at i * k_stride + j * n_stride; the rest is zeros. */
void K(pack_pairs)(const uint16_t *src, int64_t k, int64_t n, int64_t k_stride, int64_t n_stride,
                   float *panel);

/* The number of register tiles that divide `rows` evenly. At most 8 rows of a tile share a set of an 8-way L1 cache. */
static inline int64_t gemm_blocks(int64_t rows, int64_t a_stride) {
  const int64_t most = a_stride % 1024 == 0 && GEMM_ROWS > 8 ? 8 : GEMM_ROWS;
  return (rows + most - 1) / most;
}

/* An epilogue: activation(alpha * sum + bias) + residual, or activation(alpha * sum + bias + residual), stored as f32
 * to c and as bf16 to rounded. Each pointer may be null; with slopes the activation is v_prelu. */
typedef struct {
  const float *column_bias; /* [columns] */
  const float *slopes;      /* [columns] */
  const float *row_bias;    /* [rows] */
  const float *residual;    /* [rows, columns] */
  int64_t residual_stride;
  float alpha;
  float act_alpha, act_beta; /* the activation's attributes */
  int32_t activation;
  int32_t residual_first;
  uint16_t *rounded; /* [rows, columns] */
  int64_t rounded_stride;
} gemm_epilogue;

/* The epilogue of a product with a packed matrix. */
static inline gemm_epilogue gemm_args_epilogue(const gemm_args *g) {
  return (gemm_epilogue){g->bias, g->slopes, NULL, g->residual, g->residual_stride, g->alpha, g->act_alpha, g->act_beta,
                         g->activation, g->residual_first, g->rounded, g->rounded_stride};
}

/* Whether the epilogue has at most a bias, a residual and a clip, which the tile applies in registers. With INGOT_SMALL
 * the general epilogue does everything. */
#if defined(INGOT_SMALL)
static inline int epilogue_is_vectorized(const gemm_epilogue *e) { (void)e; return 0; }
static inline int is_stored_in_tile(const gemm_product *p) { (void)p; return 0; }
#else
static inline int epilogue_is_vectorized(const gemm_epilogue *e) {
  const int clips =
      e->activation == INGOT_ACT_none || e->activation == INGOT_ACT_relu || e->activation == INGOT_ACT_clip;
  return clips && !e->slopes && !e->row_bias && e->alpha == 1.0f;
}

static inline int is_stored_in_tile(const gemm_product *p) { return p->store != NULL; }
#endif

/* The vectorized epilogue of the tile at (row, column). Infinite bounds change nothing, not even a NaN. */
static inline gemm_store epilogue_store(const gemm_epilogue *e, int64_t row, int64_t column, float *out,
                                        int64_t out_stride) {
  gemm_store f = {out, out_stride, e->rounded ? e->rounded + row * e->rounded_stride + column : NULL,
                   e->rounded_stride, e->column_bias ? e->column_bias + column : NULL,
                   e->residual ? e->residual + row * e->residual_stride + column : NULL, e->residual_stride,
                   -INFINITY, INFINITY, e->residual_first};
  if (e->activation == INGOT_ACT_relu) f.low = 0.0f;
  if (e->activation == INGOT_ACT_clip) f.low = e->act_alpha, f.high = e->act_beta;
  return f;
}

/* Cases of is_given: slopes, a residual, results stored as bf16. Emitted C has only the cases that its steps use. */
#define INGOT_SLOPES 1
#define INGOT_RESIDUAL 1
#define INGOT_ROUNDED 1

/* Whether p is not null. */
static inline int32_t is_given(const void *p) { return p != NULL; }

/* Apply the vectorized epilogue to 16 sums at (row, column) with that column's bias, and store them. */
static inline void store_sums(const gemm_store *f, vf bias, int64_t row, int64_t column, vf v) {
  const vf rest = f->residual ? v_load(f->residual + row * f->residual_stride + column) : v_set(-0.0f);
  v = v_add(v, bias);
  if (f->residual_first) v = v_add(v, rest);
  v = v_min(v_set(f->high), v_max(v_set(f->low), v));
  if (!f->residual_first) v = v_add(v, rest);
  if (f->out) v_store(f->out + row * f->out_stride + column, v);
  switch (is_given(f->rounded)) {
    case INGOT_ROUNDED: v_store_bf16(f->rounded + row * f->rounded_stride + column, v);
  }
}

/* Up to 16 numbers as bf16. */
static inline void epilogue_round(vf v, int64_t lanes, uint16_t *to) {
  uint16_t all[16];
  v_store_bf16(lanes < 16 ? all : to, v);
  for (int64_t i = 0; i < lanes && lanes < 16; i++) to[i] = all[i];
}

/* Up to 16 columns of an epilogue's operand. */
static inline vf epilogue_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

#define INGOT_ACTIVATED 1 /* a case of epilogue_is_plain; emitted C has it if some epilogue is not vectorized */

/* Whether an epilogue is only a bias and an activation, on whole registers. With INGOT_SMALL none counts as such. */
#if defined(INGOT_SMALL)
static inline int32_t epilogue_is_plain(const gemm_epilogue *e, int64_t lanes, const float *c) {
  (void)e, (void)lanes, (void)c;
  return 0;
}
#else
static inline int32_t epilogue_is_plain(const gemm_epilogue *e, int64_t lanes, const float *c) {
  return lanes == 16 && c && e->alpha == 1.0f && !e->residual && !e->slopes && !e->row_bias && !e->rounded;
}
#endif

/* c[rows][16] = activation(sums + the bias of 16 columns), with a loop for each activation. The bias is loaded here: a
 * vector as an argument would go through memory on AVX2, in halves that its reader waits for. */
static inline void epilogue_activate(const gemm_epilogue *e, int64_t column, int64_t rows, const float *sums,
                                     int64_t sums_stride, float *c, int64_t c_stride) {
  const vf alpha = v_set(e->act_alpha), beta = v_set(e->act_beta);
  const vf bias = e->column_bias ? v_load(e->column_bias + column) : v_set(-0.0f);
  (void)alpha, (void)beta;
  #define EACH_ROW(expression)                                                                                         \
    for (int64_t i = 0; i < rows; i++) {                                                                               \
      const vf x = v_add(v_load(sums + i * sums_stride), bias);                                                        \
      v_store(c + i * c_stride, expression);                                                                           \
    }
  switch (e->activation) {
    #define ACTIVATION(op, cost, expression) case INGOT_ACT_##op: EACH_ROW(expression) break;
    #include "elementwise.def"
    default: EACH_ROW(x)
  }
  #undef EACH_ROW
}

/* Up to 16 columns of an epilogue, for sums at (row, column) of its operands. */
static inline void epilogue_columns(const gemm_epilogue *e, int64_t row, int64_t column, int64_t rows, int64_t lanes,
                                    const float *sums, int64_t sums_stride, const float *residual, float *c,
                                    int64_t c_stride, uint16_t *rounded) {
  const float *row_bias = e->row_bias ? e->row_bias + row : NULL;
  const vf column_bias = e->column_bias ? epilogue_load(e->column_bias + column, lanes) : v_set(-0.0f);
  switch (epilogue_is_plain(e, lanes, c)) {
    case INGOT_ACTIVATED: epilogue_activate(e, column, rows, sums, sums_stride, c, c_stride); return;
  }
  for (int64_t i = 0; i < rows; i++) {
    vf v = v_load(sums + i * sums_stride), rest = v_set(-0.0f);
    switch (is_given(residual)) {
      case INGOT_RESIDUAL: rest = epilogue_load(residual + i * e->residual_stride, lanes);
    }
    if (e->alpha != 1.0f) v = v_mul(v, v_set(e->alpha));
    v = v_add(v, column_bias);
    if (row_bias) v = v_add(v, v_set(row_bias[i]));
    if (e->residual_first) v = v_add(v, rest);
    switch (is_given(e->slopes)) {
      case INGOT_SLOPES: v = v_prelu(v, epilogue_load(e->slopes + column, lanes));
    }
    if (e->activation != INGOT_ACT_none) v = v_activate(v, e->activation, e->act_alpha, e->act_beta);
    if (!e->residual_first) v = v_add(v, rest);
    switch (is_given(rounded)) {
      case INGOT_ROUNDED: epilogue_round(v, lanes, rounded + i * e->rounded_stride);
    }
    if (!c) continue;
    if (lanes < 16)
      v_store_n(c + i * c_stride, v, lanes);
    else
      v_store(c + i * c_stride, v);
  }
}

/* c[rows, columns] = the epilogue of sums[rows, columns] at (row, column) of the epilogue's operands. c may be the
 * residual, or null where only the bf16 results are wanted. */
static inline void epilogue_apply(const gemm_epilogue *e, int64_t row, int64_t column, int64_t rows, int64_t columns,
                                  const float *sums, int64_t sums_stride, float *c, int64_t c_stride) {
  const float *residual = e->residual ? e->residual + row * e->residual_stride + column : NULL;
  uint16_t *rounded = e->rounded ? e->rounded + row * e->rounded_stride + column : NULL;
  for (int64_t j = 0; j < columns; j += 16)
    epilogue_columns(e, row, column + j, rows, columns - j < 16 ? columns - j : 16, sums + j, sums_stride,
                     residual ? residual + j : NULL, c ? c + j : NULL, c_stride, rounded ? rounded + j : NULL);
}

/* c[rows, 16 * panels] from the sums of `panels` panels, at column `column`: activation(gate) * up. */
static inline void gated_columns(const gemm_args *g, int64_t column, int64_t rows, int64_t panels, const float *sums,
                                 int64_t sums_stride, float *c, uint16_t *rounded) {
  const int64_t gate_half = g->gate == INGOT_GATE_SECOND, up_half = 1 - gate_half;
  const vf alpha = v_set(g->alpha);
  for (int64_t p = 0; p < panels; p++, column += 16, sums += INGOT_PANEL) {
    const vf gate_bias = g->bias ? v_load(g->bias + gate_half * g->n + column) : v_set(-0.0f);
    const vf up_bias = g->bias ? v_load(g->bias + up_half * g->n + column) : v_set(-0.0f);
    for (int64_t i = 0; i < rows; i++) {
      vf gate = v_load(sums + i * sums_stride + 16 * gate_half), up = v_load(sums + i * sums_stride + 16 * up_half);
      if (g->alpha != 1.0f) {
        gate = v_mul(gate, alpha);
        up = v_mul(up, alpha);
      }
      gate = v_activate(v_add(gate, gate_bias), g->activation, g->act_alpha, g->act_beta);
      const vf result = v_mul(gate, v_add(up, up_bias));
      if (c) v_store(c + i * g->c_stride + p * 16, result);
      switch (is_given(rounded)) {
        case INGOT_ROUNDED: v_store_bf16(rounded + i * g->rounded_stride + p * 16, result);
      }
    }
  }
}

/* Prefetch the rows of a panel of c that are needed once the tile is summed. */
static inline void gemm_expect(const float *row, int64_t stride, int64_t rows) {
  for (int64_t i = 0; i < rows; i++, row += stride) {
    __builtin_prefetch(row, 1);
    __builtin_prefetch(row + INGOT_PANEL / 2, 1);
  }
}

/* The number of blocks that `rows` of a panel are divided into. next: the panel that is read after it, or null. A CPU
 * prefetches sequential reads, but not while blocks read a panel again: each block prefetches its share of `next`. */
static inline int64_t gemm_panel_blocks(int64_t rows, int64_t a_stride, const float *next) {
  const int64_t blocks = gemm_blocks(rows, a_stride);
  return next && blocks == 1 && rows > 8 ? 2 : blocks;
}

/* The bytes that each block prefetches in a step of k. */
static inline int64_t gemm_prefetch_step(const gemm_factors *f, int64_t blocks, const float *next) {
  return next && blocks > 1 && f->k ? (f->panel_size * 4 / f->k + blocks - 1) / blocks : 0;
}

/* Rows [begin, end) of one panel of c, `columns` wide and starting at `column`: c = epilogue(a @ b). f->a and c point
 * to row 0, c to the panel's first column; f->b is the panel, whose rows are b_stride apart. next: the packed panel
 * that is read after this one, or null. */
static inline void gemm_panel(const gemm_epilogue *e, int64_t begin, int64_t end, int64_t column, int64_t columns,
                              const gemm_factors *f, int64_t b_stride, float *c, int64_t c_stride, const float *next) {
  const int vectorized = columns % (INGOT_PANEL / 2) == 0 && epilogue_is_vectorized(e);
  float sums[GEMM_ROWS * INGOT_PANEL];
  const int64_t blocks = gemm_panel_blocks(end - begin, f->a_stride, next);
  const int64_t prefetch_step = gemm_prefetch_step(f, blocks, next);
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t row = begin + task_begin(end - begin, (int32_t)block, (int32_t)blocks);
    const int64_t rows = begin + task_begin(end - begin, (int32_t)block + 1, (int32_t)blocks) - row;
    float *to = c ? c + row * c_stride : NULL;
    const gemm_store store = epilogue_store(e, row, column, to, c_stride);
    const gemm_product product = {
      .k = f->k, .a = f->a + row * f->a_stride, .a_stride = f->a_stride, .b = f->b, .b_stride = b_stride,
      .sums = sums, .sums_stride = INGOT_PANEL, .store = vectorized ? &store : NULL, .prefetch_step = prefetch_step,
      .prefetch = prefetch_step ? (const char *)next + block * f->k * prefetch_step : NULL,
      .halved = columns <= INGOT_PANEL / 2};
    if (to) gemm_expect(to, c_stride, rows);
    if (e->residual) gemm_expect(e->residual + row * e->residual_stride + column, e->residual_stride, rows);
    f->tile(rows, 1, &product);
    if (!vectorized) epilogue_apply(e, row, column, rows, columns, sums, INGOT_PANEL, to, c_stride);
  }
}

/* A rectangle of panels x rows. */
typedef struct { int64_t panel_begin, panel_end, row_begin, row_end; } gemm_share;

/* The share of one task. Each task owns whole panels, unless also dividing rows is clearly more even. */
static inline gemm_share gemm_cut(int64_t panels, int64_t rows, int32_t task, int32_t num_tasks) {
  int64_t best = INT64_MAX, across = 1, down = 1;
  for (int64_t d = 1; d <= num_tasks && d <= rows; d++) {
    const int64_t a = num_tasks / d < panels ? num_tasks / d : panels;
    const int64_t largest = a ? (panels + a - 1) / a * ((rows + d - 1) / d) : 0;
    if (best == INT64_MAX || largest < best - best / 8) {
      best = largest;
      across = a;
      down = d;
    }
  }
  if (across == 0 || task >= across * down) return (gemm_share){0, 0, 0, 0};
  const int32_t column = (int32_t)(task % across), row = (int32_t)(task / across);
  return (gemm_share){task_begin(panels, column, (int32_t)across), task_begin(panels, column + 1, (int32_t)across),
                      task_begin(rows, row, (int32_t)down), task_begin(rows, row + 1, (int32_t)down)};
}

/* gemm_cut divides panels first. To divide rows first, call it with rows and panels exchanged; gemm_swap then exchanges
 * the ranges of its result back. */
static inline gemm_share gemm_swap(gemm_share s) {
  return (gemm_share){s.row_begin, s.row_end, s.panel_begin, s.panel_end};
}

#define GEMM_MANY_ROWS 24 /* rows of each task, from which on every task may read all of the weights */

/* The share of a product with constant weights. With many rows a thread owns the same rows in every step: its
 * operands are in its own cache. */
static inline gemm_share gemm_cut_fixed(int64_t panels, int64_t rows, int32_t task, int32_t num_tasks) {
  return rows < GEMM_MANY_ROWS * num_tasks ? gemm_cut(panels, rows, task, num_tasks)
                                       : gemm_swap(gemm_cut(rows, panels, task, num_tasks));
}

/* The share of a gemm; a preemption chunk has some of its panels. */
static inline gemm_share gemm_args_share(const gemm_args *g, int64_t panels, int32_t task, int32_t num_tasks) {
  gemm_share share = gemm_cut_fixed(panels, g->m, task % num_tasks, num_tasks);
  chunk_cut(&share.panel_begin, &share.panel_end, task / num_tasks, g->chunks);
  return share;
}

#endif

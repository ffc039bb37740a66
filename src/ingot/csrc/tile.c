/* tile.c: programs of element-wise ops and row reductions, run for one tile after the other, so that what passes
 * between ops stays in the first-level cache and choosing a routine costs nothing per element. Each routine is the
 * arithmetic of the kernel of its op, element for element: a program gives the bits of its ops run one by one. */
#include <string.h>

#include "kernel.h"
#include "vmath.h"

/* One op on one tile. *_row: the distance between rows; *_step: 1, or 0 where a row has one element. Reductions:
 * `begin` is the tile's first column, `length` the row's, `state` 16 floats for lanes of a row that goes on. */
typedef struct {
  float *out; const float *a; const float *b; const float *c;
  int64_t out_row; int64_t a_row; int64_t b_row; int64_t c_row;
  int64_t a_step; int64_t b_step; int64_t c_step;
  int64_t rows; int64_t cols;
  int64_t begin; int64_t length;
  float *state;
  float alpha; float beta;
} tile_call;

typedef void (*tile_routine)(const tile_call *call);

/* 16 elements of a row, or the first n of them, or 16 times its only one. */
static inline vf tile_load(const float *p, int64_t step, int64_t i) { return step ? v_load(p + i) : v_set(*p); }

static inline vf tile_load_n(const float *p, int64_t step, int64_t i, int64_t n) {
  return step ? v_load_n(p + i, n) : v_set(*p);
}

#define TILE_UNARY(name, expression)                                 \
  static void K(name##_tile)(const tile_call *call) {                \
    const vf alpha = v_set(call->alpha), beta = v_set(call->beta);   \
    (void)alpha, (void)beta;                                         \
    for (int64_t row = 0; row < call->rows; row++) {                 \
      const float *a = call->a + row * call->a_row;                  \
      float *out = call->out + row * call->out_row;                  \
      int64_t i = 0;                                                 \
      for (; i + 16 <= call->cols; i += 16) {                        \
        vf x = tile_load(a, call->a_step, i);                        \
        v_store(out + i, expression);                                \
      }                                                              \
      if (i < call->cols) {                                          \
        vf x = tile_load_n(a, call->a_step, i, call->cols - i);      \
        v_store_n(out + i, expression, call->cols - i);              \
      }                                                              \
    }                                                                \
  }

TILE_UNARY(copy, x)
TILE_UNARY(relu, v_relu(x))
TILE_UNARY(neg, v_neg(x))
TILE_UNARY(abs, v_abs(x))
TILE_UNARY(sign, v_sign(x))
TILE_UNARY(exp, v_exp(x))
TILE_UNARY(expm1, v_expm1(x))
TILE_UNARY(log, v_log(x))
TILE_UNARY(log1p, v_log1p(x))
TILE_UNARY(sqrt, v_sqrt(x))
TILE_UNARY(rsqrt, v_rsqrt(x))
TILE_UNARY(reciprocal, v_reciprocal(x))
TILE_UNARY(sin, v_sin(x))
TILE_UNARY(cos, v_cos(x))
TILE_UNARY(tanh, v_tanh(x))
TILE_UNARY(erf, v_erf(x))
TILE_UNARY(sigmoid, v_sigmoid(x))
TILE_UNARY(silu, v_silu(x))
TILE_UNARY(gelu_erf, v_gelu_erf(x))
TILE_UNARY(gelu_tanh, v_gelu_tanh(x))
TILE_UNARY(floor, v_floor(x))
TILE_UNARY(ceil, v_ceil(x))
TILE_UNARY(round, v_round(x))
TILE_UNARY(softplus, v_softplus(x))
TILE_UNARY(hard_swish, v_hard_swish(x))
TILE_UNARY(leaky_relu, v_leaky_relu(x, alpha))
TILE_UNARY(elu, v_elu(x, alpha))
TILE_UNARY(hard_sigmoid, v_hard_sigmoid(x, alpha, beta))
TILE_UNARY(clip, v_clip(x, alpha, beta))
TILE_UNARY(norm_scale, v_rsqrt(v_add(v_div(x, beta), alpha)))

#define TILE_LOOP(load_x, load_y, expression)   \
  for (; i + 16 <= call->cols; i += 16) {       \
    vf x = load_x, y = load_y;                  \
    v_store(out + i, expression);               \
  }

#define TILE_BINARY(name, expression)                                          \
  static void K(name##_tile)(const tile_call *call) {                          \
    for (int64_t row = 0; row < call->rows; row++) {                           \
      const float *a = call->a + row * call->a_row;                            \
      const float *b = call->b + row * call->b_row;                            \
      float *out = call->out + row * call->out_row;                            \
      int64_t i = 0;                                                           \
      if (call->a_step && call->b_step)                                        \
        TILE_LOOP(v_load(a + i), v_load(b + i), expression)                    \
      else if (call->a_step)                                                   \
        TILE_LOOP(v_load(a + i), v_set(*b), expression)                        \
      else                                                                     \
        TILE_LOOP(v_set(*a), tile_load(b, call->b_step, i), expression)        \
      if (i < call->cols) {                                                    \
        vf x = tile_load_n(a, call->a_step, i, call->cols - i);                \
        vf y = tile_load_n(b, call->b_step, i, call->cols - i);                \
        v_store_n(out + i, expression, call->cols - i);                        \
      }                                                                        \
    }                                                                          \
  }

TILE_BINARY(add, v_add(x, y))
TILE_BINARY(sub, v_sub(x, y))
TILE_BINARY(mul, v_mul(x, y))
TILE_BINARY(div, v_div(x, y))
TILE_BINARY(maximum, v_maximum(x, y))
TILE_BINARY(minimum, v_minimum(x, y))

#define TILE_TERNARY(name, expression)                                                       \
  static void K(name##_tile)(const tile_call *call) {                                        \
    for (int64_t row = 0; row < call->rows; row++) {                                         \
      const float *a = call->a + row * call->a_row, *b = call->b + row * call->b_row;        \
      const float *c = call->c + row * call->c_row;                                          \
      float *out = call->out + row * call->out_row;                                          \
      int64_t i = 0;                                                                         \
      for (; i + 16 <= call->cols; i += 16) {                                                \
        vf x = tile_load(a, call->a_step, i), y = tile_load(b, call->b_step, i);             \
        vf z = tile_load(c, call->c_step, i);                                                \
        v_store(out + i, expression);                                                        \
      }                                                                                      \
      if (i < call->cols) {                                                                  \
        int64_t n = call->cols - i;                                                          \
        vf x = tile_load_n(a, call->a_step, i, n), y = tile_load_n(b, call->b_step, i, n);   \
        vf z = tile_load_n(c, call->c_step, i, n);                                           \
        v_store_n(out + i, expression, n);                                                   \
      }                                                                                      \
    }                                                                                        \
  }

TILE_TERNARY(scale_shifted, v_mul(v_sub(x, y), z))
TILE_TERNARY(fma, v_fma(x, y, z))

/* The result of a lane-wise maximum or minimum across lanes: NaN where a lane is, as v_maximum has it. */
static inline float tile_max_across(vf acc) { return v_any(v_isnan(acc)) ? NAN : v_max_across(acc); }
static inline float tile_min_across(vf acc) { return v_any(v_isnan(acc)) ? NAN : -v_max_across(v_neg(acc)); }
static inline float tile_max(float a, float b) { return a != a || a > b ? a : b; }
static inline float tile_min(float a, float b) { return a != a || a < b ? a : b; }
static inline float tile_add(float a, float b) { return a + b; }

static inline vf tile_below(int64_t n, vf x, float rest) {
  static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return v_select(v_lt(v_load(lane), v_set((float)n)), x, v_set(rest));
}

/* out[row] = the reduction of `element`, of x and the row's y: lane l takes columns 16 i + l of a chunk of
 * INGOT_REDUCE_CHUNK, lanes meet in one fixed tree, chunks are joined in order. Between the tiles of a chunk the lanes
 * are in `state`. */
#define TILE_REDUCE(name, neutral, element, combine, across, join, finish)                             \
  static void K(name##_tile)(const tile_call *call) {                                                  \
    for (int64_t row = 0; row < call->rows; row++) {                                                   \
      const float *a = call->a + row * call->a_row;                                                    \
      const vf y = call->b ? v_set(call->b[row * call->b_row]) : v_set(0);                             \
      const int64_t cols = call->cols, end = call->begin + cols;                                       \
      vf acc = call->begin % INGOT_REDUCE_CHUNK ? v_load(call->state) : v_set(neutral);                \
      (void)y;                                                                                         \
      int64_t i = 0;                                                                                   \
      for (; i + 16 <= cols; i += 16) {                                                                \
        vf x = tile_load(a, call->a_step, i);                                                          \
        acc = combine(acc, element);                                                                   \
      }                                                                                                \
      if (i < cols) {                                                                                  \
        vf x = tile_load_n(a, call->a_step, i, cols - i);                                              \
        acc = combine(acc, tile_below(cols - i, element, neutral));                                    \
      }                                                                                                \
      if (end % INGOT_REDUCE_CHUNK && end < call->length) {                                            \
        v_store(call->state, acc);                                                                     \
        continue;                                                                                      \
      }                                                                                                \
      float total = end > INGOT_REDUCE_CHUNK ? join(call->out[row], across(acc)) : across(acc);        \
      call->out[row] = end < call->length ? total : finish(total, (float)call->length);                \
    }                                                                                                  \
  }

#define TILE_TOTAL(total, count) (total)
#define TILE_MEAN(total, count) (total / count)
#define TILE_SQUARE(acc, d) v_fma(d, d, acc)

TILE_REDUCE(sum, 0, x, v_add, v_sum, tile_add, TILE_TOTAL)
TILE_REDUCE(mean, 0, x, v_add, v_sum, tile_add, TILE_MEAN)
TILE_REDUCE(max, -INFINITY, x, v_maximum, tile_max_across, tile_max, TILE_TOTAL)
TILE_REDUCE(min, INFINITY, x, v_minimum, tile_min_across, tile_min, TILE_TOTAL)
TILE_REDUCE(squares, 0, v_sub(x, y), TILE_SQUARE, v_sum, tile_add, TILE_TOTAL)

static const tile_routine tile_routines[] = {
  [INGOT_TILE_OP_SUM] = K(sum_tile),
  [INGOT_TILE_OP_MEAN] = K(mean_tile),
  [INGOT_TILE_OP_MAX] = K(max_tile),
  [INGOT_TILE_OP_MIN] = K(min_tile),
  [INGOT_TILE_OP_SQUARES] = K(squares_tile),
  [INGOT_TILE_OP_COPY] = K(copy_tile),
  [INGOT_TILE_OP_RELU] = K(relu_tile),
  [INGOT_TILE_OP_NEG] = K(neg_tile),
  [INGOT_TILE_OP_ABS] = K(abs_tile),
  [INGOT_TILE_OP_SIGN] = K(sign_tile),
  [INGOT_TILE_OP_EXP] = K(exp_tile),
  [INGOT_TILE_OP_EXPM1] = K(expm1_tile),
  [INGOT_TILE_OP_LOG] = K(log_tile),
  [INGOT_TILE_OP_LOG1P] = K(log1p_tile),
  [INGOT_TILE_OP_SQRT] = K(sqrt_tile),
  [INGOT_TILE_OP_RSQRT] = K(rsqrt_tile),
  [INGOT_TILE_OP_RECIPROCAL] = K(reciprocal_tile),
  [INGOT_TILE_OP_SIN] = K(sin_tile),
  [INGOT_TILE_OP_COS] = K(cos_tile),
  [INGOT_TILE_OP_TANH] = K(tanh_tile),
  [INGOT_TILE_OP_ERF] = K(erf_tile),
  [INGOT_TILE_OP_SIGMOID] = K(sigmoid_tile),
  [INGOT_TILE_OP_SILU] = K(silu_tile),
  [INGOT_TILE_OP_GELU_ERF] = K(gelu_erf_tile),
  [INGOT_TILE_OP_GELU_TANH] = K(gelu_tanh_tile),
  [INGOT_TILE_OP_FLOOR] = K(floor_tile),
  [INGOT_TILE_OP_CEIL] = K(ceil_tile),
  [INGOT_TILE_OP_ROUND] = K(round_tile),
  [INGOT_TILE_OP_SOFTPLUS] = K(softplus_tile),
  [INGOT_TILE_OP_HARD_SWISH] = K(hard_swish_tile),
  [INGOT_TILE_OP_LEAKY_RELU] = K(leaky_relu_tile),
  [INGOT_TILE_OP_ELU] = K(elu_tile),
  [INGOT_TILE_OP_HARD_SIGMOID] = K(hard_sigmoid_tile),
  [INGOT_TILE_OP_CLIP] = K(clip_tile),
  [INGOT_TILE_OP_NORM_SCALE] = K(norm_scale_tile),
  [INGOT_TILE_OP_ADD] = K(add_tile),
  [INGOT_TILE_OP_SUB] = K(sub_tile),
  [INGOT_TILE_OP_MUL] = K(mul_tile),
  [INGOT_TILE_OP_DIV] = K(div_tile),
  [INGOT_TILE_OP_MAXIMUM] = K(maximum_tile),
  [INGOT_TILE_OP_MINIMUM] = K(minimum_tile),
  [INGOT_TILE_OP_SCALE_SHIFTED] = K(scale_shifted_tile),
  [INGOT_TILE_OP_FMA] = K(fma_tile),
};

/* Where a tile lies: rows of one `outer`, first row and column, how many. */
typedef struct { int64_t outer; int64_t row; int64_t rows; int64_t col; int64_t cols; } tile_place;

/* An operand or result of an op on a tile. */
typedef struct { float *p; int64_t row; int64_t step; } tile_view;

static inline tile_view tile_view_at(const tile_args *args, float *slots, int32_t place, const tile_place *at) {
  if (place < 0) return (tile_view){NULL, 0, 0};
  if (place < INGOT_TILE_MEMORY) {
    int64_t offset = at->outer * args->outer_strides[place] + at->row * args->row_strides[place];
    return (tile_view){(float *)args->memory[place] + offset + at->col * args->col_steps[place],
                       args->row_strides[place], args->col_steps[place]};
  }
  int32_t slot = place - INGOT_TILE_MEMORY;
  float *p = slots + args->slot_offsets[slot];
  if (args->slot_kinds[slot] == INGOT_TILE_SLOT_COLUMN) return (tile_view){p, 1, 0};
  return (tile_view){args->slot_kinds[slot] == INGOT_TILE_SLOT_ROW ? p + at->col : p, args->slot_stride, 1};
}

/* Rows that lie without gaps behind each other, or one element for all, are one long row. */
static inline int tile_joins(tile_view v, int64_t row) { return v.step ? v.row == row : v.row == 0; }

static inline void tile_run_op(const tile_args *args, float *slots, int32_t op, const tile_place *at) {
  tile_view out = tile_view_at(args, slots, args->out[op], at), a = tile_view_at(args, slots, args->a[op], at);
  tile_view b = tile_view_at(args, slots, args->b[op], at), c = tile_view_at(args, slots, args->c[op], at);
  tile_call call = {.out = out.p, .a = a.p, .b = b.p, .c = c.p, .out_row = out.row, .a_row = a.row, .b_row = b.row,
                    .c_row = c.row, .a_step = a.step, .b_step = b.step, .c_step = c.step, .rows = at->rows,
                    .cols = at->cols, .begin = at->col, .length = args->cols,
                    .alpha = args->alpha[op], .beta = args->beta[op]};
  if (args->code[op] <= INGOT_TILE_LAST_REDUCTION) {
    call.state = out.p + (args->tile_rows + 15) / 16 * 16;
  } else if (!out.step) {
    if (at->col) return; /* one element a row, computed with the first tile: the rows are the elements */
    call.rows = 1;
    call.cols = at->rows;
    call.a_step = a.row;
    call.b_step = b.row;
    call.c_step = c.row;
  } else if (at->rows > 1 && tile_joins(a, out.row) && tile_joins(b, out.row) && tile_joins(c, out.row)) {
    /* Slots hold whole vectors, so what lies between the end of a row and the next is computed along, unless memory
     * takes part: then rows end where they end. */
    int in_slots = args->out[op] >= INGOT_TILE_MEMORY;
    in_slots &= !a.step || args->a[op] >= INGOT_TILE_MEMORY;
    in_slots &= !b.step || args->b[op] >= INGOT_TILE_MEMORY;
    in_slots &= !c.step || args->c[op] >= INGOT_TILE_MEMORY;
    if (in_slots || out.row == at->cols) {
      call.cols = at->rows * out.row;
      call.rows = 1;
    }
  }
  tile_routines[args->code[op]](&call);
}

/* All ops on a block of rows: segment by segment, each tile by tile. */
static inline void tile_run_rows(const tile_args *args, float *slots, tile_place at) {
  int64_t end = at.col + at.cols, begin = at.col;
  int32_t first = 0;
  for (int32_t segment = 0; segment < args->segment_count; segment++) {
    int32_t last = first;
    while (last < args->op_count && args->segment[last] == segment) last++;
    for (at.col = begin; at.col < end; at.col += args->tile_cols) {
      at.cols = end - at.col < args->tile_cols ? end - at.col : args->tile_cols;
      for (int32_t op = first; op < last; op++) tile_run_op(args, slots, op, &at);
    }
    first = last;
  }
}

void K(tile_f32)(const void *p, int32_t part, int32_t parts) {
  const tile_args *args = p;
  float *slots = args->scratch + part * args->scratch_stride;
  int64_t width = args->segment_count > 1 ? args->cols : args->tile_cols;
  int64_t blocks = (args->rows + args->tile_rows - 1) / args->tile_rows, columns = (args->cols + width - 1) / width;
  int64_t count = args->outer * blocks * columns, end = part_begin(count, part + 1, parts);
  for (int64_t i = part_begin(count, part, parts); i < end; i++) {
    tile_place at = {.outer = i / columns / blocks, .row = i / columns % blocks * args->tile_rows,
                     .col = i % columns * width};
    at.rows = args->rows - at.row < args->tile_rows ? args->rows - at.row : args->tile_rows;
    at.cols = args->cols - at.col < width ? args->cols - at.col : width;
    tile_run_rows(args, slots, at);
  }
}

#undef TILE_UNARY
#undef TILE_LOOP
#undef TILE_BINARY
#undef TILE_TERNARY
#undef TILE_REDUCE
#undef TILE_TOTAL
#undef TILE_MEAN
#undef TILE_SQUARE

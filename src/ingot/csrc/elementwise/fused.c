/* fused.c: fused programs of element-wise ops and row reductions, run one tile after the other, so that intermediate
 * values stay in the L1 cache and the dispatch of a routine costs nothing per element. Each routine has the arithmetic
 * of the kernel of its op, element for element: a program gives the bits of its ops run one by one. */
#include <string.h>

#include "kernel.h"
#include "reduce/norm.h"
#include "math/vmath.h"

/* One op on one tile. *_row: the distance between rows; *_step: 1, or 0 where a row has one element. Reductions:
 * `begin` is the tile's first column, `length` the row's, `state` 16 floats for the lanes of each unfinished row. */
typedef struct {
  float *out; const float *a; const float *b; const float *c; const float *d; const float *e;
  const float *f;
  int64_t out_row; int64_t a_row; int64_t b_row; int64_t c_row; int64_t d_row; int64_t e_row; int64_t f_row;
  int64_t a_step; int64_t b_step; int64_t d_step; int64_t e_step;
  int64_t rows; int64_t cols;
  int64_t begin; int64_t length;
  float *state;
  float alpha; float beta;
} fused_call;

typedef void (*fused_routine)(const fused_call *call);

/* 16 elements of a row, or the first n of them, or 16 times its only one. */
static inline vf fused_load(const float *p, int64_t step, int64_t i) { return step ? v_load(p + i) : v_set(*p); }

static inline vf fused_load_n(const float *p, int64_t step, int64_t i, int64_t n) {
  return step ? v_load_n(p + i, n) : v_set(*p);
}

#define FUSED_UNARY(name, expression)                                                                                  \
  static void K(name##_fused)(const fused_call *call) {                                                                \
    const vf alpha = v_set(call->alpha), beta = v_set(call->beta);                                                     \
    const int64_t cols = call->cols, a_step = call->a_step;                                                            \
    (void)alpha, (void)beta;                                                                                           \
    for (int64_t row = 0; row < call->rows; row++) {                                                                   \
      const float *a = call->a + row * call->a_row;                                                                    \
      float *out = call->out + row * call->out_row;                                                                    \
      int64_t i = 0;                                                                                                   \
      for (; i + 16 <= cols; i += 16) {                                                                                \
        vf x = fused_load(a, a_step, i);                                                                               \
        v_store(out + i, expression);                                                                                  \
      }                                                                                                                \
      if (i < cols) {                                                                                                  \
        vf x = fused_load_n(a, a_step, i, cols - i);                                                                   \
        v_store_n(out + i, expression, cols - i);                                                                      \
      }                                                                                                                \
    }                                                                                                                  \
  }

FUSED_UNARY(copy, x)

/* Floats to bf16, the dtype of `out`. */
static void K(narrow_fused)(const fused_call *call) {
  for (int64_t row = 0; row < call->rows; row++) {
    const float *a = call->a + row * call->a_row;
    uint16_t *out = (uint16_t *)(void *)call->out + row * call->out_row, last[16];
    int64_t i = 0;
    for (; i + 16 <= call->cols; i += 16) v_store_bf16(out + i, v_load(a + i));
    if (i == call->cols) continue;
    v_store_bf16(last, v_load_n(a + i, call->cols - i));
    memcpy(out + i, last, (size_t)(call->cols - i) * sizeof *out);
  }
}

/* Floats to 8-bit integers, the dtype of `out`: alpha is the scale, beta the zero point. */
#define FUSED_QUANTIZE(name, type, low, high, store)                                                                   \
  static void K(name##_fused)(const fused_call *call) {                                                                \
    const vf scale = v_set(call->alpha), zero = v_set(call->beta);                                                     \
    const int64_t cols = call->cols, a_step = call->a_step;                                                            \
    const int is_plain = call->alpha == 1.0f;                                                                          \
    for (int64_t row = 0; row < call->rows; row++) {                                                                   \
      const float *a = call->a + row * call->a_row;                                                                    \
      type *out = (type *)(void *)call->out + row * call->out_row, last[16];                                           \
      for (int64_t i = 0; i < cols; i += 16) {                                                                         \
        const int64_t n = cols - i < 16 ? cols - i : 16;                                                               \
        vf x = n < 16 ? fused_load_n(a, a_step, i, n) : fused_load(a, a_step, i);                                      \
        x = v_round(is_plain ? x : v_div(x, scale));                                                                   \
        x = v_add(v_select(v_isnan(x), v_set(0.0f), x), zero);                                                         \
        x = v_min(v_max(x, v_set(low)), v_set(high));                                                                  \
        store(n < 16 ? last : out + i, x);                                                                             \
        if (n < 16) memcpy(out + i, last, (size_t)n);                                                                  \
      }                                                                                                                \
    }                                                                                                                  \
  }

FUSED_QUANTIZE(quantize_u8, uint8_t, 0.0f, 255.0f, v_store_u8)
FUSED_QUANTIZE(quantize_i8, int8_t, -128.0f, 127.0f, v_store_i8)

/* The inverse: from 8-bit integers in memory, the dtype of `a`. */
#define FUSED_DEQUANTIZE(name, type, load)                                                                             \
  static void K(name##_fused)(const fused_call *call) {                                                                \
    const vf scale = v_set(call->alpha), zero = v_set(call->beta);                                                     \
    const int64_t cols = call->cols;                                                                                   \
    for (int64_t row = 0; row < call->rows; row++) {                                                                   \
      const type *a = (const type *)(const void *)call->a + row * call->a_row;                                         \
      float *out = call->out + row * call->out_row;                                                                    \
      type last[16] = {0};                                                                                             \
      int64_t i = 0;                                                                                                   \
      if (!call->a_step) memset(last, *(const uint8_t *)a, sizeof last);                                               \
      for (; call->a_step && i + 16 <= cols; i += 16) v_store(out + i, v_mul(v_sub(load(a + i), zero), scale));        \
      for (; i < cols; i += 16) {                                                                                      \
        const int64_t n = cols - i < 16 ? cols - i : 16;                                                               \
        if (call->a_step) memcpy(last, a + i, (size_t)n);                                                              \
        const vf x = v_mul(v_sub(load(last), zero), scale);                                                            \
        if (n < 16)                                                                                                    \
          v_store_n(out + i, x, n);                                                                                    \
        else                                                                                                           \
          v_store(out + i, x);                                                                                         \
      }                                                                                                                \
    }                                                                                                                  \
  }

FUSED_DEQUANTIZE(dequantize_u8, uint8_t, v_load_u8)
FUSED_DEQUANTIZE(dequantize_i8, int8_t, v_load_i8)

#define FUSED_BINARY_LOOP(load_x, load_y, expression)                                                                  \
  for (; i + 16 <= cols; i += 16) {                                                                                    \
    vf x = load_x, y = load_y;                                                                                         \
    v_store(out + i, expression);                                                                                      \
  }

#define FUSED_BINARY(name, expression)                                                                                 \
  static void K(name##_fused)(const fused_call *call) {                                                                \
    const int64_t cols = call->cols, a_step = call->a_step, b_step = call->b_step;                                     \
    for (int64_t row = 0; row < call->rows; row++) {                                                                   \
      const float *a = call->a + row * call->a_row;                                                                    \
      const float *b = call->b + row * call->b_row;                                                                    \
      float *out = call->out + row * call->out_row;                                                                    \
      const vf a_first = v_set(*a), b_first = v_set(*b);                                                               \
      int64_t i = 0;                                                                                                   \
      if (a_step && b_step)                                                                                            \
        FUSED_BINARY_LOOP(v_load(a + i), v_load(b + i), expression)                                                    \
      else if (a_step)                                                                                                 \
        FUSED_BINARY_LOOP(v_load(a + i), b_first, expression)                                                          \
      else if (b_step)                                                                                                 \
        FUSED_BINARY_LOOP(a_first, v_load(b + i), expression)                                                          \
      else                                                                                                             \
        FUSED_BINARY_LOOP(a_first, b_first, expression)                                                                \
      if (i < cols) {                                                                                                  \
        vf x = fused_load_n(a, a_step, i, cols - i);                                                                   \
        vf y = fused_load_n(b, b_step, i, cols - i);                                                                   \
        v_store_n(out + i, expression, cols - i);                                                                      \
      }                                                                                                                \
    }                                                                                                                  \
  }

#define UNARY(op, cost, expression) FUSED_UNARY(op, expression)
#define BINARY(op, cost, expression) FUSED_BINARY(op, expression)
#include "elementwise.def"

/* The operand that replaces one that a norm does not have. */
static const float fused_none[16];

/* The pivot of each row, from its first tile. */
static void K(pivot_fused)(const fused_call *call) {
  for (int64_t row = 0; row < call->rows; row++) call->out[row] = norm_pivot(call->a + row * call->a_row, call->length);
}

/* The scale of each row from its sum of squares; b: pivots, c: offsets. */
static void K(norm_scale_fused)(const fused_call *call) {
  for (int64_t i = 0; i < call->cols; i += 16) {
    const int64_t n = call->cols - i < 16 ? call->cols - i : 16;
    norm_centre centre = {v_set(0), v_set(0)};
    if (call->c) centre = norm_centre_of(v_load_n(call->b + i, n), v_load_n(call->c + i, n));
    const vf squares = v_load_n(call->a + i, n);
    v_store_n(call->out + i, norm_scale(squares, centre.low, v_set(call->beta), v_set(call->alpha)), n);
  }
}

/* (x - mean) c d + e, the mean being b + f; b, c and f have one element a row: the last pass of a norm. */
static void K(normalise_fused)(const fused_call *call) {
  const int64_t cols = call->cols, d_step = call->d_step, e_step = call->e_step;
  const float *offset = call->f ? call->f : fused_none;
  for (int64_t row = 0; row < call->rows; row++) {
    const float *a = call->a + row * call->a_row, *d = call->d + row * call->d_row, *e = call->e + row * call->e_row;
    const norm_centre centre = norm_centre_of(v_set(call->b[row * call->b_row]), v_set(offset[row * call->f_row]));
    const vf scale = v_set(call->c[row * call->c_row]), shift = norm_shift(centre.low, scale);
    float *out = call->out + row * call->out_row;
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) {
      vf w = fused_load(d, d_step, i), b = fused_load(e, e_step, i);
      v_store(out + i, norm_element(v_load(a + i), centre.high, scale, shift, w, b));
    }
    if (i < cols) {
      int64_t n = cols - i;
      vf w = fused_load_n(d, d_step, i, n), b = fused_load_n(e, e_step, i, n);
      v_store_n(out + i, norm_element(v_load_n(a + i, n), centre.high, scale, shift, w, b), n);
    }
  }
}

/* Lanes of the rows that reductions read together, so that the additions of one row overlap with those of the
 * others. */
typedef struct { vf row[INGOT_FUSED_ROWS]; } fused_lanes;

/* Rows row..row+3; the last row is repeated. */
typedef struct { const float *row[INGOT_FUSED_ROWS]; } fused_four;

static inline fused_four fused_four_at(const float *p, int64_t stride, int64_t row, int64_t rows) {
  fused_four r;
  for (int64_t k = 0; k < INGOT_FUSED_ROWS; k++) r.row[k] = p + (row + k < rows ? row + k : rows - 1) * stride;
  return r;
}

/* The scalar v_maximum and v_minimum: NaN where either is. */
static inline float fused_max(float a, float b) { return a != a || a > b ? a : b; }
static inline float fused_min(float a, float b) { return a != a || a < b ? a : b; }
static inline float fused_add(float a, float b) { return a + b; }
static inline float fused_max_across(vf acc) { return v_any(v_isnan(acc)) ? NAN : v_max_across(acc); }
static inline float fused_min_across(vf acc) { return v_any(v_isnan(acc)) ? NAN : -v_max_across(v_neg(acc)); }

static inline vf fused_first(vf x, vf y) {
  (void)y;
  return x;
}

/* The lanes at the start of a tile. */
static inline fused_lanes fused_lanes_begin(const fused_call *call, int64_t row, float neutral) {
  fused_lanes acc;
  for (int64_t k = 0; k < INGOT_FUSED_ROWS; k++) {
    int goes_on = call->begin % INGOT_REDUCE_CHUNK && row + k < call->rows;
    acc.row[k] = goes_on ? v_load(call->state + (row + k) * 16) : v_set(neutral);
  }
  return acc;
}

/* out[row] = the reduction of `element`, an expression of x and the row's y, which is b + c: lane l reduces columns 16
 * i + l of a chunk of INGOT_REDUCE_CHUNK, lanes are joined in one fixed tree, chunks are joined in order. Between the
 * tiles of a chunk the lanes are in `state`. */
#define FUSED_REDUCE(name, neutral, element, combine, across, join, finalize)                                          \
  static inline fused_lanes K(name##_lanes)(const fused_call *call, int64_t row) {                                     \
    fused_four a = fused_four_at(call->a, call->a_row, row, call->rows);                                               \
    fused_four b = fused_four_at(call->b ? call->b : call->a, call->b_row, row, call->rows);                           \
    fused_four c = fused_four_at(call->c ? call->c : fused_none, call->c_row, row, call->rows);                        \
    fused_lanes acc = fused_lanes_begin(call, row, neutral);                                                           \
    const vf y0 = v_set(*b.row[0] + *c.row[0]), y1 = v_set(*b.row[1] + *c.row[1]);                                     \
    const vf y2 = v_set(*b.row[2] + *c.row[2]), y3 = v_set(*b.row[3] + *c.row[3]);                                     \
    vf s0 = acc.row[0], s1 = acc.row[1], s2 = acc.row[2], s3 = acc.row[3];                                             \
    int64_t i = 0, n = call->cols;                                                                                     \
    for (; i + 16 <= n; i += 16) {                                                                                     \
      s0 = combine(s0, element(fused_load(a.row[0], call->a_step, i), y0));                                            \
      s1 = combine(s1, element(fused_load(a.row[1], call->a_step, i), y1));                                            \
      s2 = combine(s2, element(fused_load(a.row[2], call->a_step, i), y2));                                            \
      s3 = combine(s3, element(fused_load(a.row[3], call->a_step, i), y3));                                            \
    }                                                                                                                  \
    if (i < n) {                                                                                                       \
      n -= i;                                                                                                          \
      s0 = combine(s0, v_below(n, element(fused_load_n(a.row[0], call->a_step, i, n), y0), neutral));                  \
      s1 = combine(s1, v_below(n, element(fused_load_n(a.row[1], call->a_step, i, n), y1), neutral));                  \
      s2 = combine(s2, v_below(n, element(fused_load_n(a.row[2], call->a_step, i, n), y2), neutral));                  \
      s3 = combine(s3, v_below(n, element(fused_load_n(a.row[3], call->a_step, i, n), y3), neutral));                  \
    }                                                                                                                  \
    return (fused_lanes){{s0, s1, s2, s3}};                                                                            \
  }                                                                                                                    \
                                                                                                                       \
  static void K(name##_fused)(const fused_call *call) {                                                                \
    const int64_t end = call->begin + call->cols;                                                                      \
    for (int64_t first = 0; first < call->rows; first += INGOT_FUSED_ROWS) {                                           \
      fused_lanes acc = K(name##_lanes)(call, first);                                                                  \
      for (int64_t k = 0; k < INGOT_FUSED_ROWS && first + k < call->rows; k++) {                                       \
        float *out = call->out + first + k;                                                                            \
        if (end % INGOT_REDUCE_CHUNK && end < call->length) {                                                          \
          v_store(call->state + (first + k) * 16, acc.row[k]);                                                         \
          continue;                                                                                                    \
        }                                                                                                              \
        float total = across(acc.row[k]);                                                                              \
        total = end > INGOT_REDUCE_CHUNK ? join(*out, total) : total;                                                  \
        *out = end < call->length ? total : finalize(total, (float)call->length);                                      \
      }                                                                                                                \
    }                                                                                                                  \
  }

#define FUSED_TOTAL(total, count) (total)
#define FUSED_MEAN(total, count) (total / count)
#define FUSED_SQUARE(acc, d) v_fma(d, d, acc)

FUSED_REDUCE(sum, 0, fused_first, v_add, v_sum, fused_add, FUSED_TOTAL)
FUSED_REDUCE(mean, 0, fused_first, v_add, v_sum, fused_add, FUSED_MEAN)
FUSED_REDUCE(max, -INFINITY, fused_first, v_maximum, fused_max_across, fused_max, FUSED_TOTAL)
FUSED_REDUCE(min, INFINITY, fused_first, v_minimum, fused_min_across, fused_min, FUSED_TOTAL)
FUSED_REDUCE(squares, 0, v_sub, FUSED_SQUARE, v_sum, fused_add, FUSED_TOTAL)
FUSED_REDUCE(offset, 0, v_sub, v_add, v_sum, fused_add, FUSED_MEAN)

static const fused_routine fused_routines[] = {
  [INGOT_FUSED_OP_sum] = K(sum_fused),
  [INGOT_FUSED_OP_mean] = K(mean_fused),
  [INGOT_FUSED_OP_max] = K(max_fused),
  [INGOT_FUSED_OP_min] = K(min_fused),
  [INGOT_FUSED_OP_squares] = K(squares_fused),
  [INGOT_FUSED_OP_offset] = K(offset_fused),
  [INGOT_FUSED_OP_pivot] = K(pivot_fused),
  [INGOT_FUSED_OP_copy] = K(copy_fused),
  [INGOT_FUSED_OP_narrow] = K(narrow_fused),
  [INGOT_FUSED_OP_quantize_u8] = K(quantize_u8_fused),
  [INGOT_FUSED_OP_quantize_i8] = K(quantize_i8_fused),
  [INGOT_FUSED_OP_dequantize_u8] = K(dequantize_u8_fused),
  [INGOT_FUSED_OP_dequantize_i8] = K(dequantize_i8_fused),
  [INGOT_FUSED_OP_norm_scale] = K(norm_scale_fused),
  [INGOT_FUSED_OP_normalise] = K(normalise_fused),
  #define UNARY(op, cost, expression) [INGOT_FUSED_OP_##op] = K(op##_fused),
  #define BINARY(op, cost, expression) [INGOT_FUSED_OP_##op] = K(op##_fused),
  #include "elementwise.def"
};

/* A tile: rows of one `outer`, first row and column, and their numbers. */
typedef struct { int64_t outer; int64_t row; int64_t rows; int64_t col; int64_t cols; } fused_tile;

/* An operand or result of an op on a tile. */
typedef struct { float *p; int64_t row; int64_t step; } fused_view;

static inline fused_view fused_view_at(const fused_args *args, float *slots, int32_t operand, const fused_tile *at) {
  if (operand < 0) return (fused_view){NULL, 0, 0};
  if (operand < INGOT_FUSED_MEMORY) {
    int64_t offset = at->outer * args->outer_strides[operand] + at->row * args->row_strides[operand];
    return (fused_view){(float *)args->memory[operand] + offset + at->col * args->col_steps[operand],
                       args->row_strides[operand], args->col_steps[operand]};
  }
  int32_t slot = operand - INGOT_FUSED_MEMORY;
  float *p = slots + args->slot_offsets[slot];
  if (args->slot_kinds[slot] == INGOT_FUSED_SLOT_COLUMN) return (fused_view){p, 1, 0};
  if (args->slot_kinds[slot] == INGOT_FUSED_SLOT_ROW) return (fused_view){p + at->col, (args->cols + 15) / 16 * 16, 1};
  return (fused_view){p, args->fused_cols, 1};
}

/* Rows without gaps between them, or one element for all rows, are one long row. */
static inline int fused_joins(fused_view v, int64_t row) { return v.step ? v.row == row : v.row == 0; }

static inline int fused_is_slot(int32_t operand) { return operand >= INGOT_FUSED_MEMORY; }

/* The address of an element of memory with so many bytes an item, given its address as if items were floats. */
static inline float *fused_narrower(const fused_args *args, int32_t operand, const float *p, int64_t item) {
  const float *memory = args->memory[operand];
  return (float *)((uintptr_t)memory + (uintptr_t)((p - memory) * item));
}

static inline void fused_run_op(const fused_args *args, float *slots, int32_t op, const fused_tile *at) {
  const int32_t code = args->code[op];
  fused_view out = fused_view_at(args, slots, args->out[op], at);
  fused_view a = fused_view_at(args, slots, args->a[op], at), b = fused_view_at(args, slots, args->b[op], at);
  fused_view c = fused_view_at(args, slots, args->c[op], at);
  const int quantizes = code == INGOT_FUSED_OP_quantize_u8 || code == INGOT_FUSED_OP_quantize_i8;
  if (code == INGOT_FUSED_OP_narrow || quantizes) out.p = fused_narrower(args, args->out[op], out.p, quantizes ? 1 : 2);
  if (code == INGOT_FUSED_OP_dequantize_u8 || code == INGOT_FUSED_OP_dequantize_i8)
    a.p = fused_narrower(args, args->a[op], a.p, 1);
  fused_call call = {.out = out.p, .a = a.p, .b = b.p, .c = c.p, .out_row = out.row, .a_row = a.row, .b_row = b.row,
                    .c_row = c.row, .a_step = a.step, .b_step = b.step, .rows = at->rows, .cols = at->cols,
                    .begin = at->col, .length = args->cols, .alpha = args->alpha[op], .beta = args->beta[op]};
  if (code <= INGOT_FUSED_LAST_REDUCTION) {
    call.state = out.p + (args->fused_rows + 15) / 16 * 16;
  } else if (code == INGOT_FUSED_OP_normalise) {
    fused_view d = fused_view_at(args, slots, args->d[op], at), e = fused_view_at(args, slots, args->e[op], at);
    fused_view f = fused_view_at(args, slots, args->f[op], at);
    call.d = d.p, call.e = e.p, call.f = f.p;
    call.d_row = d.row, call.e_row = e.row, call.f_row = f.row;
    call.d_step = d.step, call.e_step = e.step;
  } else if (code == INGOT_FUSED_OP_pivot) {
    if (at->col) return;
  } else if (!out.step) {
    if (at->col) return; /* one element a row, computed with the first tile: the rows are the elements */
    call.rows = 1;
    call.cols = at->rows;
    call.a_step = a.row;
    call.b_step = b.row;
  } else if (at->rows > 1 && fused_joins(a, out.row) && fused_joins(b, out.row)) {
    /* Slots hold whole vectors, so the padding between rows is computed too, unless an operand is in memory, where rows
     * have no padding. */
    int in_slots = fused_is_slot(args->out[op]) && (!a.step || fused_is_slot(args->a[op])) &&
                   (!b.step || fused_is_slot(args->b[op]));
    if (out.row == at->cols || (in_slots && out.row - at->cols < 16)) {
      call.cols = at->rows * out.row;
      call.rows = 1;
    }
  }
  fused_routines[code](&call);
}

/* All ops on a block of rows: segment by segment, each tile by tile. */
static inline void fused_run_rows(const fused_args *args, float *slots, fused_tile at) {
  int64_t end = at.col + at.cols, begin = at.col;
  int32_t first = 0;
  for (int32_t segment = 0; segment < args->segment_count; segment++) {
    int32_t last = first;
    while (last < args->op_count && args->segment[last] == segment) last++;
    for (at.col = begin; at.col < end; at.col += args->fused_cols) {
      at.cols = end - at.col < args->fused_cols ? end - at.col : args->fused_cols;
      for (int32_t op = first; op < last; op++) fused_run_op(args, slots, op, &at);
    }
    first = last;
  }
}

void K(fused_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const fused_args *args = p;
  float *slots = args->scratch + task * args->scratch_stride;
  int64_t width = args->segment_count > 1 ? args->cols : args->fused_cols;
  int64_t blocks = (args->rows + args->fused_rows - 1) / args->fused_rows, columns = (args->cols + width - 1) / width;
  int64_t count = args->outer * blocks * columns, end = task_begin(count, task + 1, num_tasks);
  for (int64_t i = task_begin(count, task, num_tasks); i < end; i++) {
    fused_tile at = {.outer = i / columns / blocks, .row = i / columns % blocks * args->fused_rows,
                     .col = i % columns * width};
    at.rows = args->rows - at.row < args->fused_rows ? args->rows - at.row : args->fused_rows;
    at.cols = args->cols - at.col < width ? args->cols - at.col : width;
    fused_run_rows(args, slots, at);
  }
}

#undef FUSED_UNARY
#undef FUSED_QUANTIZE
#undef FUSED_DEQUANTIZE
#undef FUSED_BINARY_LOOP
#undef FUSED_BINARY
#undef FUSED_REDUCE
#undef FUSED_TOTAL
#undef FUSED_MEAN
#undef FUSED_SQUARE

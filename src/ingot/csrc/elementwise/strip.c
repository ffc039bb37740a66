/* strip.c: programs of element-wise ops and row reductions, run for one strip after the other, so that what passes
 * between ops stays in the first-level cache and choosing a routine costs nothing per element. Each routine is the
 * arithmetic of the kernel of its op, element for element: a program gives the bits of its ops run one by one. */
#include <string.h>

#include "kernel.h"
#include "reduce/norm.h"
#include "math/vmath.h"

/* One op on one strip. *_row: the distance between rows; *_step: 1, or 0 where a row has one element. Reductions:
 * `begin` is the strip's first column, `length` the row's, `state` 16 floats for the lanes of each row that goes on. */
typedef struct {
  float *out; const float *a; const float *b; const float *c; const float *d; const float *e;
  const float *f;
  int64_t out_row; int64_t a_row; int64_t b_row; int64_t c_row; int64_t d_row; int64_t e_row; int64_t f_row;
  int64_t a_step; int64_t b_step; int64_t d_step; int64_t e_step;
  int64_t rows; int64_t cols;
  int64_t begin; int64_t length;
  float *state;
  float alpha; float beta;
} strip_call;

typedef void (*strip_routine)(const strip_call *call);

/* 16 elements of a row, or the first n of them, or 16 times its only one. */
static inline vf strip_load(const float *p, int64_t step, int64_t i) { return step ? v_load(p + i) : v_set(*p); }

static inline vf strip_load_n(const float *p, int64_t step, int64_t i, int64_t n) {
  return step ? v_load_n(p + i, n) : v_set(*p);
}

#define STRIP_UNARY(name, expression)                              \
  static void K(name##_strip)(const strip_call *call) {            \
    const vf alpha = v_set(call->alpha), beta = v_set(call->beta); \
    const int64_t cols = call->cols, a_step = call->a_step;        \
    (void)alpha, (void)beta;                                       \
    for (int64_t row = 0; row < call->rows; row++) {               \
      const float *a = call->a + row * call->a_row;                \
      float *out = call->out + row * call->out_row;                \
      int64_t i = 0;                                               \
      for (; i + 16 <= cols; i += 16) {                            \
        vf x = strip_load(a, a_step, i);                           \
        v_store(out + i, expression);                              \
      }                                                            \
      if (i < cols) {                                              \
        vf x = strip_load_n(a, a_step, i, cols - i);               \
        v_store_n(out + i, expression, cols - i);                  \
      }                                                            \
    }                                                              \
  }

STRIP_UNARY(copy, x)

/* Floats as bf16, which `out` is. */
static void K(narrow_strip)(const strip_call *call) {
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

/* Floats as integers of 8 bits, which `out` is: alpha is the scale, beta the zero point. */
#define STRIP_QUANTIZE(name, type, low, high, store)                                              \
  static void K(name##_strip)(const strip_call *call) {                                           \
    const vf scale = v_set(call->alpha), zero = v_set(call->beta);                                \
    const int64_t cols = call->cols, a_step = call->a_step;                                       \
    const int is_plain = call->alpha == 1.0f;                                                     \
    for (int64_t row = 0; row < call->rows; row++) {                                              \
      const float *a = call->a + row * call->a_row;                                               \
      type *out = (type *)(void *)call->out + row * call->out_row, last[16];                      \
      for (int64_t i = 0; i < cols; i += 16) {                                                    \
        const int64_t n = cols - i < 16 ? cols - i : 16;                                          \
        vf x = n < 16 ? strip_load_n(a, a_step, i, n) : strip_load(a, a_step, i);                 \
        x = v_round(is_plain ? x : v_div(x, scale));                                              \
        x = v_add(v_select(v_isnan(x), v_set(0.0f), x), zero);                                    \
        x = v_min(v_max(x, v_set(low)), v_set(high));                                             \
        store(n < 16 ? last : out + i, x);                                                        \
        if (n < 16) memcpy(out + i, last, (size_t)n);                                             \
      }                                                                                           \
    }                                                                                             \
  }

STRIP_QUANTIZE(quantize_u8, uint8_t, 0.0f, 255.0f, v_store_u8)
STRIP_QUANTIZE(quantize_i8, int8_t, -128.0f, 127.0f, v_store_i8)

/* And back, of what `a` has in memory. */
#define STRIP_DEQUANTIZE(name, type, load)                                                        \
  static void K(name##_strip)(const strip_call *call) {                                           \
    const vf scale = v_set(call->alpha), zero = v_set(call->beta);                                \
    const int64_t cols = call->cols;                                                              \
    for (int64_t row = 0; row < call->rows; row++) {                                              \
      const type *a = (const type *)(const void *)call->a + row * call->a_row;                    \
      float *out = call->out + row * call->out_row;                                               \
      type last[16] = {0};                                                                        \
      int64_t i = 0;                                                                              \
      if (!call->a_step) memset(last, *(const uint8_t *)a, sizeof last);                          \
      for (; call->a_step && i + 16 <= cols; i += 16) v_store(out + i, v_mul(v_sub(load(a + i), zero), scale)); \
      for (; i < cols; i += 16) {                                                                 \
        const int64_t n = cols - i < 16 ? cols - i : 16;                                          \
        if (call->a_step) memcpy(last, a + i, (size_t)n);                                         \
        const vf x = v_mul(v_sub(load(last), zero), scale);                                       \
        if (n < 16)                                                                               \
          v_store_n(out + i, x, n);                                                               \
        else                                                                                      \
          v_store(out + i, x);                                                                    \
      }                                                                                           \
    }                                                                                             \
  }

STRIP_DEQUANTIZE(dequantize_u8, uint8_t, v_load_u8)
STRIP_DEQUANTIZE(dequantize_i8, int8_t, v_load_i8)

#define STRIP_BINARY_LOOP(load_x, load_y, expression) \
  for (; i + 16 <= cols; i += 16) {                   \
    vf x = load_x, y = load_y;                        \
    v_store(out + i, expression);                     \
  }

#define STRIP_BINARY(name, expression)                                             \
  static void K(name##_strip)(const strip_call *call) {                            \
    const int64_t cols = call->cols, a_step = call->a_step, b_step = call->b_step; \
    for (int64_t row = 0; row < call->rows; row++) {                               \
      const float *a = call->a + row * call->a_row;                                \
      const float *b = call->b + row * call->b_row;                                \
      float *out = call->out + row * call->out_row;                                \
      const vf a_first = v_set(*a), b_first = v_set(*b);                           \
      int64_t i = 0;                                                               \
      if (a_step && b_step)                                                        \
        STRIP_BINARY_LOOP(v_load(a + i), v_load(b + i), expression)                \
      else if (a_step)                                                             \
        STRIP_BINARY_LOOP(v_load(a + i), b_first, expression)                      \
      else if (b_step)                                                             \
        STRIP_BINARY_LOOP(a_first, v_load(b + i), expression)                      \
      else                                                                         \
        STRIP_BINARY_LOOP(a_first, b_first, expression)                            \
      if (i < cols) {                                                              \
        vf x = strip_load_n(a, a_step, i, cols - i);                               \
        vf y = strip_load_n(b, b_step, i, cols - i);                               \
        v_store_n(out + i, expression, cols - i);                                  \
      }                                                                            \
    }                                                                              \
  }

#define UNARY(op, cost, expression) STRIP_UNARY(op, expression)
#define BINARY(op, cost, expression) STRIP_BINARY(op, expression)
#include "elementwise.def"

/* What stands for an operand that a norm does not have. */
static const float strip_none[16];

/* The pivot of each row, of its first strip. */
static void K(pivot_strip)(const strip_call *call) {
  for (int64_t row = 0; row < call->rows; row++) call->out[row] = norm_pivot(call->a + row * call->a_row, call->length);
}

/* The scale of each row from its sum of squares; b: pivots, c: offsets. */
static void K(norm_scale_strip)(const strip_call *call) {
  for (int64_t i = 0; i < call->cols; i += 16) {
    const int64_t n = call->cols - i < 16 ? call->cols - i : 16;
    norm_centre centre = {v_set(0), v_set(0)};
    if (call->c) centre = norm_centre_of(v_load_n(call->b + i, n), v_load_n(call->c + i, n));
    const vf squares = v_load_n(call->a + i, n);
    v_store_n(call->out + i, norm_scale(squares, centre.low, v_set(call->beta), v_set(call->alpha)), n);
  }
}

/* (x - mean) c d + e, the mean being b + f; b, c and f have one element a row: the last pass of a norm. */
static void K(normalise_strip)(const strip_call *call) {
  const int64_t cols = call->cols, d_step = call->d_step, e_step = call->e_step;
  const float *offset = call->f ? call->f : strip_none;
  for (int64_t row = 0; row < call->rows; row++) {
    const float *a = call->a + row * call->a_row, *d = call->d + row * call->d_row, *e = call->e + row * call->e_row;
    const norm_centre centre = norm_centre_of(v_set(call->b[row * call->b_row]), v_set(offset[row * call->f_row]));
    const vf scale = v_set(call->c[row * call->c_row]), shift = norm_shift(centre.low, scale);
    float *out = call->out + row * call->out_row;
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) {
      vf w = strip_load(d, d_step, i), b = strip_load(e, e_step, i);
      v_store(out + i, norm_element(v_load(a + i), centre.high, scale, shift, w, b));
    }
    if (i < cols) {
      int64_t n = cols - i;
      vf w = strip_load_n(d, d_step, i, n), b = strip_load_n(e, e_step, i, n);
      v_store_n(out + i, norm_element(v_load_n(a + i, n), centre.high, scale, shift, w, b), n);
    }
  }
}

/* Lanes of the rows that reductions take through memory together, so that the additions of one row, each waiting for
 * the last, overlap with those of the others. */
typedef struct { vf row[INGOT_STRIP_ROWS]; } strip_lanes;

/* Rows row..row+3; past the last row, the last again. */
typedef struct { const float *row[INGOT_STRIP_ROWS]; } strip_four;

static inline strip_four strip_four_at(const float *p, int64_t stride, int64_t row, int64_t rows) {
  strip_four r;
  for (int64_t k = 0; k < INGOT_STRIP_ROWS; k++) r.row[k] = p + (row + k < rows ? row + k : rows - 1) * stride;
  return r;
}

/* What v_maximum and v_minimum have: NaN where either is. */
static inline float strip_max(float a, float b) { return a != a || a > b ? a : b; }
static inline float strip_min(float a, float b) { return a != a || a < b ? a : b; }
static inline float strip_add(float a, float b) { return a + b; }
static inline float strip_max_across(vf acc) { return v_any(v_isnan(acc)) ? NAN : v_max_across(acc); }
static inline float strip_min_across(vf acc) { return v_any(v_isnan(acc)) ? NAN : -v_max_across(v_neg(acc)); }

static inline vf strip_first(vf x, vf y) {
  (void)y;
  return x;
}

/* The lanes with which a strip begins. */
static inline strip_lanes strip_lanes_begin(const strip_call *call, int64_t row, float neutral) {
  strip_lanes acc;
  for (int64_t k = 0; k < INGOT_STRIP_ROWS; k++) {
    int goes_on = call->begin % INGOT_REDUCE_CHUNK && row + k < call->rows;
    acc.row[k] = goes_on ? v_load(call->state + (row + k) * 16) : v_set(neutral);
  }
  return acc;
}

/* out[row] = the reduction of `element`, of x and the row's y, which is b + c: lane l takes columns 16 i + l of a chunk
 * of INGOT_REDUCE_CHUNK, lanes meet in one fixed tree, chunks are joined in order. Between the strips of a chunk the
 * lanes are in `state`. */
#define STRIP_REDUCE(name, neutral, element, combine, across, join, finish)                           \
  static inline strip_lanes K(name##_lanes)(const strip_call *call, int64_t row) {                    \
    strip_four a = strip_four_at(call->a, call->a_row, row, call->rows);                              \
    strip_four b = strip_four_at(call->b ? call->b : call->a, call->b_row, row, call->rows);          \
    strip_four c = strip_four_at(call->c ? call->c : strip_none, call->c_row, row, call->rows);       \
    strip_lanes acc = strip_lanes_begin(call, row, neutral);                                          \
    const vf y0 = v_set(*b.row[0] + *c.row[0]), y1 = v_set(*b.row[1] + *c.row[1]);                    \
    const vf y2 = v_set(*b.row[2] + *c.row[2]), y3 = v_set(*b.row[3] + *c.row[3]);                    \
    vf s0 = acc.row[0], s1 = acc.row[1], s2 = acc.row[2], s3 = acc.row[3];                            \
    int64_t i = 0, n = call->cols;                                                                    \
    for (; i + 16 <= n; i += 16) {                                                                    \
      s0 = combine(s0, element(strip_load(a.row[0], call->a_step, i), y0));                           \
      s1 = combine(s1, element(strip_load(a.row[1], call->a_step, i), y1));                           \
      s2 = combine(s2, element(strip_load(a.row[2], call->a_step, i), y2));                           \
      s3 = combine(s3, element(strip_load(a.row[3], call->a_step, i), y3));                           \
    }                                                                                                 \
    if (i < n) {                                                                                      \
      n -= i;                                                                                         \
      s0 = combine(s0, v_below(n, element(strip_load_n(a.row[0], call->a_step, i, n), y0), neutral)); \
      s1 = combine(s1, v_below(n, element(strip_load_n(a.row[1], call->a_step, i, n), y1), neutral)); \
      s2 = combine(s2, v_below(n, element(strip_load_n(a.row[2], call->a_step, i, n), y2), neutral)); \
      s3 = combine(s3, v_below(n, element(strip_load_n(a.row[3], call->a_step, i, n), y3), neutral)); \
    }                                                                                                 \
    return (strip_lanes){{s0, s1, s2, s3}};                                                           \
  }                                                                                                   \
                                                                                                      \
  static void K(name##_strip)(const strip_call *call) {                                               \
    const int64_t end = call->begin + call->cols;                                                     \
    for (int64_t first = 0; first < call->rows; first += INGOT_STRIP_ROWS) {                          \
      strip_lanes acc = K(name##_lanes)(call, first);                                                 \
      for (int64_t k = 0; k < INGOT_STRIP_ROWS && first + k < call->rows; k++) {                      \
        float *out = call->out + first + k;                                                           \
        if (end % INGOT_REDUCE_CHUNK && end < call->length) {                                         \
          v_store(call->state + (first + k) * 16, acc.row[k]);                                        \
          continue;                                                                                   \
        }                                                                                             \
        float total = across(acc.row[k]);                                                             \
        total = end > INGOT_REDUCE_CHUNK ? join(*out, total) : total;                                 \
        *out = end < call->length ? total : finish(total, (float)call->length);                       \
      }                                                                                               \
    }                                                                                                 \
  }

#define STRIP_TOTAL(total, count) (total)
#define STRIP_MEAN(total, count) (total / count)
#define STRIP_SQUARE(acc, d) v_fma(d, d, acc)

STRIP_REDUCE(sum, 0, strip_first, v_add, v_sum, strip_add, STRIP_TOTAL)
STRIP_REDUCE(mean, 0, strip_first, v_add, v_sum, strip_add, STRIP_MEAN)
STRIP_REDUCE(max, -INFINITY, strip_first, v_maximum, strip_max_across, strip_max, STRIP_TOTAL)
STRIP_REDUCE(min, INFINITY, strip_first, v_minimum, strip_min_across, strip_min, STRIP_TOTAL)
STRIP_REDUCE(squares, 0, v_sub, STRIP_SQUARE, v_sum, strip_add, STRIP_TOTAL)
STRIP_REDUCE(offset, 0, v_sub, v_add, v_sum, strip_add, STRIP_MEAN)

static const strip_routine strip_routines[] = {
  [INGOT_STRIP_OP_sum] = K(sum_strip),
  [INGOT_STRIP_OP_mean] = K(mean_strip),
  [INGOT_STRIP_OP_max] = K(max_strip),
  [INGOT_STRIP_OP_min] = K(min_strip),
  [INGOT_STRIP_OP_squares] = K(squares_strip),
  [INGOT_STRIP_OP_offset] = K(offset_strip),
  [INGOT_STRIP_OP_pivot] = K(pivot_strip),
  [INGOT_STRIP_OP_copy] = K(copy_strip),
  [INGOT_STRIP_OP_narrow] = K(narrow_strip),
  [INGOT_STRIP_OP_quantize_u8] = K(quantize_u8_strip),
  [INGOT_STRIP_OP_quantize_i8] = K(quantize_i8_strip),
  [INGOT_STRIP_OP_dequantize_u8] = K(dequantize_u8_strip),
  [INGOT_STRIP_OP_dequantize_i8] = K(dequantize_i8_strip),
  [INGOT_STRIP_OP_norm_scale] = K(norm_scale_strip),
  [INGOT_STRIP_OP_normalise] = K(normalise_strip),
  #define UNARY(op, cost, expression) [INGOT_STRIP_OP_##op] = K(op##_strip),
  #define BINARY(op, cost, expression) [INGOT_STRIP_OP_##op] = K(op##_strip),
  #include "elementwise.def"
};

/* Where a strip lies: rows of one `outer`, first row and column, how many. */
typedef struct { int64_t outer; int64_t row; int64_t rows; int64_t col; int64_t cols; } strip_place;

/* An operand or result of an op on a strip. */
typedef struct { float *p; int64_t row; int64_t step; } strip_view;

static inline strip_view strip_view_at(const strip_args *args, float *slots, int32_t place, const strip_place *at) {
  if (place < 0) return (strip_view){NULL, 0, 0};
  if (place < INGOT_STRIP_MEMORY) {
    int64_t offset = at->outer * args->outer_strides[place] + at->row * args->row_strides[place];
    return (strip_view){(float *)args->memory[place] + offset + at->col * args->col_steps[place],
                       args->row_strides[place], args->col_steps[place]};
  }
  int32_t slot = place - INGOT_STRIP_MEMORY;
  float *p = slots + args->slot_offsets[slot];
  if (args->slot_kinds[slot] == INGOT_STRIP_SLOT_COLUMN) return (strip_view){p, 1, 0};
  if (args->slot_kinds[slot] == INGOT_STRIP_SLOT_ROW) return (strip_view){p + at->col, (args->cols + 15) / 16 * 16, 1};
  return (strip_view){p, args->strip_cols, 1};
}

/* Rows that lie without gaps behind each other, or one element for all, are one long row. */
static inline int strip_joins(strip_view v, int64_t row) { return v.step ? v.row == row : v.row == 0; }

static inline int strip_is_slot(int32_t place) { return place >= INGOT_STRIP_MEMORY; }

/* Where an element of memory lies whose items have so many bytes, given where it would lie if they were floats. */
static inline float *strip_narrower(const strip_args *args, int32_t place, const float *p, int64_t item) {
  const float *memory = args->memory[place];
  return (float *)((uintptr_t)memory + (uintptr_t)((p - memory) * item));
}

static inline void strip_run_op(const strip_args *args, float *slots, int32_t op, const strip_place *at) {
  const int32_t code = args->code[op];
  strip_view out = strip_view_at(args, slots, args->out[op], at);
  strip_view a = strip_view_at(args, slots, args->a[op], at), b = strip_view_at(args, slots, args->b[op], at);
  strip_view c = strip_view_at(args, slots, args->c[op], at);
  const int quantizes = code == INGOT_STRIP_OP_quantize_u8 || code == INGOT_STRIP_OP_quantize_i8;
  if (code == INGOT_STRIP_OP_narrow || quantizes) out.p = strip_narrower(args, args->out[op], out.p, quantizes ? 1 : 2);
  if (code == INGOT_STRIP_OP_dequantize_u8 || code == INGOT_STRIP_OP_dequantize_i8)
    a.p = strip_narrower(args, args->a[op], a.p, 1);
  strip_call call = {.out = out.p, .a = a.p, .b = b.p, .c = c.p, .out_row = out.row, .a_row = a.row, .b_row = b.row,
                    .c_row = c.row, .a_step = a.step, .b_step = b.step, .rows = at->rows, .cols = at->cols,
                    .begin = at->col, .length = args->cols, .alpha = args->alpha[op], .beta = args->beta[op]};
  if (code <= INGOT_STRIP_LAST_REDUCTION) {
    call.state = out.p + (args->strip_rows + 15) / 16 * 16;
  } else if (code == INGOT_STRIP_OP_normalise) {
    strip_view d = strip_view_at(args, slots, args->d[op], at), e = strip_view_at(args, slots, args->e[op], at);
    strip_view f = strip_view_at(args, slots, args->f[op], at);
    call.d = d.p, call.e = e.p, call.f = f.p;
    call.d_row = d.row, call.e_row = e.row, call.f_row = f.row;
    call.d_step = d.step, call.e_step = e.step;
  } else if (code == INGOT_STRIP_OP_pivot) {
    if (at->col) return;
  } else if (!out.step) {
    if (at->col) return; /* one element a row, computed with the first strip: the rows are the elements */
    call.rows = 1;
    call.cols = at->rows;
    call.a_step = a.row;
    call.b_step = b.row;
  } else if (at->rows > 1 && strip_joins(a, out.row) && strip_joins(b, out.row)) {
    /* Slots hold whole vectors, so what lies between the end of a row and the next is computed along, unless memory
     * takes part: then rows end where they end. */
    int in_slots = strip_is_slot(args->out[op]) && (!a.step || strip_is_slot(args->a[op])) &&
                   (!b.step || strip_is_slot(args->b[op]));
    if (out.row == at->cols || (in_slots && out.row - at->cols < 16)) {
      call.cols = at->rows * out.row;
      call.rows = 1;
    }
  }
  strip_routines[code](&call);
}

/* All ops on a block of rows: segment by segment, each strip by strip. */
static inline void strip_run_rows(const strip_args *args, float *slots, strip_place at) {
  int64_t end = at.col + at.cols, begin = at.col;
  int32_t first = 0;
  for (int32_t segment = 0; segment < args->segment_count; segment++) {
    int32_t last = first;
    while (last < args->op_count && args->segment[last] == segment) last++;
    for (at.col = begin; at.col < end; at.col += args->strip_cols) {
      at.cols = end - at.col < args->strip_cols ? end - at.col : args->strip_cols;
      for (int32_t op = first; op < last; op++) strip_run_op(args, slots, op, &at);
    }
    first = last;
  }
}

void K(strip_f32)(const void *p, int32_t part, int32_t parts) {
  const strip_args *args = p;
  float *slots = args->scratch + part * args->scratch_stride;
  int64_t width = args->segment_count > 1 ? args->cols : args->strip_cols;
  int64_t blocks = (args->rows + args->strip_rows - 1) / args->strip_rows, columns = (args->cols + width - 1) / width;
  int64_t count = args->outer * blocks * columns, end = part_begin(count, part + 1, parts);
  for (int64_t i = part_begin(count, part, parts); i < end; i++) {
    strip_place at = {.outer = i / columns / blocks, .row = i / columns % blocks * args->strip_rows,
                     .col = i % columns * width};
    at.rows = args->rows - at.row < args->strip_rows ? args->rows - at.row : args->strip_rows;
    at.cols = args->cols - at.col < width ? args->cols - at.col : width;
    strip_run_rows(args, slots, at);
  }
}

#undef STRIP_UNARY
#undef STRIP_QUANTIZE
#undef STRIP_DEQUANTIZE
#undef STRIP_BINARY_LOOP
#undef STRIP_BINARY
#undef STRIP_REDUCE
#undef STRIP_TOTAL
#undef STRIP_MEAN
#undef STRIP_SQUARE

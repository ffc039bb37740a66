/* elementwise.c: unary, binary, ternary and cast kernels over strided operands. In an expression x, y and z are
 * elements of a, b and c; for f32 they are 16 lanes. */
#include <string.h>

#include "math/bf16.h"
#include "math/f16.h"
#include "kernel.h"
#include "elementwise/strided.h"
#include "math/vmath.h"

#define UNARY_F32(name, expression)                                                                                    \
  void K(name##_f32)(const void *p, int32_t task, int32_t num_tasks) {                                                 \
    const elementwise_args *args = p;                                                                                  \
    const vf alpha = v_set(args->alpha), beta = v_set(args->beta);                                                     \
    (void)alpha, (void)beta;                                                                                           \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const float *a = (const float *)args->a + w.a;                                                                   \
      float *out = (float *)args->out + w.out;                                                                         \
      int64_t i = 0;                                                                                                   \
      if (w.a_step == 1 && w.out_step == 1)                                                                            \
        for (; i + 16 <= w.count; i += 16) {                                                                           \
          vf x = v_load(a + i);                                                                                        \
          v_store(out + i, expression);                                                                                \
        }                                                                                                              \
      for (; i < w.count; i += 16) {                                                                                   \
        int64_t n = w.count - i < 16 ? w.count - i : 16;                                                               \
        vf x = load_lanes(a + i * w.a_step, w.a_step, n);                                                              \
        store_lanes(out + i * w.out_step, w.out_step, n, expression);                                                  \
      }                                                                                                                \
    }                                                                                                                  \
  }

#define BINARY_F32_LOOP(load_x, load_y, expression)                                                                    \
  for (; i + 16 <= w.count; i += 16) {                                                                                 \
    vf x = load_x, y = load_y;                                                                                         \
    v_store(out + i, expression);                                                                                      \
  }

#define BINARY_F32(name, expression)                                                                                   \
  void K(name##_f32)(const void *p, int32_t task, int32_t num_tasks) {                                                 \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const float *a = (const float *)args->a + w.a;                                                                   \
      const float *b = (const float *)args->b + w.b;                                                                   \
      float *out = (float *)args->out + w.out;                                                                         \
      int64_t i = 0;                                                                                                   \
      if (w.out_step == 1 && w.a_step == 1 && w.b_step == 1)                                                           \
        BINARY_F32_LOOP(v_load(a + i), v_load(b + i), expression)                                                      \
      if (w.out_step == 1 && w.a_step == 1 && w.b_step == 0)                                                           \
        BINARY_F32_LOOP(v_load(a + i), v_set(*b), expression)                                                          \
      if (w.out_step == 1 && w.a_step == 0 && w.b_step == 1)                                                           \
        BINARY_F32_LOOP(v_set(*a), v_load(b + i), expression)                                                          \
      for (; i < w.count; i += 16) {                                                                                   \
        int64_t n = w.count - i < 16 ? w.count - i : 16;                                                               \
        vf x = load_lanes(a + i * w.a_step, w.a_step, n);                                                              \
        vf y = load_lanes(b + i * w.b_step, w.b_step, n);                                                              \
        store_lanes(out + i * w.out_step, w.out_step, n, expression);                                                  \
      }                                                                                                                \
    }                                                                                                                  \
  }

/* Other types. Sixteen adjacent elements at a time are a loop of constant length that reads before it writes: compilers
 * vectorize it, also where the result overwrites an operand. */
#define BLOCKS(out_type, load, expression)                                                                             \
  for (; i + 16 <= w.count; i += 16) {                                                                                 \
    out_type block[16];                                                                                                \
    for (int l = 0; l < 16; l++) {                                                                                     \
      load;                                                                                                            \
      block[l] = (out_type)(expression);                                                                               \
    }                                                                                                                  \
    memcpy(out + i, block, sizeof block);                                                                              \
  }

#define UNARY_SCALAR(name, x_type, out_type, expression)                                                               \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const x_type *a = (const x_type *)args->a + w.a;                                                                 \
      out_type *out = (out_type *)args->out + w.out;                                                                   \
      int64_t i = 0;                                                                                                   \
      if (w.a_step == 1 && w.out_step == 1) BLOCKS(out_type, const x_type x = a[i + l], expression)                    \
      for (; i < w.count; i++) {                                                                                       \
        const x_type x = a[i * w.a_step];                                                                              \
        out[i * w.out_step] = (out_type)(expression);                                                                  \
      }                                                                                                                \
    }                                                                                                                  \
  }

#define BINARY_SCALAR(name, in_type, out_type, expression)                                                             \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const in_type *a = (const in_type *)args->a + w.a, *b = (const in_type *)args->b + w.b;                          \
      const in_type a_first = *a, b_first = *b;                                                                        \
      out_type *out = (out_type *)args->out + w.out;                                                                   \
      int64_t i = 0;                                                                                                   \
      if (w.out_step == 1 && w.a_step == 1 && w.b_step == 1)                                                           \
        BLOCKS(out_type, const in_type x = a[i + l]; const in_type y = b[i + l], expression)                           \
      else if (w.out_step == 1 && w.a_step == 1 && w.b_step == 0)                                                      \
        BLOCKS(out_type, const in_type x = a[i + l]; const in_type y = b_first, expression)                            \
      else if (w.out_step == 1 && w.a_step == 0 && w.b_step == 1)                                                      \
        BLOCKS(out_type, const in_type x = a_first; const in_type y = b[i + l], expression)                            \
      for (; i < w.count; i++) {                                                                                       \
        const in_type x = a[i * w.a_step], y = b[i * w.b_step];                                                        \
        out[i * w.out_step] = (out_type)(expression);                                                                  \
      }                                                                                                                \
    }                                                                                                                  \
  }

#define WHERE(name, type)                                                                                              \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const uint8_t *a = (const uint8_t *)args->a + w.a;                                                               \
      const type *b = (const type *)args->b + w.b, *c = (const type *)args->c + w.c;                                   \
      type *out = (type *)args->out + w.out;                                                                           \
      int64_t i = 0;                                                                                                   \
      if (w.out_step == 1 && w.a_step == 1 && w.b_step == 1 && w.c_step == 1)                                          \
        BLOCKS(type, const type y = b[i + l]; const type z = c[i + l], a[i + l] ? y : z)                               \
      for (; i < w.count; i++) {                                                                                       \
        const type y = b[i * w.b_step], z = c[i * w.c_step];                                                           \
        out[i * w.out_step] = a[i * w.a_step] ? y : z;                                                                 \
      }                                                                                                                \
    }                                                                                                                  \
  }

WHERE(where_b1, uint8_t)
WHERE(where_b2, uint16_t)
WHERE(where_b8, uint64_t)

/* Lanes are copied as bits, of any type. */
void K(where_b4)(const void *p, int32_t task, int32_t num_tasks) {
  const elementwise_args *args = p;
  for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {
    const uint8_t *a = (const uint8_t *)args->a + w.a;
    const float *b = (const float *)args->b + w.b, *c = (const float *)args->c + w.c;
    float *out = (float *)args->out + w.out;
    int64_t i = 0;
    if (w.a_step == 1)
      for (; i + 16 <= w.count; i += 16) {
        vf y = load_lanes(b + i * w.b_step, w.b_step, 16), z = load_lanes(c + i * w.c_step, w.c_step, 16);
        store_lanes(out + i * w.out_step, w.out_step, 16, v_select(v_mask(a + i), y, z));
      }
    for (; i < w.count; i++) {
      const float *chosen = a[i * w.a_step] ? b + i * w.b_step : c + i * w.c_step;
      memcpy(out + i * w.out_step, chosen, sizeof *out);
    }
  }
}

void K(cast_bool_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const elementwise_args *args = p;
  for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {
    const uint8_t *a = (const uint8_t *)args->a + w.a;
    float *out = (float *)args->out + w.out;
    int64_t i = 0;
    if (w.a_step == 1 && w.out_step == 1)
      for (; i + 16 <= w.count; i += 16) v_store(out + i, v_select(v_mask(a + i), v_set(1), v_set(0)));
    for (; i < w.count; i++) out[i * w.out_step] = a[i * w.a_step] != 0;
  }
}

/* Division by zero gives 0; the smallest integer over -1 wraps. Neither traps. */
static inline int64_t wrapping_div(int64_t x, int64_t y) {
  if (y == 0) return 0;
  return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}

static inline int64_t wrapping_mod(int64_t x, int64_t y) {
  if (y == 0 || y == -1) return 0;
  int64_t r = x % y;
  return r && (r < 0) != (y < 0) ? r + y : r;
}

static inline int64_t wrapping_floor_div(int64_t x, int64_t y) {
  int64_t q = wrapping_div(x, y);
  return y && y != -1 && x % y && (x < 0) != (y < 0) ? q - 1 : q;
}

static inline uint64_t whole_div(uint64_t x, uint64_t y) { return y ? x / y : 0; }
static inline uint64_t whole_mod(uint64_t x, uint64_t y) { return y ? x % y : 0; }

/* x^y by squaring; it wraps. */
static inline uint64_t wrapping_power(uint64_t x, uint64_t y) {
  uint64_t power = 1;
  for (; y; y >>= 1, x *= x)
    if (y & 1) power *= x;
  return power;
}

/* A negative exponent truncates: only 1 and -1 have a nonzero result. */
static inline int64_t wrapping_pow(int64_t x, int64_t y) {
  if (y >= 0) return (int64_t)wrapping_power((uint64_t)x, (uint64_t)y);
  return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
}

/* |x| mod |y| exactly, for finite x and y != 0: long division, 28 quotient bits a round, so that each quotient times
 * its 24-bit divisor is exact in double. */
static inline double remainder_of_magnitudes(float x, float y) {
  double rest = fabs((double)x), divisor = fabs((double)y);
  while (rest >= divisor) {
    double step = divisor;
    while (step * 0x1p28 <= rest) step *= 0x1p28;
    rest -= (double)(int64_t)(rest / step) * step;
    if (rest < 0) rest += step;
  }
  return rest;
}

/* x mod y with the sign of y, in double: Python's and numpy's %. */
static inline double mod_exact(float x, float y) {
  if (x != x || y != y || y == 0 || fabsf(x) == INFINITY) return NAN;
  double r = fabsf(y) == INFINITY ? fabs((double)x) : remainder_of_magnitudes(x, y);
  r = copysign(r, x);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static inline double floor_div_exact(float x, float y) {
  if (y == 0) return x / y;
  double mod = mod_exact(x, y);
  if (mod != mod) return NAN;
  if (fabsf(y) == INFINITY) return x != 0 && (x < 0) != (y < 0) ? -1 : 0;
  double q = (x - mod) / y;
  return fabs(q) < 0x1p51 ? (q + 0x1.8p52) - 0x1.8p52 : q;
}

/* x mod y with the sign of y, and floor(x / y), from the exact remainder. */
static inline double real_mod(double x, double y) {
  const double r = fmod(x, y);
  if (r == 0) return copysign(0.0, y);
  return (r < 0) != (y < 0) ? r + y : r;
}

static inline double real_floor_div(double x, double y) {
  if (y == 0) return x / y;
  const double r = fmod(x, y), q = (x - r) / y;
  if (q != q) return q;
  const double whole = r != 0 && (r < 0) != (y < 0) ? q - 1 : q, below = floor(whole);
  if (whole == 0) return copysign(0.0, x / y);
  return whole - below > 0.5 ? below + 1 : below;
}

static inline double real_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

#define UNARY(op, cost, expression) UNARY_F32(op, expression)
#define BINARY(op, cost, expression) BINARY_F32(op, expression)
#define UNARY_OF(op, dtype, cost, from, to, expression) UNARY_SCALAR(op##_##dtype, from, to, expression)
#define BINARY_OF(op, dtype, cost, from, to, expression) BINARY_SCALAR(op##_##dtype, from, to, expression)
#include "elementwise.def"

/* Float to integer truncates; out of range saturates and NaN gives 0. */
UNARY_SCALAR(cast_f32_i64, float, int64_t,
      x != x ? 0 : x >= 0x1p63f ? INT64_MAX : x < -0x1p63f ? INT64_MIN : (int64_t)x)
UNARY_SCALAR(cast_f32_i32, float, int32_t,
      x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int32_t)x)
UNARY_SCALAR(cast_f32_bool, float, uint8_t, x != 0)
UNARY_SCALAR(cast_i64_f32, int64_t, float, x)
UNARY_SCALAR(cast_i64_i32, int64_t, int32_t, (uint32_t)x)
UNARY_SCALAR(cast_i64_bool, int64_t, uint8_t, x != 0)
UNARY_SCALAR(cast_i32_f32, int32_t, float, x)
UNARY_SCALAR(cast_i32_i64, int32_t, int64_t, x)
UNARY_SCALAR(cast_bool_i64, uint8_t, int64_t, x != 0)
UNARY_SCALAR(cast_bool_i32, uint8_t, int32_t, x != 0)

/* Sixteen adjacent elements by f16 instructions. */
#define CAST_HALVES(name, x_type, out_type, sixteen, expression)                                                       \
  void K(name)(const void *p, int32_t task, int32_t num_tasks) {                                                       \
    const elementwise_args *args = p;                                                                                  \
    for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {                              \
      const x_type *a = (const x_type *)args->a + w.a;                                                                 \
      out_type *out = (out_type *)args->out + w.out;                                                                   \
      int64_t i = 0;                                                                                                   \
      for (; w.a_step == 1 && w.out_step == 1 && i + 16 <= w.count; i += 16) sixteen;                                  \
      for (; i < w.count; i++) {                                                                                       \
        const x_type x = a[i * w.a_step];                                                                              \
        out[i * w.out_step] = expression;                                                                              \
      }                                                                                                                \
    }                                                                                                                  \
  }

CAST_HALVES(cast_f32_f16, float, uint16_t, v_store_f16(out + i, v_load(a + i)), x == x ? float_to_f16(x) : 0x7e00)
CAST_HALVES(cast_f16_f32, uint16_t, float, v_store(out + i, v_load_f16(a + i)), f16_to_float(x))
UNARY_SCALAR(cast_f32_bf16, float, uint16_t, float_to_bf16(x))
UNARY_SCALAR(cast_bf16_f32, uint16_t, float, bf16_to_float(x))

#undef UNARY_F32
#undef BINARY_F32_LOOP
#undef BINARY_F32
#undef BLOCKS
#undef UNARY_SCALAR
#undef BINARY_SCALAR
#undef WHERE
#undef CAST_HALVES

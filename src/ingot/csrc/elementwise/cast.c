/* cast.c: casts between all element types. A block of elements is converted to doubles or 64-bit integers, which
 * represent every value of every type, and these are rounded once: a type needs only its line of dtypes.def. */
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "elementwise/strided.h"

#define CAST_BLOCK 128 /* elements that are converted at once */
#define CAST_REAL 0
#define CAST_SIGNED 1
#define CAST_UNSIGNED 2

/* Elements during conversion, in `real` or in `whole`, as `kind` specifies. */
typedef struct { int32_t kind; double real[CAST_BLOCK]; int64_t whole[CAST_BLOCK]; } cast_block;

/* The rounding of floats: whether overflow becomes the largest number, and the rounding of f8e8m0 between powers. */
typedef struct { int32_t saturate; int32_t rounding; } cast_mode;

/* An integer of a block wraps; a float is truncated, and saturates. */
#define CAST_WHOLE(x, low, high) _Generic((x), double: cast_whole((double)(x), low, high), default: (uint64_t)(x))

typedef void (*cast_load)(const void *from, int64_t first, int64_t step, int64_t count, cast_block *block);
typedef void (*cast_store)(const cast_block *block, void *to, int64_t first, int64_t step, int64_t n, cast_mode mode);

/* Toward zero; out of range saturates and NaN gives 0. */
static inline uint64_t cast_whole(double x, int64_t low, uint64_t high) {
  if (x != x) return 0;
  if (x <= (double)low) return (uint64_t)low;
  if (x >= (double)high) return high;
  return x < 0x1p63 ? (uint64_t)(int64_t)x : (uint64_t)x;
}

/* The low `bits` of an integer, with its sign. */
static inline int64_t cast_extend(uint8_t x, int bits, int is_signed) {
  const int64_t low = x & ((1 << bits) - 1);
  return is_signed && low >> (bits - 1) ? low - (1 << bits) : low;
}

/* 2^exponent, for exponents of normal doubles. */
static inline double cast_power(int64_t exponent) {
  const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

/* The exponent of |x|, which is normal or 0; for 0 it is very small. */
static inline int64_t cast_exponent(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (int64_t)(bits >> 52 & 0x7ff) - 1023;
}

/* A CODED line. */
typedef struct { int bits; int mantissa; int least; uint32_t largest; uint32_t infinity; uint32_t nan; } cast_format;

/* The value of a float in bits. */
static inline double cast_decode(uint32_t code, cast_format f) {
  const uint32_t magnitude = code & ((1u << (f.bits - 1)) - 1), fraction = magnitude & ((1u << f.mantissa) - 1);
  const int is_negative = code >> (f.bits - 1) & 1;
  const int is_nan = code == f.nan || (magnitude > f.largest && (magnitude != f.infinity || f.infinity == f.nan));
  if (f.nan && is_nan) return is_negative ? -NAN : NAN;
  if (magnitude > f.largest) return is_negative ? -INFINITY : INFINITY;
  const int64_t exponent = magnitude >> f.mantissa;
  const double steps = exponent ? fraction + (1u << f.mantissa) : fraction;
  const double value = steps * cast_power((exponent ? exponent : 1) + f.least - 1 - f.mantissa);
  return is_negative ? -value : value;
}

/* The nearest float in bits, halves to even: |x| as an integer number of steps; the numbering of steps continues from
 * each exponent to the next. A format whose NaN has the bits of -0 has no negative zero. */
static inline uint32_t cast_encode(double x, cast_format f, cast_mode mode) {
  const uint32_t top = 1u << (f.bits - 1), sign = signbit(x) ? top : 0;
  if (x != x) return f.nan ? f.nan : sign ^ top;
  const double size = fabs(x);
  int64_t exponent = cast_exponent(size);
  if (exponent < f.least) exponent = f.least;
  uint64_t code = UINT64_MAX;
  if (exponent <= f.least + 256) {
    const double step = cast_power(exponent - f.mantissa), magic = 0x1.8p52 * step;
    code = ((uint64_t)(exponent - f.least) << f.mantissa) + (uint64_t)(((size + magic) - magic) / step);
  }
  if (code > f.largest) return mode.saturate ? sign | f.largest : f.nan == top ? top : sign | f.infinity;
  return code || f.nan != top ? sign | (uint32_t)code : 0;
}

/* 2^(x - 127), the nearest or the next one; numbers that are not positive give the smallest. */
static inline uint8_t cast_to_power(double x, cast_mode mode) {
  if (x != x || (x == INFINITY && !mode.saturate)) return 255;
  if (x == INFINITY) return 254;
  const double scaled = x < 0x1p-1000 ? 0 : x;
  const int64_t exponent = scaled > 0 ? cast_exponent(scaled) : -2000;
  const double fraction = scaled > 0 ? scaled / cast_power(exponent) : 1;
  const double border = mode.rounding == INGOT_ROUND_up ? 1 : mode.rounding == INGOT_ROUND_nearest ? 1.5 : 2;
  const int is_up = fraction >= border && fraction > 1;
  const int64_t power = exponent + is_up;
  if (power > 127 || power < -127) return !mode.saturate ? 255 : power > 0 ? 254 : 0;
  return (uint8_t)(power + 127);
}

#define CAST_DECODE(x, b, m, e, l, i, q) cast_decode(x, (cast_format){b, m, e, l, i, q})
#define CAST_ENCODE(x, b, m, e, l, i, q) cast_encode((double)(x), (cast_format){b, m, e, l, i, q}, mode)

/* x: an element. value: its value, for `member` of a block. */
#define CAST_LOAD(name, type, block_kind, member, value)                                                               \
  static void K(name##_load)(const void *from, int64_t first, int64_t step, int64_t count, cast_block *block) {        \
    const type *a = (const type *)from + first;                                                                        \
    block->kind = block_kind;                                                                                          \
    for (int64_t i = 0; i < count; i++) {                                                                              \
      const type x = a[i * step];                                                                                      \
      block->member[i] = value;                                                                                        \
    }                                                                                                                  \
  }

/* For a float type of C; adjacent elements eight at a time, by vectors. */
#define CAST_LOAD_PLAIN(name, type)                                                                                    \
  static void K(name##_load)(const void *from, int64_t first, int64_t step, int64_t count, cast_block *block) {        \
    const type *a = (const type *)from + first;                                                                        \
    int64_t i = 0;                                                                                                     \
    block->kind = CAST_REAL;                                                                                           \
    for (; step == 1 && i + 8 <= count; i += 8) {                                                                      \
      INGOT_UNROLL for (int64_t lane = 0; lane < 8; lane++) block->real[i + lane] = (double)a[i + lane];               \
    }                                                                                                                  \
    for (; i < count; i++) block->real[i] = (double)a[i * step];                                                       \
  }

#define PLAIN(name, type) CAST_LOAD_PLAIN(name, type)
#define WHOLE(name, type, low, high) CAST_LOAD(name, type, (low) < 0 ? CAST_SIGNED : CAST_UNSIGNED, whole, (int64_t)x)
#define SMALL(name, bits, is_signed) CAST_LOAD(name, uint8_t, CAST_SIGNED, whole, cast_extend(x, bits, is_signed))
#define FLAG(name) CAST_LOAD(name, uint8_t, CAST_SIGNED, whole, x != 0)
#define CODED(name, type, b, m, e, l, i, q) CAST_LOAD(name, type, CAST_REAL, real, CAST_DECODE(x, b, m, e, l, i, q))
#define POWER(name) CAST_LOAD(name, uint8_t, CAST_REAL, real, x == 255 ? NAN : cast_power((int64_t)x - 127))
#include "dtypes.def"

/* Store floats of a block that need no conversion; adjacent ones eight at a time, by vectors. */
#define CAST_STORE_REALS(type)                                                                                         \
  int64_t i = 0;                                                                                                       \
  for (; step == 1 && i + 8 <= count; i += 8) {                                                                        \
    INGOT_UNROLL for (int64_t lane = 0; lane < 8; lane++) out[i + lane] = (type)block->real[i + lane];                 \
  }                                                                                                                    \
  for (; i < count; i++) out[i * step] = (type)block->real[i];

/* Store elements of one kind of block. */
#define CAST_STORE_LOOP(type, held_type, member, expression)                                                           \
  for (int64_t i = 0; i < count; i++) {                                                                                \
    const held_type x = (held_type)block->member[i];                                                                   \
    out[i * step] = (type)(expression);                                                                                \
  }

/* x: the value of an element, a double or a 64-bit integer. */
#define CAST_STORE(name, type, expression)                                                                             \
  static void K(name##_store)(const cast_block *block, void *to, int64_t first, int64_t step, int64_t count,           \
                              cast_mode mode) {                                                                        \
    type *out = (type *)to + first;                                                                                    \
    (void)mode;                                                                                                        \
    if (block->kind == CAST_REAL) CAST_STORE_LOOP(type, double, real, expression)                                      \
    else if (block->kind == CAST_SIGNED) CAST_STORE_LOOP(type, int64_t, whole, expression)                             \
    else CAST_STORE_LOOP(type, uint64_t, whole, expression)                                                            \
  }

#define CAST_STORE_PLAIN(name, type)                                                                                   \
  static void K(name##_store)(const cast_block *block, void *to, int64_t first, int64_t step, int64_t count,           \
                              cast_mode mode) {                                                                        \
    type *out = (type *)to + first;                                                                                    \
    (void)mode;                                                                                                        \
    if (block->kind == CAST_REAL) {                                                                                    \
      CAST_STORE_REALS(type)                                                                                           \
    } else if (block->kind == CAST_SIGNED) CAST_STORE_LOOP(type, int64_t, whole, x)                                    \
    else CAST_STORE_LOOP(type, uint64_t, whole, x)                                                                     \
  }

#define PLAIN(name, type) CAST_STORE_PLAIN(name, type)
#define WHOLE(name, type, low, high) CAST_STORE(name, type, CAST_WHOLE(x, low, high))
#define SMALL(name, bits, is_signed) CAST_STORE(name, uint8_t, CAST_WHOLE(x, INT64_MIN, INT64_MAX) & ((1 << bits) - 1))
#define FLAG(name) CAST_STORE(name, uint8_t, x != 0)
#define CODED(name, type, b, m, e, l, i, q) CAST_STORE(name, type, CAST_ENCODE(x, b, m, e, l, i, q))
#define POWER(name) CAST_STORE(name, uint8_t, cast_to_power((double)x, mode))
#include "dtypes.def"

static const cast_load cast_loads[] = {
  #define PLAIN(name, type) [INGOT_DTYPE_##name] = K(name##_load),
  #define WHOLE(name, type, low, high) [INGOT_DTYPE_##name] = K(name##_load),
  #define SMALL(name, bits, is_signed) [INGOT_DTYPE_##name] = K(name##_load),
  #define FLAG(name) [INGOT_DTYPE_##name] = K(name##_load),
  #define CODED(name, type, b, m, e, l, i, q) [INGOT_DTYPE_##name] = K(name##_load),
  #define POWER(name) [INGOT_DTYPE_##name] = K(name##_load),
  #include "dtypes.def"
};

static const cast_store cast_stores[] = {
  #define PLAIN(name, type) [INGOT_DTYPE_##name] = K(name##_store),
  #define WHOLE(name, type, low, high) [INGOT_DTYPE_##name] = K(name##_store),
  #define SMALL(name, bits, is_signed) [INGOT_DTYPE_##name] = K(name##_store),
  #define FLAG(name) [INGOT_DTYPE_##name] = K(name##_store),
  #define CODED(name, type, b, m, e, l, i, q) [INGOT_DTYPE_##name] = K(name##_store),
  #define POWER(name) [INGOT_DTYPE_##name] = K(name##_store),
  #include "dtypes.def"
};

void K(convert)(const void *p, int32_t task, int32_t num_tasks) {
  const elementwise_args *args = p;
  const cast_load load = cast_loads[args->from];
  const cast_store store = cast_stores[args->to];
  const cast_mode mode = {args->saturate, args->rounding};
  cast_block block;
  for (row_walk w = row_walk_begin(args, task, num_tasks); w.rows; row_walk_next(&w)) {
    for (int64_t i = 0; i < w.count; i += CAST_BLOCK) {
      const int64_t n = w.count - i < CAST_BLOCK ? w.count - i : CAST_BLOCK;
      load(args->a, w.a + i * w.a_step, w.a_step, n, &block);
      store(&block, args->out, w.out + i * w.out_step, w.out_step, n, mode);
    }
  }
}

#undef CAST_LOAD
#undef CAST_LOAD_PLAIN
#undef CAST_STORE
#undef CAST_STORE_PLAIN
#undef CAST_STORE_REALS
#undef CAST_STORE_LOOP
#undef CAST_DECODE
#undef CAST_ENCODE
#undef CAST_WHOLE
#undef CAST_BLOCK
#undef CAST_REAL
#undef CAST_SIGNED
#undef CAST_UNSIGNED

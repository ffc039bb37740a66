/* integer.h: the epilogue of integer products. Sums are exact; the float arithmetic on them has one order, so that bits
 * depend on no instruction set, task or batch. */
#ifndef INGOT_INTEGER_H
#define INGOT_INTEGER_H

#include <string.h>

#include "gemm/gemm.h"

/* The epilogue store of integer sums: sum * scale * step + shift, the intermediate rounding, the activation and the
 * residual. low, high: where the epilogue is vectorized and only clips, the bounds of results, minus the zero point for
 * integer results. */
typedef struct {
  const float *scale, *shift;
  int64_t scale_step;
  float step, act_alpha, act_beta;
  int32_t activation, result;
  float out_scale, out_zero, low, high;
  int32_t vectorized;
  const void *residual;
  int32_t residual_type, residual_first;
  float residual_scale, residual_zero, middle_scale, middle_low, middle_high;
} integer_store;

static inline int64_t integer_bytes(int32_t result) {
  return result == INGOT_INTEGER_U8 || result == INGOT_INTEGER_I8 ? 1 : 4;
}

/* Derive the vectorized form; result, activation and the output's scale and zero point are already set. */
static inline void integer_vectorize(integer_store *f) {
  float low = -INFINITY, high = INFINITY;
  if (f->activation == INGOT_ACT_relu) low = 0.0f;
  if (f->activation == INGOT_ACT_clip) low = f->act_alpha, high = f->act_beta;
  f->vectorized = f->activation == INGOT_ACT_none || f->activation == INGOT_ACT_relu || f->activation == INGOT_ACT_clip;
  if (integer_bytes(f->result) == 1) {
    const float least = (f->result == INGOT_INTEGER_U8 ? 0.0f : -128.0f) - f->out_zero, most = least + 255.0f;
    /* Rounding is monotonic, so that one clip is enough. */
    low = low > least ? low : least;
    low = low < most ? low : most;
    high = high < most ? high : most;
    high = high > least ? high : least;
    /* A residual that can be NaN has no vectorized form. */
    const int finite = !f->residual || (f->residual_type != INGOT_INTEGER_F32 && f->residual_scale * 0.0f == 0.0f);
    f->vectorized = f->vectorized && finite && f->out_scale == 1.0f && low == low && high == high &&
               (!f->residual || f->residual_first);
  }
  f->low = low;
  f->high = high;
}

/* The first 1 <= lanes < 16 bytes. */
static inline void integer_some(const uint8_t *from, int64_t lanes, uint8_t *to) {
  if (lanes & 8) memcpy(to, from, 8);
  if (lanes & 4) memcpy(to + (lanes & 8), from + (lanes & 8), 4);
  for (int64_t i = lanes & 12; i < lanes; i++) to[i] = from[i];
}

/* Round floats to bytes, NaN to the zero point where it can occur. */
static inline __attribute__((always_inline)) void integer_round(const int is_u8, const int finite, vf v, float zero,
                                                                uint8_t *to) {
  const vf low = v_set((is_u8 ? 0.0f : -128.0f) - zero), high = v_set((is_u8 ? 255.0f : 127.0f) - zero);
  if (!finite) v = v_select(v_isnan(v), v_set(0.0f), v);
  v = v_add(v_round(v_min(v_max(v, low), high)), v_set(zero));
  if (is_u8)
    v_store_u8(to, v);
  else
    v_store_i8((int8_t *)to, v);
}

/* Up to 16 elements of the residual, which is of `type`, from `at` on, as floats. */
static inline __attribute__((always_inline)) vf integer_residual(const int type, const integer_store *f, int64_t at,
                                                                 int64_t lanes) {
  if (type == INGOT_INTEGER_F32) {
    const float *from = (const float *)f->residual + at;
    return lanes < 16 ? v_load_n(from, lanes) : v_load(from);
  }
  const uint8_t *from = (const uint8_t *)f->residual + at;
  uint8_t some[16] = {0};
  if (lanes < 16) {
    integer_some(from, lanes, some);
    from = some;
  }
  const vf values = type == INGOT_INTEGER_U8 ? v_load_u8(from) : v_load_i8((const int8_t *)from);
  return v_mul(v_sub(values, v_set(f->residual_zero)), v_set(f->residual_scale));
}

/* The offsets of a row's results and of its residual, in elements. */
typedef struct { int64_t out, residual; } integer_place;

/* The parameters of 16 columns, held in registers for an output row. */
typedef struct { vf scale, shift; int64_t channel, lanes; int32_t finite; } integer_columns;

static inline integer_columns integer_columns_at(const integer_store *f, int64_t channel, int64_t lanes) {
  integer_columns c = {v_set(0.0f), v_set(-0.0f), channel, lanes, 1};
  if (f->result == INGOT_INTEGER_I32) return c;
  c.scale = !f->scale_step ? v_set(*f->scale) : lanes < 16 ? v_load_n(f->scale + channel, lanes)
                                                          : v_load(f->scale + channel);
  if (f->shift) c.shift = lanes < 16 ? v_load_n(f->shift + channel, lanes) : v_load(f->shift + channel);
  c.finite = !v_any(v_isnan(v_fma(c.scale, v_set(0.0f), v_mul(c.shift, v_set(0.0f)))));
  return c;
}

/* The form of an epilogue: any; clip after a step and a residual; clip after a u8 residual; clip only. */
#define INTEGER_ANY 0
#define INTEGER_VECTORIZED 1
#define INTEGER_ADDED 2
#define INTEGER_PLAIN 3

/* The floats of a row's sums, before a vectorized epilogue clips them. */
static inline __attribute__((always_inline)) vf integer_value(const int depth, const int whole,
                                                              const integer_store *f, const integer_columns *c,
                                                              vi sums, int64_t residual) {
  vf v = v_mul(v_from_int(sums), c->scale);
  if (depth == INTEGER_PLAIN) return v_add(v, c->shift);
  if (depth == INTEGER_ADDED)
    return v_add(v_add(v, c->shift),
                 integer_residual(INGOT_INTEGER_U8, f, residual + c->channel, whole ? 16 : c->lanes));
  v = v_add(v_mul(v, v_set(f->step)), c->shift);
  if (f->middle_scale != 0.0f)
    v = v_mul(v_round(v_min(v_max(v, v_set(f->middle_low)), v_set(f->middle_high))), v_set(f->middle_scale));
  if (f->residual && f->residual_first)
    v = v_add(v, integer_residual(f->residual_type, f, residual + c->channel, c->lanes));
  if (depth == INTEGER_ANY && f->activation != INGOT_ACT_none)
    v = v_activate(v, f->activation, f->act_alpha, f->act_beta);
  return v;
}

/* Store up to 16 floats as `result`, a constant and no 8-bit type, at element `at` of out. */
static inline void integer_store_wide(uint8_t *out, int64_t at, int64_t lanes, vf v) {
  float *to = (float *)(void *)out + at;
  if (lanes < 16)
    v_store_n(to, v, lanes);
  else
    v_store(to, v);
}

/* Store rows of sums as `result`; row i of them is sums[i * sums_stride ...]. result, depth and whole (all 16 columns)
 * are constants at every call. */
static inline __attribute__((always_inline)) void integer_rows_as(const int result, const int depth, const int whole,
                                                                  const integer_store *f, const integer_columns *c,
                                                                  const int32_t *sums, int64_t sums_stride,
                                                                  int64_t rows, uint8_t *out, const integer_place *to) {
  const vf low = v_set(f->low), high = v_set(f->high);
  const vi zero = vi_set((int32_t)f->out_zero);
  const int is_quantized = result == INGOT_INTEGER_U8 || result == INGOT_INTEGER_I8;
  for (int64_t i = 0; i < rows; i++, sums += sums_stride) {
    const vi total = v_bits(v_load((const float *)(const void *)sums));
    const int64_t at = to[i].out + c->channel;
    if (result == INGOT_INTEGER_I32) {
      integer_store_wide(out, at, c->lanes, v_from_bits(total));
      continue;
    }
    vf v = integer_value(depth, whole, f, c, total, to[i].residual);
    if (depth != INTEGER_ANY) v = v_min(high, v_max(low, v));
    if (depth < INTEGER_ADDED && f->residual && !f->residual_first)
      v = v_add(v, integer_residual(f->residual_type, f, to[i].residual + c->channel, c->lanes));
    if (!is_quantized) {
      integer_store_wide(out, at, c->lanes, v);
      continue;
    }
    uint8_t some[16], *bytes = whole ? out + at : some;
    if (depth != INTEGER_ANY) {
      /* The added constant leaves integers in the lowest bits of numbers below 2^22, halves to even. */
      vi_store_u8(bytes, vi_add(v_bits(v_add(v, v_set(0x1.8p23f))), zero));
    } else {
      if (f->out_scale != 1.0f) v = v_div(v, v_set(f->out_scale));
      integer_round(result == INGOT_INTEGER_U8, c->finite, v, f->out_zero, bytes);
    }
    if (!whole) integer_some(some, c->lanes, out + at);
  }
}

/* The same; for values that are clipped as integers the dtype does not matter. */
#define INTEGER_ROWS_AS(result, depth)                                                                                 \
  {                                                                                                                    \
    if (lanes == 16)                                                                                                   \
      integer_rows_as(result, depth, 1, f, &c, sums, sums_stride, rows, out, to);                                      \
    else                                                                                                               \
      integer_rows_as(result, depth, 0, f, &c, sums, sums_stride, rows, out, to);                                      \
  }

/* channel: the first of up to 16 columns. */
static inline void integer_rows(const integer_store *f, const int32_t *sums, int64_t sums_stride, int64_t channel,
                                int64_t lanes, int64_t rows, uint8_t *out, const integer_place *to) {
  const integer_columns c = integer_columns_at(f, channel, lanes);
  const int is_plain = f->vectorized && f->step == 1.0f && f->middle_scale == 0.0f;
  if (f->result == INGOT_INTEGER_I32)
    integer_rows_as(INGOT_INTEGER_I32, INTEGER_ANY, 0, f, &c, sums, sums_stride, rows, out, to);
  else if (f->result == INGOT_INTEGER_F32 && f->vectorized)
    integer_rows_as(INGOT_INTEGER_F32, INTEGER_VECTORIZED, 0, f, &c, sums, sums_stride, rows, out, to);
  else if (f->result == INGOT_INTEGER_F32)
    integer_rows_as(INGOT_INTEGER_F32, INTEGER_ANY, 0, f, &c, sums, sums_stride, rows, out, to);
  else if (is_plain && c.finite && !f->residual)
    INTEGER_ROWS_AS(INGOT_INTEGER_U8, INTEGER_PLAIN)
  else if (is_plain && c.finite && f->residual_type == INGOT_INTEGER_U8)
    INTEGER_ROWS_AS(INGOT_INTEGER_U8, INTEGER_ADDED)
  else if (f->vectorized && c.finite)
    INTEGER_ROWS_AS(INGOT_INTEGER_U8, INTEGER_VECTORIZED)
  else if (f->result == INGOT_INTEGER_U8)
    INTEGER_ROWS_AS(INGOT_INTEGER_U8, INTEGER_ANY)
  else
    INTEGER_ROWS_AS(INGOT_INTEGER_I8, INTEGER_ANY)
}

#undef INTEGER_ROWS_AS

#endif

/* integer.h: what becomes of sums of products of integers of 8 bits, which are exact: what is done with them in floats
 * has one order, so that bits depend on no instruction set, part or batch. */
#ifndef INGOT_INTEGER_H
#define INGOT_INTEGER_H

#include <string.h>

#include "gemm.h"

/* What becomes of sums. */
typedef struct {
  const float *scale, *shift;
  int64_t scale_step;
  float act_alpha, act_beta;
  int32_t activation, result;
  float out_scale, out_zero;
} integer_finish;

static inline int64_t integer_bytes(int32_t result) {
  return result == INGOT_INTEGER_U8 || result == INGOT_INTEGER_I8 ? 1 : 4;
}

/* 16 numbers rounded to bytes, NaN to the zero point where there may be one; the first `lanes` are written. */
static inline __attribute__((always_inline)) void integer_round(const int is_u8, const int finite, vf v, float zero,
                                                                int64_t lanes, uint8_t *to) {
  uint8_t bytes[16];
  const vf low = v_set((is_u8 ? 0.0f : -128.0f) - zero), high = v_set((is_u8 ? 255.0f : 127.0f) - zero);
  if (!finite) v = v_select(v_isnan(v), v_set(0.0f), v);
  v = v_add(v_round(v_min(v_max(v, low), high)), v_set(zero));
  if (is_u8)
    v_store_u8(lanes < 16 ? bytes : to, v);
  else
    v_store_i8((int8_t *)(lanes < 16 ? bytes : to), v);
  if (lanes < 16) memcpy(to, bytes, (size_t)lanes);
}

/* Sums as what `result` says, a constant where it matters. channel: of the first of up to 16; added: to their sums;
 * row i is sums[i * sums_stride ...], its result at out + to[i]. */
static inline __attribute__((always_inline)) void integer_rows_as(const int result, const integer_finish *f,
                                                                  const int32_t *sums, int64_t sums_stride,
                                                                  const int32_t *added, int64_t channel, int64_t lanes,
                                                                  int64_t rows, uint8_t *out, const int64_t *to) {
  const vi more = v_bits(v_load((const float *)(const void *)added));
  vf scale = v_set(0.0f), shift = v_set(0.0f);
  if (result != INGOT_INTEGER_I32)
    scale = !f->scale_step ? v_set(*f->scale) : lanes < 16 ? v_load_n(f->scale + channel, lanes)
                                                           : v_load(f->scale + channel);
  if (f->shift) shift = lanes < 16 ? v_load_n(f->shift + channel, lanes) : v_load(f->shift + channel);
  const int finite = !v_any(v_isnan(v_fma(scale, v_set(0.0f), v_mul(shift, v_set(0.0f)))));
  const int64_t item = result == INGOT_INTEGER_I32 || result == INGOT_INTEGER_F32 ? 4 : 1;
  for (int64_t i = 0; i < rows; i++) {
    uint8_t *at = out + (to[i] + channel) * item;
    const vi total = vi_add(v_bits(v_load((const float *)(const void *)(sums + i * sums_stride))), more);
    vf v = result == INGOT_INTEGER_I32 ? v_from_bits(total) : v_mul(v_from_int(total), scale);
    if (result != INGOT_INTEGER_I32) {
      if (f->shift) v = v_add(v, shift);
      if (f->activation != INGOT_ACT_none) v = v_activate(v, f->activation, f->act_alpha, f->act_beta);
    }
    if (item == 1) {
      if (f->out_scale != 1.0f) v = v_div(v, v_set(f->out_scale));
      integer_round(result == INGOT_INTEGER_U8, finite, v, f->out_zero, lanes, at);
    } else if (lanes < 16) {
      float whole[16];
      v_store(whole, v);
      memcpy(at, whole, (size_t)lanes * 4);
    } else {
      v_store((float *)(void *)at, v);
    }
  }
}

static inline void integer_rows(const integer_finish *f, const int32_t *sums, int64_t sums_stride, const int32_t *added,
                                int64_t channel, int64_t lanes, int64_t rows, uint8_t *out, const int64_t *to) {
  if (f->result == INGOT_INTEGER_I32)
    integer_rows_as(INGOT_INTEGER_I32, f, sums, sums_stride, added, channel, lanes, rows, out, to);
  else if (f->result == INGOT_INTEGER_F32)
    integer_rows_as(INGOT_INTEGER_F32, f, sums, sums_stride, added, channel, lanes, rows, out, to);
  else if (f->result == INGOT_INTEGER_I8)
    integer_rows_as(INGOT_INTEGER_I8, f, sums, sums_stride, added, channel, lanes, rows, out, to);
  else
    integer_rows_as(INGOT_INTEGER_U8, f, sums, sums_stride, added, channel, lanes, rows, out, to);
}

#endif

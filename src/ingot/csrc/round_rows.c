/* round_rows.c: rows of floats as integers, once for all products that read them. */
#include <string.h>

#include "codes.h"

#define ROUND_BASE 254.0f /* no digit is -128, as no code of a row of int8 is */

static inline vf round_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

/* The digits to the base ROUND_BASE, from -127 to 127 and the highest first, of integers that have so many. */
static inline __attribute__((always_inline)) void round_digits(vf v, const int digits, vf digit[]) {
  INGOT_UNROLL for (int i = 0; i < digits - 1; i++) {
    const float size = i == digits - 2 ? ROUND_BASE : ROUND_BASE * ROUND_BASE;
    digit[i] = v_round(v_mul(v, v_set(1.0f / size)));
    v = v_fma(digit[i], v_set(-size), v);
  }
  digit[digits - 1] = v;
}

/* The sums of one row of bytes, from element `first` on: of a block's two halves, and of the wide group so far. */
static inline void round_sums(const codes_row *row, int64_t first, const int16_t half[2], int32_t *of_wide,
                              int8_t *to) {
  const int32_t sum = half[0] + half[1], offset = -128 * sum;
  const int16_t whole = (int16_t)sum;
  memcpy(to + row->halves + first / 8, half, 2 * sizeof *half);
  memcpy(to + row->offsets + first / 8, &offset, sizeof offset);
  memcpy(to + row->wholes + first / 16, &whole, sizeof whole);
  *of_wide = first % INGOT_CODES_WIDE ? *of_wide + offset : offset;
  memcpy(to + row->wide_offsets + first / INGOT_CODES_WIDE * 4, of_wide, sizeof *of_wide);
}

/* One group of a row, from element `first` on, into `digits` rows of bytes: codes up to `top`, and their sums. Elements
 * that are all below `least` are zeros. Returns its step. */
static inline __attribute__((always_inline)) float round_group(const float *x, int64_t count, const codes_row *row,
                                                               int64_t first, const int digits, float top, float least,
                                                               int64_t stride, int8_t *to) {
  vf largest = v_set(0.0f), invalid = v_set(0.0f);
  for (int64_t j = 0; j < count; j += 16) {
    const vf v = round_load(x + j, count - j);
    largest = v_max(v_abs(v), largest);
    invalid = v_fma(v, v_set(0.0f), invalid); /* NaN where v is not finite */
  }
  const float most = v_max_across(largest), none = v_sum(invalid);
  const float factor = none == 0.0f && most >= least ? top / most : 0.0f;
  int32_t of_wide[CODES_DIGITS] = {0};
  for (int64_t j = 0; j < count; j += INGOT_CODES_BLOCK) {
    int16_t half[CODES_DIGITS][2];
    INGOT_UNROLL for (int h = 0; h < 2; h++) {
      const int64_t at = j + 16 * h;
      vf v = at < count ? v_round(v_mul(round_load(x + at, count - at), v_set(factor))) : v_set(0.0f);
      v = factor == 0.0f ? v_set(0.0f) : v;
      vf digit[CODES_DIGITS];
      round_digits(v, digits, digit);
      INGOT_UNROLL for (int i = 0; i < digits; i++) {
        v_store_i8(to + i * stride + first + at, digit[i]);
        half[i][h] = (int16_t)v_sum(digit[i]);
      }
    }
    INGOT_UNROLL for (int i = 0; i < digits; i++) round_sums(row, first + j, half[i], of_wide + i, to + i * stride);
  }
  return none == 0.0f ? most / top : none;
}

static inline __attribute__((always_inline)) void round_rows(const round_rows_args *g, const int digits, float top,
                                                             float least, int32_t part, int32_t parts) {
  const codes_row row = codes_row_of(g->cols);
  const int64_t groups = (g->cols + INGOT_ROUND_GROUP - 1) / INGOT_ROUND_GROUP, stride = g->out_stride / digits;
  const int64_t end = part_begin(g->rows * groups, part + 1, parts);
  for (int64_t i = part_begin(g->rows * groups, part, parts); i < end; i++) {
    const int64_t r = i / groups, group = i % groups, first = group * INGOT_ROUND_GROUP;
    const int64_t count = g->cols - first < INGOT_ROUND_GROUP ? g->cols - first : INGOT_ROUND_GROUP;
    int8_t *to = (int8_t *)g->out + r * g->out_stride;
    float step = round_group(g->x + r * g->x_stride + first, count, &row, first, digits, top, least, stride, to);
    for (int d = digits - 1; d >= 0; d--, step *= ROUND_BASE) {
      memcpy(to + d * stride + row.steps + 4 * group, &step, sizeof step);
      if (group == groups - 1 && row.blocks % 2) memset(to + d * stride + row.bytes - 2, 0, 2);
    }
  }
}

void K(round_rows_i8)(const void *args, int32_t part, int32_t parts) {
  round_rows(args, 1, 127.0f, 0x1p-120f, part, parts);
}

void K(round_rows_i24)(const void *args, int32_t part, int32_t parts) {
  round_rows(args, CODES_DIGITS, 127.0f * ROUND_BASE * ROUND_BASE, 0x1p-100f, part, parts);
}

#undef ROUND_BASE

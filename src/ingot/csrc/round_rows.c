/* round_rows.c: rows of floats as int8, once for all products that read them. */
#include <math.h>
#include <string.h>

#include "codes.h"

static inline vf round_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

/* One group of a row, from element `first` on: its codes, and the sums of their blocks of the halves of
 * these, and of wide groups. Returns its step. */
static inline float round_group(const float *x, int64_t count, const codes_row *row, int64_t first, int8_t *to) {
  int8_t *codes = to + first, *offsets = to + row->offsets + first / 8;
  int8_t *wide = to + row->wide_offsets + first / 32;
  int8_t *halves = to + row->halves + first / 8, *wholes = to + row->wholes + first / 16;
  vf largest = v_set(0.0f), invalid = v_set(0.0f);
  for (int64_t j = 0; j < count; j += 16) {
    const vf v = round_load(x + j, count - j);
    largest = v_max(v_abs(v), largest);
    invalid = v_fma(v, v_set(0.0f), invalid); /* NaN where v is not finite */
  }
  const float most = v_max_across(largest), none = v_sum(invalid);
  const float factor = none == 0.0f && most >= 0x1p-120f ? 127.0f / most : 0.0f;
  int32_t of_wide = 0;
  for (int64_t j = 0; j < count; j += INGOT_CODES_BLOCK) {
    int32_t sum = 0;
    for (int64_t h = j; h < j + INGOT_CODES_BLOCK; h += 16) {
      vf v = h < count ? v_round(v_mul(round_load(x + h, count - h), v_set(factor))) : v_set(0.0f);
      v = factor == 0.0f ? v_set(0.0f) : v;
      v_store_i8(codes + h, v);
      const int16_t half = (int16_t)v_sum(v);
      memcpy(halves + h / 8, &half, sizeof half);
      sum += half;
    }
    const int32_t offset = -128 * sum;
    const int16_t whole = (int16_t)sum;
    memcpy(offsets + j / 8, &offset, sizeof offset);
    memcpy(wholes + j / 16, &whole, sizeof whole);
    of_wide = j % INGOT_CODES_WIDE ? of_wide + offset : offset;
    memcpy(wide + j / INGOT_CODES_WIDE * 4, &of_wide, sizeof of_wide);
  }
  return none == 0.0f ? most / 127.0f : none;
}

void K(round_rows_i8)(const void *args, int32_t part, int32_t parts) {
  const round_rows_args *g = args;
  const codes_row row = codes_row_of(g->cols);
  const int64_t groups = (g->cols + INGOT_ROUND_GROUP - 1) / INGOT_ROUND_GROUP;
  const int64_t end = part_begin(g->rows * groups, part + 1, parts);
  for (int64_t i = part_begin(g->rows * groups, part, parts); i < end; i++) {
    const int64_t r = i / groups, group = i % groups, first = group * INGOT_ROUND_GROUP;
    const int64_t count = g->cols - first < INGOT_ROUND_GROUP ? g->cols - first : INGOT_ROUND_GROUP;
    int8_t *to = (int8_t *)g->out + r * g->out_stride;
    const float step = round_group(g->x + r * g->x_stride + first, count, &row, first, to);
    memcpy(to + row.steps + 4 * group, &step, sizeof step);
    if (group == groups - 1 && row.blocks % 2) memset(to + row.bytes - 2, 0, 2);
  }
}

/* quantize_rows.c: quantize float matrices with a scale for each group of a row, in the format that is packed. */
#include <math.h>
#include <string.h>

#include "math/f16.h"
#include "kernel.h"

/* Up to 16 elements of a row from `at` on. */
static inline vf rows_load(const quantize_args *g, const void *row, int64_t at, int64_t lanes) {
  if (!g->is_bf16) return lanes < 16 ? v_load_n((const float *)row + at, lanes) : v_load((const float *)row + at);
  uint16_t some[16] = {0};
  if (lanes >= 16) return v_load_bf16((const uint16_t *)row + at);
  memcpy(some, (const uint16_t *)row + at, (size_t)lanes * sizeof *some);
  return v_load_bf16(some);
}

/* Whether an f16 scale can represent values: finite and not 0. */
static inline int rows_usable(uint16_t scale) { return isfinite(f16_to_float(scale)) && f16_to_float(scale) != 0.0f; }

/* The 4-bit scales that are tried, as the quotient of the largest element; values end at -8. */
static const float rows_tried[] = {-8.0f, -8.7f, -7.4f};

/* Of the tried scales of elements [begin, end), the one with the smallest error, refined by least squares. */
static inline float rows_fitted(const quantize_args *g, const void *row, int64_t begin, int64_t end, float extreme) {
  float fitted = 0.0f, most = 0.0f;
  for (size_t i = 0; i < sizeof rows_tried / sizeof *rows_tried; i++) {
    const vf inverse = v_set(rows_tried[i] / extreme);
    vf product = v_set(0.0f), square = product;
    for (int64_t j = begin; j < end; j += 16) {
      const vf v = rows_load(g, row, j, end - j);
      const vf values = v_max(v_set(-8.0f), v_min(v_set(7.0f), v_round(v_mul(v, inverse))));
      product = v_add(product, v_mul(v, values));
      square = v_add(square, v_mul(values, values));
    }
    const float along = v_sum(product), gain = along * along / v_sum(square);
    if (gain <= most) continue;
    most = gain;
    fitted = along / v_sum(square);
  }
  return fitted;
}

/* The f16 scale of elements [begin, end) of a row. Zeros after them change nothing. */
static inline uint16_t rows_scale(const quantize_args *g, const void *row, int64_t begin, int64_t end) {
  vf high = v_set(0.0f), low = high, invalid = high;
  for (int64_t j = begin; j < end; j += 16) {
    const vf v = rows_load(g, row, j, end - j);
    invalid = v_fma(v, v_set(0.0f), invalid); /* NaN where v is not finite */
    high = v_max(v, high);
    low = v_min(v, low);
  }
  const float most = v_max_across(high), least = -v_max_across(v_sub(v_set(0.0f), low));
  const float extreme = -least > most ? least : most;
  if (v_sum(invalid) != 0.0f) return float_to_f16(NAN);
  if (g->bits == 8) return float_to_f16(fabsf(extreme) * 0x1.020408p-7f);
  const uint16_t plain = float_to_f16(extreme * -0.125f);
  if (!rows_usable(plain)) return plain;
  const uint16_t fitted = float_to_f16(rows_fitted(g, row, begin, end, extreme));
  return rows_usable(fitted) ? fitted : plain;
}

void K(quantize_rows)(const void *args, int32_t task, int32_t num_tasks) {
  const quantize_args *g = args;
  const int64_t groups = (g->cols + g->group - 1) / g->group, item = g->is_bf16 ? 2 : 4;
  const vf most = v_set(g->bits == 8 ? 127.0f : 7.0f), least = v_set(g->bits == 8 ? -128.0f : -8.0f);
  const int64_t end = task_begin(g->rows, task + 1, num_tasks);
  for (int64_t i = task_begin(g->rows, task, num_tasks); i < end; i++) {
    const char *row = (const char *)g->x + i * g->x_stride * item;
    int8_t *values = (int8_t *)g->values + i * g->cols;
    uint16_t *scales = (uint16_t *)g->scales + i * groups;
    for (int64_t begin = 0; begin < g->cols; begin += g->group) {
      const int64_t stop = g->cols - begin < g->group ? g->cols : begin + g->group;
      const uint16_t held = rows_scale(g, row, begin, stop);
      const float scale = f16_to_float(held);
      scales[begin / g->group] = held;
      for (int64_t j = begin; j < stop; j += 16) {
        const int64_t lanes = stop - j < 16 ? stop - j : 16;
        int8_t some[16];
        vf v = v_round(v_div(rows_load(g, row, j, lanes), v_set(scale)));
        v = rows_usable(held) ? v_max(least, v_min(most, v)) : v_set(0.0f);
        v_store_i8(lanes < 16 ? some : values + j, v);
        if (lanes < 16) memcpy(values + j, some, (size_t)lanes);
      }
    }
  }
}

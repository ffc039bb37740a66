/* norm.c: layer_norm and rms_norm over rows of adjacent elements. Four rows go through memory together, so that the
 * additions of one row, each waiting for the last, overlap with those of the others; one alone goes by itself. Sums of
 * up to sixteen short rows meet, and become scales, in one vector. */
#include "kernel.h"
#include "norm.h"

/* The difference from the centre in the first n lanes, zero in the rest. */
static inline vf norm_tail(const float *x, int64_t n, vf centre) {
  static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return v_select(v_lt(v_load(lane), v_set((float)n)), v_sub(v_load_n(x, n), centre), v_set(0));
}

/* out = (x - mean) scale weight + bias for one row. */
static inline void norm_write(const norm_args *args, const float *x, int64_t row, float high, float scale,
                              float shift) {
  float *out = args->out + row * args->out_stride;
  vf h = v_set(high), s = v_set(scale), t = v_set(shift);
  int64_t i = 0;
  for (; i + 16 <= args->cols; i += 16) {
    vf w = args->weight ? v_load(args->weight + i) : v_set(1);
    vf b = args->bias ? v_load(args->bias + i) : v_set(0);
    v_store(out + i, norm_element(v_load(x + i), h, s, t, w, b));
  }
  if (i < args->cols) {
    int64_t n = args->cols - i;
    vf w = args->weight ? v_load_n(args->weight + i, n) : v_set(1);
    vf b = args->bias ? v_load_n(args->bias + i, n) : v_set(0);
    v_store_n(out + i, norm_element(v_load_n(x + i, n), h, s, t, w, b), n);
  }
}

/* With little room each row goes by itself. */
#if defined(INGOT_SMALL)
/* The sum of x - centre of a row, or of its square: chunks of 16 lanes, joined in order. */
static inline float norm_sum(const float *x, int64_t cols, float centre, int squared) {
  const vf c = v_set(centre), one = v_set(1);
  float total = 0;
  for (int64_t begin = 0; begin < cols; begin += INGOT_REDUCE_CHUNK, x += INGOT_REDUCE_CHUNK) {
    const int64_t n = cols - begin < INGOT_REDUCE_CHUNK ? cols - begin : INGOT_REDUCE_CHUNK;
    vf sum = v_set(0);
    for (int64_t i = 0; i < n; i += 16) {
      const vf d = i + 16 <= n ? v_sub(v_load(x + i), c) : norm_tail(x + i, n - i, c);
      sum = v_fma(d, squared ? d : one, sum);
    }
    total = begin ? total + v_sum(sum) : v_sum(sum);
  }
  return total;
}

static inline void norm_run(const norm_args *args, int centred, int32_t part, int32_t parts) {
  const int64_t end = part_begin(args->rows, part + 1, parts);
  const vf count = v_set((float)args->cols);
  for (int64_t row = part_begin(args->rows, part, parts); row < end; row++) {
    const float *x = args->x + row * args->x_stride;
    norm_centre centre = {v_set(0), v_set(0)};
    if (centred) {
      const float pivot = norm_pivot(x, args->cols);
      centre = norm_centre_of(v_set(pivot), v_div(v_set(norm_sum(x, args->cols, pivot, 0)), count));
    }
    const vf squares = v_set(norm_sum(x, args->cols, centre.high.lane[0], 1));
    const vf scale = norm_scale(squares, centre.low, count, v_set(args->eps));
    const vf shift = centred ? norm_shift(centre.low, scale) : v_set(-0.0f);
    norm_write(args, x, row, centre.high.lane[0], scale.lane[0], shift.lane[0]);
  }
}
#else
/* sum + d, or sum + d^2. As a product with one the addition leaves the units that only add to the subtractions; a lone
 * row has no use for that and waits less for v_add. */
static inline __attribute__((always_inline)) vf norm_join(vf sum, vf d, const int squared, const int alone) {
  return alone && !squared ? v_add(sum, d) : v_fma(d, squared ? d : v_set(1), sum);
}

/* Lanes of sums of x - centre, or of its squares, of four rows, of which `count` are there: past the last one, the
 * last again. alone: of one. */
static inline __attribute__((always_inline)) void norm_lanes(const float *x, int64_t stride, int64_t count, int64_t n,
                                                             const float *centre, const int squared, const int alone,
                                                             vf *sums) {
  const float *rows[4];
  vf c[4], s[4];
  INGOT_UNROLL for (int k = 0; k < 4; k++)
    rows[k] = x + (k < count ? k : count - 1) * stride, c[k] = v_set(centre[k]), s[k] = v_set(0);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    INGOT_UNROLL for (int k = 0; k < 4; k++)
      if (!k || !alone) s[k] = norm_join(s[k], v_sub(v_load(rows[k] + i), c[k]), squared, alone);
  INGOT_UNROLL for (int k = 0; k < 4; k++)
    sums[k] = i < n ? norm_join(s[k], norm_tail(rows[k] + i, n - i, c[k]), squared, alone) : s[k];
}

/* The sums of x - centre, or of its squares, of `count` rows, a lane each: chunks of 16 lanes, joined in order. */
static inline __attribute__((always_inline)) vf norm_sums(const norm_args *args, const float *x, int64_t count,
                                                          const float *centre, const int squared, const int alone) {
  vf total = v_set(0), lanes[16];
  for (int64_t k = 0; k < 16; k++) lanes[k] = total;
  for (int64_t begin = 0; begin < args->cols; begin += INGOT_REDUCE_CHUNK) {
    const int64_t n = args->cols - begin < INGOT_REDUCE_CHUNK ? args->cols - begin : INGOT_REDUCE_CHUNK;
    for (int64_t k = 0; k < count; k += 4)
      norm_lanes(x + k * args->x_stride + begin, args->x_stride, count - k, n, centre + k, squared, alone, lanes + k);
    const vf sums = alone ? v_set(v_sum(lanes[0])) : v_sums(lanes, count);
    total = begin ? v_add(total, sums) : sums;
  }
  return total;
}

/* `count` rows from `row` on, at most 16; alone: one. */
static inline __attribute__((always_inline)) void norm_some(const norm_args *args, int centred, int64_t row,
                                                            int64_t count, const int alone) {
  const float *x = args->x + row * args->x_stride;
  const vf cols = v_set((float)args->cols);
  float pivot[16] = {0}, high[16], scale[16], shift[16];
  norm_centre centre = {v_set(0), v_set(0)};
  if (centred) {
    for (int64_t k = 0; k < count; k++) pivot[k] = norm_pivot(x + k * args->x_stride, args->cols);
    const vf sums = norm_sums(args, x, count, pivot, 0, alone);
    centre = norm_centre_of(v_load(pivot), v_div(sums, cols));
  }
  v_store(high, centre.high);
  const vf squares = norm_sums(args, x, count, high, 1, alone);
  const vf scales = norm_scale(squares, centre.low, cols, v_set(args->eps));
  v_store(scale, scales);
  v_store(shift, centred ? norm_shift(centre.low, scales) : v_set(-0.0f));
  for (int64_t k = 0; k < count; k++)
    norm_write(args, x + k * args->x_stride, row + k, high[k], scale[k], shift[k]);
}

static inline void norm_run(const norm_args *args, int centred, int32_t part, int32_t parts) {
  int64_t row = part_begin(args->rows, part, parts), end = part_begin(args->rows, part + 1, parts);
  const int64_t most = args->cols <= 256 ? 16 : 4; /* so many stay in the first cache */
  for (; row + 1 < end; row += most) norm_some(args, centred, row, end - row < most ? end - row : most, 0);
  if (row < end) norm_some(args, centred, row, 1, 1);
}
#endif

void K(layer_norm_f32)(const void *p, int32_t part, int32_t parts) { norm_run(p, 1, part, parts); }
void K(rms_norm_f32)(const void *p, int32_t part, int32_t parts) { norm_run(p, 0, part, parts); }

/* round_rows.c: quantize rows of floats to integers, once for all products that read them. */
#include <string.h>

#include "quant/quant.h"

#define ROUND_BASE 254.0f /* no limb is -128, because no value of an int8 row is */

static inline vf round_load(const float *x, int64_t lanes) { return lanes < 16 ? v_load_n(x, lanes) : v_load(x); }

/* The limbs in base ROUND_BASE, from -127 to 127 and the highest first, of integers that have so many. */
static inline __attribute__((always_inline)) void round_limbs(vf v, const int limbs, vf digit[]) {
  INGOT_UNROLL for (int i = 0; i < limbs - 1; i++) {
    const float size = i == limbs - 2 ? ROUND_BASE : ROUND_BASE * ROUND_BASE;
    digit[i] = v_round(v_mul(v, v_set(1.0f / size)));
    v = v_fma(digit[i], v_set(-size), v);
  }
  digit[limbs - 1] = v;
}

/* to[16 * vectors] of 8-bit integers, and the sum of each vector. */
static inline __attribute__((always_inline)) void round_store(const int vectors, const vf v[], int8_t *to,
                                                              int32_t sums[]) {
  #if defined(ISA_avx512)
  if (vectors == 4) {
    const __m512i low = _mm512_packs_epi32(_mm512_cvtps_epi32(v[0]), _mm512_cvtps_epi32(v[1]));
    const __m512i high = _mm512_packs_epi32(_mm512_cvtps_epi32(v[2]), _mm512_cvtps_epi32(v[3]));
    const __m512i bytes = _mm512_packs_epi16(low, high); /* of each vector four, and again */
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes);
    const __m512i quads = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
    const __m256i eights = _mm256_add_epi32(_mm512_castsi512_si256(quads), _mm512_extracti64x4_epi64(quads, 1));
    const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256(eights, 1));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm_storeu_si128((__m128i *)(void *)sums, all);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
    return;
  }
  #endif
  INGOT_UNROLL for (int h = 0; h < vectors; h++) {
    v_store_i8(to + 16 * h, v[h]);
    sums[h] = (int32_t)v_sum(v[h]);
  }
}

/* The sums of larger units so far. */
typedef struct { int32_t wide, group; } round_units;

/* The sums of one row of bytes, from element `first` on: of a block's two halves, and of the larger units that the
 * block belongs to. */
static inline void round_sums(const quant_row *row, int64_t first, const int32_t halves[2], round_units *so_far,
                              int8_t *to) {
  const int32_t sum = halves[0] + halves[1], offset = -128 * sum;
  const int16_t whole = (int16_t)sum, half[2] = {(int16_t)halves[0], (int16_t)halves[1]};
  memcpy(to + row->halves + first / 8, half, sizeof half);
  memcpy(to + row->offsets + first / 8, &offset, sizeof offset);
  memcpy(to + row->wholes + first / 16, &whole, sizeof whole);
  so_far->wide = first % INGOT_QUANT_WIDE ? so_far->wide + offset : offset;
  so_far->group += offset;
  memcpy(to + row->wide_offsets + first / INGOT_QUANT_WIDE * 4, &so_far->wide, sizeof so_far->wide);
  memcpy(to + row->group_offsets + first / INGOT_ROUND_GROUP * 4, &so_far->group, sizeof so_far->group);
}

/* Elements [first + j, first + j + 16 * vectors) of a row times factor, as `limbs` rows of bytes, and the sums of their
 * blocks; x and count are those of their group. Of two vectors some elements may be after the end of the row. */
static inline __attribute__((always_inline)) void round_blocks(const int vectors, const float *x, int64_t count,
                                                               int64_t j, const quant_row *row, int64_t first,
                                                               const int limbs, float factor, int64_t stride,
                                                               round_units so_far[], int8_t *to) {
  const vm none = v_eq(v_set(factor), v_set(0.0f));
  vf digit[QUANT_LIMBS][4];
  INGOT_UNROLL for (int h = 0; h < vectors; h++) {
    const int64_t left = vectors == 4 ? 16 : count - j - 16 * h;
    const vf v = left > 0 ? v_mul(round_load(x + j + 16 * h, left), v_set(factor)) : v_set(0.0f);
    vf of[QUANT_LIMBS];
    round_limbs(v_select(none, v_set(0.0f), v_round(v)), limbs, of);
    INGOT_UNROLL for (int i = 0; i < limbs; i++) digit[i][h] = of[i];
  }
  INGOT_UNROLL for (int i = 0; i < limbs; i++) {
    int32_t sums[4];
    round_store(vectors, digit[i], to + i * stride + first + j, sums);
    INGOT_UNROLL for (int h = 0; h < vectors; h += 2)
      round_sums(row, first + j + 16 * h, sums + h, so_far + i, to + i * stride);
  }
}

/* Quantize one group of a row, from element `first` on, into `limbs` rows of bytes: values up to `top`, and their sums.
 * Elements that are all below `least` become zeros. Returns the scale. */
static inline __attribute__((always_inline)) float round_group(const float *x, int64_t count, const quant_row *row,
                                                               int64_t first, const int limbs, float top, float least,
                                                               int64_t stride, int8_t *to) {
  vf largest = v_set(0.0f), invalid = v_set(0.0f);
  for (int64_t j = 0; j < count; j += 16) {
    const vf v = round_load(x + j, count - j);
    largest = v_max(v_abs(v), largest);
    invalid = v_fma(v, v_set(0.0f), invalid); /* NaN where v is not finite */
  }
  const float most = v_max_across(largest), none = v_sum(invalid);
  const float factor = none == 0.0f && most >= least ? top / most : 0.0f;
  round_units so_far[QUANT_LIMBS] = {{0}};
  int64_t j = 0;
  for (; j + 2 * INGOT_QUANT_BLOCK <= count; j += 2 * INGOT_QUANT_BLOCK)
    round_blocks(4, x, count, j, row, first, limbs, factor, stride, so_far, to);
  for (; j < count; j += INGOT_QUANT_BLOCK)
    round_blocks(2, x, count, j, row, first, limbs, factor, stride, so_far, to);
  return none == 0.0f ? most / top : none;
}

static inline __attribute__((always_inline)) void round_rows(const round_rows_args *g, const int limbs, float top,
                                                             float least, int32_t task, int32_t num_tasks) {
  const quant_row row = quant_row_of(g->cols);
  const int64_t groups = (g->cols + INGOT_ROUND_GROUP - 1) / INGOT_ROUND_GROUP, stride = g->out_stride / limbs;
  const int64_t end = task_begin(g->rows * groups, task + 1, num_tasks);
  for (int64_t i = task_begin(g->rows * groups, task, num_tasks); i < end; i++) {
    const int64_t r = i / groups, group = i % groups, first = group * INGOT_ROUND_GROUP;
    const int64_t count = g->cols - first < INGOT_ROUND_GROUP ? g->cols - first : INGOT_ROUND_GROUP;
    int8_t *to = (int8_t *)g->out + r * g->out_stride;
    float step = round_group(g->x + r * g->x_stride + first, count, &row, first, limbs, top, least, stride, to);
    for (int d = limbs - 1; d >= 0; d--, step *= ROUND_BASE) {
      memcpy(to + d * stride + row.steps + 4 * group, &step, sizeof step);
      if (group == groups - 1 && row.blocks % 2) memset(to + d * stride + row.bytes - 2, 0, 2);
    }
  }
}

void K(round_rows_i8)(const void *args, int32_t task, int32_t num_tasks) {
  round_rows(args, 1, 127.0f, 0x1p-120f, task, num_tasks);
}

void K(round_rows_i24)(const void *args, int32_t task, int32_t num_tasks) {
  round_rows(args, QUANT_LIMBS, 127.0f * ROUND_BASE * ROUND_BASE, 0x1p-100f, task, num_tasks);
}

#undef ROUND_BASE

/* gemm_micro_dots.c: gemm_tile_dots and gemm_tile_split without bf16 instructions: the results of AVX512_BF16 and AMX,
 * computed one float at a time. */
#include <math.h>
#include <string.h>

#include "gemm/split_sums.h"
#include "math/bf16.h"

static inline float without_denormal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static inline float bf16_element(const float *pair, int second) {
  uint16_t halves[2];
  memcpy(halves, pair, sizeof halves);
  return without_denormal(bf16_to_float(halves[second]));
}

/* sum + the products of two pairs. */
static inline float dot_pairs(float x, float y, float sum) {
  for (int second = 1; second >= 0; second--)
    sum = without_denormal(fmaf(bf16_element(&x, second), bf16_element(&y, second), sum));
  return sum;
}

#define TILE_V float
#define TILE_LANES 1
#define TILE_ZERO() 0.0f
#define TILE_LOAD(p) (*(p))
#define TILE_STORE(p, v) (*(p) = (v))
#define TILE_HALVES(p) ((void)(p), 0.0f) /* no tile here widens */
#define TILE_LOW(p) (*(p))
#define TILE_HIGH(p) (*(p))
#define TILE_SET1(p) (*(p))
#define TILE_ADD(x, y) ((x) + (y))
#define TILE_FMA(x, y, z) dot_pairs(x, y, z)
#define TILE_MIN(x, y) ((x) < (y) ? (x) : (y))
#define TILE_MAX(x, y) ((x) > (y) ? (x) : (y))
#define TILE_ROUND(to, v) (*(to) = float_to_bf16(without_denormal(v)))
#define TILE_WIDEST 2
#define TILE_GROUP 1
#if GEMM_ROWS > 4
#define TILE_SHAPES(X, n) X(6, 2, n) X(5, 2, n) X(4, 2, n) X(3, 2, n) X(2, 2, n) X(1, 2, n)
#else
#define TILE_SHAPES(X, n) X(4, 2, n) X(3, 2, n) X(2, 2, n) X(1, 2, n)
#endif
#include "gemm/gemm_tile_pairs.inc"

#if defined(INGOT_LIBRARY)
#define SPLIT_LOAD(p, n) ((void)(n), *(p))
#define SPLIT_STORE(p, v, n) ((void)(n), *(p) = (v))
#define SPLIT_ROUND(p, v, n) ((void)(n), TILE_ROUND(p, v))

void K(split_begin)(int64_t rows, int64_t k) { (void)rows, (void)k; }
void K(split_end)(void) {}

/* sum + the products of k pairs; those of b are INGOT_PANEL apart. */
static inline float split_sum(int64_t k, const float *a, const float *b, float sum) {
  for (int64_t begin = 0; begin < k; begin += SPLIT_PAIRS) {
    float chains[2] = {0.0f, 0.0f};
    for (int64_t i = begin; i < k && i < begin + SPLIT_PAIRS; i++) {
      for (int second = 0; second < 2; second++)
        chains[second] = without_denormal(
            fmaf(bf16_element(a + i, second), bf16_element(b + i * INGOT_PANEL, second), chains[second]));
    }
    sum = without_denormal(sum + without_denormal(chains[0] + chains[1]));
  }
  return sum;
}

void K(split_sums)(int64_t rows, const split_product *p, float *sums) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < (p->halved ? INGOT_PANEL / 2 : INGOT_PANEL); j++) {
      float sum = p->more ? sums[i * INGOT_PANEL + j] : 0.0f;
      for (int64_t run = 0; run < p->runs; run++)
        sum = split_sum(p->k, p->a + p->offsets[run] + i * p->a_stride, p->b + run * p->k * INGOT_PANEL + j, sum);
      sums[i * INGOT_PANEL + j] = sum;
    }
  }
}

#include "gemm/gemm_tile_split.inc"
#endif

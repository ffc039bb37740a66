/* scalar.h: 16 logical lanes in plain C, the reference for the functions that every simd/<isa>.h has. The other headers
 * give the same bits: each function rounds once per lane, sums have one fixed tree, v_min and v_max return the second
 * operand when a lane is unordered or equal. */
#ifndef INGOT_SIMD_SCALAR_H
#define INGOT_SIMD_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "math/f16.h"

/* Rows of the largest product tile. */
#if defined(INGOT_SMALL)
#define GEMM_ROWS 1
#else
#define GEMM_ROWS 4
#endif

typedef struct { float lane[16]; } vf;
typedef struct { int32_t lane[16]; } vi;
typedef struct { int32_t lane[16]; } vm; /* 0 or 1 */

#define EACH_LANE for (int i = 0; i < 16; i++)

static inline vf v_load(const float *p) { vf r; memcpy(r.lane, p, sizeof r.lane); return r; }
static inline void v_store(float *p, vf a) { memcpy(p, a.lane, sizeof a.lane); }
static inline vf v_set(float a) { vf r; EACH_LANE r.lane[i] = a; return r; }

/* The first n lanes, 0 <= n < 16; the rest are zero, and memory after n is not accessed. */
static inline vf v_load_n(const float *p, int64_t n) {
  vf r = v_set(0);
  for (int i = 0; i < n; i++) r.lane[i] = p[i];
  return r;
}

static inline void v_store_n(float *p, vf a, int64_t n) { for (int i = 0; i < n; i++) p[i] = a.lane[i]; }

/* 16 bf16, widened: exact. */
static inline vf v_load_bf16(const uint16_t *p) {
  uint32_t bits[16];
  for (int i = 0; i < 16; i++) bits[i] = (uint32_t)p[i] << 16;
  vf r;
  memcpy(&r, bits, sizeof r);
  return r;
}

/* 16 lanes rounded to bf16, half to even; NaN stays. */
static inline void v_store_bf16(uint16_t *p, vf a) {
  uint32_t bits[16];
  memcpy(bits, &a, sizeof bits);
  for (int i = 0; i < 16; i++) {
    const uint32_t rounded = (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16;
    p[i] = a.lane[i] == a.lane[i] ? (uint16_t)rounded : 0x7fc0;
  }
}

/* 16 f16, widened: exact; NaN becomes a quiet one. */
static inline vf v_load_f16(const uint16_t *p) {
  vf r;
  for (int i = 0; i < 16; i++) r.lane[i] = f16_to_float(p[i]);
  return r;
}

/* 16 lanes rounded to f16, half to even; every NaN becomes the same. */
static inline void v_store_f16(uint16_t *p, vf a) {
  for (int i = 0; i < 16; i++) p[i] = a.lane[i] == a.lane[i] ? float_to_f16(a.lane[i]) : 0x7e00;
}

/* 16 int8. */
static inline vf v_load_i8(const int8_t *p) { vf r; EACH_LANE r.lane[i] = (float)p[i]; return r; }

/* 16 lanes that are integers of int8. */
static inline void v_store_i8(int8_t *p, vf a) { EACH_LANE p[i] = (int8_t)a.lane[i]; }

/* 16 uint8, and 16 lanes that are integers of uint8. */
static inline vf v_load_u8(const uint8_t *p) { vf r; EACH_LANE r.lane[i] = (float)p[i]; return r; }
static inline void v_store_u8(uint8_t *p, vf a) { EACH_LANE p[i] = (uint8_t)a.lane[i]; }

/* Lanes that are integers of int32. */
static inline vi v_to_int(vf a) { vi r; EACH_LANE r.lane[i] = (int32_t)a.lane[i]; return r; }

static inline vf v_add(vf a, vf b) { EACH_LANE a.lane[i] += b.lane[i]; return a; }
static inline vf v_sub(vf a, vf b) { EACH_LANE a.lane[i] -= b.lane[i]; return a; }
static inline vf v_mul(vf a, vf b) { EACH_LANE a.lane[i] *= b.lane[i]; return a; }
static inline vf v_div(vf a, vf b) { EACH_LANE a.lane[i] /= b.lane[i]; return a; }

/* a * b + c, rounded once, in double precision, where the product is exact. An inexact sum is rounded to odd: to that
 * of the two adjacent doubles whose last bit is set, which then rounds to the same float as the exact sum. Boldo and
 * Melquiond, "Emulation of a FMA and Correctly-Rounded Sums: Proved Algorithms Using Rounding to Odd", 2008. */
static inline float fma_by_double(float a, float b, float c) {
  double product = (double)a * b, sum = product + c;
  const double added = sum - product, error = (product - (sum - added)) + (c - added);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  if ((error > 0 || error < 0) && bits % 2 == 0) bits += (error > 0) == (sum > 0) ? 1 : UINT64_MAX;
  memcpy(&sum, &bits, sizeof sum);
  return (float)sum;
}

/* Without the instruction, fmaf is a function call. Four lanes of doubles, rounded twice, give the same result unless
 * the sum is or may be a tie between two floats; it may be when the float is denormal. */
#if defined(__x86_64__) && !defined(__FMA__)
static __attribute__((noinline, cold)) __m128 fma_four_exact(__m128 a, __m128 b, __m128 c) {
  for (int i = 0; i < 4; i++) c[i] = fma_by_double(a[i], b[i], c[i]);
  return c;
}

static inline __m128 fma_four(__m128 a, __m128 b, __m128 c) {
  const __m128d low = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c));
  const __m128 a2 = _mm_movehl_ps(a, a), b2 = _mm_movehl_ps(b, b), c2 = _mm_movehl_ps(c, c);
  const __m128d high = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a2), _mm_cvtps_pd(b2)), _mm_cvtps_pd(c2));
  const __m128 rounded = _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
  const __m128 cut = _mm_shuffle_ps(_mm_castpd_ps(low), _mm_castpd_ps(high), 0x88); /* the sums' lower halves */
  const __m128i tie = _mm_cmpeq_epi32(_mm_and_si128(_mm_castps_si128(cut), _mm_set1_epi32(0x1fffffff)),
                                      _mm_set1_epi32(0x10000000));
  const __m128 magnitude = _mm_andnot_ps(_mm_set1_ps(-0.0f), rounded);
  const __m128 tiny = _mm_andnot_ps(_mm_cmpeq_ps(magnitude, _mm_setzero_ps()),
                                    _mm_cmple_ps(magnitude, _mm_set1_ps(0x1p-126f)));
  if (__builtin_expect(_mm_movemask_ps(_mm_or_ps(_mm_castsi128_ps(tie), tiny)) == 0, 1)) return rounded;
  return fma_four_exact(a, b, c);
}
#define FMA_STEP(a, b, c, i)                                                                                           \
  _mm_storeu_ps(c + i, fma_four(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i), _mm_loadu_ps(c + i)))
#define FMA_STEP_LANES 4
#else
#define FMA_STEP(a, b, c, i) c[i] = fmaf(a[i], b[i], c[i])
#define FMA_STEP_LANES 1
#endif

/* a * b + c, rounded once. */
static inline vf v_fma(vf a, vf b, vf c) {
  for (int i = 0; i < 16; i += FMA_STEP_LANES) FMA_STEP(a.lane, b.lane, c.lane, i);
  return c;
}

static inline vf v_min(vf a, vf b) { EACH_LANE a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
static inline vf v_max(vf a, vf b) { EACH_LANE a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
static inline vf v_sqrt(vf a) { EACH_LANE a.lane[i] = sqrtf(a.lane[i]); return a; }
static inline vf v_abs(vf a) { EACH_LANE a.lane[i] = fabsf(a.lane[i]); return a; }

/* The magnitude of a with the sign of b. */
static inline vf v_copysign(vf a, vf b) { EACH_LANE a.lane[i] = copysignf(a.lane[i], b.lane[i]); return a; }

/* The nearest integer, ties to even; adding and subtracting 2^23 removes all fraction bits. */
static inline vf v_round(vf a) {
  EACH_LANE if (fabsf(a.lane[i]) < 0x1p23f) a.lane[i] = copysignf((fabsf(a.lane[i]) + 0x1p23f) - 0x1p23f, a.lane[i]);
  return a;
}

static inline vm v_lt(vf a, vf b) { vm r; EACH_LANE r.lane[i] = a.lane[i] < b.lane[i]; return r; }
static inline vm v_le(vf a, vf b) { vm r; EACH_LANE r.lane[i] = a.lane[i] <= b.lane[i]; return r; }
static inline vm v_eq(vf a, vf b) { vm r; EACH_LANE r.lane[i] = a.lane[i] == b.lane[i]; return r; }
static inline vm v_isnan(vf a) { vm r; EACH_LANE r.lane[i] = a.lane[i] != a.lane[i]; return r; }

/* Where 16 bytes are not zero. */
static inline vm v_mask(const uint8_t *p) { vm r; EACH_LANE r.lane[i] = p[i] != 0; return r; }
static inline int v_any(vm m) { int32_t r = 0; EACH_LANE r |= m.lane[i]; return r; }

/* a where m holds, else b. */
static inline vf v_select(vm m, vf a, vf b) { EACH_LANE a.lane[i] = m.lane[i] ? a.lane[i] : b.lane[i]; return a; }

/* Pairwise: lanes 8 apart, then 4, 2 and 1. */
static inline float v_sum(vf a) {
  for (int half = 8; half; half /= 2) for (int i = 0; i < half; i++) a.lane[i] += a.lane[i + half];
  return a.lane[0];
}

static inline float v_max_across(vf a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
  return a.lane[0];
}

static inline vi v_bits(vf a) { vi r; memcpy(&r, &a, sizeof r); return r; }
static inline vf v_from_bits(vi a) { vf r; memcpy(&r, &a, sizeof r); return r; }
static inline vf v_from_int(vi a) { vf r; EACH_LANE r.lane[i] = (float)a.lane[i]; return r; }
static inline vi vi_set(int32_t a) { vi r; EACH_LANE r.lane[i] = a; return r; }

static inline vi vi_add(vi a, vi b) {
  EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]);
  return a;
}
static inline vi vi_and(vi a, vi b) { EACH_LANE a.lane[i] &= b.lane[i]; return a; }
static inline vi vi_shl(vi a, int count) { EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] << count); return a; }

/* The lowest byte of each lane. */
static inline void vi_store_u8(uint8_t *p, vi a) { EACH_LANE p[i] = (uint8_t)a.lane[i]; }

/* Arithmetic: the sign is kept. */
static inline vi vi_sar(vi a, int count) { EACH_LANE a.lane[i] = a.lane[i] >> count; return a; }

/* a * 2^n for integral |n| <= 252 and a in [0.5, 2]; two exact powers, so a denormal result is rounded once.
 * Adding 1.5 * 2^23 + 127 puts n + 127 into the lowest bits. */
static inline vf v_scale(vf a, vf n) {
  vf half = v_round(v_mul(n, v_set(0.5f)));
  vf rest = v_sub(n, half);
  vf magic = v_set(0x1.8p23f + 127);
  a = v_mul(a, v_from_bits(vi_shl(v_bits(v_add(half, magic)), 23)));
  return v_mul(a, v_from_bits(vi_shl(v_bits(v_add(rest, magic)), 23)));
}

/* The same for n from -190 to 63 with one power: 2^(n + 64) is normal. */
static inline vf v_scale_down(vf a, vf n) {
  vf power = v_from_bits(vi_shl(v_bits(v_add(n, v_set(0x1.8p23f + 191))), 23));
  return v_mul(v_mul(a, power), v_set(0x1p-64f));
}

/* x = m 2^exponent with m in [3/4, 3/2), for finite positive x; anything for others. Denormals are scaled up first. */
static inline vf v_split(vf x, vf *exponent) {
  vm tiny = v_lt(x, v_set(0x1p-126f));
  vf scaled = v_select(tiny, v_mul(x, v_set(0x1p23f)), x);
  vi offset = vi_add(v_bits(scaled), vi_set(-0x3f400000));
  *exponent = v_add(v_from_int(vi_sar(offset, 23)), v_select(tiny, v_set(-23), v_set(0)));
  return v_from_bits(vi_add(vi_and(offset, vi_set(0x007fffff)), vi_set(0x3f400000)));
}

#endif

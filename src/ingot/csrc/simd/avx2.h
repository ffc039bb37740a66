/* avx2.h: 16 logical lanes as two 256-bit halves (AVX2, FMA and F16C). The meaning of each function is in scalar.h. */
#ifndef INGOT_SIMD_AVX2_H
#define INGOT_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* Rows of the largest product tile: with half a panel they fill the register file. */
#define GEMM_ROWS 6

typedef struct { __m256 lo, hi; } vf;
typedef struct { __m256i lo, hi; } vi;
typedef struct { __m256 lo, hi; } vm;

static inline vf v_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void v_store(float *p, vf a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static inline vf v_set(float a) { return (vf){_mm256_set1_ps(a), _mm256_set1_ps(a)}; }

/* Lanes first..first+7 that are below n. */
static inline __m256i avx2_below(int64_t n, int first) {
  __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - first), lanes);
}

static inline vf v_load_n(const float *p, int64_t n) {
  vf r = {_mm256_maskload_ps(p, avx2_below(n, 0)), _mm256_setzero_ps()};
  if (n > 8) r.hi = _mm256_maskload_ps(p + 8, avx2_below(n, 8));
  return r;
}

static inline void v_store_n(float *p, vf a, int64_t n) {
  _mm256_maskstore_ps(p, avx2_below(n, 0), a.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, avx2_below(n, 8), a.hi);
}

static inline __m256 avx2_widen(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

static inline vf v_load_bf16(const uint16_t *p) { return (vf){avx2_widen(p), avx2_widen(p + 8)}; }

static inline __m256i avx2_narrow(__m256 a) {
  __m256i bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
}

static inline void v_store_bf16(uint16_t *p, vf a) {
  __m256i packed = _mm256_packus_epi32(avx2_narrow(a.lo), avx2_narrow(a.hi));
  _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

static inline vf v_load_f16(const uint16_t *p) {
  return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
              _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

static inline __m128i avx2_halve(__m256 a) {
  __m256 one = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_cvtps_ph(_mm256_blendv_ps(a, one, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)), _MM_FROUND_TO_NEAREST_INT);
}

static inline void v_store_f16(uint16_t *p, vf a) {
  _mm_storeu_si128((__m128i *)p, avx2_halve(a.lo));
  _mm_storeu_si128((__m128i *)(p + 8), avx2_halve(a.hi));
}

static inline vf v_load_i8(const int8_t *p) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
              _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

static inline void v_store_i8(int8_t *p, vf a) {
  __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline vf v_load_u8(const uint8_t *p) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return (vf){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
              _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}

static inline void v_store_u8(uint8_t *p, vf a) {
  __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline vi v_to_int(vf a) { return (vi){_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)}; }

static inline vf v_add(vf a, vf b) { return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline vf v_sub(vf a, vf b) { return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline vf v_mul(vf a, vf b) { return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline vf v_div(vf a, vf b) { return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }

static inline vf v_fma(vf a, vf b, vf c) {
  return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static inline vf v_min(vf a, vf b) { return (vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline vf v_max(vf a, vf b) { return (vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline vf v_sqrt(vf a) { return (vf){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }

static inline vf v_abs(vf a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return (vf){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

static inline vf v_copysign(vf a, vf b) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return (vf){_mm256_or_ps(_mm256_andnot_ps(sign, a.lo), _mm256_and_ps(sign, b.lo)),
              _mm256_or_ps(_mm256_andnot_ps(sign, a.hi), _mm256_and_ps(sign, b.hi))};
}

static inline vf v_round(vf a) {
  return (vf){_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
              _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

static inline vm v_lt(vf a, vf b) {
  return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}

static inline vm v_le(vf a, vf b) {
  return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}

static inline vm v_eq(vf a, vf b) {
  return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}

static inline vm v_isnan(vf a) {
  return (vm){_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}

static inline vm v_mask(const uint8_t *p) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  __m256i lo = _mm256_cvtepu8_epi32(bytes), hi = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes));
  return (vm){_mm256_castsi256_ps(_mm256_cmpgt_epi32(lo, _mm256_setzero_si256())),
              _mm256_castsi256_ps(_mm256_cmpgt_epi32(hi, _mm256_setzero_si256()))};
}

static inline int v_any(vm m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }

static inline vf v_select(vm m, vf a, vf b) {
  return (vf){_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

static inline float v_sum(vf a) {
  __m256 eight = _mm256_add_ps(a.lo, a.hi);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline float v_max_across(vf a) {
  __m256 eight = _mm256_max_ps(a.lo, a.hi);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline vi v_bits(vf a) { return (vi){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
static inline vf v_from_bits(vi a) { return (vf){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
static inline vf v_from_int(vi a) { return (vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline vi vi_set(int32_t a) { return (vi){_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
static inline vi vi_add(vi a, vi b) { return (vi){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline vi vi_and(vi a, vi b) { return (vi){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }

static inline void vi_store_u8(uint8_t *p, vi a) {
  const __m256i lowest = _mm256_set1_epi32(255);
  __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.lo, lowest), _mm256_and_si256(a.hi, lowest));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline vi vi_shl(vi a, int count) {
  __m128i by = _mm_cvtsi32_si128(count);
  return (vi){_mm256_sll_epi32(a.lo, by), _mm256_sll_epi32(a.hi, by)};
}

static inline vi vi_sar(vi a, int count) {
  __m128i by = _mm_cvtsi32_si128(count);
  return (vi){_mm256_sra_epi32(a.lo, by), _mm256_sra_epi32(a.hi, by)};
}

static inline vf v_scale(vf a, vf n) {
  vf half = v_round(v_mul(n, v_set(0.5f)));
  vf rest = v_sub(n, half);
  vf magic = v_set(0x1.8p23f + 127);
  a = v_mul(a, v_from_bits(vi_shl(v_bits(v_add(half, magic)), 23)));
  return v_mul(a, v_from_bits(vi_shl(v_bits(v_add(rest, magic)), 23)));
}

static inline vf v_scale_down(vf a, vf n) {
  vf power = v_from_bits(vi_shl(v_bits(v_add(n, v_set(0x1.8p23f + 191))), 23));
  return v_mul(v_mul(a, power), v_set(0x1p-64f));
}

static inline vf v_split(vf x, vf *exponent) {
  vm tiny = v_lt(x, v_set(0x1p-126f));
  vf scaled = v_select(tiny, v_mul(x, v_set(0x1p23f)), x);
  vi offset = vi_add(v_bits(scaled), vi_set(-0x3f400000));
  *exponent = v_add(v_from_int(vi_sar(offset, 23)), v_select(tiny, v_set(-23), v_set(0)));
  return v_from_bits(vi_add(vi_and(offset, vi_set(0x007fffff)), vi_set(0x3f400000)));
}

#endif

/* avx512.h: 16 lanes in one register (AVX-512 F, DQ, BW, VL). The meaning of each function is in scalar.h. */
#ifndef INGOT_SIMD_AVX512_H
#define INGOT_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Rows of the largest product tile: with one panel they fill 32 registers of 16 lanes. */
#define GEMM_ROWS 12

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf v_set(float a) { return _mm512_set1_ps(a); }
static inline vf v_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps((vm)((1u << n) - 1), p); }
static inline void v_store_n(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, (vm)((1u << n) - 1), a); }

static inline vf v_load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline void v_store_bf16(uint16_t *p, vf a) {
  __m512i bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i carry = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)), nan = _mm512_set1_epi32(0x7fc00000);
  __m512i rounded = _mm512_mask_add_epi32(nan, _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), bits, carry);
  __m512i upper = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015, 0x130011, 0xf000d, 0xb0009,
                                   0x70005, 0x30001);
  _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, rounded)));
}

static inline vf v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

static inline void v_store_f16(uint16_t *p, vf a) {
  __m512 one = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  a = _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), one);
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf v_load_i8(const int8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline void v_store_i8(int8_t *p, vf a) {
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

static inline vf v_load_u8(const uint8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline void v_store_u8(uint8_t *p, vf a) {
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

static inline vi v_to_int(vf a) { return _mm512_cvttps_epi32(a); }

static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf v_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }

static inline vf v_copysign(vf a, vf b) {
  __m512i sign = _mm512_set1_epi32(INT32_MIN); /* bits of b where sign is set, else of a: truth table 0xca */
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(b), _mm512_castps_si512(a), 0xca));
}

static inline vf v_round(vf a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vm v_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
static inline vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline vm v_isnan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline vm v_mask(const uint8_t *p) {
  __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return _mm_test_epi8_mask(bytes, bytes);
}

static inline int v_any(vm m) { return m != 0; }
static inline vf v_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }

static inline float v_sum(vf a) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline float v_max_across(vf a) {
  __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline vi v_bits(vf a) { return _mm512_castps_si512(a); }
static inline vf v_from_bits(vi a) { return _mm512_castsi512_ps(a); }
static inline vf v_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi vi_set(int32_t a) { return _mm512_set1_epi32(a); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline void vi_store_u8(uint8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
static inline vi vi_shl(vi a, int count) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(count)); }
static inline vi vi_sar(vi a, int count) { return _mm512_sra_epi32(a, _mm_cvtsi32_si128(count)); }
static inline vf v_scale(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf v_scale_down(vf a, vf n) { return _mm512_scalef_ps(a, n); }

static inline vf v_split(vf x, vf *exponent) {
  vf m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  *exponent = _mm512_sub_ps(_mm512_getexp_ps(x), _mm512_getexp_ps(m));
  return m;
}

#endif

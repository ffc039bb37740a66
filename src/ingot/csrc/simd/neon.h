/* neon.h: 16 logical lanes as four 128-bit registers (AArch64). The meaning of each function is in scalar.h. */
#ifndef INGOT_SIMD_NEON_H
#define INGOT_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

/* Rows of the largest product tile: with one panel they fill 32 registers of 4 lanes. */
#define GEMM_ROWS 6

typedef struct { float32x4_t a, b, c, d; } vf;
typedef struct { int32x4_t a, b, c, d; } vi;
typedef struct { uint32x4_t a, b, c, d; } vm;

/* Apply a function of one, two or three operands to the four registers. */
#define NEON_EACH(f, x) {f((x).a), f((x).b), f((x).c), f((x).d)}
#define NEON_BOTH(f, x, y) {f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)}
#define NEON_ALL(f, x, y, z)                                                                                           \
  {f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d)}

static inline vf v_load(const float *p) {
  return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

static inline void v_store(float *p, vf x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}

static inline vf v_set(float x) { const float32x4_t all = vdupq_n_f32(x); return (vf){all, all, all, all}; }

static inline vf v_load_n(const float *p, int64_t n) {
  float all[16] = {0};
  for (int64_t i = 0; i < n; i++) all[i] = p[i];
  return v_load(all);
}

static inline void v_store_n(float *p, vf x, int64_t n) {
  float all[16];
  v_store(all, x);
  for (int64_t i = 0; i < n; i++) p[i] = all[i];
}

static inline float32x4_t neon_widen(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }

static inline vf v_load_bf16(const uint16_t *p) {
  const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
  return (vf){neon_widen(vget_low_u16(low)), neon_widen(vget_high_u16(low)),
              neon_widen(vget_low_u16(high)), neon_widen(vget_high_u16(high))};
}

static inline uint16x4_t neon_narrow(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(0x7fc00000)), 16);
}

static inline void v_store_bf16(uint16_t *p, vf x) {
  vst1q_u16(p, vcombine_u16(neon_narrow(x.a), neon_narrow(x.b)));
  vst1q_u16(p + 8, vcombine_u16(neon_narrow(x.c), neon_narrow(x.d)));
}

static inline float32x4_t neon_double(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }

static inline vf v_load_f16(const uint16_t *p) {
  const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
  return (vf){neon_double(vget_low_u16(low)), neon_double(vget_high_u16(low)),
              neon_double(vget_low_u16(high)), neon_double(vget_high_u16(high))};
}

static inline uint16x4_t neon_halve(float32x4_t x) {
  const float32x4_t one = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000));
  return vreinterpret_u16_f16(vcvt_f16_f32(vbslq_f32(vceqq_f32(x, x), x, one)));
}

static inline void v_store_f16(uint16_t *p, vf x) {
  vst1q_u16(p, vcombine_u16(neon_halve(x.a), neon_halve(x.b)));
  vst1q_u16(p + 8, vcombine_u16(neon_halve(x.c), neon_halve(x.d)));
}

static inline vf v_from_int(vi x) { return (vf)NEON_EACH(vcvtq_f32_s32, x); }
static inline vi v_to_int(vf x) { return (vi)NEON_EACH(vcvtq_s32_f32, x); }

static inline vf v_load_i8(const int8_t *p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return v_from_int((vi){vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
                         vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))});
}

static inline void vi_store_u8(uint8_t *p, vi x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
  vst1q_u8(p, vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high))));
}

static inline void v_store_i8(int8_t *p, vf x) { vi_store_u8((uint8_t *)p, v_to_int(x)); }

static inline vf v_load_u8(const uint8_t *p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return (vf){vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
              vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))};
}

static inline void v_store_u8(uint8_t *p, vf x) { v_store_i8((int8_t *)p, x); }

static inline vf v_add(vf x, vf y) { return (vf)NEON_BOTH(vaddq_f32, x, y); }
static inline vf v_sub(vf x, vf y) { return (vf)NEON_BOTH(vsubq_f32, x, y); }
static inline vf v_mul(vf x, vf y) { return (vf)NEON_BOTH(vmulq_f32, x, y); }
static inline vf v_div(vf x, vf y) { return (vf)NEON_BOTH(vdivq_f32, x, y); }
static inline vf v_fma(vf x, vf y, vf z) { return (vf)NEON_ALL(vfmaq_f32, z, x, y); }
static inline vf v_sqrt(vf x) { return (vf)NEON_EACH(vsqrtq_f32, x); }
static inline vf v_abs(vf x) { return (vf)NEON_EACH(vabsq_f32, x); }
static inline vf v_round(vf x) { return (vf)NEON_EACH(vrndnq_f32, x); }

static inline vm v_lt(vf x, vf y) { return (vm)NEON_BOTH(vcltq_f32, x, y); }
static inline vm v_le(vf x, vf y) { return (vm)NEON_BOTH(vcleq_f32, x, y); }
static inline vm v_eq(vf x, vf y) { return (vm)NEON_BOTH(vceqq_f32, x, y); }

static inline vm v_isnan(vf x) {
  const vm equal = v_eq(x, x);
  return (vm)NEON_EACH(vmvnq_u32, equal);
}

static inline vf v_select(vm m, vf x, vf y) { return (vf)NEON_ALL(vbslq_f32, m, x, y); }

/* NEON's min and max instructions do not return the second operand when a lane is unordered or equal. */
static inline vf v_min(vf x, vf y) { return v_select(v_lt(x, y), x, y); }
static inline vf v_max(vf x, vf y) { return v_select(v_lt(y, x), x, y); }

static inline vf v_copysign(vf x, vf y) {
  const uint32x4_t sign = vdupq_n_u32(0x80000000u);
  return v_select((vm){sign, sign, sign, sign}, y, x);
}

static inline vm v_mask(const uint8_t *p) {
  const uint8x16_t bytes = vld1q_u8(p), set = vtstq_u8(bytes, bytes);
  const int16x8_t low = vmovl_s8(vreinterpret_s8_u8(vget_low_u8(set)));
  const int16x8_t high = vmovl_s8(vreinterpret_s8_u8(vget_high_u8(set)));
  return (vm){vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low))), vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(low))),
              vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high))),
              vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(high)))};
}

static inline int v_any(vm m) { return vmaxvq_u32(vorrq_u32(vorrq_u32(m.a, m.b), vorrq_u32(m.c, m.d))) != 0; }

static inline float v_sum(vf x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float32x4_t neon_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }

static inline float v_max_across(vf x) {
  float32x4_t four = neon_max(neon_max(x.a, x.c), neon_max(x.b, x.d));
  four = neon_max(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(neon_max(four, vextq_f32(four, four, 1)), 0);
}

static inline vi v_bits(vf x) { return (vi)NEON_EACH(vreinterpretq_s32_f32, x); }
static inline vf v_from_bits(vi x) { return (vf)NEON_EACH(vreinterpretq_f32_s32, x); }

static inline vi vi_set(int32_t x) {
  const int32x4_t all = vdupq_n_s32(x);
  return (vi){all, all, all, all};
}

static inline vi vi_add(vi x, vi y) { return (vi)NEON_BOTH(vaddq_s32, x, y); }
static inline vi vi_and(vi x, vi y) { return (vi)NEON_BOTH(vandq_s32, x, y); }

static inline vi vi_shl(vi x, int count) {
  const vi by = vi_set(count);
  return (vi)NEON_BOTH(vshlq_s32, x, by);
}

/* A shift by a negative count goes to the right. */
static inline vi vi_sar(vi x, int count) { return vi_shl(x, -count); }

static inline vf v_scale(vf x, vf n) {
  vf half = v_round(v_mul(n, v_set(0.5f)));
  vf rest = v_sub(n, half);
  vf magic = v_set(0x1.8p23f + 127);
  x = v_mul(x, v_from_bits(vi_shl(v_bits(v_add(half, magic)), 23)));
  return v_mul(x, v_from_bits(vi_shl(v_bits(v_add(rest, magic)), 23)));
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

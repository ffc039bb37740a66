/* vmath.h: vector functions over simd/<isa>.h. Each is one fixed sequence of roundings, so every instruction set gives
 * the same bits. Whole float range: infinities, NaN and denormals included. Polynomials are minimax fits
 * by Lawson's reweighted least squares with coefficients rounded to float from the lowest up. */
#ifndef INGOT_VMATH_H
#define INGOT_VMATH_H

#include <math.h>
#include <string.h>

#include "kernel.h"

/* The first n lanes; `rest` in the others. */
static inline vf v_below(int64_t n, vf x, float rest) {
  static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return v_select(v_lt(v_load(lane), v_set((float)n)), x, v_set(rest));
}

/* A polynomial of x, the coefficient of its highest power first, with one fused step for each of the others. It is a
 * macro because a loop, even an unrolled one, changes which functions compilers inline. */
#if defined(INGOT_SMALL)
static inline vf v_polynomial(vf x, const float *c, int count) {
  vf p = v_set(c[0]);
  for (int i = 1; i < count; i++) p = v_fma(p, x, v_set(c[i]));
  return p;
}
#else
static inline __attribute__((always_inline)) vf v_polynomial(vf x, const float *c, const int count) {
  vf p = v_fma(v_set(c[0]), x, v_set(c[1]));
  if (count > 2) p = v_fma(p, x, v_set(c[2]));
  if (count > 3) p = v_fma(p, x, v_set(c[3]));
  if (count > 4) p = v_fma(p, x, v_set(c[4]));
  if (count > 5) p = v_fma(p, x, v_set(c[5]));
  if (count > 6) p = v_fma(p, x, v_set(c[6]));
  if (count > 7) p = v_fma(p, x, v_set(c[7]));
  if (count > 8) p = v_fma(p, x, v_set(c[8]));
  return p;
}
#endif

#define V_POLYNOMIAL(x, ...)                                                                                           \
  v_polynomial(x, (const float[]){__VA_ARGS__}, (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

/* NaN in either operand is the result, as in torch and numpy. */
static inline vf v_maximum(vf a, vf b) { return v_select(v_isnan(a), a, v_max(a, b)); }
static inline vf v_minimum(vf a, vf b) { return v_select(v_isnan(a), a, v_min(a, b)); }

static inline vf v_floor(vf x) {
  vf r = v_round(x);
  return v_select(v_lt(x, r), v_sub(r, v_set(1)), r);
}

/* The sign is copied so that ceil(-0.5) is -0. */
static inline vf v_ceil(vf x) {
  vf r = v_round(x);
  return v_copysign(v_select(v_lt(r, x), v_add(r, v_set(1)), r), x);
}

/* x = n ln2 + r, |r| <= ln2 / 2: ln2 in two parts, the first short enough that n * part is exact. Returns r. */
static inline vf v_reduce_ln2(vf x, vf *n) {
  *n = v_round(v_mul(x, v_set(0x1.715476p+0f)));
  vf r = v_fma(*n, v_set(-0x1.63p-1f), x);
  return v_fma(*n, v_set(0x1.bd0106p-13f), r);
}

/* e^x / 2^n for x from -104 to 89, or NaN; at most 1.5 ULP. */
static inline vf v_exp_bounded(vf x, vf *n) {
  vf r = v_reduce_ln2(x, n);
  return V_POLYNOMIAL(r, 0x1.6a495cp-10f, 0x1.1239a0p-7f, 0x1.5558b4p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1, 1);
}

/* e^x; at most 1.5 ULP. The operand order of the clamp keeps NaN. */
static inline vf v_exp(vf x) {
  vf n, p = v_exp_bounded(v_max(v_set(-104.0f), v_min(v_set(89.0f), x)), &n);
  return v_scale(p, n);
}

/* e^-|x|; at most 1.5 ULP. */
static inline vf v_exp_decay(vf x) {
  vf n, p = v_exp_bounded(v_max(v_set(-104.0f), v_copysign(x, v_set(-1))), &n);
  return v_scale_down(p, n);
}

/* e^x for x <= 0, at most 1.5 ULP; 0 below -87.7, where 2^-127 comes out as 0. The clamp's operand order keeps NaN.
 * Cheaper than v_exp where scaling by any power of two is not one instruction. */
static inline vf v_exp_negative(vf x) {
  const vf magic = v_set(0x1.8p23f + 127);
  x = v_max(v_set(-88), x);
  vf shifted = v_fma(x, v_set(0x1.715476p+0f), magic);
  vf n = v_sub(shifted, magic);
  vf r = v_fma(n, v_set(-0x1.63p-1f), x);
  r = v_fma(n, v_set(0x1.bd0106p-13f), r);
  vf p = V_POLYNOMIAL(r, 0x1.6a495cp-10f, 0x1.1239a0p-7f, 0x1.5558b4p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1, 1);
  return v_mul(p, v_from_bits(vi_shl(v_bits(shifted), 23)));
}

/* e^x - 1 for x from -20 to 89, or NaN; at most 2 ULP. (p 2^(n-1) + 2^(n-1) - 1/2) * 2 keeps the power of two finite up
 * to the largest result. */
static inline vf v_expm1_bounded(vf x) {
  vf n;
  vf r = v_reduce_ln2(x, &n);
  vf q = V_POLYNOMIAL(r, 0x1.6b9caap-10f, 0x1.122540p-7f, 0x1.5556f2p-5f, 0x1.5554b4p-3f, 0x1.fffffep-2f);
  vf p = v_fma(v_mul(r, r), q, r);
  vf power = v_scale(v_set(1), v_sub(n, v_set(1)));
  vf half = v_fma(p, power, v_sub(power, v_set(0.5f)));
  return v_select(v_eq(n, v_set(0)), p, v_add(half, half));
}

/* e^x - 1; at most 2 ULP. */
static inline vf v_expm1(vf x) { return v_expm1_bounded(v_max(v_set(-20.0f), v_min(v_set(89.0f), x))); }

/* ln x; at most 1 ULP. */
static inline vf v_log(vf x) {
  vf e;
  vf f = v_sub(v_split(x, &e), v_set(1));
  vf p = V_POLYNOMIAL(f, -0x1.71e354p-5f, 0x1.acf4bap-4f, -0x1.0d98f2p-3f, 0x1.28807ap-3f, -0x1.54ed96p-3f,
                         0x1.99699ep-3f, -0x1.00004ap-2f, 0x1.5555a4p-2f);
  vf square = v_mul(f, f);
  vf low = v_fma(e, v_set(-0x1.bd0106p-13f), v_mul(v_mul(square, f), p));
  low = v_fma(square, v_set(-0.5f), low);
  vf r = v_fma(e, v_set(0x1.63p-1f), v_add(f, low));
  r = v_select(v_lt(x, v_set(INFINITY)), r, x);
  r = v_select(v_eq(x, v_set(0)), v_set(-INFINITY), r);
  return v_select(v_lt(x, v_set(0)), v_set(NAN), r);
}

/* ln(1 + x); at most 1.5 ULP. What rounding 1 + x lost is added back divided by 1 + x; where that is no number, at -1
 * and infinity, the logarithm alone is the limit. The sign is copied so that ln(1 - 0) is -0. */
static inline vf v_log1p(vf x) {
  vf u = v_add(x, v_set(1));
  vf lost = v_div(v_sub(x, v_sub(u, v_set(1))), u);
  lost = v_select(v_isnan(lost), v_set(0), lost);
  return v_copysign(v_add(v_log(u), lost), x);
}

/* At most 3 ULP. m / (m + 2) with m = e^2|x| - 1; from |x| = 10 on that is 1. */
static inline vf v_tanh(vf x) {
  vf m = v_expm1_bounded(v_min(v_set(20), v_abs(v_add(x, x))));
  return v_copysign(v_div(m, v_add(m, v_set(2))), x);
}

/* At most 4 ULP. 2 sinh(x/2) cosh(x/2), both of m = e^|x/2| - 1; the clamp keeps m finite where the result is not. */
static inline vf v_sinh(vf x) {
  vf m = v_expm1_bounded(v_min(v_set(45), v_mul(v_abs(x), v_set(0.5f))));
  vf power = v_add(m, v_set(1));
  vf sine = v_mul(v_add(m, v_div(m, power)), v_set(0.5f));
  return v_copysign(v_mul(sine, v_add(power, v_div(v_set(1), power))), x);
}

/* At most 4 ULP. e^|x| is the square of e^|x/2|, halved before it overflows. */
static inline vf v_cosh(vf x) {
  vf root = v_exp(v_mul(v_abs(x), v_set(0.5f)));
  vf half = v_mul(v_mul(root, v_set(0.5f)), root);
  return v_add(half, v_div(v_set(0.25f), half));
}

/* At most 3 ULP. |x| above tan(pi/8) is rotated by pi/4, above tan(3 pi/8) by pi/2, which leaves |t| <= tan(pi/8). */
static inline vf v_atan(vf x) {
  vf u = v_abs(x);
  vm near = v_le(u, v_set(0x1.a8279ap-2f)), far = v_lt(v_set(0x1.3504f4p+1f), u);
  vf above = v_select(near, u, v_select(far, v_set(-1), v_sub(u, v_set(1))));
  vf below = v_select(near, v_set(1), v_select(far, u, v_add(u, v_set(1))));
  vf turn = v_select(near, v_set(0), v_select(far, v_set(0x1.921fb6p+0f), v_set(0x1.921fb6p-1f)));
  vf t = v_div(above, below);
  vf s = v_mul(t, t);
  vf p = V_POLYNOMIAL(s, -0x1.f31d54p-5f, 0x1.b22ecap-4f, -0x1.23ba42p-3f, 0x1.9991e8p-3f, -0x1.55554ap-2f);
  return v_copysign(v_add(turn, v_fma(v_mul(t, s), p, t)), x);
}

/* The arcsine of u <= 1/2 itself, of u above that the arcsine of sqrt((1 - u) / 2), which is pi/4 - asin(u) / 2. */
static inline vf v_asin_part(vf u, vm outer) {
  vf t = v_select(outer, v_sqrt(v_mul(v_sub(v_set(1), u), v_set(0.5f))), u);
  vf s = v_mul(t, t);
  vf p = V_POLYNOMIAL(s, 0x1.59daa8p-5f, 0x1.8ba79ep-6f, 0x1.748b32p-5f, 0x1.330164p-4f, 0x1.5555cap-3f);
  return v_fma(v_mul(t, s), p, t);
}

/* pi/2 - x, with pi/2 in two parts. */
static inline vf v_from_right_angle(vf x) { return v_add(v_set(0x1.921fb6p+0f), v_sub(v_set(-0x1.777a5cp-25f), x)); }

/* At most 3 ULP; NaN outside of -1..1, where the square root is. */
static inline vf v_asin(vf x) {
  vf u = v_abs(x);
  vm outer = v_lt(v_set(0.5f), u);
  vf part = v_asin_part(u, outer);
  return v_copysign(v_select(outer, v_from_right_angle(v_add(part, part)), part), x);
}

/* At most 3 ULP; NaN outside of -1..1. */
static inline vf v_acos(vf x) {
  vf u = v_abs(x);
  vm outer = v_lt(v_set(0.5f), u);
  vf part = v_asin_part(u, outer);
  vf rest = v_from_right_angle(v_select(outer, part, v_copysign(part, x)));
  vf half = v_select(v_lt(x, v_set(0)), rest, part);
  return v_select(outer, v_add(half, half), rest);
}

/* At most 4 ULP. ln(x + sqrt(x^2 + 1)), and ln 2x where the 1 is lost. */
static inline vf v_asinh(vf x) {
  vf u = v_abs(x);
  vm far = v_lt(v_set(0x1p20f), u);
  vf root = v_add(v_sqrt(v_fma(u, u, v_set(1))), v_set(1));
  vf part = v_log1p(v_select(far, u, v_add(u, v_mul(u, v_div(u, root)))));
  return v_copysign(v_select(far, v_add(part, v_set(0x1.62e430p-1f)), part), x);
}

/* At most 4 ULP; NaN below 1. ln(1 + t + sqrt(t (t + 2))) with t = x - 1, and ln 2x where the 1 is lost. */
static inline vf v_acosh(vf x) {
  vf t = v_sub(x, v_set(1));
  vm far = v_lt(v_set(0x1p20f), x);
  vf part = v_log1p(v_select(far, x, v_add(t, v_sqrt(v_mul(t, v_add(t, v_set(2)))))));
  vf r = v_select(far, v_add(part, v_set(0x1.62e430p-1f)), part);
  return v_select(v_lt(t, v_set(0)), v_set(NAN), r);
}

/* At most 4 ULP; NaN outside of -1..1. ln((1 + u) / (1 - u)) / 2. */
static inline vf v_atanh(vf x) {
  vf u = v_abs(x);
  vf r = v_log1p(v_div(v_add(u, u), v_sub(v_set(1), u)));
  return v_copysign(v_mul(r, v_set(0.5f)), x);
}

/* At most 3 ULP. erfc is e^(u h(u)) with u = |x| and h a polynomial; from u = 4 on erf is 1. */
static inline vf v_erf(vf x) {
  vf u = v_min(v_set(4), v_abs(x));
  vf h = V_POLYNOMIAL(u, -0x1.37bf6ap-15f, 0x1.764ddcp-12f, -0x1.380160p-10f, -0x1.26310ep-12f, 0x1.3d4c82p-6f,
                         -0x1.a52d7ep-4f, -0x1.45f270p-1f, -0x1.20dd76p+0f);
  return v_copysign(v_expm1(v_mul(u, h)), x);
}

/* 1 / (1 + e^-x); at most 3 ULP. e^-|x| never overflows, so small results keep their precision. */
static inline vf v_sigmoid(vf x) {
  vf e = v_exp_decay(x);
  return v_div(v_select(v_lt(x, v_set(0)), e, v_set(1)), v_add(e, v_set(1)));
}

/* x sigmoid(x); at most 4 ULP where e^x is not denormal, below that within 2e-43. */
static inline vf v_silu(vf x) {
  vf e = v_exp_decay(x);
  return v_div(v_select(v_lt(x, v_set(0)), v_mul(x, e), x), v_add(e, v_set(1)));
}

/* x (1 + erf(x / sqrt 2)) / 2 = max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with log2 of erfc a polynomial that needs
 * precision only where erfc is large; within 3e-7 max(1, |x|), and from x = -6 down to where the result is no longer
 * normal within 6 %. max(x, 0) is x - min(x, 0), so that -inf gives NaN. At the clamp erfc is 0. */
static inline vf v_gelu_erf(vf x) {
  vf u = v_min(v_set(14.4f), v_abs(x));
  vf g = V_POLYNOMIAL(u, 0x1.a84f9ap-27f, -0x1.161ad4p-21f, 0x1.dfaf64p-18f, -0x1.05cf72p-16f, -0x1.34ed24p-11f,
                         0x1.f93a06p-8f, -0x1.b21164p-5f, -0x1.d60b64p-2f, -0x1.26b068p+0f);
  g = v_mul(g, u);
  vf n = v_round(g);
  vf f = v_sub(g, n);
  vf p = V_POLYNOMIAL(f, -0x1.417a5cp-14f, -0x1.5f0946p-11f, -0x1.3b2dd2p-8f, -0x1.c6af7ap-6f, -0x1.ebfbdcp-4f,
                         -0x1.62e430p-2f, -0.5f);
  return v_fma(u, v_scale_down(p, n), v_sub(x, v_min(v_set(0), x)));
}

/* x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3); within 3e-7 max(1, |x|). */
static inline vf v_gelu_tanh(vf x) {
  vf inner = v_fma(v_mul(x, x), v_set(-0.0713548163f), v_set(-0x1.988454p+0f));
  return v_div(x, v_add(v_exp(v_mul(x, inner)), v_set(1)));
}

/* The gradient of silu: d times the derivative at x. */
static inline vf v_silu_gradient(vf x, vf d) {
  const vf share = v_sigmoid(x);
  return v_mul(d, v_mul(share, v_fma(x, v_sub(v_set(1), share), v_set(1))));
}

/* The gradient of gelu: d times (the normal distribution function of x, plus x times its density). */
static inline vf v_gelu_erf_gradient(vf x, vf d) {
  const vf share = v_mul(v_add(v_erf(v_mul(x, v_set(0x1.6a09e6p-1f))), v_set(1)), v_set(0.5f));
  const vf density = v_mul(v_exp(v_mul(v_mul(x, x), v_set(-0.5f))), v_set(0x1.988454p-2f));
  return v_mul(d, v_fma(x, density, share));
}

/* The same for the tanh form: x sigmoid(2u), where u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2). */
static inline vf v_gelu_tanh_gradient(vf x, vf d) {
  const vf square = v_mul(x, x);
  const vf share = v_sigmoid(v_mul(x, v_fma(square, v_set(0.0713548163f), v_set(0x1.988454p+0f))));
  const vf slope = v_fma(square, v_set(0.2140644489f), v_set(0x1.988454p+0f));
  return v_mul(d, v_fma(v_mul(v_mul(x, share), v_sub(v_set(1), share)), slope, share));
}

/* ln(1 + e^x); at most 4 ULP where e^x is not denormal. */
static inline vf v_softplus(vf x) {
  return v_add(v_max(v_set(0), x), v_log1p(v_exp_decay(x)));
}

/* |x| >= 2 mod pi/2 by the digits of 2/pi that matter (Payne and Hanek 1983): r in [-pi/4, pi/4], and the quadrant. x =
 * m 2^shift; the product of m with a 96-bit window of 2/pi leaves two integer bits and 62 of fraction. */
static inline float v_reduce_large(float x, int32_t *quadrant) {
  static const uint32_t two_over_pi[] = {0,          0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                         0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561, 0xb7246e3a};
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  int32_t exponent = (int32_t)(bits >> 23 & 255);
  if (exponent == 255) {
    *quadrant = 0;
    return NAN;
  }
  uint64_t m = (bits & 0x7fffff) | 0x800000;
  /* The window starts 2 bits above the weight that m's lowest bit converts to the units of the product. */
  int32_t start = exponent - 150 + 64 - 2;
  uint64_t high = (uint64_t)two_over_pi[start >> 5] << 32 | two_over_pi[(start >> 5) + 1];
  uint64_t low = (uint64_t)two_over_pi[(start >> 5) + 2] << 32 | two_over_pi[(start >> 5) + 3];
  int32_t drop = start & 31;
  uint64_t window_high = drop ? high << drop | low >> (64 - drop) : high;
  uint64_t window_low = (drop ? low << drop : low) >> 32;
  uint64_t product = window_high * m + (window_low * m >> 32);
  uint64_t rounded = product + ((uint64_t)1 << 61);
  int64_t fraction = (int64_t)(product << 2);
  double r = (double)fraction * 0x1.921fb54442d18p-64;
  *quadrant = (int32_t)(rounded >> 62);
  if (x < 0) *quadrant = -*quadrant;
  return (float)(x < 0 ? -r : r);
}

/* sin(x + phase pi/2). Below 1e5, pi/2 in three parts is enough; larger lanes are reduced one at a time. */
static inline vf v_sin_phase(vf x, int32_t phase) {
  vf n = v_round(v_mul(x, v_set(0x1.45f306p-1f)));
  vf r = v_fma(n, v_set(-0x1.921fb6p+0f), x);
  r = v_fma(n, v_set(0x1.777a5cp-25f), r);
  r = v_fma(n, v_set(0x1.ee59dap-50f), r);
  vi quadrant = v_bits(v_add(n, v_set(0x1.8p23f)));
  if (v_any(v_lt(v_set(1e5f), v_abs(x)))) {
    float lanes[16], rest[16];
    int32_t iterations[16];
    v_store(lanes, x);
    v_store(rest, r);
    memcpy(iterations, &quadrant, sizeof iterations);
    for (int i = 0; i < 16; i++)
      if (lanes[i] > 1e5f || lanes[i] < -1e5f) rest[i] = v_reduce_large(lanes[i], &iterations[i]);
    r = v_load(rest);
    memcpy(&quadrant, iterations, sizeof iterations);
  }
  quadrant = vi_add(quadrant, vi_set(phase));
  vf t = v_mul(r, r);
  vf s = V_POLYNOMIAL(t, -0x1.9951fap-13f, 0x1.110774p-7f, -0x1.555546p-3f);
  s = v_fma(v_mul(s, t), r, r);
  vf c = V_POLYNOMIAL(t, 0x1.99e816p-16f, -0x1.6c0c28p-10f, 0x1.55554ap-5f, -0.5f, 1);
  vm even = v_eq(v_from_int(vi_and(quadrant, vi_set(1))), v_set(0));
  vf sign = v_sub(v_set(1), v_from_int(vi_and(quadrant, vi_set(2))));
  return v_mul(v_select(even, s, c), sign);
}

/* At most 2 ULP for every finite x. */
static inline vf v_sin(vf x) { return v_sin_phase(x, 0); }
static inline vf v_cos(vf x) { return v_sin_phase(x, 1); }

/* 2^(y log2 x) for finite positive x and finite y, in double, rounded once: within 0.51 ULP. */
static inline float v_pow_positive(float x, float y) {
  double wide = x;
  uint64_t bits;
  memcpy(&bits, &wide, sizeof bits);
  uint64_t offset = bits - 0x3fe6a09e667f3bcd;
  double e = (double)((int64_t)offset >> 52);
  bits = (offset & 0xfffffffffffff) + 0x3fe6a09e667f3bcd;
  double m;
  memcpy(&m, &bits, sizeof m);
  double s = (m - 1) / (m + 1), t = s * s;
  double series = 1.0 / 9 + t * (1.0 / 11 + t * (1.0 / 13 + t * (1.0 / 15)));
  series = 1 + t * (1.0 / 3 + t * (1.0 / 5 + t * (1.0 / 7 + t * series)));
  double power = y * (e + s * series * 2.885390081777926815);
  power = power < -200 ? -200 : power > 200 ? 200 : power;
  double n = (power + 0x1.8p52) - 0x1.8p52;
  double f = (power - n) * 0.693147180559945309;
  double r = 1.0 / 24 + f * (1.0 / 120 + f * (1.0 / 720 + f * (1.0 / 5040 + f * (1.0 / 40320))));
  r = 1 + f * (1 + f * (0.5 + f * (1.0 / 6 + f * r)));
  bits = (uint64_t)((int64_t)n + 1023) << 52;
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return (float)(r * scale);
}

/* C's pow, annex F cases included; x^2 is x * x. */
static inline float v_pow_lane(float x, float y) {
  if (x == 1 || y == 0) return 1;
  if (x != x || y != y) return x + y;
  float magnitude = fabsf(x), size = fabsf(y);
  int integral = size >= 0x1p24f || (float)(int32_t)y == y;
  int odd = size < 0x1p24f && integral && ((int32_t)y & 1);
  float sign = odd ? copysignf(1, x) : 1;
  if (magnitude == 0) return y < 0 ? sign * INFINITY : sign * 0.0f;
  if (magnitude == INFINITY) return y < 0 ? sign * 0.0f : sign * INFINITY;
  if (size == INFINITY) return magnitude == 1 ? 1 : (magnitude > 1) == (y > 0) ? INFINITY : 0;
  if (x < 0 && !integral) return NAN;
  return sign * v_pow_positive(magnitude, y);
}

static inline vf v_pow(vf x, vf y) {
  float base[16], power[16];
  v_store(base, x);
  v_store(power, y);
  for (int i = 0; i < 16; i++) base[i] = v_pow_lane(base[i], power[i]);
  return v_load(base);
}

static inline vf v_relu(vf x) { return v_max(v_set(0), x); }
static inline vf v_relu_gradient(vf y, vf d) { return v_select(v_le(y, v_set(0)), v_set(0), d); }
static inline vf v_neg(vf x) { return v_mul(x, v_set(-1)); }
static inline vf v_rsqrt(vf x) { return v_div(v_set(1), v_sqrt(x)); }
static inline vf v_reciprocal(vf x) { return v_div(v_set(1), x); }

static inline vf v_sign(vf x) {
  return v_select(v_lt(x, v_set(0)), v_set(-1), v_select(v_lt(v_set(0), x), v_set(1), x));
}

static inline vf v_elu(vf x, vf alpha) { return v_select(v_le(x, v_set(0)), v_mul(v_expm1(x), alpha), x); }
static inline vf v_clip(vf x, vf low, vf high) { return v_min(high, v_max(low, x)); }
static inline vf v_prelu(vf x, vf slope) { return v_select(v_lt(x, v_set(0)), v_mul(x, slope), x); }
static inline vf v_hard_sigmoid(vf x, vf alpha, vf beta) { return v_clip(v_fma(x, alpha, beta), v_set(0), v_set(1)); }

static inline vf v_hard_swish(vf x) {
  return v_div(v_mul(x, v_clip(v_add(x, v_set(3)), v_set(0), v_set(6))), v_set(6));
}

/* x tanh(s) = x (e^2s - 1) / (e^2s + 1) with s = ln(1 + e^x), in powers of e^-|x|, which never overflow; at most 4 ULP
 * where e^x is not denormal. */
static inline vf v_mish(vf x) {
  vf e = v_exp_decay(x);
  vm negative = v_lt(x, v_set(0));
  vf above = v_select(negative, v_mul(e, v_add(e, v_set(2))), v_fma(e, v_set(2), v_set(1)));
  vf rest = v_select(negative, v_set(2), v_mul(v_mul(e, e), v_set(2)));
  return v_div(v_mul(x, above), v_add(above, rest));
}

/* act_alpha and act_beta: the activation's float attributes. */
static inline vf v_activate(vf x, int32_t activation, float act_alpha, float act_beta) {
  const vf alpha = v_set(act_alpha), beta = v_set(act_beta);
  (void)alpha, (void)beta;
  switch (activation) {
    #define ACTIVATION(op, cost, expression) case INGOT_ACT_##op: return expression;
    #include "elementwise.def"
    default: return x;
  }
}

#endif

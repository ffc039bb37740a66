// elementwise.wgsl: the functions of the lines of csrc/elementwise.def, by the names of their kernels.
//
// x and y are operands, alpha and beta the op's float attributes. WGSL's fma() may round twice, exp(), tanh(), log()
// and sin() may be off by thousands of units in the last place, max() may drop a NaN, and comparisons with NaN may be
// optimised away. So these functions repeat the operations of vmath.h, and test for NaN by its bits. i64 and i32 have
// 32 bits here and wrap; bool is 0 or 1.

fn of_bits(bits: u32) -> f32 { return bitcast<f32>(bits); }

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn nan() -> f32 { return of_bits(0x7fc00000u); }

fn infinity() -> f32 { return of_bits(0x7f800000u); }

// An integer for each float, in the order of floats: both zeros have the same one, and NaN has the largest.
fn float_key(x: f32) -> i32 {
  let bits = bitcast<i32>(select(x, 0.0f, x == 0.0f));
  return select(bits ^ ((bits >> 31u) & 0x7fffffff), 0x7fffffff, is_nan(x));
}

fn float_of_key(key: i32) -> f32 { return bitcast<f32>(key ^ ((key >> 31u) & 0x7fffffff)); }

fn with_sign(x: f32, y: f32) -> f32 {
  return of_bits((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}

// 2^n for n from -126 to 127.
fn power_of_two(n: f32) -> f32 { return of_bits(u32(i32(n) + 127) << 23u); }

// x 2^n, rounded once where x is around 1.
fn scaled(x: f32, n: f32) -> f32 {
  let half = floor(n * 0.5f);
  return x * power_of_two(half) * power_of_two(n - half);
}

// x - n ln2, where ln2 is two parts, the first short enough that its product is exact.
fn without_ln2(x: f32, n: f32) -> f32 { return (x - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f; }

fn exp_f32(x: f32) -> f32 {
  let bounded = clamp(x, -104.0f, 89.0f);
  let n = round(bounded * 0x1.715476p+0f);
  let r = without_ln2(bounded, n);
  var p = 0x1.6a495cp-10f * r + 0x1.1239a0p-7f;
  p = p * r + 0x1.5558b4p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return select(scaled(p, n), x, is_nan(x));
}

// (p 2^(n-1) + 2^(n-1) - 1/2) * 2 keeps the power of two finite up to the largest result.
fn expm1_f32(x: f32) -> f32 {
  let bounded = clamp(x, -20.0f, 89.0f);
  let n = round(bounded * 0x1.715476p+0f);
  let r = without_ln2(bounded, n);
  var q = 0x1.6b9caap-10f * r + 0x1.122540p-7f;
  q = q * r + 0x1.5556f2p-5f;
  q = q * r + 0x1.5554b4p-3f;
  q = q * r + 0x1.fffffep-2f;
  let p = (r * r) * q + r;
  let power = power_of_two(n - 1.0f);
  let half = p * power + (power - 0.5f);
  return select(select(half + half, p, n == 0.0f), x, is_nan(x));
}

fn log_f32(x: f32) -> f32 {
  let tiny = x < 0x1p-126f;
  let offset = bitcast<i32>(select(x, x * 0x1p23f, tiny)) - 0x3f400000;
  let e = f32(offset >> 23u) + select(0.0f, -23.0f, tiny);
  let f = bitcast<f32>((offset & 0x007fffff) + 0x3f400000) - 1.0f;
  var p = -0x1.71e354p-5f * f + 0x1.acf4bap-4f;
  p = p * f - 0x1.0d98f2p-3f;
  p = p * f + 0x1.28807ap-3f;
  p = p * f - 0x1.54ed96p-3f;
  p = p * f + 0x1.99699ep-3f;
  p = p * f - 0x1.00004ap-2f;
  p = p * f + 0x1.5555a4p-2f;
  let square = f * f;
  var low = e * -0x1.bd0106p-13f + (square * f) * p;
  low = square * -0.5f + low;
  var r = e * 0x1.63p-1f + (f + low);
  r = select(r, x, x >= infinity());
  r = select(r, -infinity(), x == 0.0f);
  r = select(r, nan(), x < 0.0f);
  return select(r, x, is_nan(x));
}

// The rounding error of 1 + x is added back, divided by 1 + x; at -1 and infinity the logarithm alone is the limit.
fn log1p_f32(x: f32) -> f32 {
  let u = x + 1.0f;
  let lost = (x - (u - 1.0f)) / u;
  let known = u > 0.0f && u < infinity();
  return with_sign(log_f32(u) + select(0.0f, lost, known), x);
}

fn tanh_f32(x: f32) -> f32 {
  let m = expm1_f32(min(20.0f, abs(x + x)));
  return select(with_sign(m / (m + 2.0f), x), x, is_nan(x));
}

fn sinh_f32(x: f32) -> f32 {
  let m = expm1_f32(min(45.0f, abs(x) * 0.5f));
  let power = m + 1.0f;
  let sine = (m + m / power) * 0.5f;
  return select(with_sign(sine * (power + 1.0f / power), x), x, is_nan(x));
}

fn cosh_f32(x: f32) -> f32 {
  let root = exp_f32(abs(x) * 0.5f);
  let half = (root * 0.5f) * root;
  return half + 0.25f / half;
}

// |x| above tan(pi/8) is rotated by pi/4, above tan(3 pi/8) by pi/2, which leaves |t| <= tan(pi/8).
fn atan_f32(x: f32) -> f32 {
  let u = abs(x);
  let near = u <= 0x1.a8279ap-2f;
  let far = u > 0x1.3504f4p+1f;
  let above = select(select(u - 1.0f, -1.0f, far), u, near);
  let below = select(select(u + 1.0f, u, far), 1.0f, near);
  let angle = select(select(0x1.921fb6p-1f, 0x1.921fb6p+0f, far), 0.0f, near);
  let t = select(above / below, 0.0f, u >= infinity());
  let s = t * t;
  var p = -0x1.f31d54p-5f * s + 0x1.b22ecap-4f;
  p = p * s - 0x1.23ba42p-3f;
  p = p * s + 0x1.9991e8p-3f;
  p = p * s - 0x1.55554ap-2f;
  return select(with_sign(angle + ((t * s) * p + t), x), x, is_nan(x));
}

// The arcsine of u <= 1/2 itself, of u above that the arcsine of sqrt((1 - u) / 2), which is pi/4 - asin(u) / 2.
fn asin_part(u: f32) -> f32 {
  let t = select(u, sqrt(max(0.0f, (1.0f - u) * 0.5f)), u > 0.5f);
  let s = t * t;
  var p = 0x1.59daa8p-5f * s + 0x1.8ba79ep-6f;
  p = p * s + 0x1.748b32p-5f;
  p = p * s + 0x1.330164p-4f;
  p = p * s + 0x1.5555cap-3f;
  return select((t * s) * p + t, nan(), u > 1.0f || is_nan(u));
}

fn from_right_angle(x: f32) -> f32 { return 0x1.921fb6p+0f + (-0x1.777a5cp-25f - x); }

fn asin_f32(x: f32) -> f32 {
  let u = abs(x);
  let part = asin_part(u);
  return with_sign(select(part, from_right_angle(part + part), u > 0.5f), x);
}

fn acos_f32(x: f32) -> f32 {
  let u = abs(x);
  let part = asin_part(u);
  let rest = from_right_angle(with_sign(part, select(x, 1.0f, u > 0.5f)));
  let half = select(part, rest, x < 0.0f);
  return select(rest, half + half, u > 0.5f);
}

fn asinh_f32(x: f32) -> f32 {
  let u = abs(x);
  let far = u > 0x1p20f;
  let root = sqrt(u * u + 1.0f) + 1.0f;
  let part = log1p_f32(select(u + u * (u / root), u, far));
  return with_sign(select(part, part + 0x1.62e430p-1f, far), x);
}

fn acosh_f32(x: f32) -> f32 {
  let t = x - 1.0f;
  let far = x > 0x1p20f;
  let part = log1p_f32(select(t + sqrt(max(0.0f, t * (t + 2.0f))), x, far));
  let r = select(part, part + 0x1.62e430p-1f, far);
  return select(r, nan(), t < 0.0f || is_nan(x));
}

fn atanh_f32(x: f32) -> f32 {
  let u = abs(x);
  return with_sign(log1p_f32((u + u) / (1.0f - u)) * 0.5f, x);
}

// erfc is e^(u h(u)) with u = |x| and h a polynomial; from u = 4 on erf is 1.
fn erf_f32(x: f32) -> f32 {
  let u = min(4.0f, abs(x));
  var h = -0x1.37bf6ap-15f * u + 0x1.764ddcp-12f;
  h = h * u - 0x1.380160p-10f;
  h = h * u - 0x1.26310ep-12f;
  h = h * u + 0x1.3d4c82p-6f;
  h = h * u - 0x1.a52d7ep-4f;
  h = h * u - 0x1.45f270p-1f;
  h = h * u - 0x1.20dd76p+0f;
  return select(with_sign(expm1_f32(u * h), x), x, is_nan(x));
}

fn exp_decay(x: f32) -> f32 { return exp_f32(-abs(x)); }

fn sigmoid_f32(x: f32) -> f32 {
  let e = exp_decay(x);
  return select(1.0f, e, x < 0.0f) / (e + 1.0f);
}

fn silu_f32(x: f32) -> f32 {
  let e = exp_decay(x);
  return x * select(1.0f, e, x < 0.0f) / (e + 1.0f);
}

// max(x, 0) - |x| erfc(|x| / sqrt 2) / 2, with log2 of erfc a polynomial; at the clamp erfc is 0.
fn gelu_erf_f32(x: f32) -> f32 {
  let u = min(14.4f, abs(x));
  var g = 0x1.a84f9ap-27f * u - 0x1.161ad4p-21f;
  g = g * u + 0x1.dfaf64p-18f;
  g = g * u - 0x1.05cf72p-16f;
  g = g * u - 0x1.34ed24p-11f;
  g = g * u + 0x1.f93a06p-8f;
  g = g * u - 0x1.b21164p-5f;
  g = g * u - 0x1.d60b64p-2f;
  g = g * u - 0x1.26b068p+0f;
  g = g * u;
  let n = round(g);
  let f = g - n;
  var p = -0x1.417a5cp-14f * f - 0x1.5f0946p-11f;
  p = p * f - 0x1.3b2dd2p-8f;
  p = p * f - 0x1.c6af7ap-6f;
  p = p * f - 0x1.ebfbdcp-4f;
  p = p * f - 0x1.62e430p-2f;
  p = p * f - 0.5f;
  return select(u * scaled(p, n) + (x - min(0.0f, x)), x, is_nan(x));
}

fn gelu_tanh_f32(x: f32) -> f32 {
  let inner = (x * x) * -0.0713548163f - 0x1.988454p+0f;
  return x / (exp_f32(x * inner) + 1.0f);
}

fn softplus_f32(x: f32) -> f32 { return select(max(0.0f, x) + log1p_f32(exp_decay(x)), x, is_nan(x)); }

fn mish_f32(x: f32) -> f32 {
  let e = exp_decay(x);
  let above = select(e * 2.0f + 1.0f, e * (e + 2.0f), x < 0.0f);
  let rest = select((e * e) * 2.0f, 2.0f, x < 0.0f);
  return x * above / (above + rest);
}

// sin(x + phase pi/2). pi/2 is four parts, three of them short enough that their products are exact up to |x| = 1e5;
// for larger x precision is lost.
fn sin_phase(x: f32, phase: i32) -> f32 {
  let n = round(x * 0x1.45f306p-1f);
  let r = ((x - n * 0x1.92p+0f) - n * 0x1.fap-12f) - n * 0x1.54p-20f - n * 0x1.10b462p-30f;
  let quadrant = i32(n) + phase;
  let t = r * r;
  var s = -0x1.9951fap-13f * t + 0x1.110774p-7f;
  s = s * t - 0x1.555546p-3f;
  s = (s * t) * r + r;
  var c = 0x1.99e816p-16f * t - 0x1.6c0c28p-10f;
  c = c * t + 0x1.55554ap-5f;
  c = c * t - 0.5f;
  c = c * t + 1.0f;
  let rotated = select(c, s, (quadrant & 1) == 0) * (1.0f - f32(quadrant & 2));
  return select(nan(), rotated, abs(x) < infinity() && !is_nan(x));
}

fn sin_f32(x: f32) -> f32 { return sin_phase(x, 0); }

fn cos_f32(x: f32) -> f32 { return sin_phase(x, 1); }

fn relu_f32(x: f32) -> f32 { return select(max(0.0f, x), x, is_nan(x)); }

fn neg_f32(x: f32) -> f32 { return -x; }

fn abs_f32(x: f32) -> f32 { return abs(x); }

fn sign_f32(x: f32) -> f32 { return select(select(x, 1.0f, x > 0.0f), -1.0f, x < 0.0f); }

fn sqrt_f32(x: f32) -> f32 { return select(sqrt(x), nan(), x < 0.0f || is_nan(x)); }

fn rsqrt_f32(x: f32) -> f32 { return 1.0f / sqrt_f32(x); }

fn reciprocal_f32(x: f32) -> f32 { return 1.0f / x; }

fn floor_f32(x: f32) -> f32 { return floor(x); }

fn ceil_f32(x: f32) -> f32 { return with_sign(ceil(x), x); }

fn round_f32(x: f32) -> f32 { return round(x); }

fn elu_f32(x: f32, alpha: f32) -> f32 { return select(x, expm1_f32(x) * alpha, x <= 0.0f); }

fn clip_f32(x: f32, alpha: f32, beta: f32) -> f32 { return select(min(beta, max(alpha, x)), x, is_nan(x)); }

fn leaky_relu_f32(x: f32, alpha: f32) -> f32 { return select(x, x * alpha, x < 0.0f); }

fn prelu_f32(x: f32, y: f32) -> f32 { return select(x, x * y, x < 0.0f); }

fn hard_sigmoid_f32(x: f32, alpha: f32, beta: f32) -> f32 { return clip_f32(x * alpha + beta, 0.0f, 1.0f); }

fn hard_swish_f32(x: f32) -> f32 { return x * clip_f32(x + 3.0f, 0.0f, 6.0f) / 6.0f; }

fn add_f32(x: f32, y: f32) -> f32 { return x + y; }

fn sub_f32(x: f32, y: f32) -> f32 { return x - y; }

fn mul_f32(x: f32, y: f32) -> f32 { return x * y; }

fn div_f32(x: f32, y: f32) -> f32 { return x / y; }

fn maximum_f32(x: f32, y: f32) -> f32 { return select(select(max(x, y), y, is_nan(y)), x, is_nan(x)); }

fn minimum_f32(x: f32, y: f32) -> f32 { return select(select(min(x, y), y, is_nan(y)), x, is_nan(x)); }

fn isnan_f32(x: f32) -> i32 { return i32(is_nan(x)); }

fn isinf_f32(x: f32) -> i32 { return i32((bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u); }

fn both_numbers(x: f32, y: f32) -> bool { return !is_nan(x) && !is_nan(y); }

fn equal_f32(x: f32, y: f32) -> i32 { return i32(both_numbers(x, y) && x == y); }

fn not_equal_f32(x: f32, y: f32) -> i32 { return 1 - equal_f32(x, y); }

fn less_f32(x: f32, y: f32) -> i32 { return i32(both_numbers(x, y) && x < y); }

fn less_equal_f32(x: f32, y: f32) -> i32 { return i32(both_numbers(x, y) && x <= y); }

fn greater_f32(x: f32, y: f32) -> i32 { return less_f32(y, x); }

fn greater_equal_f32(x: f32, y: f32) -> i32 { return less_equal_f32(y, x); }

// Powers and remainders: numbers with more precision than f32 are pairs of floats. Drivers may simplify (x + y) - x to
// y, so numbers are split by their bits, and the rounding error of a sum is never computed from the sum.

// The first 12 bits: products of such are exact (Dekker, "A floating-point technique for extending the available
// precision", 1971).
fn first_half(x: f32) -> f32 { return of_bits(bitcast<u32>(x) & 0xfffff000u); }

// The rounded product, and its rounding error.
fn two_product(x: f32, y: f32) -> vec2<f32> {
  let high = x * y;
  let a = first_half(x);
  let b = first_half(y);
  return vec2<f32>(high, ((a * b - high) + a * (y - b) + (x - a) * b) + (x - a) * (y - b));
}

// 2^(y log2 x) for finite positive x and finite y: log2 x = e + 2 / ln2 (s + s^3 / 3 + ...), s = (m - 1) / (m + 1). The
// series is evaluated at the first bits of s, and the rest is added by its derivative.
fn power_of_positive(x: f32, y: f32) -> f32 {
  let tiny = x < 0x1p-126f;
  let offset = bitcast<i32>(select(x, x * 0x1p23f, tiny)) - 0x3f3504f3;
  let e = f32(offset >> 23u) + select(0.0f, -23.0f, tiny);
  let m = bitcast<f32>((offset & 0x007fffff) + 0x3f3504f3);
  let s = first_half((m - 1.0f) / (m + 1.0f));
  let back = two_product(s, m);
  let rest = ((((m - 1.0f) - s) - back.x) - back.y) / (m + 1.0f);
  let t = s * s;
  let tail = s * t * (0.333333343f + t * (0.2f + t * (0.142857149f + t * (0.111111112f + t * 0.0909090936f))));
  let log = s * 2.884765625f;  // exact: both have 12 bits
  let log_rest = s * 0.000624456778f + (rest / (1.0f - t) + tail) * 2.88539008f;
  let bounded = clamp(y, -0x1p60f, 0x1p60f);
  let whole = two_product(bounded, e);
  let part = two_product(bounded, log);
  let n = round(clamp(whole.x + part.x, -200.0f, 200.0f));
  let f = clamp(((whole.x - n) + part.x) + ((whole.y + part.y) + log_rest * bounded), -1.0f, 1.0f);
  return scaled(exp_f32(f * 0x1.62e43p-1f), n);
}

// C's pow, annex F cases included.
fn pow_f32(x: f32, y: f32) -> f32 {
  if (x == 1.0f || y == 0.0f) { return 1.0f; }
  if (is_nan(x) || is_nan(y)) { return nan(); }
  let magnitude = abs(x);
  let size = abs(y);
  let is_whole = size >= 0x1p24f || f32(i32(min(size, 0x1p24f))) == size;
  let is_odd = size < 0x1p24f && is_whole && (i32(min(size, 0x1p24f)) & 1) == 1;
  let sign = select(1.0f, with_sign(1.0f, x), is_odd);
  if (magnitude == 0.0f || magnitude == infinity()) {
    return sign * select(0.0f, infinity(), (magnitude == 0.0f) == (y < 0.0f));
  }
  if (size == infinity()) {
    return select(select(0.0f, infinity(), (magnitude > 1.0f) == (y > 0.0f)), 1.0f, magnitude == 1.0f);
  }
  if (x < 0.0f && !is_whole) { return nan(); }
  return sign * power_of_positive(magnitude, y);
}

// The exact remainder of |x| divided by |y|, and the quotient, rounded; for finite x and y other than 0.
fn divided(x: f32, y: f32) -> vec2<f32> {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  let e = i32(max(a >> 23u, 1u));
  var least = i32(max(b >> 23u, 1u));
  var rest = select(a & 0x7fffffu, (a & 0x7fffffu) | 0x800000u, a >= 0x800000u);
  var part = select(b & 0x7fffffu, (b & 0x7fffffu) | 0x800000u, b >= 0x800000u);
  for (; part < 0x800000u; part <<= 1u) { least--; }
  if (e < least) { return vec2<f32>(abs(x), 0.0f); }
  var times = 0.0f;
  for (var i = e - least; i >= 0; i--) {
    times += times;
    if (rest >= part) {
      rest -= part;
      times += 1.0f;
    }
    rest <<= u32(i > 0);
  }
  return vec2<f32>(scaled(f32(rest), f32(least - 150)), times);
}

fn mod_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x) || is_nan(y) || y == 0.0f || abs(x) == infinity()) { return nan(); }
  var rest = abs(x);
  if (abs(y) < infinity()) { rest = divided(x, y).x; }
  rest = with_sign(rest, x);
  return select(rest, rest + y, rest != 0.0f && (rest < 0.0f) != (y < 0.0f));
}

fn floor_div_f32(x: f32, y: f32) -> f32 {
  if (y == 0.0f) { return select(nan(), with_sign(infinity(), x) * with_sign(1.0f, y), x != 0.0f && !is_nan(x)); }
  if (is_nan(x) || is_nan(y) || abs(x) == infinity()) { return nan(); }
  let differ = (x < 0.0f) != (y < 0.0f);
  if (abs(y) == infinity()) { return select(0.0f, -1.0f, x != 0.0f && differ); }
  let found = divided(x, y);
  return select(found.y, -found.y - select(0.0f, 1.0f, found.x != 0.0f), differ);
}

// Gradients.

fn relu_gradient_f32(x: f32, y: f32) -> f32 { return select(y, 0.0f, x <= 0.0f); }

fn silu_gradient_f32(x: f32, y: f32) -> f32 {
  let share = sigmoid_f32(x);
  return y * (share * (x * (1.0f - share) + 1.0f));
}

fn gelu_gradient_erf_f32(x: f32, y: f32) -> f32 {
  let share = (erf_f32(x * 0x1.6a09e6p-1f) + 1.0f) * 0.5f;
  return y * (x * (exp_f32(x * x * -0.5f) * 0x1.988454p-2f) + share);
}

fn gelu_gradient_tanh_f32(x: f32, y: f32) -> f32 {
  let square = x * x;
  let share = sigmoid_f32(x * (square * 0.0713548163f + 0x1.988454p+0f));
  let slope = square * 0.2140644489f + 0x1.988454p+0f;
  return y * (x * share * (1.0f - share) * slope + share);
}

fn relu_i64(x: i32) -> i32 { return max(x, 0); }

fn neg_i64(x: i32) -> i32 { return 0 - x; }

fn abs_i64(x: i32) -> i32 { return select(x, 0 - x, x < 0); }

fn sign_i64(x: i32) -> i32 { return i32(x > 0) - i32(x < 0); }

fn bitwise_not_i64(x: i32) -> i32 { return ~x; }

fn add_i64(x: i32, y: i32) -> i32 { return x + y; }

fn sub_i64(x: i32, y: i32) -> i32 { return x - y; }

fn mul_i64(x: i32, y: i32) -> i32 { return x * y; }

fn maximum_i64(x: i32, y: i32) -> i32 { return max(x, y); }

fn minimum_i64(x: i32, y: i32) -> i32 { return min(x, y); }

fn bitwise_and_i64(x: i32, y: i32) -> i32 { return x & y; }

fn bitwise_or_i64(x: i32, y: i32) -> i32 { return x | y; }

fn bitwise_xor_i64(x: i32, y: i32) -> i32 { return x ^ y; }

fn shift_left_i64(x: i32, y: i32) -> i32 { return select(0, x << (u32(y) & 31u), u32(y) < 32u); }

fn shift_right_i64(x: i32, y: i32) -> i32 { return x >> min(u32(y), 31u); }

// x / 0 is 0; -2^31 / -1 wraps.
fn div_i64(x: i32, y: i32) -> i32 {
  let safe = select(y, 1, y == 0 || y == -1);
  return select(select(x / safe, 0 - x, y == -1), 0, y == 0);
}

fn floor_div_i64(x: i32, y: i32) -> i32 {
  let q = div_i64(x, y);
  return select(q, q - 1, q * y != x && (x < 0) != (y < 0) && y != 0);
}

fn pow_i64(x: i32, y: i32) -> i32 {
  if (y < 0) { return select(select(0, select(1, -1, (y & 1) == 1), x == -1), 1, x == 1); }
  var result = 1;
  var base = x;
  for (var rest = y; rest > 0; rest >>= 1u) {
    if ((rest & 1) == 1) { result *= base; }
    base *= base;
  }
  return result;
}

fn mod_i64(x: i32, y: i32) -> i32 { return select(x - floor_div_i64(x, y) * y, 0, y == 0); }

fn equal_i64(x: i32, y: i32) -> i32 { return i32(x == y); }

fn not_equal_i64(x: i32, y: i32) -> i32 { return i32(x != y); }

fn less_i64(x: i32, y: i32) -> i32 { return i32(x < y); }

fn less_equal_i64(x: i32, y: i32) -> i32 { return i32(x <= y); }

fn greater_i64(x: i32, y: i32) -> i32 { return i32(x > y); }

fn greater_equal_i64(x: i32, y: i32) -> i32 { return i32(x >= y); }

fn logical_not_bool(x: i32) -> i32 { return 1 - x; }

fn equal_bool(x: i32, y: i32) -> i32 { return i32(x == y); }

fn not_equal_bool(x: i32, y: i32) -> i32 { return x ^ y; }

fn logical_and_bool(x: i32, y: i32) -> i32 { return x & y; }

fn logical_or_bool(x: i32, y: i32) -> i32 { return x | y; }

fn logical_xor_bool(x: i32, y: i32) -> i32 { return x ^ y; }

// Casts, by the names of their kernels. A float outside of the range of 32-bit integers becomes the nearest one in it.
fn cast_f32_i64(x: f32) -> i32 { return i32(x); }

fn cast_f32_i32(x: f32) -> i32 { return i32(x); }

fn cast_f32_bool(x: f32) -> i32 { return i32((bitcast<u32>(x) & 0x7fffffffu) != 0u); }

fn cast_i64_f32(x: i32) -> f32 { return f32(x); }

fn cast_i64_i32(x: i32) -> i32 { return x; }

fn cast_i64_bool(x: i32) -> i32 { return i32(x != 0); }

fn cast_i32_f32(x: i32) -> f32 { return f32(x); }

fn cast_i32_i64(x: i32) -> i32 { return x; }

fn cast_bool_f32(x: i32) -> f32 { return f32(x); }

fn cast_bool_i64(x: i32) -> i32 { return x; }

fn cast_bool_i32(x: i32) -> i32 { return x; }

// Quantize floats to 8-bit integers: x / y, rounded, plus a zero point; and dequantize.
fn quantize_u8(x: f32, y: f32, z: i32) -> i32 { return code_of_float(x / y, f32(z), 0.0f, 255.0f); }

fn quantize_i8(x: f32, y: f32, z: i32) -> i32 { return code_of_float(x / y, f32(z), -128.0f, 127.0f); }

fn dequantize(x: i32, y: f32, z: i32) -> f32 { return (f32(x) - f32(z)) * y; }

// A number rounded, with halves to even, plus the zero point; NaN becomes the zero point.
fn code_of_float(x: f32, zero: f32, low: f32, high: f32) -> i32 {
  return i32(clamp(select(round(clamp(x, -0x1p30f, 0x1p30f)), 0.0f, is_nan(x)) + zero, low, high));
}

// Elements of any type, copied as bits.
fn copy_b(x: i32) -> i32 { return x; }

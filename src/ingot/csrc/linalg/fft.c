/* fft.c: discrete Fourier transforms of many lines. Each pass splits off one factor of the length and stores its
 * results in the order in which the next pass reads them (Stockham, in Cochran et al., "What is the fast Fourier
 * transform?", 1967). The elements of `block` lines are interleaved, so that the lanes of a pass are lines, or, where a
 * block is one line, elements that are adjacent after earlier passes. An element's operations are the same in either
 * case. A real line of even length is transformed as a complex line of half the length, whose elements are pairs. */
#include <math.h>

#include "kernel.h"

/* The data of a transform: `block` lines as planes of real and of imaginary parts, element by element, each of all
 * lines. Passes read x and write y. */
typedef struct { float *x_re; float *x_im; float *y_re; float *y_im; } fft_planes_f32;

typedef struct { double *x_re; double *x_im; double *y_re; double *y_im; } fft_planes_f64;

/* A pass: `radix` elements that are `stride * count` apart become as many that are `stride` apart; there are `count`
 * such groups, with `stride` adjacent elements each. */
typedef struct { int64_t radix; int64_t count; int64_t stride; } fft_pass;

/* 1 <= n <= 16 lanes. */
static inline vf fft_load_f32(const float *p, int64_t n) { return n == 16 ? v_load(p) : v_load_n(p, n); }

static inline void fft_store_f32(float *p, vf x, int64_t n) {
  if (n == 16)
    v_store(p, x);
  else
    v_store_n(p, x, n);
}

/* One lane. */
static inline double fft_load_f64(const double *p, int64_t n) { return n == 1 ? *p : 0; }

static inline void fft_store_f64(double *p, double x, int64_t n) {
  if (n == 1) *p = x;
}

/* One of the bodies accepts any radix and cannot be unrolled, which clang reports as an error. */
#if defined(__clang__)
#define FFT_UNROLL
#else
#define FFT_UNROLL INGOT_UNROLL
#endif

#define FFT_LOAD(p, n) (*(p))
#define FFT_STORE(p, x, n) (*(p) = (x))
#define FFT_SET(x) (x)
#define FFT_ADD(a, b) ((a) + (b))
#define FFT_SUB(a, b) ((a) - (b))
#define FFT_MUL(a, b) ((a) * (b))
#define FFT_FMA(a, b, c) ((a) * (b) + (c))

/* The offsets of the lines of a block, in elements. */
typedef struct { int64_t real[16]; int64_t imaginary[16]; int64_t out_real[16]; int64_t out_imaginary[16]; } fft_lines;

static inline fft_lines fft_lines_of(const fft_args *args, int64_t first, int64_t count) {
  fft_lines lines = {{0}, {0}, {0}, {0}};
  for (int64_t i = 0; i < count; i++) {
    int64_t rest = first + i;
    for (int32_t d = args->rank - 1; d >= 0; d--) {
      const int64_t index = rest % args->shape[d];
      rest /= args->shape[d];
      lines.real[i] += index * args->real_strides[d];
      lines.imaginary[i] += index * args->imaginary_strides[d];
      lines.out_real[i] += index * args->out_real_strides[d];
      lines.out_imaginary[i] += index * args->out_imaginary_strides[d];
    }
  }
  return lines;
}

/* The step before or after the passes of a real line of even length, for `lanes` lines at a time; a block is 1 or
 * INGOT_FFT_LINES lines. roots: those of its length, [elements + 1][2], cosine and sine of each element's fraction of a
 * negative turn. */
#define FFT_ENDS(name, type, planes_of, vec, lanes, load, store, set, add, sub, mul, fma)                              \
  /* From the spectrum of pairs of elements to that of the elements, in y. */                                          \
  static inline void K(name##_split)(const fft_args *args, const type *roots, planes_of p) {                           \
    const int64_t block = args->block, length = args->length;                                                          \
    for (int64_t k = 0; k <= length; k++) {                                                                            \
      const vec half = set((type)0.5), cosine = set(roots[2 * k] / 2);                                                 \
      const vec sine = set(roots[2 * k + 1] / 2), opposite = set(-roots[2 * k + 1] / 2);                               \
      const int64_t a = k % length * block, b = (length - k) % length * block;                                         \
      for (int64_t i = 0; i < block; i += lanes) {                                                                     \
        const vec a_re = load(p.x_re + a + i, lanes), a_im = load(p.x_im + a + i, lanes);                              \
        const vec b_re = load(p.x_re + b + i, lanes), b_im = load(p.x_im + b + i, lanes);                              \
        const vec odd_re = add(a_im, b_im), odd_im = sub(b_re, a_re);                                                  \
        const vec even_re = mul(half, add(a_re, b_re)), even_im = mul(half, sub(a_im, b_im));                          \
        store(p.y_re + k * block + i, fma(cosine, odd_re, fma(opposite, odd_im, even_re)), lanes);                     \
        store(p.y_im + k * block + i, fma(cosine, odd_im, fma(sine, odd_re, even_im)), lanes);                         \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  /* The inverse, in y: from half of a spectrum, doubled, to that of pairs. Its first and last elements are real. */   \
  static inline void K(name##_join)(const fft_args *args, const type *roots, planes_of p) {                            \
    const int64_t block = args->block, length = args->length;                                                          \
    for (int64_t i = 0; i < block; i++) p.x_im[i] = p.x_im[length * block + i] = 0;                                    \
    for (int64_t k = 0; k < length; k++) {                                                                             \
      const vec cosine = set(roots[2 * k]), sine = set(roots[2 * k + 1]), opposite = set(-roots[2 * k]);               \
      const int64_t a = k * block, b = (length - k) * block;                                                           \
      for (int64_t i = 0; i < block; i += lanes) {                                                                     \
        const vec a_re = load(p.x_re + a + i, lanes), a_im = load(p.x_im + a + i, lanes);                              \
        const vec b_re = load(p.x_re + b + i, lanes), b_im = load(p.x_im + b + i, lanes);                              \
        const vec odd_re = sub(a_re, b_re), odd_im = add(a_im, b_im);                                                  \
        store(p.y_re + a + i, fma(opposite, odd_im, fma(sine, odd_re, add(a_re, b_re))), lanes);                       \
        store(p.y_im + a + i, fma(cosine, odd_re, fma(sine, odd_im, sub(a_im, b_im))), lanes);                         \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name)(const fft_args *args, const type *roots, planes_of p) {                                   \
    (args->form == INGOT_FFT_SPLIT ? K(name##_split) : K(name##_join))(args, roots, p);                                \
  }

FFT_ENDS(fft_f32_ends, float, fft_planes_f32, float, 1, FFT_LOAD, FFT_STORE, FFT_SET, FFT_ADD, FFT_SUB, FFT_MUL, fmaf)
FFT_ENDS(fft_f32_block_ends, float, fft_planes_f32, vf, 16, fft_load_f32, fft_store_f32, v_set, v_add, v_sub, v_mul,
         v_fma)
FFT_ENDS(fft_f64_ends, double, fft_planes_f64, double, 1, FFT_LOAD, FFT_STORE, FFT_SET, FFT_ADD, FFT_SUB, FFT_MUL,
         FFT_FMA)

/* The functions of one type, whose passes process `lanes` elements at a time. Factors are in the order in which they
 * are read: those of an odd radix's roots, [radix][2]; then, where a stride has fewer than `lanes` elements, real and
 * imaginary parts for each result of a group except the first, [radix - 1][2][count * stride]; otherwise [count][radix
 * - 1][2]. Before and after the passes, elements of lines are moved 16 at a time, because lines that are a power of two
 * apart share few cache lines. */
#define FFT(name, ends, block_ends, type, planes_of, vec, lanes, load, store, set, add, sub, mul, fma)                 \
  static inline __attribute__((always_inline)) void K(name##_two)(vec *re, vec *im) {                                  \
    const vec re0 = re[0], im0 = im[0];                                                                                \
    re[0] = add(re0, re[1]), im[0] = add(im0, im[1]);                                                                  \
    re[1] = sub(re0, re[1]), im[1] = sub(im0, im[1]);                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline __attribute__((always_inline)) void K(name##_four)(vec *re, vec *im) {                                 \
    const vec a_re = add(re[0], re[2]), a_im = add(im[0], im[2]), b_re = sub(re[0], re[2]), b_im = sub(im[0], im[2]);  \
    const vec c_re = add(re[1], re[3]), c_im = add(im[1], im[3]), d_re = sub(re[1], re[3]), d_im = sub(im[1], im[3]);  \
    re[0] = add(a_re, c_re), im[0] = add(a_im, c_im);                                                                  \
    re[1] = add(b_re, d_im), im[1] = sub(b_im, d_re);                                                                  \
    re[2] = sub(a_re, c_re), im[2] = sub(a_im, c_im);                                                                  \
    re[3] = sub(b_re, d_im), im[3] = add(b_im, d_re);                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  /* Elements j and radix - j have conjugate factors: cosines for their sums, sines for their differences. */          \
  static inline __attribute__((always_inline)) void K(name##_odd)(const int radix, const type *roots, vec *re,         \
                                                                  vec *im) {                                           \
    const int half = radix / 2;                                                                                        \
    vec sum_re[INGOT_FFT_RADIX / 2 + 1], sum_im[INGOT_FFT_RADIX / 2 + 1];                                              \
    vec diff_re[INGOT_FFT_RADIX / 2 + 1], diff_im[INGOT_FFT_RADIX / 2 + 1];                                            \
    const vec first_re = re[0], first_im = im[0];                                                                      \
    FFT_UNROLL for (int j = 1; j <= half; j++) {                                                                       \
      sum_re[j] = add(re[j], re[radix - j]), sum_im[j] = add(im[j], im[radix - j]);                                    \
      diff_re[j] = sub(re[j], re[radix - j]), diff_im[j] = sub(im[j], im[radix - j]);                                  \
      re[0] = add(re[0], sum_re[j]), im[0] = add(im[0], sum_im[j]);                                                    \
    }                                                                                                                  \
    FFT_UNROLL for (int k = 1; k <= half; k++) {                                                                       \
      vec even_re = first_re, even_im = first_im, odd_re = set(0), odd_im = set(0);                                    \
      FFT_UNROLL for (int j = 1; j <= half; j++) {                                                                     \
        const vec cosine = set(roots[2 * (j * k % radix)]), sine = set(roots[2 * (j * k % radix) + 1]);                \
        even_re = fma(cosine, sum_re[j], even_re), even_im = fma(cosine, sum_im[j], even_im);                          \
        odd_re = fma(sine, diff_re[j], odd_re), odd_im = fma(sine, diff_im[j], odd_im);                                \
      }                                                                                                                \
      re[k] = sub(even_re, odd_im), im[k] = add(even_im, odd_re);                                                      \
      re[radix - k] = add(even_re, odd_im), im[radix - k] = sub(even_im, odd_re);                                      \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  /* `n` lanes of the results of a group, whose elements are `distance` apart. */                                      \
  static inline __attribute__((always_inline)) void K(name##_group)(const int radix, const type *roots,                \
                                                                    const type *x_re, const type *x_im,                \
                                                                    int64_t distance, int64_t n, vec *re, vec *im) {   \
    FFT_UNROLL for (int j = 0; j < radix; j++) re[j] = load(x_re + j * distance, n);                                   \
    FFT_UNROLL for (int j = 0; j < radix; j++) im[j] = load(x_im + j * distance, n);                                   \
    if (radix == 2)                                                                                                    \
      K(name##_two)(re, im);                                                                                           \
    else if (radix == 4)                                                                                               \
      K(name##_four)(re, im);                                                                                          \
    else                                                                                                               \
      K(name##_odd)(radix, roots, re, im);                                                                             \
  }                                                                                                                    \
                                                                                                                       \
  static inline __attribute__((always_inline)) void K(name##_wide)(const int radix, fft_pass pass, const type *roots,  \
                                                                   const type *factors, planes_of planes) {            \
    const int64_t s = pass.stride;                                                                                     \
    vec re[INGOT_FFT_RADIX], im[INGOT_FFT_RADIX];                                                                      \
    for (int64_t p = 0; p < pass.count; p++, factors += 2 * (radix - 1))                                               \
      for (int64_t q = 0; q < s; q += lanes) {                                                                         \
        const int64_t n = s - q < lanes ? s - q : lanes, from = p * s + q, to = p * s * radix + q;                     \
        K(name##_group)(radix, roots, planes.x_re + from, planes.x_im + from, pass.count * s, n, re, im);              \
        store(planes.y_re + to, re[0], n);                                                                             \
        store(planes.y_im + to, im[0], n);                                                                             \
        FFT_UNROLL for (int k = 1; k < radix; k++) {                                                                   \
          const vec cosine = set(factors[2 * k - 2]), sine = set(factors[2 * k - 1]);                                  \
          store(planes.y_re + to + k * s, fma(re[k], cosine, sub(set(0), mul(im[k], sine))), n);                       \
          store(planes.y_im + to + k * s, fma(re[k], sine, mul(im[k], cosine)), n);                                    \
        }                                                                                                              \
      }                                                                                                                \
  }                                                                                                                    \
                                                                                                                       \
  /* Lanes of several groups, whose results are stored one by one. */                                                  \
  static inline __attribute__((always_inline)) void K(name##_narrow)(const int radix, fft_pass pass,                   \
                                                                     const type *roots, const type *factors,           \
                                                                     planes_of planes) {                               \
    const int64_t s = pass.stride, size = pass.count * s;                                                              \
    vec re[INGOT_FFT_RADIX], im[INGOT_FFT_RADIX];                                                                      \
    type made_re[INGOT_FFT_RADIX * lanes], made_im[INGOT_FFT_RADIX * lanes];                                           \
    for (int64_t i = 0; i < size; i += lanes) {                                                                        \
      const int64_t n = size - i < lanes ? size - i : lanes;                                                           \
      K(name##_group)(radix, roots, planes.x_re + i, planes.x_im + i, size, n, re, im);                                \
      store(made_re, re[0], lanes);                                                                                    \
      store(made_im, im[0], lanes);                                                                                    \
      FFT_UNROLL for (int k = 1; k < radix; k++) {                                                                     \
        const type *factor = factors + 2 * (k - 1) * size + i;                                                         \
        const vec cosine = load(factor, n), sine = load(factor + size, n);                                             \
        store(made_re + k * lanes, fma(re[k], cosine, sub(set(0), mul(im[k], sine))), lanes);                          \
        store(made_im + k * lanes, fma(re[k], sine, mul(im[k], cosine)), lanes);                                       \
      }                                                                                                                \
      int64_t q = i % s, to = i / s * s * radix + q;                                                                   \
      for (int64_t lane = 0; lane < n; lane++) {                                                                       \
        FFT_UNROLL for (int k = 0; k < radix; k++) {                                                                   \
          planes.y_re[to + k * s] = made_re[k * lanes + lane];                                                         \
          planes.y_im[to + k * s] = made_im[k * lanes + lane];                                                         \
        }                                                                                                              \
        const int is_last = ++q == s;                                                                                  \
        to += is_last ? 1 + s * (radix - 1) : 1;                                                                       \
        q = is_last ? 0 : q;                                                                                           \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  /* One pass; returns the factors of the next. */                                                                     \
  static inline __attribute__((always_inline)) const type *K(name##_pass)(const int radix, fft_pass pass,              \
                                                                          const type *factors,                         \
                                                                          planes_of planes) {                          \
    const type *roots = factors;                                                                                       \
    if (radix % 2) factors += 2 * radix;                                                                               \
    if (pass.stride < lanes) {                                                                                         \
      K(name##_narrow)(radix, pass, roots, factors, planes);                                                           \
      return factors + 2 * (radix - 1) * pass.count * pass.stride;                                                     \
    }                                                                                                                  \
    K(name##_wide)(radix, pass, roots, factors, planes);                                                               \
    return factors + 2 * (radix - 1) * pass.count;                                                                     \
  }                                                                                                                    \
                                                                                                                       \
  /* All passes; the result is in x. */                                                                                \
  static inline planes_of K(name##_passes)(const fft_args *args, planes_of planes) {                                   \
    const type *factors = args->factors;                                                                               \
    fft_pass pass = {1, args->length, args->block};                                                                    \
    for (int32_t i = 0; i < args->pass_count; i++) {                                                                   \
      pass.radix = args->radices[i], pass.count /= pass.radix;                                                         \
      switch (pass.radix) {                                                                                            \
        case 2: factors = K(name##_pass)(2, pass, factors, planes); break;                                             \
        case 3: factors = K(name##_pass)(3, pass, factors, planes); break;                                             \
        case 4: factors = K(name##_pass)(4, pass, factors, planes); break;                                             \
        case 5: factors = K(name##_pass)(5, pass, factors, planes); break;                                             \
        default: factors = K(name##_pass)((int)pass.radix, pass, factors, planes);                                     \
      }                                                                                                                \
      pass.stride *= pass.radix;                                                                                       \
      planes = (planes_of){planes.y_re, planes.y_im, planes.x_re, planes.x_im};                                        \
    }                                                                                                                  \
    return planes;                                                                                                     \
  }                                                                                                                    \
  static inline void K(name##_gather)(const fft_args *args, const void *from, const int64_t *begin, int64_t step,      \
                                      int64_t count, type *x) {                                                        \
    const int64_t block = args->block;                                                                                 \
    if (!from || count < block)                                                                                        \
      for (int64_t i = 0; i < args->read * block; i++) x[i] = 0;                                                       \
    for (int64_t first = 0; from && first < args->read; first += 16) {                                                 \
      const int64_t last = args->read - first < 16 ? args->read : first + 16;                                          \
      for (int64_t line = 0; line < count; line++) {                                                                   \
        const type *elements = (const type *)from + begin[line];                                                       \
        for (int64_t j = first; j < last; j++) x[j * block + line] = elements[j * step];                               \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  static inline void K(name##_spread)(const fft_args *args, void *to, const int64_t *begin, int64_t step,              \
                                      int64_t count, const type *x) {                                                  \
    const int64_t block = args->block;                                                                                 \
    const type scale = (type)1 / (type)args->divisor;                                                                  \
    for (int64_t first = 0; to && first < args->written; first += 16) {                                                \
      const int64_t last = args->written - first < 16 ? args->written : first + 16;                                    \
      for (int64_t line = 0; line < count; line++) {                                                                   \
        type *elements = (type *)to + begin[line];                                                                     \
        for (int64_t j = first; j < last; j++) elements[j * step] = x[j * block + line] * scale;                       \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  /* The other half of the spectrum of a real line of odd length. */                                                   \
  static inline void K(name##_mirror)(const fft_args *args, planes_of p) {                                             \
    const int64_t block = args->block;                                                                                 \
    for (int64_t line = 0; line < block; line++) p.x_im[line] = 0;                                                     \
    for (int64_t i = args->read * block; i < args->length * block; i++) {                                              \
      const int64_t from = (args->length - i / block) * block + i % block;                                             \
      p.x_re[i] = p.x_re[from], p.x_im[i] = -p.x_im[from];                                                             \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  void K(name)(const void *arguments, int32_t task, int32_t num_tasks) {                                               \
    const fft_args *args = arguments;                                                                                  \
    const int64_t plane = (args->length + 1) * args->block;                                                            \
    const type *roots = (const type *)args->factors + args->roots_offset;                                              \
    type *scratch = (type *)(args->scratch + task * args->scratch_stride);                                             \
    int64_t count = 1;                                                                                                 \
    for (int32_t d = 0; d < args->rank; d++) count *= args->shape[d];                                                  \
    const int64_t end = task_begin_grain(count, args->block, task + 1, num_tasks);                                     \
    for (int64_t i = task_begin_grain(count, args->block, task, num_tasks); i < end; i += args->block) {               \
      const int64_t n = end - i < args->block ? end - i : args->block;                                                 \
      const fft_lines lines = fft_lines_of(args, i, n);                                                                \
      planes_of p = {scratch, scratch + plane, scratch + 2 * plane, scratch + 3 * plane};                              \
      K(name##_gather)(args, args->real, lines.real, args->real_step, n, p.x_re);                                      \
      K(name##_gather)(args, args->imaginary, lines.imaginary, args->imaginary_step, n, p.x_im);                       \
      if (args->form == INGOT_FFT_MIRROR) K(name##_mirror)(args, p);                                                   \
      if (args->form == INGOT_FFT_JOIN) {                                                                              \
        (args->block == 1 ? K(ends) : K(block_ends))(args, roots, p);                                                  \
        p = (planes_of){p.y_re, p.y_im, p.x_re, p.x_im};                                                               \
      }                                                                                                                \
      if (args->inverse) p = (planes_of){p.x_im, p.x_re, p.y_im, p.y_re};                                              \
      p = K(name##_passes)(args, p);                                                                                   \
      if (args->inverse) p = (planes_of){p.x_im, p.x_re, p.y_im, p.y_re};                                              \
      if (args->form == INGOT_FFT_SPLIT) {                                                                             \
        (args->block == 1 ? K(ends) : K(block_ends))(args, roots, p);                                                  \
        p = (planes_of){p.y_re, p.y_im, p.x_re, p.x_im};                                                               \
      }                                                                                                                \
      K(name##_spread)(args, args->out_real, lines.out_real, args->out_real_step, n, p.x_re);                          \
      K(name##_spread)(args, args->out_imaginary, lines.out_imaginary, args->out_imaginary_step, n, p.x_im);           \
    }                                                                                                                  \
  }

FFT(fft_f32, fft_f32_ends, fft_f32_block_ends, float, fft_planes_f32, vf, 16, fft_load_f32, fft_store_f32, v_set, v_add,
    v_sub, v_mul, v_fma)
FFT(fft_f64, fft_f64_ends, fft_f64_ends, double, fft_planes_f64, double, 1, fft_load_f64, fft_store_f64, FFT_SET,
    FFT_ADD, FFT_SUB, FFT_MUL, FFT_FMA)

#undef FFT
#undef FFT_ENDS
#undef FFT_UNROLL
#undef FFT_LOAD
#undef FFT_STORE
#undef FFT_SET
#undef FFT_ADD
#undef FFT_SUB
#undef FFT_MUL
#undef FFT_FMA

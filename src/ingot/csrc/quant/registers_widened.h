/* registers_widened.h: the registers of gemm_tile_quant.inc and gemm_tile_blocks.inc without AVX-512's dot products of
 * int8: AVX2 sums products of bytes in pairs, as int16, or has AVX-VNNI's dot products. */
#ifndef INGOT_REGISTERS_WIDENED_H
#define INGOT_REGISTERS_WIDENED_H

#include <string.h>

#include "math/bf16.h"
#include "quant/blocks.h"

#if defined(ISA_avx512)
#define QUANT_SHAPES(X, ...)                                                                                           \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define QUANT_TALL_SHAPES(X, ...)                                                                                      \
  QUANT_SHAPES(X, __VA_ARGS__)                                                                                         \
  X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#else
#define QUANT_SHAPES(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define QUANT_TALL_SHAPES(X, ...) QUANT_SHAPES(X, __VA_ARGS__)
#endif

/* The sums of products of bytes. */
#if defined(ISA_avx2vnni)
#define QUANT_ACROSS(rows, bits) ((rows) <= 2 ? 4 : 2) /* enough sums that none waits for its last product */
#define QUANT_DOT8(part, high, w, p) (void)(high), part = quant_dot(part, w, QUANT_SET(p))
#define QUANT_END8(sum, part, high) ((void)(high), part)
#define QUANT_FITS(most) ((void)(most), INGOT_QUANT_BLOCK / 4)
#define QUANT_BEGIN(sum) (sum)
#define QUANT_DOT4(part, w, p) quant_dot(part, w, QUANT_SET(p))
#define QUANT_END(sum, part) (part)
#define BLOCKS_LESS 0
#define BLOCKS_DOT(part, steps, w, p) quant_dot(part, w, QUANT_SET(p))
#define BLOCKS_SCALE(w) ((BLOCKS_W)((BLOCKS_S)((w) << 24) >> 24))
#define BLOCKS_SCALED(total, part, scale) (QUANT_I)((BLOCKS_W)(total) + (BLOCKS_W)(part) * (scale))
#elif defined(ISA_avx2) || defined(ISA_avx512)
#define QUANT_ACROSS(rows, bits) ((rows) == 1 ? 4 : (rows) == 2 || ((rows) == 4 && (bits) == 4) ? 2 : 1)
/* The halves of each byte, so that the sums of a block's products fit an int16. */
#define QUANT_DOT8(part, high, w, p)                                                                                   \
  part = QUANT_DOT4(part, QUANT_LOW(w), p), high = QUANT_DOT4(high, QUANT_HIGH(w), p)
#define QUANT_END8(sum, part, high)                                                                                    \
  widened_add(QUANT_END(sum, part), _mm256_madd_epi16(high, _mm256_set1_epi16(16)))
#define QUANT_FITS(most) (32767 / (2 * 128 * (most)))
#define QUANT_BEGIN(sum) QUANT_NONE()
#define QUANT_DOT4(part, w, p) widened_pairs(part, _mm256_maddubs_epi16(w, QUANT_SET(p)))
#define QUANT_END(sum, part) widened_add(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)))
#define BLOCKS_LESS 128
#define BLOCKS_DOT(part, steps, w, p)                                                                                  \
  ((steps) ? widened_pairs(part, quant_signed(w, QUANT_SET(p))) : QUANT_DOT4(part, w, p))
#define BLOCKS_SCALE(w) (BLOCKS_W)BLOCKS_PAIR((QUANT_I)(w), 0, 0)
#define BLOCKS_SCALED(total, part, scale) widened_add(total, _mm256_madd_epi16(part, (QUANT_I)(scale)))
#endif

#if !defined(ISA_avx2) && !defined(ISA_avx512)
#define QUANT_I int32_t
#define QUANT_F float
#define QUANT_LANES 1
#define QUANT_WIDTH 1
#define QUANT_ACROSS(rows, bits) 1
#define QUANT_LOAD(p) quant_int(p)
#define QUANT_SET(p) quant_int(p)
#define QUANT_NEXT(p) (void)(p)
#define QUANT_LOW(w) (int32_t)((uint32_t)(w) << 4 & 0xf0f0f0f0u)
#define QUANT_HIGH(w) (int32_t)((uint32_t)(w) & 0xf0f0f0f0u)
#define QUANT_DOT(sum, w, p) quant_dot(sum, (uint32_t)(w), p)
#define QUANT_TIMES 16
#define QUANT_DOT8(part, high, w, p) (void)(high), part = QUANT_DOT(part, w, p)
#define QUANT_END8(sum, part, high) ((void)(high), part)
#define QUANT_FITS(most) ((void)(most), INGOT_QUANT_BLOCK / 4)
#define QUANT_BEGIN(sum) (sum)
#define QUANT_DOT4(part, w, p) QUANT_DOT(part, w, p)
#define QUANT_END(sum, part) (part)
#define QUANT_SMALLER(i) ((i) / 16)
#define QUANT_NONE() 0
#define QUANT_ZEROS(p) (*(p))
#define QUANT_OFFSET(sum, z, offset) ((sum) + (z) * ((offset) / 128))
#define QUANT_FLOATS(i) (float)(i)
#define QUANT_SCALES(p) f16_to_float(*(p))
#define QUANT_ZERO() 0.0f
#define QUANT_READ(p) (*(p))
#define QUANT_WRITE(p, v) (*(p) = (v))
#define QUANT_SPREAD(x) (x)
#define QUANT_FMA(x, y, z) fmaf(x, y, z)
#define QUANT_MUL(x, y) ((x) * (y))
#define BLOCKS_W uint32_t
#define BLOCKS_S int32_t
#define BLOCKS_LOAD16(p) (*(const uint16_t *)(p))
#define BLOCKS_BF16(p) bf16_to_float(*(p))
#define BLOCKS_STEPS(book, w) blocks_stepped(book, (uint32_t)(w))
#define BLOCKS_LESS 0
#define BLOCKS_DOT(part, steps, w, p) QUANT_DOT(part, w, p)
#define BLOCKS_SCALE(w) ((BLOCKS_W)((BLOCKS_S)((w) << 24) >> 24))
#define BLOCKS_SCALED(total, part, scale) (QUANT_I)((BLOCKS_W)(total) + (BLOCKS_W)(part) * (scale))
#define BLOCKS_PAIR(w, i, j) (int32_t)blocks_pair((uint32_t)(w), i, j)
#define BLOCKS_PAIRS(sum, w, p) blocks_pairs(sum, (uint32_t)(w), p)
static inline int32_t quant_int(const void *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return four;
}

static inline int32_t quant_dot(int32_t sum, uint32_t w, const int8_t *p) {
  for (int i = 0; i < 4; i++) sum += (int32_t)(w >> 8 * i & 255) * p[i];
  return sum;
}

static inline uint32_t blocks_stepped(int book, uint32_t w) {
  uint32_t stepped = 0;
  for (int i = 0; i < 4; i++) stepped |= (uint32_t)blocks_steps[book][w >> 8 * i & 15] << 8 * i;
  return stepped;
}

static inline uint32_t blocks_pair(uint32_t w, int i, int j) {
  const int8_t first = (int8_t)(w >> 8 * i), second = (int8_t)(w >> 8 * j);
  return (uint32_t)(uint16_t)first | (uint32_t)(uint16_t)second << 16;
}

static inline int32_t blocks_pairs(int32_t sum, uint32_t w, const int8_t *p) {
  const uint32_t at = (uint32_t)quant_int(p);
  return sum + (int16_t)w * (int16_t)at + (int16_t)(w >> 16) * (int16_t)(at >> 16);
}
#else
#define QUANT_I __m256i
#define QUANT_F __m256
#define QUANT_LANES 8
#define QUANT_WIDTH 4
#define QUANT_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define QUANT_SET(p) _mm256_set1_epi32(*(const int32_t *)(p))
#define QUANT_TIMES 1
#define QUANT_NEXT(p) __builtin_prefetch((p) + 2048, 0, 3)
#define QUANT_LOW(w) _mm256_and_si256(w, _mm256_set1_epi8(0x0f))
#define QUANT_HIGH(w) _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(0x0f))
#define QUANT_SMALLER(i) _mm256_srai_epi32(i, 4)
#define QUANT_NONE() _mm256_setzero_si256()
#define QUANT_ZEROS(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p)))
#define QUANT_OFFSET(sum, z, offset) _mm256_add_epi32(sum, _mm256_srai_epi32(_mm256_mullo_epi32(z, offset), 7))
#define QUANT_FLOATS(i) _mm256_cvtepi32_ps(i)
#define QUANT_SCALES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define QUANT_ZERO() _mm256_setzero_ps()
#define QUANT_READ(p) _mm256_loadu_ps(p)
#define QUANT_WRITE(p, v) _mm256_storeu_ps(p, v)
#define QUANT_SPREAD(x) _mm256_set1_ps(x)
#define QUANT_FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define QUANT_MUL(x, y) _mm256_mul_ps(x, y)
#define BLOCKS_W widened_words
#define BLOCKS_S widened_signed
#define BLOCKS_LOAD16(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define BLOCKS_BF16(p) _mm256_castsi256_ps(_mm256_slli_epi32(BLOCKS_LOAD16(p), 16))
#define BLOCKS_STEPS(book, w)                                                                                          \
  _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)blocks_steps[book])), w)
#define BLOCKS_PAIR(w, i, j)                                                                                           \
  _mm256_srai_epi16(_mm256_shuffle_epi8(w, _mm256_broadcastsi128_si256(_mm_set_epi8(                                   \
                        12 + (j), -1, 12 + (i), -1, 8 + (j), -1, 8 + (i), -1, 4 + (j), -1, 4 + (i), -1, j, -1, i,      \
                        -1))), 8)
#define BLOCKS_PAIRS(sum, w, p) _mm256_add_epi32(sum, _mm256_madd_epi16(w, QUANT_SET(p)))
typedef uint32_t widened_words __attribute__((vector_size(32)));
typedef int32_t widened_signed __attribute__((vector_size(32)));
/* sum + products, in 32 bits or 16; keeps GCC from adding products to one another first, for which there are too few
 * registers. */
static inline __m256i widened_add(__m256i sum, __m256i products) {
  __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
  return sum;
}

static inline __m256i widened_pairs(__m256i sum, __m256i products) {
  sum = _mm256_add_epi16(sum, products);
  __asm__("" : "+x"(sum));
  return sum;
}

/* Values minus 128, times a, in pairs: their magnitudes times a with their signs, whose bytes are from -127 to 127, so
 * that the sum of two products fits an int16. */
static inline __m256i quant_signed(__m256i w, __m256i a) {
  const __m256i less = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  return _mm256_maddubs_epi16(_mm256_abs_epi8(less), _mm256_sign_epi8(a, less));
}
#endif

#if defined(ISA_avx2vnni)
static inline __m256i quant_dot(__m256i sum, __m256i w, __m256i a) {
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(a));
  return sum;
}
#endif

#endif

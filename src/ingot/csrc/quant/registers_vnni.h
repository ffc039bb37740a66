/* registers_vnni.h: the registers of gemm_tile_quant.inc and gemm_tile_blocks.inc with the dot products of AVX512_VNNI:
 * 6 rows x 1 panel. */
#ifndef INGOT_REGISTERS_VNNI_H
#define INGOT_REGISTERS_VNNI_H

#include <immintrin.h>
#include <string.h>

#include "quant/blocks.h"

#define QUANT_I __m512i
#define QUANT_F __m512
#define QUANT_LANES 16
#define QUANT_WIDTH 2
#define QUANT_ACROSS(rows, bits) 2
#define QUANT_SET(p) _mm512_set1_epi32(*(const int32_t *)(p))
#define QUANT_LOAD(p) _mm512_loadu_si512(p)
/* The CPU's own prefetching ends at a page boundary. Lines prefetched to the L1 cache would displace lines in use. */
#define QUANT_NEXT(p) __builtin_prefetch((p) + 2048, 0, 2)
#define QUANT_LOW(w) _mm512_and_si512(_mm512_slli_epi16(w, 4), _mm512_set1_epi8((char)0xf0))
#define QUANT_HIGH(w) _mm512_and_si512(w, _mm512_set1_epi8((char)0xf0))
#define QUANT_DOT(sum, w, p) quant_dot(sum, w, QUANT_SET(p))
#define QUANT_TIMES 16
#define QUANT_DOT8(part, high, w, p) (void)(high), part = QUANT_DOT(part, w, p)
#define QUANT_END8(sum, part, high) ((void)(high), part)
#define QUANT_FITS(most) ((void)(most), INGOT_QUANT_BLOCK / 4)
#define QUANT_BEGIN(sum) (sum)
#define QUANT_DOT4(part, w, p) QUANT_DOT(part, w, p)
#define QUANT_END(sum, part) (part)
#define QUANT_SMALLER(i) _mm512_srai_epi32(i, 4)
#define QUANT_NONE() _mm512_setzero_si512()
#define QUANT_ZEROS(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define QUANT_OFFSET(sum, z, offset) _mm512_add_epi32(sum, _mm512_srai_epi32(_mm512_mullo_epi32(z, offset), 7))
#define QUANT_FLOATS(i) _mm512_cvtepi32_ps(i)
#define QUANT_SCALES(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define QUANT_ZERO() _mm512_setzero_ps()
#define QUANT_READ(p) _mm512_loadu_ps(p)
#define QUANT_WRITE(p, v) _mm512_storeu_ps(p, v)
#define QUANT_SPREAD(x) _mm512_set1_ps(x)
#define QUANT_FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#define QUANT_SHAPES(X, ...)                                                                                           \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define QUANT_TALL_SHAPES(X, ...)                                                                                      \
  QUANT_SHAPES(X, __VA_ARGS__)                                                                                         \
  X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
/* _mm512_dpbusd_epi32; for the intrinsic, GCC 12 copies each sum to another register and to the stack. */
static inline __m512i quant_dot(__m512i sum, __m512i w, __m512i a) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
  return sum;
}

#define BLOCKS_W vnni_words
#define BLOCKS_S vnni_signed
#define BLOCKS_LOAD16(p) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p)))
#define BLOCKS_BF16(p) _mm512_castsi512_ps(_mm512_slli_epi32(BLOCKS_LOAD16(p), 16))
#define BLOCKS_STEPS(book, w)                                                                                          \
  _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)blocks_steps[book])), w)
#define BLOCKS_LESS 0
#define BLOCKS_DOT(part, steps, w, p) QUANT_DOT(part, w, p)
#define BLOCKS_SCALE(w) ((BLOCKS_W)((BLOCKS_S)((w) << 24) >> 24))
#define BLOCKS_SCALED(total, part, scale) (QUANT_I)((BLOCKS_W)(total) + (BLOCKS_W)(part) * (scale))
#define BLOCKS_PAIR(w, i, j)                                                                                           \
  _mm512_srai_epi16(_mm512_shuffle_epi8(w, _mm512_broadcast_i32x4(_mm_set_epi8(                                        \
                        12 + (j), -1, 12 + (i), -1, 8 + (j), -1, 8 + (i), -1, 4 + (j), -1, 4 + (i), -1, j, -1,         \
                        i, -1))), 8)
#define BLOCKS_PAIRS(sum, w, p) _mm512_dpwssd_epi32(sum, w, QUANT_SET(p))
#define QUANT_MUL(x, y) _mm512_mul_ps(x, y)
typedef uint32_t vnni_words __attribute__((vector_size(64)));
typedef int32_t vnni_signed __attribute__((vector_size(64)));

#endif

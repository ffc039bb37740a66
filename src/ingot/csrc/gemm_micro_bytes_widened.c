/* gemm_micro_bytes_widened.c: bytes_tile where there are no dot products of bytes: they become int16, whose products
 * AVX2 sums in pairs. */
#include <string.h>

#include "bytes.h"

#if defined(ISA_avx512)
#define BYTES_NAME(name) K(name##_widened)
#define BYTES_SHAPES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define BYTES_NAME(name) K(name)
#define BYTES_SHAPES(X) X(1) X(2) X(3) X(4)
#endif
#define BYTES_WIDTH 1

#if !defined(ISA_avx2) && !defined(ISA_avx512)
#define BYTES_I uint32_t
#define BYTES_LANES 1
#define BYTES_FIRST(p) (uint32_t)(*(p))
#define BYTES_FOUR(p) bytes_four(p)
#define BYTES_LOAD(p) bytes_four(p)
#define BYTES_DOT(sum, a, w) bytes_dot(sum, a, w)
#define BYTES_FINISH(to, sum, scales) (*(to) = (float)(int32_t)(sum) * *(scales))
static inline uint32_t bytes_four(const void *p) {
  uint32_t four;
  memcpy(&four, p, sizeof four);
  return four;
}

static inline uint32_t bytes_dot(uint32_t sum, uint32_t a, uint32_t w) {
  for (int i = 0; i < 32; i += 8) sum += (a >> i & 255) * (uint32_t)(int32_t)(int8_t)(w >> i & 255);
  return sum;
}
#else
#define BYTES_I __m256i
#define BYTES_LANES 8
#define BYTES_FIRST(p) _mm256_loadu_si256((const __m256i *)(p))
#define BYTES_FOUR(p) _mm256_set1_epi32(*(const int32_t *)(p))
#define BYTES_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define BYTES_DOT(sum, a, w) bytes_dot(sum, a, w)
#define BYTES_FINISH(to, sum, scales) \
  _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_loadu_ps(scales)))
static inline __m256i bytes_dot(__m256i sum, __m256i a, __m256i w) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(w, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
#endif

#include "gemm_tile_bytes.h"

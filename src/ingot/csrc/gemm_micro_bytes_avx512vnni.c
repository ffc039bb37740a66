/* gemm_micro_bytes_avx512vnni.c: bytes_tile by the dot products of AVX512_VNNI: 12 rows x 1 panel. */
#include <immintrin.h>

#include "bytes.h"

#define BYTES_I __m512i
#define BYTES_LANES 16
#define BYTES_WIDTH 2
#define BYTES_FIRST(p) _mm512_loadu_si512(p)
#define BYTES_FOUR(p) _mm512_set1_epi32(*(const int32_t *)(p))
#define BYTES_LOAD(p) _mm512_loadu_si512(p)
#define BYTES_DOT(sum, a, w) bytes_dot(sum, a, w)
#define BYTES_FINISH(to, sum, scales) \
  _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(scales)))
#define BYTES_SHAPES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define BYTES_NAME(name) K(name)

/* _mm512_dpbusd_epi32, of which GCC 12 copies each sum to another register and to the stack. */
static inline __m512i bytes_dot(__m512i sum, __m512i a, __m512i w) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
  return sum;
}

#include "gemm_tile_bytes.h"

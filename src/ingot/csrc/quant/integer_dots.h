/* integer_dots.h: sums of products of unsigned and signed bytes, exact on every instruction set. */
#ifndef INGOT_INTEGER_DOTS_H
#define INGOT_INTEGER_DOTS_H

#include <string.h>

#include "kernel.h"

/* Rows of the largest tile of products, and the most registers of a row; a lane of a register has the sums of a
 * column. */
#if defined(ISA_avx512)
#define INTEGER_VNNI __attribute__((target("avx512vnni"))) /* for functions that use integer_dot */
#define INTEGER_ROWS 12
#define INTEGER_ACROSS 2
#define INTEGER_LANES 16
#elif defined(ISA_avx2vnni)
#define INTEGER_ROWS 6
#define INTEGER_ACROSS 2
#define INTEGER_LANES 8
#elif defined(ISA_avx2)
#define INTEGER_ROWS 4
#define INTEGER_ACROSS 1
#define INTEGER_LANES 8
#else
#define INTEGER_ROWS 2
#define INTEGER_ACROSS 1
#define INTEGER_LANES 1
#endif

/* integer_sums: a register of INTEGER_LANES sums. Operations: four bytes in all lanes, or different ones for each lane;
 * a difference; the first three of four bytes moved to the last three, after a zero; sum + dot products. */
#if defined(ISA_avx512)
#define INTEGER_OP(name) _mm512_##name
typedef __m512i integer_sums;
static inline integer_sums integer_read(const void *p) { return _mm512_loadu_si512(p); }
static inline void integer_write(void *p, integer_sums v) { _mm512_storeu_si512(p, v); }

/* _mm512_dpbusd_epi32; for the intrinsic, GCC 12 copies each sum to another register and to the stack. */
static inline integer_sums integer_dot(integer_sums sum, integer_sums a, integer_sums w) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
  return sum;
}
#elif defined(ISA_avx2)
#define INTEGER_OP(name) _mm256_##name
typedef __m256i integer_sums;
static inline integer_sums integer_read(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void integer_write(void *p, integer_sums v) { _mm256_storeu_si256((__m256i *)p, v); }
#else
typedef struct { int32_t sum; uint8_t four[4]; } integer_sums;

static inline integer_sums integer_read(const void *p) {
  integer_sums r;
  memcpy(&r.sum, p, 4);
  memcpy(r.four, p, 4);
  return r;
}

static inline void integer_write(void *p, integer_sums v) { memcpy(p, &v.sum, sizeof v.sum); }
#endif

#if defined(ISA_avx512) || defined(ISA_avx2)
static inline integer_sums integer_less(integer_sums a, integer_sums b) { return INTEGER_OP(sub_epi32)(a, b); }
static inline integer_sums integer_moved(integer_sums a) { return INTEGER_OP(slli_epi32)(a, 8); }

static inline integer_sums integer_spread(const uint8_t *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return INTEGER_OP(set1_epi32)(four);
}
#else
static inline integer_sums integer_spread(const uint8_t *p) { return integer_read(p); }

static inline integer_sums integer_less(integer_sums a, integer_sums b) {
  a.sum = (int32_t)((uint32_t)a.sum - (uint32_t)b.sum);
  return a;
}

static inline integer_sums integer_moved(integer_sums a) {
  return (integer_sums){a.sum, {0, a.four[0], a.four[1], a.four[2]}};
}
#endif

#if defined(ISA_avx2vnni)
static inline integer_sums integer_madd(integer_sums sum, integer_sums a, integer_sums w) {
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(w));
  return sum;
}
#elif defined(ISA_avx512) || defined(ISA_avx2)
static inline integer_sums integer_madd(integer_sums sum, integer_sums a, integer_sums w) {
  const integer_sums low = INTEGER_OP(srai_epi16)(INTEGER_OP(slli_epi16)(w, 8), 8);
  const integer_sums even = INTEGER_OP(madd_epi16)(a & INTEGER_OP(set1_epi16)(255), low);
  const integer_sums odd = INTEGER_OP(madd_epi16)(INTEGER_OP(srli_epi16)(a, 8), INTEGER_OP(srai_epi16)(w, 8));
  return INTEGER_OP(add_epi32)(sum, INTEGER_OP(add_epi32)(even, odd));
}
#else
static inline integer_sums integer_madd(integer_sums sum, integer_sums a, integer_sums w) {
  for (int i = 0; i < 4; i++) sum.sum = (int32_t)((uint32_t)sum.sum + (uint32_t)(a.four[i] * (int8_t)w.four[i]));
  return sum;
}
#endif

#endif

/* bytes.h: products of rows of unsigned bytes with panels of signed ones. Sums are integers and exact, so that bits
 * depend on no instruction set, part or batch. */
#ifndef INGOT_BYTES_H
#define INGOT_BYTES_H

#include "gemm.h"

/* Rows of the largest tile. */
#if defined(ISA_avx512)
#define BYTES_ROWS 12
#else
#define BYTES_ROWS 4
#endif

/* out[rows][32] = (first[32] + the products of a's rows with b[fours][32][4], as integers) * scales[32]. */
typedef struct {
  const uint8_t *a;
  int64_t a_stride, fours;
  const int8_t *b;
  const int32_t *first;
  const float *scales;
  float *out;
} bytes_product;

/* A tile of 1 <= rows <= BYTES_ROWS; _widened: for a CPU with AVX-512 but no dot products of int8. */
void K(bytes_tile)(int64_t rows, const bytes_product *p);
void K(bytes_tile_widened)(int64_t rows, const bytes_product *p);

#endif

/* split_sums.h: products of many rows of pairs of bf16 whose sums are apart, as abi.h says of gemm_bf16. */
#ifndef INGOT_SPLIT_H
#define INGOT_SPLIT_H

#include "gemm/gemm.h"

#if defined(INGOT_LIBRARY)
#define SPLIT_PAIRS 16
#define SPLIT_ROWS INGOT_SPLIT_ROWS /* that are summed together, at most */
#define SPLIT_NEAR 144 /* pairs of a panel that stay in the first cache while rows pass */

/* Rows of pairs in pieces, `runs` of `k` pairs each, that lie offsets[run] floats behind a, times one panel, whose rows
 * follow one another. Each piece begins with pairs that are summed together. ahead: what is read afterwards, of which
 * prefetch_step bytes are fetched with each SPLIT_PAIRS. more: sums hold those of earlier pieces, and these are added
 * one after the other. halved: only the first 16 columns are wanted. */
typedef struct {
  int64_t runs, k;
  const int64_t *offsets;
  const float *a; int64_t a_stride;
  const float *b;
  const char *prefetch; int64_t prefetch_step;
  int32_t more, halved;
} split_product;

/* Around all products of pieces of k pairs: what they need of the processor. Every product then has a multiple of
 * SPLIT_PAIRS in its pieces, or as many more as k. rows: of each product, or at least SPLIT_ROWS / 2. */
void K(split_begin)(int64_t rows, int64_t k);
void K(split_end)(void);

/* sums[rows][32] of up to SPLIT_ROWS rows. */
void K(split_sums)(int64_t rows, const split_product *p, float *sums);

/* What a finish makes of the sums of `columns` columns. */
void K(split_finish)(const gemm_finish *f, int64_t rows, int64_t columns, const float *sums);

/* The pairs of the pieces that k are cut into, so that each stays near. */
static inline int64_t split_piece(int64_t k) {
  const int64_t pieces = (k + SPLIT_NEAR - 1) / SPLIT_NEAR;
  return pieces ? ((k + pieces - 1) / pieces + SPLIT_PAIRS - 1) / SPLIT_PAIRS * SPLIT_PAIRS : SPLIT_PAIRS;
}

/* The bytes of the next piece that each of some blocks of rows fetches with SPLIT_PAIRS of its own. */
static inline int64_t split_prefetch(const void *next, int64_t blocks) {
  return next ? (4 * SPLIT_PAIRS * INGOT_PANEL / blocks + 63) / 64 * 64 : 0;
}
#endif

#endif

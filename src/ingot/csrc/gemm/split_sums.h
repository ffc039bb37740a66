/* split_sums.h: products of many rows of bf16 pairs with the split sums of gemm_bf16 (abi.h). */
#ifndef INGOT_SPLIT_H
#define INGOT_SPLIT_H

#include "gemm/gemm.h"

#if defined(INGOT_LIBRARY)
#define SPLIT_PAIRS 16
#define SPLIT_ROWS INGOT_SPLIT_ROWS /* most rows that are summed together */
#define SPLIT_NEAR 144 /* pairs of a panel that stay in the L1 cache while all rows are multiplied */

/* Rows of pairs in pieces, `runs` of `k` pairs each at offsets[run] floats from a, times one panel, whose rows are
 * contiguous. Each piece begins a new group of SPLIT_PAIRS. prefetch: memory that is read afterwards; prefetch_step
 * bytes of it are prefetched with each SPLIT_PAIRS. more: add to the sums of earlier pieces. halved: only the first 16
 * columns are wanted. */
typedef struct {
  int64_t runs, k;
  const int64_t *offsets;
  const float *a; int64_t a_stride;
  const float *b;
  const char *prefetch; int64_t prefetch_step;
  int32_t more, halved;
} split_product;

/* Configure the CPU for all products of pieces of k pairs. The pieces of every product have a multiple of SPLIT_PAIRS
 * pairs, or such a multiple plus the remainder of k. rows: of each product, or at least SPLIT_ROWS / 2. */
void K(split_begin)(int64_t rows, int64_t k);
void K(split_end)(void);

/* sums[rows][32] of up to SPLIT_ROWS rows. */
void K(split_sums)(int64_t rows, const split_product *p, float *sums);

/* Apply the epilogue store to the sums of `columns` columns. */
void K(split_store)(const gemm_store *f, int64_t rows, int64_t columns, const float *sums);

/* The pairs of a piece of k, so that a piece stays in the cache. */
static inline int64_t split_piece(int64_t k) {
  const int64_t pieces = (k + SPLIT_NEAR - 1) / SPLIT_NEAR;
  return pieces ? ((k + pieces - 1) / pieces + SPLIT_PAIRS - 1) / SPLIT_PAIRS * SPLIT_PAIRS : SPLIT_PAIRS;
}

/* The bytes of the next piece that each of some blocks of rows prefetches with each SPLIT_PAIRS of its own. */
static inline int64_t split_prefetch(const void *next, int64_t blocks) {
  return next ? (4 * SPLIT_PAIRS * INGOT_PANEL / blocks + 63) / 64 * 64 : 0;
}
#endif

#endif

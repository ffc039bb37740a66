/* paged.h: addresses of sequence positions in a paged cache of keys or values. */
#ifndef INGOT_PAGED_H
#define INGOT_PAGED_H

#include "kernel.h"

/* The tables that map rows to cache slots, and their limits. */
typedef struct {
  const int32_t *positions, *owners, *blocks;
  int64_t sequences, blocks_each, total_blocks;
  ingot_fault *fault;
  int32_t step;
} paged_rows;

/* Whether 0 <= index < limit; reports a fault otherwise. */
static inline int paged_within(const paged_rows *t, int64_t index, int64_t limit) {
  if (index >= 0 && index < limit) return 1;
  report_fault(t->fault, 2, t->step, index, limit);
  return 0;
}

/* The block of positions 64i.. of a sequence, or -1 after a fault. */
static inline int64_t paged_block(const paged_rows *t, int64_t owner, int64_t i) {
  const int64_t block = t->blocks[owner * t->blocks_each + i];
  return paged_within(t, block, t->total_blocks) ? block : -1;
}

/* Whether row r has a valid owner and position; reports a fault otherwise. */
static inline int paged_row(const paged_rows *t, int64_t r) {
  return paged_within(t, t->owners[r], t->sequences) &&
         paged_within(t, t->positions[r], t->blocks_each * INGOT_CACHE_BLOCK);
}

#endif

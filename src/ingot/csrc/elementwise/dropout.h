/* dropout.h: dropout; the random number of an element depends on its index. */
#ifndef INGOT_DROPOUT_H
#define INGOT_DROPOUT_H

#include "kernel.h"
#include "elementwise/philox.h"

#define DROPOUT_COUNTERS 16 /* that are drawn together, four elements each */

/* The parameters that select dropped elements, together with their indices; scale: the factor of the other elements. */
typedef struct {
  uint64_t seed, step;
  int64_t stream, threshold;
  float scale;
} dropout_draw;

/* out = x with dropout, for `count` elements, the first of which has the index `first`. out may be x. */
static inline void dropout_elements(const dropout_draw *d, uint64_t first, int64_t count, const float *x, float *out) {
  const uint64_t end = first + (uint64_t)count;
  for (uint64_t i = first; i < end;) {
    uint32_t words[4 * DROPOUT_COUNTERS];
    for (uint32_t c = 0; c < DROPOUT_COUNTERS; c++) {
      const uint64_t counter = i / 4 + c;
      words[c] = (uint32_t)counter;
      words[DROPOUT_COUNTERS + c] = (uint32_t)(counter >> 32);
      words[2 * DROPOUT_COUNTERS + c] = (uint32_t)d->step;
      words[3 * DROPOUT_COUNTERS + c] = (uint32_t)d->stream;
    }
    philox(d->seed, DROPOUT_COUNTERS, words);
    const uint64_t begin = i / 4 * 4, last = begin + 4 * DROPOUT_COUNTERS;
    for (; i < end && i < last; i++) {
      const uint64_t at = i - begin;
      const int is_kept = (int64_t)words[at % 4 * DROPOUT_COUNTERS + at / 4] >= d->threshold;
      out[i - first] = is_kept ? x[i - first] * d->scale : 0.0f;
    }
  }
}

#undef DROPOUT_COUNTERS

#endif

/* dropout.c: elements that become zero, drawn by the place of each: in any order, by any number of parts. */
#include "kernel.h"
#include "philox.h"

#define DROPOUT_COUNTERS 16 /* that are drawn together, of four elements each */

void K(dropout_f32)(const void *p, int32_t part, int32_t parts) {
  const dropout_args *args = p;
  const uint64_t before = args->part ? (uint64_t)*args->part * (uint64_t)args->count : 0;
  const uint64_t step = (uint64_t)*args->step, first = before / 4, skipped = before % 4;
  const uint64_t end = (uint64_t)part_begin(args->count, part + 1, parts) + skipped;
  for (uint64_t i = (uint64_t)part_begin(args->count, part, parts) + skipped; i < end;) {
    uint32_t words[4 * DROPOUT_COUNTERS];
    for (uint32_t c = 0; c < DROPOUT_COUNTERS; c++) {
      const uint64_t counter = first + i / 4 + c;
      words[c] = (uint32_t)counter;
      words[DROPOUT_COUNTERS + c] = (uint32_t)(counter >> 32);
      words[2 * DROPOUT_COUNTERS + c] = (uint32_t)step;
      words[3 * DROPOUT_COUNTERS + c] = (uint32_t)args->stream;
    }
    philox((uint64_t)args->seed, DROPOUT_COUNTERS, words);
    const uint64_t begin = i / 4 * 4, last = begin + 4 * DROPOUT_COUNTERS;
    for (; i < end && i < last; i++) {
      const uint64_t at = i - begin;
      const int is_kept = (int64_t)words[at % 4 * DROPOUT_COUNTERS + at / 4] >= args->threshold;
      args->out[i - skipped] = is_kept ? args->x[i - skipped] * args->scale : 0.0f;
    }
  }
}

#undef DROPOUT_COUNTERS

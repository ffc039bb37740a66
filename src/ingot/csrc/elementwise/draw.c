/* draw.c: random numbers from a seed, a run number and an index each: in any order, by any number of tasks. */
#include "kernel.h"
#include "elementwise/philox.h"

#define DRAW_COUNTERS 16 /* that are drawn together, two numbers each */

void K(draw_uniform_f64)(const void *p, int32_t task, int32_t num_tasks) {
  const draw_args *args = p;
  const uint64_t seed = (uint64_t)args->draws[0], run = (uint64_t)args->draws[1];
  const uint64_t begin = (uint64_t)task_begin(args->count, task, num_tasks);
  const uint64_t end = (uint64_t)task_begin(args->count, task + 1, num_tasks);
  for (uint64_t i = begin; i < end;) {
    uint32_t words[4 * DRAW_COUNTERS];
    const uint64_t first = i / 2;
    for (uint32_t c = 0; c < DRAW_COUNTERS; c++) {
      words[c] = (uint32_t)(first + c);
      words[DRAW_COUNTERS + c] = (uint32_t)((first + c) >> 32);
      words[2 * DRAW_COUNTERS + c] = (uint32_t)run;
      words[3 * DRAW_COUNTERS + c] = (uint32_t)args->stream;
    }
    philox(seed, DRAW_COUNTERS, words);
    for (; i < end && i / 2 - first < DRAW_COUNTERS; i++) {
      const uint64_t c = i / 2 - first, word = i % 2 * 2;
      const uint32_t high = words[word * DRAW_COUNTERS + c], low = words[(word + 1) * DRAW_COUNTERS + c];
      args->out[i] = ((high >> 5) * 67108864.0 + (low >> 6)) / 9007199254740992.0;
    }
  }
}

#undef DRAW_COUNTERS

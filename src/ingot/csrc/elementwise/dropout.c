/* dropout.c: dropout of a tensor: in any order, by any number of tasks. */
#include "elementwise/dropout.h"

void K(dropout_f32)(const void *p, int32_t task, int32_t num_tasks) {
  const dropout_args *args = p;
  const dropout_draw draw = {(uint64_t)args->seed, (uint64_t)*args->step, args->stream, args->threshold, args->kept};
  const uint64_t before = args->part ? (uint64_t)*args->part * (uint64_t)args->count : 0;
  const int64_t begin = task_begin(args->count, task, num_tasks), end = task_begin(args->count, task + 1, num_tasks);
  dropout_elements(&draw, before + (uint64_t)begin, end - begin, args->x + begin, args->out + begin);
}

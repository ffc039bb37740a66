/* dropout.c: dropout of a tensor: in any order, by any number of parts. */
#include "elementwise/dropout.h"

void K(dropout_f32)(const void *p, int32_t part, int32_t parts) {
  const dropout_args *args = p;
  const dropout_draw draw = {(uint64_t)args->seed, (uint64_t)*args->step, args->stream, args->threshold, args->kept};
  const uint64_t before = args->part ? (uint64_t)*args->part * (uint64_t)args->count : 0;
  const int64_t begin = part_begin(args->count, part, parts), end = part_begin(args->count, part + 1, parts);
  dropout_elements(&draw, before + (uint64_t)begin, end - begin, args->x + begin, args->out + begin);
}

/* reduce.h: the addresses of the elements of a reduction. */
#ifndef INGOT_REDUCE_H
#define INGOT_REDUCE_H

#include "kernel.h"

static inline int64_t reduce_count(const int64_t *shape, int32_t rank) {
  int64_t count = 1;
  for (int32_t d = 0; d < rank; d++) count *= shape[d];
  return count;
}

static inline int64_t reduce_offset(const int64_t *shape, const int64_t *strides, int32_t rank, int64_t i) {
  int64_t offset = 0;
  for (int32_t d = rank - 1; d >= 0; d--) {
    offset += i % shape[d] * strides[d];
    i /= shape[d];
  }
  return offset;
}

/* Reduced elements [begin, begin + length) are at `offset`, `step` apart. */
typedef struct { int64_t offset; int64_t step; int64_t length; } reduce_run;

static inline reduce_run reduce_run_at(const reduce_args *args, int64_t begin, int64_t end) {
  int32_t rank = args->reduced_rank;
  if (rank == 0) return (reduce_run){0, 0, 1};
  int64_t inner = args->reduced_shape[rank - 1], left = inner - begin % inner;
  return (reduce_run){reduce_offset(args->reduced_shape, args->reduced_strides, rank, begin),
                      args->reduced_strides[rank - 1], left < end - begin ? left : end - begin};
}

#endif

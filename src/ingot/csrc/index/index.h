/* index.h: run-time indices. */
#ifndef INGOT_INDEX_H
#define INGOT_INDEX_H

#include "kernel.h"

/* Element i of indices of 4 or 8 bytes. */
static inline int64_t index_at(const void *indices, int32_t index_bytes, int64_t i) {
  return index_bytes == 8 ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
}

/* The index counted from the front; reports a fault and returns -1 if it is invalid. */
static inline int64_t index_from_front(ingot_fault *fault, int32_t step, int64_t index, int64_t limit) {
  if (index >= 0 && index < limit) return index;
  if (index < 0 && index >= -limit) return index + limit;
  report_fault(fault, 1, step, index, limit);
  return -1;
}

#endif

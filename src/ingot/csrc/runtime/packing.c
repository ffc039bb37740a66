/* packing.c: pack a list of matrices in one call; several threads can work on one list and never wait for each
 * other. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "kernel.h"

INGOT_EXPORT void ingot_pack(const ingot_packing *matrices, int64_t count, int64_t *claimed) {
  for (;;) {
    const int64_t i = __atomic_fetch_add(claimed, 1, __ATOMIC_RELAXED);
    if (i >= count) return;
    const ingot_packing *matrix = matrices + i;
    matrix->kernel(matrix->args, 0, 1);
    for (int j = 0; j < 4; j++)
      if (matrix->page_bytes[j]) madvise(matrix->pages[j], (size_t)matrix->page_bytes[j], MADV_DONTNEED);
  }
}

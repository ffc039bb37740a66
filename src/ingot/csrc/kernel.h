/* kernel.h: the header that every kernel file includes. A file is compiled once per instruction set, with -DISA=<isa>
 * and the flags of that set; K(name) is the kernel's symbol there. Names that a macro pastes together are written as
 * K(name) too, because emitted C holds all sets in one file, where K makes them distinct. */
#ifndef INGOT_KERNEL_H
#define INGOT_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* The library hides all symbols except the entry points that abi.h declares, which are defined with this. */
#define INGOT_EXPORT __attribute__((visibility("default")))

#define INGOT_JOIN2(a, b) a##_##b
#define INGOT_JOIN(a, b) INGOT_JOIN2(a, b)
#define K(name) INGOT_JOIN(name, ISA)

#if defined(__clang__)
#define REGISTER_UNROLL _Pragma("clang loop unroll(full)")
#else
#define REGISTER_UNROLL _Pragma("GCC unroll 16")
#endif

/* Loops over vectors. Those in plain C fit into no registers: loops over them that are unrolled compile for minutes. */
#if defined(ISA_scalar)
#define INGOT_UNROLL
#else
#define INGOT_UNROLL REGISTER_UNROLL
#endif

#define INGOT_TEXT2(text) #text
#define INGOT_TEXT(text) INGOT_TEXT2(text)
/* The vectors of the set; files without kernels, such as table.c, have none. */
#if defined(ISA)
#include INGOT_TEXT(simd/ISA.h)
#endif

/* The first of `count` items that task `task` of `num_tasks` owns; the next task's first item is its end. */
static inline int64_t task_begin(int64_t count, int32_t task, int32_t num_tasks) {
  return count / num_tasks * task + (count % num_tasks < task ? count % num_tasks : task);
}

/* The same in units of `grain` items: boundaries are multiples of it. */
static inline int64_t task_begin_grain(int64_t count, int64_t grain, int32_t task, int32_t num_tasks) {
  int64_t begin = task_begin((count + grain - 1) / grain, task, num_tasks) * grain;
  return begin < count ? begin : count;
}

/* Select one preemption chunk of a task's items [*begin, *end); 0 chunks mean 1. Emitted C has no preemption chunks. */
#if defined(INGOT_LIBRARY)
static inline void chunk_cut(int64_t *begin, int64_t *end, int32_t chunk, int32_t chunks) {
  const int64_t first = *begin, count = *end - first;
  if (chunks < 2) return;
  *begin = first + task_begin(count, chunk, chunks);
  *end = first + task_begin(count, chunk + 1, chunks);
}
#else
#define chunk_cut(begin, end, chunk, chunks)
#endif

/* Report an invalid index from any thread; the first report of a run is retained. The kernel then skips the item. */
static inline void report_fault(ingot_fault *fault, int32_t code, int32_t step, int64_t index, int64_t limit) {
  int32_t none = 0;
  if (__atomic_compare_exchange_n(&fault->code, &none, code, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    fault->step = step;
    fault->index = index;
    fault->limit = limit;
  }
}

#endif

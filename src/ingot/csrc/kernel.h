/* kernel.h: what every kernel file includes. A file is compiled once per instruction set, with -DISA=<isa> and that
 * set's flags; K(name) is the kernel's symbol there. Every name that a macro pastes together is written so: emitted C
 * holds all sets in one file, where K keeps them apart. */
#ifndef INGOT_KERNEL_H
#define INGOT_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "abi.h"

/* The library hides every symbol; the entry points that abi.h declares are defined with this. */
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

#if defined(ISA_avx512)
#include "simd/avx512.h"
#elif defined(ISA_avx2)
#include "simd/avx2.h"
#elif defined(ISA_neon)
#include "simd/neon.h"
#elif defined(ISA_scalar)
#include "simd/scalar.h"
#endif

/* The first of `count` items that part `part` of `parts` owns; it ends where the next part begins. */
static inline int64_t part_begin(int64_t count, int32_t part, int32_t parts) {
  return count / parts * part + (count % parts < part ? count % parts : part);
}

/* The same in units of `grain` items: borders fall on multiples of it. */
static inline int64_t part_begin_grain(int64_t count, int64_t grain, int32_t part, int32_t parts) {
  int64_t begin = part_begin((count + grain - 1) / grain, part, parts) * grain;
  return begin < count ? begin : count;
}

/* Leaves one of its portions of the items [*begin, *end) of a part; 0 portions are one, and emitted C has no others. */
#if defined(INGOT_LIBRARY)
static inline void chunk_cut(int64_t *begin, int64_t *end, int32_t chunk, int32_t chunks) {
  const int64_t first = *begin, count = *end - first;
  if (chunks < 2) return;
  *begin = first + part_begin(count, chunk, chunks);
  *end = first + part_begin(count, chunk + 1, chunks);
}
#else
#define chunk_cut(begin, end, chunk, chunks)
#endif

/* Reports a bad index from any thread; the first report of a run stays. The kernel then reads nothing and goes on. */
static inline void report_fault(ingot_fault *fault, int32_t code, int32_t step, int64_t index, int64_t limit) {
  int32_t none = 0;
  if (__atomic_compare_exchange_n(&fault->code, &none, code, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    fault->step = step;
    fault->index = index;
    fault->limit = limit;
  }
}

#endif

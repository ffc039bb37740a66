/* kernel.h: what every kernel file includes. A file is compiled once per instruction set, with -DISA=<isa> and that
 * set's flags; K(name) is the kernel's symbol there. */
#ifndef INGOT_KERNEL_H
#define INGOT_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "abi.h"

#define INGOT_JOIN2(a, b) a##_##b
#define INGOT_JOIN(a, b) INGOT_JOIN2(a, b)
#define K(name) INGOT_JOIN(name, ISA)

#if defined(ISA_avx512)
#include "simd/avx512.h"
#elif defined(ISA_avx2)
#include "simd/avx2.h"
#elif defined(ISA_scalar)
#include "simd/scalar.h"
#endif

/* The half-open range of `count` items that part `part` of `parts` owns. */
static inline int64_t part_begin(int64_t count, int32_t part, int32_t parts) {
  return count / parts * part + (count % parts < part ? count % parts : part);
}

/* The same in units of `grain` items: borders fall on multiples of it. */
static inline int64_t part_begin_grain(int64_t count, int64_t grain, int32_t part, int32_t parts) {
  int64_t begin = part_begin((count + grain - 1) / grain, part, parts) * grain;
  return begin < count ? begin : count;
}

#endif

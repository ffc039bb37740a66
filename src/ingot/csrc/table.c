/* table.c: the kernel table that Python reads, and the hash that says which declarations were compiled. */
#include "kernel.h"

/* Declarations and rows name the sets that are built for this kind of processor. */
#if defined(__x86_64__)
#define KERNEL(name, args) \
  void name##_scalar(const void *, int32_t, int32_t); \
  void name##_avx2(const void *, int32_t, int32_t); \
  void name##_avx512(const void *, int32_t, int32_t);
#define OTHER_SETS(name) .avx2 = name##_avx2, .avx512 = name##_avx512,
#elif defined(__aarch64__)
#define KERNEL(name, args) \
  void name##_scalar(const void *, int32_t, int32_t); \
  void name##_neon(const void *, int32_t, int32_t);
#define OTHER_SETS(name) .neon = name##_neon,
#else
#define KERNEL(name, args) void name##_scalar(const void *, int32_t, int32_t);
#define OTHER_SETS(name)
#endif
#include "kernels.def"
#undef KERNEL

static const ingot_kernel_row rows[] = {
  #define KERNEL(name, args) {#name, #args, sizeof(args), .scalar = name##_scalar, OTHER_SETS(name)},
  #include "kernels.def"
  #undef KERNEL
  {0},
};

INGOT_EXPORT const ingot_kernel_row *ingot_kernels(int32_t *count) {
  *count = (int32_t)(sizeof rows / sizeof rows[0]) - 1;
  return rows;
}

INGOT_EXPORT const char *ingot_abi_hash(void) { return ABI_HASH; }

INGOT_EXPORT int32_t ingot_has_bf16_dots(void) {
  #if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0;
  #else
  return 0;
  #endif
}

INGOT_EXPORT const char *ingot_best_isa(void) {
  #if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
    return "scalar";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return "avx512";
  return "avx2";
  #elif defined(__aarch64__)
  return "neon";
  #else
  return "scalar";
  #endif
}

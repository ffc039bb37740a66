/* table.c: the kernel table that Python reads, the hash of the compiled declarations, and the CPU features in use. */
#define _GNU_SOURCE
#include "kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* HAS_<isa> is defined for each instruction set that is built. */
#if defined(HAS_scalar)
#define SCALAR_OF(name) .scalar = name##_scalar,
#else
#define SCALAR_OF(name)
#endif
#if defined(HAS_avx2)
#define AVX2_OF(name) .avx2 = name##_avx2,
#else
#define AVX2_OF(name)
#endif
#if defined(HAS_avx2vnni)
#define AVX2VNNI_OF(name) .avx2vnni = name##_avx2vnni,
#else
#define AVX2VNNI_OF(name)
#endif
#if defined(HAS_avx512)
#define AVX512_OF(name) .avx512 = name##_avx512,
#else
#define AVX512_OF(name)
#endif
#if defined(HAS_neon)
#define NEON_OF(name) .neon = name##_neon,
#else
#define NEON_OF(name)
#endif

#define OPTIONAL __attribute__((weak, visibility("hidden"))) /* NULL where no file defines it */

#define KERNEL(name, args)                                                                                             \
  void name##_scalar(const void *, int32_t, int32_t);                                                                  \
  void name##_avx2(const void *, int32_t, int32_t);                                                                    \
  OPTIONAL void name##_avx2vnni(const void *, int32_t, int32_t);                                                       \
  void name##_avx512(const void *, int32_t, int32_t);                                                                  \
  void name##_neon(const void *, int32_t, int32_t);
#include "kernels.def"
#undef KERNEL

static const ingot_kernel_row rows[] = {
  #define KERNEL(name, args)                                                                                           \
    {#name, #args, sizeof(args), SCALAR_OF(name) AVX2_OF(name) AVX2VNNI_OF(name) AVX512_OF(name) NEON_OF(name)},
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

/* amx_tiles.h declares it for kernels. */
int32_t ingot_amx = 0;

/* Linux lets a process use the AMX tile registers after a request, which covers all its threads, also later ones; other
 * systems are not asked. */
static const char *amx_refusal(void) {
  #if defined(__x86_64__) && defined(__linux__)
  const long request = 0x1023, tiles = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
  unsigned a, b, c, d;
  __builtin_cpu_init();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & d >> 25 & 1) || !__builtin_cpu_supports("avx512vnni"))
    return "absent";
  return syscall(SYS_arch_prctl, request, tiles) == 0 ? NULL : "refused";
  #else
  return "absent";
  #endif
}

INGOT_EXPORT const char *ingot_use_amx(int32_t wanted) {
  const char *refusal = wanted ? amx_refusal() : "off";
  ingot_amx = refusal == NULL;
  return refusal ? refusal : "used";
}

INGOT_EXPORT int32_t ingot_has_bf16_tiles(void) {
  #if defined(__x86_64__)
  unsigned a, b, c, d;
  return ingot_amx && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1;
  #else
  return 0;
  #endif
}

INGOT_EXPORT int32_t ingot_has_avx2vnni(void) {
  #if defined(HAS_avx2vnni)
  unsigned a, b, c, d;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
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
  return ingot_has_avx2vnni() ? "avx2vnni" : "avx2";
  #elif defined(__aarch64__)
  return "neon";
  #else
  return "scalar";
  #endif
}

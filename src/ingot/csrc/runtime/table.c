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

/* HAS_<isa> is 1 for each instruction set that is built, and 0 for the others. */
#define BUILT_0(name, isa)
#define BUILT_1(name, isa) .isa = name##_##isa,
#define BUILT(name, isa) INGOT_JOIN(BUILT, HAS_##isa)(name, isa)

#define DECLARED(name, isa) void name##_##isa(const void *, int32_t, int32_t);
#define OPTIONAL __attribute__((weak, visibility("hidden"))) /* NULL where no file defines it */

#define KERNEL(name, args)                                                                                             \
  INGOT_EACH_SET(DECLARED, name)                                                                                       \
  OPTIONAL void name##_avx2vnni(const void *, int32_t, int32_t);
#include "kernels.def"
#undef KERNEL

static const ingot_kernel_row rows[] = {
  #define KERNEL(name, args) {#name, #args, sizeof(args), INGOT_EACH_SET(BUILT, name)},
  #include "kernels.def"
  #undef KERNEL
  {0},
};

#define ONE(name, isa) + 1
_Static_assert(sizeof rows[0] == offsetof(ingot_kernel_row, scalar) + (INGOT_EACH_SET(ONE, )) * sizeof(ingot_kernel),
               "instruction_sets.def: INGOT_EACH_SET lacks the name of a line");

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
  #if HAS_avx2vnni
  unsigned a, b, c, d;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
  #else
  return 0;
  #endif
}

INGOT_EXPORT const char *ingot_best_isa(void) {
  const char *best = NULL;
  #define TEST(name, has) const int has_##name = has; if (has_##name) best = #name;
  #define CPU(feature) && __builtin_cpu_supports(#feature)
  #define ANY(name) TEST(name, 1)
  #if defined(__x86_64__)
  __builtin_cpu_init();
  #define X86_64(name, base, features, flags) TEST(name, has_##base features)
  #define AGAIN(name, base) TEST(name, has_##base && ingot_has_##name())
  #elif defined(__aarch64__)
  #define AARCH64(name, base) TEST(name, has_##base)
  #endif
  #include "instruction_sets.def"
  return best;
}

"""Instruction set dispatch of model.c: the bodies for each set, and the selection for a CPU at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingot.emit.interface import wrapped
from ingot.emit.kernels import AMX, kinds

Sets = Mapping[str, tuple[str, ...]]

# Features implied by the others of a set, and features that some compilers cannot test by name.
_NOT_ASKED = ("f16c", "amx-tile", "amx-int8")
_TILES = """\
/* Linux lets a process use the AMX registers after a request; older compilers do not support them. */
#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ > 10)
#define HAS_AMX 1
#include <cpuid.h>

/* Whether the CPU has AMX for bytes and the process may use it; requested once. */
static int may_use_amx(void) {
  static int answer; /* 0: unknown; 1: no; 2: yes */
  int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
  if (!known) {
    unsigned a, b, c, d;
    long error = 1; /* of arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) */
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & d >> 25 & 1))
      __asm__ volatile("syscall" : "=a"(error) : "a"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    known = error ? 1 : 2;
    __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
  }
  return known == 2;
}
#endif

"""


def inclusions(prefix: str, sets: Sets) -> str:
    """Return the self-inclusions of the file: NEON on AArch64, else plain C, and the feature sets of x86-64."""
    others, previous = "", _Pragmas("", "")
    for isa, features in sets.items():
        if features and isa != AMX:
            others += (previous + _asked(features)).text() + _included(prefix, isa)
            previous = _POP
    others += previous.text()
    if AMX in sets:
        others += _where_known(_asked(sets[AMX]).text() + _included(prefix, AMX) + _POP.text())
    return f"""\
{_TILES if AMX in sets else ""}\
#if defined(__aarch64__)
{_included(prefix, "neon")}#else
{_included(prefix, "scalar")}#endif

#if defined(__x86_64__)
{others}#endif
"""


def _included(prefix: str, isa: str) -> str:
    """Return the self-inclusion of the file for one instruction set; it also defines the sets that it extends."""
    defined = [f"ISA_{each}" for each in kinds(isa)]
    lines = [
        f"#define ISA {isa}",
        *(f"#define {name} 1" for name in defined),
        f'#include "{prefix}.c"',
        *(f"#undef {name}" for name in ("ISA", *defined)),
    ]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True)
class _Pragmas:
    """Pragmas of clang and of GCC for the functions that follow."""

    clang: str
    gcc: str

    def __add__(self, after: _Pragmas) -> _Pragmas:
        return _Pragmas(self.clang + after.clang, self.gcc + after.gcc)

    def text(self) -> str:
        """Return the lines for both compilers, "" for none."""
        return f"#if defined(__clang__)\n{self.clang}#else\n{self.gcc}#endif\n" if self.gcc else ""


_POP = _Pragmas("#pragma clang attribute pop\n", "#pragma GCC pop_options\n")


def _asked(features: Iterable[str]) -> _Pragmas:
    """Return pragmas that compile functions for a CPU with some features, until _POP."""
    target = ",".join(features)
    return _Pragmas(
        f'#pragma clang attribute push(__attribute__((target("{target}"))), \\\n{" " * 29}apply_to = function)\n',
        f'#pragma GCC push_options\n#pragma GCC target("{target}")\n',
    )


def _where_known(text: str) -> str:
    """Guard C of a set that not every system has."""
    return f"#if defined(HAS_AMX)\n{text}#endif\n"


def by_best(declared: str, name: str, sets: Sets, calls: str) -> str:
    """Return statements that call a function's body of the best set.

    declared: the declaration of the pointer `body`. calls: the statements that call it.
    """
    tests = {
        isa: f"if ({_supported(features)})\n    body = {name}_{isa};" for isa, features in sets.items() if features
    }
    best = f"  {tests.pop(AMX)}\n  else\n" if AMX in tests else ""
    others = "\n  else ".join(reversed(tests.values()))
    return f"""\
#if defined(__aarch64__)
  {declared} = {name}_neon;
#else
  {declared} = {name}_scalar;
#endif
#if defined(__x86_64__)
  /* The host may have set another rounding mode or flush-to-zero: no bit of a result may depend on it. */
  const unsigned host_mode = _mm_getcsr();
  _mm_setcsr(_MM_MASK_MASK);
  __builtin_cpu_init();
{_where_known(best) if best else ""}  {others}
#endif
{calls}
#if defined(__x86_64__)
  _mm_setcsr(host_mode);
#endif
"""


def _supported(features: Iterable[str]) -> str:
    """Return a C condition: whether this CPU has some features."""
    tests = [f'__builtin_cpu_supports("{feature}")' for feature in features if feature not in _NOT_ASKED]
    if "amx-tile" in features:
        tests.insert(0, "may_use_amx()")
    return wrapped(tests, " && ", " " * 6).lstrip()

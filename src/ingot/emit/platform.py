"""Target platforms of emitted C: hosted or freestanding, and byte order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

ByteOrder = Literal["little", "big"]

_HOSTED = """\
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
"""
_BUILTINS = "memcpy memset sqrtf sqrt fabsf fabs copysignf copysign floor ceil rint".split()
_FREESTANDING = f"""\
/* Plain C only: bodies for vector instruction sets would need several times the space. */
#undef __x86_64__
#undef __aarch64__

#if defined(__GNUC__) && !defined(__clang__)
/* One body serves several numbers of rows; the compiler does not see that a number is constant within it. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define SMALL_UNROLL _Pragma("GCC unroll 8")
#else
#define SMALL_UNROLL
#endif

/* There is no math.h and no string.h: use built-in functions, and instructions where the CPU has them. */
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA) || defined(__FMA__)
#define fmaf __builtin_fmaf
#else
#define fmaf fma_by_double
#endif
/* Counts and strides. */
typedef ptrdiff_t index_t;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
{"".join(f"#define {name} __builtin_{name}{chr(10)}" for name in _BUILTINS)}"""


@dataclass(frozen=True, slots=True)
class Platform:
    """A target platform. freestanding: no libc except memcpy, memmove and memset, no files, and little code space."""

    byte_order: ByteOrder = "little"
    freestanding: bool = False

    def dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype in the platform's byte order."""
        return dtype.newbyteorder(self.byte_order)

    @property
    def needs(self) -> str:
        """What the emitted C depends on, for its comment."""
        return "memcpy, memmove and memset" if self.freestanding else "only libc and libm"

    def ordered(self, array: np.ndarray) -> np.ndarray:
        """Return an array in row-major order and the platform's byte order."""
        return np.asarray(array, self.dtype(array.dtype), order="C")

    def opening(self, macro: str) -> str:
        """Return the start of model.c: headers, and errors for other machines. macro: the prefix of macros."""
        return f"""\
{_FREESTANDING if self.freestanding else _HOSTED}
#if __BYTE_ORDER__ != __ORDER_{self.byte_order.upper()}_ENDIAN__
#error "the weights are {self.byte_order}-endian: ingot emit-c --byte-order writes others"
#elif __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2
#error "sums of floats would be rounded as wider ones: -fexcess-precision=fast, as in -std=gnu11, or -mfpmath=sse"
#elif {macro}_WEIGHTS_BYTES > PTRDIFF_MAX || {macro}_STATE_BYTES > PTRDIFF_MAX
#error "the model is larger than the memory that this machine has addresses for"
#endif
"""

    def code(self, quoted: str, has_longs: bool) -> str:
        """Return quoted C adapted to the platform.

        On a freestanding platform functions are not inlined for each constant argument, except the product tile, and
        integers of sizes are as wide as addresses, unless has_longs: elements have 64 bits.
        """
        if not self.freestanding:
            return quoted
        quoted = re.sub(r' ?__attribute__\(\(always_inline\)\)(?!.* tile_)|_Pragma\("(clang|GCC) .*"\)', "", quoted)
        return (
            quoted if has_longs else re.sub(r"\bINT64_MAX\b", "PTRDIFF_MAX", re.sub(r"\bint64_t\b", "index_t", quoted))
        )

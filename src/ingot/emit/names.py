"""C names of a model's tensors: the names of the source model as valid identifiers, unique in a program."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from ingot.emit.kernels import defined
from ingot.lower.lowered import Tensor

_NAME_LETTERS = 48

# Keywords of C and C++, lower-case names of headers, gcc's own macros, and the other parameters of a model.
_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor bool break case catch
    char char16_t char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export extern false float for
    friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
    public reflexpr register reinterpret_cast requires restrict return short signed sizeof static static_assert
    static_cast struct switch synchronized template this thread_local throw true try typedef typeid typename typeof
    typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
    assert complex errno far huge i386 imaginary interface linux near small stderr stdin stdout unix
    arena threads weights
    """.split()
)
# Built-in functions of compilers, with a variant for each floating-point type: a variable of such a name is legal but
# causes a warning.
_MATH = """
    acos acosh asin asinh atan atan2 atanh cabs cacos cacosh carg casin casinh catan catanh cbrt ccos ccosh ceil cexp
    cimag clog clog10 conj copysign cos cosh cpow cproj creal csin csinh csqrt ctan ctanh drem erf erfc exp exp10 exp2
    expm1 fabs fdim finite floor fma fmax fmin fmod frexp gamma hypot ilogb isinf isnan j0 j1 jn ldexp lgamma llrint
    llround log log10 log1p log2 logb lrint lround modf nan nans nearbyint nextafter nexttoward pow pow10 remainder
    remquo rint round roundeven scalb scalbln scalbn signbit significand sin sincos sinh sqrt tan tanh tgamma trunc y0
    y1 yn
""".split()
# What else C and its headers have, and what functions of steps call their own variables.
_OTHERS = """
    abort abs alloca bcmp bcopy bzero calloc daylight dcgettext dgettext environ execl execle execlp execv execve execvp
    exit ffs ffsl ffsll fork fpclassify fprintf fputc fputs free fscanf fwrite gettext imaxabs index isalnum isalpha
    isascii isblank iscntrl isdigit isfinite isgraph isgreater isgreaterequal isless islessequal islessgreater islower
    isnormal isprint ispunct isspace isunordered isupper iswalnum iswalpha isxdigit labs llabs malloc memchr memcmp
    memcpy memmove mempcpy memset posix_memalign printf putc putchar puts realloc rindex scanf signgam snprintf sprintf
    sscanf stpcpy stpncpy strcasecmp strcat strchr strcmp strcpy strcspn strdup strfmon strftime strlen strncasecmp
    strncat strncmp strncpy strndup strnlen strpbrk strrchr strspn strstr timezone toascii tolower toupper towlower
    towupper vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf

    size_t ptrdiff_t intptr_t uintptr_t intmax_t uintmax_t max_align_t float_t double_t index_t div_t

    call check_span check_row given inputs iteration kept layer member never num_tasks offsets outputs pool_body
    pool_member run run_call s size_max size_min size_quotient state steps thread
""".split()
_INTEGERS = [
    f"{sign}int{kind}{bits}_t" for sign in ("", "u") for kind in ("", "_least", "_fast") for bits in (8, 16, 32, 64)
]


@functools.cache
def _names_in_use() -> frozenset[str]:
    """Every name that steps may use otherwise, in lower case."""
    math = (name + ending for name in _MATH for ending in ("", "f", "l"))
    return frozenset(name.lower() for name in (*_RESERVED, *math, *_OTHERS, *_INTEGERS, *defined()))


def tensor_names(tensors: Mapping[str, Tensor], ports: Mapping[str, str], other: Iterable[str]) -> dict[str, str]:
    """Return the C name of each tensor, by its id.

    Names stay distinct in upper case, which the names of constants use. ports: the identifiers of inputs and outputs,
    by id; they take precedence. other: names of the program's functions and types, and of run-time sizes.
    """
    used = {*_names_in_use(), *(name.lower() for name in other)}
    called = {id: identifier("tensor", ports.get(id, tensor.name)) for id, tensor in tensors.items()}
    names = {}
    for id in (*ports, *(id for id in tensors if id not in ports)):
        names[id] = next(name for name in numbered(called[id]) if name.lower() not in used)
        used.add(names[id].lower())
    return {id: names[id] for id in tensors}


def identifiers(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a C identifier for each (kind, name), similar to the name, unique and not reserved.

    A name without lower-case letters is converted to lower case, because macros are upper case. A name that does not
    begin with a letter is prefixed with its kind.
    """
    used = set(_RESERVED)
    for kind, name in names:
        unique = next(each for each in numbered(identifier(kind, name)) if each not in used)
        used.add(unique)
        yield unique


def identifier(kind: str, name: str) -> str:
    """Return a C word similar to a model's name: letters, digits and _, some lower case, a letter first."""
    word = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_NAME_LETTERS].strip("_")
    word = word if re.search("[a-z]", word) else word.lower()
    return word if word[:1].isalpha() else f"{kind}_{word}".rstrip("_")


def numbered(word: str) -> Iterator[str]:
    """Yield a word, then numbered variants of it for when it is in use."""
    yield word
    yield from (f"{word}_{number}" for number in itertools.count(2))

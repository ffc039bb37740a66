"""The C of the kernels that a model uses, gathered from csrc/: once per instruction set, in one file, without macros.

Native compiles each kernel file once per instruction set; emitted C has all sets in one file, so every name that a
kernel file defines gets the set as a suffix there. The text is otherwise the same, and so are the numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

ISAS = ("scalar", "avx2", "avx512")
_X86_FEATURES = {"avx2": "avx2,fma", "avx512": "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"}

_DEFINED = (
    re.compile(r"^(?:static |inline |extern |const |unsigned |struct )*[\w]+[ \*]+(\w+)\([^;]*$", re.M),  # functions
    re.compile(r"^(?:static )(?:const )?[\w ]+?\b(\w+)(?:\[[^\]]*\])* =", re.M),  # tables
    re.compile(r"^typedef [\w ]+?\b(\w+);", re.M),
    re.compile(r"^\} (\w+);", re.M),
)
_TYPEDEF = re.compile(r"(?:/\*(?:[^*]|\*(?!/))*\*/\n)?typedef struct \{(?:[^{}])*\} (\w+);")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
_INCLUDE = re.compile(r'^#include "([\w./]+)"\n', re.M)
_KERNEL_USE = re.compile(r"\bK\((\w+)\)")


def source(name: str) -> str:
    """The text of a file of csrc/."""
    return (files("ingot") / "csrc" / name).read_text()


def kernel_files() -> dict[str, str]:
    """Kernel name -> the file that holds its body, as kernels.def says in its comments."""
    where: dict[str, str] = {}
    current = ""
    for line in source("kernels.def").splitlines():
        if match := re.match(r"/\* (\w+\.c) \*/", line):
            current = match[1]
        elif match := re.match(r"KERNEL\((\w+),", line):
            where[match[1]] = current
    return where


def abi_types(names: set[str]) -> str:
    """The typedefs of abi.h that a model needs, with its integer constants."""
    text = source("abi.h")
    constants = [line for line in text.splitlines() if re.match(r"#define INGOT_\w+ \d+", line)]
    types = [m[0] for m in _TYPEDEF.finditer(text) if m[1] in names]
    return "\n".join(constants) + "\n\n" + "\n\n".join(types) + "\n"


@dataclass(slots=True)
class _Gathered:
    """Files in the order they must appear, and K() names that are still without a definition."""

    texts: dict[str, str]

    def add(self, name: str, isa: str) -> None:
        """Adds a file after everything that it includes."""
        if name in self.texts or name == "abi.h" or name == "kernel.h":
            return
        text = source(name)
        for included in _INCLUDE.findall(text):
            self.add(included, isa)
        self.texts[name] = _INCLUDE.sub("", text)


def kernels(names: set[str], isa: str) -> str:
    """The C of the named kernels for one instruction set, ready to stand in one file with the other sets."""
    gathered = _Gathered({})
    gathered.add(f"simd/{isa}.h", isa)
    where = kernel_files()
    wanted = [where[name] for name in sorted(names)]
    defined_in = _definitions(isa)
    while wanted:
        file = wanted.pop(0)
        before = set(gathered.texts)
        gathered.add(file, isa)
        for added in set(gathered.texts) - before:
            for use in _KERNEL_USE.findall(gathered.texts[added]):
                if use in defined_in and defined_in[use] not in gathered.texts:
                    wanted.append(defined_in[use])
    shared = source("kernel.h")
    shared = shared[shared.index("/* The half-open range") : shared.rindex("#endif")]
    body = shared + "\n".join(_without_guard(text) for text in gathered.texts.values())
    return _frame(_suffixed(body, isa), isa, body)


def _definitions(isa: str) -> dict[str, str]:
    """Functions called as K(name)(...) across files -> the file that defines them."""
    found = {}
    names = [entry.name for entry in (files("ingot") / "csrc").iterdir() if entry.name.endswith(".c")]
    for name in sorted(names):
        other_isa = re.fullmatch(r"gemm_micro_(\w+)\.c", name)
        if name in ("table.c", "run.c", "pool.c") or (other_isa and other_isa[1] != isa):
            continue
        text = source(name) + "".join(source(i) for i in _INCLUDE.findall(source(name)) if i.startswith("gemm_tile"))
        for match in re.finditer(r"\bK\((\w+)\)\([^;{}]*\)\s*\{", text):
            found[match[1]] = name
    return found


def _without_guard(text: str) -> str:
    """Drops an include guard and the includes of system headers, which stand once at the top of the emitted file."""
    text = re.sub(r"^#include <[\w./]+>\n", "", text, flags=re.M)
    guard = re.search(r"^#ifndef (\w+)\n#define \1\n", text, re.M)
    if guard is None:
        return text
    return text[: guard.start()] + text[guard.end() : text.rindex("#endif")]


def _suffixed(text: str, isa: str) -> str:
    """Every name that the text defines, and each K(name), with the instruction set behind it."""
    text = re.sub(r"\bK\((\w+(?:##\w+)*)\)", lambda m: f"{m[1]}_{isa}" if "##" not in m[1] else f"{m[1]}_{isa}", text)
    names = {match for pattern in _DEFINED for match in pattern.findall(text)}
    names = {n for n in names if not n.endswith(f"_{isa}") and n not in ("if", "for", "while", "switch", "return", "sizeof")}
    if not names:
        return text
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")\b")
    return pattern.sub(lambda m: f"{m[1]}_{isa}", text)


def _frame(text: str, isa: str, body: str) -> str:
    """Wraps one set in its target attributes; what it defines as macros ends with it."""
    macros = sorted(set(_DEFINE.findall(body)))
    undefine = "".join(f"#undef {name}\n" for name in macros)
    # A family file brings kernels that this model does not call; they are static, and the compiler drops them.
    text = re.sub(r"^void (\w+)\(", r"UNUSED static void \1(", text, flags=re.M)
    text = re.sub(r"^static inline ", "UNUSED static inline ", text, flags=re.M)
    opening, closing = f"#define ISA_{isa} 1\n", f"#undef ISA_{isa}\n"
    if isa not in _X86_FEATURES:
        return f"{opening}{text}\n{undefine}{closing}"
    features = _X86_FEATURES[isa]
    push = (
        "#if defined(__clang__)\n"
        f'#pragma clang attribute push(__attribute__((target("{features}"))), apply_to = function)\n'
        "#else\n#pragma GCC push_options\n"
        f'#pragma GCC target("{features}")\n#endif\n'
    )
    pop = "#if defined(__clang__)\n#pragma clang attribute pop\n#else\n#pragma GCC pop_options\n#endif\n"
    return f"#if defined(__x86_64__)\n{push}{opening}{text}\n{undefine}{closing}{pop}#endif\n"

"""The C of the kernels that a model uses, taken from csrc/: once per instruction set, all sets in one file.

Native compiles each kernel file once per instruction set. Here the same text is cut into top-level pieces, the pieces
that the wanted kernels reach are kept, and every name they define gets the set as a suffix. The arithmetic is not
touched, and so neither are the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

ISAS = ("scalar", "avx2", "avx512")
_X86_FEATURES = {"avx2": "avx2,fma", "avx512": "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"}

_TYPEDEF = re.compile(r"(?:/\*(?:[^*]|\*(?!/))*\*/\n)?typedef struct \{(?:[^{}])*\} (\w+);")
_INCLUDE = re.compile(r'#include "([\w./]+)"')
_WORD = re.compile(r"[A-Za-z_]\w*")
_KERNEL = re.compile(r"\bK\(([\w#]+)\)")
_PASTED = re.compile(r"\b\w+(?:##\w+)+\b")


def source(name: str) -> str:
    """The text of a file of csrc/."""
    return (files("ingot") / "csrc" / name).read_text()


def abi_types(names: set[str]) -> str:
    """The typedefs of abi.h that a model needs, with its integer constants."""
    text = source("abi.h")
    constants = [line for line in text.splitlines() if re.match(r"#define INGOT_\w+ \d+", line)]
    types = [m[0] for m in _TYPEDEF.finditer(text) if m[1] in names]
    return "\n".join(constants) + "\n\n" + "\n\n".join(types) + "\n"


def kernels(names: set[str], isa: str) -> str:
    """The C of the named kernels for one instruction set, ready to stand in one file with the other sets."""
    pieces = _reachable(_pieces(_gathered(names, isa)), names)
    text = "\n".join(piece.text for piece in pieces)
    functions = {name for piece in pieces if not piece.is_macro for name in piece.defines}
    macros = sorted(set(re.findall(r"^\s*#\s*define (\w+)", text, re.M)))
    undefine = "".join(f"#undef {name}\n" for name in macros)
    return _framed(f"{_suffixed(text, functions, isa)}\n\n{undefine}", isa)


# -- gathering --------------------------------------------------------------------------------------------------


def _gathered(names: set[str], isa: str) -> str:
    """The files that hold the kernels and all that they include or call, each once, in an order that compiles."""
    bodies = _bodies(isa)
    seen: set[str] = {"abi.h"}
    texts = [_expanded("kernel.h", isa, seen)]
    wanted = [bodies[name] for name in sorted(names)]
    while wanted:
        file = wanted.pop(0)
        if file not in seen:
            text = _expanded(file, isa, seen)
            wanted += [bodies[use] for use in _KERNEL.findall(text) if use in bodies]
            texts.append(text)
    return "\n".join(texts)


def _bodies(isa: str) -> dict[str, str]:
    """Kernel name -> its file, as kernels.def says in its comments; and functions called across files as K(name)."""
    where: dict[str, str] = {}
    current = ""
    for line in source("kernels.def").splitlines():
        if match := re.match(r"/\* (\w+\.c) \*/", line):
            current = match[1]
        elif match := re.match(r"KERNEL\((\w+),", line):
            where[match[1]] = current
    return where | {"gemm_tile": f"gemm_micro_{isa}.c", "pack_panel": "pack.c"}


def _expanded(name: str, isa: str, seen: set[str]) -> str:
    """A file with its own includes put in place, system includes dropped, and conditions on the set decided."""
    seen.add(name)
    lines: list[str] = []
    for line in _decided(_unguarded(source(name)), isa):
        if match := _INCLUDE.match(line):
            if match[1] not in seen:
                lines.append(_expanded(match[1], isa, seen))
        elif not line.startswith("#include <"):
            lines.append(line)
    return "\n".join(lines)


def _unguarded(text: str) -> str:
    guard = re.search(r"^#ifndef (\w+)\n#define \1\n", text, re.M)
    return text if guard is None else text[guard.end() : text.rindex("#endif")]


def _decided(text: str, isa: str) -> Iterator[str]:
    """The lines of the branches that `defined(ISA_...)` conditions select; other conditions stay."""
    stack: list[list[bool | None]] = []  # for each open #if: [is it ours, has a branch been taken, is this one taken]
    for line in text.split("\n"):
        directive = line.strip()
        if directive.startswith("#if"):
            ours = "ISA_" in directive
            taken = f"ISA_{isa})" in directive
            stack.append([ours, taken, taken])
            if ours:
                continue
        elif stack and stack[-1][0] and directive.startswith(("#elif", "#else")):
            taken = not stack[-1][1] and (directive.startswith("#else") or f"ISA_{isa})" in directive)
            stack[-1][1:] = [stack[-1][1] or taken, taken]
            continue
        elif directive.startswith("#endif") and stack.pop()[0]:
            continue
        if all(taken for ours, _, taken in stack if ours):
            yield line


# -- pieces -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Piece:
    """A top-level definition with the comment before it: the names it defines and the words it uses."""

    text: str
    defines: set[str]
    uses: set[str]
    is_macro: bool


def _pieces(text: str) -> list[_Piece]:
    """Cuts a file into top-level definitions."""
    pieces: list[_Piece] = []
    macros: dict[str, tuple[list[str], str]] = {}
    comment: list[str] = []
    for block in _blocks(text):
        body = "\n".join(block)
        if body.startswith("/*") and body.rstrip().endswith("*/") and body.count("/*") == 1:
            comment = block
            continue
        if body.startswith("#undef"):
            continue
        if match := re.match(r"#define (\w+)(?:\(([^)]*)\))?", body):
            macros[match[1]] = (re.split(r",\s*", match[2] or ""), body)
        pieces.append(_piece("\n".join(comment + block), body, macros))
        comment = []
    return pieces


def _blocks(text: str) -> Iterator[list[str]]:
    """Runs of lines that belong together: a comment, a directive, a #if region, a definition."""
    # Comments and strings blanked, so that only code is counted; line by line with the text.
    code_lines = re.sub(r"/\*.*?\*/|\"(?:[^\"\\]|\\.)*\"", _blanked, text, flags=re.S).split("\n")
    block: list[str] = []
    depth = conditions = 0
    for line, code in zip(text.split("\n"), code_lines, strict=True):
        if not block and not line.strip():
            continue
        block.append(line)
        conditions += line.startswith("#if") - line.startswith("#endif")
        directive = block[0].startswith("#") and not conditions
        if not directive:
            depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
        if conditions or depth or line.endswith("\\"):
            continue
        if directive or line.rstrip().endswith("*/") or code.rstrip().endswith((";", "}", ")")):
            yield block
            block = []


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _piece(text: str, body: str, macros: dict[str, tuple[list[str], str]]) -> _Piece:
    uses = set(_WORD.findall(re.sub(r"/\*.*?\*/", "", body, flags=re.S)))
    if body.startswith("#"):
        return _Piece(text, set(re.findall(r"^\s*#\s*define (\w+)", body, re.M)), uses, True)
    call = re.match(r"(\w+)\((.*)\)$", body.strip(), re.S)
    if call and call[1] in macros:
        return _Piece(text, _made_by(macros, call[1], call[2]), uses, False)
    return _Piece(text, _defined(body), uses, False)


def _made_by(macros: dict[str, tuple[list[str], str]], name: str, arguments: str) -> set[str]:
    """The functions that a call of a macro at top level defines."""
    parameters, body = macros[name]
    given = dict(zip(parameters, re.split(r",\s*", arguments), strict=False))
    if arguments in macros:  # SHAPES(INSTANCE): the names are pasted from numbers, and their users name the table
        return set(_PASTED.findall(macros[arguments][1])) | {arguments}
    made = set()
    for kernel in re.findall(r"\bK\(([\w#]+)\)\(const void", body):
        made.add("".join(given.get(token, token) for token in kernel.split("##")))
    return made


def _defined(body: str) -> set[str]:
    """The names of a function, table or type definition."""
    code = re.sub(r"/\*.*?\*/", "", body, flags=re.S).strip()
    if code.startswith("typedef"):
        return set(re.findall(r"(\w+)(?: __attribute__\(.*\))?;$", code))
    if match := re.match(r"[^({=;]*?\bK\((\w+)\)\(", code):
        return {match[1]}
    head = re.sub(r"__attribute__\(\(\w+\)\)", "", code)
    if match := re.match(r"static const struct \{.*?\} (\w+)\[", head, re.S):
        return {match[1]}
    match = re.match(r"[\w\s\*]*?\b(\w+)\s*(?:\(|\[|=)", head)
    return {match[1]} if match else set()


def _reachable(pieces: list[_Piece], names: set[str]) -> list[_Piece]:
    """The pieces that the kernels need, directly or not, in order."""
    by_name: dict[str, list[int]] = {}
    for index, piece in enumerate(pieces):
        for name in piece.defines:
            by_name.setdefault(name, []).append(index)
    kept: set[int] = set()
    todo = [index for name in names for index in by_name[name]]
    while todo:
        index = todo.pop()
        if index in kept:
            continue
        kept.add(index)
        words = set(pieces[index].uses)
        # What pasted names refer to is found by their beginning: tile_##rows##x##width is every tile_ instance.
        pasted = {p for p in by_name if "##" in p and any(w in p for w in _PASTED.findall(pieces[index].text))}
        todo += [i for word in words | pasted for i in by_name.get(word, [])]
    return [pieces[index] for index in sorted(kept)]


# -- finishing --------------------------------------------------------------------------------------------------


def _suffixed(text: str, names: set[str], isa: str) -> str:
    """Every name that the text defines, each K(name) and each pasted name, with the instruction set behind it."""
    text = _KERNEL.sub(lambda m: f"{m[1]}_{isa}", text)
    done = f"_{isa}"
    text = _PASTED.sub(lambda m: m[0] if m[0].endswith(done) else f"{m[0]}##_{isa}", text)
    plain = sorted((n for n in names if "##" not in n), key=len, reverse=True)
    if not plain:
        return text
    return re.sub(r"\b(" + "|".join(plain) + r")\b(?!##)", lambda m: f"{m[1]}_{isa}", text)


def _framed(text: str, isa: str) -> str:
    """Kernels become static, and stand under the target attributes of their set."""
    text = re.sub(r"^(\s*)void (\w+)\(", r"\1static void \2(", text, flags=re.M)
    if isa not in _X86_FEATURES:
        return text
    features = _X86_FEATURES[isa]
    return f"""\
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("{features}"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("{features}")
#endif

{text}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
"""

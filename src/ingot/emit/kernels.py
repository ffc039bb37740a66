"""The C of the kernels that a model uses, taken from csrc/ as it stands.

Native compiles each kernel file once per instruction set; model.c includes itself once per set, so one text serves all
of them there too. csrc/ is cut into top-level definitions, and those that the wanted kernels reach are kept. Every
name that they define gets the set behind it, by macros, because one file then holds all sets. What a definition may
look like is written down in docs/emit-c.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ingot import abi

ISAS = ("scalar", "avx2", "avx512")  # that emitted C has bodies for
# Kernels over instructions that not every CPU of a set has. A target that rounds no rows has no use for them.
NATIVE_ONLY = frozenset(
    f"{kernel}_bf16{form}"
    for kernel, forms in (("gemm", ("_packed", "_gated")), ("gemv", ("_packed",)), ("attention", ("", "_online")),
                          ("conv2d", ("_packed", "_planes", "_winograd")),
                          *((op, ("_packed",)) for op in ("lstm", "gru", "rnn")))
    for form in forms
) | frozenset(
    kernel for kernel in abi.kernels() if kernel.startswith(("gemm_", "expert_matmul_")) and "_f32_" not in kernel
) | {"round_rows_i8", "round_rows_i24", "round_image_u8"}  # fmt: skip

_COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/"
# A comment, and below it a conditional region or a definition: its lines after the first are indented, close a brace,
# or are blank before such a line.
_DEFINITION = re.compile(rf"((?:{_COMMENT}\n)?)(#if(?s:.*?)\n#endif|[^\s/}}].*(?:\n+[ }}].*)*)", re.MULTILINE)
_CONDITIONAL_INCLUDE = re.compile(r'defined\(ISA_(\w+)\)\n#include "([\w./]+)"')
_ATTRIBUTE = r" ?__attribute__\(\((?:[^()]|\([^()]*\))*\)\)"
# The register tile's macros differ per set and its bodies follow them, each as one piece, in this order.
_TILE_MACROS = tuple(f"gemm_micro_{isa}.c" for isa in ISAS)
_TILE_BODIES = ("gemm_tile.h", "gemm_tile_widened.h")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A top-level definition with the comment above it.

    names: what it defines; plain: those of them that are not macros and not written K(name). uses: every word in it.
    isa: the set that it is for, "" for all. title: the comment at the head of its file.
    """

    text: str
    names: frozenset[str]
    plain: tuple[str, ...]
    uses: frozenset[str]
    isa: str
    title: str


@dataclass(frozen=True, slots=True)
class Source:
    """What a model needs of csrc/. types: constants and argument structs of abi.h. kernels: everything else, to be
    compiled with ISA and ISA_<isa> defined, once per set."""

    types: str
    kernels: str


def kernel_source(kernels: Iterable[str], types: Iterable[str], constants: Iterable[str] | None = None) -> Source:
    """The C behind kernels and argument structs, named as in kernels.def and abi.h.

    Of tables and switches with a line for each constant, [NAME] = ... or case NAME: ..., those of `constants` are kept;
    None: all.
    """
    declarations, pieces = _csrc()
    if constants is not None:
        pieces = tuple(_with_rows(piece, {*constants}) for piece in pieces)
    kept = _reached((*declarations, *pieces), {*kernels, *types, "K"})
    mine = [piece for piece in pieces if piece in kept]
    own = [piece for piece in mine if piece.names <= {"INGOT_JOIN2", "INGOT_JOIN", "K"}]
    rest = [piece for piece in mine if piece not in own]
    plain = dict.fromkeys(name for piece in rest for name in piece.plain)
    varying = dict.fromkeys(
        name for p in rest if p.isa or "ISA_" in p.text for name in re.findall(r"#define (\w+)", p.text)
    )
    sections = (
        _joined(own) + "".join(f"#define {name} K({name})\n" for name in plain),
        _static(_joined(rest)),
        "".join(f"#undef {name} /* each set has its own */\n" for name in varying),
    )
    return Source(_joined([piece for piece in declarations if piece in kept]), "\n".join(filter(None, sections)))


@functools.cache
def _csrc() -> tuple[tuple[_Piece, ...], tuple[_Piece, ...]]:
    """All definitions of abi.h, and all of the kernel files in an order that compiles."""
    sources = sorted(f.name for f in abi.CSRC.glob("*.c"))
    sources = [name for name in sources if not name.startswith("gemm_micro_") and "K(" in abi.source(name)]
    macros: dict[str, str] = {}
    declarations = tuple(_cut("abi.h", "", set(), macros))
    seen = {"abi.h", *_TILE_BODIES}
    pieces: list[_Piece] = []
    for isa, name in zip(ISAS, _TILE_MACROS, strict=True):
        pieces += _cut(name, isa, seen, macros)
    pieces += [_whole(name, macros) for name in _TILE_BODIES]
    for name in sources:
        pieces += _cut(name, "", seen, macros)
    return declarations, tuple(pieces)


def _cut(file: str, isa: str, seen: set[str], macros: dict[str, str]) -> Iterator[_Piece]:
    """The definitions of a file in order, those of the files that it includes before them, each file once."""
    if file in seen:
        return
    seen.add(file)
    title, text = opened(file)
    for comment, code in definitions(text):
        if included := re.match(r'#include "([\w./]+)"', code):
            yield from _cut(included[1], "", seen, macros)
        elif branches := dict(_CONDITIONAL_INCLUDE.findall(code)):
            for branch in (isa for isa in ISAS if isa in branches):
                yield from _cut(branches[branch], branch, seen, macros)
        elif code.startswith("enum {"):  # each constant on its own, so that a model has those that it uses
            for name in re.findall(r"^  (\w+)", code, re.MULTILINE):
                define = f"#define {name} {abi.constant(name)}"
                yield _Piece(define, frozenset({name}), (), frozenset({name}), isa, title)
        elif not code.startswith(("#include", "#undef")):
            if macro := re.match(r"#define (\w+)\(", code):
                macros[macro[1]] = code
            names, plain = defined_names(code, macros)
            yield _Piece(comment + code, names, plain, _words(code), isa, title)


def _whole(file: str, macros: dict[str, str]) -> _Piece:
    """A file as one piece. Macros that it undefines are its own, no names that others could mean."""
    pieces = list(_cut(file, "", set(), macros))
    title, text = opened(file)
    names = frozenset().union(*(piece.names for piece in pieces)) - {*re.findall(r"^#undef (\w+)", text, re.MULTILINE)}
    return _Piece(text.strip(), names, tuple(n for piece in pieces for n in piece.plain), _words(text), "", title)


def opened(file: str) -> tuple[str, str]:
    """The comment at a file's head, and the text below it inside the include guard."""
    match = re.match(rf"({_COMMENT})\n((?s:.*))", abi.source(file))
    assert match, f"{file}: no comment at its head"
    title, text = match.groups()
    if guard := re.match(r"#ifndef (\w+)\n#define \1\n", text):
        text = text[guard.end() : text.rindex("#endif")]
    return title if file not in ("kernel.h", "abi.h") else "", text


def definitions(text: str) -> Iterator[tuple[str, str]]:
    """The comment above each top-level definition, or "", and its code; between them a text has blank lines alone."""
    end = 0
    for match in _DEFINITION.finditer(text):
        assert not text[end : match.start()].strip(), f"csrc: in no definition:\n{text[end : match.start()]}"
        yield match[1], match[2]
        end = match.end()
    assert not text[end:].strip(), f"csrc: in no definition:\n{text[end:]}"


def _words(code: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", re.sub(_COMMENT, "", code)))


def defined_names(code: str, macros: Mapping[str, str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names that a definition gives, and which of them are plain. macros: the code of those with parameters."""
    code = re.sub(_ATTRIBUTE, "", re.sub(rf" *{_COMMENT}", "", code))
    defined = re.findall(r"^#define (\w+)", code, re.MULTILINE)
    if code.startswith("#"):
        plain = re.findall(r"^typedef .*?(\w+);$|^static inline [\w *]*?(\w+)\(", code, re.MULTILINE)
        found = dict.fromkeys(name for names in plain for name in names if name)
        return frozenset([*defined, *found]), tuple(found)
    call = re.match(r"(\w+)\((\w+)", code)
    if call and call[1] in macros:  # a macro that makes functions takes their name first
        parameter, body = re.match(r"#define \w+\((\w+)((?s:.*))", macros[call[1]]).groups()  # type: ignore[union-attr]
        made = re.findall(rf"\bK\({parameter}(?:##(\w+))?\)\(", body)
        return frozenset(call[2] + ending for ending in made), ()
    if kernel := re.match(r"[\w ]*\bK\((\w+)\)\(", code):
        return frozenset({kernel[1]}), ()
    last = re.search(r"(\w+)(?:\)\(.*\))?;$", code) if code.startswith("typedef") else None
    last = last or re.search(r"^\} (\w+)(?:\[| =|;)", code, re.MULTILINE)
    match = last or re.match(r"[\w\s*]*?\b(\w+)\s*[(\[=]", code)
    assert match, f"csrc: a definition without a name:\n{code}"
    return frozenset({match[1]}), (match[1],)


def _with_rows(piece: _Piece, constants: set[str]) -> _Piece:
    """A table or switch with the lines of these constants alone; any other piece as it is."""
    line = re.compile(r"^ +(?:\[|case )(INGOT_\w+)(?:\] = |: ).*\n", re.MULTILINE)
    text = line.sub(lambda m: m[0] if m[1] in constants else "", piece.text)
    return piece if text == piece.text else replace(piece, text=text, uses=_words(text))


def _reached(pieces: tuple[_Piece, ...], wanted: set[str]) -> set[_Piece]:
    """The pieces that define the wanted names, and those that these use, directly or not."""
    by_name: dict[str, list[_Piece]] = {}
    for piece in pieces:
        for name in piece.names:
            by_name.setdefault(name, []).append(piece)
    kept: set[_Piece] = set()
    todo = [piece for name in wanted for piece in by_name[name]]
    while todo:
        piece = todo.pop()
        if piece not in kept:
            kept.add(piece)
            todo += [other for word in piece.uses for other in by_name.get(word, [])]
    return kept


def _joined(pieces: list[_Piece]) -> str:
    """The pieces in order, their files' titles above them, one-liners together, sets under conditions."""
    text = title = isa = before = ""
    for piece in pieces:
        together = before.split(" ")[0] == piece.text.split(" ")[0] and "\n" not in before + piece.text
        if piece.isa != isa:
            text += f"\n{'#endif' if not piece.isa else '#elif' if isa else '#if'}"
            text += f" defined(ISA_{piece.isa})\n" if piece.isa else "\n"
        if piece.title != title and piece.title:
            text += f"\n{piece.title}\n"
        if not together or (piece.isa, piece.title) != (isa, title):
            text += "\n"
        text += f"{piece.text}\n"
        isa, title, before = piece.isa, piece.title, piece.text
    return text.lstrip("\n") + ("\n#endif\n" if isa else "")


def _static(text: str) -> str:
    """The text with its kernels static: csrc/ exports them, here they are called below. Alignment stays."""

    def inlined(match: re.Match[str]) -> str:
        return match[1] + "static inline " + match[2].replace("\n", "\n" + " " * len("static inline "))

    return re.sub(r"^( *)(void K\([^;{]*[;{])(?: {14}(?= *\\$))?", inlined, text, flags=re.MULTILINE)

"""Extract the C of the kernels that a model uses from csrc/, unchanged.

The library compiles each kernel file once per instruction set; model.c includes itself once per set, so one text serves
all sets there too. csrc/ is split into top-level definitions, and those that the wanted kernels reach are copied.
Macros append the set to every name that they define, because one file then has all sets. docs/emit-c.md specifies the
form of a definition.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ingot.errors import UnsupportedError
from ingot.passes.precision import Precision
from ingot.support import abi

AMX = "amx"
_SETS = abi.instruction_sets()
# The sets of emitted C, those of every CPU first, and the features that a CPU must have for each.
FEATURES = {
    name: each.features
    for name, each in sorted(_SETS.items(), key=lambda row: bool(row[1].features))
    if each.kind != "AGAIN"
}
# Sets that a model has only if a kernel has a body for them: native selects their bodies within the set of their base.
_BEYOND = {name for name, each in _SETS.items() if each.kind == "WITHIN"}

_COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/"
# A comment, followed by a conditional region or a definition, whose lines after the first are indented, close a brace,
# or are blank before such a line.
_DEFINITION = re.compile(rf"((?:{_COMMENT}\n)?)(#if(?s:.*?)\n#endif|[^\s/}}].*(?:\n+[ }}].*)*)", re.MULTILINE)
_CONDITIONAL_INCLUDE = re.compile(r'(defined\(ISA_(\w+)\))\n#include "([\w./]+)"')
_ATTRIBUTE = r" ?__attribute__\(\((?:[^()]|\([^()]*\))*\)\)"
# Files that define macros, and files that are compiled separately, which include bodies (.inc) that the macros
# parametrize. The bodies of a unit are read once for all its files, independent of other units. Units by name: their
# files, and the sets that the definitions of each are for.
_UNITS = {
    "floats": {f"gemm/gemm_micro_{isa}.c": f"defined(ISA_{isa})" for isa in FEATURES if isa not in _BEYOND},
    "pairs": {"gemm/gemm_micro_avx512bf16.c": "defined(ISA_avx512)", "gemm/gemm_micro_dots.c": "!defined(ISA_avx512)"},
    "quant": {
        "quant/registers_vnni.h": "defined(ISA_avx512vnni)",
        "quant/registers_widened.h": "!defined(ISA_avx512vnni)",
        "quant/gemm_micro_quant_avx512vnni.c": "",
        "quant/gemm_micro_blocks_avx512vnni.c": "",
        "quant/gemm_micro_opened_avx512vnni.c": "",
        "quant/gemm_micro_amx_avx512vnni.c": "",
    },
}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A top-level definition.

    comment: above it. names: that it defines; plain: those that are no macros and not written K(name). uses: every
    word in it. condition: of the sets that it is for, "" for all. title: the comment at the head of its file. unit: its
    unit, "" for none. small: whether it is for machines with little code space, None for all.
    """

    comment: str
    code: str
    names: frozenset[str]
    plain: tuple[str, ...]
    uses: frozenset[str]
    condition: str
    title: str
    unit: str
    small: bool | None = None

    @property
    def macros(self) -> list[str]:
        """The macros that it defines."""
        return re.findall(r"^ *#define (\w+)", self.code, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """The C of csrc/ that a model needs.

    types: constants and argument structs of abi.h, and other definitions that are the same in every set. kernels: the
    rest, compiled once per set with ISA and ISA_<isa> defined. features: the sets, and the CPU features of each.
    """

    types: str
    kernels: str
    features: dict[str, tuple[str, ...]]


def check_precision(precision: Precision) -> None:
    """Raise UnsupportedError for split sums, which emitted C does not have."""
    if precision.split_sums:
        raise UnsupportedError(f"option precision: C has no sums of AMX, got {precision.name!r}, expected bf16")


def kernel_source(
    kernels: Iterable[str], types: Iterable[str], constants: Iterable[str] | None = None, *, small: bool = False
) -> Source:
    """Return the C of kernels and argument structs, named as in kernels.def and abi.h.

    small: for little code space: plain C only. Tables and switches with a line for each constant, [NAME] = ... or
    case NAME: ..., have the lines of `constants` only; None: all.
    """
    declarations, pieces = _csrc()
    pieces = tuple(piece for piece in pieces if piece.small is None or piece.small == small)
    if small:
        pieces = tuple(piece for piece in pieces if not re.match(r"defined\(ISA_(?!scalar)", piece.condition))
    kernels = {*kernels}
    wanted = {*kernels, *types, "K"}
    if constants is not None:
        bare = _reached((*declarations, *(_with_rows(piece, {*constants}) for piece in pieces)), wanted)
        named = {*constants}.union(*(piece.uses for piece in bare))  # definitions that a kernel uses name some, too
        pieces = tuple(_with_rows(piece, named) for piece in pieces)
    kept = _reached((*declarations, *pieces), wanted)
    mine = [piece for piece in pieces if piece in kept]
    own = [piece for piece in mine if piece.names <= {"INGOT_JOIN2", "INGOT_JOIN", "K"}]
    others = [piece for piece in mine if piece not in own]
    again = _shared(others)
    alike = _alike(others, again)
    first = [piece for piece in mine if piece in alike]
    titles = {piece.title for piece in first}
    rest = [replace(p, title="" if p.title in titles else p.title) for p in others if p not in alike]
    plain = _several((p, (name for name in p.plain if not (p.unit and name in again))) for p in rest)
    varying = _several(
        (p, (name for name in p.macros if not (p.unit and name in again)))
        for p in rest
        if p.condition or "ISA_" in p.code or again & {*p.macros}
    )
    sections = (
        _joined(own) + "".join(f"#define {name} K({name})\n" for name in plain),
        *(_static(_unit(list(group), again, plain)) for _, group in groupby(rest, key=lambda piece: piece.unit)),
        "".join(f"#undef {name} /* each set defines it */\n" for name in varying),
    )
    types_text = _joined([*(_about(piece, kernels) for piece in declarations if piece in kept), *first])
    return Source(types_text, "\n".join(filter(None, sections)), _features(mine))


def kernel_text(kernel: str) -> str:
    """Return the C of a kernel: its definition, then what it uses of its own file, in reading order."""
    _, pieces = _csrc()
    pieces = tuple(piece for piece in pieces if not piece.small)
    own = [piece for piece in pieces if kernel in piece.names]
    titles = {piece.title for piece in own}
    near = tuple(piece for piece in pieces if piece.title in titles)
    used = _reached(near, {kernel}).difference(own)
    return _joined([*own, *(piece for piece in near if piece in used)])


def _several(pieces: Iterable[tuple[_Piece, Iterable[str]]]) -> dict[str, int]:
    """Return the names that several sets define, with their number, from pieces and some of their names."""
    sets: Counter[str] = Counter()
    for piece, names in pieces:
        isa = re.fullmatch(r"defined\(ISA_(\w+)\)", piece.condition)
        for name in dict.fromkeys(names):
            sets[name] += sum(isa[1] in kinds(each) for each in FEATURES) if isa else 2
    return {name: count for name, count in sets.items() if count > 1}


def _alike(pieces: list[_Piece], again: set[str]) -> set[_Piece]:
    """Return the pieces that are the same in every set: neither they nor pieces that they use name a set."""
    own = re.compile(r"\bISA_|\bK\(")
    alike = {p for p in pieces if not (p.unit or p.condition or p.names & again or own.search(p.code))}
    while True:
        varying = {name for piece in pieces if piece not in alike for name in piece.names}
        found = {piece for piece in alike if (piece.uses | piece.names) & varying}
        if not found:
            return alike
        alike -= found


def _about(piece: _Piece, kernels: Iterable[str]) -> _Piece:
    """Remove the paragraphs about other kernels, which begin with `name:` or `_ending:`, from a struct's comment."""
    paragraphs = re.split(r"\n(?= \* [\w, ]+: )", piece.comment.partition("*/")[0])
    for text in paragraphs[1:]:
        names = re.findall(r"\b[a-z]\w*_\w+|\b_\w+", text.partition(":")[0])
        if names and not any(name in kernel for name in names for kernel in kernels):
            paragraphs.remove(text)
    return replace(piece, comment="\n".join(paragraphs).rstrip() + " */\n") if piece.comment else piece


def kinds(isa: str) -> tuple[str, ...]:
    """Return a set, and the sets whose bodies it uses where it has none of its own."""
    return (isa, *kinds(_SETS[isa].base)) if isa in _BEYOND else (isa,)


def _features(pieces: list[_Piece]) -> dict[str, tuple[str, ...]]:
    """Return the sets of a model with some pieces.

    With dot products of bf16 pairs, the AVX-512 sets require AVX512_BF16; other CPUs use sets that give the same bits.
    """
    pairs = ("avx512bf16",) if any(piece.unit == "pairs" for piece in pieces) else ()
    asked = {piece.condition for piece in pieces}
    return {
        isa: (*pairs, *features) if "avx512" in kinds(isa) else features
        for isa, features in FEATURES.items()
        if isa not in _BEYOND or f"defined(ISA_{isa})" in asked
    }


def _shared(pieces: list[_Piece]) -> set[str]:
    """Return the names that have different definitions in a unit and elsewhere."""
    scopes: dict[str, set[str]] = {}
    for piece in pieces:
        for name in (*piece.plain, *piece.macros):
            scopes.setdefault(name, set()).add(piece.unit)
    return {name for name, units in scopes.items() if len(units) > 1}


def _unit(pieces: list[_Piece], again: set[str], everybody: Container[str]) -> str:
    """Return the text of pieces of one unit. again: names with other definitions elsewhere; everybody: names that are
    defined outside of units."""
    unit = pieces[0].unit
    if not unit:
        return _joined(pieces)
    plain = dict.fromkeys(name for piece in pieces for name in piece.plain if name in again)
    macros = dict.fromkeys(name for piece in pieces for name in piece.macros if name in again)
    sections = (
        "".join(
            (f"#undef {name}\n" if name in everybody else "") + f"#define {name} K({unit}_{name})\n" for name in plain
        ),
        _joined(pieces),
        "".join(
            f"#undef {name}\n" + (f"#define {name} K({name})\n" if name in everybody else "")
            for name in (*plain, *macros)
        ),
    )
    return "\n".join(filter(None, sections))


@functools.cache
def _csrc() -> tuple[tuple[_Piece, ...], tuple[_Piece, ...]]:
    """Return all definitions of abi.h, and all those of the kernel files in an order that compiles."""
    paths = sorted(abi.CSRC.rglob("*.c"), key=lambda path: path.name)
    names = [path.relative_to(abi.CSRC).as_posix() for path in paths if not path.name.startswith("gemm_micro_")]
    sources = [name for name in names if "K(" in abi.source(name)]
    macros: dict[str, str] = {}
    declarations = tuple(_cut("abi.h", "", set(), macros))
    seen = {"abi.h"}
    pieces: list[_Piece] = []
    for unit, files in _UNITS.items():
        bodies: dict[str, str] = {}
        own: list[_Piece] = []
        for file, condition in files.items():
            for piece in _cut(file, condition, seen, macros, unit, bodies):
                (own if piece.unit else pieces).append(piece)
        read: set[str] = set()
        for body, branch in bodies.items():
            own += _cut(body, branch, read, macros, unit)
        pieces += own
    for name in sources:
        pieces += _cut(name, "", seen, macros)
    return declarations, tuple(pieces)


def _cut(
    file: str,
    condition: str,
    seen: set[str],
    macros: dict[str, str],
    unit: str = "",
    bodies: dict[str, str] | None = None,
) -> Iterator[_Piece]:
    """Yield the definitions of a file in order, after those of the files that it includes, each file once.

    bodies: receives the .inc files that a file of a unit includes, with the condition of each; they are not yielded
    here. Other files that it includes do not belong to the unit.
    """
    if file in seen:
        return
    seen.add(file)
    title, text = opened(file)
    for comment, code, small in _resolved(text):
        if included := re.match(r'#include "([\w./]+)"', code):
            if bodies is None:
                yield from _cut(included[1], "", seen, macros, unit)
            elif included[1].endswith(".inc"):
                bodies[included[1]] = ""
            else:
                yield from _cut(included[1], "", seen, macros)
        elif "#include INGOT_TEXT(simd/ISA.h)" in code:
            for isa in FEATURES:
                if isa not in _BEYOND:
                    yield from _cut(f"simd/{isa}.h", f"defined(ISA_{isa})", seen, macros)
        elif branches := _CONDITIONAL_INCLUDE.findall(code):
            for branch, isa, header in sorted(branches, key=lambda found: [*FEATURES, found[1]].index(found[1])):
                if isa in FEATURES and bodies is not None and header.endswith(".inc"):
                    bodies[header] = branch
                elif isa in FEATURES:
                    yield from _cut(header, branch, seen, macros)
        elif code.startswith("enum {"):  # one piece for each constant, so that a model has only those that it uses
            for name in re.findall(r"^  (\w+)", code, re.MULTILINE):
                define = f"#define {name} {abi.constant(name)}"
                yield _Piece("", define, frozenset({name}), (), frozenset({name}), condition, title, unit)
        elif not code.startswith(("#include", "#undef")):
            if macro := re.match(r"#define (\w+)\(", code):
                macros[macro[1]] = code
            names, plain = defined_names(code, macros)
            call = re.match(r"(\w+)\((\w+)", code) if condition else None
            if call and call[1] in macros:  # a body that only some sets have belongs to the name
                names |= {call[2]}
            yield _Piece(comment, code, names, plain, _words(code), condition, title, unit, small)


def _resolved(text: str) -> Iterator[tuple[str, str, bool | None]]:
    """Yield the definitions of a text, and whether each is for little code space, or None for all.

    Of regions that differ in the library, the other branch is used.
    """
    for comment, code in definitions(text):
        first, _, second = code.rpartition("#endif")[0].partition("\n#else\n")
        if code.startswith("#if defined(INGOT_LIBRARY)"):
            yield from ((*each, None) for each in definitions(second))
        elif code.startswith("#if defined(INGOT_SMALL)\n"):
            yield from ((*each, True) for each in definitions(first.partition("\n")[2]))
            yield from ((*each, False) for each in definitions(second))
        elif second and re.match(r"#if defined\(ISA_(?!scalar)\w+\)\n(?!(?s:.*)\n#elif)", code):
            yield comment, code, False
            yield from ((each[0] or comment, each[1], True) for each in definitions(second))
        else:
            yield comment, code, None


def defined() -> frozenset[str]:
    """Return every name that csrc/ defines."""
    declarations, pieces = _csrc()
    return frozenset(name for piece in (*declarations, *pieces) for name in (*piece.names, *piece.macros))


def whole_source(file: str) -> str:
    """Return a whole file without kernels, to be compiled once; its exported functions become static."""
    title, text = opened(file)
    kept = [comment + code for comment, code in definitions(text) if not code.startswith("#include")]
    return "\n\n".join([title, *kept]).replace("INGOT_EXPORT ", "static ") + "\n"


def opened(file: str) -> tuple[str, str]:
    """Return the comment at a file's head, and the text after it, inside the include guard."""
    match = re.match(rf"({_COMMENT})\n((?s:.*))", abi.source(file))
    assert match, f"{file}: no comment at its head"
    title, text = match.groups()
    if guard := re.match(r"#ifndef (\w+)\n#define \1\n", text):
        text = text[guard.end() : text.rindex("#endif")]
    return title if file not in ("kernel.h", "abi.h") else "", text


def definitions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the comment above each top-level definition, or "", and its code; only blank lines are between them."""
    end = 0
    for match in _DEFINITION.finditer(text):
        assert not text[end : match.start()].strip(), f"csrc: in no definition:\n{text[end : match.start()]}"
        yield match[1], match[2]
        end = match.end()
    assert not text[end:].strip(), f"csrc: in no definition:\n{text[end:]}"


def _words(code: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", re.sub(_COMMENT, "", code)))


def defined_names(code: str, macros: Mapping[str, str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names that a definition defines, and the plain ones. macros: the code of function-like macros."""
    code = re.sub(_ATTRIBUTE, "", re.sub(rf" *{_COMMENT}", "", code))
    defined = re.findall(r"^#define (\w+)", code, re.MULTILINE)
    if code.startswith("#"):
        plain = re.findall(r"^typedef .*?(\w+);$|^static inline [\w *]*?(\w+)\(", code, re.MULTILINE)
        found = dict.fromkeys(name for names in plain for name in names if name)
        return frozenset([*defined, *found]), tuple(found)
    call = re.match(r"(\w+)\((\w+)", code)
    if call and call[1] in macros:  # the first argument of a macro that defines functions is their name
        parameter, body = re.match(r"#define \w+\((\w+)((?s:.*))", macros[call[1]]).groups()  # type: ignore[union-attr]
        called = re.findall(rf"\bK\({parameter}(?:##(\w+))?\)\(", body)
        return frozenset(call[2] + ending for ending in called), ()
    if kernel := re.match(r"[\w ]*\bK\((\w+)\)\(", code):
        return frozenset({kernel[1]}), ()
    last = re.search(r"(\w+)(?:\)\(.*\))?;$", code) if code.startswith("typedef") else None
    last = last or re.search(r"^\} (\w+)(?:\[| =|;)", code, re.MULTILINE)
    match = last or re.match(r"[\w\s*]*?\b(\w+)\s*[(\[=]", code)
    assert match, f"csrc: a definition without a name:\n{code}"
    return frozenset({match[1]}), (match[1],)


def _with_rows(piece: _Piece, constants: set[str]) -> _Piece:
    """Return a table or switch with only the lines of these constants, without empty switches; others unchanged."""
    line = re.compile(r"^ +(?:\[|case )(INGOT_\w+)(?:\] = |: ).*\n", re.MULTILINE)
    text = line.sub(lambda m: m[0] if m[1] in constants else "", piece.code)
    text = re.sub(r"^ +switch \(.*\) \{\n +\}\n", "", text, flags=re.MULTILINE)
    if text == piece.code:
        return piece
    head, brace, body = text.partition(" {\n")
    parameters = re.findall(r"(\w+)[,)]", re.sub(rf"{_ATTRIBUTE}|\bK\(\w+\)", "", head)) if head.endswith(")") else []
    unused = [name for name in parameters if not re.search(rf"\b{name}\b", body)]  # now unused, which compilers warn of
    text = head + brace + "".join(f"  (void){name};\n" for name in unused) + body
    return replace(piece, code=text, uses=_words(text))


def _reached(pieces: tuple[_Piece, ...], wanted: set[str]) -> set[_Piece]:
    """Return the pieces that define the wanted names, and those that these use, directly or not.

    A word refers to the definition in its unit, or else to one outside of units; kernels and tiles of units are both.
    """
    by_name: dict[tuple[str, str], list[_Piece]] = {}
    for piece in pieces:
        own = {*piece.plain, *piece.macros}
        for name in piece.names:
            for unit in {piece.unit} if name in own else {piece.unit, ""}:
                by_name.setdefault((unit, name), []).append(piece)
    kept: set[_Piece] = set()
    todo = [piece for name in wanted for piece in by_name["", name]]
    while todo:
        piece = todo.pop()
        if piece not in kept:
            kept.add(piece)
            for word in piece.uses:
                todo += by_name.get((piece.unit, word)) or by_name.get(("", word), [])
    return kept


def _joined(pieces: list[_Piece]) -> str:
    """Join the pieces in order, with the titles of their files, one-liners grouped, and conditions of the sets."""
    text = title = condition = before = ""
    for piece in pieces:
        code = piece.comment + piece.code
        kind = code.split(" ")[0]
        together = before.split(" ")[0] == kind and (kind == "#define" or "\n" not in before + code)
        if piece.condition != condition:
            text += f"\n{'#endif' if not piece.condition else '#elif' if condition else '#if'}"
            text += f" {piece.condition}\n" if piece.condition else "\n"
        if piece.title != title and piece.title:
            text += f"\n{piece.title}\n"
        if not together or (piece.condition, piece.title) != (condition, title):
            text += "\n"
        text += f"{code}\n"
        condition, title, before = piece.condition, piece.title, code
    return text.lstrip("\n") + ("\n#endif\n" if condition else "")


def _static(text: str) -> str:
    """Return the text with static kernels, which csrc/ exports; alignment is preserved."""

    def inlined(match: re.Match[str]) -> str:
        return match[1] + "static inline " + match[2].replace("\n", "\n" + " " * len("static inline "))

    return re.sub(r"^( *)(void K\([^;{]*[;{])(?: {14}(?= *\\$))?", inlined, text, flags=re.MULTILINE)

"""What C declares, read from csrc/ and not repeated here: argument structs and constants (abi.h and what it includes),
kernels and the scratch that each needs (kernels.def), element-wise ops (elementwise.def), the element types of casts
(dtypes.def).

Files are read when they are first asked about, as text, in the few forms that they have.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CSRC = Path(__file__).parents[1] / "csrc"
# What a library must have been built from.
DECLARATIONS = (
    "abi.h", "quantized_args.def", "training_args.def", "image_args.def",
    "kernels.def", "elementwise.def", "dtypes.def",
)  # fmt: skip

_COMMENT = re.compile(r" */\*(?:[^*]|\*(?!/))*\*/")
_LINES = r"((?:^ *#define \w+\([\w, ]*\) .*\n)+)"
_INCLUDED_STRUCTS = re.compile(r'^#include "(\w+_args\.def)"\n', re.MULTILINE)
_INCLUDED_ROWS = re.compile(rf'{_LINES}( *)#include "(\w+\.def)"\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct. type: as in C, of what a pointer points to. count: elements of an array, 1 for none."""

    name: str
    type: str
    is_pointer: bool
    count: int


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A kernel of elementwise.def. op: its name in ops/, with the word among its attributes that chooses, if any.

    dtype: of the operands. is_vector: it works on 16 elements at once, and is also an op of fused programs.
    is_activation: an epilogue may apply it.
    """

    op: str
    dtype: str
    operands: int
    is_costly: bool
    is_vector: bool
    is_activation: bool

    @property
    def kernel(self) -> str:
        return f"{self.op}_{self.dtype}"


@functools.cache
def source(name: str) -> str:
    """A file of csrc/ as text, with the rows or structs of a .def file standing where it includes one."""
    text = (CSRC / name).read_text(encoding="utf-8")
    text = _INCLUDED_STRUCTS.sub(lambda m: (CSRC / m[1]).read_text(encoding="utf-8").partition("\n\n")[2], text)
    return _INCLUDED_ROWS.sub(_expand_rows, text)


@functools.cache
def constants() -> Mapping[str, int]:
    """The integers that abi.h defines, by name: those of a #define and those of its enums."""
    text = _COMMENT.sub("", source("abi.h"))
    found = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)$", text, re.MULTILINE)}
    for members in re.findall(r"^enum \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        following = 0
        for name, value in re.findall(r"(\w+)(?: = (\w+))?,", members):
            number = following if not value else int(value) if value.isdigit() else found[value]
            found[name], following = number, number + 1
    return found


def constant(name: str) -> int:
    """One of them."""
    return constants()[name]


@functools.cache
def constant_names(prefix: str) -> dict[int, str]:
    """The constants of abi.h that begin with a prefix, by value."""
    return {value: name for name, value in constants().items() if name.startswith(prefix)}


@functools.cache
def structs() -> Mapping[str, tuple[Field, ...]]:
    """The structs of abi.h, and of each its fields in order."""
    text = _COMMENT.sub("", source("abi.h"))
    found = re.findall(r"^typedef struct \{([^}]*)\} (\w+);$", text, re.MULTILINE)
    declarator = re.compile(r"(?:const )?(\w+) (\**)(?:const \*)?(\w+)(?:\[(\d+)\])?;")
    return {
        name: tuple(Field(f, type, bool(stars), int(count or 1)) for type, stars, f, count in declarator.findall(body))
        for body, name in found
    }


@functools.cache
def kernels() -> Mapping[str, str]:
    """The kernels, in the table's order, and the struct that each takes."""
    return dict(row for macro, *row in _rows("kernels.def") if macro == "KERNEL")


@functools.cache
def elementwise() -> Mapping[str, Elementwise]:
    """The kernels of elementwise.def, by name."""
    found = (_elementwise(*row) for row in _rows("elementwise.def"))
    return {row.kernel: row for row in found}


def scratch_floats(kernel: str, fields: Mapping[str, Any]) -> int:
    """The floats of scratch that a part of a kernel needs for these fields of its argument struct; 0 for none."""
    sizes = _scratch_sizes()
    if kernel not in sizes:
        return 0

    def size_of(other: str) -> Callable[..., int]:
        return lambda **changes: scratch_floats(other, {**fields, **changes})

    names: dict[str, Any] = {}
    for name in sizes[kernel].co_names:
        value = fields.get(name)
        if isinstance(value, int):
            names[name] = int(value)
        elif name in sizes:
            names[name] = size_of(name)
    return int(eval(sizes[kernel], _scratch_names(), names))


def _up(n: int, multiple: int = 0) -> int:
    multiple = multiple or constant("INGOT_PANEL")
    return -(-n // multiple) * multiple


@functools.cache
def _scratch_names() -> dict[str, Any]:
    """What sizes of scratch are computed with, beside fields and sizes of others."""
    return {"__builtins__": {}, "min": min, "up": _up, **constants()}


@functools.cache
def _scratch_sizes() -> Mapping[str, Any]:
    rows = (row for macro, *row in _rows("kernels.def") if macro == "SCRATCH")
    return {name: compile(size.replace("/", "//"), "kernels.def", "eval") for name, size in rows}


def _elementwise(macro: str, op: str, *rest: str) -> Elementwise:
    dtype, cost = rest[:2] if macro.endswith("_OF") else ("f32", rest[0])
    assert cost in ("CHEAP", "COSTLY"), f"elementwise.def: {op} has the cost {cost}"
    operands = 2 if macro.startswith("BINARY") else 1
    return Elementwise(op, dtype, operands, cost == "COSTLY", not macro.endswith("_OF"), macro == "ACTIVATION")


# -- the texts --------------------------------------------------------------------------------------------------


@functools.cache
def _rows(name: str) -> tuple[tuple[str, ...], ...]:
    """The rows of a .def file: a macro's name and its arguments, of which the last may hold commas in brackets only."""
    text = re.sub(r"\n +", " ", _COMMENT.sub("", source(name)))
    return tuple((macro, *_arguments(inside)) for macro, inside in re.findall(r"^(\w+)\((.*)\)$", text, re.MULTILINE))


def _arguments(text: str) -> Iterator[str]:
    """The parts of a text between the commas that are in no brackets."""
    begin = depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[begin:i].strip()
            begin = i + 1
    yield text[begin:].strip()


def _expand_rows(match: re.Match[str]) -> str:
    """What the preprocessor makes of one-line macros above an #include of rows: a line for each row that they name."""
    lines, indent, name = match.groups()
    macros = {m[1]: (m[2].split(", "), m[3]) for m in re.finditer(r"#define (\w+)\(([\w, ]*)\) (.*)", lines)}
    aliases = re.findall(r"^#define (\w+) (\w+)$", (CSRC / name).read_text(encoding="utf-8"), re.MULTILINE)
    macros |= {alias: macros[macro] for alias, macro in aliases if alias not in macros and macro in macros}
    made = ""
    for macro, *arguments in _rows(name):
        if macro in macros:
            parameters, body = macros[macro]
            given = dict(zip(parameters, arguments, strict=True))
            made += indent + re.sub(r"[A-Za-z]\w*", lambda m, given=given: given.get(m[0], m[0]), body) + "\n"
    return made.replace("##", "")

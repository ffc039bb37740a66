"""The declarations of the C core, read from csrc/ and not repeated here.

These are argument structs and constants (abi.h and its includes), kernels and their scratch (kernels.def), element-wise
ops (elementwise.def), the element types of casts (dtypes.def), formats of weights (weight_formats.def), and instruction
sets (instruction_sets.def). Files are read on first use, as text, in the few forms that they use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CSRC = Path(__file__).parents[1] / "csrc"
# The files that a library must have been built from.
DECLARATIONS = ("abi.h", *sorted(file.name for file in CSRC.glob("*.def")))

_COMMENT = re.compile(r" */\*(?:[^*]|\*(?!/))*\*/")
_MACRO = r"^ *#define (\w+)\(([\w., ]*)\)((?:.*\\\n)*.*)\n"
_INCLUDED_STRUCTS = re.compile(r'^#include "(\w+_args\.def)"\n', re.MULTILINE)
_INCLUDED_ROWS = re.compile(rf'((?:{_MACRO})+)( *)#include "(\w+\.def)"\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct.

    type: in C; for a pointer, of its target. count: elements of an array, 1 for other fields.
    """

    name: str
    type: str
    is_pointer: bool
    count: int


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A kernel of elementwise.def. op: its name in ops/, with the string attribute that selects it, if any.

    dtype: of the operands. is_vector: it computes 16 elements at once, and is also an op of fused programs.
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


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A line of instruction_sets.def, whose head explains it. features: with those of the base."""

    kind: str
    base: str
    features: tuple[str, ...]


@functools.cache
def source(name: str) -> str:
    """Return a file of csrc/ as text; an include of a .def file is replaced by the file's rows or structs."""
    text = (CSRC / name).read_text(encoding="utf-8")
    text = _INCLUDED_STRUCTS.sub(lambda m: (CSRC / m[1]).read_text(encoding="utf-8").partition("\n\n")[2], text)
    return _INCLUDED_ROWS.sub(_expand_rows, text)


@functools.cache
def constants() -> Mapping[str, int]:
    """Return the integers that abi.h defines, by name: from #define and enums."""
    text = _COMMENT.sub("", source("abi.h"))
    found = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)$", text, re.MULTILINE)}
    for members in re.findall(r"^enum \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        following = 0
        for name, value in re.findall(r"(\w+)(?: = (\w+))?,", members):
            number = following if not value else int(value) if value.isdigit() else found[value]
            found[name], following = number, number + 1
    return found


def constant(name: str) -> int:
    """Return a constant of abi.h."""
    return constants()[name]


@functools.cache
def constant_names(prefix: str) -> dict[int, str]:
    """Return the constants of abi.h that begin with a prefix, by value."""
    return {value: name for name, value in constants().items() if name.startswith(prefix)}


@functools.cache
def structs() -> Mapping[str, tuple[Field, ...]]:
    """Return the structs of abi.h, each with its fields in order."""
    text = _COMMENT.sub("", source("abi.h"))
    found = re.findall(r"^typedef struct \{([^}]*)\} (\w+);$", text, re.MULTILINE)
    declarator = re.compile(r"(?:const )?(\w+) (\**)(?:const \*)?(\w+)(?:\[(\d+)\])?;")
    return {
        name: tuple(Field(f, type, bool(stars), int(count or 1)) for type, stars, f, count in declarator.findall(body))
        for body, name in found
    }


@functools.cache
def kernels() -> Mapping[str, str]:
    """Return the kernels, in the table's order, each with the name of its argument struct."""
    return dict(row for macro, *row in _rows("kernels.def") if macro == "KERNEL")


@functools.cache
def elementwise() -> Mapping[str, Elementwise]:
    """Return the kernels of elementwise.def, by name."""
    found = (_elementwise(*row) for row in _rows("elementwise.def"))
    return {row.kernel: row for row in found}


@functools.cache
def packed_blocks() -> Mapping[str, int]:
    """Return the bytes of a block of each GGUF type in a column of a panel, for types with panels of their own."""
    rows = (row for macro, *row in _rows("weight_formats.def") if macro in ("BLOCK_TYPE", "OPENED_TYPE"))
    return {name: int(packed) for name, _, _, packed, *_ in rows}


@functools.cache
def instruction_sets() -> Mapping[str, InstructionSet]:
    """Return the lines of instruction_sets.def, by name."""
    found: dict[str, InstructionSet] = {}
    for kind, name, *rest in _rows("instruction_sets.def"):
        base, features, *_ = (*rest, "", "")
        own = re.findall(r"CPU\(([^)]*)\)", features)
        found[name] = InstructionSet(kind, base, (*own, *(found[base].features if base else ())))
    return found


@functools.cache
def blocks_grid() -> tuple[int, ...]:
    """Return the grid of IQ3_S: three bits for each of four values, by index."""
    return tuple(int(entry, 16) for entry in re.findall(r"0x\w+", _COMMENT.sub("", source("quant/blocks_grid.h"))))


def scratch_floats(kernel: str, fields: Mapping[str, Any]) -> int:
    """Return the floats of scratch per task of a kernel for these fields of its argument struct; 0 for none."""
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
    """Return the names that a scratch size may use in addition to fields and other kernels' sizes."""
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


# -- parsing ----------------------------------------------------------------------------------------------------


@functools.cache
def _rows(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a .def file: a macro's name and its arguments; only the last may have commas, in brackets."""
    text = re.sub(r"\n +", " ", _COMMENT.sub("", source(name)))
    return tuple((macro, *_arguments(inside)) for macro, inside in re.findall(r"^(\w+)\((.*)\)$", text, re.MULTILINE))


def _arguments(text: str) -> Iterator[str]:
    """Split a text at the commas outside of brackets."""
    begin = depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[begin:i].strip()
            begin = i + 1
    yield text[begin:].strip()


def _expand_rows(match: re.Match[str]) -> str:
    """Expand an #include of rows with the macros directly above it, as the preprocessor does, line by line."""
    lines, indent, name = match[1], match[5], match[6]
    found = re.findall(_MACRO, lines, re.MULTILINE)
    macros = {macro: (parameters.split(", "), body) for macro, parameters, body in found}
    aliases = re.findall(r"^#define (\w+) (\w+)$", (CSRC / name).read_text(encoding="utf-8"), re.MULTILINE)
    macros |= {alias: macros[macro] for alias, macro in aliases if alias not in macros and macro in macros}
    rows = ((macros[macro], given) for macro, *given in _rows(name) if macro in macros)
    return "".join(indent + line for macro, given in rows for line in _filled(*macro, given))


def _filled(parameters: list[str], body: str, arguments: list[str]) -> Iterator[str]:
    """Yield the lines of a macro's body with its parameters replaced; `...` accepts all further arguments."""
    if parameters[-1] == "...":
        arguments = [*arguments[: len(parameters) - 1], ", ".join(arguments[len(parameters) - 1 :])]
        parameters = [*parameters[:-1], "__VA_ARGS__"]
    given = dict(zip(parameters, arguments, strict=True))
    for line in re.sub(r" *\\\n(?:  )?", "\n", body).strip().splitlines(keepends=True):
        yield re.sub(r"[A-Za-z_]\w*", lambda m: given.get(m[0], m[0]), line).replace("##", "").rstrip("\n") + "\n"

"""Architectures of GGUF files as data: `templates/gguf/<architecture>.yaml`, read strictly into records.

docs/gguf.md describes the language. A file specifies which template reads the model, how the metadata become its
config, and which weights of the template the tensors are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ingot.errors import LoadError
from ingot.load.hf.document import Item, read_document
from ingot.load.hf.expression import Expression
from ingot.load.hf.inheritance import joined_section
from ingot.load.hf.template_file import FOLDER as TEMPLATES

FOLDER = TEMPLATES / "gguf"
ROOT = "any"  # the file that all others extend
TYPES = ("size", "count", "positive", "number", "factor", "flag", "sizes", "numbers", "pattern")


@dataclass(frozen=True, slots=True)
class FromKey:
    """The value of the first key that the file has. when: null where it is false; only: the one supported value.

    expected: what `only` means, in words.
    """

    where: str
    keys: tuple[str, ...]
    type: str
    default: Expression | None
    when: Expression | None
    only: Expression | None
    expected: str


@dataclass(frozen=True, slots=True)
class FromTensor:
    """A fact of a tensor: its size along `dim`, 0 if the file lacks it; if dim is None, whether the file has it.

    With {layer} in the name, the fact is a list with an entry for each layer.
    """

    where: str
    tensor: str
    dim: int | None


@dataclass(frozen=True, slots=True)
class FromRope:
    """The object `rope_scaling` of a config, for this number of rotated elements of a head."""

    rotated: Expression


@dataclass(frozen=True, slots=True)
class Computed:
    """An expression, or if is_each a list of its values for each `layer`; left out of the config unless `when`."""

    value: Expression
    when: Expression | None
    is_each: bool


Name = FromKey | FromTensor | FromRope | Computed


@dataclass(frozen=True, slots=True)
class Target:
    """The weight of the template that a tensor is: `name`, or `other` if `when` is false.

    {part} in a name: one weight for each index of the tensor's first dim. swap: (outer, i, j) for rows that are stored
    as [outer, i, j, rest], and are [outer, j, i, rest] in the template.
    shape: the dims in the template, of the same elements in the same order. One number of either may be -1.
    """

    where: str
    name: str
    swap: tuple[Expression, ...]
    shape: tuple[Expression, ...]
    when: Expression | None
    other: str


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor whose rows are a part of a matrix, or of the matrix of each expert or head; transposed: its columns."""

    tensor: str
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """A weight in a layer whose rows are in several tensors."""

    name: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of GGUF files.

    layer: the path before names in a layer. tensors, layer_tensors: by the names in files, without `blk.<layer>.`, and
    without `.weight` and `.bias` for both. layer_values: weights of one number in a layer, by their names there.
    """

    name: str
    file: str
    model_type: Expression
    names: Mapping[str, Name]
    config: Mapping[str, Computed]
    layer: str
    tensors: Mapping[str, Target]
    layer_tensors: Mapping[str, Target]
    joined: tuple[Joined, ...]
    layer_values: Mapping[str, Expression]


@cache
def architecture_names() -> tuple[str, ...]:
    """Return the architectures of GGUF files that Ingot reads."""
    return tuple(sorted({path.stem for path in FOLDER.glob("*.yaml")} - {ROOT}))


@cache
def read_architecture(name: str) -> Architecture:
    """Return one of `architecture_names`. Raises LoadError with file and line for a bad file."""
    root = read_document(FOLDER / f"{name}.yaml")
    sections = _sections(root)
    return Architecture(
        name,
        f"{FOLDER.name}/{name}.yaml",
        sections["model_type"].expression(),
        {key: _name(item) for key, item in joined_section(root, "names", FOLDER).items()},
        {key: _computed(item) for key, item in joined_section(root, "config", FOLDER).items()},
        sections["layer"].text(),
        {key: _target(item) for key, item in joined_section(root, "tensors", FOLDER).items()},
        {key: _target(item) for key, item in joined_section(root, "layer_tensors", FOLDER).items()},
        tuple(_joined(key, item) for key, item in joined_section(root, "joined", FOLDER).items()),
        {key: item.expression() for key, item in joined_section(root, "layer_values", FOLDER).items()},
    )


def _sections(root: Item) -> dict[str, Item]:
    """Return the sections of a file, with those of the files that it extends."""
    found = root.fields(
        optional=(
            "extends", "model_type", "names", "config", "layer", "tensors", "layer_tensors", "joined", "layer_values",
        )
    )  # fmt: skip
    if "extends" not in found:
        return found
    parent = found["extends"].text()
    if parent not in (ROOT, *architecture_names()):
        raise LoadError(f"{found['extends'].where}: no such architecture, got {parent!r}")
    return _sections(read_document(FOLDER / f"{parent}.yaml")) | found


def _name(item: Item) -> Name:
    if item.is_text:
        return _computed(item)
    entries = item.entries()
    if "key" in entries:
        found = item.fields(("key", "type"), ("default", "when", "only", "expected"))
        keys = found["key"].items() if found["key"].is_list else [found["key"]]
        return FromKey(
            item.where,
            tuple(key.text() for key in keys),
            found["type"].word(*TYPES),
            _optional(found, "default"),
            _optional(found, "when"),
            _optional(found, "only"),
            found["expected"].text() if "expected" in found else "",
        )
    if "tensor" in entries:
        found = item.fields(("tensor",), ("dim",))
        dim = int(found["dim"].word("0", "1", "2")) if "dim" in found else None
        return FromTensor(item.where, found["tensor"].text(), dim)
    if "rope_scaling" in entries:
        return FromRope(item.fields(("rope_scaling",))["rope_scaling"].expression())
    return _computed(item)


def _computed(item: Item) -> Computed:
    if item.is_text:
        return Computed(item.expression(), None, False)
    entries = item.entries()
    key = "each" if "each" in entries else "value"
    found = item.fields((key,), ("when",))
    return Computed(found[key].expression(), _optional(found, "when"), key == "each")


def _optional(found: Mapping[str, Item], key: str) -> Expression | None:
    return found[key].expression() if key in found else None


def _target(item: Item) -> Target:
    if item.is_text:
        return Target(item.where, item.text(), (), (), None, "")
    found = item.fields(("name",), ("swap", "shape", "when", "else"))
    swap = tuple(each.expression() for each in found["swap"].items()) if "swap" in found else ()
    if swap and len(swap) != 3:
        raise LoadError(f"{found['swap'].where}: got {len(swap)} numbers, expected three")
    if ("when" in found) != ("else" in found):
        raise LoadError(f"{item.where}: got {', '.join(found)}, expected when and else together")
    shape = tuple(each.expression() for each in found["shape"].items()) if "shape" in found else ()
    other = found["else"].text() if "else" in found else ""
    return Target(item.where, found["name"].text(), swap, shape, _optional(found, "when"), other)


def _joined(name: str, item: Item) -> Joined:
    if item.is_list:
        return Joined(name, _parts(item))
    found = item.fields(("name", "parts"))
    return Joined(found["name"].text(), _parts(found["parts"]))


def _parts(item: Item) -> tuple[Part, ...]:
    parts = []
    for each in item.items():
        if each.is_text:
            parts.append(Part(each.text(), False))
        else:
            parts.append(Part(each.fields(("transposed",))["transposed"].text(), True))
    return tuple(parts)

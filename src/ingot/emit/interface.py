"""What a program in C sees of a model: a prefix of its own, and C names of its inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ingot.dtype import NARROW
from ingot.errors import InputError
from ingot.lower.lowered import FAULT, Lowered, Tensor

C_TYPES = {
    "f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t",
    "u64": "uint64_t", "u32": "uint32_t", "u16": "uint16_t", "u8": "uint8_t", "bool": "uint8_t",
    "f16": "uint16_t", "bf16": "uint16_t", **dict.fromkeys((dtype.name for dtype in NARROW), "uint8_t"),
}  # fmt: skip
LINE = 110
_PREFIX_LETTERS = 31
_NAME_LETTERS = 48

# Keywords of C and C++, what headers define in small letters, gcc's own macros, and the other parameters of a model.
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
# Prefixes that would take the name of another file, or of a target of the Makefile.
_TAKEN = frozenset(("all", "check", "clean", "main"))


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: what it is called in C, and its tensor."""

    identifier: str
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Interface:
    """A model from outside. prefix: what everything external begins with. can_fail: an index may lie outside."""

    prefix: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    can_fail: bool

    @property
    def ports(self) -> tuple[Port, ...]:
        """Inputs, then outputs."""
        return *self.inputs, *self.outputs

    @property
    def macro(self) -> str:
        """What its macros begin with."""
        return self.prefix.upper()

    def signature(self, called: Callable[[Port], tuple[str, str]]) -> str:
        """The entry point's. called: what a port is called there, and what the comment on it says beside its shape."""
        rows = []
        for port in self.ports:
            name, said = called(port)
            comma = "," if port is not self.ports[-1] else ""
            rows.append(f"{declared(port.tensor, name)}{comma} /* {f'{said}, '.lstrip(', ')}{dims(port.tensor)} */")
        opening = f"int {self.prefix}_run("
        first = "const void *weights, void *arena" + ("," if rows else "")
        return opening + ("\n" + " " * len(opening)).join([first, *rows]) + ")"


def interface(lowered: Lowered, prefix: str) -> Interface:
    """The interface of a program. Raises InputError for a prefix that C cannot have."""
    if not re.fullmatch(rf"[A-Za-z]\w{{0,{_PREFIX_LETTERS - 1}}}", prefix, re.ASCII) or prefix in _TAKEN:
        expected = f"a letter, up to {_PREFIX_LETTERS - 1} more, digits and _, not {', '.join(sorted(_TAKEN))}"
        raise InputError(f"option prefix: not a name for C, got {prefix!r}, expected {expected}")
    names = identifiers(
        [*(("input", name) for name in lowered.inputs), *(("output", name) for name in lowered.outputs)]
    )
    views = [*lowered.inputs.values(), *lowered.outputs.values()]
    ports = [Port(next(names), lowered.tensors[view.tensor]) for view in views]
    can_fail = any(pointer.tensor == FAULT for step in lowered.steps for pointer in step.pointers)
    return Interface(prefix, tuple(ports[: len(lowered.inputs)]), tuple(ports[len(lowered.inputs) :]), can_fail)


def identifiers(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A C identifier for each (kind, name), like the name, none twice and none that means something else.

    One without small letters gets small ones: macros are written large. One without a letter at its front is called
    after its kind.
    """
    taken = set(_RESERVED)
    for kind, name in names:
        word = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_NAME_LETTERS].strip("_")
        word = word if re.search("[a-z]", word) else word.lower()
        word = word if word[:1].isalpha() else f"{kind}_{word}".rstrip("_")
        number, unique = 1, word
        while unique in taken:
            number += 1
            unique = f"{word}_{number}"
        taken.add(unique)
        yield unique


def dims(tensor: Tensor) -> str:
    """A tensor's dtype and shape, for a comment."""
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def declared(tensor: Tensor, name: str) -> str:
    """The C of a pointer to a tensor."""
    const = "const " if tensor.kind in ("input", "weight") else ""
    return f"{const}{C_TYPES[tensor.dtype.name]} *{name}"


def wrapped(items: Iterable[str], separator: str, indent: str) -> str:
    """Items joined, in lines of a readable length."""
    lines = [""]
    for item in items:
        if lines[-1] and len(indent + lines[-1] + separator + item) > LINE:
            lines[-1] += separator.rstrip()
            lines.append(item)
        else:
            lines[-1] += (separator if lines[-1] else "") + item
    return "\n".join(indent + line for line in lines if line)

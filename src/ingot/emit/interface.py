"""What a program in C sees of a model: a prefix of its own, and C names of its inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ingot.compile import Compiled
from ingot.emit.branches import Guard, joined
from ingot.emit.names import identifiers, tensor_names
from ingot.emit.sizes import Sizes
from ingot.errors import InputError
from ingot.ir.dim import AtMost, dim_of, has_size
from ingot.ir.dtype import NARROW
from ingot.lower.lowered import FAULT, Lowered, Tensor
from ingot.plan.memory import Plan

C_TYPES = {
    "f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t",
    "u64": "uint64_t", "u32": "uint32_t", "u16": "uint16_t", "u8": "uint8_t", "bool": "uint8_t",
    "f16": "uint16_t", "bf16": "uint16_t", **dict.fromkeys((dtype.name for dtype in NARROW), "uint8_t"),
}  # fmt: skip
LINE = 117  # letters; the end of a struct or comment may follow, up to the 120 of the kernels
LINE_BYTES = 64  # of a cache: where weights and the state begin, and each region of the state
BAD_INDEX, BAD_SIZE, STOPPED = 1, 2, 3  # what a run returns for what it cannot take, or where it was told to end
RUN = "run"  # the entry of a model that has one
PREFIX = "model"  # where nothing else is said; its files have their plain names
_PREFIX_LETTERS = 31

# Prefixes that would take the name of another file or folder, or of a target of the Makefile.
_TAKEN = frozenset(("all", "check", "clean", "install", "main", "size", "stack", "test"))
# Headers of C and of what it stands on: where the folder is searched for headers, <math.h> would be the model's.
_HEADERS = frozenset(
    """
    alloca assert complex ctype endian errno features fenv float inttypes iso646 limits locale malloc math memory
    pthread sched setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings
    tgmath threads time uchar unistd wchar wctype
    """.split()
)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: what it is called in C, and its tensor. dims: of an output whose dims each run says, the
    member that takes them; else ""."""

    identifier: str
    tensor: Tensor
    dims: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """A dim that each run says, from `least` to `most`: its name in the graph, and what it is called in C."""

    symbol: str
    identifier: str
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to run the model. name: of its function, behind the prefix. sizes: that a run says beside its inputs.
    can_fail: an index may lie outside. guards: of each step, where runs choose between branches; else none. names: of
    tensors in C, by id."""

    name: str
    lowered: Lowered
    planned: Plan
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    sizes: tuple[Size, ...]
    can_fail: bool
    guards: tuple[Guard, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[Port, ...]:
        """Inputs, then outputs."""
        return *self.inputs, *self.outputs

    @property
    def threads(self) -> int:
        """How many threads it can use at most."""
        return max((step.parts for step in self.planned.steps), default=1)


@dataclass(frozen=True, slots=True)
class Companion:
    """What a model has beside its entries. kernels: that its functions call, by `alone_<kernel>(args)`. types: argument
    structs. functions: C behind the entries. header: of their declarations. names: of theirs that a linker sees."""

    kernels: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    functions: str = ""
    header: str = ""
    names: tuple[str, ...] = ()


NO_COMPANION = Companion()


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a state holds before the first run. kept: where it lies in what is kept; stored: where its bytes are in the
    weights."""

    data: np.ndarray
    kept: int
    stored: int


@dataclass(frozen=True, slots=True)
class Interface:
    """A model from outside. prefix: what everything external begins with. Its entries share weights and state.
    can_stop: whether a run can be told to end early. beginnings: of the states that do not begin with zeros."""

    prefix: str
    entries: tuple[Entry, ...]
    can_stop: bool = False
    companion: Companion = NO_COMPANION
    beginnings: tuple[Beginning, ...] = ()

    @property
    def macro(self) -> str:
        """What its macros begin with."""
        return self.prefix.upper()

    @property
    def threads(self) -> int:
        """How many threads a run can use at most."""
        return max(entry.threads for entry in self.entries)

    @property
    def can_fail(self) -> bool:
        """Whether an entry may find an index that lies outside of its table."""
        return any(entry.can_fail for entry in self.entries)

    @property
    def external(self) -> list[str]:
        """Every name that others see, but for macros."""
        own = [name for e in self.entries for name in (self.function(e), self.inputs(e), self.outputs(e))]
        names = ["state", "init", "state_bytes", "weights_bytes", *["watch"] * self.can_stop]
        return own + [f"{self.prefix}_{name}" for name in names] + [*self.companion.names]

    @property
    def declared(self) -> list[str]:
        """Every name that begins with the prefix where the steps are."""
        within = ("check", "pool_barrier", "pool_run", "weights_fit")
        return self.external + [f"{self.prefix}_{name}" for name in within]

    @property
    def weights_bytes(self) -> int:
        """The size of weights.bin."""
        weights = max(entry.planned.regions.get("weights", 0) for entry in self.entries)
        return max([weights, *(begun.stored + begun.data.nbytes for begun in self.beginnings)])

    @property
    def kept_places(self) -> dict[str, int]:
        """Where each state lies in what is kept, by name."""
        return {
            tensor.name: entry.planned.addresses[tensor.id].offset
            for entry in self.entries
            for tensor in entry.lowered.tensors.values()
            if tensor.kind == "state"
        }

    @property
    def arena_bytes(self) -> int:
        """What a run works in."""
        return max(entry.planned.arena_bytes for entry in self.entries)

    @property
    def kept_bytes(self) -> int:
        """What lives from run to run."""
        return max(entry.planned.regions.get("state", 0) for entry in self.entries)

    @property
    def state_bytes(self) -> int:
        """All that a caller gives memory for, in lines of a cache as C lays it out."""
        return sum(-(-nbytes // LINE_BYTES) * LINE_BYTES for nbytes in (1, self.arena_bytes, self.kept_bytes))

    def file(self, name: str) -> str:
        """The name of a file beside the C, which is not that of a model with another prefix in the same folder."""
        return name if self.prefix == PREFIX else f"{self.prefix}-{name}"

    def function(self, entry: Entry) -> str:
        """The name of an entry's function."""
        return f"{self.prefix}_{entry.name}"

    def inputs(self, entry: Entry) -> str:
        """The name of the struct of its inputs."""
        return self._own(entry, "inputs")

    def outputs(self, entry: Entry) -> str:
        """The name of the struct of its outputs."""
        return self._own(entry, "outputs")

    def const(self, entry: Entry) -> str:
        """The qualifier of that: a run writes dims there."""
        return "" if any(port.dims for port in entry.outputs) else "const "

    def _own(self, entry: Entry, name: str) -> str:
        """An entry that is called `run` needs no name for what is its own."""
        return "_".join((self.prefix, name) if entry.name == RUN else (self.prefix, entry.name, name))

    def signature(self, entry: Entry) -> str:
        """An entry's function as it is declared."""
        opening = f"int {self.function(entry)}("
        arguments = (
            f"{self.prefix}_state *state",
            f"const {self.inputs(entry)} *inputs",
            f"{self.const(entry)}{self.outputs(entry)} *outputs",
        )
        return opening + wrapped(arguments, ", ", " " * len(opening)).lstrip() + ")"


def interface(
    programs: Mapping[str, Compiled],
    prefix: str,
    *,
    can_stop: bool = False,
    companion: Companion = NO_COMPANION,
    initial: Mapping[str, np.ndarray] = {},
) -> Interface:
    """The interface of programs by the names of their entries. initial: what states begin with, if not with zeros.

    Raises InputError for a prefix that C cannot have.
    """
    check_prefix(prefix)
    entries = tuple(_entry(name, compiled) for name, compiled in programs.items())
    face = _with_tensor_names(Interface(prefix, entries, can_stop, companion))
    places, end, beginnings = face.kept_places, face.weights_bytes, []
    for name, data in initial.items():
        if np.ascontiguousarray(data).reshape(-1).view(np.uint8).any():
            stored = -(-end // LINE_BYTES) * LINE_BYTES
            beginnings.append(Beginning(data, places[name], stored))
            end = stored + data.nbytes
    return replace(face, beginnings=tuple(beginnings))


def check_prefix(prefix: str) -> None:
    """Raises InputError for a prefix that C cannot have."""
    is_name = re.fullmatch(rf"[A-Za-z]\w{{0,{_PREFIX_LETTERS - 1}}}", prefix, re.ASCII)
    if not is_name or prefix in _TAKEN | _HEADERS:
        named = f"{', '.join(sorted(_TAKEN))} or a header of C"
        expected = f"a letter, up to {_PREFIX_LETTERS - 1} more, digits and _, not {named}"
        raise InputError(f"option prefix: not a name for C, got {prefix!r}, expected {expected}")


def _entry(name: str, compiled: Compiled) -> Entry:
    guards: tuple[Guard, ...] = ()
    if compiled.choosing:
        lowered, planned, guards = joined(compiled)
    else:
        lowered, planned = compiled.native
    limits = {symbol: int(size) for symbol, size in compiled.mode.sizes.items() if isinstance(size, AtMost)}
    outputs = [lowered.tensors[view.tensor] for view in lowered.outputs.values()]
    names = identifiers(
        [
            *(("input", name) for name in lowered.inputs),
            *(("output", name) for name in lowered.outputs),
            *(("size", symbol) for symbol in limits),
            *(
                ("dims", f"{name} dims")
                for name, tensor in zip(lowered.outputs, outputs, strict=True)
                if is_sized(tensor)
            ),
        ]
    )
    inputs = tuple(Port(next(names), lowered.tensors[view.tensor]) for view in lowered.inputs.values())
    called = [next(names) for _ in outputs]
    sizes = tuple(Size(s, next(names), compiled.least.get(s, 1), most) for s, most in limits.items())
    made = tuple(
        Port(c, tensor, next(names) if is_sized(tensor) else "") for c, tensor in zip(called, outputs, strict=True)
    )
    can_fail = any(pointer.tensor == FAULT for step in lowered.steps for pointer in step.pointers)
    return Entry(name, lowered, planned, inputs, made, sizes, can_fail, guards)


def _with_tensor_names(face: Interface) -> Interface:
    named = []
    for entry in face.entries:
        ports = {port.tensor.id: port.identifier for port in reversed(entry.ports)}
        other = [*Sizes(entry.lowered).names, *face.declared]
        named.append(replace(entry, names=tensor_names(entry.lowered.tensors, ports, other)))
    return replace(face, entries=tuple(named))


def said(entry: Entry) -> dict[str, str]:
    """The C of each symbol that a run says."""
    return {size.symbol: f"inputs->{size.identifier}" for size in entry.sizes}


def is_sized(tensor: Tensor) -> bool:
    """Whether a run says a dim of it."""
    return has_size(tensor.shape)


def dims(tensor: Tensor) -> str:
    """A tensor's dtype and shape, for a comment; sizes of a run by their names."""
    return f"{tensor.dtype}[{', '.join(str(dim_of(dim)) for dim in tensor.shape)}]"


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


def comment(text: str, indent: str) -> str:
    """A comment in lines of a readable length."""
    lines = wrapped(text.split(" "), " ", f"{indent} * ")
    return f"{indent}/* {lines[len(indent) + 3 :]} */"

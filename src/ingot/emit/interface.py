"""The C interface of a model: its prefix, entry functions, and identifiers of inputs and outputs."""

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
LINE = 117  # characters; the end of a struct or comment may follow, up to the 120 of the kernels
LINE_BYTES = 64  # a cache line: the alignment of weights, of the state, and of each region of the state
BAD_INDEX, BAD_SIZE, STOPPED = 1, 2, 3  # return codes of a run for invalid inputs, or when it was stopped
RUN = "run"  # the entry of a model that has one
PREFIX = "model"  # the default; its files have plain names
_PREFIX_LETTERS = 31

# Prefixes that would collide with another file or folder, or with a target of the Makefile.
_TAKEN = frozenset(("all", "check", "clean", "install", "main", "size", "stack", "test"))
# Headers of C and POSIX: if the folder is searched for headers, <math.h> would be found there.
_HEADERS = frozenset(
    """
    alloca assert complex ctype endian errno features fenv float inttypes iso646 limits locale malloc math memory
    pthread sched setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings
    tgmath threads time uchar unistd wchar wctype
    """.split()
)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: its C identifier, and its tensor.

    dims: the member of the outputs struct that receives the dims, for an output with run-time dims; else "".
    """

    identifier: str
    tensor: Tensor
    dims: str = ""


@dataclass(frozen=True, slots=True)
class Size:
    """A run-time size, from `least` to `most`: its symbol in the graph, and its C identifier."""

    symbol: str
    identifier: str
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry function of the model.

    name: of its function, after the prefix. sizes: that a run passes along with its inputs. can_fail: whether an index
    may be outside of its table. guards: one for each step, if runs choose between branches; else none. names: of
    tensors in C, by id.
    """

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
        """The most threads that the entry can use."""
        return max((step.parts for step in self.planned.steps), default=1)


@dataclass(frozen=True, slots=True)
class Companion:
    """Further C functions of a model besides its entries.

    kernels: that the functions call, as `alone_<kernel>(args)`. types: argument structs. functions: their C, after the
    entries. header: their declarations. names: their external symbols.
    """

    kernels: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    functions: str = ""
    header: str = ""
    names: tuple[str, ...] = ()


NO_COMPANION = Companion()


@dataclass(frozen=True, slots=True)
class Beginning:
    """The initial value of a state. kept: its offset in the state region; stored: its offset in the weights."""

    data: np.ndarray
    kept: int
    stored: int


@dataclass(frozen=True, slots=True)
class Interface:
    """The public interface of a model, whose entries share weights and state.

    prefix: of all external names. can_stop: whether a run can be stopped early. beginnings: the initial values of the
    states that do not begin with zeros.
    """

    prefix: str
    entries: tuple[Entry, ...]
    can_stop: bool = False
    companion: Companion = NO_COMPANION
    beginnings: tuple[Beginning, ...] = ()

    @property
    def macro(self) -> str:
        """The prefix of its macros."""
        return self.prefix.upper()

    @property
    def threads(self) -> int:
        """The most threads that a run can use."""
        return max(entry.threads for entry in self.entries)

    @property
    def can_fail(self) -> bool:
        """Whether an entry may find an index outside of its table."""
        return any(entry.can_fail for entry in self.entries)

    @property
    def external(self) -> list[str]:
        """All external names except macros."""
        own = [name for e in self.entries for name in (self.function(e), self.inputs(e), self.outputs(e))]
        names = ["state", "init", "state_bytes", "weights_bytes", *["watch"] * self.can_stop]
        return own + [f"{self.prefix}_{name}" for name in names] + [*self.companion.names]

    @property
    def declared(self) -> list[str]:
        """All names with the prefix that are visible to the steps."""
        within = ("check", "pool_barrier", "pool_run", "weights_fit")
        return self.external + [f"{self.prefix}_{name}" for name in within]

    @property
    def weights_bytes(self) -> int:
        """The size of weights.bin."""
        weights = max(entry.planned.regions.get("weights", 0) for entry in self.entries)
        return max([weights, *(begun.stored + begun.data.nbytes for begun in self.beginnings)])

    @property
    def state_offsets(self) -> dict[str, int]:
        """The offset of each state in the state region, by name."""
        return {
            tensor.name: entry.planned.addresses[tensor.id].offset
            for entry in self.entries
            for tensor in entry.lowered.tensors.values()
            if tensor.kind == "state"
        }

    @property
    def arena_bytes(self) -> int:
        """The size of the arena, the working memory of a run."""
        return max(entry.planned.arena_bytes for entry in self.entries)

    @property
    def kept_bytes(self) -> int:
        """The size of the state region, which lives from run to run."""
        return max(entry.planned.regions.get("state", 0) for entry in self.entries)

    @property
    def state_bytes(self) -> int:
        """The memory that a caller provides, in cache lines as the C struct is laid out."""
        return sum(-(-nbytes // LINE_BYTES) * LINE_BYTES for nbytes in (1, self.arena_bytes, self.kept_bytes))

    def file(self, name: str) -> str:
        """Return the name of a further file, distinct from that of a model with another prefix in the same folder."""
        return name if self.prefix == PREFIX else f"{self.prefix}-{name}"

    def function(self, entry: Entry) -> str:
        """Return the name of an entry's function."""
        return f"{self.prefix}_{entry.name}"

    def inputs(self, entry: Entry) -> str:
        """Return the name of the struct of its inputs."""
        return self._own(entry, "inputs")

    def outputs(self, entry: Entry) -> str:
        """Return the name of the struct of its outputs."""
        return self._own(entry, "outputs")

    def const(self, entry: Entry) -> str:
        """Return the qualifier of the outputs struct, to which a run may write dims."""
        return "" if any(port.dims for port in entry.outputs) else "const "

    def _own(self, entry: Entry, name: str) -> str:
        """Return a name of an entry; the entry `run` adds no word to it."""
        return "_".join((self.prefix, name) if entry.name == RUN else (self.prefix, entry.name, name))

    def signature(self, entry: Entry) -> str:
        """Return the declaration of an entry's function."""
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
    """Return the interface of programs by entry name. initial: initial values of states that do not begin with zeros.

    Raises InputError for a prefix that is no valid C name.
    """
    check_prefix(prefix)
    entries = tuple(_entry(name, compiled) for name, compiled in programs.items())
    face = _with_tensor_names(Interface(prefix, entries, can_stop, companion))
    offsets, end, beginnings = face.state_offsets, face.weights_bytes, []
    for name, data in initial.items():
        if np.ascontiguousarray(data).reshape(-1).view(np.uint8).any():
            stored = -(-end // LINE_BYTES) * LINE_BYTES
            beginnings.append(Beginning(data, offsets[name], stored))
            end = stored + data.nbytes
    return replace(face, beginnings=tuple(beginnings))


def check_prefix(prefix: str) -> None:
    """Raise InputError for a prefix that is no valid C name or is reserved."""
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
    results = tuple(
        Port(c, tensor, next(names) if is_sized(tensor) else "") for c, tensor in zip(called, outputs, strict=True)
    )
    can_fail = any(pointer.tensor == FAULT for step in lowered.steps for pointer in step.pointers)
    return Entry(name, lowered, planned, inputs, results, sizes, can_fail, guards)


def _with_tensor_names(face: Interface) -> Interface:
    named = []
    for entry in face.entries:
        ports = {port.tensor.id: port.identifier for port in reversed(entry.ports)}
        other = [*Sizes(entry.lowered).names, *face.declared]
        named.append(replace(entry, names=tensor_names(entry.lowered.tensors, ports, other)))
    return replace(face, entries=tuple(named))


def run_sizes(entry: Entry) -> dict[str, str]:
    """Return the C expression of each symbol whose size a run passes."""
    return {size.symbol: f"inputs->{size.identifier}" for size in entry.sizes}


def is_sized(tensor: Tensor) -> bool:
    """Return whether the tensor has a run-time dim."""
    return has_size(tensor.shape)


def dims(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape for a comment; run-time sizes are named."""
    return f"{tensor.dtype}[{', '.join(str(dim_of(dim)) for dim in tensor.shape)}]"


def declared(tensor: Tensor, name: str) -> str:
    """Return the C declaration of a pointer to a tensor."""
    const = "const " if tensor.kind in ("input", "weight") else ""
    return f"{const}{C_TYPES[tensor.dtype.name]} *{name}"


def wrapped(items: Iterable[str], separator: str, indent: str) -> str:
    """Join items, wrapped at LINE columns."""
    lines = [""]
    for item in items:
        if lines[-1] and len(indent + lines[-1] + separator + item) > LINE:
            lines[-1] += separator.rstrip()
            lines.append(item)
        else:
            lines[-1] += (separator if lines[-1] else "") + item
    return "\n".join(indent + line for line in lines if line)


def comment(text: str, indent: str) -> str:
    """Return a C comment, wrapped at LINE columns."""
    lines = wrapped(text.split(" "), " ", f"{indent} * ")
    return f"{indent}/* {lines[len(indent) + 3 :]} */"

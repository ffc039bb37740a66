"""The second artefact: a list of concrete kernel calls over views, for one mode and one target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ingot.ir.dim import AtMost, Expr, content_of
from ingot.ir.dtype import DType
from ingot.ir.graph import Source
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.target import Target
from ingot.lower.view import View
from ingot.support.record import record

FAULT = "fault"


@dataclass(slots=True)
class Tensor:
    """A root: memory that views look into. `id` is safe in generated code; `name` is the source model's.

    kind: input, output, weight, activation, state, update or scratch. Weights carry the packed weight that makes their
    bytes. A state and its update, what it is after the run, are two tensors in one place; `replaces` is the state's id.
    """

    id: str
    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: str
    nbytes: int
    packed_weight: PackedWeight | None = None
    replaces: str | None = None


@record()
class Pointer:
    """A pointer field of an argument struct: a byte offset into a root tensor, or the run's fault slot."""

    tensor: str
    byte_offset: int = 0


Field = int | float | tuple[int, ...] | tuple[float, ...] | tuple[Pointer, ...] | Pointer | None


@dataclass(slots=True)
class Step:
    """One kernel call. Fields that are left out of the struct are zero.

    reads[i] for i in `inplace` may share the memory of writes[0]: the kernel reads each element before it writes it.
    The last `keeps` reads are what writes[0], writes[1] ... hold before the call, which changes only some elements of
    what lies there.
    `parts` is how many pieces the call is cut into; `scratch` is the tensor that holds a slot for each. `turns`: all
    pieces are done so many times, and threads wait for each other in between. `chunks`: each piece is done in so
    many, one after the other, between which a run can end; of a kernel that can, `fields` has them, too.
    """

    kernel: str
    args_type: str
    fields: dict[str, Field]
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    node: str
    inplace: tuple[int, ...] = ()
    parts: int = 1
    scratch: str | None = None
    keeps: int = 0
    iterations: int = 1
    chunks: int = 1

    @property
    def pointers(self) -> list[Pointer]:
        """Every pointer among the fields."""
        values = (v if isinstance(v, tuple) else (v,) for v in self.fields.values())
        return [v for group in values for v in group if isinstance(v, Pointer)]


@record()
class Choice:
    """Why a step has the kernel it has: every candidate with the reason it was refused, empty for the chosen one."""

    node: str
    op: str
    candidates: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Lowered:
    """Steps in order, root tensors by id, and where graph values are: name -> view.

    states: where each state's value lies after the steps: in its own tensor, if nothing changes it, or in its update.
    sources: by the names of nodes that steps have, what they compute of the model that was loaded.
    avoided: kernels that nodes with sizes of a run did not get because of what is planned for; smaller sizes might.
    """

    target: Target
    mode: str = ""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    inputs: dict[str, View] = field(default_factory=dict)
    outputs: dict[str, View] = field(default_factory=dict)
    states: dict[str, View] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    avoided: list[str] = field(default_factory=list)
    sources: dict[str, tuple[Source, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"lowered {self.mode} for {self.target.isa}, {self.target.threads} threads"]
        for tensor in self.tensors.values():
            lines.append(
                f"{tensor.id} {tensor.kind} {tensor.dtype}{list(tensor.shape)} {tensor.nbytes} bytes  # {tensor.name}"
            )
        for step in self.steps:
            operands = ", ".join(map(_view_text, step.reads))
            results = ", ".join(map(_view_text, step.writes))
            lines.append(f"{step.kernel} x{step.parts}: {results} = ({operands})  # {step.node}")
        return "\n".join(lines) + "\n"


def _view_text(view: View) -> str:
    offset = f"+{view.offset}" if view.offset else ""
    strides = "" if view.is_contiguous else f" strides {list(view.strides)}"
    return f"{view.tensor}{offset}{list(view.shape)}{strides}"


def moved(view: View, aside: dict[str, str]) -> View:
    """A view of another tensor. aside: old tensor id -> new one."""
    return replace(view, tensor=aside.get(view.tensor, view.tensor))


def moved_field(field: Field, aside: dict[str, str]) -> Field:
    """A field with its pointers moved from one tensor to another. aside: old tensor id -> new one."""
    if isinstance(field, Pointer):
        return replace(field, tensor=aside.get(field.tensor, field.tensor))
    if isinstance(field, tuple):
        return tuple(moved_field(each, aside) for each in field)  # type: ignore[return-value, arg-type]
    return field


def sizes_of(lowered: Lowered) -> Iterator[Expr]:
    """What fields and pointers of a program's steps are multiples of, where each run says how large it is."""
    for step in lowered.steps:
        for group in step.fields.values():
            for value in group if isinstance(group, tuple) else (group,):
                size = value.byte_offset if isinstance(value, Pointer) else value
                if isinstance(size, AtMost):
                    yield content_of(size.dim)[1]

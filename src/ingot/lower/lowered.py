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
    """A root: memory that views refer to. `id` is safe in generated code; `name` is the source model's name.

    kind: input, output, weight, activation, state, update or scratch. A weight has the packed weight that computes its
    bytes. A state and its update (its value after the run) are two tensors at one address; `replaces` is the state's
    id.
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
    """One kernel call. Fields that are not listed are zero in the struct.

    reads[i] for i in `inplace` may share the memory of writes[0]: the kernel reads each element before it writes it.
    The last `keeps` reads are the contents of writes[0], writes[1] ... before the call, which changes only some of
    these elements. parts: the number of tasks of the call; scratch: the tensor with one slot per task. iterations: how
    many times all tasks run, with a barrier in between. chunks: the number of preemption chunks of each task, run one
    after another; a run can end between chunks. If the kernel supports chunks, `fields` has them, too.
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
    """The kernel choice of a step: every candidate with the reason it was refused, empty for the chosen one."""

    node: str
    op: str
    candidates: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Lowered:
    """Steps in order, root tensors by id, and the views of graph values by name.

    states: the view of each state after the steps: its own tensor if nothing changes it, otherwise its update. sources:
    the nodes of the loaded model that each node of a step computes, by the node's name. avoided: kernels that nodes
    with run-time sizes did not get because of the planned size; smaller sizes might get them.
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


def moved(view: View, redirected: dict[str, str]) -> View:
    """Return the view in another tensor. redirected: old tensor id -> new one."""
    return replace(view, tensor=redirected.get(view.tensor, view.tensor))


def moved_field(field: Field, redirected: dict[str, str]) -> Field:
    """Return a field with its pointers moved from one tensor to another. redirected: old tensor id -> new one."""
    if isinstance(field, Pointer):
        return replace(field, tensor=redirected.get(field.tensor, field.tensor))
    if isinstance(field, tuple):
        return tuple(moved_field(each, redirected) for each in field)  # type: ignore[return-value, arg-type]
    return field


def sizes_of(lowered: Lowered) -> Iterator[Expr]:
    """Yield the symbolic factors of the fields and pointers of a program's steps; each run sets their values."""
    for step in lowered.steps:
        for group in step.fields.values():
            for value in group if isinstance(group, tuple) else (group,):
                size = value.byte_offset if isinstance(value, Pointer) else value
                if isinstance(size, AtMost):
                    yield content_of(size.dim)[1]

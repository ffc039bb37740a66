"""Backend: the kernels of one kind of device, as data. Lowering itself knows no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ingot.ir.dtype import DType
from ingot.ir.graph import Node
from ingot.lower.beyond import beyond
from ingot.lower.cost import Cost
from ingot.lower.epilogue import EpilogueLimits
from ingot.lower.formats import Format
from ingot.lower.fused import FusedGroup, FusedLimits
from ingot.lower.lowered import Field, Lowered, Step
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.view import View

if TYPE_CHECKING:
    from ingot.lower.lowering import Lowering
    from ingot.lower.selection import Selection
    from ingot.lower.step_builder import StepBuilder

Condition: TypeAlias = "Callable[[Selection, Node], str]"


@dataclass(frozen=True, slots=True, eq=False)
class KernelRule:
    """A kernel of an op: when it applies and how to add its step.

    conditions: each returns the reason of a refusal, or "". avoid: the reason to prefer a later rule, or "". by_size:
    whether `avoid` depends on sizes that are set per run. misplaced: as `avoid`, but for the memory layout of operands.
    """

    op: str
    kernel: str
    conditions: tuple[Condition, ...]
    lower: Callable[[Lowering, Node], None]
    avoid: Condition
    by_size: bool
    misplaced: Callable[[Lowering, Node], str]


@dataclass(frozen=True, slots=True)
class Backend:
    """The kernels and limits of one kind of device; lowering itself knows no device.

    rules: the kernel rules of each op; first match wins. held: the dtypes that kernels accept, with the storage dtype
    of each. epilogues: the ops that products can apply to their sums. fused_limits: the limits of fused programs;
    add_fused adds their step. formats: the weight formats of products; pack adds a step that packs a matrix into
    panels, a view of one axis. copy, cast: add a step that copies elements between two views of one shape, of the same
    or of different dtypes. scratch_floats: the scratch of one task of a kernel, if the step does not set it. cost: the
    minimum cost of a step.
    """

    rules: Mapping[str, Sequence[KernelRule]]
    held: Mapping[DType, DType]
    epilogues: EpilogueLimits
    fused_limits: FusedLimits
    add_fused: Callable[[Lowering, FusedGroup], None]
    formats: Sequence[Format]
    pack: Callable[[StepBuilder, PackedWeight, View, View], None]
    copy: Callable[[StepBuilder, View, View], None]
    cast: Callable[[StepBuilder, View, View], None]
    scratch_floats: Callable[[str, Mapping[str, Field]], int]
    cost: Callable[[Lowered, Step], Cost]
    _beyond: dict[str, list[list[int]]] = field(default_factory=dict, init=False, repr=False)

    def beyond(self, op: str) -> list[list[int]]:
        """Return where the next rule that begins differently is, per rule and condition; see `beyond.beyond`."""
        if op not in self._beyond:
            self._beyond[op] = beyond([rule.conditions for rule in self.rules.get(op, ())])
        return self._beyond[op]

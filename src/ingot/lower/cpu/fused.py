"""Lower a fused group to one step: its program of ops, the slots of its intermediate values, and its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingot.ir.dtype import f32
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.elementwise import vector_kernel
from ingot.lower.elementwise import scalars
from ingot.lower.fused import (
    QUANTIZERS,
    REDUCTIONS,
    FusedGroup,
    FusedLimits,
    LoopNest,
    column_dims,
    escaping,
    loop_nest,
    rounds,
    streamed,
)
from ingot.lower.lowered import Choice, Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.view import View, broadcast_view, contiguous_strides, image_order, ordered_strides
from ingot.ops.quantize import fixed_steps
from ingot.support import abi

_LAST_REDUCTION = abi.constant("INGOT_FUSED_LAST_REDUCTION")
_TOGETHER = abi.constant("INGOT_FUSED_ROWS")
_SLOT, _SLOT_ROW, _SLOT_COLUMN = (abi.constant(f"INGOT_FUSED_SLOT{kind}") for kind in ("", "_ROW", "_COLUMN"))

FUSED_FLOATS = 2048  # of a slot: two or three slots fit in the first-level cache
REDUCED_FLOATS = 4096  # with reductions: they prefer long rows, several at once
_MEMORY = abi.constant("INGOT_FUSED_MEMORY")
FUSED_LIMITS = FusedLimits(
    costs={kernel.op: 1 for kernel in abi.elementwise().values() if kernel.is_vector}
    | dict.fromkeys(REDUCTIONS, 1)
    | {"layer_norm": 5, "rms_norm": 3, "cast_up": 1, "quantize": 1, "dequantize": 1},
    ops=abi.constant("INGOT_FUSED_OPS"),
    tensors=_MEMORY - 2,  # two are the constants of norms
    # One task reduces a row, and the row's values stay in scratch: longer rows use the kernels of single ops.
    reduced=16384,
)


@dataclass(slots=True)
class _Op:
    """One op of a fused program, such as the `sum` of x. name: as in INGOT_FUSED_OP_*. out, operands: names of values.

    column: whether `out` has one element per row instead of one per element of the strip. alpha, beta: the op's float
    attributes. segment: the pass over the strips of a row that the op belongs to; the result of a reduction is
    available from the next segment on.
    """

    name: str
    out: str
    operands: list[str]
    column: bool
    alpha: float = 0.0
    beta: float = 0.0
    is_costly: bool = False
    segment: int = 0

    @property
    def code(self) -> int:
        return abi.constant(f"INGOT_FUSED_OP_{self.name}")

    @property
    def reduces(self) -> bool:
        return self.code <= _LAST_REDUCTION


def add_fused(lowering: Lowering, group: FusedGroup) -> None:
    """Add one step for the complete group."""
    ops = _in_segments(_with_copies(lowering, group, _ops(lowering, group)))
    memory = _Memory.of(lowering, group, ops)
    nest = memory.nest
    slots = _Slots(ops, memory.numbers, nest)
    fields: dict[str, Field] = {
        "memory": tuple(pointer(view) for view in (*memory.reads, *memory.writes)),
        "outer": nest.outer, "rows": nest.rows, "cols": nest.cols,
        "fused_rows": slots.fused_rows, "fused_cols": slots.fused_cols,
        "outer_strides": tuple(s[0] for s in nest.strides), "row_strides": tuple(s[1] for s in nest.strides),
        "col_steps": tuple(s[2] for s in nest.strides),
        "slot_offsets": tuple(slots.offsets), "slot_kinds": tuple(slots.kinds),
        "op_count": len(ops), "segment_count": ops[-1].segment + 1, "segment": tuple(op.segment for op in ops),
        "code": tuple(op.code for op in ops), "out": tuple(slots.locations[op.out] for op in ops),
        "alpha": tuple(op.alpha for op in ops), "beta": tuple(op.beta for op in ops),
    }  # fmt: skip
    for i, name in enumerate("abcdef"):
        fields[name] = tuple(slots.locations[op.operands[i]] if i < len(op.operands) else -1 for op in ops)
    size = nest.outer * nest.rows * nest.cols
    work = size * sum(NS.fused_costly if op.is_costly else NS.fused_cheap for op in ops if op.reduces or not op.column)
    lowering.node_name = group.name
    recomputes = lowering.backend.fused_limits.recomputes
    lowering.step(
        "fused_f32", "fused_args", fields, memory.reads, memory.writes,
        work=work, inplace=memory.inplace(ops, recomputes), scratch_floats=0 if recomputes else slots.floats,
    )  # fmt: skip
    for node in group.members:
        lowering.lowered.choices.append(Choice(node.output, node.op.name, (("fused_f32", ""),)))


# -- ops --------------------------------------------------------------------------------------------------------


def _ops(lowering: Lowering, group: FusedGroup) -> list[_Op]:
    return [op for node in group.members for op in _node_ops(lowering, node, node.output in group.columns)]


def _node_ops(lowering: Lowering, node: Node, column: bool) -> list[_Op]:
    """Return the ops of a fused program for one node, such as pivot, offset, ..., normalise for layer_norm.

    Together they compute the same arithmetic, in the same order, as the node's own kernel.
    """
    name, out, operands = node.op.name, node.output, streamed(node)
    if name in REDUCTIONS:
        return [_Op(name.removeprefix("reduce_"), out, operands, True)]
    if name in QUANTIZERS:
        steps = fixed_steps(lowering.graph, node)
        assert steps is not None
        dtype = node.dtype if name == "quantize" else lowering.graph.type(operands[0]).dtype
        return [_Op(f"{name}_{dtype}", out, operands, column, *steps)]
    if rounds(node):
        return [_Op("narrow", out, operands, column)]
    if (kernel := vector_kernel(node)) is not None:
        return [_Op(kernel.op, out, operands, column, *scalars(node), kernel.is_costly)]
    return _norm_ops(lowering, node, operands[0])


def _norm_ops(lowering: Lowering, node: Node, x: str) -> list[_Op]:
    out, cols = node.output, lowering.graph.type(x).dims[-1]
    weight, bias = (*node.operands[1:], None, None)[:2]
    zero, one = lowering.constant(0.0, f32), lowering.constant(1.0, f32)
    pivot, offset, squares, scale = (f"{out}/{name}" for name in ("pivot", "offset", "squares", "scale"))
    ops, mean = [], [zero]
    if node.op.name == "layer_norm":
        ops, mean = [_Op("pivot", pivot, [x], True), _Op("offset", offset, [x, pivot], True)], [pivot, offset]
    return [
        *ops,
        _Op("squares", squares, [x, *mean], True),
        _Op("norm_scale", scale, [squares, *mean], True, node.eps, float(cols)),
        _Op("normalise", out, [x, mean[0], scale, weight or one, bias or zero, *mean[1:]], False),
    ]


def _with_copies(lowering: Lowering, group: FusedGroup, ops: list[_Op]) -> list[_Op]:
    """Append copies to memory for reductions that leave the group, because reductions end in slots."""
    leaving = [value for value in escaping(lowering.graph, group) if value in group.columns]
    for value in leaving:
        for op in ops:
            op.operands = [f"{value}/slot" if o == value else o for o in op.operands]
            op.out = f"{value}/slot" if op.out == value else op.out
        ops.append(_Op("copy", value, [f"{value}/slot"], True))
    return ops


def _in_segments(ops: list[_Op]) -> list[_Op]:
    """Assign ops to segments: the result of a reduction is available from the next segment on."""
    ready: dict[str, int] = {}
    for op in ops:
        op.segment = max((ready.get(o, 0) for o in op.operands), default=0)
        ready[op.out] = op.segment + op.reduces
    return sorted(ops, key=lambda op: op.segment)


# -- memory -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Memory:
    """The tensors of a program, by number: operands, then results."""

    numbers: dict[str, int]
    reads: list[View]
    writes: list[View]
    nest: LoopNest

    @staticmethod
    def of(lowering: Lowering, group: FusedGroup, ops: Sequence[_Op]) -> _Memory:
        computed = {op.out for op in ops}
        operands = list(dict.fromkeys(o for op in ops for o in op.operands if o not in computed))
        results = escaping(lowering.graph, group)
        assert len(operands) + len(results) <= _MEMORY
        reads = [lowering.view(value) for value in operands]
        reduces = any(op.reduces for op in ops)
        order = None if reduces else image_order(reads, len(group.space))
        targets = [lowering.result(value, not reduces, order) for value in results]
        columns = [value in group.columns for value in results]
        plain = tuple(range(len(group.space)))
        own = plain if reduces else targets[0].order
        # Try in order: all views as they are; copied operands; copied operands and results; and the same in row-major
        # order.
        for axes, copies, moves in ((own, False, False), (own, True, False), (own, True, True), (plain, True, True)):
            laid_out = [_dense(view, axes) if copies else view for view in reads]
            writes = [_dense(view, axes) if moves else view for view in targets]
            nest = _nest(group.space, axes, laid_out, writes, columns, reduces)
            if nest is not None:
                break
        assert nest is not None
        pairs = zip(reads, laid_out, strict=True)
        reads = [view if view == wanted else lowering.copy(view, _order(view, axes)) for view, wanted in pairs]
        for i, (target, wanted) in enumerate(zip(targets, writes, strict=True)):
            if wanted != target:
                writes[i] = lowering.stand_in(group.members[-1].output, target, _order(target, axes))
        return _Memory({v: i for i, v in enumerate([*operands, *results])}, reads, writes, nest)

    def inplace(self, ops: Sequence[_Op], recomputes: bool) -> tuple[int, ...]:
        """Return indices of the reads that the first result may overwrite: last read before it, with the same layout.

        recomputes: whether later segments read their operands again.
        """
        result = self.writes[0]
        first = len(self.reads)
        written = next(i for i, op in enumerate(ops) if self.numbers.get(op.out) == first)
        if recomputes and ops[written].segment < ops[-1].segment:
            return ()
        names = list(self.numbers)
        return tuple(
            i
            for i, view in enumerate(self.reads)
            if view.shape == result.shape
            and view.dtype is result.dtype
            and view.strides == result.strides
            and self.nest.strides[i] == self.nest.strides[first]
            and max(k for k, op in enumerate(ops) if names[i] in op.operands) <= written
        )


def _order(view: View, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axis order for a copy of a view; None (row-major) if its rank differs from the rank of the space."""
    return axes if len(view.shape) == len(axes) else None


def _dense(view: View, axes: tuple[int, ...]) -> View:
    """Return the view that a dense copy in the order of `axes` would have; the view itself if it is already dense."""
    order = _order(view, axes)
    strides = contiguous_strides(view.shape) if order is None else ordered_strides(view.shape, order)
    same = all(dim == 1 or a == b for dim, a, b in zip(view.shape, view.strides, strides, strict=True))
    return view if same else replace(view, offset=0, strides=strides)


def _nest(
    space: tuple[int, ...],
    axes: tuple[int, ...],
    reads: Sequence[View],
    writes: Sequence[View],
    columns: Sequence[bool],
    reduces: bool,
) -> LoopNest | None:
    """Return the loop nest of operands, then results, over the space with its axes in this order."""
    spread = [_spread(view, space) if column else view for view, column in zip(writes, columns, strict=True)]
    views = [broadcast_view(view, space).permute(axes) for view in (*reads, *spread)]
    nest = loop_nest(views, reduces)
    if nest is None:
        return None
    # A step other than 0 and 1 belongs to a dim of one element.
    steps = [step if step in (0, 1) else 1 for _, _, step in nest.strides]
    for i, column in enumerate(columns, len(reads)):
        if not column and steps[i] != 1 and nest.cols > 1:
            return None
        steps[i] = int(not column)
    strides = [(outer, row, step) for (outer, row, _), step in zip(nest.strides, steps, strict=True)]
    return LoopNest(nest.outer, nest.rows, nest.cols, strides)


def _spread(view: View, space: tuple[int, ...]) -> View:
    """Return a column as a view of the space."""
    column = view.reshape(column_dims(space))
    assert column is not None
    return column.expand(space)


# -- slots ------------------------------------------------------------------------------------------------------


class _Slots:
    """Assign each value a location: a tensor in memory by number, or a slot. A slot is reused after its last reader."""

    def __init__(self, ops: Sequence[_Op], numbers: dict[str, int], nest: LoopNest):
        self.ops = ops
        self.locations = dict(numbers)
        width = -(-int(nest.cols) // 16) * 16
        # Reductions process several rows together, and tasks share the work by blocks of rows.
        reduces = any(op.reduces for op in ops)
        floats = REDUCED_FLOATS if reduces else FUSED_FLOATS
        self.fused_cols = min(width, floats // _TOGETHER if reduces else floats)
        self.fused_rows = min(floats // self.fused_cols, -(-int(nest.rows) // 2))
        if self.fused_cols < width and not reduces:
            self.fused_rows = 1
        elif reduces and self.fused_rows > _TOGETHER:
            self.fused_rows -= self.fused_rows % _TOGETHER
        column = -(-self.fused_rows // 16) * 16 + 16 * self.fused_rows
        rows = self.fused_rows
        self._floats = {_SLOT: rows * self.fused_cols, _SLOT_ROW: rows * width, _SLOT_COLUMN: column}
        self._whole_rows = self.fused_cols < nest.cols
        self.kinds: list[int] = []
        self._free: dict[int, list[int]] = {kind: [] for kind in self._floats}
        self._allocate()
        self.offsets: list[int] = []
        self.floats = 0
        for kind in self.kinds:
            self.offsets.append(self.floats)
            self.floats += self._floats[kind]

    def _allocate(self) -> None:
        death = self._deaths()
        dying: dict[int, list[str]] = {}
        for value, when in death.items():
            dying.setdefault(when, []).append(value)
        for i, op in enumerate(self.ops):
            kind = self._kind(op)
            # An element-wise op may overwrite its operand; other values are still needed by later strips.
            before = [v for v in dying.get(i, []) if self._is_fused(v)]
            for value in before:
                self._release(value)
            if op.out not in self.locations:
                if not self._free[kind]:
                    self._free[kind].append(len(self.kinds))
                    self.kinds.append(kind)
                self.locations[op.out] = _MEMORY + self._free[kind].pop()
            for value in dying.get(i, []):
                if value not in before:
                    self._release(value)

    def _release(self, value: str) -> None:
        slot = self.locations[value] - _MEMORY
        self._free[self.kinds[slot]].append(slot)

    def _is_fused(self, value: str) -> bool:
        return value in self.locations and self.kinds[self.locations[value] - _MEMORY] == _SLOT

    def _kind(self, op: _Op) -> int:
        if op.column:
            return _SLOT_COLUMN
        later = any(op.out in reader.operands and reader.segment > op.segment for reader in self.ops)
        return _SLOT_ROW if later and self._whole_rows else _SLOT

    def _deaths(self) -> dict[str, int]:
        """Return the op after which each slot is free: its last reader, or the segment's end if used across strips."""
        death: dict[str, int] = {}
        segment_ends = {op.segment: i for i, op in enumerate(self.ops)}
        for op in self.ops:
            if op.out in self.locations:
                continue
            readers = [i for i, reader in enumerate(self.ops) if op.out in reader.operands]
            last = max(readers)
            death[op.out] = last if self._kind(op) == _SLOT else segment_ends[self.ops[last].segment]
        return death

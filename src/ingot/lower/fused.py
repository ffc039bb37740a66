"""Fused groups: element-wise ops, row reductions and norms over one space; one step computes a chunk at a time.

A space is the dims of the group's full values. A value is full (it has the space's dims) or a column (one element per
row: the result of a reduction over the last axis, or a value computed from such results).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ingot.ir.dtype import DType, f32
from ingot.ir.graph import Graph, Node
from ingot.lower.elementwise import kernel_op
from ingot.lower.view import View, collapse, contiguous_strides
from ingot.ops.quantize import fixed_steps

REDUCTIONS = frozenset(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"))
NORMS = frozenset(("layer_norm", "rms_norm"))
QUANTIZERS = frozenset(("quantize", "dequantize"))

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FusedLimits:
    """The limits of a backend's fused programs.

    costs: the number of program ops for each supported graph op, as `kernel_op` names it. ops: the largest number of
    program ops. tensors: the largest number of tensors read and written together. reduced: the largest number of
    elements of a reduced row. recomputes: whether a segment recomputes the values it needs from earlier segments
    instead of reading scratch.
    """

    costs: Mapping[str, int]
    ops: int
    tensors: int
    reduced: int
    recomputes: bool = False


@dataclass(eq=False, slots=True)
class FusedGroup:
    """Nodes, in order, that become one step. columns: the members' values with one element per row."""

    space: Dims
    members: list[Node] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name of the step: the names of all its values."""
        return " ".join(node.output for node in self.members)

    @property
    def reduces(self) -> bool:
        return bool(self.columns) or any(node.op.name in NORMS for node in self.members)


def find_fused_groups(
    graph: Graph, static: set[str], used: Collection[Node], limits: FusedLimits, rounded: Collection[DType] = ()
) -> list[FusedGroup]:
    """Return groups of at least two nodes; no node is in two groups, is static or `used`, and no group closes a cycle.

    Greedy, in the graph's order: a node joins all of its operands' groups, or the last one that it may join. rounded:
    the dtypes of casts of full values that may be members.
    """
    free = (node for node in graph.nodes if node not in used and node.outputs[0] not in static)
    eligible = {node: None for node in free if _is_eligible(graph, node, limits, rounded)}
    finder = _Finder(graph, limits)
    for node in eligible:
        producers = (graph.producer(operand) for operand in node.operands)
        if any(other in eligible for other in (*producers, *graph.users(node.output))):  # a single node is no group
            finder.assign(node)
    groups = dict.fromkeys(finder.group_of.values())
    return [group for group in groups if len(group.members) > 1]


def _is_eligible(graph: Graph, node: Node, limits: FusedLimits, rounded: Collection[DType]) -> bool:
    """Return whether a fused program has the op, in f32, its tensors are not empty, and its result is read."""
    if kernel_op(node) not in limits.costs:
        return False
    if node.op.name in QUANTIZERS and fixed_steps(graph, node) is None:
        return False
    if node.op.name == "cast" and node.dtype not in rounded:
        return False
    if not graph.values[node.output].users and not graph.is_output(node.output):
        return False
    values = [*node.outputs, *streamed(node)]
    floats = [*(() if rounds(node) else node.outputs), *(() if node.op.name == "dequantize" else streamed(node))]
    if any(graph.type(v).dtype is not f32 for v in floats) or any(0 in graph.type(v).dims for v in values):
        return False
    return node.op.name not in REDUCTIONS or node.axes == (len(graph.type(str(node.operands[0])).dims) - 1,)


def rounds(node: Node) -> bool:
    """Return whether a node's result has another dtype, so that it exists only in memory."""
    return node.op.name in ("cast", "quantize")


def streamed(node: Node) -> list[str]:
    """Return the operands that a fused program reads per element; scalar scales and zero points are constants in it."""
    operands = node.operands[:1] if node.op.name in QUANTIZERS else node.operands
    return [operand for operand in operands if operand is not None]


class _Finder:
    def __init__(self, graph: Graph, limits: FusedLimits):
        self.graph = graph
        self.limits = limits
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.group_of: dict[Node, FusedGroup] = {}
        self._nests: dict[tuple[Dims, bool, tuple[Dims, ...]], bool] = {}  # by space, reduces, and operands

    def assign(self, node: Node) -> None:
        """Add a node to the groups that compute its operands, or to a new one."""
        producers = (self.graph.producer(o) for o in node.operands)
        parents = list(dict.fromkeys(self.group_of[m] for m in producers if m is not None and m in self.group_of))
        for wanted in (parents, *([p] for p in reversed(parents))):
            if wanted and (joined := self._join(wanted, node)) is not None:
                self.group_of.update(dict.fromkeys(joined.members, joined))
                return
        own = self._join([], node)
        if own is not None:
            self.group_of[node] = own

    def _join(self, parents: Sequence[FusedGroup], node: Node) -> FusedGroup | None:
        """Return the group of the parents' members and a node; None if they cannot form one."""
        space = parents[0].space if parents else self.graph.type(_widest(node)).dims
        if any(parent.space != space for parent in parents):
            return None
        members = sorted((m for p in parents for m in p.members), key=self.index.__getitem__)
        joined = FusedGroup(space, [*members, node], set().union(*(p.columns for p in parents)))
        # After a merge, a member may read a value of another parent that was in memory before.
        changed = joined.members if len(parents) > 1 else [node]
        if not all(_add_role(self.graph, joined, each) for each in changed) or not self._fits(joined):
            return None
        return None if self._returns(joined, self.index[node]) else joined

    def _fits(self, group: FusedGroup) -> bool:
        """Return whether the group fits the limits of a fused program and its operands broadcast in one loop nest."""
        if group.reduces and (not group.space or group.space[-1] > self.limits.reduced):
            return False
        results = escaping(self.graph, group)
        operands = external(self.graph, group)
        copies = sum(value in group.columns for value in results)
        count = sum(self.limits.costs[kernel_op(node)] for node in group.members) + copies
        if count > self.limits.ops or len(operands) + len(results) > self.limits.tensors:
            return False
        dims = tuple(self.graph.type(value).dims for value in operands)
        key = group.space, group.reduces, dims  # identical layers share the result
        if key not in self._nests:
            views = [_ideal_view(each).expand(group.space) for each in dims]
            self._nests[key] = loop_nest([_ideal_view(group.space), *views], group.reduces) is not None
        return self._nests[key]

    def _returns(self, group: FusedGroup, last: int) -> bool:
        """Return whether a node outside reads from the group and is read by it; other groups count as one node each."""
        members = set(group.members)
        seen: set[Node] = set()
        todo = self._after(group.members)
        while todo:
            node = todo.pop()
            if self.index[node] > last or node in seen or node in members:
                continue
            others = self.group_of[node].members if node in self.group_of else [node]
            seen.update(others)
            readers = self._after(others)
            if any(reader in members for reader in readers):
                return True
            todo += readers
        return False

    def _after(self, nodes: Iterable[Node]) -> list[Node]:
        return [user for node in nodes for output in node.outputs for user in self.graph.values[output].users]


def _widest(node: Node) -> str:
    """Return the value whose dims are the space of a new group with this node."""
    return str(node.operands[0]) if node.op.name in REDUCTIONS else node.output


def column_dims(space: Dims) -> Dims:
    """Return the dims of a column that broadcasts."""
    return (*space[:-1], 1)


def _add_role(graph: Graph, group: FusedGroup, node: Node) -> bool:
    """Return whether a node's dims allow it to be a member; record its result if it is a column."""
    space, name = group.space, node.op.name
    inside = {value for member in group.members for value in member.outputs} - set(node.outputs)
    dims = graph.type(node.output).dims
    operands = streamed(node)
    if name == "dequantize" and operands[0] in inside:
        return False
    if name in REDUCTIONS:
        group.columns.add(node.output)
        return graph.type(operands[0]).dims == space and operands[0] not in group.columns
    if rounds(node) and (dims != space or operands[0] in group.columns):
        return False
    if dims == space:
        narrow = (o for o in operands if o in inside and o in group.columns)
        return all(graph.type(o).dims == column_dims(space) for o in narrow) and (
            name not in NORMS or operands[0] not in group.columns
        )
    if dims in (column_dims(space), space[:-1]) and name not in NORMS and any(o in group.columns for o in operands):
        group.columns.add(node.output)
        return all((o in group.columns and graph.type(o).dims == dims) or _is_scalar(graph, o) for o in operands)
    return False


def _is_scalar(graph: Graph, value: str) -> bool:
    return graph.type(value).size == 1


def _ideal_view(dims: Dims) -> View:
    return View("", f32, 0, dims, contiguous_strides(dims))


def external(graph: Graph, group: FusedGroup) -> list[str]:
    """Return the values that a group reads but does not compute, in order of use."""
    inside = {value for member in group.members for value in member.outputs}
    return list(dict.fromkeys(o for node in group.members for o in streamed(node) if o not in inside))


def escaping(graph: Graph, group: FusedGroup) -> list[str]:
    """Return the members' values that are read elsewhere or are graph outputs."""
    members = set(group.members)
    return [
        node.output
        for node in group.members
        if graph.is_output(node.output) or any(user not in members for user in graph.values[node.output].users)
    ]


@dataclass(frozen=True, slots=True)
class LoopNest:
    """A space as [outer, rows, cols], and for each view the strides of these dims; the last stride is 0 or 1."""

    outer: int
    rows: int
    cols: int
    strides: list[tuple[int, int, int]]


def loop_nest(views: Sequence[View], reduces: bool) -> LoopNest | None:
    """Return the loop nest of views of one shape, or None.

    None if it needs more than three dims or a last stride other than 0 or 1.

    reduces: rows stay one dim; otherwise as many dims as possible are merged.
    """
    if reduces:
        lead = [replace(view, shape=view.shape[:-1], strides=view.strides[:-1]) for view in views]
        shape, strides = collapse(lead)
        if len(views[0].shape) == 1:
            shape, strides = (1,), [(0,)] * len(views)
        shape = (*shape, views[0].shape[-1])
        strides = [(*s, view.strides[-1]) for s, view in zip(strides, views, strict=True)]
    else:
        shape, strides = collapse(views)
    if len(shape) > 3 or any(shape[-1] > 1 and s[-1] not in (0, 1) for s in strides):
        return None
    padding = (1,) * (3 - len(shape))
    outer, rows, cols = padding + shape
    return LoopNest(outer, rows, cols, [(0,) * len(padding) + s for s in strides])  # type: ignore[misc]

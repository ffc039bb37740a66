"""The lowering of one static graph: values become views of root tensors, nodes become steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ingot.ir.dtype import DType, f32
from ingot.ir.graph import Graph, Node, TensorType
from ingot.ir.sized import is_sized
from ingot.lower.beyond import beyond
from ingot.lower.cost import Cost
from ingot.lower.epilogue import EpilogueLimits, Group, find_groups
from ingot.lower.formats import Format
from ingot.lower.fused import FusedGroup, FusedLimits, find_fused_groups
from ingot.lower.lowered import Choice, Field, Lowered, Pointer, Step, Tensor, moved, moved_field
from ingot.lower.packed_weight import PackedWeight, make_packed_weight, panel_tables
from ingot.lower.sources import sources_of_steps
from ingot.lower.states import deferred_values, overwrite_states
from ingot.lower.target import Target
from ingot.lower.topological import topological
from ingot.lower.view import View, channels_last, contiguous_strides, ordered_strides, reshaped_order
from ingot.lower.weight_expr import WeightExpr, weight_expr, weight_exprs
from ingot.lower.widen import foreign_values

Condition = Callable[["Lowering", Node], str]


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
    misplaced: Condition


class Asked(NamedTuple):
    """The first rule that accepts a node, all reasons, and the kernels that only `avoid` refused by sizes of a run."""

    row: KernelRule | None
    choice: Choice
    avoided: list[str]


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
    pack: Callable[[Lowering, PackedWeight, View, View], None]
    copy: Callable[[Lowering, View, View], None]
    cast: Callable[[Lowering, View, View], None]
    scratch_floats: Callable[[str, Mapping[str, Field]], int]
    cost: Callable[[Lowered, Step], Cost]
    _beyond: dict[str, list[list[int]]] = field(default_factory=dict, init=False, repr=False)

    def beyond(self, op: str) -> list[list[int]]:
        """Return where the next rule that begins differently is, per rule and condition; see `beyond.beyond`."""
        if op not in self._beyond:
            self._beyond[op] = beyond([rule.conditions for rule in self.rules.get(op, ())])
        return self._beyond[op]


class Lowering:
    """Turn nodes into steps. Kernel rules ask it for operands (`view`, `rows`, `contiguous`) and results (`result`)."""

    def __init__(self, graph: Graph, target: Target, backend: Backend):
        self.graph = graph
        self.target = target
        self.backend = backend
        self.static = weight_exprs(graph)
        self.narrow = backend.epilogues.rounded.intersection(target.rounded)  # the dtypes of results for dot products
        # Values that depend on no input. A run's steps read the same state, so its values are packed once per run.
        self.state_invariant = weight_exprs(graph, ("state",), self.static) if graph.states else self.static
        limits = backend.epilogues if target.epilogues else None
        self.groups, self.grouped = find_groups(graph, self.static, limits, self.state_invariant, self.narrow)
        self.decodes = not graph.ops.isdisjoint(format.decoder for format in backend.formats)
        self.lowered = Lowered(target)
        self.node_name = ""
        self._asked: dict[Node, Asked] = {}
        self._reasons: defaultdict[Node, dict[Condition, str]] = defaultdict(dict)
        self._candidates: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, str], ...]] = {}  # by op and reasons
        self._foreign = foreign_values(graph, backend.held)
        self._weights: dict[str, str] = {}  # packed weight key -> tensor id
        self._statics: dict[str, WeightExpr] = {}
        self.panels: dict[tuple[str, str, bool, Callable[[WeightExpr], WeightExpr] | None], View] = {}
        self._deferred = deferred_values(graph, self.static, self.narrow, backend.formats)
        self._copies: dict[tuple[View, tuple[int, ...] | None], View] = {}
        self._casts: dict[tuple[View, DType], View] = {}
        self.rounded: dict[View, View] = {}  # rows -> their result of `round_rows`
        self.row_means: dict[str, View] = {}  # of images [N, C, H, W] that are averaged, as [N, H, C]
        self.rounded_images: dict[View, tuple[View, View, View]] = {}  # as bytes, with scales and zero points
        self._slots: dict[Node, dict[str | None, int]] = {}  # the start of each operand of a concat
        self._work: list[float] = []  # estimated nanoseconds of each step on one thread
        self._replacing: dict[str, str] = {}  # update -> the state that it overwrites
        self._scalars: dict[tuple[float, DType], str] = {}
        self._stand_ins: dict[str, tuple[View, View]] = {}  # tensor -> its view, and the view it is copied to
        self._panel_tables = panel_tables(graph, self.static)

    # -- all nodes ---------------------------------------------------------------------------------------------

    def build(self, mode: str) -> Lowered:
        """Lower every node, in order, once. mode: the name of the lowered graph's mode."""
        self.lowered.mode = mode
        for name in self.graph.inputs:
            self.alias(name, self._root(name, self.graph.type(name), "input"))
        for name in self.graph.states:
            self.alias(name, self._root(name, self.graph.type(name), "state"))
        for unit in self._units():
            if isinstance(unit, FusedGroup):
                self.backend.add_fused(self, unit)
            else:
                self._lower(unit)
        for external, value in self.graph.outputs.items():
            self.lowered.outputs[external] = self._output(external, value)
        self._update_states()
        for name in self.graph.inputs:
            self.lowered.inputs[name] = self.lowered.views[name]
        self._cut()
        self.lowered.sources = sources_of_steps(self.graph, self.groups, self.fused_groups)
        return self.lowered

    def _lower(self, node: Node) -> None:
        self.node_name = node.outputs[0]
        self.choose(node).lower(self, node)

    def _units(self) -> list[Node | FusedGroup]:
        """Return the units of steps, operands first: fused groups, last nodes of epilogue groups, other nodes."""
        waiting = self.static.union(self._deferred)
        alone = [n for n in self.graph.nodes if n not in self.grouped and n.outputs[0] not in waiting]
        used = self.grouped | set(self.groups)
        limits = self.backend.fused_limits
        self.fused_groups = (
            find_fused_groups(self.graph, self.static, used, limits, self.narrow) if self.target.fuses else []
        )
        if not self.fused_groups and not self.graph.states:
            return list(alone)
        unit_of: dict[Node, Node | FusedGroup] = {node: node for node in alone}
        unit_of |= {member: unit for unit in self.fused_groups for member in unit.members}
        unit_of |= {member: last for last, group in self.groups.items() for member in group.members}
        unit_of |= {group.rounding: last for last, group in self.groups.items() if group.rounding is not None}
        last = {unit_of[node]: i for i, node in enumerate(self.graph.nodes) if node in unit_of}
        needs: dict[Node | FusedGroup, set[Node | FusedGroup]] = {unit: set() for unit in last}
        for node, unit in unit_of.items():
            before = needs[unit]
            for producer in self._producers(node):
                if producer in unit_of:
                    before.add(unit_of[producer])
            before.discard(unit)
        self._replacing, early = overwrite_states(self.graph, self._deferred, unit_of, needs, last)
        order = sorted(last, key=lambda unit: (early.get(unit, last[unit]), last[unit]))
        return topological(needs, {unit: i for i, unit in enumerate(order)})

    def _producers(self, node: Node) -> list[Node]:
        """Return the nodes that compute a node's operands; a deferred operand is replaced by its own operands."""
        producers = [producer for operand in node.operands if (producer := self.graph.producer(operand)) is not None]
        if not self._deferred:
            return producers
        deferred = [self._producers(each) if each.outputs[0] in self._deferred else [each] for each in producers]
        return [producer for each in deferred for producer in each]

    def choose(self, node: Node) -> KernelRule:
        """Return the first rule that accepts the node and its operands' layouts; record all reasons for `explain`."""
        rule, choice, avoided = self.ask(node)
        misplaced: dict[KernelRule, str] = {}
        while rule is not None and (reason := rule.misplaced(self, node)):
            misplaced[rule] = reason
            rule, choice, avoided = self._ask(node, misplaced)
        assert rule is not None, f"{node} has no kernel; segments should have kept it out"
        self.lowered.choices.append(choice)
        self.lowered.avoided += avoided
        return rule

    def ask(self, node: Node) -> Asked:
        """Return the first rule that accepts the node in any layout, and each candidate's reason; cached."""
        if node not in self._asked:
            self._asked[node] = self._ask(node)
        return self._asked[node]

    def _ask(self, node: Node, misplaced: Mapping[KernelRule, str] = {}) -> Asked:
        reasons: list[str] = []
        avoided: list[str] = []
        op = self.groups[node].root.op.name if node in self.groups else node.op.name
        rules, beyond, chosen = self.backend.rules.get(op, ()), self.backend.beyond(op), None
        foreign = self._foreign_reason(node) if self._foreign else ""
        while chosen is None and (tried := len(reasons)) < len(rules):
            rule = rules[tried]
            if foreign:
                reasons += [foreign] * len(rules)
            elif (depth := self._refused(rule, node)) is not None:
                reason = self._reasons[node][rule.conditions[depth]]
                reasons += [reason] * (beyond[tried][depth] - tried)
            else:
                reason = misplaced.get(rule, "")
                if not reason and (reason := rule.avoid(self, node)) and rule.by_size and is_sized(self.graph, node):
                    avoided.append(f"{rule.kernel} for {node.outputs[0]!r}: {reason}")
                reasons.append(reason)
                chosen = None if reason else rule
        key = op, tuple(reasons)
        if key not in self._candidates:
            self._candidates[key] = tuple(zip([rule.kernel for rule in rules], reasons, strict=False))
        return Asked(chosen, Choice(node.outputs[0], op, self._candidates[key]), avoided)

    def refusal(self, rule: KernelRule, node: Node) -> str:
        """Return the first reason against a rule; each condition is evaluated once per node."""
        depth = self._refused(rule, node)
        return "" if depth is None else self._reasons[node][rule.conditions[depth]]

    def _refused(self, rule: KernelRule, node: Node) -> int | None:
        """Return the index of the first condition of a rule that refuses the node; None if the rule accepts it."""
        known = self._reasons[node]
        for depth, condition in enumerate(rule.conditions):
            if (reason := known.get(condition)) is None:
                reason = known[condition] = condition(self, node)
            if reason:
                return depth
        return None

    def _foreign_reason(self, node: Node) -> str:
        """Return why no kernel may read or write a node's values, such as their dtype; or ""."""
        names = (*node.operands, *node.outputs)
        return next((self._foreign[name] for name in names if name in self._foreign), "")

    def group(self, node: Node) -> Group:
        """Return the group with this last node: the matmul, convolution or attention with its epilogue."""
        return self.groups[node]

    def is_only_rounded(self, group: Group) -> bool:
        """Return whether only the group's rounding reads its output."""
        return group.rounding is not None and self.graph.only_user(group.output) is group.rounding

    # -- operands -----------------------------------------------------------------------------------------------

    def view(self, value: str | None) -> View:
        """Return the view of a value; static values become raw weights on first use, deferred values are lowered."""
        assert value is not None
        if value in self._deferred:
            reader = self.node_name
            self._lower(self._deferred.pop(value))
            self.node_name = reader
        if value not in self.lowered.views:
            assert value in self.static, f"{value} is not lowered yet"
            self.alias(value, self.weight(value))
        return self.lowered.views[value]

    def contiguous(self, value: str | View | None) -> View:
        """Return the value, row-major; copied if it is not."""
        view = value if isinstance(value, View) else self.view(value)
        return view if view.is_contiguous else self.copy(view)

    def rows(self, value: str | None) -> View:
        """Return the value as [rows, columns] with adjacent columns; copied if it is not."""
        view = self.view(value).rows()
        if view is None:
            view = self.copy(self.view(value)).rows()
        assert view is not None
        return view

    def adjacent(self, value: str | None) -> View:
        """Return the value with its last dim adjacent; copied if it is not."""
        view = self.view(value)
        return view if view.has_adjacent_columns else self.copy(view)

    def weight(
        self,
        value: str | WeightExpr,
        layout: str = "raw",
        transposed: bool = False,
        format: Format | None = None,
        beside: tuple[WeightExpr, ...] = (),
        group: int = 0,
    ) -> View:
        """Return a static value in a layout; raw values keep their shape. beside, group: see `PackedWeight`."""
        value = self.weight_expr(value) if isinstance(value, str) else value
        packed_weight = make_packed_weight(value, layout, transposed, format, beside, group)
        own, shape = packed_weight.dtype, value.dims
        dtype = self.backend.held[value.type.dtype] if format is None else own
        id = self._weights.get(packed_weight.key)
        if id is None:
            id = self._weights[packed_weight.key] = self._id()
            held = packed_weight.nbytes if dtype is own else packed_weight.nbytes * dtype.bits // own.bits
            self.lowered.tensors[id] = Tensor(id, value.name, dtype, shape, "weight", held, packed_weight)
        return View(id, dtype, 0, shape, contiguous_strides(shape))

    def weight_expr(self, name: str) -> WeightExpr:
        """Return the expression of a static value of the graph, or of an added constant, for a packed weight."""
        return weight_expr(self.graph, name, self._statics)

    def is_panel_table(self, value: str | None) -> bool:
        """Return whether a matmul also reads a table, with its rows as columns; it is then packed once for both."""
        return value in self._panel_tables

    def image(self, value: str | None) -> View:
        """Return the value [N, C, H, W] channels last; copied if it is not. [N, C, W] gets one row."""
        view = self.view(value)
        return (view if view.has_adjacent_channels else self.copy(view, channels_last(len(view.shape)))).as_image()

    def copy(self, view: View, order: tuple[int, ...] | None = None) -> View:
        """Return a copy of a view, row-major or with its axes in another order; cached."""
        if (view, order) not in self._copies:
            source = self.lowered.tensors[view.tensor]
            target = self.temporary(f"{source.name}.copy", view.dtype, view.shape, order)
            self.add_copy(view, target)
            self._copies[view, order] = target
        return self._copies[view, order]

    def cast(self, view: View, dtype: DType) -> View:
        """Return a row-major copy of a view in another dtype; cached."""
        if (view, dtype) not in self._casts:
            name = f"{self.lowered.tensors[view.tensor].name}.{dtype}"
            self._casts[view, dtype] = self.temporary(name, dtype, view.shape)
            self.backend.cast(self, view, self._casts[view, dtype])
        return self._casts[view, dtype]

    def scalar(self, value: float, dtype: DType) -> View:
        """Return a constant of one element, shape []."""
        return self.view(self.constant(value, dtype))

    def constant(self, value: float, dtype: DType) -> str:
        """Return the name of a constant of one element, shape [], that the graph does not have."""
        if (value, dtype) not in self._scalars:
            name = f"scalar.{value}.{dtype}"
            while name in self.graph.values or name in self._statics:
                name += ".1"
            data = np.array(value, dtype.numpy)
            self._statics[name] = WeightExpr(name, (TensorType(dtype, ()),), data=data)
            self.static.add(name)
            self._scalars[value, dtype] = name
        return self._scalars[value, dtype]

    def temporary(self, name: str, dtype: DType, shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> View:
        """Add a tensor for data between steps, row-major or with its axes in another order."""
        return self._new(name, dtype, shape, "activation", order)

    def move(self, source: View, target: View) -> None:
        """Add a step that copies elements between two views of one shape, with a cast if their dtypes differ."""
        (self.backend.copy if source.dtype is target.dtype else self.backend.cast)(self, source, target)

    def add_copy(self, source: View, target: View) -> None:
        """Add a step that copies elements between two views of one shape."""
        self.backend.copy(self, source, target)

    # -- results ------------------------------------------------------------------------------------------------

    def result(self, value: str, strided: bool = False, order: tuple[int, ...] | None = None) -> View:
        """Return the view that a step writes a value to: inside the tensor of its only reader if possible.

        strided: the kernel accepts any strides; otherwise the view is row-major. order: the axis order of a tensor
        allocated for the value, outermost first.
        """
        if value in self.lowered.views:
            return self.lowered.views[value]
        view = self._replaced_state(value) or self._destination(value, strided, order)
        if view is None:
            view = self._own(value, order)
        self.alias(value, view)
        return view

    def accepted_result(
        self, value: str, accepts: Callable[[View], bool], order: tuple[int, ...] | None = None
    ) -> View:
        """Return `result` with any strides, or a stand-in for it if a kernel does not accept the view."""
        view = self.result(value, strided=True, order=order)
        return view if accepts(view) else self.stand_in(value, view, order)

    def stand_in(self, value: str, target: View, order: tuple[int, ...] | None = None) -> View:
        """Return a tensor that the next step writes instead of a view of a value, row-major or in `order`.

        The step is followed by a copy into the view.
        """
        view = self.temporary(f"{value}.rows", target.dtype, target.shape, order)
        self._stand_ins[view.tensor] = view, target
        return view

    def _own(self, value: str, order: tuple[int, ...] | None) -> View:
        """Add a tensor for one value: an output if the value is one and has its layout, or has no other reader."""
        type = self.graph.type(value)
        names = [external for external, v in self.graph.outputs.items() if v == value]
        is_plain = order is None or ordered_strides(type.dims, order) == contiguous_strides(type.dims)
        if names and (is_plain or not self.graph.users(value)):
            return self._root(names[0], type, "output")
        return self.temporary(value, type.dtype, type.dims, order)

    def _replaced_state(self, value: str) -> View | None:
        """Return the memory of the state that a value replaces, if its op may overwrite it after all reads."""
        state = self._replacing.get(value)
        return None if state is None else self._update(state)

    def _update(self, state: str) -> View:
        """Add a tensor for the update of a state, at the state's address; readers of the update read the new value."""
        old = self.view(state)
        new = self._root(state, self.graph.type(state), "update")
        self.lowered.tensors[new.tensor].replaces = old.tensor
        self.lowered.states[state] = new
        return new

    def replaces(self, new: View, old: View) -> bool:
        """Return whether a view is the update of another view: the same elements at the same address."""
        return self.lowered.tensors[new.tensor].replaces == old.tensor and replace(new, tensor=old.tensor) == old

    def _update_states(self) -> None:
        """Copy the updates that were not computed in place, as if all at once: no copy reads what another has written.

        A copy waits for the copies that read the state it overwrites. If copies wait for each other in a cycle, or for
        themselves, one of the states is first copied to a temporary tensor.
        """
        waiting: dict[str, View] = {}
        for state, update in self.graph.states.items():
            if self.view(update) == self.view(state):
                self.lowered.states[state] = self.view(state)
            elif state not in self.lowered.states:
                waiting[state] = self.view(update)
        while waiting:
            read = {source.tensor for source in waiting.values()}
            ready = [state for state in waiting if self.view(state).tensor not in read]
            if ready:
                self.node_name = self.graph.states[ready[0]]
                self.add_copy(waiting.pop(ready[0]), self._update(ready[0]))
                continue
            blocked = self.view(next(iter(waiting))).tensor
            for each, source in waiting.items():
                if source.tensor == blocked:
                    self.node_name = self.graph.states[each]
                    waiting[each] = self.copy(source)

    def alias(self, value: str, view: View) -> None:
        """Record that a value is a view of existing memory."""
        self.lowered.views[value] = view

    def _destination(self, value: str, strided: bool, order: tuple[int, ...] | None) -> View | None:
        """Return a view inside the result of a permute, reshape or concat that is the only reader of this value."""
        user = self.graph.only_user(value)
        if user is None or user in self.grouped or user in self.groups:
            return None
        type = self.graph.type(value)
        shape = type.dims
        dense = None if order is None else View("", type.dtype, 0, shape, ordered_strides(shape, order))
        match user.op.name:
            case "permute" if strided:
                inverse = tuple(user.axes.index(i) for i in range(len(user.axes)))
                permuted = None if dense is None else dense.permute(user.axes)
                view = self.result(user.output, strided, None if permuted is None else permuted.order).permute(inverse)
            case "reshape":
                wanted = None if dense is None else reshaped_order(dense, self.graph.type(user.output).dims)
                reshaped = self.result(user.output, strided, wanted).reshape(shape)
                if reshaped is None:
                    return None
                view = reshaped
            case "concat" if strided or all(dim == 1 for dim in shape[: user.axis]):
                view = self._concat_slot(user, value, strided, order)
            case _:
                return None
        assert strided or view.is_contiguous
        return view

    def _concat_slot(self, concat: Node, value: str, strided: bool, order: tuple[int, ...] | None) -> View:
        whole = self.result(concat.output, strided, order)
        if concat not in self._slots:
            sizes = [self.graph.type(str(operand)).dims[concat.axis] for operand in concat.operands]
            self._slots[concat] = dict(zip(concat.operands, accumulate(sizes, initial=0), strict=False))
        start = self._slots[concat][value]
        starts, stops = [0] * len(whole.shape), [*whole.shape]
        starts[concat.axis] = start
        stops[concat.axis] = start + self.graph.type(value).dims[concat.axis]
        return whole.slice(starts, stops, [1] * len(starts))

    def _output(self, external: str, value: str) -> View:
        """Return the view of a graph output, which owns its memory: any other view is copied into a new root."""
        view = self.view(value)
        root = self.lowered.tensors[view.tensor]
        mine = root.kind == "output" and root.name == external
        if mine and view.is_contiguous and view.dtype.nbytes(view.size) == root.nbytes:
            return view
        self.node_name = value
        target = self._root(external, self.graph.type(value), "output")
        self.add_copy(view, target)
        return target

    # -- steps --------------------------------------------------------------------------------------------------

    def step(
        self,
        kernel: str,
        args_type: str,
        fields: dict[str, Field],
        reads: Sequence[View],
        writes: Sequence[View],
        *,
        work: float,
        inplace: tuple[int, ...] = (),
        keeps: int = 0,
        scratch_floats: int = 0,
        iterations: int = 1,
    ) -> None:
        """Add a step. `work` is an estimate in nanoseconds on one thread, for `_cut`. keeps, iterations: see `Step`.

        scratch_floats: f32 scratch per task, if the kernel rule sets it; otherwise the backend computes it. The kernel
        gets it as `scratch` and `scratch_stride`.
        """
        if all(w.size == 0 for w in writes):
            return
        redirected = self._redirect(reads, writes, inplace) if self.graph.states and not keeps else {}
        written = [moved(view, redirected) for view in writes] if redirected else writes
        fields = {name: moved_field(value, redirected) for name, value in fields.items()} if redirected else fields
        scratch = None
        if scratch_floats := scratch_floats or self.backend.scratch_floats(kernel, fields):
            slot = -(-scratch_floats // 16) * 16
            scratch = self._new(f"{self.node_name}.scratch", f32, (slot,), "scratch").tensor
            fields = fields | {"scratch": Pointer(scratch), "scratch_stride": slot}
        self._work.append(work)
        views = tuple(reads), tuple(written)
        self.lowered.steps.append(
            Step(kernel, args_type, fields, *views, self.node_name, inplace, 1, scratch, keeps, iterations)
        )
        for view, own in zip(writes, written, strict=True) if redirected else ():
            if own != view:
                self.add_copy(own, view)
        for write in writes if self._stand_ins else ():
            if write.tensor in self._stand_ins:
                self.add_copy(*self._stand_ins.pop(write.tensor))

    def _redirect(self, reads: Sequence[View], writes: Sequence[View], inplace: tuple[int, ...]) -> dict[str, str]:
        """For a step that would overwrite a state that it reads: return update id -> id of a temporary tensor."""
        redirected = {}
        for i, write in enumerate(writes):
            tensor = self.lowered.tensors[write.tensor]
            readers = [k for k, read in enumerate(reads) if read.tensor == tensor.replaces]
            permitted = i == 0 and len(readers) == 1 and readers[0] in inplace
            if readers and not (permitted and self.replaces(write, reads[readers[0]])):
                own = self.temporary(f"{self.node_name}.aside", tensor.dtype, tensor.shape)
                redirected[write.tensor] = own.tensor
        return redirected

    def _cut(self) -> None:
        """Split steps into tasks, each with a slot of scratch, and into chunks, if the run is worth several threads."""
        if sum(self._work) < self.target.run_nanoseconds:
            return
        for step, work in zip(self.lowered.steps, self._work, strict=True):
            worth = int(work / step.iterations / self.target.task_nanoseconds)  # each iteration has a barrier
            step.parts = max(1, min(self.target.threads, worth))
            chunks = self.target.chunks(work / step.parts)
            if chunks > 1 and "chunks" in step.fields:
                step.chunks = step.fields["chunks"] = chunks
            if step.scratch is not None:
                tensor = self.lowered.tensors[step.scratch]
                tensor.shape = (tensor.shape[0] * step.parts,)
                tensor.nbytes *= step.parts

    # -- tensors ------------------------------------------------------------------------------------------------

    def _id(self) -> str:
        return f"t{len(self.lowered.tensors)}"

    def _root(self, name: str, type: TensorType, kind: str) -> View:
        return self._new(name, type.dtype, type.dims, kind)

    def _new(
        self, name: str, dtype: DType, shape: tuple[int, ...], kind: str, order: tuple[int, ...] | None = None
    ) -> View:
        """Add a root whose axes are stored in `order`, and return its view; the view's shape is `shape`."""
        dtype = self.backend.held[dtype]
        strides = contiguous_strides(shape) if order is None else ordered_strides(shape, order)
        view = View(self._id(), dtype, 0, shape, strides)
        stored = shape if order is None or view.is_contiguous else tuple(shape[axis] for axis in order)
        self.lowered.tensors[view.tensor] = Tensor(view.tensor, name, dtype, stored, kind, dtype.nbytes(view.size))
        return view


def pointer(view: View) -> Pointer:
    """Return the pointer field of a view's first element."""
    return Pointer(view.tensor, view.byte_offset)

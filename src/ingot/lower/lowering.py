"""The lowering of one static graph: values become views of root tensors, nodes become steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from ingot.ir.dtype import DType
from ingot.ir.graph import Graph, Node
from ingot.lower.formats import Format
from ingot.lower.fused import FusedGroup, find_fused_groups
from ingot.lower.lowered import Lowered, Pointer
from ingot.lower.packed_weight import make_packed_weight
from ingot.lower.selection import Backend, KernelRule
from ingot.lower.sources import sources_of_steps
from ingot.lower.states import deferred_values, overwrite_states
from ingot.lower.step_builder import StepBuilder
from ingot.lower.target import Target
from ingot.lower.topological import topological
from ingot.lower.view import View, channels_last, contiguous_strides, ordered_strides, reshaped_order
from ingot.lower.weight_expr import WeightExpr


class Lowering(StepBuilder):
    """Turn nodes into steps. Kernel rules ask it for operands (`view`, `rows`, `contiguous`) and results (`result`).

    panels: packed by steps. rounded: rows, with the result of `round_rows`. row_means: of images [N, C, H, W] that are
    averaged, as [N, H, C]. rounded_images: images as bytes, with scales and zero points.
    """

    def __init__(self, graph: Graph, target: Target, backend: Backend):
        super().__init__(graph, target, backend)
        self.panels: dict[tuple[str, str, bool, Callable[[WeightExpr], WeightExpr] | None], View] = {}
        self.rounded: dict[View, View] = {}
        self.row_means: dict[str, View] = {}
        self.rounded_images: dict[View, tuple[View, View, View]] = {}
        self._deferred = deferred_values(graph, self.static, self.narrow, backend.formats)
        self._copies: dict[tuple[View, tuple[int, ...] | None], View] = {}
        self._casts: dict[tuple[View, DType], View] = {}
        self._slots: dict[Node, dict[str | None, int]] = {}  # the start of each operand of a concat
        self._replacing: dict[str, str] = {}  # update -> the state that it overwrites

    # -- all nodes ---------------------------------------------------------------------------------------------

    def build(self, mode: str) -> Lowered:
        """Lower every node, in order, once. mode: the name of the lowered graph's mode."""
        self.lowered.mode = mode
        for name in self.graph.inputs:
            self.alias(name, self.root(name, self.graph.type(name), "input"))
        for name in self.graph.states:
            self.alias(name, self.root(name, self.graph.type(name), "state"))
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
        self.backend.divide(self)
        self.cut()
        self.lowered.sources = sources_of_steps(self.graph, self.groups, self.fused_groups)
        return self.lowered

    def _lower(self, node: Node) -> None:
        """Add the steps of a node by the first rule that accepts the node and the layouts of its operands."""
        self.node_name = node.outputs[0]
        rule, choice, avoided = self.ask(node)
        misplaced: dict[KernelRule, str] = {}
        while rule is not None and (reason := rule.misplaced(self, node)):
            misplaced[rule] = reason
            rule, choice, avoided = self.ask(node, misplaced)
        assert rule is not None, f"{node} has no kernel; segments should have kept it out"
        self.lowered.choices.append(choice)
        self.lowered.avoided += avoided
        rule.lower(self, node)

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
        qparams: tuple[WeightExpr, ...] = (),
        group: int = 0,
    ) -> View:
        """Return a static value in a layout; raw values keep their shape. qparams, group: see `PackedWeight`."""
        value = self.weight_expr(value) if isinstance(value, str) else value
        return self.add_weight(make_packed_weight(value, layout, transposed, format, qparams, group))

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
        """Return `result` with any strides, or a contiguous copy of it if a kernel does not accept the view."""
        view = self.result(value, strided=True, order=order)
        return view if accepts(view) else self.stand_in(value, view, order)

    def _own(self, value: str, order: tuple[int, ...] | None) -> View:
        """Add a tensor for one value: an output if the value is one and has its layout, or has no other reader."""
        type = self.graph.type(value)
        names = [external for external, v in self.graph.outputs.items() if v == value]
        is_plain = order is None or ordered_strides(type.dims, order) == contiguous_strides(type.dims)
        if names and (is_plain or not self.graph.users(value)):
            return self.root(names[0], type, "output")
        return self.temporary(value, type.dtype, type.dims, order)

    def _replaced_state(self, value: str) -> View | None:
        """Return the memory of the state that a value replaces, if its op may overwrite it after all reads."""
        state = self._replacing.get(value)
        return None if state is None else self._update(state)

    def _update(self, state: str) -> View:
        """Add a tensor for the update of a state, at the state's address; readers of the update read the new value."""
        old = self.view(state)
        new = self.root(state, self.graph.type(state), "update")
        self.lowered.tensors[new.tensor].replaces = old.tensor
        self.lowered.states[state] = new
        return new

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
        target = self.root(external, self.graph.type(value), "output")
        self.add_copy(view, target)
        return target


def pointer(view: View) -> Pointer:
    """Return the pointer field of a view's first element."""
    return Pointer(view.tensor, view.byte_offset)

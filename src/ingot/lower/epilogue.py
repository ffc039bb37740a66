"""Groups: a matmul or convolution with the bias, activation, residual and gate that its kernel applies to its sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot import abi
from ingot.dtype import f32
from ingot.ir import Graph, Node
from ingot.lower.elementwise import kernel_op, scalars, vector_kernel
from ingot.lower.formats import PANEL

_GATE_COLUMNS = PANEL // 2  # a panel of a gated matmul holds so many columns of each half
_GATE_FIRST, _GATE_SECOND = abi.constant("INGOT_GATE_FIRST"), abi.constant("INGOT_GATE_SECOND")


@dataclass(slots=True)
class Group:
    """root: the matmul or conv. The epilogue computes activation(root + bias) + residual into `output`.

    residual_first: the activation is applied to the whole sum instead. act_alpha, act_beta: its float attributes.
    gate: where not 0, the output is activation(one half of the columns of root + bias) * the other half, without a
    residual; _GATE_FIRST: the activation is the first half's, _GATE_SECOND: the second's. `members` are the nodes from
    the root to the last, in order.
    """

    root: Node
    members: list[Node]
    bias: str | None = None
    activation: int = 0
    act_alpha: float = 0.0
    act_beta: float = 0.0
    residual: str | None = None
    residual_first: bool = False
    gate: int = 0

    @property
    def output(self) -> str:
        return self.members[-1].output


def find_groups(graph: Graph, static: set[str]) -> tuple[dict[Node, Group], set[Node]]:
    """Groups by their last node, and the nodes that are inside a group but not its last."""
    groups: dict[Node, Group] = {}
    inside: set[Node] = set()
    for node in graph.nodes:
        if node.op.name not in ("matmul", "conv") or node in groups or node.output in static:
            continue
        group = Group(node, [node])
        if graph.type(node.output).dtype is f32:
            _grow(graph, static, group, lambda user: user in groups or user in inside)
            _take_gate(graph, static, group)
        groups[group.members[-1]] = group
        inside.update(group.members[:-1])
    return groups, inside


def _grow(graph: Graph, static: set[str], group: Group, taken: Callable[[Node], bool]) -> None:
    """Adds following nodes while each is the only reader of what came before, and not of another group."""
    while group.residual is None or not group.activation:
        user = graph.only_user(group.output)
        if user is None or taken(user):
            return
        if _is_activation(user) and not group.activation:
            _take_activation(group, user)
        elif user.op.name == "add" and group.residual is None:
            other = user.operands[1] if user.operands[0] == group.output else user.operands[0]
            assert other is not None
            if not _take_add(graph, static, group, user, other):
                return
        else:
            return
        group.members.append(user)


def _is_activation(node: Node) -> bool:
    kernel = vector_kernel(node)
    return kernel is not None and kernel.is_activation


def _take_activation(group: Group, node: Node) -> None:
    group.activation = abi.constant(f"INGOT_ACT_{kernel_op(node)}")
    group.act_alpha, group.act_beta = scalars(node)
    group.residual_first = group.residual is not None


def _take_add(graph: Graph, static: set[str], group: Group, add: Node, other: str) -> bool:
    """Takes an add as the bias or the residual; False when it is neither."""
    shape = graph.type(group.output).dims
    other_shape = graph.type(other).dims
    if other == group.output or graph.type(add.output).dims != shape:
        return False
    takes_bias = group.root.op.name == "matmul" and not group.bias and not group.activation
    if takes_bias and other in static and other_shape == shape[-1:]:
        group.bias = other
        return True
    if other_shape != shape or other in static:
        return False
    group.residual = other
    return True


def _take_gate(graph: Graph, static: set[str], group: Group) -> None:
    """Takes activation(half) * other half where these are all that is made of a product with a fixed matrix."""
    root, weight = group.root, group.root.operands[1]
    if root.op.name != "matmul" or root.transpose_a or weight not in static or graph.type(str(weight)).rank != 2:
        return
    if group.activation or group.residual is not None or graph.is_output(group.output):
        return
    if (halves := _halves(graph, group.output)) is None:
        return
    for gate, (gated, other) in ((_GATE_FIRST, halves), (_GATE_SECOND, halves[::-1])):
        activation, product = graph.only_user(gated.output), graph.only_user(other.output)
        if activation is None or product is None or not _is_activation(activation):
            continue
        if product.op.name == "mul" and graph.only_user(activation.output) is product:
            _take_activation(group, activation)
            group.gate = gate
            group.members += [*halves, activation, product]
            return


def _halves(graph: Graph, value: str) -> tuple[Node, ...] | None:
    """The two slices that halve the last axis of a value, where nothing else reads it and its halves fill panels."""
    *outer, width = graph.type(value).dims
    half = width // 2
    slices = tuple(node for node in graph.users(value) if node.op.name == "slice" and set(node.steps) == {1})
    if width == 0 or width % (2 * _GATE_COLUMNS) or len(graph.users(value)) != 2 or len(slices) != 2:
        return None
    slices = tuple(sorted(slices, key=lambda node: node.starts[-1]))
    zeros = [0] * len(outer)
    for node, start in zip(slices, (0, half), strict=True):
        if [*node.starts] != [*zeros, start] or [*node.stops] != [*outer, start + half]:
            return None
    return slices

"""Epilogue groups: a product with the bias, activation, residual and gate that its kernel applies to its sums.

A product is a matmul, a convolution or attention. A group may also contain the cast or quantize that rounds its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from ingot.ir.dtype import DType, f32, i32
from ingot.ir.graph import Graph, Node
from ingot.lower.elementwise import kernel_op, scalars
from ingot.ops.quantize import fixed_steps

INTEGER_PRODUCTS = ("matmul_integer", "conv_integer")
_PRODUCTS = ("matmul", "conv", "attention", *INTEGER_PRODUCTS)


@dataclass(frozen=True, slots=True)
class EpilogueLimits:
    """What the kernels of a backend's products can apply to their sums.

    activations: the ops that they apply, as `kernel_op` names them. gate_columns: if one half of the columns gates the
    other, each half is processed in units of this many columns. rounded: the dtypes that results may be written in, in
    addition to f32. slopes: whether products with a constant weight apply prelu, with a slope for each column.
    """

    activations: frozenset[str]
    gate_columns: int
    rounded: frozenset[DType]
    slopes: bool = False


@dataclass(slots=True)
class Group:
    """A product and its epilogue, which computes activation(root + bias) + residual into `output`.

    root: the matmul, conv or attention; attention has no epilogue except `rounding`. members: the nodes from the root
    to the last, in order. activation: as `kernel_op` names it, or "". residual_first: the activation is applied after
    the residual is added. act_alpha, act_beta: the float attributes of the activation. slopes: of prelu, one number or
    one per column. gate: if "first" or "second", the output is activation(that half of the columns of root + bias) *
    the other half, without a residual. rounding: a cast of the output, which the kernel writes in addition to the
    output or instead of it. scale: for a product of integers, the factor of its sums, one number or one per column.
    requantized: the quantize of the result. residual_quant: the dequantize of the residual, if the kernel reads the
    quantized residual. middle: a quantize and a dequantize between the result and the addition of the residual.
    """

    root: Node
    members: list[Node]
    bias: str | None = None
    activation: str = ""
    act_alpha: float = 0.0
    act_beta: float = 0.0
    slopes: str | None = None
    residual: str | None = None
    residual_first: bool = False
    gate: Literal["", "first", "second"] = ""
    rounding: Node | None = None
    scale: str | None = None
    requantized: Node | None = None
    residual_quant: Node | None = None
    middle: tuple[Node, Node] | None = None

    @property
    def output(self) -> str:
        return self.members[-1].output


def find_groups(
    graph: Graph,
    static: set[str],
    limits: EpilogueLimits | None,
    state_invariant: set[str],
    rounded: Collection[DType] = (),
) -> tuple[dict[Node, Group], set[Node]]:
    """Return groups by their last node, and the other nodes of groups, including each group's `rounding`.

    limits: None if products apply no epilogue. state_invariant: the values that depend on no input. rounded: the dtypes
    that kernels may round results to.
    """
    groups: dict[Node, Group] = {}
    inside: set[Node] = set()
    for node in graph.nodes:
        if node.op.name not in _PRODUCTS or node in groups or node.output in static:
            continue
        group = Group(node, [node])
        if limits is None:
            groups[node] = group
            continue
        if node.op.name == "attention":
            _round_attention(graph, rounded, group)
        elif graph.type(node.output).dtype is i32 and node.op.name in INTEGER_PRODUCTS:
            _grow_integer(graph, static, limits, group, lambda user: user in groups or user in inside)
        elif graph.type(node.output).dtype is f32:
            _grow(graph, static, state_invariant, limits, group, lambda user: user in groups or user in inside)
            _add_gate(graph, static, limits, group)
            _add_rounding(graph, static, rounded, group)
        groups[group.members[-1]] = group
        inside.update(group.members[:-1])
        if group.rounding is not None:
            inside.add(group.rounding)
    return groups, inside


def _grow(
    graph: Graph,
    static: set[str],
    state_invariant: set[str],
    limits: EpilogueLimits,
    group: Group,
    is_used: Callable[[Node], bool],
) -> None:
    """Add following nodes as long as each is the only reader of the previous result and belongs to no other group."""
    while group.residual is None or not group.activation:
        user = graph.only_user(group.output)
        if user is None or is_used(user):
            return
        if kernel_op(user) in limits.activations and not group.activation:
            _add_activation(group, user)
        elif user.op.name == "prelu" and limits.slopes and not group.activation:
            if not _add_slopes(graph, static, group, user):
                return
        elif user.op.name == "add" and group.residual is None:
            other = user.operands[1] if user.operands[0] == group.output else user.operands[0]
            assert other is not None
            if not _add_bias_or_residual(graph, static, state_invariant, group, user, other):
                return
        else:
            return
        group.members.append(user)


def _add_activation(group: Group, node: Node) -> None:
    group.activation = kernel_op(node)
    group.act_alpha, group.act_beta = scalars(node)
    group.residual_first = group.residual is not None


def _add_slopes(graph: Graph, static: set[str], group: Group, prelu: Node) -> bool:
    """Add a prelu with one constant slope, or one per column; return False if it has other slopes."""
    root, slopes = group.root, prelu.operands[1]
    if prelu.operands[0] != group.output or slopes not in static or not _has_fixed_weight(graph, static, root):
        return False
    decoder = graph.producer(root.operands[1])
    if root.op.name == "conv" and decoder is not None and decoder.op.name == "dequantize":
        return False  # its sums may be integers
    sums, dims = graph.type(group.output).dims, graph.type(str(slopes)).dims
    axis = column_axis(root, len(sums))
    one_each = (*(1,) * axis, sums[axis], *(1,) * (len(sums) - 1 - axis))
    if graph.type(prelu.output).dims != sums or (math.prod(dims) != 1 and dims != one_each[len(sums) - len(dims) :]):
        return False
    _add_activation(group, prelu)
    group.slopes = slopes
    return True


def column_axis(root: Node, rank: int) -> int:
    """Return the axis of a product's result that has one bias value per index."""
    return 1 if root.op.name in ("conv", "conv_integer") else rank - 1


def _has_fixed_weight(graph: Graph, static: set[str], root: Node) -> bool:
    """Return whether kernels of packed weights accept a product."""
    weight = root.operands[1]
    return weight in static and (root.op.name == "conv" or (not root.transpose_a and graph.type(str(weight)).rank == 2))


def _add_bias_or_residual(
    graph: Graph, static: set[str], state_invariant: set[str], group: Group, add: Node, other: str
) -> bool:
    """Add an add as the bias or the residual; return False if it is neither."""
    shape = graph.type(group.output).dims
    other_shape = graph.type(other).dims
    if other == group.output or graph.type(add.output).dims != shape:
        return False
    accepts_bias = group.root.op.name == "matmul" and not group.bias and not group.activation
    if accepts_bias and other in state_invariant and other_shape == shape[-1:]:
        group.bias = other
        return True
    if other_shape != shape or other in static:
        return False
    group.residual = other
    return True


def _add_gate(graph: Graph, static: set[str], limits: EpilogueLimits, group: Group) -> None:
    """Add activation(half) * other half if the product has a constant matrix and no other reader."""
    if group.root.op.name != "matmul" or not _has_fixed_weight(graph, static, group.root):
        return
    if group.activation or group.residual is not None or graph.is_output(group.output):
        return
    if (halves := _halves(graph, group.output, limits.gate_columns)) is None:
        return
    pairs: tuple[tuple[Literal["first", "second"], tuple[Node, ...]], ...]
    pairs = (("first", halves), ("second", halves[::-1]))
    for gate, (gated, other) in pairs:
        activation, product = graph.only_user(gated.output), graph.only_user(other.output)
        if activation is None or product is None or kernel_op(activation) not in limits.activations:
            continue
        if product.op.name == "mul" and graph.only_user(activation.output) is product:
            _add_activation(group, activation)
            group.gate = gate
            group.members += [*halves, activation, product]
            return


def _round_attention(graph: Graph, rounded: Collection[DType], group: Group) -> None:
    """Set `rounding` of an attention whose only reader is a cast."""
    user = graph.only_user(group.output)
    if user is not None and user.op.name == "cast" and user.dtype in rounded:
        group.rounding = user


def _add_rounding(graph: Graph, static: set[str], rounded: Collection[DType], group: Group) -> None:
    """Set `rounding` to a cast of the output of a product with a constant matrix or filter."""
    if not _has_fixed_weight(graph, static, group.root):
        return
    casts = (user for user in graph.users(group.output) if user.op.name == "cast" and user.dtype in rounded)
    group.rounding = next(casts, None)


def _halves(graph: Graph, value: str, unit: int) -> tuple[Node, ...] | None:
    """Return the two slices that halve the last axis of a value into whole units, if they are its only readers."""
    *outer, width = graph.type(value).dims
    half = width // 2
    slices = tuple(node for node in graph.users(value) if node.op.name == "slice" and set(node.steps) == {1})
    if width == 0 or width % (2 * unit) or len(graph.users(value)) != 2 or len(slices) != 2:
        return None
    slices = tuple(sorted(slices, key=lambda node: node.starts[-1]))
    zeros = [0] * len(outer)
    for node, start in zip(slices, (0, half), strict=True):
        if [*node.starts] != [*zeros, start] or [*node.stops] != [*outer, start + half]:
            return None
    return slices


def _grow_integer(
    graph: Graph, static: set[str], limits: EpilogueLimits, group: Group, is_used: Callable[[Node], bool]
) -> None:
    """Add the scale of a product of integers, then a bias, a residual, an activation and a quantize."""
    sums = graph.type(group.output)
    axis = column_axis(group.root, sums.rank)
    columns = sums.dims[axis]
    user = graph.only_user(group.output)
    if user is None or user.op.name != "dequantize" or len(user.operands) > 2 or user.dtype is not f32 or user.block:
        return
    scale = graph.type(str(user.operands[1]))
    if scale.dtype is not f32 or (scale.size != 1 and user.axis != axis):
        return
    group.members.append(user)
    group.scale = user.operands[1]
    user = graph.only_user(group.output)
    if user is not None and user.op.name == "add":
        other = str(user.operands[1] if user.operands[0] == group.output else user.operands[0])
        one_each = (columns, *[1] * (sums.rank - 1 - axis))
        fits = graph.type(other).dims in (one_each, (1, *one_each)) and graph.type(user.output).dims == sums.dims
        if other in static and fits:
            group.bias = other
            group.members.append(user)
    if group.root.operands[1] in static:
        _add_residual(graph, static, group, is_used)
    user = graph.only_user(group.output)
    if user is not None and kernel_op(user) in limits.activations and not is_used(user):
        _add_activation(group, user)
        group.members.append(user)
        user = graph.only_user(group.output)
    if user is not None and user.op.name == "quantize" and fixed_steps(graph, user) is not None:
        group.requantized = user
        group.members.append(user)


def _add_residual(graph: Graph, static: set[str], group: Group, is_used: Callable[[Node], bool]) -> None:
    """Add a residual of a product of integers, possibly after a quantize and a dequantize of the result."""
    middle = _there_and_back(graph, group.output)
    name = middle[1].output if middle else group.output
    add = graph.only_user(name)
    if add is None or add.op.name != "add" or is_used(add) or (middle and is_used(middle[1])):
        return
    other = str(add.operands[1] if add.operands[0] == name else add.operands[0])
    dims = graph.type(name).dims
    if other == name or other in static or graph.type(other).dims != dims or graph.type(add.output).dims != dims:
        return
    group.middle, group.residual, group.residual_first = middle, other, True
    group.members += middle or ()
    decoder_node = graph.producer(other)
    is_free = decoder_node is not None and graph.only_user(other) is add and not is_used(decoder_node)
    if (
        decoder_node is not None
        and is_free
        and decoder_node.op.name == "dequantize"
        and fixed_steps(graph, decoder_node) is not None
    ):
        group.residual_quant = decoder_node
        group.members.append(decoder_node)
    group.members.append(add)


def _there_and_back(graph: Graph, value: str) -> tuple[Node, Node] | None:
    """Return the quantize (scale 1) and dequantize (constant scale) that a value goes through alone; else None."""
    quantized = graph.only_user(value)
    decoded = None if quantized is None else graph.only_user(quantized.output)
    if quantized is None or decoded is None or (quantized.op.name, decoded.op.name) != ("quantize", "dequantize"):
        return None
    there, back = fixed_steps(graph, quantized), fixed_steps(graph, decoded)
    if there is None or back is None or there != (1.0, back[1]) or back[0] == 0:
        return None
    return quantized, decoded

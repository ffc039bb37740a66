"""Groups: a matmul or convolution with the bias, activation, residual and gate that its kernel applies to its sums, and
what rounds its results, or those of attention.
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
    """What a backend's products can do with their sums.

    activations: the ops that they apply, as `kernel_op` names them. gate_columns: where one half of the columns gates
    the other, they take each half by so many. rounded: the dtypes that results may be written in, beside f32. slopes:
    whether those with a fixed matrix or filter apply prelu, with a slope for each column.
    """

    activations: frozenset[str]
    gate_columns: int
    rounded: frozenset[DType]
    slopes: bool = False


@dataclass(slots=True)
class Group:
    """root: the matmul, conv or attention, which has no epilogue but `rounding`. The epilogue computes
    activation(root + bias) + residual into `output`.

    activation: as `kernel_op` names it, or "". residual_first: it is applied to the whole sum instead. act_alpha,
    act_beta: its float attributes. slopes: of prelu, one number or one for each column. gate: where it is "first" or
    "second", the output is activation(that half of the columns of root + bias) * the other half, without a residual.
    `members` are the nodes from the root to the last, in order. rounding: a cast of the output, which the kernel writes
    beside it, or in its place. scale: of a product of integers, what its sums are multiplied with, one number or one
    for each column. requantized: what rounds the result to integers. residual_quant: the dequantize that makes the
    residual, where the kernel reads its codes. middle: a quantize and a dequantize that the result goes through before
    the residual is added.
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
    """Groups by their last node, and the nodes that are inside a group but not its last, or a group's rounding.

    limits: None for products that compute nothing with their sums. state_invariant: what depends on no input, static or
    not.
    rounded: the dtypes that kernels may round results to.
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
            _take_gate(graph, static, limits, group)
            _take_rounding(graph, static, rounded, group)
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
    taken: Callable[[Node], bool],
) -> None:
    """Adds following nodes while each is the only reader of what came before, and not of another group."""
    while group.residual is None or not group.activation:
        user = graph.only_user(group.output)
        if user is None or taken(user):
            return
        if kernel_op(user) in limits.activations and not group.activation:
            _take_activation(group, user)
        elif user.op.name == "prelu" and limits.slopes and not group.activation:
            if not _take_slopes(graph, static, group, user):
                return
        elif user.op.name == "add" and group.residual is None:
            other = user.operands[1] if user.operands[0] == group.output else user.operands[0]
            assert other is not None
            if not _take_add(graph, static, state_invariant, group, user, other):
                return
        else:
            return
        group.members.append(user)


def _take_activation(group: Group, node: Node) -> None:
    group.activation = kernel_op(node)
    group.act_alpha, group.act_beta = scalars(node)
    group.residual_first = group.residual is not None


def _take_slopes(graph: Graph, static: set[str], group: Group, prelu: Node) -> bool:
    """Takes a prelu with one fixed slope, or one for each column; False when it has others."""
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
    _take_activation(group, prelu)
    group.slopes = slopes
    return True


def column_axis(root: Node, rank: int) -> int:
    """The axis of a product's result along which its columns lie, with a bias each."""
    return 1 if root.op.name in ("conv", "conv_integer") else rank - 1


def _has_fixed_weight(graph: Graph, static: set[str], root: Node) -> bool:
    """Whether kernels of packed weights take a product."""
    weight = root.operands[1]
    return weight in static and (root.op.name == "conv" or (not root.transpose_a and graph.type(str(weight)).rank == 2))


def _take_add(graph: Graph, static: set[str], state_invariant: set[str], group: Group, add: Node, other: str) -> bool:
    """Takes an add as the bias or the residual; False when it is neither."""
    shape = graph.type(group.output).dims
    other_shape = graph.type(other).dims
    if other == group.output or graph.type(add.output).dims != shape:
        return False
    takes_bias = group.root.op.name == "matmul" and not group.bias and not group.activation
    if takes_bias and other in state_invariant and other_shape == shape[-1:]:
        group.bias = other
        return True
    if other_shape != shape or other in static:
        return False
    group.residual = other
    return True


def _take_gate(graph: Graph, static: set[str], limits: EpilogueLimits, group: Group) -> None:
    """Takes activation(half) * other half where these are all that is made of a product with a fixed matrix."""
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
            _take_activation(group, activation)
            group.gate = gate
            group.members += [*halves, activation, product]
            return


def _round_attention(graph: Graph, rounded: Collection[DType], group: Group) -> None:
    """Takes a cast that is all that reads an attention."""
    user = graph.only_user(group.output)
    if user is not None and user.op.name == "cast" and user.dtype in rounded:
        group.rounding = user


def _take_rounding(graph: Graph, static: set[str], rounded: Collection[DType], group: Group) -> None:
    """Takes a cast of the output of a product with a fixed matrix or filter."""
    if not _has_fixed_weight(graph, static, group.root):
        return
    casts = (user for user in graph.users(group.output) if user.op.name == "cast" and user.dtype in rounded)
    group.rounding = next(casts, None)


def _halves(graph: Graph, value: str, unit: int) -> tuple[Node, ...] | None:
    """The two slices that halve the last axis of a value, where nothing else reads it and each has whole units."""
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
    graph: Graph, static: set[str], limits: EpilogueLimits, group: Group, taken: Callable[[Node], bool]
) -> None:
    """Takes the scale of a product of integers, then a bias, a residual, an activation and a rounding to integers."""
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
        _take_sum(graph, static, group, taken)
    user = graph.only_user(group.output)
    if user is not None and kernel_op(user) in limits.activations and not taken(user):
        _take_activation(group, user)
        group.members.append(user)
        user = graph.only_user(group.output)
    if user is not None and user.op.name == "quantize" and fixed_steps(graph, user) is not None:
        group.requantized = user
        group.members.append(user)


def _take_sum(graph: Graph, static: set[str], group: Group, taken: Callable[[Node], bool]) -> None:
    """Takes a residual that is added to a product of integers, perhaps after it was rounded to codes and back."""
    middle = _there_and_back(graph, group.output)
    name = middle[1].output if middle else group.output
    add = graph.only_user(name)
    if add is None or add.op.name != "add" or taken(add) or (middle and taken(middle[1])):
        return
    other = str(add.operands[1] if add.operands[0] == name else add.operands[0])
    dims = graph.type(name).dims
    if other == name or other in static or graph.type(other).dims != dims or graph.type(add.output).dims != dims:
        return
    group.middle, group.residual, group.residual_first = middle, other, True
    group.members += middle or ()
    codes = graph.producer(other)
    is_free = codes is not None and graph.only_user(other) is add and not taken(codes)
    if codes is not None and is_free and codes.op.name == "dequantize" and fixed_steps(graph, codes) is not None:
        group.residual_quant = codes
        group.members.append(codes)
    group.members.append(add)


def _there_and_back(graph: Graph, value: str) -> tuple[Node, Node] | None:
    """The quantize and dequantize that a value goes through alone, by steps of 1 there and known ones back."""
    quantized = graph.only_user(value)
    decoded = None if quantized is None else graph.only_user(quantized.output)
    if quantized is None or decoded is None or (quantized.op.name, decoded.op.name) != ("quantize", "dequantize"):
        return None
    there, back = fixed_steps(graph, quantized), fixed_steps(graph, decoded)
    if there is None or back is None or there != (1.0, back[1]) or back[0] == 0:
        return None
    return quantized, decoded

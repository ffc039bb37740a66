"""Groups: a matmul or convolution with the bias, activation and residual that its kernel applies on the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.dtype import f32
from ingot.ir import Graph, Node

# op (and its `approximate` attribute) -> INGOT_ACT_* of abi.h, and the op's float attributes: act_alpha, act_beta
ACTIVATIONS: dict[str, tuple[int, tuple[str, ...]]] = {
    "relu": (1, ()),
    "gelu.erf": (2, ()),
    "gelu.tanh": (3, ()),
    "silu": (4, ()),
    "sigmoid": (5, ()),
    "tanh": (6, ()),
    "clip": (7, ("minimum", "maximum")),
    "leaky_relu": (8, ("alpha",)),
    "hard_sigmoid": (9, ("alpha", "beta")),
    "hard_swish": (10, ()),
}


@dataclass(slots=True)
class Group:
    """root: the matmul or conv. The epilogue computes activation(root + bias) + residual into `output`.

    residual_first: the activation is applied to the whole sum instead. act_alpha, act_beta: its float attributes.
    `members` are the nodes from the root to the last, in order.
    """

    root: Node
    members: list[Node]
    bias: str | None = None
    activation: int = 0
    act_alpha: float = 0.0
    act_beta: float = 0.0
    residual: str | None = None
    residual_first: bool = False

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
        groups[group.members[-1]] = group
        inside.update(group.members[:-1])
    return groups, inside


def _grow(graph: Graph, static: set[str], group: Group, taken: Callable[[Node], bool]) -> None:
    """Adds following nodes while each is the only reader of what came before, and not of another group."""
    while group.residual is None or not group.activation:
        user = graph.only_user(group.output)
        if user is None or taken(user):
            return
        name = f"gelu.{user.approximate}" if user.op.name == "gelu" else user.op.name
        if name in ACTIVATIONS and not group.activation:
            _take_activation(group, user, *ACTIVATIONS[name])
        elif user.op.name == "add" and group.residual is None:
            other = user.operands[1] if user.operands[0] == group.output else user.operands[0]
            assert other is not None
            if not _take_add(graph, static, group, user, other):
                return
        else:
            return
        group.members.append(user)


def _take_activation(group: Group, node: Node, code: int, attributes: tuple[str, ...]) -> None:
    group.activation = code
    group.act_alpha, group.act_beta, *_ = (*(float(getattr(node, name)) for name in attributes), 0.0, 0.0)
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

"""Activations that are computed again where gradients need them, so that they need not be kept until then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ingot.errors import LimitError
from ingot.ir.graph import Graph, Node

# What is computed of one operand, which the gradient of the op reads anyway.
_AGAIN = frozenset(("silu", "gelu", "mish", "softplus", "hard_swish"))
_BLOCKS = (32, 16, 8, 4)  # that a graph is tried to be cut into
_SHARES = 4  # of the blocks of each cut that may be computed again: a quarter, a half ...
_WINDOW = 0.5  # of a block, in which a better place for its end is looked for
_ELEMENT = 8  # operations for an element of what is no product


def recompute_activations(graph: Graph, loss: str) -> None:
    """Has what comes after a loss read copies of activations that are made where they are read.

    Only of activations whose operand is kept for the gradients anyway, so that nothing new is kept. Passes that merge
    equal nodes would undo it.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    last = graph.producer(loss)
    assert last is not None
    for node in list(graph.nodes):
        if order[node] >= order[last] or node.op.name not in _AGAIN or graph.is_output(node.output):
            continue
        later = _after(graph, node.output, order, order[last])
        if later and _after(graph, str(node.operands[0]), order, order[last]):
            first = min(later, key=order.__getitem__)
            again = graph.add(node.op.name, node.operands, f"{node.output}.again", before=first, **node.attributes)
            for user in later:
                _read_instead(graph, user, {node.output: again.output})


def _after(graph: Graph, value: str, order: dict[Node, int], place: int) -> list[Node]:
    """The nodes behind a place that read a value."""
    return [user for user in graph.users(value) if order.get(user, 0) > place]


def _read_instead(graph: Graph, node: Node, others: dict[str, str]) -> None:
    graph.set_operands(node, [None if o is None else others.get(o, o) for o in node.operands])


# -- blocks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trade:
    """What a graph takes within a budget. nbytes: of all its memory; kept: of that where nothing is computed again.
    again, blocks: how many of how many parts of the way to the loss are computed twice. work: the operations of these
    over those of the whole graph.
    """

    nbytes: int
    kept: int
    again: int
    blocks: int
    work: float

    def __str__(self) -> str:
        if not self.again:
            return f"{self.nbytes:,} bytes, nothing is computed again"
        return (
            f"{self.nbytes:,} bytes where {self.kept:,} would keep all activations: {self.again} of {self.blocks}"
            f" blocks are computed again, {self.work:.0%} more operations"
        )


def fit_budget(graph: Graph, loss: str, nbytes_of: Callable[[Graph], int], budget: int) -> tuple[Graph, Trade]:
    """A graph that takes no more bytes than a budget, and computes as little again as such a one must; and the trade.

    The way to the loss is cut into blocks, where little crosses from one to the next. Of the first blocks nothing is
    kept but what crosses, and they are computed again before the gradients read them. Every choice is planned, and the
    choices are the same for every budget: a smaller one never takes more. Values have the bits that they would have.

    Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic differentiation",
    1992; Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016.

    loss: the value that the gradients are of. nbytes_of: what a graph takes. Raises LimitError with the fewest bytes
    where none fits.
    """
    kept = nbytes_of(graph)
    if kept <= budget:
        return graph, Trade(kept, kept, 0, 0, 0.0)
    whole = sum(_operations(graph, node) for node in graph.nodes)
    least = kept
    for work, again, blocks in sorted(_choices(graph, loss), key=lambda choice: choice[:2]):
        made = graph.copy()
        _compute_again(made, loss, blocks, again)
        nbytes = nbytes_of(made)
        if nbytes <= budget:
            return made, Trade(nbytes, kept, again, len(blocks), work / whole)
        least = min(least, nbytes)
    raise LimitError(f"option memory: too little, got {budget} bytes, expected at least {least}")


def _choices(graph: Graph, loss: str) -> Iterator[tuple[int, int, list[list[Node]]]]:
    """How the way to a loss may be cut: operations that are done again, in how many blocks, and all the blocks."""
    forward = _forward(graph, loss)
    seen = set()
    for count in _BLOCKS:
        blocks = _cut(graph, forward, count)
        for share in range(1, _SHARES + 1):
            again = (len(blocks) - 1) * share // _SHARES  # what the last one makes is read at once
            ends = tuple(map(len, blocks[:again]))
            if again and ends not in seen:
                seen.add(ends)
                nodes = (node for block in blocks[:again] for node in block)
                yield sum(_operations(graph, node) for node in nodes), again, blocks


def _forward(graph: Graph, loss: str) -> list[Node]:
    """The nodes before a loss that it depends on."""
    found, names = set[Node](), [loss]
    while names:
        node = graph.producer(names.pop())
        if node is not None and node not in found:
            found.add(node)
            names += [operand for operand in node.operands if operand is not None]
    return [node for node in graph.nodes if node in found]


def _cut(graph: Graph, forward: Sequence[Node], count: int) -> list[list[Node]]:
    """Blocks of about as many bytes each, whose ends are where the fewest bytes are read on the other side."""
    place = {node: i for i, node in enumerate(forward)}
    total = [0.0]
    crossing = [0] * (len(forward) + 1)  # bytes that are made before a place and read behind it
    for i, node in enumerate(forward):
        made = sum(_nbytes(graph, name) for name in node.outputs)
        total.append(total[-1] + made)
        last = max((place.get(user, -1) for name in node.outputs for user in graph.users(name)), default=-1)
        for between in range(i + 1, last + 1):
            crossing[between] += made
    ends = [0]
    for number in range(1, count):
        low, high = (total[-1] * (number + side * _WINDOW) / count for side in (-1, 1))
        near = [i for i in range(ends[-1] + 1, len(forward)) if low <= total[i] < high]
        if near:
            ends.append(min(near, key=lambda i: (crossing[i], i)))
    return [list(forward[begin:end]) for begin, end in zip(ends, [*ends[1:], len(forward)], strict=True)]


def _compute_again(graph: Graph, loss: str, blocks: Sequence[Sequence[Node]], count: int) -> None:
    """Has what comes behind the loss read copies of what the first blocks make for themselves alone."""
    named = [[node.outputs[0] for node in block] for block in blocks]
    forward = {graph.producer(name) for block in named for name in block}
    order = {node: i for i, node in enumerate(graph.nodes)}
    for block in named[:count]:
        nodes = [node for name in block if (node := graph.producer(name)) is not None]
        inside = set(nodes)
        own = {
            name
            for node in nodes
            for name in node.outputs
            if not graph.is_output(name) and inside.issuperset(u for u in graph.users(name) if u in forward)
        }
        readers = {user for name in own for user in graph.users(name) if user not in forward}
        if not readers:
            continue
        first, *_ = later = sorted(readers, key=order.__getitem__)
        copies = _copied(graph, nodes, own, {o for user in later for o in user.operands if o in own}, first)
        for user in later:
            _read_instead(graph, user, copies)


def _copied(graph: Graph, nodes: Sequence[Node], own: set[str], wanted: set[str], before: Node) -> dict[str, str]:
    """Copies of the wanted values of a block and of what they need of it: value -> its copy."""
    needed = set[Node]()
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            needed.add(node)
            wanted = wanted | {o for o in node.operands if o in own}
    copies: dict[str, str] = {}
    for node in nodes:
        if node in needed:
            operands = [None if o is None else copies.get(o, o) for o in node.operands]
            hints = [f"{name}.again" for name in node.outputs]
            again = graph.add(node.op.name, operands, hints, before=before, **node.attributes)
            copies |= {a: b for a, b in zip(node.outputs, again.outputs, strict=True) if a in own}
    return copies


def _nbytes(graph: Graph, name: str) -> int:
    return graph.type(name).dtype.nbytes(math.prod(graph.type(name).dims))


def _operations(graph: Graph, node: Node) -> int:
    """About how many there are in a node."""
    size = max(math.prod(graph.type(name).dims) for name in node.outputs)
    if node.op.view:
        return 0
    dims = [graph.type(o).dims for o in node.operands if o is not None]
    if node.op.name == "matmul":
        return 2 * size * dims[0][-2 if node.transpose_a else -1]
    if node.op.name.startswith("attention"):
        return 4 * math.prod(dims[0]) * dims[1][-2]
    if node.op.name == "conv_filter_gradient":
        return 2 * size * math.prod(dims[1]) // max(dims[1][1], 1)
    if node.op.name.startswith("conv"):
        return 2 * size * math.prod(dims[1][1:])
    return _ELEMENT * size

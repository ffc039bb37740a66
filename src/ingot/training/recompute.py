"""Recomputation of activations before the gradients read them, so that they need not stay in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ingot.errors import LimitError
from ingot.ir.graph import Graph, Node

# Ops of one operand, which the gradient of the op reads anyway.
_AGAIN = frozenset(("silu", "gelu", "mish", "softplus", "hard_swish"))
_BLOCKS = (32, 16, 8, 4)  # the numbers of blocks that are tried
_SHARES = 4  # shares of the blocks that are tried for recomputation: 1/4, 2/4, 3/4, 4/4
_WINDOW = 0.5  # the part of a block in which its best end is searched
_ELEMENT = 8  # operations per output element of ops other than products


def recompute_activations(graph: Graph, loss: str) -> None:
    """Recompute cheap activations after the loss: their readers there read copies computed just before.

    Only activations whose operand stays in memory for the gradients anyway, so that no other value lives longer. Passes
    that merge equal nodes would undo it.
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


def _after(graph: Graph, value: str, order: dict[Node, int], position: int) -> list[Node]:
    """Return the readers of a value after a position."""
    return [user for user in graph.users(value) if order.get(user, 0) > position]


def _read_instead(graph: Graph, node: Node, others: dict[str, str]) -> None:
    graph.set_operands(node, [None if o is None else others.get(o, o) for o in node.operands])


# -- blocks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trade:
    """The recomputation chosen for a memory budget. nbytes: the memory of the graph; kept: its memory without
    recomputation. again, blocks: `again` of `blocks` blocks before the loss are computed twice. work: the operations of
    these blocks divided by those of the full graph.
    """

    nbytes: int
    kept: int
    again: int
    blocks: int
    work: float

    def __str__(self) -> str:
        if not self.again:
            return f"{self.nbytes:,} bytes, nothing is recomputed"
        return (
            f"{self.nbytes:,} bytes instead of {self.kept:,} without recomputation: {self.again} of {self.blocks}"
            f" blocks are recomputed, {self.work:.0%} more operations"
        )


def fit_budget(graph: Graph, loss: str, nbytes_of: Callable[[Graph], int], budget: int) -> tuple[Graph, Trade]:
    """Return a graph that fits a memory budget with the least recomputation, and the trade.

    The nodes before the loss are cut into blocks at positions where few bytes are live. Of the first blocks only the
    values read by other blocks stay in memory; the others are recomputed before the gradients read them. All choices
    are planned and are the same for every budget, so a smaller budget never uses more memory. Results keep their bits.

    Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic differentiation",
    1992; Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016.

    loss: the name of the value whose gradients are computed. nbytes_of: returns the bytes of a graph. Raises LimitError
    with the fewest possible bytes if no choice fits.
    """
    full = nbytes_of(graph)
    if full <= budget:
        return graph, Trade(full, full, 0, 0, 0.0)
    total = sum(_operations(graph, node) for node in graph.nodes)
    least = full
    for work, again, blocks in sorted(_choices(graph, loss), key=lambda choice: choice[:2]):
        candidate = graph.copy()
        _compute_again(candidate, loss, blocks, again)
        nbytes = nbytes_of(candidate)
        if nbytes <= budget:
            return candidate, Trade(nbytes, full, again, len(blocks), work / total)
        least = min(least, nbytes)
    raise LimitError(f"option memory: too little, got {budget} bytes, expected at least {least}")


def _choices(graph: Graph, loss: str) -> Iterator[tuple[int, int, list[list[Node]]]]:
    """Yield the choices: operations to recompute, number of blocks to recompute, all blocks before the loss."""
    forward = _forward(graph, loss)
    seen = set()
    for count in _BLOCKS:
        blocks = _cut(graph, forward, count)
        for share in range(1, _SHARES + 1):
            again = (len(blocks) - 1) * share // _SHARES  # the last block's values are read immediately
            ends = tuple(map(len, blocks[:again]))
            if again and ends not in seen:
                seen.add(ends)
                nodes = (node for block in blocks[:again] for node in block)
                yield sum(_operations(graph, node) for node in nodes), again, blocks


def _forward(graph: Graph, loss: str) -> list[Node]:
    """Return the nodes that a loss depends on, in order."""
    found, names = set[Node](), [loss]
    while names:
        node = graph.producer(names.pop())
        if node is not None and node not in found:
            found.add(node)
            names += [operand for operand in node.operands if operand is not None]
    return [node for node in graph.nodes if node in found]


def _cut(graph: Graph, forward: Sequence[Node], count: int) -> list[list[Node]]:
    """Cut the nodes into blocks of about equal bytes, at positions where the fewest bytes are live."""
    position = {node: i for i, node in enumerate(forward)}
    total = [0.0]
    crossing = [0] * (len(forward) + 1)  # bytes computed before a position and read after it
    for i, node in enumerate(forward):
        computed = sum(_nbytes(graph, name) for name in node.outputs)
        total.append(total[-1] + computed)
        last = max((position.get(user, -1) for name in node.outputs for user in graph.users(name)), default=-1)
        for between in range(i + 1, last + 1):
            crossing[between] += computed
    ends = [0]
    for number in range(1, count):
        low, high = (total[-1] * (number + side * _WINDOW) / count for side in (-1, 1))
        near = [i for i in range(ends[-1] + 1, len(forward)) if low <= total[i] < high]
        if near:
            ends.append(min(near, key=lambda i: (crossing[i], i)))
    return [list(forward[begin:end]) for begin, end in zip(ends, [*ends[1:], len(forward)], strict=True)]


def _compute_again(graph: Graph, loss: str, blocks: Sequence[Sequence[Node]], count: int) -> None:
    """Recompute the first blocks: nodes after the loss read copies of the values that only these blocks use."""
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
    """Copy the nodes of a block that compute the wanted values; return value -> its copy."""
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
    """Estimate the number of operations of a node."""
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

"""Gradients of ops that move, repeat or clear elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node


@gradient("reshape")
def reshape(g: Backward, node: Node, d: str) -> str:
    """Reshape d to the shape of x."""
    return g.like(d, str(node.operands[0]))


@gradient("permute")
def permute(g: Backward, node: Node, d: str) -> str:
    """Permute the axes of d back."""
    return g.permute(d, axes=tuple(node.axes.index(axis) for axis in range(len(node.axes))))


@gradient("expand")
def expand(g: Backward, node: Node, d: str) -> str:
    """Sum d over the repeated axes."""
    return g.summed(d, str(node.operands[0]))


def cut(g: Backward, x: str, starts: Sequence[int], sizes: Sequence[int]) -> str:
    """Slice a box of a value, given its start and its size."""
    stops = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    return g.slice(x, starts=tuple(starts), stops=stops, steps=(1,) * len(stops))


@gradient("slice")
def slice_(g: Backward, node: Node, d: str) -> str:
    """Write d to the positions it was read from, zeros elsewhere."""
    x = str(node.operands[0])
    sizes_of_d, rank = g.type(d).dims, g.type(x).rank
    if 0 in sizes_of_d:
        return g.zeros(x)
    low, high = [], []
    for axis, (dim, start, step) in enumerate(zip(g.type(x).dims, node.starts, node.steps, strict=True)):
        if step < 0:
            d = g.slice(
                d,
                starts=tuple(sizes_of_d[i] - 1 if i == axis else 0 for i in range(rank)),
                stops=tuple(-1 if i == axis else sizes_of_d[i] for i in range(rank)),
                steps=tuple(-1 if i == axis else 1 for i in range(rank)),
            )
        d = _dilated(g, d, axis, abs(step))
        first = start if step > 0 else start + (sizes_of_d[axis] - 1) * step
        low.append(first)
        high.append(dim - first - ((sizes_of_d[axis] - 1) * abs(step) + 1))
        sizes_of_d = g.type(d).dims
    return g.pad(d, low=tuple(low), high=tuple(high), value=0.0) if any(low) or any(high) else d


def _dilated(g: Backward, d: str, axis: int, step: int) -> str:
    """Insert step - 1 zeros between the elements of d along an axis."""
    dims = g.type(d).dims
    head, count, behind = dims[:axis], dims[axis], dims[axis + 1 :]
    if step == 1 or count == 1:
        return d
    between = tuple(step - 1 if i == axis + 1 else 0 for i in range(len(dims) + 1))
    d = g.pad(g.reshape(d, shape=(*head, count, 1, *behind)), low=(0,) * len(between), high=between, value=0.0)
    d = g.reshape(d, shape=(*head, count * step, *behind))
    return cut(g, d, (0,) * len(dims), (*head, (count - 1) * step + 1, *behind))


@gradient("concat")
def concat(g: Backward, node: Node, d: str) -> list[str]:
    """Split d into the operands' parts."""
    dims = [g.type(str(operand)).dims for operand in node.operands]
    begins = accumulate((each[node.axis] for each in dims), initial=0)
    starts = [tuple(begin if i == node.axis else 0 for i in range(len(dims[0]))) for begin in begins]
    return [cut(g, d, start, size) for start, size in zip(starts, dims, strict=False)]


@gradient("pad")
def pad(g: Backward, node: Node, d: str) -> str:
    """Remove the padding from d."""
    return cut(g, d, node.low, g.type(str(node.operands[0])).dims)


@gradient("trilu")
def trilu(g: Backward, node: Node, d: str) -> str:
    """Return the same triangle of d."""
    return g.trilu(d, k=node.k, upper=node.upper)

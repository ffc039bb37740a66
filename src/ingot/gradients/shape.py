"""Gradients of ops that move, repeat or blank elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node


@gradient("reshape")
def reshape(g: Backward, node: Node, d: str) -> str:
    """d in the shape of x."""
    return g.like(d, str(node.operands[0]))


@gradient("permute")
def permute(g: Backward, node: Node, d: str) -> str:
    """d with its axes moved back."""
    return g.permute(d, axes=tuple(node.axes.index(axis) for axis in range(len(node.axes))))


@gradient("expand")
def expand(g: Backward, node: Node, d: str) -> str:
    """The sum of d over what was repeated."""
    return g.summed(d, str(node.operands[0]))


def cut(g: Backward, x: str, starts: Sequence[int], sizes: Sequence[int]) -> str:
    """A box of a value, by where it begins and how large it is."""
    stops = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    return g.slice(x, starts=tuple(starts), stops=stops, steps=(1,) * len(stops))


@gradient("slice")
def slice_(g: Backward, node: Node, d: str) -> str:
    """d where it was taken from, zeros elsewhere."""
    x = str(node.operands[0])
    made, rank = g.type(d).dims, g.type(x).rank
    if 0 in made:
        return g.zeros(x)
    low, high = [], []
    for axis, (dim, start, step) in enumerate(zip(g.type(x).dims, node.starts, node.steps, strict=True)):
        if step < 0:
            d = g.slice(
                d,
                starts=tuple(made[i] - 1 if i == axis else 0 for i in range(rank)),
                stops=tuple(-1 if i == axis else made[i] for i in range(rank)),
                steps=tuple(-1 if i == axis else 1 for i in range(rank)),
            )
        d = _parted(g, d, axis, abs(step))
        first = start if step > 0 else start + (made[axis] - 1) * step
        low.append(first)
        high.append(dim - first - ((made[axis] - 1) * abs(step) + 1))
        made = g.type(d).dims
    return g.pad(d, low=tuple(low), high=tuple(high), value=0.0) if any(low) or any(high) else d


def _parted(g: Backward, d: str, axis: int, step: int) -> str:
    """d with step - 1 zeros between its elements along an axis."""
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
    """The part of d that each operand is."""
    dims = [g.type(str(operand)).dims for operand in node.operands]
    begins = accumulate((each[node.axis] for each in dims), initial=0)
    starts = [tuple(begin if i == node.axis else 0 for i in range(len(dims[0]))) for begin in begins]
    return [cut(g, d, start, size) for start, size in zip(starts, dims, strict=False)]


@gradient("pad")
def pad(g: Backward, node: Node, d: str) -> str:
    """d without what was added."""
    return cut(g, d, node.low, g.type(str(node.operands[0])).dims)


@gradient("trilu")
def trilu(g: Backward, node: Node, d: str) -> str:
    """The same triangle of d."""
    return g.trilu(d, k=node.k, upper=node.upper)

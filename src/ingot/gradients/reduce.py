"""Gradients of reductions and cumulative sums."""

from __future__ import annotations

import math

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node


def _spread(g: Backward, node: Node, value: str) -> str:
    """Repeat the result of a reduction, or its gradient, along the reduced axes."""
    shape = g.type(str(node.operands[0])).shape
    remaining = tuple(1 if i in node.axes else dim for i, dim in enumerate(shape))
    return g.expand(g.reshape(value, shape=remaining), shape=shape)


@gradient("reduce_sum")
def reduce_sum(g: Backward, node: Node, d: str) -> str:
    """Repeat d."""
    return _spread(g, node, d)


@gradient("reduce_mean")
def reduce_mean(g: Backward, node: Node, d: str) -> str:
    """Divide d by the number of elements, and repeat it."""
    dims = g.type(str(node.operands[0])).dims
    return _spread(g, node, g.div(d, float(math.prod(dims[axis] for axis in node.axes))))


@gradient("reduce_max", "reduce_min")
def reduce_extreme(g: Backward, node: Node, d: str) -> str:
    """Pass d to the largest or smallest elements of x; equal ones share it."""
    x = str(node.operands[0])
    found = g.cast(g.equal(x, _spread(g, node, node.output)), dtype=g.type(x).dtype)
    count = g.reduce_sum(found, axes=node.axes, keepdims=node.keepdims)
    return g.mul(found, _spread(g, node, g.div(d, count)))


@gradient("reduce_prod")
def reduce_prod(g: Backward, node: Node, d: str) -> str:
    """Multiply d by the product of all other elements: the product of those before times that of those after, so that
    zeros need no special case.
    """
    x = str(node.operands[0])
    dims = g.type(x).dims
    remaining = [axis for axis in range(len(dims)) if axis not in node.axes]
    order = (*remaining, *node.axes)
    count = math.prod(dims[axis] for axis in node.axes)
    if not count:
        return g.zeros(x)
    head = tuple(dims[axis] for axis in remaining)
    rows = g.reshape(g.permute(x, axes=order), shape=(*head, count))
    zeros, ones = (0,) * len(head), (1,) * len(head)

    def before(rows: str) -> str:
        low, high = (*zeros, 1), (*zeros, 0)
        shifted = g.pad(rows, low=low, high=high, value=1.0)
        shifted = g.slice(shifted, starts=(*zeros, 0), stops=(*head, count), steps=(*ones, 1))
        return g.cumprod(shifted, axis=len(head))

    def backwards(rows: str) -> str:
        return g.slice(rows, starts=(*zeros, count - 1), stops=(*head, -1), steps=(*ones, -1))

    others = g.mul(before(rows), backwards(before(backwards(rows))))
    others = g.reshape(others, shape=(*head, *(dims[axis] for axis in node.axes)))
    inverse = tuple(order.index(axis) for axis in range(len(dims)))
    return g.mul(_spread(g, node, d), g.permute(others, axes=inverse))


@gradient("cumsum")
def cumsum(g: Backward, node: Node, d: str) -> str:
    """Accumulate d from the end."""
    dims = g.type(d).dims
    if not dims[node.axis]:
        return d
    ends = {
        "starts": tuple(dim - 1 if axis == node.axis else 0 for axis, dim in enumerate(dims)),
        "stops": tuple(-1 if axis == node.axis else dim for axis, dim in enumerate(dims)),
        "steps": tuple(-1 if axis == node.axis else 1 for axis in range(len(dims))),
    }
    return g.slice(g.cumsum(g.slice(d, **ends), axis=node.axis), **ends)

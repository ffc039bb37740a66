"""Gradients of Fourier transforms, which are linear: inverse transforms with other factors."""

from __future__ import annotations

import numpy as np

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node


def _both(g: Backward, node: Node, d: tuple[str | None, ...]) -> list[str]:
    """Return the gradients of both parts, zeros for a missing one."""
    return [g.zeros(output) if each is None else each for output, each in zip(node.outputs, d, strict=True)]


@gradient("fft")
def fft(g: Backward, node: Node, *d: str | None) -> tuple[str, ...]:
    """Apply the inverse transform, multiplied or divided by the length."""
    size = float(g.type(node.outputs[0]).dims[node.axis])
    names = [f"{operand}.gradient" for operand in node.operands]
    transformed = g.graph.add("fft", _both(g, node, d), names, axis=node.axis, inverse=not node.inverse).outputs
    return tuple(g.mul(part, 1 / size if node.inverse else size) for part in transformed)


def _factors(g: Backward, half: str, axis: int, length: int, ends: float, others: float) -> str:
    """Return a factor for each element of the first half of a spectrum of `length` numbers. ends: for the elements that
    have no mirror image.
    """
    type = g.type(half)
    factors = np.full(type.dims[axis], others, type.dtype.numpy)
    factors[0] = ends
    if length % 2 == 0:
        factors[-1] = ends
    shape = tuple(len(factors) if i == axis else 1 for i in range(type.rank))
    return g.array(f"{half}.factors", factors.reshape(shape))


@gradient("rfft")
def rfft(g: Backward, node: Node, *d: str | None) -> str:
    """Apply the inverse transform to half a spectrum; it counts all elements except the ends twice."""
    length = g.type(str(node.operands[0])).dims[node.axis]
    factors = _factors(g, node.outputs[0], node.axis, length, 1.0, 0.5)
    transformed = g.irfft(*(g.mul(part, factors) for part in _both(g, node, d)), axis=node.axis, length=length)
    return g.mul(transformed, float(length))


@gradient("irfft")
def irfft(g: Backward, node: Node, d: str) -> tuple[str, ...]:
    """Divide the transform by the length, with all elements except the ends doubled; imaginary parts of the ends are
    not read.
    """
    half, length = str(node.operands[0]), node.length
    names = [f"{operand}.gradient" for operand in node.operands]
    transformed = g.graph.add("rfft", [d], names, axis=node.axis).outputs
    shares = (_factors(g, half, node.axis, length, ends / length, 2 / length) for ends in (1, 0))
    return tuple(g.mul(part, share) for part, share in zip(transformed, shares, strict=True))

"""Gradients of Fourier transforms, which are linear: transforms the other way."""

from __future__ import annotations

import numpy as np

from ingot.gradients.registry import Backward, gradient
from ingot.ir.graph import Node


def _both(g: Backward, node: Node, d: tuple[str | None, ...]) -> list[str]:
    """The gradients of both parts, zeros for one that has none."""
    return [g.zeros(output) if each is None else each for output, each in zip(node.outputs, d, strict=True)]


@gradient("fft")
def fft(g: Backward, node: Node, *d: str | None) -> tuple[str, ...]:
    """The other transform, without its share of the length, or with that."""
    size = float(g.type(node.outputs[0]).dims[node.axis])
    names = [f"{operand}.gradient" for operand in node.operands]
    made = g.graph.add("fft", _both(g, node, d), names, axis=node.axis, inverse=not node.inverse).outputs
    return tuple(g.mul(part, 1 / size if node.inverse else size) for part in made)


def _factors(g: Backward, half: str, axis: int, length: int, ends: float, others: float) -> str:
    """A factor for each of the first half of a spectrum of so many numbers. ends: of those that no other mirrors."""
    type = g.type(half)
    factors = np.full(type.dims[axis], others, type.dtype.numpy)
    factors[0] = ends
    if length % 2 == 0:
        factors[-1] = ends
    shape = tuple(len(factors) if i == axis else 1 for i in range(type.rank))
    return g.array(f"{half}.factors", factors.reshape(shape))


@gradient("rfft")
def rfft(g: Backward, node: Node, *d: str | None) -> str:
    """What half a spectrum adds up to, where the inverse counts all but its ends twice."""
    length = g.type(str(node.operands[0])).dims[node.axis]
    factors = _factors(g, node.outputs[0], node.axis, length, 1.0, 0.5)
    made = g.irfft(*(g.mul(part, factors) for part in _both(g, node, d)), axis=node.axis, length=length)
    return g.mul(made, float(length))


@gradient("irfft")
def irfft(g: Backward, node: Node, d: str) -> tuple[str, ...]:
    """The transform over the length, of all but the ends twice; the imaginary parts of these are not read."""
    half, length = str(node.operands[0]), node.length
    names = [f"{operand}.gradient" for operand in node.operands]
    made = g.graph.add("rfft", [d], names, axis=node.axis).outputs
    shares = (_factors(g, half, node.axis, length, ends / length, 2 / length) for ends in (1, 0))
    return tuple(g.mul(part, share) for part, share in zip(made, shares, strict=True))

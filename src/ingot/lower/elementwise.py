"""The kernel name and scalar arguments of an element-wise node."""

from __future__ import annotations

from ingot.ir.graph import Node


def kernel_op(node: Node) -> str:
    """Return the op's name, with its string attributes appended: gelu with approximate="erf" is gelu_erf."""
    words = [word for word in node.attributes.values() if isinstance(word, str)] if node.attributes else None
    return "_".join([node.op.name, *words]) if words else node.op.name


def scalars(node: Node) -> tuple[float, float]:
    """Return alpha and beta: the float attributes, in the order of the op's signature."""
    numbers = [float(getattr(node, name)) for name in node.op.attributes if not isinstance(getattr(node, name), str)]
    assert len(numbers) <= 2, f"{node} has more numbers than a kernel takes"
    alpha, beta, *_ = (*numbers, 0.0, 0.0)
    return alpha, beta

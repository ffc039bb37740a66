"""Which kernel of elementwise.def a node is, and the numbers that the kernel is given."""

from __future__ import annotations

from ingot.abi import Elementwise, elementwise
from ingot.ir import Node


def kernel_op(node: Node) -> str:
    """The op's name in elementwise.def: gelu with approximate="erf" is gelu_erf."""
    return "_".join((node.op.name, *(word for word in node.attributes.values() if isinstance(word, str))))


def scalars(node: Node) -> tuple[float, float]:
    """alpha and beta: the float attributes, in the order of the op's signature."""
    numbers = [float(getattr(node, name)) for name in node.op.attributes if not isinstance(getattr(node, name), str)]
    assert len(numbers) <= 2, f"{node} has more numbers than a kernel takes"
    alpha, beta, *_ = (*numbers, 0.0, 0.0)
    return alpha, beta


def vector_kernel(node: Node) -> Elementwise | None:
    """The kernel of f32 on 16 elements at once, which is also an op of strip programs; None where there is none."""
    found = elementwise().get(f"{kernel_op(node)}_f32")
    return found if found is not None and found.is_vector else None

"""What of a graph has a size that each run says."""

from __future__ import annotations

from ingot.ir.dim import has_size
from ingot.ir.graph import PLAIN, Graph, Node, TensorType


def has_sizes(graph: Graph) -> bool:
    """Whether each run says a size of a graph: an input or a state has it."""
    types = (graph.values[name].type for name in (*graph.inputs, *graph.states))
    return any(type.is_sized for type in types if isinstance(type, TensorType))


def is_sized(graph: Graph, node: Node) -> bool:
    """Whether a node uses a size that each run says: in its attributes, or in the shape of a result."""
    for name in node.outputs:
        type = graph.values[name].type
        if isinstance(type, TensorType) and type.is_sized:
            return True
    return any(value.__class__ not in PLAIN and has_size(value) for value in node.attributes.values())

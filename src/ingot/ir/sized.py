"""Which parts of a graph have a run-time size."""

from __future__ import annotations

from ingot.ir.dim import has_size
from ingot.ir.graph import PLAIN, Graph, Node, TensorType


def has_sizes(graph: Graph) -> bool:
    """Return whether an input or a state of a graph has a run-time size."""
    types = (graph.values[name].type for name in (*graph.inputs, *graph.states))
    return any(type.is_sized for type in types if isinstance(type, TensorType))


def is_sized(graph: Graph, node: Node) -> bool:
    """Return whether a node uses a run-time size: in its attributes, or in the shape of a result."""
    for name in node.outputs:
        type = graph.values[name].type
        if isinstance(type, TensorType) and type.is_sized:
            return True
    return any(value.__class__ not in PLAIN and has_size(value) for value in node.attributes.values())

"""Signals as images: convolutions and pools along one dim become those over images of height 1, which have kernels."""

from __future__ import annotations

from typing import Any

from ingot.ir import Graph, Node, TensorType

# What each attribute says of the dim that is added.
_ADDED = {"strides": 1, "dilations": 1, "kernel": 1, "output_padding": 0}


def lift_signals(graph: Graph) -> bool:
    """A window over [N, C, L] becomes one over [N, C, 1, L]; what acts on each element follows it there.

    So a convolution and its activation stay beside each other, and reshapes between layers cancel out.
    """
    changed = False
    for node in graph.nodes:
        if node.op.name in ("conv", "conv_transpose", "max_pool", "avg_pool"):
            changed |= _lift_window(graph, node)
        elif node.op.acts_on == "element" and len(node.outputs) == 1:
            changed |= _follow(graph, node)
    return changed


def _lift_window(graph: Graph, node: Node) -> bool:
    type = graph.values[node.output].type
    if not isinstance(type, TensorType) or type.rank != 3 or None in type.shape:
        return False
    operands = [o if o is None or graph.type(o).rank != 3 else _lifted(graph, node, o) for o in node.operands]
    _replace(graph, node, operands, {name: _with_height(name, value) for name, value in node.attributes.items()})
    return True


def _with_height(name: str, value: Any) -> Any:
    if name == "pads":
        return (0, value[0], 0, value[1])
    return (_ADDED[name], *value) if name in _ADDED else value


def _follow(graph: Graph, node: Node) -> bool:
    """Moves an element-wise op above the reshapes that drop the height, where all its operands come from such."""
    sources = [_image(graph, o) for o in node.operands]
    is_scalar = [o is None or graph.type(o).rank == 0 for o in node.operands]
    if not any(sources) or not all(s or alone for s, alone in zip(sources, is_scalar, strict=True)):
        return False
    operands = [source or own for source, own in zip(sources, node.operands, strict=True)]
    _replace(graph, node, operands, node.attributes)
    return True


def _image(graph: Graph, name: str | None) -> str | None:
    """[N, C, 1, L], of which a value is the same without the height."""
    node = graph.producer(name)
    if node is None or node.op.name != "reshape" or name is None:
        return None
    source, shape = node.operands[0], graph.type(name).shape
    return source if len(shape) == 3 and graph.type(str(source)).shape == (*shape[:2], 1, shape[2]) else None


def _lifted(graph: Graph, node: Node, name: str) -> str:
    shape = graph.type(name).shape
    lifted = (*shape[:2], 1, shape[2])
    return graph.add("reshape", [name], f"{name}.image", before=node, shape=lifted).output


def _replace(graph: Graph, node: Node, operands: list[str | None], attributes: dict[str, Any]) -> None:
    """Computes a node on images, and drops the height behind it."""
    name = node.output
    image = graph.add(node.op.name, operands, f"{name}.image", before=node, **attributes)
    graph.narrow(image.output, _with_dim(graph.type(name)))
    signal = graph.add("reshape", [image.output], f"{name}.signal", before=node, shape=graph.type(name).shape)
    graph.replace(node, signal.output)
    graph.rename(signal.output, name)


def _with_dim(type: TensorType) -> TensorType:
    return TensorType(type.dtype, (*type.shape[:2], 1, type.shape[2]))

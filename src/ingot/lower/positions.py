"""Values of positions: values that depend on no input, but on how much of a dim a run uses.

Each element is computed from its index alone, so the reference ops compute all planned elements once, like constants; a
run reads a prefix.
"""

from __future__ import annotations

from typing import Any

from ingot.errors import UnsizedError
from ingot.ir.dim import has_size
from ingot.ir.graph import Graph, Node
from ingot.ir.sized import has_sizes, is_sized


def position_nodes(graph: Graph, static: set[str]) -> set[Node]:
    """Return the nodes that compute such values. static: the values that depend on no input and no size.

    Raises UnsizedError for a node that computes from positions alone, but not element by element: a kernel would
    compute it in each run in another order than the reference does for known sizes.
    """
    found: set[Node] = set()
    if not has_sizes(graph):
        return found
    known, inputless = set(static), set(static)
    for node in graph.nodes:
        if not is_sized(graph, node) or not all(o is None or o in inputless for o in node.operands):
            continue
        inputless.update(node.outputs)
        is_known = all(o is None or o in known for o in node.operands)
        if is_known and _depends_on_index_only(graph, node):
            found.add(node)
            known.update(node.outputs)
        elif node.op.computes:
            raise UnsizedError(f"node {node.outputs[0]!r}: {node.op.name} computes from sizes only")
        elif is_known and node.op.view and _keeps_prefix(graph, node):
            known.update(node.outputs)
    return found


def settle_positions(graph: Graph, static: set[str]) -> None:
    """Compute values of positions for the largest planned sizes, and give their readers a prefix."""
    nodes = position_nodes(graph, static)
    planned: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for node in list(graph.nodes):
        read = [] if node in nodes else [o for o in node.operands if o is not None and graph.producer(o) in nodes]
        for name in read:
            if name not in prefixes:
                prefixes[name] = _prefix(graph, name, node, planned)
        if read:
            graph.set_operands(node, [o if o is None else prefixes.get(o, o) for o in node.operands])
    for external, name in list(graph.outputs.items()):
        if graph.producer(name) in nodes:
            graph.set_output(external, prefixes.get(name) or _prefix(graph, name, None, planned))
    for node in reversed(list(graph.nodes)):
        if node in nodes and not any(graph.values[name].users or graph.is_output(name) for name in node.outputs):
            graph.remove(node)


def _depends_on_index_only(graph: Graph, node: Node) -> bool:
    """Return whether each result element depends only on the operands' elements at its index, or on its index."""
    match node.op.name:
        case "matmul":  # an outer product: one multiplication per element
            return graph.type(str(node.operands[0])).dims[-2 if node.transpose_a else -1] == 1
        case "iota":
            return not has_size((node.start, node.step))
        case "concat":
            return not has_size(tuple(graph.type(str(operand)).dims[node.axis] for operand in node.operands))
        case "cumsum" | "cumprod":  # depends on earlier elements only
            return True
        case _:
            return node.op.acts_on == "element" and not has_size(tuple(node.attributes.values()))


def _keeps_prefix(graph: Graph, node: Node) -> bool:
    """Return whether the view of the planned size starts with the view of the size of a run."""
    match node.op.name:
        case "reshape":
            before, after = ([d for d in graph.type(str(v)).dims if d != 1] for v in (node.operands[0], node.output))
            return before == after
        case "slice":
            return not has_size(node.starts) and min(node.steps, default=1) > 0
        case _:
            return True


def _prefix(graph: Graph, name: str, before: Node | None, planned: dict[str, str]) -> str:
    planned_value, dims = _planned(graph, name, before, planned), graph.type(name).dims
    zeros, ones = (0,) * len(dims), (1,) * len(dims)
    return graph.add(
        "slice", [planned_value], f"{name}.used", before=before, starts=zeros, stops=dims, steps=ones
    ).output


def _planned(graph: Graph, name: str, before: Node | None, planned: dict[str, str]) -> str:
    """Return the value for the largest planned sizes."""
    node = graph.producer(name)
    if node is None or not is_sized(graph, node):
        return name
    if name not in planned:
        operands = [None if o is None else _planned(graph, o, before, planned) for o in node.operands]
        attributes = {key: _without_sizes(value) for key, value in node.attributes.items()}
        planned[name] = graph.add(node.op.name, operands, f"{name}.planned", before=before, **attributes).output
    return planned[name]


def _without_sizes(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_without_sizes, value))
    return int(value) if has_size(value) else value

"""Graph + Target -> Lowered: choose kernels, views, memory, packed layouts and the number of tasks of each step."""

from __future__ import annotations

from ingot.ir.graph import Graph, Node, TensorType
from ingot.lower.cost import Cost
from ingot.lower.cpu import CPU
from ingot.lower.legalize import LEGALIZATIONS, LEGALIZED_AS_THEMSELVES, legalize_node
from ingot.lower.lowered import Lowered, Step
from ingot.lower.lowering import Lowering
from ingot.lower.positions import position_nodes, settle_positions
from ingot.lower.segments import Segment, split
from ingot.lower.selection import Backend, Selection
from ingot.lower.target import Target
from ingot.lower.weight_expr import has_shapes, weight_exprs
from ingot.lower.widen import widen_node, widened_dtype
from ingot.ops.define import expand_node

__all__ = ["Backend", "Lowered", "Lowering", "Segment", "Target", "lower", "segments", "step_cost"]


def backend_of(device: str) -> Backend:
    """Return the backend of a kind of device, "cpu" or "webgpu"."""
    if device == "cpu":
        return CPU
    from ingot.lower.wgpu import WGPU  # imported on demand: most sessions use no GPU

    return WGPU


def lower(
    graph: Graph,
    target: Target,
    mode: str = "infer",
    backend: Backend | None = None,
    begun: Lowering | None = None,
) -> Lowered:
    """Lower a static graph in which every node has a kernel (see `segments`); the graph is not modified.

    backend: the kernels to choose from; None for the backend of the target's device. begun: the lowering that
    `segments` has started for the graph.
    """
    if begun is not None:
        assert begun.graph is graph and backend is None
        return begun.build(mode)
    static = weight_exprs(graph)
    if position_nodes(graph, static):
        graph = graph.copy()
        settle_positions(graph, static)
    return Lowering(graph, target, backend or backend_of(target.device)).build(mode)


def segments(graph: Graph, target: Target) -> list[Segment]:
    """Split a static graph into segments for `lower` and for the reference; a graph that must change is copied.

    A node without an accepting kernel rule is widened, expanded into simpler ops or legalized, where possible. Nodes
    that still have no kernel go into interpreted segments, and so do values that are not tensors and shapes that depend
    on data. A graph that is one native segment comes with the lowering that has evaluated the kernel rules.
    """
    given = graph
    has_bodies = bool(graph.bodies)
    if has_bodies:
        graph = given.copy()
        for node in list(graph.nodes):
            if any(isinstance(value, Graph) for value in node.attributes.values()):
                legalize_node(graph, node)
        _keep_names(graph, given)
    is_plain = all(isinstance(type, TensorType) and type.is_static for type in graph.types)
    is_plain = is_plain and not has_bodies and not graph.measured
    shapeless = set() if is_plain else {node for node in graph.nodes if not has_shapes(graph, node)}
    if shapeless or not all(isinstance(graph.values[name].type, TensorType) for name in graph.inputs):
        parts = split(graph, shapeless, weight_exprs(graph), backend_of(target.device).held)
        return [each for part in parts for each in (segments(part.graph, target) if part.native else [part])]
    expanded = True
    while expanded:
        expanded = False
        _keep_names(graph, given)
        lowering = Lowering(graph, target, backend_of(target.device))
        fallback: set[Node] = set()
        settled = position_nodes(graph, lowering.static)
        for node in graph.nodes:
            if node in lowering.grouped or node in settled or node.outputs[0] in lowering.static:
                continue
            if lowering.ask(node).row is not None:
                continue
            if graph is given:
                graph, expanded = given.copy(), True
                break
            root = lowering.groups[node].root if node in lowering.groups else node
            if _is_simpler(lowering, root):
                expanded = True
            else:
                fallback.add(node)
    parts = split(graph, _widen(lowering, fallback), lowering.static, lowering.backend.held)
    if len(parts) == 1 and parts[0].graph is graph and parts[0].native and not settled:
        parts[0].lowering = lowering
    return parts


def _keep_names(graph: Graph, given: Graph) -> None:
    """Restore the output names of the given graph, by which other segments refer to them.

    The replacement of a legalized node may return a value that existed before, or one value twice.
    """
    for external, name in given.outputs.items():
        if name not in graph.values:
            found = graph.outputs[external]
            graph.add("reshape", [found], [name], shape=graph.type(found).shape)
        graph.set_output(external, name)


def step_cost(lowered: Lowered, step: Step) -> Cost:
    """Return the minimum cost of one step of a lowered program, as the target's device counts it."""
    return backend_of(lowered.target.device).cost(lowered, step)


def _is_simpler(selection: Selection, node: Node) -> bool:
    """Replace a node without a kernel by nodes that may have one; see `widen_node`, `Op.expand` and `legalize_node`.

    Return False if there is no replacement.
    """
    graph, name = selection.graph, node.op.name
    is_known = bool(selection.backend.rules.get(name)) or name in LEGALIZATIONS or node.op.expand is not None
    if widened_dtype(graph, node) is not None and is_known:
        widen_node(graph, node)
    elif node.op.expand is not None:
        expand_node(graph, node)
    elif name in LEGALIZED_AS_THEMSELVES and not selection.backend.rules.get(name):
        return False
    else:
        return legalize_node(graph, node)
    return True


def _widen(selection: Selection, fallback: set[Node]) -> set[Node]:
    """Extend `fallback` to complete groups: the last node of a group decides whether the group runs natively."""
    for last, group in selection.groups.items():
        if last in fallback:
            fallback |= set(group.members)
    return fallback

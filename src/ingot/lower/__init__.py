"""Graph + Target -> Lowered: choose kernels, views, memory, packed layouts and the number of tasks of each step."""

from __future__ import annotations

from ingot.ir.graph import Graph, Node, TensorType
from ingot.lower.cost import Cost
from ingot.lower.cpu import CPU
from ingot.lower.legalize.graph import legalize, without_bodies
from ingot.lower.lowered import Lowered, Step
from ingot.lower.lowering import Lowering
from ingot.lower.positions import position_nodes, settle_positions
from ingot.lower.segments import Segment, split
from ingot.lower.selection import Backend
from ingot.lower.target import Target
from ingot.lower.weight_expr import has_shapes, weight_exprs

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

    A node without an accepting kernel rule is legalized, where possible. Nodes that still have no kernel go into
    interpreted segments, and so do values that are not tensors and shapes that depend on data. A graph that is one
    native segment comes with the lowering that has evaluated the kernel rules.
    """
    graph, backend = without_bodies(graph), backend_of(target.device)
    shapeless = _shapeless(graph)
    if shapeless or not all(isinstance(graph.values[name].type, TensorType) for name in graph.inputs):
        parts = split(graph, shapeless, weight_exprs(graph), backend.held)
        return [each for part in parts for each in (segments(part.graph, target) if part.native else [part])]
    lowering, fallback = legalize(graph, target, backend)
    parts = split(lowering.graph, fallback, lowering.static, backend.held)
    is_whole = parts[0].native and parts[0].graph is lowering.graph
    if is_whole and not position_nodes(lowering.graph, lowering.static):
        parts[0].lowering = lowering
    return parts


def _shapeless(graph: Graph) -> set[Node]:
    """Return the nodes for which kernel rules cannot be asked: their shapes depend on data."""
    if not graph.bodies and not graph.measured and all(isinstance(t, TensorType) and t.is_static for t in graph.types):
        return set()
    return {node for node in graph.nodes if not has_shapes(graph, node)}


def step_cost(lowered: Lowered, step: Step) -> Cost:
    """Return the minimum cost of one step of a lowered program, as the target's device counts it."""
    return backend_of(lowered.target.device).cost(lowered, step)

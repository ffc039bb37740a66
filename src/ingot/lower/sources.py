"""Which nodes of the loaded model each step computes, by the names of the step's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingot.ir.graph import Graph, Node, Source
from ingot.ir.node import merged_sources
from ingot.lower.epilogue import Group
from ingot.lower.fused import FusedGroup


def sources_of_steps(
    graph: Graph, groups: Mapping[Node, Group], fused_groups: Iterable[FusedGroup]
) -> dict[str, tuple[Source, ...]]:
    """Return the sources of each node, by the name of its steps; the last node of a group gets those of all members.

    groups: by their last nodes. Nodes without sources are omitted.
    """
    found = {node.outputs[0]: node.sources for node in graph.nodes if node.sources}
    if not found:
        return found
    for last, group in groups.items():
        nodes = [*group.members, *([] if group.rounding is None else [group.rounding])]
        found[last.outputs[0]] = merged_sources((), *(node.sources for node in nodes))
    for fused in fused_groups:
        found[fused.name] = merged_sources((), *(node.sources for node in fused.members))
    return found

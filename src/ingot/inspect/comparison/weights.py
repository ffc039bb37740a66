"""Weights that differ between two graphs, of those that some values are computed from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ingot.ir.graph import Graph

_SHOWN = 3  # weights in a text


def differing_weights(a: Graph, b: Graph, names: Iterable[str]) -> str:
    """Return the weights of B's names that nodes of A read for some values, and that have other elements in B, as text.

    "" if there are none. A weight counts, too, where only static nodes are between it and a value.
    """
    found = []
    for name in _weights(a, names):
        data, other = a.values[name].data, b.values[name].data if name in b.values else None
        if data is None or other is None or data is other:
            continue
        if data.shape != other.shape or data.dtype != other.dtype:
            found.append(f"weight {name!r} is {data.dtype}{list(data.shape)}, not {other.dtype}{list(other.shape)}")
        elif count := _different(data, other):
            found.append(f"weight {name!r} differs in {count:,} of {data.size:,} elements")
    more = [f"{len(found) - _SHOWN} more weights differ"] if len(found) > _SHOWN else []
    return "; ".join([*found[:_SHOWN], *more])


def _weights(graph: Graph, names: Iterable[str]) -> list[str]:
    """Return the stored values that the nodes of some values read, through static nodes."""
    nodes = [node for name in names if (node := graph.producer(name)) is not None]
    waiting = [operand for node in nodes for operand in node.operands if operand is not None]
    found: dict[str, None] = {}
    for name in waiting:
        node = graph.producer(name)
        if node is None and graph.values[name].data is not None:
            found[name] = None
        elif node is not None and all(_is_static(graph, each) for each in node.operands):
            waiting += [each for each in node.operands if each is not None and each not in waiting]
    return list(found)


def _is_static(graph: Graph, name: str | None) -> bool:
    """Return whether a value follows from stored values alone, as far as two nodes above it say."""
    if name is None or graph.values[name].data is not None:
        return True
    node = graph.producer(name)
    return node is not None and all(each is None or graph.values[each].data is not None for each in node.operands)


def _different(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many elements have other bits."""
    if a.dtype.kind == "O":
        return int((a != b).sum())
    return int((_bytes(a) != _bytes(b)).any(-1).sum())


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)

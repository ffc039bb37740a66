"""The node that computes the first NaN or infinity of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.inspect.comparison.result import NonFinite
from ingot.ir.graph import Graph, Node
from ingot.run.interpret import first_states, interpret


def is_worse(array: np.ndarray, expected: np.ndarray) -> np.bool:
    """Return whether a float array has a NaN, or an infinity where the expected element is another."""
    return _bad(array, expected).any()


def _bad(array: np.ndarray, expected: np.ndarray) -> np.ndarray:
    a, b = array.astype(np.float64), np.asarray(expected).astype(np.float64)
    return np.asarray(np.isnan(a) | (np.isinf(a) & (a != b)))


def first_nonfinite(graph: Graph, feeds: Mapping[str, Any], name: str, golden: Mapping[str, Any]) -> NonFinite:
    """Describe the first NaN or infinity of a side, which is in the value `name`.

    golden: the values of the other side. The float32 reference finds the node that computed it, which may be inside of
    a fused one; if that has none, the kernel computed it.
    """
    makers: list[tuple[Node, tuple[int, ...], float]] = []  # the node, the index of the element, the element

    def watch(each: str, array: Any) -> None:
        node = graph.producer(each) if each in graph.values else None
        if makers or node is None or not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            return
        exact = golden.get(each)
        found = np.isnan(array) if exact is None else _bad(array, exact)
        if found.any():
            index = tuple(int(i) for i in np.argwhere(found)[0]) if array.ndim else ()
            makers.append((node, index, float(array[index])))

    interpret(graph, feeds, watch=watch)
    if not makers:
        return NonFinite(name, "NaN or infinity", (), "which the reference in float32 does not have")
    node, at, value = makers[0]
    arrays = _operands(graph, feeds, node)
    described = ", ".join(_described(each, arrays[each], at) for each in dict.fromkeys(node.operands) if each)
    kind = "NaN" if np.isnan(value) else "infinity"
    within = "" if name in node.outputs else f" inside of {name!r}"
    return NonFinite(name, kind, at, f"computed by {node.title}{within} from {described}")


def _operands(graph: Graph, feeds: Mapping[str, Any], node: Node) -> dict[str, Any]:
    """Return the operands of a node in a run of the reference."""
    wanted = {name for name in node.operands if name is not None}
    found: dict[str, Any] = {name: feeds[name] for name in wanted if name in feeds}
    found |= {name: graph.data(name) for name in wanted if graph.data(name) is not None}
    states = first_states(graph, {}, feeds) if wanted & graph.states.keys() else {}
    found |= {name: array for name, array in states.items() if name in wanted}
    interpret(graph, feeds, watch=lambda name, array: found.update({name: array}) if name in wanted else None)
    return found


def _described(name: str, array: Any, at: tuple[int, ...]) -> str:
    """Return the element of an operand at an index of the result, if it has one there, else its range."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.size == 0:
        return repr(name)
    dims = array.shape
    if len(dims) <= len(at):
        index = tuple(0 if dim == 1 else i for i, dim in zip(at[len(at) - len(dims) :], dims, strict=True))
        if all(i < dim for i, dim in zip(index, dims, strict=True)):
            return f"{name!r} {float(array[index]):.6g}"
    low, high = float(np.min(array)), float(np.max(array))
    return f"{name!r} in {low:.6g}..{high:.6g}"

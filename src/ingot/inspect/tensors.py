"""`ingot inspect-tensor`: facts on one tensor, with the values of weights, constants and values computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ingot.inspect.document import head
from ingot.inspect.model import InspectedModel
from ingot.inspect.view import Edge, View
from ingot.ir.graph import Graph, TensorType
from ingot.lower.weight_expr import has_shapes, weight_expr, weight_exprs
from ingot.passes.fold import DECODERS
from ingot.support.files import release

BINS = 16  # of a histogram
_PIECE_ELEMENTS = 1 << 18


def tensor_document(model: InspectedModel, stage: str, name: str, first: int) -> dict[str, Any]:
    """Return a tensor's type, producer and users; if its values are known, statistics, histogram and first elements.

    The elements are in row-major order. Only this tensor's data is read. Raises InputError for an unknown name.
    """
    view = model.view(stage)
    edge = view.edge(name)
    data, why = _numbers(model, view, edge)
    returned = [external for external, value in view.outputs.items() if value == name]
    document = head(model, stage) | edge.document() | {"returned_as": returned}
    decoders = [view.items[user] for user in edge.users if view.items[user].op in DECODERS]
    document["decoded_as"] = [item.results[0] for item in decoders if item.operands[0] == name]
    document |= {"statistics": None, "histogram": None, "first": None, "why_no_values": why}
    if data is None:
        return document
    document["first"] = [_plain(value) for value in data.reshape(-1)[:first]]
    if data.dtype != object and data.size:
        document["statistics"], document["histogram"] = _statistics(data)
    return document


def _numbers(model: InspectedModel, view: View, edge: Edge) -> tuple[np.ndarray | None, str]:
    """Return the elements of a tensor, or the reason why they are not known."""
    if edge.data is not None:
        return edge.data, ""
    if edge.name in model.absent:
        return None, model.absent[edge.name]
    if not isinstance(view.source, Graph):
        is_packed = edge.kind == "weight"
        return None, "packed at load time; see --stage graph" if is_packed else f"{edge.kind}s are computed by each run"
    if edge.kind == "weight":
        return None, "the saved program contains only packed weights" if model.format == "program" else "no data"
    if edge.kind in ("input", "state"):
        return None, "an input: each run has its own values" if edge.kind == "input" else "a state: runs change it"
    node = view.source.producer(edge.name)
    type = view.source.values[edge.name].type
    is_known = isinstance(type, TensorType) and type.is_static and node is not None and has_shapes(view.source, node)
    if not is_known or edge.name not in weight_exprs(view.source):
        return None, "computed by each run"
    value = weight_expr(view.source, edge.name)
    if any(source.data is None for source in value.sources()):
        return None, "computed from weights without data"
    return value.evaluate(), ""


def _statistics(data: np.ndarray) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return statistics of the finite elements, and a histogram with equal bins between the extremes."""
    count = zeros = nans = infinities = 0
    low, high, total, squares = math.inf, -math.inf, 0.0, 0.0
    for piece in _pieces(data):
        finite = piece[np.isfinite(piece)]
        nans += int(np.isnan(piece).sum())
        infinities += int(np.isinf(piece).sum())
        zeros += int((finite == 0).sum())
        count += finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total += float(finite.sum())
            squares += float(np.square(finite).sum())
    statistics: dict[str, Any] = {"elements": data.size, "zeros": zeros, "nan": nans, "infinite": infinities}
    if not count:
        return statistics | {"min": None, "max": None, "mean": None, "std": None}, None
    mean = total / count
    statistics |= {"min": low, "max": high, "mean": mean, "std": math.sqrt(max(squares / count - mean * mean, 0.0))}
    edges = np.linspace(low, high, BINS + 1) if high > low else np.array([low, high])
    counts = np.zeros(len(edges) - 1, np.int64)
    for piece in _pieces(data):
        finite = piece[np.isfinite(piece)]
        counts += np.histogram(finite, edges)[0] if high > low else finite.size
    return statistics, {"edges": edges.tolist(), "counts": counts.tolist()}


def _pieces(data: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the elements as f64 in pieces; pages of a mapped file are released after each piece."""
    flat = data.reshape(-1)
    for start in range(0, flat.size, _PIECE_ELEMENTS):
        piece = flat[start : start + _PIECE_ELEMENTS]
        yield piece.astype(np.float32).astype(np.float64) if piece.dtype.kind == "V" else piece.astype(np.float64)
        release(piece)


def _plain(value: Any) -> Any:
    """Return an element in JSON types; a non-finite number is text."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    number = value.item() if isinstance(value, np.generic) and value.dtype.kind in "iuf" else float(value)
    return number if isinstance(number, int) or math.isfinite(number) else str(number)

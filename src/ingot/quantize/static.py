"""A model and samples of its inputs -> an ONNX file whose products are of integers of 8 bits, with fixed scales.

It has QuantizeLinear before and DequantizeLinear behind what they multiply, as other quantisers write them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.dtype import f32, u8
from ingot.emit.onnx import export_onnx
from ingot.errors import InputError, OutputError
from ingot.ir import Graph, Node
from ingot.passes.dce import eliminate_dead
from ingot.precision import multiplies_fixed, stays_f32
from ingot.quantize.moments import Progress
from ingot.session import InferenceSession

_KEPT = 1 << 14  # elements of a tensor that each sample is represented by
_SHRUNK = np.linspace(1, 0.5, 26)  # parts of a tensor's range that are tried
_LEAST = np.float32(2.0**-120)  # a scale
_SUMMED = ("add", "conv", "matmul", "max_pool")  # what reads codes where there are some
_MOST = 2.0**31  # a bias in steps of sums

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """How many products multiply integers, and how many of those with fixed weights stay f32."""

    coded: int
    kept: int


def quantize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    samples: Sequence[Feeds],
    *,
    on_progress: Progress | None = None,
) -> Calibrated:
    """Writes the quantised model.

    samples: feeds that the model is run over, each a whole run. A tensor that is multiplied gets one scale and zero
    point: those of the part of its range, 0 included, that moves the elements seen least, in the mean of squares.
    Filters and matrices get a scale for each output channel, of their largest element. Classifiers stay f32, and so do
    small matrices.

    Raises InputError for no samples or one with elements that are not finite, OutputError for a target that is there,
    and what loading and running the model raise.
    """
    if os.path.lexists(target):
        raise OutputError(f"{os.fspath(target)}: exists, expected a free name")
    if not samples:
        raise InputError("samples: none, expected at least one")
    graph = InferenceSession(source, cache=False).graph.copy()
    fixed = [node for node in graph.nodes if node.op.name in ("conv", "matmul") and multiplies_fixed(graph, node)]
    products = [node for node in fixed if node.op.name == "conv" or not stays_f32(graph, node)]
    names = list(dict.fromkeys(_before_pools(graph, str(node.operands[0])) for node in products))
    weights = {str(node.operands[1]): graph.data(str(node.operands[1])) for node in products}
    computed = [name for name, data in weights.items() if data is None]
    steps, found = _calibrate(graph, names, computed, samples, on_progress)
    weights |= found
    scales = {_round(graph, name, *steps[name]): steps[name][0] for name in names}
    for node in products:
        weight = weights[str(node.operands[1])]
        assert weight is not None
        _code(graph, node, weight, scales[_before_pools(graph, str(node.operands[0]))])
    eliminate_dead(graph)
    export_onnx(graph, target)
    return Calibrated(len(products), len(fixed) - len(products))


def _before_pools(graph: Graph, name: str) -> str:
    """What pools of maxima that make a value read first."""
    while (maker := graph.producer(name)) is not None and maker.op.name == "max_pool":
        name = str(maker.operands[0])
    return name


def _calibrate(
    graph: Graph,
    names: Sequence[str],
    computed: Sequence[str],
    samples: Sequence[Feeds],
    on_progress: Progress | None,
) -> tuple[dict[str, tuple[np.float32, np.uint8]], dict[str, np.ndarray]]:
    """The scale and zero point of each value, of what the samples make of it; and values that depend on no sample."""
    watched = graph.copy()
    inner = [name for name in names if name not in graph.inputs]
    watched_names = [f"calibrated.{i}" for i in range(len(inner) + len(computed))]
    for external, name in zip(watched_names, (*inner, *computed), strict=True):
        watched.set_output(external, name)
    session = InferenceSession(watched, passes=())
    fixed: dict[str, np.ndarray] = {}
    ranges = dict.fromkeys(names, (0.0, 0.0))
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
    random = np.random.default_rng(0)
    for number, feeds in enumerate(samples):
        found = session.run(watched_names or None, feeds)[: len(watched_names)]
        fixed = dict(zip(computed, found[len(inner) :], strict=True))
        given = [(name, np.asarray(feeds[name])) for name in names if name in graph.inputs]
        for name, array in (*zip(inner, found[: len(inner)], strict=True), *given):
            if not array.size:
                continue
            least, most = float(array.min()), float(array.max())
            if not np.isfinite(most - least):
                raise InputError(f"sample {number}: {name!r} is from {least} to {most}, expected finite numbers")
            ranges[name] = min(ranges[name][0], least), max(ranges[name][1], most)
            seen[name].append(random.choice(array.ravel(), min(array.size, _KEPT)))
        if on_progress is not None:
            on_progress(number + 1, len(samples))
    return {name: _nearest_steps(*ranges[name], seen[name]) for name in names}, fixed


def _nearest_steps(least: float, most: float, seen: Sequence[np.ndarray]) -> tuple[np.float32, np.uint8]:
    """The scale and zero point, of parts of a range, by which elements move least in the mean of squares."""
    x = np.concatenate([np.zeros(1, np.float32), *seen])
    found = []
    for part in _SHRUNK:
        scale = max(np.float32(part * (most - least) / 255), _LEAST)
        zero = np.uint8(np.clip(np.rint(-part * least / scale), 0, 255))
        codes = np.clip(np.rint(x / scale) + zero, 0, 255)
        found.append((float(np.square((codes - zero) * scale - x, dtype=np.float64).sum()), scale, zero))
    _, scale, zero = min(found, key=lambda each: each[0])
    return scale, zero


def _round(graph: Graph, name: str, scale: np.float32, zero: np.uint8) -> str:
    """Has the products and sums that read a value read it rounded to codes; gives its name so."""
    readers = [node for node in graph.nodes if name in node.operands and node.op.name in _SUMMED]
    steps = [graph.add_constant(graph.fresh(f"{name}.{word}"), np.asarray(value))
             for word, value in (("scale", scale), ("zero", zero))]  # fmt: skip
    attributes = {"axis": 0, "block": 0}
    codes = graph.add(
        "quantize", [name, *steps], f"{name}.codes", before=readers[0], **attributes, dtype=u8, precision=f32
    ).output
    there = graph.add("dequantize", [codes, *steps], f"{name}.decoded", before=readers[0], **attributes, dtype=f32)
    for node in readers:
        graph.set_operands(node, [there.output if operand == name else operand for operand in node.operands])
    return there.output


def _code(graph: Graph, product: Node, weight: np.ndarray, step: np.float32) -> None:
    """Gives a product codes for its filter or matrix, and for a convolution's bias. step: the scale of its rows."""
    x, name, *rest = product.operands
    axis = 0 if product.op.name == "conv" or product.transpose_b else 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scale = np.maximum(abs(weight).max(others) * np.float32(1 / 127), _LEAST).astype(np.float32)
    spread = np.expand_dims(scale, others)
    operands = [x, _decoded(graph, product, f"{name}", np.rint(weight / spread).astype(np.int8), scale, axis)]
    for bias in rest:
        known, sums = None if bias is None else graph.data(bias), scale * step
        codes = None if known is None else np.rint(known.astype(np.float64) / sums)
        if codes is not None and (abs(codes) < _MOST).all():
            bias = _decoded(graph, product, str(bias), codes.astype(np.int32), sums, 0)
        operands.append(bias)
    graph.set_operands(product, operands)


def _decoded(graph: Graph, product: Node, name: str, codes: np.ndarray, scale: np.ndarray, axis: int) -> str:
    """What codes stand for, with a scale for each index of an axis."""
    stored = graph.add_weight(graph.fresh(f"{name}.codes"), codes)
    scales = graph.add_weight(graph.fresh(f"{name}.scales"), scale)
    made = graph.add("dequantize", [stored, scales], f"{name}.decoded", before=product, axis=axis, block=0, dtype=f32)
    return made.output

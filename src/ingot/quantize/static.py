"""A model and samples of its inputs -> an ONNX file whose products are of integers of 8 bits, with fixed scales.

It has QuantizeLinear before and DequantizeLinear behind what they multiply, as other quantizers write them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.emit.onnx import export_onnx
from ingot.errors import InputError, OutputError
from ingot.ir.dtype import f32, u8
from ingot.ir.graph import Graph, Node
from ingot.passes.dce import eliminate_dead
from ingot.passes.precision import multiplies_fixed, stays_f32
from ingot.quantize.moments import Progress
from ingot.quantize.observer import LEAST, Observer
from ingot.session.inference import InferenceSession

_SUMMED = ("add", "conv", "matmul", "max_pool")  # what reads codes where there are some
_MOST = 2.0**30  # a bias in steps of sums

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
    """Writes the quantized model.

    samples: feeds that the model is run over, each a whole run. A tensor that is multiplied gets one scale and zero
    point: those of the part of its range, 0 included, that moves the elements seen least, in the mean of squares; one
    that is never negative and that only filters of a channel each read has a scale for each channel. Filters and
    matrices get a scale for each output channel, of their largest element. What rounding moves the mean of a
    convolution's channel by is taken off its bias. Classifiers stay f32, and so do small matrices.

    Raises InputError for no samples, one with elements that are not finite, and a model of which nothing would be
    coded, as of one that is; OutputError for a target that is there, and what loading and running the model raise.
    """
    if os.path.lexists(target):
        raise OutputError(f"{os.fspath(target)}: exists, expected a free name")
    if not samples:
        raise InputError("samples: none, expected at least one")
    graph = InferenceSession(source, cache=False).graph.copy()
    fixed = [node for node in graph.nodes if node.op.name in ("conv", "matmul") and multiplies_fixed(graph, node)]
    products = [node for node in fixed if node.op.name == "conv" or not stays_f32(graph, node)]
    if not products:
        raise InputError(
            f"{os.fspath(source)}: nothing to quantize, got {len(fixed)} products with fixed floats, all of which stay"
            " f32, expected a convolution, or a matrix that is neither small nor a classifier's"
        )
    read = [(str(node.operands[0]), 1 if node.op.name == "conv" else -1) for node in products]
    rounded = [(_before_pools(graph, name), axis) for name, axis in read]
    weights = {str(node.operands[1]): graph.data(str(node.operands[1])) for node in products}
    computed = [name for name, data in weights.items() if data is None]
    seen, found = _calibrate(graph, list(dict.fromkeys((*rounded, *read))), computed, samples, on_progress)
    weights |= found
    steps = {}
    for name, axis in dict.fromkeys(rounded):
        if name not in steps:
            steps[name] = seen[name, axis].steps(of_channels=_is_of_channels(graph, name))
            _round(graph, name, *steps[name])
    for node, operand, before in zip(products, read, rounded, strict=True):
        weight = weights[str(node.operands[1])]
        assert weight is not None
        _code(graph, node, weight, seen[operand], *steps[before[0]])
    eliminate_dead(graph)
    export_onnx(graph, target)
    return Calibrated(len(products), len(fixed) - len(products))


def _before_pools(graph: Graph, name: str) -> str:
    """What pools of maxima that make a value read first."""
    while (maker := graph.producer(name)) is not None and maker.op.name == "max_pool":
        name = str(maker.operands[0])
    return name


def _is_of_channels(graph: Graph, name: str) -> bool:
    """Whether all that would read a value as codes are filters of a channel each."""
    readers = [node for node in graph.nodes if name in node.operands and node.op.name in _SUMMED]
    return all(
        node.op.name == "conv" and graph.type(str(node.operands[1])).shape[:2] == (node.groups, 1) for node in readers
    )


def _calibrate(
    graph: Graph,
    read: Sequence[tuple[str, int]],
    computed: Sequence[str],
    samples: Sequence[Feeds],
    on_progress: Progress | None,
) -> tuple[dict[tuple[str, int], Observer], dict[str, np.ndarray]]:
    """What the samples make of values with their channels along an axis; and values that depend on no sample."""
    watched = graph.copy()
    inner = list(dict.fromkeys(name for name, _ in read if name not in graph.inputs))
    watched_names = [f"calibrated.{i}" for i in range(len(inner) + len(computed))]
    for external, name in zip(watched_names, (*inner, *computed), strict=True):
        watched.set_output(external, name)
    session = InferenceSession(watched, passes=())
    fixed: dict[str, np.ndarray] = {}
    seen = {key: Observer() for key in read}
    random = np.random.default_rng(0)
    for number, feeds in enumerate(samples):
        found = session.run(watched_names or None, feeds)[: len(watched_names)]
        fixed = dict(zip(computed, found[len(inner) :], strict=True))
        arrays = dict(zip(inner, found[: len(inner)], strict=True))
        for name, axis in read:
            array = np.asarray(feeds[name]) if name in graph.inputs else arrays[name]
            least, most = array.min(initial=0), array.max(initial=0)
            if not np.isfinite(most - least):
                raise InputError(f"sample {number}: {name!r} is from {least} to {most}, expected finite numbers")
            seen[name, axis].see(np.moveaxis(array, axis, -1), random)
        if on_progress is not None:
            on_progress(number + 1, len(samples))
    return seen, fixed


def _round(graph: Graph, name: str, scale: np.ndarray, zero: np.ndarray) -> None:
    """Has the products and sums that read a value read it rounded to codes."""
    readers = [node for node in graph.nodes if name in node.operands and node.op.name in _SUMMED]
    steps = [graph.add_constant(graph.fresh(f"{name}.{word}"), np.asarray(value))
             for word, value in (("scale", scale), ("zero", zero))]  # fmt: skip
    attributes: dict[str, Any] = {"axis": 1 if scale.size > 1 else 0, "block": 0}
    codes = graph.add(
        "quantize", [name, *steps], f"{name}.codes", before=readers[0], **attributes, dtype=u8, precision=f32
    ).output
    there = graph.add("dequantize", [codes, *steps], f"{name}.decoded", before=readers[0], **attributes, dtype=f32)
    for node in readers:
        graph.set_operands(node, [there.output if operand == name else operand for operand in node.operands])


def _code(graph: Graph, product: Node, weight: np.ndarray, seen: Observer, scale: np.ndarray, zero: np.ndarray) -> None:
    """Gives a product codes for its filter or matrix, and for a convolution's bias. scale, zero: of what it reads."""
    x, name, *rest = product.operands
    axis = 0 if product.op.name == "conv" or product.transpose_b else 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    steps = np.maximum(abs(weight).max(others) * np.float32(1 / 127), LEAST).astype(np.float32)
    spread = np.expand_dims(steps, others)
    codes = np.rint(weight / spread).astype(np.int8)
    operands = [x, _decoded(graph, product, f"{name}", codes, steps, axis)]
    if product.op.name == "conv":
        bias = (*rest, None)[0]
        known = np.zeros(len(weight), np.float32) if bias is None else graph.data(bias)
        if known is not None and seen.count:
            known = known + _moved(weight, codes * spread, product.groups, seen, scale, zero)
            bias = _bias(graph, product, known, steps * scale)
        operands.append(bias)
    graph.set_operands(product, operands)


def _moved(
    weight: np.ndarray, coded: np.ndarray, groups: int, seen: Observer, scale: np.ndarray, zero: np.ndarray
) -> np.ndarray:
    """How much larger the means of a convolution's channels are without rounding, padding aside."""
    means, rounded = (mean.reshape(groups, -1) for mean in (seen.mean, seen.mean + seen.moved(scale, zero)))
    taps, quantized_taps = (w.reshape(groups, -1, *w.shape[1:2], np.prod(w.shape[2:], dtype=int)).sum(-1, np.float64)
                        for w in (weight, coded))  # fmt: skip
    exact, there = np.einsum("gok,gk->go", taps, means), np.einsum("gok,gk->go", quantized_taps, rounded)
    return (exact - there).ravel()


def _bias(graph: Graph, product: Node, bias: np.ndarray, sums: np.ndarray) -> str:
    """A bias as codes of 32 bits in steps of sums, where these hold it."""
    codes, name = np.rint(bias / sums), f"{product.output}.bias"
    if (abs(codes) < _MOST).all():
        return _decoded(graph, product, name, codes.astype(np.int32), sums, 0)
    return graph.add_weight(graph.fresh(name), bias.astype(np.float32))


def _decoded(graph: Graph, product: Node, name: str, codes: np.ndarray, scale: np.ndarray, axis: int) -> str:
    """What codes stand for, with a scale for each index of an axis."""
    stored = graph.add_weight(graph.fresh(f"{name}.codes"), codes)
    scales = graph.add_weight(graph.fresh(f"{name}.scales"), scale)
    made = graph.add("dequantize", [stored, scales], f"{name}.decoded", before=product, axis=axis, block=0, dtype=f32)
    return made.output

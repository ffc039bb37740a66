"""Static quantization: calibrate a model on samples, and write ONNX whose products multiply integers of 8 bits.

The file has QuantizeLinear and DequantizeLinear (QDQ) around the operands of products, as other quantizers write them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.emit.onnx import export_onnx
from ingot.errors import InputError, OutputError, bounded
from ingot.ir.dtype import f32, u8
from ingot.ir.graph import Graph, Node
from ingot.passes.dce import eliminate_dead
from ingot.passes.precision import multiplies_constant, stays_f32
from ingot.quantize.moments import Progress
from ingot.quantize.observer import LEAST, Observer
from ingot.session.inference import InferenceSession

_SUMMED = ("add", "conv", "matmul", "max_pool")  # ops that read the quantized value if there is one
_MOST = 2.0**30  # the largest quantized bias

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """coded: the number of products that multiply integers; kept: the products with constant weights that stay f32."""

    coded: int
    kept: int


@bounded("quantize")
def quantize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    samples: Sequence[Feeds],
    *,
    on_progress: Progress | None = None,
) -> Calibrated:
    """Write the quantized model.

    samples: feeds of one run each. An activation gets one scale and zero point: of all shares of its observed range,
    which includes 0, those with the least mean squared error. An activation that is never negative and is read only by
    depthwise filters gets a scale per channel. Filters and matrices get a scale per output channel, from their largest
    element. The shift of each channel's mean by rounding is subtracted from the convolution's bias. Classifiers and
    small matrices stay f32.

    Raises InputError without samples, for samples with non-finite values, and for a model without products to quantize,
    such as one that is quantized already; OutputError for a target that exists; ResourceError; and the errors of loading
    and running.
    """
    if os.path.lexists(target):
        raise OutputError(f"{os.fspath(target)}: exists, expected a free name")
    if not samples:
        raise InputError("samples: got none, expected at least one")
    graph = InferenceSession(source, cache=False).graph.copy()
    fixed = [node for node in graph.nodes if node.op.name in ("conv", "matmul") and multiplies_constant(graph, node)]
    products = [node for node in fixed if node.op.name == "conv" or not stays_f32(graph, node)]
    if not products:
        raise InputError(
            f"{os.fspath(source)}: nothing to quantize, got {len(fixed)} products with constant float weights, all of"
            " which stay f32, expected a convolution, or a matrix that is neither small nor a classifier"
        )
    read = [(str(node.operands[0]), 1 if node.op.name == "conv" else -1) for node in products]
    rounded = [(_before_pools(graph, name), axis) for name, axis in read]
    weights = {str(node.operands[1]): graph.data(str(node.operands[1])) for node in products}
    computed = [name for name, data in weights.items() if data is None]
    observers, found = _calibrate(graph, list(dict.fromkeys((*rounded, *read))), computed, samples, on_progress)
    weights |= found
    parameters = {}
    for name, axis in dict.fromkeys(rounded):
        if name not in parameters:
            parameters[name] = observers[name, axis].scale_and_zero_point(of_channels=_is_of_channels(graph, name))
            _quantize_value(graph, name, *parameters[name])
    for node, operand, before in zip(products, read, rounded, strict=True):
        weight = weights[str(node.operands[1])]
        assert weight is not None
        _quantize_product(graph, node, weight, observers[operand], *parameters[before[0]])
    eliminate_dead(graph)
    export_onnx(graph, target)
    return Calibrated(len(products), len(fixed) - len(products))


def _before_pools(graph: Graph, name: str) -> str:
    """Return the input of the max_pool nodes that compute a value, or the value itself."""
    while (producer := graph.producer(name)) is not None and producer.op.name == "max_pool":
        name = str(producer.operands[0])
    return name


def _is_of_channels(graph: Graph, name: str) -> bool:
    """Return whether all readers of the quantized value are depthwise filters."""
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
    """Return the statistics of values, with channels along an axis, and the values of `computed` weights."""
    watched = graph.copy()
    inner = list(dict.fromkeys(name for name, _ in read if name not in graph.inputs))
    watched_names = [f"calibrated.{i}" for i in range(len(inner) + len(computed))]
    for external, name in zip(watched_names, (*inner, *computed), strict=True):
        watched.set_output(external, name)
    session = InferenceSession(watched, passes=())
    fixed: dict[str, np.ndarray] = {}
    observers = {key: Observer() for key in read}
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
            observers[name, axis].see(np.moveaxis(array, axis, -1), random)
        if on_progress is not None:
            on_progress(number + 1, len(samples))
    return observers, fixed


def _quantize_value(graph: Graph, name: str, scale: np.ndarray, zero: np.ndarray) -> None:
    """Quantize a value for the products and sums that read it."""
    readers = [node for node in graph.nodes if name in node.operands and node.op.name in _SUMMED]
    parameters = [graph.add_constant(graph.fresh(f"{name}.{word}"), np.asarray(value))
             for word, value in (("scale", scale), ("zero", zero))]  # fmt: skip
    attributes: dict[str, Any] = {"axis": 1 if scale.size > 1 else 0, "block": 0}
    quantized = graph.add(
        "quantize", [name, *parameters], f"{name}.quantized", before=readers[0], **attributes, dtype=u8, precision=f32
    ).output
    restored = graph.add(
        "dequantize", [quantized, *parameters], f"{name}.decoded", before=readers[0], **attributes, dtype=f32
    )
    for node in readers:
        graph.set_operands(node, [restored.output if operand == name else operand for operand in node.operands])


def _quantize_product(
    graph: Graph, product: Node, weight: np.ndarray, observer: Observer, scale: np.ndarray, zero: np.ndarray
) -> None:
    """Quantize a product's filter or matrix, and a convolution's bias. scale, zero: of the product's input."""
    x, name, *rest = product.operands
    axis = 0 if product.op.name == "conv" or product.transpose_b else 1
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scales = np.maximum(abs(weight).max(others) * np.float32(1 / 127), LEAST).astype(np.float32)
    spread = np.expand_dims(scales, others)
    quantized = np.rint(weight / spread).astype(np.int8)
    operands = [x, _dequantized(graph, product, f"{name}", quantized, scales, axis)]
    if product.op.name == "conv":
        bias = (*rest, None)[0]
        known = np.zeros(len(weight), np.float32) if bias is None else graph.data(bias)
        if known is not None and observer.count:
            known = known + _moved(weight, quantized * spread, product.groups, observer, scale, zero)
            bias = _bias(graph, product, known, scales * scale)
        operands.append(bias)
    graph.set_operands(product, operands)


def _moved(
    weight: np.ndarray, quantized: np.ndarray, groups: int, observer: Observer, scale: np.ndarray, zero: np.ndarray
) -> np.ndarray:
    """Return how much larger the means of a convolution's channels are without rounding; padding is ignored."""
    means, rounded = (mean.reshape(groups, -1) for mean in (observer.mean, observer.mean + observer.moved(scale, zero)))
    sums, quantized_sums = (w.reshape(groups, -1, *w.shape[1:2], np.prod(w.shape[2:], dtype=int)).sum(-1, np.float64)
                            for w in (weight, quantized))  # fmt: skip
    exact = np.einsum("gok,gk->go", sums, means)
    approximate = np.einsum("gok,gk->go", quantized_sums, rounded)
    return (exact - approximate).ravel()


def _bias(graph: Graph, product: Node, bias: np.ndarray, sums: np.ndarray) -> str:
    """Quantize a bias to i32 with the scales of the sums, or keep it as f32 if it is out of range."""
    quantized, name = np.rint(bias / sums), f"{product.output}.bias"
    if (abs(quantized) < _MOST).all():
        return _dequantized(graph, product, name, quantized.astype(np.int32), sums, 0)
    return graph.add_weight(graph.fresh(name), bias.astype(np.float32))


def _dequantized(graph: Graph, product: Node, name: str, quantized: np.ndarray, scale: np.ndarray, axis: int) -> str:
    """Add quantized weights with a scale for each index of an axis; return the dequantized value."""
    stored = graph.add_weight(graph.fresh(f"{name}.quantized"), quantized)
    scales = graph.add_weight(graph.fresh(f"{name}.scales"), scale)
    node = graph.add("dequantize", [stored, scales], f"{name}.decoded", before=product, axis=axis, block=0, dtype=f32)
    return node.output

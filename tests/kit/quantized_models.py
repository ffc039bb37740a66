"""Small models as ONNX Runtime's quantizer writes them: one op of floats, calibrated and rounded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType

from onnx_models import model, value_info

Arrays = dict[str, np.ndarray]
F = np.float32


@dataclass(frozen=True)
class Layer:
    """A node of floats. x: the shape of its input. weights: shapes of its other operands. other: a second input."""

    op: str
    x: tuple[int, ...]
    weights: Sequence[tuple[int, ...]] = ()
    other: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()
    then: str = ""

    def __str__(self) -> str:
        return f"{self.op}{list(self.x)}{[list(shape) for shape in self.weights]}{self.then}{dict(self.attributes)}"


def _pads(kernel: int, stride: int, groups: int = 1) -> tuple[tuple[str, Any], ...]:
    pads = [kernel // 2] * 4
    return (("kernel_shape", [kernel] * 2), ("pads", pads), ("strides", [stride] * 2), ("group", groups))


LAYERS = [
    Layer("MatMul", (2, 9, 40), [(40, 33)]),
    Layer("MatMul", (2, 3, 9, 24), other=True),
    Layer("Gemm", (7, 36), [(36, 50), (50,)]),
    Layer("Gemm", (5, 30), [(20, 30), (20,)], attributes=(("transB", 1),), then="Relu"),
    Layer("Conv", (1, 3, 17, 15), [(16, 3, 7, 7), (16,)], attributes=_pads(7, 2), then="Relu"),
    Layer("Conv", (2, 20, 9, 8), [(40, 20, 1, 1), (40,)], attributes=_pads(1, 1)),
    Layer("Conv", (1, 16, 9, 8), [(36, 8, 3, 3)], attributes=_pads(3, 1, 2), then="Clip"),
    Layer("Conv", (1, 24, 15, 9), [(24, 1, 3, 3), (24,)], attributes=_pads(3, 2, 24), then="Clip"),
    Layer("Add", (2, 5, 6, 7), other=True),
    Layer("Mul", (3, 40), [(40,)]),
    Layer("Concat", (2, 4, 9), other=True, attributes=(("axis", 1),)),
    Layer("Conv", (1, 4, 9, 8), [(20, 4, 1, 1)], attributes=_pads(1, 1), then="MaxPool"),
    Layer("Conv", (1, 4, 9, 8), [(20, 4, 1, 1)], attributes=_pads(1, 1), then="AveragePool"),
    Layer("Conv", (1, 4, 9, 8), [(20, 4, 1, 1)], attributes=_pads(1, 1), then="GlobalAveragePool"),
    Layer("MatMul", (2, 5, 6), [(6, 7)], then="Transpose"),
    Layer("Sigmoid", (3, 70)),
]  # fmt: skip


THEN: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]},
    "AveragePool": {"kernel_shape": [2, 2]},
    "Transpose": {"perm": [0, 2, 1]},
}


class Samples(CalibrationDataReader):
    """Feeds for a calibration, one after another."""

    def __init__(self, feeds: Sequence[Arrays]):
        self._feeds: Iterator[Arrays] = iter(feeds)

    def get_next(self) -> Arrays | None:
        return next(self._feeds, None)


def float_model(layer: Layer, rng: np.random.Generator) -> tuple[onnx.ModelProto, Arrays]:
    """A model of one layer, and what it is fed."""
    feeds = {"x": rng.standard_normal(layer.x).astype(F)}
    if layer.other:
        feeds["other"] = rng.standard_normal(layer.x).astype(F)
        if layer.op == "MatMul":
            feeds["other"] = np.ascontiguousarray(feeds["other"].swapaxes(-1, -2))
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(F), f"w{i}")
        for i, shape in enumerate(layer.weights)
    ]
    result = "sums" if layer.then else "y"
    names = [*feeds, *(weight.name for weight in weights)]
    nodes = [helper.make_node(layer.op, names, [result], "layer", **dict(layer.attributes))]
    if layer.then:
        bounds = [numpy_helper.from_array(np.array(bound, F), f"b{bound}") for bound in (0, 6)]
        weights += bounds if layer.then == "Clip" else []
        operands = [result, *(bound.name for bound in bounds)] if layer.then == "Clip" else [result]
        nodes.append(helper.make_node(layer.then, operands, ["y"], "then", **THEN.get(layer.then, {})))
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    inputs = [value_info(name, array) for name, array in feeds.items()]
    return model(helper.make_graph(nodes, "layer", inputs, outputs, weights), 17), feeds


def quantized(
    layer: Layer, folder: Path, rng: np.random.Generator, *, qdq: bool, signed: bool, per_channel: bool,
    symmetric: bool,
) -> tuple[onnx.ModelProto, Arrays]:  # fmt: skip
    """The layer's model, statically quantized, and what it is fed."""
    proto, feeds = float_model(layer, rng)
    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(proto, source)
    quantization.quantize_static(
        source, target, Samples([feeds]), quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8, weight_type=QuantType.QInt8,
        per_channel=per_channel, extra_options={"ActivationSymmetric": symmetric},
    )  # fmt: skip
    return onnx.load(target), feeds


def last_step(proto: onnx.ModelProto) -> float:
    """The scale by which a model dequantizes last; of one that does so nowhere, what f32 leaves."""
    names = [node.input[1] for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    scales = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    return float(scales[names[-1]].max()) if names else 1e-6

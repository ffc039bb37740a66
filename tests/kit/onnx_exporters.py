"""Small networks as exporters of opsets 6 to 12 wrote them, node by node: what a file of those years looks like."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F = np.float32
NCHW, NHWC = [0, 3, 1, 2], [0, 2, 3, 1]


@dataclass
class Writer:
    """Writes a graph. Weights are drawn; a constant is a node if `nodes` has it, else an initializer."""

    opset: int
    nodes_of_constants: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng, self.names = np.random.default_rng(1), (f"v{i}" for i in itertools.count())

    def add(self, op: str, *operands: str, **attributes: Any) -> str:
        return self.add_all(op, 1, *operands, **attributes)[0]

    def add_all(self, op: str, count: int, *operands: str, **attributes: Any) -> list[str]:
        outputs = [next(self.names) for _ in range(count)]
        self.nodes.append(helper.make_node(op, list(operands), outputs, **attributes))
        return outputs

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        array = np.array(values, dtype)
        if self.nodes_of_constants:
            return self.add("Constant", value=numpy_helper.from_array(array))
        self.tensors.append(numpy_helper.from_array(array, next(self.names)))
        return self.tensors[-1].name

    def weight(self, *shape: int, low: float = -0.5, high: float = 0.5) -> str:
        self.tensors.append(numpy_helper.from_array(self.rng.uniform(low, high, shape).astype(F), next(self.names)))
        return self.tensors[-1].name

    def statistics(self, channels: int) -> list[str]:
        """The last four operands of a batch normalisation."""
        return [self.weight(channels, low=low, high=2.0) for low in (0.5, -1.0, -1.0, 0.5)]

    def transposed(self, op: str, x: str, *operands: str, **attributes: Any) -> str:
        """An op over channels first, between transposes of channels last."""
        x = self.add("Transpose", x, perm=NCHW)
        return self.add("Transpose", self.add(op, x, *operands, **attributes), perm=NHWC)

    def squeeze(self, op: str, x: str, *axes: int) -> str:
        return self.add(op, x, axes=list(axes))

    def finished(self, result: str, dims: list[int | str]) -> onnx.ModelProto:
        outputs = [onnx.ValueInfoProto(name=result)]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
        graph = helper.make_graph(self.nodes, "exported", [x], outputs, self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=6)


def tf2onnx(batch: int | str, opset: int = 11) -> onnx.ModelProto:
    """Channels last: every image op between transposes, biases added behind them, and the batch read back by hand."""
    w = Writer(opset)

    def conv(x: str, inputs: int, outputs: int, stride: int = 1) -> str:
        amounts = [0, 1, 1, 0, 0, 1, 1, 0]
        x = w.add("Pad", x, w.constant(amounts)) if opset >= 11 else w.add("Pad", x, pads=amounts)
        x = w.transposed("Conv", x, w.weight(outputs, inputs, 3, 3), strides=[stride, stride], kernel_shape=[3, 3])
        return w.add("Add", x, w.weight(outputs))

    x = w.add("Relu", w.transposed("BatchNormalization", conv("x", 3, 16, 2), *w.statistics(16)))
    x = w.transposed("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = w.add("Add", x, w.add("Relu", conv(x, 16, 16)))
    x = w.squeeze("Squeeze", w.squeeze("Unsqueeze", w.add("ReduceMean", x, axes=[1, 2], keepdims=0), 1, 2), 1, 2)
    begin, end, one = w.constant([0]), w.constant([1]), w.constant([16])
    shape = w.add("Cast", w.add("Shape", x), to=TensorProto.INT32)
    bounds = {} if opset >= 10 else {"axes": [0], "starts": [0], "ends": [1]}
    first = w.add("Slice", shape, *([] if bounds else [begin, end, begin]), **bounds)
    first = w.squeeze("Unsqueeze", w.squeeze("Squeeze", first, 0), 0)
    target = w.add("Concat", w.add("Cast", first, to=TensorProto.INT64), one, axis=0)
    x = w.add("MatMul", w.add("Reshape", x, target), w.weight(16, 10))
    x = w.add("Softmax", w.add("Add", x, w.weight(10)))
    return w.finished(w.add("Identity", x), [batch, 12, 12, 3])


def keras2onnx(batch: int | str, opset: int = 9) -> onnx.ModelProto:
    """Chains of Identity, a transpose around each layer, and Upsample of the opset's form."""
    w = Writer(opset)

    def layer(x: str, inputs: int, outputs: int) -> str:
        padded = {"auto_pad": "SAME_UPPER", "dilations": [1, 1], "group": 1, "kernel_shape": [3, 3]}
        x = w.transposed("Conv", x, w.weight(outputs, inputs, 3, 3), w.weight(outputs), **padded, strides=[1, 1])
        x = w.transposed("BatchNormalization", x, *w.statistics(outputs), epsilon=1e-3, momentum=0.99)
        return w.add("Identity", w.add("LeakyRelu", w.add("Identity", x), alpha=0.1))

    def upsampled(x: str) -> str:
        scales = [1.0, 1.0, 2.0, 2.0]
        if opset < 9:
            return w.transposed("Upsample", x, scales=scales, mode="nearest")
        if opset < 11:
            return w.transposed("Upsample" if opset < 10 else "Resize", x, w.constant(scales, F), mode="nearest")
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return w.transposed("Resize", x, w.constant([], F), w.constant(scales, F), **how)

    x = layer("x", 3, 16)
    deep = layer(w.transposed("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID"), 16, 16)
    x = layer(w.add("Concat", upsampled(deep), x, axis=-1 if opset >= 11 else 3), 32, 16)
    x = w.add("Identity", w.add("Dropout", w.add("Identity", x)))
    x = w.add("Reshape", x, w.constant([-1, 12 * 12 * 16]))
    x = w.add("Add", w.add("MatMul", x, w.weight(12 * 12 * 16, 8)), w.weight(8))
    return w.finished(w.add("Identity", w.add("Sigmoid", x)), [batch, 12, 12, 3])


def paddle(batch: int | str, opset: int = 11) -> onnx.ModelProto:
    """Constants of one element through Cast, hard-swish by Clip, and reshapes by Shape and Slice."""
    w = Writer(opset, nodes_of_constants=True)

    def scale(x: str, by: float, bias: float) -> str:
        x = w.add("Mul", x, w.add("Cast", w.constant([by], np.float64), to=TensorProto.FLOAT))
        return w.add("Add", x, w.add("Cast", w.constant([bias], F), to=TensorProto.FLOAT))

    def hard_swish(x: str) -> str:
        six = w.add("Add", x, w.constant([3.0], F))
        if opset >= 11:
            six = w.add("Clip", six, w.constant(0.0, F), w.constant(6.0, F))
        else:
            six = w.add("Clip", six, min=0.0, max=6.0)
        return w.add("Div", w.add("Mul", x, six), w.constant([6.0], F))

    def conv(x: str, inputs: int, outputs: int) -> str:
        x = w.add("Conv", x, w.weight(outputs, inputs, 3, 3), pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        return hard_swish(w.add("BatchNormalization", x, *w.statistics(outputs)))

    x = conv(scale("x", 1 / 255, -0.5), 3, 16)
    squeezed = w.add("Relu", w.add("Conv", w.add("GlobalAveragePool", x), w.weight(4, 16, 1, 1), w.weight(4)))
    gate = w.add("HardSigmoid", w.add("Conv", squeezed, w.weight(16, 4, 1, 1), w.weight(16)), alpha=0.2, beta=0.5)
    x = conv(w.add("Mul", x, gate), 16, 16)
    x = w.add("AveragePool", x, kernel_shape=[8, 1], strides=[8, 1])
    x = w.add("Transpose", w.squeeze("Squeeze", x, 2), perm=[0, 2, 1])
    shape = w.add("Shape", x)
    if opset >= 10:
        first = w.add("Slice", shape, w.constant([0]), w.constant([2]), w.constant([0]))
    else:
        first = w.add("Slice", shape, axes=[0], starts=[0], ends=[2])
    rows = w.add("Reshape", x, w.constant([-1, 16]))
    rows = w.add("Add", w.add("MatMul", rows, w.weight(16, 12)), w.weight(12))
    x = w.add("Reshape", rows, w.add("Concat", first, w.constant([12]), axis=0))
    return w.finished(w.add("Softmax", x, axis=2), [batch, 3, 8, 20])


def pytorch(batch: int | str, opset: int = 9, sides: tuple[int | str, int | str] = (12, 12)) -> onnx.ModelProto:
    """Sizes by Shape, Gather and Floor; norms and activations spelled out; attributes where operands are now."""
    w = Writer(opset, nodes_of_constants=True)

    def size(x: str, axis: int) -> str:
        return w.add("Gather", w.add("Shape", x), w.constant(axis), axis=0)

    def doubled(x: str) -> str:
        """functional.interpolate(x, scale_factor=2)."""
        sides = []
        for axis in (2, 3):
            wide = w.add("Mul", w.add("Cast", size(x, axis), to=TensorProto.FLOAT), w.constant(2.0, F))
            whole = w.add("Cast", w.add("Floor", w.add("Cast", wide, to=TensorProto.FLOAT)), to=TensorProto.INT64)
            sides.append(w.squeeze("Unsqueeze", whole, 0))
        wanted = w.add("Cast", w.add("Concat", *sides, axis=0), to=TensorProto.FLOAT)
        if opset >= 10:
            last = w.add("Slice", w.add("Shape", x), w.constant([2]), w.constant([4]), w.constant([0]))
        else:
            last = w.add("Slice", w.add("Shape", x), axes=[0], starts=[2], ends=[4])
        factors = w.add("Div", wanted, w.add("Cast", last, to=TensorProto.FLOAT))
        scales = w.add("Concat", w.constant([1.0, 1.0], F), factors, axis=0)
        return w.add("Upsample" if opset < 10 else "Resize", x, scales, mode="nearest")

    def norm(x: str, width: int) -> str:
        centred = w.add("Sub", x, w.add("ReduceMean", x, axes=[-1]))
        square = w.add("ReduceMean", w.add("Pow", centred, w.constant(2.0, F)), axes=[-1])
        x = w.add("Div", centred, w.add("Sqrt", w.add("Add", square, w.constant(1e-5, F))))
        return w.add("Add", w.add("Mul", x, w.weight(width)), w.weight(width))

    def linear(x: str, inputs: int, outputs: int) -> str:
        return w.add("Add", w.add("MatMul", x, w.weight(inputs, outputs)), w.weight(outputs))

    def gelu(x: str) -> str:
        erf = w.add("Erf", w.add("Div", x, w.constant(2**0.5, F)))
        return w.add("Mul", w.add("Mul", x, w.add("Add", erf, w.constant(1.0, F))), w.constant(0.5, F))

    def viewed(x: str, of: str, *rest: int) -> str:
        """x.view(of.size(0), of.size(1), *rest)."""
        kept = [w.squeeze("Unsqueeze", size(of, axis), 0) for axis in (0, 1)]
        return w.add("Reshape", x, w.add("Concat", *kept, *(w.constant([n]) for n in rest), axis=0))

    x = w.add("Pad", "x", pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="constant", value=0.0)
    x = w.add("Conv", x, w.weight(16, 3, 3, 3), w.weight(16), kernel_shape=[3, 3], strides=[2, 2])
    x = w.add("Clip", x, min=0.0, max=6.0)
    x = w.add("Conv", doubled(doubled(x)), w.weight(16, 16, 4, 4), w.weight(16), strides=[4, 4], kernel_shape=[4, 4])
    flat = w.add("Reshape", x, w.add("Concat", *(w.squeeze("Unsqueeze", size(x, i), 0) for i in (0, 1)),
                                     w.constant([-1]), axis=0))  # fmt: skip
    rows = w.add("Transpose", flat, perm=[0, 2, 1])
    normed = norm(rows, 16)
    q, k, v = (viewed(linear(normed, 16, 16), normed, 2, 8) for _ in range(3))
    q, v = (w.add("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
    scores = w.add("MatMul", q, w.add("Transpose", k, perm=[0, 2, 3, 1]))
    weights = w.add("Softmax", w.add("Div", scores, w.constant(8**0.5, F)), axis=3)
    mixed = w.add("Transpose", w.add("MatMul", w.add("Dropout", weights, ratio=0.1), v), perm=[0, 2, 1, 3])
    rows = w.add("Add", rows, linear(viewed(mixed, normed, 16), 16, 16))
    rows = w.add("Add", rows, linear(gelu(linear(norm(rows, 16), 16, 64)), 64, 16))
    result = w.add("Gather", rows, w.constant(0), axis=1)
    return w.finished(w.add("LogSoftmax", result, axis=1), [batch, 3, *sides])


def pytorch_of_opset_6(batch: int | str) -> onnx.ModelProto:
    """Biases along an axis, statistics at rest by `is_test`, shapes as attributes."""
    w = Writer(6)
    x = w.add("Conv", "x", w.weight(16, 3, 3, 3), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = w.add("BatchNormalization", w.add("Add", x, w.weight(16), axis=1, broadcast=1), *w.statistics(16), is_test=1)
    x = w.add("PRelu", x, w.weight(16))
    x = w.add("Pad", x, pads=[0, 0, 1, 1, 0, 0, 1, 1])
    x = w.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = w.add("Upsample", x, height_scale=2.0, width_scale=2.0, mode="nearest")
    x = w.add("Mul", x, w.weight(1, 16, 1, 1), broadcast=1)
    x = w.add("Reshape", w.add("AveragePool", x, kernel_shape=[14, 14]), w.constant([-1, 16]))
    x = w.add("Gemm", w.add("Dropout", x, is_test=1, ratio=0.5), w.weight(10, 16), w.weight(10), broadcast=1, transB=1)
    return w.finished(w.add("Softmax", x, axis=1), [batch, 3, 12, 12])


def recurrent(batch: int | str, opset: int = 9) -> onnx.ModelProto:
    """A tagger: an LSTM whose states are made of the batch's size, and squeezed of its directions."""
    w = Writer(opset, nodes_of_constants=True)
    x = w.add("Transpose", "x", perm=[1, 0, 2])
    rows = w.squeeze("Unsqueeze", w.add("Gather", w.add("Shape", x), w.constant(1), axis=0), 0)
    shape = w.add("Concat", w.constant([2]), rows, w.constant([16]), axis=0)
    zeros = [w.add("ConstantOfShape", shape, value=helper.make_tensor("v", 1, [1], [0.0])) for _ in range(2)]
    weights = w.weight(2, 64, 12), w.weight(2, 64, 16), w.weight(2, 128)
    y = w.add_all("LSTM", 3, x, *weights, "", *zeros, direction="bidirectional", hidden_size=16)[0]
    y = w.add("Reshape", w.add("Transpose", y, perm=[0, 2, 1, 3]), w.constant([0, 0, -1]))
    y = w.add("Transpose", y, perm=[1, 0, 2])
    y = w.add("Add", w.add("MatMul", y, w.weight(32, 5)), w.weight(5))
    return w.finished(w.add("LogSoftmax", y, axis=2), [batch, 7, 12])


def feeds_of(proto: onnx.ModelProto, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Noise: a batch of two, images of 12 rows and columns where they may have any size."""
    sizes = {"n": 2, "h": 12, "w": 12}
    dims = [d.dim_value or sizes[d.dim_param] for d in proto.graph.input[0].type.tensor_type.shape.dim]
    return {"x": rng.standard_normal(dims).astype(F)}

"""Nodes of opsets before 13, in every form that an op had: those that an oracle runs, and those with a formula."""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from onnx_models import Case, case, ints

F = np.float32
Formula = Callable[..., Any]


def _stack(*values: float) -> np.ndarray:
    return np.array(values, F)


_POOL: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 0, 1]}
_FLATTENED = ("Softmax", "LogSoftmax", "Hardmax")
_REDUCE = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_STATISTICS = "s[3] b[3] m[3] v>0.1[3]"

# What ONNX Runtime computes, or else ONNX's reference.
EARLIER = [
    *(case(op, "x[2,3] y[3] z[2,1]", opset=8) for op in ("Max", "Mean", "Min", "Sum")),
    *(case("BatchNormalization", f"x[2,3,4,4] {_STATISTICS}", opset=opset) for opset in (7, 9)),
    *(case("Cast", "x[2,3]", opset=opset, to=7) for opset in (6, 9)),
    *(case("Concat", "x[2,3] y[2,3]", opset=opset, axis=axis) for opset, axis in ((4, 1), (11, -1))),
    *(case("Gemm", "a[2,3] b[3,4] c[4]", opset=opset) for opset in (7, 9, 11)),
    case("Gemm", "a[2,3] b[3,4]", opset=11),
    case("Reshape", "x[2,3,4] @s", opset=5, s=ints(0, -1)),
    case("Tile", "x[2,3] @t", opset=6, t=ints(2, 1)),
    *(case("Upsample", "x[1,2,3,4]", opset=8, scales=[1.0, 1.0, *sides], mode=mode)
      for mode in ("nearest", "linear") for sides in ((2.0, 2.0), (1.5, 2.5))),
    *(case(op, "x[1,2,5,7] @s", opset=opset, s=_stack(1, 1, *sides), mode=mode)
      for op, opset in (("Upsample", 9), ("Resize", 10)) for mode in ("nearest", "linear")
      for sides in ((2, 3), (1.5, 2.5), (0.6, 0.5), (0.3, 2))[: 4 if op == "Resize" else 2]),
    *(case("Resize", f"x[1,2,3,4] {roi} @s", opset=11, s=_stack(1, 1, 2, 3), e=_stack(), mode=mode, oracle=oracle)
      for mode in ("nearest", "linear") for roi, oracle in (("none", "reference"), ("@e", "ort"))),
    *(case("Resize", "x[1,2,3,4] @e @s", opset=11, s=_stack(1, 1, *sides), e=_stack(), nearest_mode="floor",
           coordinate_transformation_mode="tf_half_pixel_for_nn") for sides in ((2, 3), (0.5, 1.7))),
    case("Resize", "x[1,2,3,4] @e @e @s", opset=11, e=_stack(), s=ints(1, 2, 6, 6), nearest_mode="floor",
         coordinate_transformation_mode="asymmetric"),
    *(case("Pad", "x[2,3]", opset=opset, **how) for opset in (2, 10)
      for how in ({"pads": [0, 1, 2, 1], "value": 1.5}, {"pads": [0, 1, 0, 1], "mode": "reflect"},
                  {"pads": [0, -1, 0, 1]})),
    case("Pad", "x:f64[2,3]", opset=10, pads=[0, 1, 2, 1], value=1.5),
    *(case("Split", "x[6,4]", 2, opset=opset, **how) for opset in (2, 11)
      for how in ({}, {"axis": 1}, {"axis": 0, "split": [2, 4]})),
    *(case("Slice", "x[6,4]", opset=opset, **how) for opset in (1, 9)
      for how in ({"starts": [1, 0], "ends": [-1, 3]}, {"starts": [1], "ends": [1000], "axes": [0]},
                  {"starts": [0, -2], "ends": [3, 2**31 - 1], "axes": [0, 1]})),
    case("Slice", "x[6,4] @a @b @c @d", opset=10, a=ints(4), b=ints(0), c=ints(0), d=ints(-1)),
    *(case("TopK", "x[3,5]", 2, opset=9, k=2, **how) for how in ({}, {"axis": 0})),
    case("TopK", "x[3,5] @n", 2, opset=10, n=ints(3)),
    *(case("MaxPool", "x[1,2,6,6]", opset=opset, **_POOL) for opset in (1, 8, 10, 11, 12)),
    *(case("MaxPool", "x[1,2,6,6]", opset=opset, kernel_shape=[3, 3], auto_pad="SAME_UPPER") for opset in (1, 10)),
    *(case("AveragePool", "x[1,2,6,6]", opset=opset, **_POOL) for opset in (7, 10, 11)),
    case("LpPool", "x[1,2,6,6]", opset=2, kernel_shape=[2, 2], p=3),
    case("GlobalLpPool", "x[1,2,6,6]", opset=2, p=1),
    *(case(op, f"x[{dims}]", opset=opset, **how)
      for op in _FLATTENED for opset in (7, 11) for dims in ("2,3,4", "2,3,1,1")
      for how in ({}, {"axis": 2}, {"axis": 0})),
    *(case(op, "x[2,1,3]", opset=opset, axes=axes) for opset in (1, 11) for op, axes in (("Squeeze", [1]),
      ("Unsqueeze", [0, 3]))),
    case("Unsqueeze", "x[2,3]", opset=11, axes=[-1]),
    *(case(f"Reduce{op}", "x>0.1[2,3,4]", opset=opset, **how) for op in _REDUCE for opset in (1, 11)
      for how in ({}, {"axes": [1], "keepdims": 0})),
    *(case(op, "x[2,3,4]", opset=opset, axis=1) for op in ("ArgMax", "ArgMin") for opset in (1, 11, 12)),
    *(case("Clip", f"x:{dtype}[2,3]", opset=opset, **how) for opset, dtype in ((6, "f32"), (10, "f32"))
      for how in ({}, {"min": -1.0}, {"max": 0.5}, {"min": -1.0, "max": 0.5})),
    case("Clip", "x[2,3] none @m", opset=11, m=np.array(1, F)),
    case("PRelu", "x[2,3,4] s[3,1]", opset=7),
    case("LSTM", "x[5,2,3] w[1,16,3] r[1,16,4] b[1,32]", 3, opset=7, hidden_size=4),
    case("GRU", "x[5,2,3] w[1,12,3] r[1,12,4] b[1,24]", 2, opset=7, hidden_size=4, linear_before_reset=1),
    case("RNN", "x[5,2,3] w[1,4,3] r[1,4,4] b[1,8]", 2, opset=7, hidden_size=4),
    case("Conv", "x[1,2,5,5] w[3,2,3,3] b[3]", opset=1, pads=[1, 1, 1, 1]),
    *(case("ConvTranspose", "x[1,2,5,5] w[2,3,3,3]", opset=9, strides=[2, 2], **how)
      for how in ({"auto_pad": "SAME_UPPER"}, {"output_shape": [10, 10]}, {"output_padding": [1, 1]})),
    *(case("Flatten", "x[2,3,4]", opset=opset) for opset in (1, 9, 11)),
    case("Gather", "x[4,3] @i", opset=1, axis=1, i=ints(2, 0)),
    case("GatherND", "x[3,3] @i", opset=11, i=np.array([[0, 1]])),
    *(case("Scatter", "x[3,3] @i u[3,1]", opset=opset, axis=1, i=np.array([[1], [0], [2]])) for opset in (9, 10)),
    case("ScatterElements", "x[3,3] @i u[1,3]", opset=11, i=np.array([[1, 0, 2]])),
    case("DepthToSpace", "x[1,8,2,3]", opset=1, blocksize=2),
    case("OneHot", "@i @d @v", opset=9, i=ints(0, 2), d=ints(4), v=_stack(0, 1)),
    case("Expand", "x[3,1] @s", opset=8, s=ints(2, 1, 4)),
    case("MeanVarianceNormalization", "x[2,3,4,4]", opset=9),
    *(case(op, "x[2,3]", opset=opset) for op, opset in (("Softplus", 1), ("Softsign", 1), ("Elu", 6), ("Selu", 6),
      ("HardSigmoid", 6), ("Shrink", 9), ("ThresholdedRelu", 10), ("Celu", 12), ("Erf", 9), ("Round", 11))),
    *(case("Constant", "", opset=opset, value=helper.make_tensor("v", 1, [2], [1.0, 2.0])) for opset in (1, 9, 11)),
    case("Pow", "x>0.1[3] y:i64<3[3]", opset=12),
    case("QuantizeLinear", "x[2,3] @s @z", opset=10, s=np.array(0.1, F), z=np.array(3, np.uint8)),
    case("DequantizeLinear", "x:u8<99[2,3] @s @z", opset=10, s=np.array(0.1, F), z=np.array(3, np.uint8)),
    case("RoiAlign", "x[1,2,8,8] @r @b", opset=10, r=_stack(0, 0, 4, 4)[None], b=ints(0), sampling_ratio=2),
    case("NonMaxSuppression", "@b @s @n @o", opset=10, b=np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], F),
         s=np.array([[[0.9, 0.8, 0.7]]], F), n=ints(3), o=_stack(0.5)),
    *(case("Affine", "x[2,3]", opset=1, **how) for how in ({"alpha": 2.0, "beta": 1.0}, {"beta": 0.5})),
    case("ScaledTanh", "x[2,3]", opset=1, alpha=0.5, beta=2.0),
    case("ParametricSoftplus", "x[2,3]", opset=1, alpha=0.5, beta=2.0),
    *(case("ThresholdedRelu", "x[2,3]", opset=1, **how) for how in ({}, {"alpha": 0.5})),
    case("ImageScaler", "x[1,2,3,4]", opset=1, scale=2.0, bias=[1.0, 2.0]),
    *(case("Crop", "x[1,2,5,6]", opset=1, border=[1, 0, 2, 1], **how) for how in ({}, {"scale": [3, 2]})),
    *(case("MeanVarianceNormalization", "x[2,3,4,4]", opset=1, **how)
      for how in ({}, {"across_channels": 1}, {"normalize_variance": 0})),
]  # fmt: skip

_UNARY: dict[str, Formula] = {
    "Abs": np.abs, "Ceil": np.ceil, "Exp": np.exp, "Floor": np.floor, "Neg": np.negative, "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0), "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)), "LeakyRelu": lambda x: np.where(x > 0, x, 0.01 * x),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
}  # fmt: skip
_VARIADIC: dict[str, Formula] = {
    "Sum": lambda a, b, c: a + b + c, "Mean": lambda a, b, c: (a + b + c) / 3,
    "Max": lambda a, b, c: np.maximum(np.maximum(a, b), c), "Min": lambda a, b, c: np.minimum(np.minimum(a, b), c),
}  # fmt: skip
_BINARY: dict[str, tuple[str, Formula]] = {
    "Add": ("f32", np.add), "Sub": ("f32", np.subtract), "Mul": ("f32", np.multiply), "Div": ("f32", np.divide),
    "Pow": ("f32", np.power), "Greater": ("f32", np.greater), "Less": ("f32", np.less), "Equal": ("i32", np.equal),
    "And": ("bool", np.logical_and), "Or": ("bool", np.logical_or), "Xor": ("bool", np.logical_xor),
}  # fmt: skip
# dims of the second operand of x [2, 3, 4], the attributes of the node for them, and their position.
_ALONG: list[tuple[str, dict[str, int], tuple[int, ...]]] = [
    ("2,3,4", {}, (2, 3, 4)),
    ("3,4", {"broadcast": 1}, (3, 4)),
    ("", {"broadcast": 1}, ()),
    ("3", {"broadcast": 1, "axis": 1}, (3, 1)),
    ("3", {"broadcast": 1, "axis": -2}, (3, 1)),
    ("2,3", {"broadcast": 1, "axis": 0}, (2, 3, 1)),
]


def _along(op: str, opset: int) -> list[tuple[Case, Formula]]:
    dtype, formula = _BINARY[op]
    consumed = {"consumed_inputs": [0, 0]} if opset == 1 and op in ("Add", "Sub", "Mul", "Div") else {}
    bounds = "" if dtype == "bool" else ">1<3"
    return [
        (
            case(op, f"x:{dtype}{bounds}[2,3,4] y:{dtype}{bounds}[{dims}]", opset=opset, **how, **consumed),
            lambda x, y, shape=shape: formula(x, y.reshape(shape)),
        )
        for dims, how, shape in _ALONG
    ]


def _normalized(x: np.ndarray, *statistics: np.ndarray, each: bool = False) -> np.ndarray:
    s, b, m, v = (a if each else a[:, None, None] for a in statistics)
    return (x - m) / np.sqrt(v + 1e-5) * s + b


def _normalized_rows(x: np.ndarray, s: np.ndarray, b: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * s[:, None] + b[:, None]


_ELEMENTS = "s[3,2] b[3,2] m[3,2] v>0.1[3,2]"

# What neither runs, and what is meant.
FORMULAS: list[tuple[Case, Formula]] = [
    *((case(op, "x[2,3]", opset=1, consumed_inputs=[0]), formula) for op, formula in _UNARY.items()),
    *((case(op, "x[2,3]", opset=1), formula) for op, formula in _UNARY.items()),
    *((case(op, "x[2,3] y[2,3] z[2,3]", opset=opset), formula) for op, formula in _VARIADIC.items()
      for opset in (1, 6)),
    *(row for op in _BINARY for opset in (1, 6) for row in _along(op, opset)),
    *((case("BatchNormalization", f"x[2,3,4,4] {_STATISTICS}", opset=opset, **how), _normalized) for opset, how in (
        (1, {"consumed_inputs": [0, 0, 0, 1, 1], "is_test": 1, "spatial": 1}), (6, {"is_test": 1}), (6, {}))),
    *((case("BatchNormalization", f"x[2,3,2] {_ELEMENTS}", opset=opset, spatial=0),
       lambda *a: _normalized(*a, each=True)) for opset in (6, 7)),
    (case("InstanceNormalization", "x[2,3,4] s[3] b[3]", opset=1, consumed_inputs=[0, 0, 0]), _normalized_rows),
    *((case("Dropout", "x[2,3]", outputs, opset=opset, **how), lambda x: [x, np.ones_like(x)])
      for opset, outputs, how in ((1, 1, {"is_test": 1, "consumed_inputs": [0]}), (6, 2, {}), (7, 2, {"ratio": 0.3}))),
    (case("Dropout", "x[2,3]", 2, opset=10), lambda x: [x, np.ones(x.shape, bool)]),
    *((case("Cast", "x[2,3]", opset=1, to=name), lambda x, to=to: x.astype(to))
      for name, to in (("INT64", np.int64), ("float", F), ("BOOL", np.bool_))),
    (case("Concat", "x[2,3] y[2,3]", opset=1), lambda x, y: np.concatenate([x, y], 1)),
    (case("Concat", "x[2,3] y[2,3]", opset=3, axis=0), lambda x, y: np.concatenate([x, y], 0)),
    *((case("Gemm", "a[2,3] b[4,3] c[2,1]", opset=opset, broadcast=1, transB=1, alpha=0.5, beta=2.0),
       lambda a, b, c: 0.5 * a @ b.T + 2 * c) for opset in (1, 6)),
    *((case("Reshape", "x[2,3,4]", opset=1, **how), lambda x: x.reshape(2, 12))
      for how in ({"shape": [0, -1]}, {"shape": [2, 12], "consumed_inputs": [0]})),
    *((case("Tile", "x[2,3] @t @a", opset=1, t=_stack(2), a=_stack(axis)),
       lambda x, axis=axis: np.concatenate([x, x], axis)) for axis in (0, 1)),
    (case("Upsample", "x[1,2,3,4]", opset=1, height_scale=2.0, width_scale=3.0),
     lambda x: x.repeat(2, 2).repeat(3, 3)),
    (case("Upsample", "x[1,1,1,2]", opset=1, height_scale=1.0, width_scale=2.0, mode="bilinear"),
     lambda x: x @ np.array([[1, 0.5, 0, 0], [0, 0.5, 1, 1]], F)),
    (case("Pad", "x[2,3]", opset=1, paddings=[0, 1, 2, 1]), lambda x: np.pad(x, ((0, 2), (1, 1)))),
    (case("Pad", "x[2,3]", opset=1, paddings=[0, 1, 0, 1], mode="edge"),
     lambda x: np.pad(x, ((0, 0), (1, 1)), "edge")),
    (case("Split", "x[6,4]", 3, opset=1, axis=0), lambda x: np.split(x, 3)),
    (case("Split", "x[6,4]", 2, opset=1, axis=0, split=[2, 4]), lambda x: np.split(x, [2])),
    (case("Split", "x[6,4] @s", 2, opset=1, axis=0, s=_stack(2, 4)), lambda x: np.split(x, [2])),
    (case("LpPool", "x[1,1,3,3]", opset=1, kernel_shape=[3, 3], p=3.0), lambda x: np.cbrt((abs(x) ** 3).sum((2, 3)))
     [..., None, None]),
    (case("GlobalLpPool", "x[1,2,6,6]", opset=1), lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))),
    (case("AveragePool", "x[1,1,2,2]", opset=1, kernel_shape=[2, 2], pads=[0, 0, 0, 1]),
     lambda x: np.stack([x.mean((2, 3)), x[..., 1].mean(2)], 2)[:, :, None]),
    (case("Clip", "x[2,3]", opset=1, min=-1.0, max=0.5, consumed_inputs=[0]), lambda x: x.clip(-1, 0.5)),
    *((case("Clip", f"x:{dtype}[2,3]", opset=6, min=0.0, max=0.5), lambda x: x.clip(0, 0.5))
      for dtype in ("f16", "f64")),
    *((case("PRelu", f"x[2,3,4] s[{n}]", opset=opset), lambda x, s: np.where(x < 0, x * s[:, None], x))
      for n in (1, 3) for opset in (1, 6)),
    (case("Scatter", "x[3,3] @i u[1,3]", opset=11, i=np.array([[1, 0, 2]])),
     lambda x, u: np.array([[x[0, 0], u[0, 1], x[0, 2]], [u[0, 0], x[1, 1], x[1, 2]], [x[2, 0], x[2, 1], u[0, 2]]])),
    (case("GRU", "x[1,1,1] w[1,3,1] r[1,3,1]", 2, opset=1, output_sequence=1),
     lambda x, w, r: [h := np.tanh(w[0, 2] * x) * (1 - 1 / (1 + np.exp(-w[0, 0] * x))).reshape(1, 1, 1, 1), h[0]]),
]  # fmt: skip

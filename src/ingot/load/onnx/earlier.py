"""Rules for ops of earlier opsets, reduced to the rules of newer opsets: attributes become operands, and so on.

A file's own opset selects the rule of a node, also in subgraphs and functions, so no conversion pass is needed.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ingot.load.eager import Value
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import global_lp_pool, lp_pool
from ingot.load.onnx.elementwise import BINARY, binary, cast, pow_, prelu
from ingot.load.onnx.norm import batch_norm, hardmax, log_softmax, mean_variance_norm, softmax
from ingot.load.onnx.pad import pad
from ingot.load.onnx.reduce import topk
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.resize import resize
from ingot.load.onnx.shape import concat, reshape, slice_, split, tile
from ingot.load.onnx.shapes import Size, count, is_negative

# -- operands that do not broadcast as numpy's do -------------------------------------------------------------------

_ALONG_AXIS = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Sub", "Xor")


@onnx(*_ALONG_AXIS, "Pow")
def along_axis(call: Call) -> str:
    """With broadcast=1, operand 1 aligns with the dims of operand 0 from `axis` on; without an axis, with the last
    dims.
    """
    assert set(_ALONG_AXIS) < BINARY.keys()
    rule = pow_ if call.op == "Pow" else binary
    if "axis" not in call.attributes or not call.attr_int("broadcast", 0):
        return rule(call)
    rank, shape = call.type(0).rank, call.shape(1)
    behind = rank - call.attr_axis("axis", None, rank) - len(shape)
    if behind < 0:
        raise call.malformed(f"attribute 'axis' is {call.attr_int('axis')}, operands {call.type(0)} and {call.type(1)}")
    return rule(call.replaced(call[0], call.reshape(call[1], (*shape, *[1] * behind))))


@onnx("PRelu")
def prelu_of_channels(call: Call) -> str:
    """A slope of rank 1 has one element per channel, or one for all."""
    if call.type(1).rank != 1:
        return prelu(call)
    ones = [1] * max(call.type(0).rank - 2, 0)
    return prelu(call.replaced(call[0], call.reshape(call[1], (*call.shape(1), *ones))))


# -- attributes that are operands in newer opsets -------------------------------------------------------------------


def _sizes(call: Call, name: str) -> np.ndarray | None:
    """Return an INTS attribute as an operand; None when it is omitted."""
    return np.array(call.attr_ints(name), np.int64) if name in call.attributes else None


@onnx("Reshape")
def reshape_by_attribute(call: Call) -> str:
    return reshape(call.replaced(call[0], np.array(call.attr_ints("shape"), np.int64)))


@onnx("Slice")
def slice_by_attributes(call: Call) -> str:
    return slice_(call.replaced(call[0], *(_sizes(call, name) for name in ("starts", "ends", "axes"))))


@onnx("Split")
def split_by_attribute(call: Call) -> tuple[str | None, ...]:
    """Opset 1 accepts sizes as operand 1 too, also as floats."""
    sizes = _sizes(call, "split")
    return split(call.replaced(call[0], _integral(call, 1) if sizes is None and call.has(1) else sizes))


@onnx("TopK")
def topk_by_attribute(call: Call) -> tuple[str | None, ...]:
    return topk(call.replaced(call[0], np.array([call.attr_int("k")], np.int64)))


@onnx("Pad")
def pad_by_attributes(call: Call) -> str:
    """In opset 1 the attribute is named `paddings`."""
    amounts = np.array(call.attr_ints("paddings" if "paddings" in call.attributes else "pads"), np.int64)
    value = np.array(call.attr_float("value", 0.0)).astype(call.type(0).dtype.numpy)
    return pad(call.replaced(call[0], amounts, value))


@onnx("Clip")
def clip_by_attributes(call: Call) -> str:
    names = {"minimum": "min", "maximum": "max"}
    bounds = {name: call.attr_float(given) for name, given in names.items() if given in call.attributes}
    return call.build.clip(call[0], **bounds) if bounds else call[0]


@onnx("Tile")
def tile_along_axis(call: Call) -> str:
    """Repeat x as often as operand 1 specifies, along the axis in operand 2; both have the dtype of x."""
    (times,), (axis,), repeats = _integral(call, 1), _integral(call, 2), np.ones(call.type(0).rank, np.int64)
    if not 0 <= axis < repeats.size:
        raise call.malformed(f"axis {axis} is out of range for {call.type(0)}")
    repeats[axis] = times
    return tile(call.replaced(call[0], repeats))


def _integral(call: Call, index: int) -> np.ndarray:
    """Return a known operand of any dtype as int64 [n]; raises LoadError if its elements are not whole numbers."""
    data = call.build.graph.data(call[index])
    if data is None:
        raise call.unsupported(f"an input {index} that is not known at load")
    data = data.reshape(-1)
    if data.dtype.kind not in "iu" and not (np.isfinite(data) & (data == np.round(data)) & (abs(data) < 2**31)).all():
        raise call.malformed(f"input {index} is {data[:8].tolist()}, expected whole numbers")
    return data.astype(np.int64)


# -- attributes with another meaning or default ---------------------------------------------------------------------


_DTYPES = frozenset(TensorProto.DataType.keys())


@onnx("Cast")
def cast_to_name(call: Call) -> str:
    """Cast to a dtype given by name; files contain lower case, too."""
    name = call.attr_text("to").upper()
    if name not in _DTYPES:
        raise call.malformed(f"attribute 'to' is {name[:100]!r}, expected the name of a dtype")
    return cast(call.replaced(call[0], to=TensorProto.DataType.Value(name)))


@onnx("Concat")
def concat_of_columns(call: Call) -> str:
    return concat(call.replaced(*call.values(), axis=call.attr_int("axis", 1)))


@onnx("Softmax", "LogSoftmax", "Hardmax")
def over_trailing_dims(call: Call) -> str:
    """Normalize over all dims from `axis` on, merged into one."""
    shape = call.shape(0)
    axis = call.attr_axis("axis", 1, len(shape))
    rows: tuple[Size, ...] = (*shape[:axis], count(shape[axis:]))
    rule = {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}[call.op]
    return call.reshape(rule(call.replaced(call.reshape(call[0], rows), axis=axis)), shape)


@onnx("LpPool", "GlobalLpPool")
def lp_pool_of_real(call: Call) -> str:
    """p is a float attribute, of which whole numbers are supported."""
    p = call.attr_float("p", 2.0)
    if not p.is_integer():
        raise call.unsupported(f"an attribute 'p' of {p}")
    return (lp_pool if call.op == "LpPool" else global_lp_pool)(call.replaced(call[0], p=int(p)))


@onnx("BatchNormalization")
def batch_norm_of_elements(call: Call) -> tuple[str | None, ...]:
    """spatial=0: statistics for each element of a sample. More than one output is for training, which is
    unsupported.
    """
    if call.attr_int("spatial", 1):
        return batch_norm(call)
    build, (x, scale, bias, mean, variance) = call.build, call.values()
    deviation = build.sqrt(build.add(variance, call.attr_float("epsilon", 1e-5)))
    return (build.add(build.mul(build.div(build.sub(x, mean), deviation), scale), bias),)


@onnx("Dropout")
def dropout_at_rest(call: Call) -> tuple[str | None, ...]:
    """Return x, and a mask of ones in its dtype."""
    if len(call.outputs) == 1:
        return (call[0],)
    return call[0], call.build.expand(call.build.scalar(1, call.type(0).dtype), shape=call.shape(0))


# -- images ---------------------------------------------------------------------------------------------------------


@onnx("Upsample")
def upsample_by_attributes(call: Call) -> str:
    """Scale each axis by `scales`; in opset 1, height and width."""
    if "scales" in call.attributes:
        return _stretched(call, np.array(call.attr_floats("scales"), np.float32))
    sides = (call.attr_float("height_scale"), call.attr_float("width_scale"))
    return _stretched(call, np.array([1.0, 1.0, *sides], np.float32))


@onnx("Upsample", since=9)
@onnx("Resize", since=10)
def stretch(call: Call) -> str:
    return _stretched(call, call.value(1))


def _stretched(call: Call, scales: Value) -> str:
    """Nearest mode rounds down, and rounds up along an axis that shrinks, as in ONNX Runtime."""
    mode = call.attr_text("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode

    def by(x: str, scales: Value, rounding: str) -> str:
        how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
        return resize(call.replaced(x, None, scales, **how))

    if mode != "nearest" or (isinstance(scales, np.ndarray) and (scales >= 1).all()):
        return by(call[0], scales, "floor")
    builder = call.builder_for(scales)
    return by(by(call[0], builder.maximum(scales, 1.0), "floor"), builder.minimum(scales, 1.0), "ceil")


# -- experimental ops of opset 1 that ONNX Runtime still implements ---------------------------------------------------


@onnx("Affine")
def affine(call: Call) -> str:
    build = call.build
    return build.add(build.mul(call[0], call.attr_float("alpha", 1.0)), call.attr_float("beta", 0.0))


@onnx("ScaledTanh")
def scaled_tanh(call: Call) -> str:
    build = call.build
    return build.mul(build.tanh(build.mul(call[0], call.attr_float("beta"))), call.attr_float("alpha"))


@onnx("ParametricSoftplus")
def parametric_softplus(call: Call) -> str:
    build = call.build
    return build.mul(build.softplus(build.mul(call[0], call.attr_float("beta"))), call.attr_float("alpha"))


@onnx("ImageScaler")
def image_scaler(call: Call) -> str:
    """Scale, and add one bias per channel."""
    build, bias = call.build, np.array(call.attr_floats("bias"), call.type(0).dtype.numpy)
    return build.add(build.mul(call[0], call.attr_float("scale", 1.0)), build.constant(bias.reshape(-1, 1, 1)))


@onnx("Crop")
def crop(call: Call) -> str:
    """Remove a border (left, top, right, bottom), or keep `scale` rows and columns from its begin."""
    border, sides = call.attr_ints("border"), call.attr_ints("scale", ())
    if call.type(0).rank != 4 or len(border) != 4 or len(sides) not in (0, 2):
        raise call.malformed(f"border {list(border)}, scale {list(sides)} do not fit {call.type(0)}")
    left, top, right, bottom = border
    rows, columns = call.shape(0)[2:]
    ends = (top + sides[0], left + sides[1]) if sides else (rows - bottom, columns - right)
    x = call[0]
    for axis, start, stop, size in ((2, top, ends[0], rows), (3, left, ends[1], columns)):
        if start < 0 or is_negative(stop - start) or is_negative(size - stop):
            raise call.malformed(f"border {list(border)}, scale {list(sides)} do not fit {call.type(0)}")
        x = call.slice(x, axis, start, stop)
    return x


@onnx("MeanVarianceNormalization")
def normalized_over_images(call: Call) -> str:
    """Subtract the mean over the batch and spatial dims, with `across_channels` over the channels too; then divide by
    the deviation unless `normalize_variance` is 0.
    """
    axes = (0, 1, 2, 3) if call.attr_int("across_channels", 0) else (0, 2, 3)
    if call.attr_int("normalize_variance", 1):
        return mean_variance_norm(call.replaced(call[0], axes=axes))
    return call.build.sub(call[0], call.build.reduce_mean(call[0], axes=axes, keepdims=True))

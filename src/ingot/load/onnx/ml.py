"""Rules for ops of ai.onnx.ml that look up, scale and encode. Nodes of this domain are not checked against schemas; the
rules check them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.ir.dtype import f32, f64, from_numpy, i64, string
from ingot.load.onnx.call import Call
from ingot.load.onnx.index import checked
from ingot.load.onnx.registry import ML, onnx
from ingot.load.onnx.shapes import count

_SPELLED: dict[str, tuple[str, Any]] = {
    "strings": ("string", "_Unused"),
    "int64s": ("int64", -1),
    "floats": ("float", -0.0),
}


@onnx("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call) -> str:
    """Gather elements of the last axis; from a vector, one row of them."""
    x, indices = call[0], call.type(1)
    if call.type(0).rank < 1 or indices.dtype is not i64:
        raise call.malformed(f"operands {call.type(0)} and {indices}, expected a tensor and i64")
    flat = call.reshape(checked(call, call[1], call.shape(0)[-1], "Y"), (count(call.shape(1)),))
    found = call.build.gather(x, flat, axis=call.type(0).rank - 1)
    return call.build.reshape(found, shape=(1, *call.build.type(found).shape)) if call.type(0).rank == 1 else found


@onnx("Binarizer", domain=ML)
def binarizer(call: Call) -> str:
    dtype = call.type(0).dtype
    x = call[0] if dtype.kind == "f" else call.cast(call[0], f64)
    return call.cast(call.build.greater(x, float(np.float32(call.attr_float("threshold", 0.0)))), dtype)


@onnx("Scaler", domain=ML)
def scaler(call: Call) -> str:
    """Compute (x - offset) * scale, with one value per column or one for all."""
    x = call.cast(call[0], f32)
    return call.build.mul(call.build.sub(x, _row(call, "offset")), _row(call, "scale"))


def _row(call: Call, name: str) -> str:
    numbers = np.array(call.attr_floats(name), np.float32)
    if numbers.size != 1:
        call.expect_sizes(0, -1)
    if numbers.size not in (1, call.type(0).shape[-1] if call.type(0).rank else 1):
        raise call.malformed(f"attribute {name!r} has {numbers.size} elements for {call.type(0)}")
    return call.build.constant(numbers)


@onnx("Normalizer", domain=ML)
def normalizer(call: Call) -> str:
    """Divide rows by their largest magnitude, the sum of their magnitudes, or their Euclidean norm."""
    build, x, norm = call.build, call.cast(call[0], f32), call.attr_text("norm", "MAX")
    over: dict[str, Any] = {"axes": (call.type(0).rank - 1,), "keepdims": True}
    if norm not in ("MAX", "L1", "L2") or call.type(0).rank < 1:
        raise call.malformed(f"attribute 'norm' is {norm!r} for {call.type(0)}, expected 'MAX', 'L1' or 'L2' of rows")
    if norm == "L2":
        total = build.sqrt(build.reduce_sum(build.mul(x, x), **over))
    else:
        total = (build.reduce_max if norm == "MAX" else build.reduce_sum)(build.abs(x), **over)
    return build.div(x, build.maximum(total, 1e-30))


@onnx("LabelEncoder", domain=ML)
def label_encoder(call: Call) -> str:
    """Map keys to values; in the first version, one attribute holds the classes, and their indices are the other
    column.
    """
    if "classes_strings" in call.attributes:
        classes = np.array(call.attr_texts("classes_strings"), object)
        positions, to_place = np.arange(len(classes)), call.type(0).dtype is string
        keys, values = (classes, positions) if to_place else (positions, classes)
        default = _default(call, "int64s" if to_place else "strings")
    else:
        keys, _ = _column(call, "keys")
        values, default = _column(call, "values")
    if keys.ndim != 1 or keys.shape != values.shape:
        raise call.malformed(f"{keys.size} keys and {values.size} values, expected vectors of one length")
    default = default.reshape(()) if default.size == 1 else default
    return call.build.label_encode(call[0], *map(call.build.constant, (keys, values, default)))


def _column(call: Call, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys or values, and the default for a missing value."""
    given = [kind for kind in ("tensor", *_SPELLED) if f"{name}_{kind}" in call.attributes]
    if len(given) != 1:
        raise call.malformed(f"attributes '{name}_*': got {given}, expected one")
    kind = given[0]
    if kind == "tensor":
        column = call.attr_tensor(f"{name}_tensor")
        kinds = {"s": "strings", "f": "floats"}
        standard = _default(call, kinds.get(from_numpy(column.dtype).kind, "int64s"), own=False)
        return column, call.attr_tensor("default_tensor", standard.astype(column.dtype))
    if kind == "strings":
        column = np.array(call.attr_texts(f"{name}_strings"), object)
    elif kind == "int64s":
        column = np.array(call.attr_ints(f"{name}_int64s"), np.int64)
    else:
        column = np.array(call.attr_floats(f"{name}_floats"), np.float32)
    return column, _default(call, kind)


def _default(call: Call, kind: str, *, own: bool = True) -> np.ndarray:
    word, standard = _SPELLED[kind]
    attribute = {"strings": call.attr_text, "int64s": call.attr_int, "floats": call.attr_float}[kind]
    value = attribute(f"default_{word}", standard) if own else standard
    return np.array(value, {"strings": object, "int64s": np.int64, "floats": np.float32}[kind])


@onnx("CategoryMapper", domain=ML)
def category_mapper(call: Call) -> str:
    """Map strings to integers, or integers to strings."""
    words, numbers = (
        np.array(call.attr_texts("cats_strings"), object),
        np.array(call.attr_ints("cats_int64s"), np.int64),
    )
    if words.shape != numbers.shape:
        raise call.malformed(f"{words.size} strings and {numbers.size} integers, expected as many")
    from_words = call.type(0).dtype is string
    columns = (words, numbers) if from_words else (numbers, words)
    default = _default(call, "int64s" if from_words else "strings")
    return call.build.label_encode(call[0], *map(call.build.constant, (*columns, default)))


@onnx("OneHotEncoder", domain=ML)
def one_hot_encoder(call: Call) -> str:
    """One-hot encode the categories in a new last dim; an unknown category is all zeros, or an error."""
    build, x = call.build, call[0]
    if call.type(0).dtype is string:
        categories = np.array(call.attr_texts("cats_strings"), object)
    else:
        categories, x = np.array(call.attr_ints("cats_int64s"), np.int64), call.cast(x, i64)
    if not categories.size:
        raise call.malformed("attributes 'cats_*' are empty, expected a category or more")
    positions = np.arange(categories.size)
    tables = (categories[::-1], positions[::-1], np.array(categories.size))  # of equal categories, the first counts
    category = build.label_encode(x, *map(build.constant, tables))
    if not call.attr_int("zeros", 1):
        category = build.gather(build.constant(positions), category, axis=0)  # rejects an unknown category
    shape = build.type(category).shape
    return call.cast(build.equal(build.reshape(category, shape=(*shape, 1)), build.constant(positions)), f32)


@onnx("Imputer", domain=ML)
def imputer(call: Call) -> str:
    """Replace the marker of missing values, by one value per column or one for all."""
    build, x, dtype = call.build, call[0], call.type(0).dtype
    if dtype.kind == "f":
        missing = call.attr_float("replaced_value_float", 0.0)
        values = np.array(call.attr_floats("imputed_value_floats"), np.float32).astype(dtype.numpy)
    else:
        missing = call.attr_int("replaced_value_int64", 0)
        values = np.array(call.attr_ints("imputed_value_int64s"), np.int64)
    columns = call.type(0).shape[-1] if call.type(0).rank else 1
    if values.size != 1:
        call.expect_sizes(0, -1)
    if values.size not in (1, columns) or not dtype.holds(missing) or not all(map(dtype.holds, values.tolist())):
        raise call.malformed(f"{values.size} values of {dtype} in place of {missing} for {call.type(0)}")
    is_missing = build.isnan(x) if missing != missing else build.equal(x, build.scalar(missing, dtype))
    return build.where(is_missing, build.constant(values.astype(dtype.numpy)), x)


@onnx("FeatureVectorizer", domain=ML)
def feature_vectorizer(call: Call) -> str:
    """Concatenate the operands as columns, with the number of columns that the node gives for each; a vector is one
    row.
    """
    build, parts = call.build, []
    for i in range(len(call)):
        call.expect_sizes(i, -1)
    for x, width in zip(call.values(), call.attr_ints("inputdimensions"), strict=True):
        shape = call.known_shape(build.type(x))
        x = call.reshape(call.cast(x, f32), (1, *shape)) if len(shape) == 1 else call.cast(x, f32)
        if build.type(x).rank != 2 or build.type(x).shape[1] != width:
            raise call.unsupported(f"operand {build.type(x)} for {width} columns")
        parts.append(x)
    return build.concat(*parts, axis=1) if len(parts) > 1 else parts[0]

"""Ops of ai.onnx.ml: tables, trees and linear models. ONNX's schemas of this domain are not consulted: rules check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.dtype import f32, f64, from_numpy, i64, string
from ingot.errors import InputError
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import ML, onnx
from ingot.ops.trees import check_trees

_SPELLED: dict[str, tuple[str, Any]] = {
    "strings": ("string", "_Unused"),
    "int64s": ("int64", -1),
    "floats": ("float", -0.0),
}
MAX_TARGETS = 2**20


@onnx("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(call: Call) -> str:
    """Elements of the last axis; of a vector, one row of them."""
    x, indices = call[0], call.type(1)
    if call.type(0).rank < 1 or indices.dtype is not i64:
        raise call.malformed(f"operands {call.type(0)} and {indices}, expected a tensor and i64")
    flat = call.build.reshape(call[1], shape=(None,)) if indices.rank != 1 else call[1]
    found = call.build.gather(x, flat, axis=call.type(0).rank - 1)
    return call.build.reshape(found, shape=(1, *call.build.type(found).shape)) if call.type(0).rank == 1 else found


@onnx("Binarizer", domain=ML)
def binarizer(call: Call) -> str:
    dtype = call.type(0).dtype
    x = call[0] if dtype.kind == "f" else call.cast(call[0], f64)
    return call.cast(call.build.greater(x, float(np.float32(call.attr_float("threshold", 0.0)))), dtype)


@onnx("Scaler", domain=ML)
def scaler(call: Call) -> str:
    """(x - offset) * scale, by column or one for all."""
    x = call.cast(call[0], f32)
    return call.build.mul(call.build.sub(x, _row(call, "offset")), _row(call, "scale"))


def _row(call: Call, name: str) -> str:
    numbers = np.array(call.attr_floats(name), np.float32)
    if numbers.size not in (1, call.type(0).shape[-1] if call.type(0).rank else 1):
        raise call.malformed(f"attribute {name!r} has {numbers.size} elements for {call.type(0)}")
    return call.build.constant(numbers)


@onnx("Normalizer", domain=ML)
def normalizer(call: Call) -> str:
    """Rows over their largest magnitude, or their sum of magnitudes or of squares' root."""
    build, x, norm = call.build, call.cast(call[0], f32), call.attr_text("norm", "MAX")
    over: dict[str, Any] = {"axes": (call.type(0).rank - 1,), "keepdims": True}
    if norm not in ("MAX", "L1", "L2") or call.type(0).rank < 1:
        raise call.malformed(f"attribute 'norm' is {norm!r} for {call.type(0)}, expected 'MAX', 'L1' or 'L2' of rows")
    if norm == "L2":
        total = build.sqrt(build.reduce_sum(build.mul(x, x), **over))
    else:
        total = (build.reduce_max if norm == "MAX" else build.reduce_sum)(build.abs(x), **over)
    return build.div(x, build.maximum(total, 1e-30))


@onnx("LinearRegressor", domain=ML)
def linear_regressor(call: Call) -> str:
    count = call.attr_int("targets", 1)
    features = call.shape(0)[-1] if call.type(0).rank == 2 else None
    coefficients = np.array(call.attr_floats("coefficients"), np.float32)
    if not isinstance(features, int) or not 1 <= count <= MAX_TARGETS or coefficients.size != count * features:
        raise call.malformed(f"{coefficients.size} coefficients for {call.type(0)} and {count} targets")
    weight = call.build.literal(coefficients.reshape(count, features), "coefficients")
    scores = call.build.matmul(call.cast(call[0], f32), weight, transpose_b=True)
    intercepts = np.array(call.attr_floats("intercepts", ()), np.float32)
    if intercepts.size not in (0, count):
        raise call.malformed(f"{intercepts.size} intercepts for {count} targets")
    if intercepts.size:
        scores = call.build.add(scores, call.build.constant(intercepts))
    return _transformed(call, scores, call.attr_text("post_transform", "NONE"))


def _transformed(call: Call, scores: str, transform: str) -> str:
    match transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return call.build.softmax(scores, axis=1)
        case "LOGISTIC":
            return call.build.sigmoid(scores)
    raise call.unsupported(f"post_transform {transform!r}")


@onnx("LabelEncoder", domain=ML)
def label_encoder(call: Call) -> str:
    """A table of keys and values; the first version has one of classes, whose places are the other column."""
    if "classes_strings" in call.attributes:
        classes = np.array(call.attr_texts("classes_strings"), object)
        places, to_place = np.arange(len(classes)), call.type(0).dtype is string
        keys, values = (classes, places) if to_place else (places, classes)
        default = _default(call, "int64s" if to_place else "strings")
    else:
        keys, _ = _column(call, "keys")
        values, default = _column(call, "values")
    if keys.ndim != 1 or keys.shape != values.shape:
        raise call.malformed(f"{keys.size} keys and {values.size} values, expected vectors of one length")
    default = default.reshape(()) if default.size == 1 else default
    return call.build.label_encode(call[0], *map(call.build.constant, (keys, values, default)))


def _column(call: Call, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Keys or values, and what stands for a value that is not there."""
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


_AGGREGATES = ("average", "sum", "min", "max")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@onnx("TreeEnsemble", domain=ML)
def tree_ensemble(call: Call) -> str:
    """Children of a node are nodes or leaves, as flags beside them say; a root whose children are one leaf is that."""
    x = call.type(0)
    ints = {name: _ints(call, f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids")}
    count = len(ints["featureids"])
    modes = call.attr_tensor("nodes_modes").astype(np.int64).ravel()
    missing = _ints(call, "nodes_missing_value_tracks_true", np.zeros(count, np.int64))
    leaves = {name: _ints(call, f"nodes_{name}leafs") for name in ("true", "false")}
    splits = call.attr_tensor("nodes_splits").ravel()
    members = call.attr_tensor("membership_values", np.zeros(0, x.dtype.numpy)).ravel()
    columns = [*ints.values(), modes, missing, *leaves.values(), splits]
    if any(len(column) != count for column in columns):
        raise call.malformed(f"attributes 'nodes_*' differ in length, got {[len(column) for column in columns]}")
    children = [
        np.where(leaves[name] != 0, -1 - ints[f"{name}nodeids"], ints[f"{name}nodeids"]) for name in ("true", "false")
    ]
    wrong = [ints[f"{name}nodeids"].min(initial=0) < 0 for name in ("true", "false")]
    if any(wrong):
        raise call.malformed("attributes 'nodes_truenodeids' and 'nodes_falsenodeids': a negative index")
    nodes = np.stack([ints["featureids"], modes, *children, missing, *_member_ranges(call, modes, members)], 1)
    weights, targets = call.attr_tensor("leaf_weights").ravel(), _ints(call, "leaf_targetids")
    number, aggregate = call.attr_int("n_targets", 1), call.attr_int("aggregate_function", 1)
    transform = call.attr_int("post_transform", 0)
    if not (1 <= number <= MAX_TARGETS and 0 <= aggregate < len(_AGGREGATES) and 0 <= transform < len(_TRANSFORMS)):
        raise call.malformed(f"{number} targets, aggregate_function {aggregate}, post_transform {transform}")
    roots, features = _ints(call, "tree_roots"), x.shape[-1] if x.rank else 0
    try:
        bound = features if isinstance(features, int) else 2**31
        check_trees(nodes, roots, bound, len(weights), targets, number, len(members))
    except InputError as error:
        raise call.malformed(str(error)) from error
    tables = [splits, nodes, weights, targets, roots, np.nan_to_num(members, nan=math.inf)]
    literals = [call.build.literal(table, "trees") for table in tables]
    result = call.build.tree_ensemble(call[0], *literals, targets=number, aggregate=_AGGREGATES[aggregate])
    return _transformed(call, result, _TRANSFORMS[transform])


def _ints(call: Call, name: str, default: np.ndarray | None = None) -> np.ndarray:
    if default is not None and name not in call.attributes:
        return default
    return np.array(call.attr_ints(name), np.int64)


def _member_ranges(call: Call, modes: np.ndarray, members: np.ndarray) -> list[np.ndarray]:
    """Where the members of each node begin and end: a NaN ends those of a node, in the order of such nodes."""
    begins, ends = np.zeros((2, len(modes)), np.int64)
    (stops,), (users,) = np.nonzero(np.isnan(members)), np.nonzero(modes == 6)
    if len(users) and len(stops) != len(users):
        raise call.malformed(f"{len(stops)} sets of members for {len(users)} nodes")
    ends[users] = stops[: len(users)]
    begins[users] = np.append(0, stops[:-1] + 1)[: len(users)]
    return [begins, ends]

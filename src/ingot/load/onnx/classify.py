"""Rules for the linear models and support vector machines of ai.onnx.ml, their labels and score transforms.

Where ONNX does not define the scores of two classes from one score, ONNX Runtime's definition applies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.errors import LimitError
from ingot.ir.dtype import f32, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import ML, onnx

MAX_TARGETS = 2**20  # scores of one row
MAX_MACHINE = 2**26  # elements of the matrix [support vectors, pairs of classes]
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transform_of(call: Call) -> str:
    """Return the attribute that names the transform of scores."""
    transform = call.attr_text("post_transform", "NONE")
    if transform not in TRANSFORMS:
        raise call.malformed(f"attribute 'post_transform' is {transform!r}, expected one of {list(TRANSFORMS)}")
    return transform


def transformed(call: Call, scores: str, transform: str) -> str:
    """Transform scores [rows, columns], by element or by row."""
    build = call.build
    match transform:
        case "SOFTMAX":
            return build.softmax(scores, axis=1)
        case "LOGISTIC":
            return build.sigmoid(scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(call, scores)
        case "PROBIT":
            return _probit(call, scores)
    return scores


def _softmax_zero(call: Call, scores: str) -> str:
    """Softmax that excludes scores of 0 from the sum."""
    build = call.build
    largest = build.reduce_max(scores, axes=(1,), keepdims=True)
    counts = build.greater(build.abs(scores), 1e-7)
    powers = build.where(counts, build.exp(build.sub(scores, largest)), 0.0)
    rest = build.mul(scores, build.exp(build.neg(largest)))
    total = build.reduce_sum(powers, axes=(1,), keepdims=True)
    return build.div(build.where(counts, powers, rest), total)


def _probit(call: Call, p: str) -> str:
    """Compute the inverse of the normal distribution function. Winitzki, "A handy approximation for the error
    function", 2008.
    """
    build = call.build
    x = build.add(build.mul(p, 2.0), -1.0)
    logarithm = build.log(build.mul(build.add(build.neg(x), 1.0), build.add(x, 1.0)))
    middle = build.add(build.mul(logarithm, 0.5), 2 / (3.14159 * 0.147))
    root = build.sqrt(build.sub(build.mul(middle, middle), build.mul(logarithm, 1 / 0.147)))
    sign = build.where(build.less(x, 0.0), build.scalar(-1.0, f32), 1.0)
    return build.mul(build.mul(sign, build.sqrt(build.sub(root, middle))), 2**0.5)


def spread(call: Call, score: str, transform: str, *, mixed: bool) -> str:
    """Expand the score [rows, 1] of the second of two classes to scores of both: 1 - s and s, or -s and s if
    `mixed`.
    """
    build = call.build
    if mixed or transform == "LOGISTIC":
        both = build.concat(build.neg(score), score, axis=1)
        return build.sigmoid(both) if transform == "LOGISTIC" else both
    score = transformed(call, score, transform) if transform == "PROBIT" else score
    return build.concat(build.add(build.neg(score), 1.0), score, axis=1)


def labels_of(call: Call, integers: str) -> np.ndarray:
    """Return the labels of the classes; integers: the name of the attribute with integer labels."""
    given = [name for name in (integers, "classlabels_strings") if call.attributes.get(name)]
    filled = [name for name in given if len(call.attributes[name].value)]
    if len(filled) != 1:
        raise call.malformed(f"attributes 'classlabels_*': got {filled}, expected one")
    if filled[0] == integers:
        return np.array(call.attr_ints(integers), np.int64)
    return np.array(call.attr_texts("classlabels_strings"), object)


def labelled(call: Call, indices: str, labels: np.ndarray) -> str:
    """Gather the labels at indices i64 [rows]."""
    return call.build.gather(call.build.constant(labels), indices, axis=0)


@onnx("ZipMap", domain=ML)
def zip_map(call: Call) -> str:
    """Return a list with one dictionary per row, as exporters append it to the scores of a classifier."""
    labels = labels_of(call, "classlabels_int64s")
    if call.type(0).dtype is not f32:
        raise call.malformed(f"operand {call.type(0)}, expected f32")
    return call.build.zip_map(call[0], call.build.constant(labels))


def features_of(call: Call) -> tuple[str, int]:
    """Return the operand as f32 [rows, features], and the number of features."""
    type = call.type(0)
    x = call[0] if type.rank == 2 else call.reshape(call[0], (1, *call.shape(0)))
    count = call.build.type(x).shape[-1] if call.build.type(x).rank == 2 else None
    call.expect_sizes(0, -1)
    if not isinstance(count, int):
        raise call.malformed(f"operand {type}, expected rows of a known number of features")
    return call.cast(x, f32), count


def _numbers(call: Call, name: str, default: Any = ()) -> np.ndarray:
    return np.array(call.attr_floats(name, default), np.float32)


def _scores(call: Call, rows: int) -> str:
    """Compute x times the coefficients, plus the intercepts."""
    x, features = features_of(call)
    coefficients, intercepts = _numbers(call, "coefficients"), _numbers(call, "intercepts")
    if not 1 <= rows <= MAX_TARGETS or coefficients.size != rows * features or intercepts.size not in (0, rows):
        raise call.malformed(
            f"{coefficients.size} coefficients and {intercepts.size} intercepts for {call.type(0)} and {rows} scores"
        )
    weight = call.build.literal(coefficients.reshape(rows, features), "coefficients")
    scores = call.build.matmul(x, weight, transpose_b=True)
    return call.build.add(scores, call.build.constant(intercepts)) if intercepts.size else scores


@onnx("LinearRegressor", domain=ML)
def linear_regressor(call: Call) -> str:
    return transformed(call, _scores(call, call.attr_int("targets", 1)), transform_of(call))


@onnx("LinearClassifier", domain=ML)
def linear_classifier(call: Call) -> tuple[str, str]:
    """With two classes, there may be one row of coefficients, for the second class."""
    build, labels, transform = call.build, labels_of(call, "classlabels_ints"), transform_of(call)
    rows = 1 if len(labels) == 2 and len(_numbers(call, "intercepts")) == 1 else len(labels)
    scores = _scores(call, rows)
    if rows == 1 and len(labels) == 2:
        second = build.reshape(build.greater(scores, 0.0), shape=(build.type(scores).shape[0],))
        return labelled(call, call.cast(second, i64), labels), spread(call, scores, transform, mixed=False)
    return labelled(call, build.argmax(scores, axis=1, keepdims=False), labels), transformed(call, scores, transform)


def _kernel(call: Call, x: str, vectors: np.ndarray) -> str:
    """Compute the kernel function of each row and support vector: [rows, vectors]."""
    build, kind = call.build, call.attr_text("kernel_type", "LINEAR")
    gamma, offset, degree = (*call.attr_floats("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    table = build.literal(vectors, "support_vectors")
    if kind == "RBF":
        difference = build.sub(build.reshape(x, shape=(build.type(x).shape[0], 1, vectors.shape[1])), table)
        distance = build.reduce_sum(build.mul(difference, difference), axes=(2,), keepdims=False)
        return build.exp(build.mul(distance, -gamma))
    product = build.matmul(x, table, transpose_b=True)
    match kind:
        case "LINEAR":
            return product
        case "POLY":
            return build.pow(build.add(build.mul(product, gamma), offset), degree)
        case "SIGMOID":
            return build.tanh(build.add(build.mul(product, gamma), offset))
    raise call.malformed(f"attribute 'kernel_type' is {kind!r}, expected 'LINEAR', 'POLY', 'RBF' or 'SIGMOID'")


def _vectors(call: Call, count: int, features: int) -> np.ndarray:
    numbers = _numbers(call, "support_vectors")
    if count < 1 or numbers.size != count * features:
        raise call.malformed(f"{numbers.size} numbers for {count} support vectors of {features} features")
    return numbers.reshape(count, features)


@onnx("SVMRegressor", domain=ML)
def svm_regressor(call: Call) -> str:
    """A linear model if there are no support vectors; with one class, 1 for its members and -1 for other rows."""
    build, (x, features) = call.build, features_of(call)
    coefficients, rho, count = _numbers(call, "coefficients"), _numbers(call, "rho"), call.attr_int("n_supports", 0)
    if rho.size < 1 or coefficients.size != (count or features):
        raise call.malformed(f"{coefficients.size} coefficients and {rho.size} of rho, expected {count or features}")
    if call.attr_text("post_transform", "NONE") != "NONE":
        raise call.unsupported(f"post_transform {call.attr_text('post_transform')!r}")
    common = _kernel(call, x, _vectors(call, count, features)) if count else x
    weight = build.literal(coefficients.reshape(1, -1), "coefficients")
    score = build.add(build.matmul(common, weight, transpose_b=True), float(rho[0]))
    if not call.attr_int("one_class", 0):
        return score
    return build.where(build.greater(score, 0.0), build.scalar(1.0, f32), -1.0)


@onnx("SVMClassifier", domain=ML)
def svm_classifier(call: Call) -> tuple[str, str]:
    """Each pair of classes has a machine that votes for one of the two. Chang and Lin, "LIBSVM", 2011."""
    build, (x, features) = call.build, features_of(call)
    labels, transform = labels_of(call, "classlabels_ints"), transform_of(call)
    sizes, rho = call.attr_ints("vectors_per_class", ()), _numbers(call, "rho")
    if len(sizes) != len(labels) or len(sizes) < 2 or min(sizes) < 0:
        raise call.unsupported(f"{list(sizes)[:9]} vectors_per_class for {len(labels)} classes")
    count, pairs = sum(sizes), len(sizes) * (len(sizes) - 1) // 2
    if rho.size != pairs:
        raise call.malformed(f"{rho.size} elements of rho, expected {pairs} for {len(sizes)} classes")
    first, second = np.triu_indices(len(sizes), 1)
    machine = _machine(call, sizes, first, second)
    scores = build.matmul(_kernel(call, x, _vectors(call, count, features)), build.literal(machine, "coefficients"))
    scores = build.add(scores, build.constant(rho))
    wins = call.cast(build.greater(scores, 0.0), f32)
    classes = np.arange(len(sizes))
    won, lost = ((each[:, None] == classes).astype(np.float32) for each in (first, second))
    votes = build.add(build.matmul(wins, build.constant(won - lost)), build.constant(lost.sum(0)))
    label = labelled(call, build.argmax(votes, axis=1, keepdims=False), labels)
    if call.attr_floats("prob_a", ()):
        return label, transformed(call, _probabilities(call, scores, len(sizes)), transform)
    if len(sizes) == 2:
        return label, spread(call, scores, transform, mixed=transform == "NONE")
    return label, transformed(call, scores, transform)


def _machine(call: Call, sizes: tuple[int, ...], first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the coefficient of each support vector for each pair of classes: [vectors, pairs].

    A vector has one coefficient for each class except its own.
    """
    count, classes = sum(sizes), len(sizes)
    numbers = _numbers(call, "coefficients")
    if numbers.size != count * (classes - 1):
        raise call.malformed(f"{numbers.size} coefficients, expected {classes - 1} for {count} support vectors")
    if count * first.size > MAX_MACHINE:
        raise LimitError(f"{count} support vectors of {classes} classes: too many, expected {MAX_MACHINE} elements")
    numbers = numbers.reshape(classes - 1, count)
    starts = np.append(0, np.cumsum(sizes))
    machine = np.zeros((count, first.size), np.float32)
    for pair, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        for own, row in ((i, j - 1), (j, i)):
            vectors = slice(starts[own], starts[own + 1])
            machine[vectors, pair] = numbers[row, vectors]
    return machine


def _probabilities(call: Call, scores: str, classes: int) -> str:
    """Apply Platt's sigmoid to each pair's score, and couple the pairs. Platt, "Probabilistic outputs for SVMs",
    1999.
    """
    build = call.build
    slopes, offsets = _numbers(call, "prob_a"), _numbers(call, "prob_b")
    first, second = np.triu_indices(classes, 1)
    if not slopes.size == offsets.size == first.size:
        raise call.malformed(f"{slopes.size} of prob_a and {offsets.size} of prob_b, expected {first.size}")
    against = build.add(build.mul(scores, build.constant(slopes)), build.constant(offsets))
    wins = build.clip(build.add(build.neg(build.sigmoid(against)), 1.0), minimum=1e-7, maximum=1 - 1e-7)
    table = np.zeros((classes, classes), np.int64)
    table[first, second], table[second, first] = np.arange(first.size), np.arange(first.size) + first.size
    both = build.concat(wins, build.add(build.neg(wins), 1.0), axis=1)
    rows = build.type(scores).shape[0]
    pairs = build.reshape(build.gather(both, build.table(table.ravel()), axis=1), shape=(rows, classes, classes))
    return build.pairwise_coupling(pairs)

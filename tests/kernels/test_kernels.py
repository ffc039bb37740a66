"""Kernels x shapes x instruction sets, called through the table: numbers against float64, bits against each other."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ingot.lower.view import contiguous_strides
from ingot.ops import elementwise as elementwise_ops
from kernel_calls import close, element_strides, every, floats

pytestmark = pytest.mark.native


def elementwise(
    kernel: str,
    operands: Sequence[np.ndarray],
    dtype: Any,
    shape: Sequence[int],
    out_strides: Sequence[int] | None = None,
    **scalars: float,
) -> np.ndarray:
    """Operands as they are, strides and all, broadcast to `shape`."""
    fields: dict[str, Any] = {"rank": len(shape), "shape": shape, **scalars}
    for name, operand in zip("abc", operands, strict=False):
        fields[name] = operand
        fields[f"{name}_strides"] = element_strides(np.broadcast_to(operand, shape))
    fields["out_strides"] = contiguous_strides(shape) if out_strides is None else out_strides
    return every(kernel, fields, "out", shape, dtype=dtype, strides=fields["out_strides"])


# Operand layouts of one binary call: both adjacent, row and column broadcast, scalar, transposed, flipped, every third.
LAYOUTS: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    **{f"tail {n}": lambda s, n=n: (floats(s, (3, n)), floats(s + 1, (3, n))) for n in range(1, 18)},
    "long": lambda s: (floats(s, (4099,)), floats(s + 1, (4099,))),
    "row": lambda s: (floats(s, (5, 33)), floats(s + 1, (33,))),
    "column": lambda s: (floats(s, (5, 33)), floats(s + 1, (5, 1))),
    "column first": lambda s: (floats(s, (5, 1)), floats(s + 1, (5, 70))),
    "scalar": lambda s: (floats(s, (2, 3, 19)), floats(s + 1, ())),
    "transposed": lambda s: (floats(s, (21, 18)).T, floats(s + 1, (18, 21))),
    "flipped": lambda s: (floats(s, (3, 40))[:, ::-1], floats(s + 1, (3, 40))[::-1]),
    "every third": lambda s: (floats(s, (3, 100))[:, ::3], floats(s + 1, (3, 34))),
    "rank 8": lambda s: (floats(s, (2, 1, 2, 3, 1, 2, 2, 5)), floats(s + 1, (1, 3, 2, 1, 2, 2, 1, 5))),
    "rank 0": lambda s: (floats(s, ()), floats(s + 1, ())),
    "empty": lambda s: (floats(s, (0, 5)), floats(s + 1, (1, 5))),
    "empty rows": lambda s: (floats(s, (4, 0)), floats(s + 1, (4, 0))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    a, b = LAYOUTS[layout](11)
    shape = np.broadcast_shapes(a.shape, b.shape)
    holes = [3 * s for s in contiguous_strides(shape)]
    for out_strides in (None, holes):
        result = elementwise("sub_f32", (a, b), np.float32, shape, out_strides)
        np.testing.assert_array_equal(result, a - b)
        result = elementwise("less_f32", (a, b), np.uint8, shape, out_strides)
        np.testing.assert_array_equal(result, a < b)
        result = elementwise("exp_f32", (np.broadcast_to(a, shape),), np.float32, shape, out_strides)
        close(result, np.exp(np.broadcast_to(a, shape).astype(np.float64)), 4e-7)
        chosen = elementwise("where_b4", (np.asarray(a > 0), a, b), np.float32, shape, out_strides)
        np.testing.assert_array_equal(chosen, np.where(a > 0, a, b))


@pytest.mark.parametrize("bytes_", (1, 2, 4, 8))
@pytest.mark.parametrize(
    "shape, axes",
    [
        ((3, 5), (1, 0)), ((40, 37), (1, 0)), ((2, 17, 3, 16), (0, 2, 1, 3)), ((2, 17, 3, 16), (0, 3, 2, 1)),
        ((33, 2, 20), (2, 1, 0)), ((5, 6, 7, 8), (3, 1, 2, 0)), ((1,), (0,)), ((0, 4), (1, 0)),
        ((130,), (0,)), ((), ()),
    ],
)  # fmt: skip
def test_copy(bytes_, shape, axes):
    x = np.random.default_rng(3).integers(0, 256, (*shape, bytes_), np.uint8).view(f"u{bytes_}")[..., 0]
    moved = x.transpose(axes)
    for out_strides in (None, [2 * s for s in contiguous_strides(moved.shape)]):
        np.testing.assert_array_equal(
            elementwise(f"copy_b{bytes_}", (moved,), x.dtype, moved.shape, out_strides), moved
        )


@pytest.mark.parametrize("bytes_", (1, 2, 4, 8))
@pytest.mark.parametrize("times", (2, 3, 15, 16))
@pytest.mark.parametrize("step", (1, 2))
def test_copy_repeats_elements_of_rows(bytes_, times, step):
    """As an enlarged image does: each element of a row several times, and each row."""
    x = np.arange(3 * 37 * step).astype(f"u{bytes_}").reshape(3, 37 * step)[:, ::step]
    repeated = np.broadcast_to(x[:, None, :, None], (3, 2, 37, times))
    for out_strides in (None, [200 * times, 80 * times, times, 1]):
        result = elementwise(f"copy_b{bytes_}", (repeated,), x.dtype, repeated.shape, out_strides)
        np.testing.assert_array_equal(result, repeated)


def test_copy_fills_from_one_element():
    x = np.array([7.5], np.float32)
    np.testing.assert_array_equal(elementwise("copy_b4", (x,), np.float32, (3, 21)), np.full((3, 21), 7.5))


def all_scales(count: int, low: float = 2.0**-149, high: float = 3.4e38) -> np.ndarray:
    """Both signs of every magnitude: float bit patterns at equal distances between low and high."""
    ends = np.array([low, high], np.float32).view(np.uint32)
    magnitudes = np.linspace(ends[0], ends[1], count).astype(np.uint32).view(np.float32)
    return np.concatenate([-magnitudes[::-1], magnitudes])


SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-149), 2.0**-126, 3.4e38, -3.4e38,
     88.72, 88.73, -87.4, -103.9, -104.1, 8388607.5, 8388609, 2.0**31, -(2.0**31), 1e5, 1.00001e5],
    np.float32,
)  # fmt: skip


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units of the last place of float32; infinity and NaN are exact or far."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 1))
    unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    with np.errstate(invalid="ignore"):
        distance = np.abs(result.astype(np.float64) - exact) / unit
    same = (result == rounded) | (np.isnan(result) & np.isnan(exact))
    return np.where(same, np.minimum(np.nan_to_num(distance, nan=0, posinf=0), 0.5), np.nan_to_num(distance, nan=1e9))


def erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


def erfc(x: np.ndarray) -> np.ndarray:
    return np.array([math.erfc(v) for v in x])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))


# kernel -> (float64 reference, most ULP anywhere, domain beyond which only bits and NaN are checked)
EVERYWHERE = (-np.inf, np.inf)
ULP: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, tuple[float, float]]] = {
    "exp": (np.exp, 1.5, EVERYWHERE),
    "expm1": (np.expm1, 2, EVERYWHERE),
    "log": (np.log, 2, EVERYWHERE),
    "log1p": (np.log1p, 3, EVERYWHERE),
    "sinh": (np.sinh, 4, EVERYWHERE),
    "cosh": (np.cosh, 4, EVERYWHERE),
    "asin": (np.arcsin, 3, EVERYWHERE),
    "acos": (np.arccos, 3, EVERYWHERE),
    "atan": (np.arctan, 3, EVERYWHERE),
    "asinh": (np.arcsinh, 4, EVERYWHERE),
    "acosh": (np.arccosh, 4, EVERYWHERE),
    "atanh": (np.arctanh, 4, EVERYWHERE),
    "tanh": (np.tanh, 3, EVERYWHERE),
    "erf": (erf, 3, EVERYWHERE),
    "sigmoid": (sigmoid, 3, EVERYWHERE),
    "silu": (lambda x: x * sigmoid(x), 4, (-87.0, np.inf)),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), 4, (-87.0, np.inf)),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 4, (-87.0, np.inf)),
    "sin": (np.sin, 2, EVERYWHERE),
    "cos": (np.cos, 2, EVERYWHERE),
    "sqrt": (np.sqrt, 0.5, EVERYWHERE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, EVERYWHERE),
    "reciprocal": (lambda x: 1 / x, 0.5, EVERYWHERE),
    "relu": (lambda x: np.maximum(x, 0), 0, EVERYWHERE),
    "neg": (np.negative, 0, EVERYWHERE),
    "abs": (np.abs, 0, EVERYWHERE),
    "sign": (np.sign, 0, EVERYWHERE),
    "floor": (np.floor, 0, EVERYWHERE),
    "ceil": (np.ceil, 0, EVERYWHERE),
    "round": (np.rint, 0, EVERYWHERE),
    "hard_swish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, 3, (-2.9, 3.4e37)),
}


@pytest.mark.parametrize("name", ULP)
def test_unary_ulps(name):
    reference, most, (low, high) = ULP[name]
    x = np.concatenate([all_scales(6001), all_scales(4001, 0.01, 120), SPECIAL])
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    result = elementwise(f"{name}_f32", (x,), np.float32, x.shape)
    distance = np.where((x >= low) & (x <= high) | np.isnan(x), ulps(result, exact), 0)
    assert distance.max() <= most, f"{distance.max()} ULP at {x[distance.argmax()]}"


@pytest.mark.parametrize("name", ("gelu_erf", "gelu_tanh"))
def test_gelu(name):
    x = np.concatenate([all_scales(3001, 1e-30, 1e30), all_scales(6001, 1e-3, 15)])
    wide = x.astype(np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        exact = 0.5 * wide * erfc(-wide / math.sqrt(2)) if name == "gelu_erf" else wide * sigmoid(2 * inner)
    result = elementwise(f"{name}_f32", (x,), np.float32, x.shape)
    close(result, exact, 3e-7)
    tail = (x < -6) & (exact < -4e-38)
    assert (np.abs(result - exact)[tail] <= 0.06 * -exact[tail]).all() and (result[x < 0] <= 0).all()
    np.testing.assert_array_equal(result[x < -15], 0)
    special = np.array([np.nan, -np.inf, np.inf, 0, 3.4e38, -3.4e38, 2.0**-149], np.float32)
    result = elementwise(f"{name}_f32", (special,), np.float32, special.shape)
    np.testing.assert_array_equal(result, np.array([np.nan, np.nan, np.inf, 0, 3.4e38, 0, 0], np.float32))
    with np.errstate(all="ignore"):
        interpreted = elementwise_ops.gelu(special, approximate=name.removeprefix("gelu_"))
    np.testing.assert_array_equal(interpreted, result)


@pytest.mark.parametrize(
    "name, scalars, reference",
    [
        ("leaky_relu", {"alpha": 0.1}, lambda x: np.where(x < 0, x * np.float32(0.1), x)),
        ("elu", {"alpha": 1.5}, lambda x: np.where(x <= 0, np.expm1(np.minimum(x, 0)) * 1.5, x)),
        ("hard_sigmoid", {"alpha": 0.25, "beta": 0.5}, lambda x: np.clip(0.25 * x + 0.5, 0, 1)),
        ("clip", {"alpha": -1.0, "beta": 0.5}, lambda x: np.clip(x, -1, 0.5)),
        ("clip", {"alpha": -math.inf, "beta": math.inf}, lambda x: x),
    ],
)
def test_unary_with_attributes(name, scalars, reference):
    x = np.concatenate([SPECIAL, floats(5, (67,))])
    close(elementwise(f"{name}_f32", (x,), np.float32, x.shape, **scalars), reference(x.astype(np.float64)), 1e-6)


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every value against every value."""
    return np.ascontiguousarray(values[:, None]), values[None]


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "mod": np.remainder, "floor_div": np.floor_divide, "pow": np.power,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_f32(name):
    a, b = pairs(np.concatenate([SPECIAL, floats(7, (40,), -9, 9), np.array([3, -3, 7, 1e30, 1e-30], np.float32)]))
    shape = np.broadcast_shapes(a.shape, b.shape)
    result = elementwise(f"{name}_f32", (a, b), np.float32, shape)
    with np.errstate(all="ignore"):
        if name in ("mod", "floor_div"):
            # In float32: that a tiny negative remainder rounds up to the divisor is part of the meaning.
            expected = BINARY[name](a, b)
        else:
            expected = BINARY[name](a.astype(np.float64), b.astype(np.float64))
        distance = ulps(result, expected)
    assert distance.max() <= {"pow": 0.6, "floor_div": 1}.get(name, 0.5), np.argwhere(distance == distance.max())[:3]


INTEGERS = np.array([0, 1, -1, 2, -2, 7, -7, 10, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), -(2**63) + 1], np.int64)


@pytest.mark.parametrize("name", ("add", "sub", "mul", "div", "floor_div", "mod", "maximum", "minimum"))
def test_binary_i64(name):
    a, b = pairs(INTEGERS)
    shape = np.broadcast_shapes(a.shape, b.shape)
    result = elementwise(f"{name}_i64", (a, b), np.int64, shape)
    for i, j in itertools.product(range(len(INTEGERS)), repeat=2):
        x, y = int(INTEGERS[i]), int(INTEGERS[j])
        exact = {
            "add": lambda x, y: x + y,
            "sub": lambda x, y: x - y,
            "mul": lambda x, y: x * y,
            "div": lambda x, y: 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
            "floor_div": lambda x, y: 0 if y == 0 else x // y,
            "mod": lambda x, y: 0 if y == 0 else x % y,
            "maximum": max,
            "minimum": min,
        }[name](x, y)
        assert result[i, j] == (exact + 2**63) % 2**64 - 2**63, (x, y)


@pytest.mark.parametrize("dtype, suffix", [(np.float32, "f32"), (np.int64, "i64")])
@pytest.mark.parametrize("name", ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
def test_comparisons(name, dtype, suffix):
    a, b = pairs(SPECIAL if dtype is np.float32 else INTEGERS)
    result = elementwise(f"{name}_{suffix}", (a, b), np.uint8, np.broadcast_shapes(a.shape, b.shape))
    np.testing.assert_array_equal(result, getattr(np, name)(a, b))


@pytest.mark.parametrize("name", ("equal", "not_equal", "logical_and", "logical_or", "logical_xor"))
def test_boolean_pairs(name):
    a, b = pairs(np.array([False, True]))
    np.testing.assert_array_equal(elementwise(f"{name}_bool", (a, b), np.bool_, (2, 2)), getattr(np, name)(a, b))


@pytest.mark.parametrize(
    "kernel, reference",
    [
        ("relu_i64", lambda x: np.maximum(x, 0)), ("neg_i64", np.negative), ("abs_i64", np.abs), ("sign_i64", np.sign),
        ("isnan_f32", np.isnan), ("isinf_f32", np.isinf), ("logical_not_bool", np.logical_not),
    ],
)  # fmt: skip
def test_unary_of_other_types(kernel, reference):
    x = {"i64": INTEGERS, "f32": SPECIAL, "bool": np.array([True, False, True])}[kernel.rsplit("_", 1)[1]]
    np.testing.assert_array_equal(elementwise(kernel, (x,), reference(x).dtype.type, x.shape), reference(x))


NUMPY = {"f32": np.float32, "i64": np.int64, "i32": np.int32, "bool": np.bool_}


@pytest.mark.parametrize(
    "source, target",
    [(s, t) for s, t in itertools.product(NUMPY, repeat=2) if s != t and (s, t) not in {("i32", "bool")}],
)
def test_casts(source, target):
    x = {
        "f32": np.concatenate([SPECIAL, np.array([2.0**63, -(2.0**63), 1e20, -1e20, 2147483520], np.float32)]),
        "i64": INTEGERS,
        "i32": np.array([0, 1, -1, 2**31 - 1, -(2**31), 16777217], np.int32),
        "bool": np.array([True, False]),
    }[source]
    result = elementwise(f"cast_{source}_{target}", (x,), NUMPY[target], x.shape)
    if source == "f32" and target in ("i64", "i32"):
        limits = np.iinfo(NUMPY[target])
        exact = [0 if np.isnan(v) else limits.max if v == np.inf else limits.min if v == -np.inf else int(v) for v in x]
        np.testing.assert_array_equal(result, [min(max(e, limits.min), limits.max) for e in exact])
    else:
        np.testing.assert_array_equal(result, x.astype(NUMPY[target]))

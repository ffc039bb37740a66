"""Casts and quantization at their edges, and between any two element types."""

import math

import numpy as np
import pytest

import ingot.ops  # noqa: F401
from ingot.errors import InputError
from ingot.ir.dtype import DTYPES, bf16, boolean, f8e4m3fn, f8e8m0, f32, f64, i2, i4, i8, i64, u2, u4, u8
from ingot.ir.graph import OPS, REQUIRED

NAN, INF = math.nan, math.inf
SMALLEST, LARGEST = -(2**63), 2**63 - 1


def apply(name, *operands, **attributes):
    defaults = {k: v for k, v in OPS[name].attributes.items() if v is not REQUIRED}
    with np.errstate(all="ignore"):
        return OPS[name].function(*operands, **defaults | attributes)


EDGES = [
    ("cast", [np.float32([9, -9, 100.5, NAN, 3])], {"dtype": i4}, [-7, 7, 4, 0, 3]),
    ("cast", [np.array([-1, 7, -8]).astype(i4.numpy)], {"dtype": u4}, [15, 7, 8]),
    ("cast", [np.array([1, 0, 3]).astype(u2.numpy)], {"dtype": i2}, [1, 0, -1]),
    ("cast", [np.array([1, 0, 3]).astype(u2.numpy)], {"dtype": boolean}, [True, False, True]),
    ("cast", [np.float32([448, 464, 465, INF, -INF])], {"dtype": f8e4m3fn}, [448, 448, 448, 448, -448]),
    ("cast", [np.float32([448, 464, 465, INF])], {"dtype": f8e4m3fn, "saturate": False}, [448, 448, NAN, NAN]),
    ("cast", [np.float64([17 + 2.0**-40, 17, 19 - 2.0**-40])], {"dtype": f8e4m3fn}, [18, 16, 18]),
    ("cast", [np.float64([257 + 2.0**-40, 257, NAN, INF, 2.0**-200])], {"dtype": bf16}, [258, 256, NAN, INF, 0]),
    ("cast", [np.float32([1, 3, 5, 0, NAN, INF])], {"dtype": f8e8m0}, [1, 4, 8, 2.0**-127, NAN, 2.0**127]),
    ("cast", [np.float32([3, 5, 6, 0, INF])], {"dtype": f8e8m0, "round_mode": "nearest", "saturate": False},
     [4, 4, 8, NAN, NAN]),
    ("cast", [np.float32([3, 5, 6, 7.9])], {"dtype": f8e8m0, "round_mode": "down"}, [2, 4, 4, 4]),
    ("cast", [np.array(["300", "-1", "1e1", "2.9"], object)], {"dtype": u8}, [255, 0, 10, 2]),
    ("cast", [np.array(["9223372036854775807", "-9" + "9" * 30], object)], {"dtype": i64}, [LARGEST, SMALLEST]),
    ("quantize", [np.float32([NAN, INF, -INF, 2.5, 3.5]), np.float32(1), np.int8(1)],
     {"axis": 0, "block": 0, "dtype": i8, "precision": f32}, [1, 127, -128, 3, 5]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "attributes", "expected"), EDGES, ids=[f"{e[0]}-{e[2]}" for e in EDGES])
def test_edges(name, operands, attributes, expected):
    result = apply(name, *operands, **attributes)
    assert result.dtype == attributes["dtype"].numpy
    exact = result if result.dtype.kind in "iub" else result.astype(np.float64)
    np.testing.assert_array_equal(exact, expected)


def holds(dtype, number):
    return number > 0 if dtype.name == "f8e8m0" else dtype.name == "string" or dtype.holds(number)


@pytest.mark.parametrize("source", DTYPES)
def test_small_numbers_go_from_any_dtype_into_any_other(source):
    for target in DTYPES.values():
        numbers = [n for n in (0, 1, 2, 4) if holds(DTYPES[source], n) and holds(target, n)]
        x = apply("cast", np.array(numbers), dtype=DTYPES[source])
        there = apply("cast", x, dtype=target)
        assert (x.dtype, there.dtype) == (DTYPES[source].numpy, target.numpy)
        assert apply("cast", there, dtype=f64).tolist() == numbers


@pytest.mark.parametrize("text", ["", "a", "1_0", "0x1", "1,5", "--1", "\u0661"])
def test_what_is_no_number(text):
    for dtype in (f32, i64, boolean):
        with pytest.raises(InputError, match="cast: not a number"):
            apply("cast", np.array([text], object), dtype=dtype)

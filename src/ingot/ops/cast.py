"""Conversion between element types."""

import re
from typing import Literal

import numpy as np

from ingot.errors import InputError
from ingot.ir.dtype import DType, bf16, boolean, f8e8m0, f16, f32, f64, from_numpy, i64, string
from ingot.ir.graph import TensorType
from ingot.ops.define import op, sample

_FLOAT = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*|[+-]?(inf|infinity)|[+-]?nan", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"\s*[+-]?\d{1,40}\s*", re.ASCII)
_SPELLED = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}


@op(
    acts_on="element",
    computes=False,
    infer=lambda x, *, dtype, saturate, round_mode: TensorType(dtype, x.shape),
    domain=(-9.0, 9.0),
    samples=[
        sample("x:i64>-9<10[2,5,7]", dtype=f32),
        sample("x:bool[5]", dtype=f32),
        sample("x[2,5,7]", dtype=boolean),
        sample("x:i64[0,3]", dtype=boolean),
    ],
)
def cast(x, *, dtype: DType, saturate: bool = True, round_mode: Literal["up", "down", "nearest"] = "up"):
    """x in another dtype; float to integer truncates toward zero and saturates, NaN gives 0; to bool is x != 0.

    Integers wrap in narrower dtypes, and so do integer parts of floats in types of less than a byte; float to a
    narrower float rounds to nearest even. Floats of 8 bits saturate on overflow, or become an infinity or NaN,
    whichever their dtype has. For f8e8m0, whose values are powers of 2, positive floats are rounded by round_mode;
    others become the smallest value, or NaN. A float as a string has up to 8 digits, as C's %.8g, and is NaN, INF or
    -INF. A string that is not a number is an error.
    """
    if dtype is string:
        return _texts(x)
    if x.dtype == object:
        x = _numbers(x, dtype)
    x = _plain(x)
    if dtype is boolean:
        return x != 0
    if dtype.limits is not None:
        return _integers(x, dtype)
    if dtype is f8e8m0:
        return _powers(x.astype(np.float64), saturate, round_mode)
    if dtype in (f64, f32, f16):
        return x.astype(dtype.numpy)
    wide = x if x.dtype == np.float32 else _odd(x.astype(np.float64))
    if dtype is not bf16 and saturate:
        largest = _largest(dtype)
        wide = np.clip(wide, -largest, largest)
    return wide.astype(dtype.numpy)


def _plain(x):
    """Convert numbers to a dtype of numpy's own."""
    dtype = from_numpy(x.dtype)
    if dtype is bf16 or (dtype.kind == "n" and dtype.limits is None):
        return x.astype(np.float32)
    return x.astype(np.uint8 if dtype.name[0] == "u" else np.int8) if dtype.kind == "n" else x


def _largest(dtype: DType) -> np.float32:
    import ml_dtypes

    return np.float32(ml_dtypes.finfo(dtype.numpy).max)


def _integers(x, dtype: DType):
    if dtype.bits < 8:
        return (_integers(x, i64).astype(np.uint8) & np.uint8(2**dtype.bits - 1)).view(dtype.numpy)
    assert dtype.limits is not None
    if x.dtype.kind == "f":
        low, high = dtype.limits
        truncated = np.trunc(x.astype(np.float64))
        inside = (truncated >= low) & (truncated < float(high // 2 + 1) * 2)
        clipped = np.where(inside, truncated, 0).astype(np.int64 if low else np.uint64)
        x = np.where(inside | np.isnan(truncated), clipped, np.where(truncated < 0, low, high).astype(clipped.dtype))
    return x.astype(dtype.numpy)


def _odd(x):
    """Convert float64 to float32, rounding inexact values to odd, so that a second rounding to fewer bits is
    exact.

    Boldo and Melquiond, "When double rounding is odd", 2005.
    """
    near = x.astype(np.float32)
    exact = (near == x) | np.isnan(x)
    away = np.abs(near.astype(np.float64)) > np.abs(x)
    bits = near.view(np.uint32)
    return np.where(exact, bits, (bits - away.astype(np.uint32)) | 1).view(np.float32)


def _powers(x, saturate: bool, round_mode: str):
    mantissa, exponent = np.frexp(x)  # x = mantissa * 2^exponent, 0.5 <= mantissa < 1
    rounds_up = {"up": mantissa > 0.5, "down": np.zeros(x.shape, bool), "nearest": mantissa >= 0.75}[round_mode]
    power = exponent - 1 + rounds_up
    power = np.where(np.isposinf(x), 128, np.where(x <= 0, -128, power))
    outside = (power > 127) | (power < -127)
    invalid = np.isnan(x) | (outside & (not saturate))
    biased = np.where(invalid, 255, np.clip(power, -127, 127) + 127)
    return biased.astype(np.uint8).view(f8e8m0.numpy)


def _texts(x):
    """Convert each element to a string."""
    if x.dtype == object:
        return x
    plain, result = _plain(x), np.empty(x.shape, object)
    spell = _float_text if plain.dtype.kind == "f" else lambda value: str(int(value))
    result.ravel()[:] = [spell(value) for value in plain.ravel().tolist()]
    return result


def _float_text(value: float) -> str:
    text = f"{value:.8g}"
    return _SPELLED.get(text, text)


def _numbers(x, dtype: DType):
    """Convert strings to integers, if they and the dtype are integers, else to float64."""
    limits = i64.limits if dtype is boolean else dtype.limits
    if limits is not None and all(_INTEGER.fullmatch(text) for text in x.flat):
        low, high = limits
        kind = np.int64 if low else np.uint64
        return np.array([min(max(int(text), low), high) for text in x.flat], kind).reshape(x.shape)
    for text in x.flat:
        if not _FLOAT.fullmatch(text):
            raise InputError(f"cast: not a number, got {text[:100]!r}, expected one of {dtype}")
    return np.array([float(text) for text in x.flat], np.float64).reshape(x.shape)

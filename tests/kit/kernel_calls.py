"""Calling one kernel on every instruction set and cut into any number of parts, with its output under guard."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.run import library

GUARD = 64  # elements before and after each output that no kernel may touch
PARTS = (1, 2, 3, 7)
GUARD_BYTE = 0xA5


class Guarded:
    """An output of NaN bytes between guard zones; strides count elements and may leave holes."""

    def __init__(self, dtype: Any, shape: Sequence[int], strides: Sequence[int] | None = None):
        dtype = np.dtype(np.uint8 if dtype is np.bool_ else dtype)
        if strides is None:
            strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        self.strides = list(strides)
        size = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) if np.prod(shape) else 0
        self.bytes = np.full((size + 2 * GUARD) * dtype.itemsize, GUARD_BYTE, np.uint8)
        flat = self.bytes.view(dtype)[GUARD:]
        self.array = np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in strides])
        self.array[...] = np.nan if dtype.kind == "f" else 0x5A

    def untouched(self) -> bool:
        """Whether everything but the array's own elements still holds the guard byte."""
        copy = self.bytes.copy()
        own = np.lib.stride_tricks.as_strided(copy.view(self.array.dtype)[GUARD:], self.array.shape, self.array.strides)
        own[...] = np.frombuffer(bytes([GUARD_BYTE]) * self.array.itemsize, self.array.dtype)[0]
        return bool((copy == GUARD_BYTE).all())


def pointer(native: library.Library, array: np.ndarray) -> Any:
    return native.ffi.cast("void *", array.ctypes.data)


def element_strides(array: np.ndarray) -> list[int]:
    return [s // array.itemsize for s in array.strides]


def every_way(
    native: library.Library, kernel: str, fields: dict[str, Any], output: Callable[[], Guarded]
) -> np.ndarray:
    """Runs a kernel on each instruction set and cut into each number of parts, in reverse order; returns the one
    result that all give, bit for bit."""
    results = []
    for isa, parts in itertools.product(native.isas(), PARTS):
        out = output()
        row = native.kernels[kernel]
        args = native.ffi.new(row.args_type + " *", {**fields, "out": pointer(native, out.array)})
        for part in reversed(range(parts)):
            row.functions[isa](args, part, parts)
        assert out.untouched(), f"{kernel} on {isa} in {parts} parts wrote outside its output"
        results.append((isa, parts, out.array.copy()))
    first = results[0][2]
    for isa, parts, result in results[1:]:
        np.testing.assert_array_equal(bits(result), bits(first), err_msg=f"{kernel}: {isa} in {parts} parts differs")
    return first


def bits(array: np.ndarray) -> np.ndarray:
    """The bytes of each element, all NaN made equal: their payloads are no promise."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.view(f"u{array.itemsize}")


def close(result: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Relative to max(1, |expected|); infinities and NaN must match."""
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite].astype(result.dtype))
    error = np.abs(result[finite].astype(np.float64) - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    assert error.max(initial=0) <= tolerance, f"error {error.max()}, tolerance {tolerance}"


def floats(seed: int, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)

"""Call kernels of registered ops with arrays: functions of the user's shared libraries, and WGSL bodies."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.errors import ExtensionError, ResourceError
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import Op, TensorType
from ingot.ops.custom import Kernel, WgslKernel


class _Array(ctypes.Structure):
    """An array in C: `ingot_array` of docs/extending.md."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int64),
        ("dtype", ctypes.c_char_p),
    )


class _Number(ctypes.Union):
    """An attribute in C: `ingot_number` of docs/extending.md."""

    _fields_ = (("integer", ctypes.c_int64), ("real", ctypes.c_double))


def bound(op: Op, kernel: Kernel) -> Callable[..., tuple[np.ndarray, ...]]:
    """Return a kernel as a function with the signature of the op's reference.

    Raises ResourceError if the library cannot be opened or lacks the function. A call raises ExtensionError for a
    kernel that returns a failure.
    """
    if isinstance(kernel, WgslKernel):
        from ingot.run.external_wgsl import bound_wgsl

        return bound_wgsl(op, kernel)
    entry = _entry(os.fspath(kernel.library), kernel.symbol)

    def call(*operands: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
        given = [None if a is None else np.require(a, requirements=("C", "A")) for a in operands]
        types = [None if a is None else TensorType(from_numpy(a.dtype), a.shape) for a in given]
        inferred = op.infer(*types, **attributes)
        results = [np.empty(t.dims, t.dtype.numpy) for t in (inferred if isinstance(inferred, tuple) else (inferred,))]
        packed = (_number(kind, attributes[name]) for name, kind in op.attribute_types.items())
        numbers = (_Number * max(len(attributes), 1))(*packed)
        inputs, outputs = (
            (_Array * max(len(given), 1))(*map(_array, given)),
            (_Array * len(results))(*map(_array, results)),
        )
        code = entry(len(given), inputs, len(results), outputs, numbers)
        if code:
            raise ExtensionError(f"op {op.name!r}: its kernel {kernel} failed, got {code}, expected 0")
        return tuple(results)

    return call


@functools.cache
def _entry(library: str, symbol: str) -> Any:
    try:
        entry = getattr(ctypes.CDLL(library), symbol)
    except (OSError, AttributeError) as error:
        raise ResourceError(f"kernel {library}:{symbol}: cannot be opened, {error}") from error
    arrays = ctypes.POINTER(_Array)
    entry.argtypes = [ctypes.c_int64, arrays, ctypes.c_int64, arrays, ctypes.POINTER(_Number)]
    entry.restype = ctypes.c_int
    return entry


def _array(array: np.ndarray | None) -> _Array:
    """Return a struct that points into an array; null for an absent operand."""
    if array is None:
        return _Array()
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    return _Array(array.ctypes.data, shape, array.ndim, from_numpy(array.dtype).name.encode())


def _number(kind: type, value: float) -> _Number:
    """Convert an attribute to its annotated type: an integer is accepted for a float."""
    return _Number(real=float(value)) if kind is float else _Number(integer=int(value))

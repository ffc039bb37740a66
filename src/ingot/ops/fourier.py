"""Discrete Fourier transforms. Complex numbers are two real tensors of one shape."""

from __future__ import annotations

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dim import Known, floordiv
from ingot.ir.dtype import f16, f32
from ingot.ir.graph import TensorType
from ingot.ops.define import Size, op, sample, unify

_TOLERANCE = {f32: 4e-6, f16: 4e-3}


def _expect_lines(name: str, axis: int, first: TensorType, *rest: TensorType) -> TensorType:
    """Return the common type of the real and imaginary parts."""
    is_one = all(part.dtype is first.dtype and part.rank == first.rank for part in rest)
    if not is_one or first.dtype.kind != "f" or not 0 <= axis < first.rank or first.shape[axis] == 0:
        got = " and ".join(map(str, (first, *rest)))
        raise ShapeError(f"{name}: got {got} on axis {axis}, expected floats of one shape")
    for part in rest:
        for a, b in zip(first.shape, part.shape, strict=True):
            unify(f"{name}: {first} and {part}", a, b)
    return first


def _resized(type: TensorType, axis: int, size: Known | None) -> TensorType:
    return TensorType(type.dtype, (*type.shape[:axis], size, *type.shape[axis + 1 :]))


def _infer_fft(real, imaginary, *, axis, inverse):
    type = _expect_lines("fft", axis, real, imaginary)
    return type, type


def _parts(z: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    return z.real.astype(dtype), z.imag.astype(dtype)


def _complex(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Combine both parts into complex numbers; a sum of products would convert infinities to NaN."""
    z = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    z.real, z.imag = real, imaginary
    return z


@op(
    infer=_infer_fft,
    outputs=2,
    tolerance=_TOLERANCE,
    samples=[
        sample("x[3,12] y[3,12]", axis=1, inverse=False),
        sample("x[3,15] y[3,15]", axis=1, inverse=True),
        sample("x[40,7,2] y[40,7,2]", axis=1, inverse=False),
        sample("x[2,1] y[2,1]", axis=1, inverse=True),
        sample("x[0,3] y[0,3]", axis=1, inverse=False),
        sample("x[67,2] y[67,2]", axis=0, inverse=False),
        sample("x[2,134] y[2,134]", axis=1, inverse=True),
    ],
)
def fft(real, imaginary, *, axis: int, inverse: bool):
    """The Fourier transform along an axis, or its inverse, which is divided by the length."""
    z = _complex(real, imaginary)
    return _parts((np.fft.ifft if inverse else np.fft.fft)(z, axis=axis), real.dtype)


def _infer_rfft(real, *, axis):
    type = _expect_lines("rfft", axis, real)
    size = type.shape[axis]
    half = _resized(type, axis, None if size is None else floordiv(size, 2) + 1)
    return half, half


@op(
    infer=_infer_rfft,
    outputs=2,
    tolerance=_TOLERANCE,
    samples=[
        sample("x[3,16]", axis=1),
        sample("x[18,15]", axis=1),
        sample("x[2,24,17]", axis=1),
        sample("x[2,1]", axis=1),
        sample("x[5,134]", axis=1),
        sample("x[0,4]", axis=1),
    ],
)
def rfft(real, *, axis: int):
    """The first n // 2 + 1 numbers of the transform of n real numbers along an axis; the second half mirrors them."""
    return _parts(np.fft.rfft(real, axis=axis), real.dtype)


def _infer_irfft(real, imaginary, *, axis, length):
    type = _expect_lines("irfft", axis, real, imaginary)
    if isinstance(length, int) and length < 1:
        raise ShapeError(f"irfft: bad length, got {length}, expected at least 1")
    unify(f"irfft: half of a spectrum of {length}", type.shape[axis], floordiv(length, 2) + 1)
    return _resized(type, axis, length)


@op(
    infer=_infer_irfft,
    tolerance=_TOLERANCE,
    samples=[
        sample("x[3,9] y[3,9]", axis=1, length=16),
        sample("x[18,8] y[18,8]", axis=1, length=15),
        sample("x[2,13,17] y[2,13,17]", axis=1, length=24),
        sample("x[2,1] y[2,1]", axis=1, length=1),
        sample("x[5,68] y[5,68]", axis=1, length=134),
        sample("x[0,3] y[0,3]", axis=1, length=4),
    ],
)
def irfft(real, imaginary, *, axis: int, length: Size):
    """The n real numbers whose transform along an axis has this first half; its first and last elements count as
    real.
    """
    return np.fft.irfft(_complex(real, imaginary), length, axis).astype(real.dtype)

"""Rules: discrete Fourier transforms, of spectra and of overlapping frames of a signal."""

from collections.abc import Sequence
from typing import Any

from ingot.dim import Known, floordiv
from ingot.dtype import f32, f64
from ingot.errors import UnsupportedError
from ingot.load.aten.builder import AtenBuilder, Complex, Tensor
from ingot.load.aten.complex import view_as_real
from ingot.load.aten.linear import product_of
from ingot.load.aten.registry import aten
from ingot.load.eager import Value
from ingot.load.fourier import frame_places, waves
from ingot.ops.define import Builder

_SCALES = {0: 0.0, 1: 0.5, 2: 1.0}  # torch's normalisations: by which power of the count results are divided


def _divided(pen: Builder, table: Value, count: Known, power: float) -> Value:
    return table if power == 0 else pen.div(table, pen.pow(pen.scalar(count, f64), power))


def _tables(
    b: AtenBuilder, read: Known, made: Known, length: Known, power: float, *, inverse: bool, is_half: bool = False
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cosines and sines in the dtype that products are computed in, [read, made]."""
    pen, dtype = b.pen(read, made, length), f64 if b.result.dtype is f64 else f32
    made_of = waves(pen, read, made, length, inverse=inverse, is_half=is_half)
    cosine, sine = (b.table(pen.cast(_divided(pen, each, length, power), dtype=dtype)) for each in made_of)
    return cosine, sine


def _last(b: AtenBuilder, x: Tensor, axis: int) -> Tensor:
    """x with an axis moved behind the others, or back."""
    order = [i for i in range(b.rank(x)) if i != axis]
    return b.permute(x, [*order, axis])


def _back(b: AtenBuilder, x: Tensor, axis: int) -> Tensor:
    order = list(range(b.rank(x) - 1))
    return b.permute(x, [*order[:axis], b.rank(x) - 1, *order[axis:]])


def _turned(b: AtenBuilder, x: Complex, axis: int, power: float, inverse: bool) -> Complex:
    """One axis of complex numbers transformed."""
    size = b.shape(x.real)[axis]
    cosine, sine = _tables(b, size, size, size, power, inverse=inverse)
    real, imaginary = (_last(b, part, axis) for part in (x.real, x.imaginary))
    parts = (
        b.add("sub", product_of(b, real, cosine), product_of(b, imaginary, sine)),
        b.add("add", product_of(b, real, sine), product_of(b, imaginary, cosine)),
    )
    return Complex(*(_back(b, part, axis) for part in parts))


@aten("_fft_c2c.default", is_complex=True)
def fft_c2c(b: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    for each in dim:
        x = _turned(b, x, b.axis(x.real, each), _SCALES[normalization], not forward)
    return x


@aten("_fft_r2c.default", is_complex=True)
def fft_r2c(b: AtenBuilder, x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    """The last axis is of real numbers, of whose spectrum one half says all."""
    axis, power = b.axis(x, dim[-1]), _SCALES[normalization]
    size = b.shape(x)[axis]
    made = floordiv(size, 2) + 1 if onesided else size
    rows = _last(b, x, axis)
    parts = (product_of(b, rows, table) for table in _tables(b, size, made, size, power, inverse=False))
    return fft_c2c(b, Complex(*(_back(b, part, axis) for part in parts)), dim[:-1], normalization, True)


@aten("_fft_c2r.default", is_complex=True)
def fft_c2r(b: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Known) -> Tensor:
    x = fft_c2c(b, x, dim[:-1], normalization, False)
    axis = b.axis(x.real, dim[-1])
    read = floordiv(last_dim_size, 2) + 1
    cosine, sine = _tables(
        b, read, last_dim_size, last_dim_size, _SCALES[normalization], inverse=True, is_half=True
    )  # fmt: skip
    real, imaginary = (_last(b, b.slice(part, axis, 0, read), axis) for part in (x.real, x.imaginary))
    return _back(b, b.add("sub", product_of(b, real, cosine), product_of(b, imaginary, sine)), axis)


@aten("stft.default", is_complex=True)
def stft(
    b: AtenBuilder, x: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Complex:  # fmt: skip
    """Frames are gathered; the window weighs the tables. A spectrum has its bins before its frames."""
    if isinstance(x, Complex) or isinstance(window, Complex) or align_to_window:
        raise UnsupportedError(f"torch node {b.hint!r}: stft of complex numbers or aligned to the window")
    *lead, bins, frames = b.result.shape if b.makes_complex else b.result.shape[:-1]
    tables = _tables(b, n_fft, bins, n_fft, 0.5 if normalized else 0.0, inverse=False)
    width = win_length or n_fft
    if window is not None:
        tables = tuple(b.add("mul", table, _centered(b, window, n_fft)) for table in tables)
    elif width != n_fft:
        ones = b.expand(b.scalar(1, b.dtype(x)), (width,))
        tables = tuple(b.add("mul", table, _centered(b, ones, n_fft)) for table in tables)
    places = frame_places(b.pen(frames), frames, n_fft, hop_length or n_fft // 4)
    rows = b.add("gather", x, b.table(places), axis=len(lead))
    order = (*range(len(lead)), len(lead) + 1, len(lead))
    return Complex(*(b.permute(product_of(b, rows, table), order) for table in tables))


@aten("stft.default")
def stft_as_real(b: AtenBuilder, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return view_as_real(b, stft(b, x, *args, **kwargs))


def _centered(b: AtenBuilder, window: Tensor, length: int) -> Tensor:
    """A window as a column of some length, with zeros on both sides where it is shorter."""
    width = b.static(b.shape(window)[0], "a window")
    left = (length - width) // 2
    if width != length:
        window = b.add("pad", window, low=(left,), high=(length - width - left,), value=0.0)
    return b.reshape(window, (length, 1))

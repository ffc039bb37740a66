"""Rules for discrete Fourier transforms, of whole signals and of overlapping frames."""

from collections.abc import Sequence
from typing import Any

from ingot.errors import UnsupportedError
from ingot.ir.dim import Known, floordiv
from ingot.ir.dtype import f32, f64
from ingot.load.aten.builder import AtenBuilder, AtenGraphBuilder, Complex, Tensor
from ingot.load.aten.complex import view_as_real
from ingot.load.aten.registry import aten
from ingot.load.fourier import frame_positions, whole_spectrum

_SCALES = {0: 0.0, 1: 0.5, 2: 1.0}  # torch's normalisations: by which power of the count results are divided


def _scaled(b: AtenBuilder, parts: Sequence[Tensor], count: Known, power: float) -> tuple[Tensor, ...]:
    """Divide results by a power of a count; the power may be negative."""
    if power == 0:
        return tuple(parts)
    build, dtype = b.builder_for(count), b.dtype(parts[0])
    divisor = b.table(build.cast(build.pow(build.scalar(count, f64), power), dtype=f64 if dtype is f64 else f32))
    return tuple(b.add("div", part, b.cast(divisor, dtype)) for part in parts)


def _spectrum(b: AtenBuilder, x: Tensor, axis: int, is_half: bool) -> tuple[Tensor, Tensor]:
    """Transform real numbers."""
    half: tuple[Tensor, Tensor] = b.add("rfft", x, axis=axis)
    return half if is_half else whole_spectrum(AtenGraphBuilder(b), *half, axis, b.shape(x)[axis])


@aten("_fft_c2c.default", is_complex=True)
def fft_c2c(b: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    for each in dim:
        axis = b.axis(x.real, each)
        parts = b.add("fft", x.real, x.imaginary, axis=axis, inverse=not forward)
        power = _SCALES[normalization] - (0.0 if forward else 1.0)  # the inverse has been divided already
        x = Complex(*_scaled(b, parts, b.shape(x.real)[axis], power))
    return x


@aten("_fft_r2c.default", is_complex=True)
def fft_r2c(b: AtenBuilder, x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    """The last axis holds real numbers, whose spectrum is determined by its first half."""
    axis, power = b.axis(x, dim[-1]), _SCALES[normalization]
    computed = _spectrum(b, x, axis, onesided)
    whole = Complex(*_scaled(b, computed, b.shape(x)[axis], power))
    return fft_c2c(b, whole, dim[:-1], normalization, True)


@aten("_fft_c2r.default", is_complex=True)
def fft_c2r(b: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Known) -> Tensor:
    x = fft_c2c(b, x, dim[:-1], normalization, False)
    axis = b.axis(x.real, dim[-1])
    read = floordiv(last_dim_size, 2) + 1
    parts = (b.slice(part, axis, 0, read) for part in (x.real, x.imaginary))
    computed = b.add("irfft", *parts, axis=axis, length=last_dim_size)
    return _scaled(b, [computed], last_dim_size, _SCALES[normalization] - 1.0)[0]


@aten("stft.default", is_complex=True)
def stft(
    b: AtenBuilder, x: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Complex:  # fmt: skip
    """Gather frames and multiply them by the window. In the result, bins precede frames."""
    if isinstance(x, Complex) or isinstance(window, Complex) or align_to_window:
        raise UnsupportedError(f"torch node {b.hint!r}: stft of complex numbers or aligned to the window")
    *lead, bins, frames = b.result.shape if b.makes_complex else b.result.shape[:-1]
    width = win_length or n_fft
    positions = frame_positions(b.builder_for(frames), frames, n_fft, hop_length or n_fft // 4)
    rows = b.add("gather", x, b.table(positions), axis=len(lead))
    if window is None and width != n_fft:
        window = b.expand(b.scalar(1, b.dtype(x)), (width,))
    if window is not None:
        rows = b.add("mul", rows, _centered(b, window, n_fft))
    axis = len(lead) + 1
    computed = _spectrum(b, rows, axis, bins != n_fft)
    order = (*range(len(lead)), len(lead) + 1, len(lead))
    return Complex(*(b.permute(part, order) for part in _scaled(b, computed, n_fft, 0.5 if normalized else 0.0)))


@aten("stft.default")
def stft_as_real(b: AtenBuilder, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return view_as_real(b, stft(b, x, *args, **kwargs))


def _centered(b: AtenBuilder, window: Tensor, length: int) -> Tensor:
    """Center a window in zeros if it is shorter than `length`."""
    width = b.static(b.shape(window)[0], "a window")
    left = (length - width) // 2
    if width != length:
        window = b.add("pad", window, low=(left,), high=(length - width - left,), value=0.0)
    return window

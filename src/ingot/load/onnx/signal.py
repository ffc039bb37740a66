"""Rules for transforms of signals."""

from __future__ import annotations

import math

from ingot.ir.dim import floordiv, minimum
from ingot.ir.dtype import f64, i64
from ingot.load.eager import is_known
from ingot.load.fourier import frame_positions, whole_spectrum
from ingot.load.onnx import computed
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, is_negative


@onnx("DFT", since=17)
def dft(call: Call) -> str:
    return _transformed(call, call.attr_axis("axis", 1, call.type(0).rank))


@onnx("DFT", since=20)
def dft_20(call: Call) -> str:
    rank = call.type(0).rank
    if not computed.is_known(call, 2):
        return _transformed_at_run(call)
    (axis,) = call.integers(2) if call.has(2) else (-2,)
    if not -rank <= axis < rank:
        raise call.malformed(f"axis {axis} is out of range for {call.type(0)}")
    return _transformed(call, axis % rank)


def _transformed(call: Call, axis: int) -> str:
    """Transform x over a known axis."""
    rank = call.type(0).rank
    inverse, onesided = _sides(call)
    if axis == rank - 1:
        raise call.malformed(f"operand {call.type(0)} on axis {axis}, expected one or two parts in the last dim")
    length = _length(call, call.shape(0)[axis], inverse and onesided)
    return _fourier(call, call[0], axis, length, inverse, onesided)


def _transformed_at_run(call: Call) -> str:
    """Transform x over an axis that is only known at run time, as [before, axis, behind, parts]."""
    build, shape = call.build, call.shape(0)
    inverse, onesided = _sides(call)
    lead, parts = shape[:-1], shape[-1]
    dims, edge_bins = build.dims(values=lead), build.iota(length=len(lead), start=0, step=1, dtype=i64)
    axis = computed.axis_positions(call, call.reshape(call.cast(call[2], i64), (1,)), len(shape))
    chosen = [build.where(compare(edge_bins, axis), dims, 1) for compare in (build.less, build.equal, build.greater)]
    sizes = [build.reduce_prod(each, axes=(0,), keepdims=True) for each in chosen]
    sizes[1] = build.where(build.equal(axis, len(lead)), -1, sizes[1])  # not a valid axis
    before, size, behind = call.measured(build.concat(*sizes, axis=0))
    x = call.reshape(call[0], (before, size, behind, parts))
    x = _fourier(call, x, 1, _length(call, size, inverse and onesided), inverse, onesided)
    _, transformed, _, results = call.known_shape(build.type(x))
    wanted = call.measured(build.where(build.equal(edge_bins, axis), transformed, dims))
    return call.reshape(x, (*wanted, results))


def _sides(call: Call) -> tuple[bool, bool]:
    """Return whether a transform is inverse, and whether its spectrum is one-sided; the operand's last dim is real and
    imaginary part.
    """
    inverse, onesided = (bool(call.attr_int(name, 0)) for name in ("inverse", "onesided"))
    rank = call.type(0).rank
    call.expect_sizes(0, -1)
    parts = call.shape(0)[-1] if rank else None
    if rank < 2 or parts not in (1, 2) or (onesided and not inverse and parts != 1):
        raise call.malformed(f"operand {call.type(0)}, expected one or two parts in the last dim")
    return inverse, onesided


def _length(call: Call, size: Size, is_half: bool) -> Size:
    """Return the length of a transform of `size` elements, or of half a spectrum."""
    length = call.size(1, 1) if call.has(1) else 2 * (size - 1) if is_half else size
    if is_negative(length - 1):
        raise call.malformed(f"a transform of length {length}")
    return length


def _fourier(call: Call, x: str, axis: int, length: Size, inverse: bool, onesided: bool) -> str:
    """Transform x [..., parts] over an axis: crop x if it is too long, pad it with zeros at the end if it is too
    short.
    """
    build = call.build
    shape = call.known_shape(build.type(x))
    last, half, is_complex = len(shape) - 1, floordiv(length, 2) + 1, shape[-1] == 2
    read = half if inverse and onesided else length
    used = minimum(shape[axis], read)
    x = call.slice(x, axis, 0, used) if used != shape[axis] else x
    if used != read:
        high = tuple(read - used if i == axis else 0 for i in range(len(shape)))
        x = build.pad(x, low=(0,) * len(shape), high=high, value=0.0)
    shape = (*shape[:axis], read, *shape[axis + 1 : last])
    real, *rest = (call.reshape(call.slice(x, last, i, i + 1), shape) for i in (0, 1)[: 2 if is_complex else 1])
    if inverse:
        imaginary = rest[0] if rest else build.expand(build.scalar(0, build.type(x).dtype), shape=shape)
        if onesided:
            transformed = build.irfft(real, imaginary, axis=axis, length=length)
            return call.reshape(transformed, (*call.known_shape(build.type(transformed)), 1))
        parts = build.add_all("fft", real, imaginary, axis=axis, inverse=True)
    elif rest:
        parts = build.add_all("fft", real, *rest, axis=axis, inverse=False)
    else:
        parts = build.add_all("rfft", real, axis=axis)
        parts = parts if onesided else whole_spectrum(build, parts[0], parts[1], axis, length)
    pairs = [call.reshape(part, (*call.known_shape(build.type(part)), 1)) for part in parts]
    return build.concat(*pairs, axis=last)


@onnx("STFT", since=17)
def stft(call: Call) -> str:
    """Gather frames, multiply them by a window, and transform them."""
    build = call.build
    call.expect_sizes(0, 2)
    if call.type(0).rank not in (2, 3) or (call.type(0).rank == 3 and call.shape(0)[2] not in (1, 2)):
        raise call.malformed(f"operand {call.type(0)}, expected [batch, length, 1 or 2]")
    x = call[0] if call.type(0).rank == 3 else call.reshape(call[0], (*call.shape(0), 1))
    _, size, parts = call.known_shape(build.type(x))
    step = call.size(1, 1)
    if call.has(2) and call.type(2).rank != 1:
        raise call.malformed(f"a window {call.type(2)}, expected rank 1")
    length = call.size(3, 1) if call.has(3) else call.shape(2)[0]
    width = call.shape(2)[0] if call.has(2) else length
    if is_negative(size - length) or is_negative(length - 1) or (isinstance(width - length, int) and width != length):
        raise call.malformed(f"frames of {length} every {step}, a window of {width} over {size}")
    onesided = bool(call.attr_int("onesided", 1))
    if onesided and parts != 1:
        raise call.malformed(f"operand {call.type(0)}, expected a real signal for one side")
    frames = floordiv(size - length, step) + 1
    x = build.gather(
        x, build.table(frame_positions(call.builder_for(frames, length, step), frames, length, step)), axis=1
    )
    if call.has(2):
        x = build.mul(x, call.reshape(call[2], (length, 1)))
    return _fourier(call, x, 2, length, inverse=False, onesided=onesided)


_MELS = 2595 / math.log(10)  # in mels per unit of ln(1 + f / 700)


@onnx("MelWeightMatrix", since=17)
def mel_weight_matrix(call: Call) -> str:
    """Return triangular filters over the bins of a spectrum, of equal width in mels."""
    bands, length, rate = (call.size(i, 1) for i in range(3))
    low, high = (call.number(i, f64) for i in (3, 4))
    if is_known(low, high) and not (0 <= low < high and math.isfinite(high)):
        raise call.malformed(f"{bands} bands of {low} to {high} Hz, {length} samples at {rate} Hz")
    builder, bins = call.builder_for(bands, length, rate, low, high), floordiv(length, 2) + 1
    first, last = (builder.mul(builder.log(builder.add(builder.div(edge, 700.0), 1.0)), _MELS) for edge in (low, high))
    spacing = builder.div(builder.sub(last, first), builder.scalar(bands + 2, f64))
    mels = builder.add(builder.mul(builder.iota(length=bands + 2, start=0, step=1, dtype=f64), spacing), first)
    edges = builder.mul(builder.sub(builder.pow(10.0, builder.div(mels, 2595.0)), 1.0), 700.0)
    edge_bins = builder.floor(
        builder.div(builder.mul(edges, builder.scalar(length + 1, f64)), builder.scalar(rate, f64))
    )
    lower, center, upper = (builder.slice(edge_bins, starts=(i,), stops=(bands + i,), steps=(1,)) for i in range(3))
    bin = builder.reshape(builder.iota(length=bins, start=0, step=1, dtype=f64), shape=(bins, 1))
    slope = builder.div(builder.sub(bin, lower), builder.maximum(builder.sub(center, lower), 1.0))
    rising = builder.where(builder.greater(center, lower), slope, 1.0)
    falling = builder.div(builder.sub(upper, bin), builder.maximum(builder.sub(upper, center), 1.0))
    is_rising = builder.logical_and(builder.greater_equal(bin, lower), builder.less_equal(bin, center))
    is_falling = builder.logical_and(builder.greater_equal(bin, center), builder.less(bin, upper))
    table = builder.where(is_falling, falling, builder.where(is_rising, rising, 0.0))
    return call.build.table(builder.cast(table, dtype=call.attr_dtype("output_datatype", 1)))

"""Transforms of signals: a discrete Fourier transform is one product with a table, which its length determines."""

from __future__ import annotations

import math

from ingot.dim import floordiv, minimum
from ingot.dtype import f32, f64, i64
from ingot.load.eager import Value, is_known
from ingot.load.fourier import frame_places, waves
from ingot.load.onnx import computed
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, is_negative
from ingot.ops.define import Builder


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
    """x over a known axis, which goes before the parts and back."""
    rank = call.type(0).rank
    inverse, onesided = _sides(call)
    if axis == rank - 1:
        raise call.malformed(f"operand {call.type(0)} on axis {axis}, expected one or two parts in the last dim")
    length = _length(call, call.shape(0)[axis], inverse and onesided)
    order = (*(i for i in range(rank) if i not in (axis, rank - 1)), axis, rank - 1)
    x = _fourier(call, call.permute(call[0], order), length, inverse, onesided)
    return call.permute(x, tuple(order.index(i) for i in range(rank)))


def _transformed_at_run(call: Call) -> str:
    """x over an axis that only a run knows: as [before, axis, behind, parts]."""
    build, shape = call.build, call.shape(0)
    inverse, onesided = _sides(call)
    lead, parts = shape[:-1], shape[-1]
    dims, places = build.dims(values=lead), build.iota(length=len(lead), start=0, step=1, dtype=i64)
    axis = computed.places(call, call.reshape(call.cast(call[2], i64), (1,)), len(shape))
    chosen = [build.where(compare(places, axis), dims, 1) for compare in (build.less, build.equal, build.greater)]
    sizes = [build.reduce_prod(each, axes=(0,), keepdims=True) for each in chosen]
    sizes[1] = build.where(build.equal(axis, len(lead)), -1, sizes[1])  # the parts are no axis to go over
    before, size, behind = call.measured(build.concat(*sizes, axis=0))
    x = call.permute(call.reshape(call[0], (before, size, behind, parts)), (0, 2, 1, 3))
    x = _fourier(call, x, _length(call, size, inverse and onesided), inverse, onesided)
    *_, made, results = call.known_shape(build.type(x))
    wanted = call.measured(build.where(build.equal(places, axis), made, dims))
    return call.reshape(call.permute(x, (0, 2, 1, 3)), (*wanted, results))


def _sides(call: Call) -> tuple[bool, bool]:
    """Whether a transform is inverse, and whether it gives or takes one half; the operand's last dim is its parts."""
    inverse, onesided = (bool(call.attr_int(name, 0)) for name in ("inverse", "onesided"))
    rank = call.type(0).rank
    parts = call.shape(0)[-1] if rank else None
    if rank < 2 or parts not in (1, 2) or (onesided and not inverse and parts != 1):
        raise call.malformed(f"operand {call.type(0)}, expected one or two parts in the last dim")
    return inverse, onesided


def _length(call: Call, size: Size, is_half: bool) -> Size:
    """How many elements a transform goes over, that of `size` ones, perhaps of a half."""
    length = call.size(1, 1) if call.has(1) else 2 * (size - 1) if is_half else size
    if is_negative(length - 1):
        raise call.malformed(f"a transform of length {length}")
    return length


def _fourier(call: Call, x: str, length: Size, inverse: bool, onesided: bool) -> str:
    """x [..., n, parts] transformed over the dim before the last one: a product of rows with real and imaginary parts.

    A signal that is too long is cut, one that is too short is as if zeros followed.
    """
    build, dtype = call.build, call.build.type(x).dtype
    *lead, size, parts = call.known_shape(build.type(x))
    assert isinstance(parts, int)
    half = floordiv(length, 2) + 1
    read = minimum(size, half if onesided and inverse else length)
    x = call.slice(x, len(lead), 0, read) if read != size else x
    made = half if onesided and not inverse else length
    results = 1 if onesided and inverse else 2
    wide = dtype if dtype is f64 else f32
    pen = call.pen(read, length)
    table = build.table(pen.cast(_table(pen, read, parts, made, results, length, inverse), dtype=wide))
    rows = call.reshape(call.cast(x, wide), (*lead, read * parts))
    product = build.matmul(call.reshape(rows, (1, read * parts)) if not lead else rows, table)
    return call.cast(call.reshape(product, (*lead, made, results)), dtype)


def _table(pen: Builder, read: Size, parts: int, made: Size, results: int, length: Size, inverse: bool) -> Value:
    """What each part of each element adds to each part of each result: f64[read * parts, made * results]."""
    cosine, sine = waves(pen, read, made, length, inverse=inverse, is_half=results == 1)
    cells = [[cosine, sine], [pen.neg(sine), cosine]]
    columns = [[pen.reshape(cell, shape=(read, 1, made, 1)) for cell in row[:results]] for row in cells[:parts]]
    rows = [row[0] if results == 1 else pen.concat(*row, axis=3) for row in columns]
    table = rows[0] if parts == 1 else pen.concat(*rows, axis=1)
    table = pen.reshape(table, shape=(read * parts, made * results))
    return pen.div(table, pen.scalar(length, f64)) if inverse else table


@onnx("STFT", since=17)
def stft(call: Call) -> str:
    """Frames are gathered, weighed by a window, and transformed."""
    build = call.build
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
    x = build.gather(x, build.table(frame_places(call.pen(frames, length, step), frames, length, step)), axis=1)
    if call.has(2):
        x = build.mul(x, call.reshape(call[2], (length, 1)))
    return _fourier(call, x, length, inverse=False, onesided=onesided)


_MELS = 2595 / math.log(10)  # in 1 + f / 700 times e


@onnx("MelWeightMatrix", since=17)
def mel_weight_matrix(call: Call) -> str:
    """Triangles over the bins of a spectrum, evenly wide in mels."""
    bands, length, rate = (call.size(i, 1) for i in range(3))
    low, high = (call.number(i, f64) for i in (3, 4))
    if is_known(low, high) and not (0 <= low < high and math.isfinite(high)):
        raise call.malformed(f"{bands} bands of {low} to {high} Hz, {length} samples at {rate} Hz")
    pen, bins = call.pen(bands, length, rate, low, high), floordiv(length, 2) + 1
    first, last = (pen.mul(pen.log(pen.add(pen.div(edge, 700.0), 1.0)), _MELS) for edge in (low, high))
    apart = pen.div(pen.sub(last, first), pen.scalar(bands + 2, f64))
    mels = pen.add(pen.mul(pen.iota(length=bands + 2, start=0, step=1, dtype=f64), apart), first)
    edges = pen.mul(pen.sub(pen.pow(10.0, pen.div(mels, 2595.0)), 1.0), 700.0)
    places = pen.floor(pen.div(pen.mul(edges, pen.scalar(length + 1, f64)), pen.scalar(rate, f64)))
    lower, center, upper = (pen.slice(places, starts=(i,), stops=(bands + i,), steps=(1,)) for i in range(3))
    place = pen.reshape(pen.iota(length=bins, start=0, step=1, dtype=f64), shape=(bins, 1))
    slope = pen.div(pen.sub(place, lower), pen.maximum(pen.sub(center, lower), 1.0))
    rising = pen.where(pen.greater(center, lower), slope, 1.0)
    falling = pen.div(pen.sub(upper, place), pen.maximum(pen.sub(upper, center), 1.0))
    is_rising = pen.logical_and(pen.greater_equal(place, lower), pen.less_equal(place, center))
    is_falling = pen.logical_and(pen.greater_equal(place, center), pen.less(place, upper))
    table = pen.where(is_falling, falling, pen.where(is_rising, rising, 0.0))
    return call.build.table(pen.cast(table, dtype=call.attr_dtype("output_datatype", 1)))

"""Transforms of signals: a discrete Fourier transform is one product with a table that is made at load."""

from __future__ import annotations

import math

import numpy as np

from ingot.dtype import f32, f64
from ingot.errors import LimitError
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx

MAX_TABLE = 2**24  # elements of a table, or of the positions of frames


@onnx("DFT", since=17)
def dft(call: Call) -> str:
    return _transformed(call, call.attr_axis("axis", 1, call.type(0).rank))


@onnx("DFT", since=20)
def dft_20(call: Call) -> str:
    rank = call.type(0).rank
    (axis,) = call.integers(2) if call.has(2) else (-2,)
    if not -rank <= axis < rank:
        raise call.malformed(f"axis {axis} is out of range for {call.type(0)}")
    return _transformed(call, axis % rank)


def _transformed(call: Call, axis: int) -> str:
    rank, x = call.type(0).rank, call[0]
    inverse, onesided = (bool(call.attr_int(name, 0)) for name in ("inverse", "onesided"))
    parts = call.shape(0)[-1] if rank else None
    if rank < 2 or axis == rank - 1 or parts not in (1, 2) or (onesided and not inverse and parts != 1):
        raise call.malformed(f"operand {call.type(0)} on axis {axis}, expected one or two parts in the last dim")
    size = call.shape(0)[axis]
    if not isinstance(size, int):
        raise call.unsupported(f"a transform of symbolic length {size}")
    whole = onesided and inverse
    if call.has(1):
        (length,) = call.integers(1)
    else:
        length = 2 * (size - 1) if whole else size
    if length < 1:
        raise call.malformed(f"a transform of length {length}")
    order = (*(i for i in range(rank) if i not in (axis, rank - 1)), axis, rank - 1)
    x = _fourier(call, call.permute(x, order), length, inverse, onesided)
    return call.permute(x, tuple(order.index(i) for i in range(rank)))


def _fourier(call: Call, x: str, length: int, inverse: bool, onesided: bool) -> str:
    """x [..., n, parts] transformed over the dim before the last one: a product of rows with real and imaginary parts.

    A signal that is too long is cut, one that is too short is as if zeros followed.
    """
    build, dtype = call.build, call.build.type(x).dtype
    *lead, size, parts = call.known_shape(build.type(x))
    assert isinstance(size, int) and isinstance(parts, int)
    read = min(size, length // 2 + 1 if onesided and inverse else length)
    x = call.slice(x, len(lead), 0, read) if read < size else x
    made = length // 2 + 1 if onesided and not inverse else length
    results = 1 if onesided and inverse else 2
    if read * parts * made * results > MAX_TABLE:
        raise LimitError(f"transform of length {length}: table too large, expected at most {MAX_TABLE} elements")
    wide = dtype if dtype is f64 else f32
    table = build.table(_table(read, parts, made, results, length, inverse).astype(wide.numpy))
    rows = call.reshape(call.cast(x, wide), (*lead, read * parts))
    product = build.matmul(call.reshape(rows, (1, read * parts)) if not lead else rows, table)
    return call.cast(call.reshape(product, (*lead, made, results)), dtype)


def _table(read: int, parts: int, made: int, results: int, length: int, inverse: bool) -> np.ndarray:
    """What each part of each element adds to each part of each result: f64[read * parts, made * results]."""
    turns = np.outer(np.arange(read), np.arange(made)) % length  # whole turns do not matter
    angle = 2 * np.pi / length * turns * (1 if inverse else -1)
    cosine, sine = np.cos(angle), np.sin(angle)
    if results == 1:  # the half that is not given mirrors the one that is
        mirrored = np.arange(read)
        twice = np.where((mirrored == 0) | (2 * mirrored == length), 1, 2)[:, None]
        cosine, sine = cosine * twice, sine * twice
    whole = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], 1)
    table = whole[:, :parts, :, :results].reshape(read * parts, made * results)
    return table / length if inverse else table


@onnx("STFT", since=17)
def stft(call: Call) -> str:
    """Frames are gathered, weighed by a window, and transformed."""
    build = call.build
    if call.type(0).rank not in (2, 3) or (call.type(0).rank == 3 and call.shape(0)[2] not in (1, 2)):
        raise call.malformed(f"operand {call.type(0)}, expected [batch, length, 1 or 2]")
    x = call[0] if call.type(0).rank == 3 else call.reshape(call[0], (*call.shape(0), 1))
    _, size, parts = call.known_shape(build.type(x))
    (step,) = call.integers(1)
    width = call.shape(2)[0] if call.has(2) and call.type(2).rank == 1 else None
    (length,) = call.integers(3) if call.has(3) else (width,)
    if not isinstance(size, int):
        raise call.unsupported(f"frames of a symbolic length {size}")
    if not isinstance(length, int) or not 1 <= length <= size or step < 1 or width not in (None, length):
        raise call.malformed(f"frames of {length} every {step}, a window of {width} over {size}")
    onesided = bool(call.attr_int("onesided", 1))
    if onesided and parts != 1:
        raise call.malformed(f"operand {call.type(0)}, expected a real signal for one side")
    frames = (size - length) // step + 1
    if frames * length > MAX_TABLE:
        raise LimitError(f"{frames} frames of {length}: too many elements, expected at most {MAX_TABLE}")
    places = np.arange(frames)[:, None] * step + np.arange(length)
    x = build.gather(x, build.table(places), axis=1)
    if call.has(2):
        x = build.mul(x, call.reshape(call[2], (length, 1)))
    return _fourier(call, x, length, inverse=False, onesided=onesided)


@onnx("MelWeightMatrix", since=17)
def mel_weight_matrix(call: Call) -> str:
    """Triangles over the bins of a spectrum, evenly wide in mels. Of constants alone, so it is one."""
    (bands,), (length,), (rate,) = (call.integers(i) for i in range(3))
    edges = [call.build.graph.data(call[i]) for i in (3, 4)]
    dtype = call.attr_dtype("output_datatype", 1)
    if any(edge is None or edge.size != 1 for edge in edges):
        raise call.unsupported("edges that are not known at load")
    low, high = (float(edge.item()) for edge in edges if edge is not None)
    bins = length // 2 + 1
    if not (bands >= 1 and length >= 1 and rate >= 1 and 0 <= low < high and math.isfinite(high)):
        raise call.malformed(f"{bands} bands of {low} to {high} Hz, {length} samples at {rate} Hz")
    if bands * bins > MAX_TABLE:
        raise LimitError(f"{bands} bands of {bins} bins: too many elements, expected at most {MAX_TABLE}")
    first, last = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    mels = first + np.arange(bands + 2) * ((last - first) / (bands + 2))
    places = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    lower, center, upper = places[:-2], places[1:-1], places[2:]
    place = np.arange(bins)[:, None]
    rising = np.where(center > lower, (place - lower) / np.maximum(center - lower, 1), 1.0)
    falling = (upper - place) / np.maximum(upper - center, 1)
    table = np.where((place >= lower) & (place <= center), rising, 0.0)
    table = np.where((place >= center) & (place < upper), falling, table)
    return call.build.table(table.astype(dtype.numpy))

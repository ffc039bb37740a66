"""Rules for ops that write elements by position: all are lowered to `scatter_elements`."""

from __future__ import annotations

from ingot.ir.dim import floordiv
from ingot.ir.dtype import boolean, i64, u8
from ingot.load.onnx import computed
from ingot.load.onnx.call import Call
from ingot.load.onnx.conv import expect_window, window
from ingot.load.onnx.index import checked, flat_positions, vector
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, count, is_negative
from ingot.load.onnx.tensors import count_elements
from ingot.ops.define import normalize_axis, unify

_ANY_INDEX = 1 << 62  # a limit that rejects only negative indices, and to which sizes can be added without overflow
REDUCTIONS = ("none", "add", "mul", "max", "min")


def _scattered(call: Call, x: str, positions: str, updates: str, axis: int) -> str:
    """Scatter with the node's reduction; for bools, the sum is "any" and the product is "all"."""
    reduction, dtype = call.word("reduction", "none", REDUCTIONS), call.type(0).dtype
    if dtype is boolean and reduction != "none":
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
        x, updates = call.cast(x, u8), call.cast(updates, u8)
    return call.cast(call.build.scatter_elements(x, positions, updates, axis=axis, reduction=reduction), dtype)


def expect_shape(call: Call, index: int, shape: tuple[Size, ...]) -> None:
    """Raise LoadError or ShapeError unless an operand has this shape."""
    found = call.shape(index)
    if len(found) != len(shape):
        raise call.malformed(f"input {index} is {call.type(index)}, expected shape {list(shape)}")
    for a, b in zip(found, shape, strict=True):
        unify(f"input {index}, {call.type(index)} where {list(shape)} is expected", a, b)


@onnx("ScatterElements")
@onnx("Scatter", since=9)
def scatter_elements(call: Call) -> str:
    return _scattered(call, call[0], call[1], call[2], call.attr_axis("axis", 0, call.type(0).rank))


@onnx("ScatterND")
def scatter_nd(call: Call) -> str:
    """Convert index tuples to rows of x with its leading dims merged."""
    build, shape, indices = call.build, call.shape(0), call.shape(1)
    depth = indices[-1] if indices else 0
    call.expect_sizes(1, -1)
    if not isinstance(depth, int) or not 1 <= depth <= len(shape):
        raise call.malformed(f"tuples of {depth} do not fit {call.type(0)} and {call.type(1)}")
    expect_shape(call, 2, (*indices[:-1], *shape[depth:]))
    rows, width, tuples = count(shape[:depth]), count(shape[depth:]), count(indices[:-1])
    positions = flat_positions(call, call.reshape(call[1], (tuples, depth)), shape[:depth])
    positions = build.expand(call.reshape(positions, (tuples, 1)), shape=(tuples, width))
    updates = call.reshape(call[2], (tuples, width))
    x = call.reshape(call[0], (rows, width))
    return call.reshape(_scattered(call, x, positions, updates, 0), shape)


@onnx("TensorScatter", since=24)
def tensor_scatter(call: Call) -> str:
    """Write rows of each sample from its write index on; "circular" wraps around to the start."""
    build, shape, update = call.build, call.shape(0), call.shape(1)
    rank, mode = len(shape), call.attr_text("mode", "linear")
    axis = normalize_axis("attribute 'axis'", call.attr_int("axis", -2), rank)
    if axis == 0 or mode not in ("linear", "circular") or len(update) != rank:
        raise call.malformed(f"axis {axis}, mode {mode[:100]!r} do not fit {call.type(0)} and {call.type(1)}")
    expect_shape(call, 1, (*shape[:axis], update[axis], *shape[axis + 1 :]))
    positions_of_columns = build.iota(length=update[axis], start=0, step=1, dtype=i64)
    positions_of_columns = call.reshape(positions_of_columns, (update[axis], *[1] * (rank - 1 - axis)))
    if call.has(2):
        limit = shape[axis] - update[axis] + 1 if mode == "linear" else _ANY_INDEX
        first = checked(call, call[2], limit, "write_indices")
        positions_of_columns = build.add(
            positions_of_columns, call.reshape(call.cast(first, i64), (update[0], *[1] * (rank - 1)))
        )
    if mode == "circular":
        positions_of_columns = build.mod(positions_of_columns, vector(call, [shape[axis]]))
    positions_of_columns = build.expand(positions_of_columns, shape=update)
    return build.scatter_elements(call[0], positions_of_columns, call[1], axis=axis, reduction="none")


@onnx("MaxUnpool")
def max_unpool(call: Call) -> str:
    """Write elements to their indices and fill the rest with 0; indices refer to the shape that the window
    implies.

    A larger requested shape is filled up with zeros at the end.
    """
    build, shape = call.build, call.shape(0)
    kernel = call.attr_ints("kernel_shape")
    strides, pads, _ = window(call, kernel)
    call.expect_sizes(0)
    call.expect_sizes(1)
    rank, rows = len(kernel), (shape[0], shape[1])
    spatial = [(n - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i] for i, n in enumerate(shape[2:])]
    implied = (*rows, *spatial)
    if call.type(1).shape != call.type(0).shape or any(is_negative(n) for n in spatial):
        raise call.malformed(f"indices {call.type(1)} and the window do not fit {call.type(0)}")
    total = count(implied)
    zeros = build.expand(build.scalar(0.0, call.type(0).dtype), shape=(total,))
    flat = [call.reshape(v, (count(shape),)) for v in (checked(call, call[1], total, "I"), call[0])]
    result = call.reshape(build.scatter_elements(zeros, *flat, axis=0, reduction="none"), implied)
    if not call.has(2):
        return result
    wanted = call.dims(2)
    if len(wanted) != len(implied):
        raise call.malformed(f"an output shape of {len(wanted)} dims, expected {len(implied)}")
    more = [a - b for a, b in zip(wanted, implied, strict=True)]
    if any(is_negative(n) is not False for n in more):
        if call.known(2) is not None:
            raise call.malformed(f"an output shape of {list(wanted)}, expected at least {list(implied)}")
        more = list(call.measured(build.sub(computed.vector(call, 2), build.dims(values=implied))))
    return build.pad(result, low=(0,) * len(implied), high=tuple(more), value=0.0) if any(more) else result


@onnx("Col2Im", since=18)
def col2im(call: Call) -> str:
    """Add the columns of each block [N, C * block, positions] to the block's elements in the padded image."""
    build, dtype = call.build, call.type(0).dtype
    image, block = call.dims(1), call.dims(2, least=1)
    rank = len(image)
    if call.type(0).rank != 3 or rank < 1:
        raise call.malformed(f"operand {call.type(0)}, image of {rank} dims, expected rank 3 and 1 or more")
    strides, pads, dilations = expect_window(call, block, image)
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(image)]
    steps = [floordiv(padded[i] - dilations[i] * (block[i] - 1) - 1, strides[i]) + 1 for i in range(rank)]
    batch, columns, positions_of_columns = call.shape(0)
    block_size, plane = count(block), count(padded)
    channels = floordiv(columns, block_size)
    pairs = ((count(steps), positions_of_columns), (channels * block_size, columns))
    if any(isinstance(a - b, int) and a != b for a, b in pairs) or any(is_negative(n - 1) for n in steps):
        raise call.malformed(f"operand {call.type(0)} does not fit blocks {list(block)} in an image {list(image)}")
    count_elements([n for n in (block_size, count(steps)) if isinstance(n, int)], "the positions of the columns")
    positions = _block_positions(call, padded, [block, dilations], [steps, strides])
    rows = batch * channels
    spread = build.expand(
        call.reshape(positions, (1, block_size * positions_of_columns)), shape=(rows, block_size * positions_of_columns)
    )
    zeros = build.expand(build.scalar(0, dtype), shape=(rows, plane))
    updates = call.reshape(call[0], (rows, block_size * positions_of_columns))
    y = build.scatter_elements(zeros, spread, updates, axis=1, reduction="add")
    y = call.reshape(y, (batch, channels, *padded))
    for i, n in enumerate(image):
        y = call.slice(y, 2 + i, pads[i], pads[i] + n) if pads[i] + pads[rank + i] else y
    return y


def _block_positions(call: Call, padded: list[Size], block_size: list, steps: list) -> str:
    """Return the index of element k of the block at position p in a padded plane, as [k..., p...]; each list is
    (counts, steps).
    """
    build, rank = call.build, len(padded)
    total = ""
    for offset, (counts, strides) in enumerate((block_size, steps)):
        for i in range(rank):
            row = count(padded[i + 1 :])
            line = build.iota(length=counts[i], start=0, step=strides[i] * row, dtype=i64)
            axis = offset * rank + i
            line = call.reshape(line, (*[1] * axis, counts[i], *[1] * (2 * rank - 1 - axis)))
            total = build.add(total, line) if total else line
    return total

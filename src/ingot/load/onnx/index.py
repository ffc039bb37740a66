"""Ops that pick elements by position."""

from __future__ import annotations

from ingot.dtype import i64
from ingot.load.onnx.call import Call, Operand
from ingot.load.onnx.registry import onnx


@onnx("Gather")
def gather(call: Call) -> Operand:
    return call.emit.gather(call[0], call[1], axis=call.attr_axis("axis", 0, call.type(0).rank))


@onnx("GatherElements")
def gather_elements(call: Call) -> Operand:
    return call.emit.gather_elements(call[0], call[1], axis=call.attr_axis("axis", 0, call.type(0).rank))


@onnx("GatherND")
def gather_nd(call: Call) -> Operand:
    """Index tuples of one element, which make it a gather."""
    index = call.shape(1)
    if call.attr_int("batch_dims", 0) != 0 or not index or index[-1] != 1:
        raise call.unsupported(f"batch_dims, or index tuples of more than one element, {call.type(1)}")
    return call.emit.gather(call[0], call.reshape(call[1], index[:-1]), axis=0)


@onnx("OneHot")
def one_hot(call: Call) -> Operand:
    """A comparison of the indices with a count; negative ones count from the end, others match nothing."""
    emit, (depth,) = call.emit, call.sizes(1)
    shape = call.shape(0)
    rank = len(shape) + 1
    axis = call.attr_axis("axis", -1, rank)
    indices = call.cast(call[0], i64)
    size = emit.scalar(depth, i64) if isinstance(depth, int) else emit.dims(values=(depth,))
    indices = emit.where(emit.less(indices, 0), emit.add(indices, size), indices)
    indices = call.reshape(indices, (*shape[:axis], 1, *shape[axis:]))
    count = emit.iota(length=depth, start=0, step=1, dtype=i64)
    hot = emit.equal(indices, call.reshape(count, (depth, *[1] * (rank - 1 - axis))))
    if call.type(2).shape != (2,):
        raise call.malformed(f"values are {call.type(2)}, expected two")
    off, on = (call.reshape(call.slice(call[2], 0, i, i + 1), ()) for i in range(2))
    return emit.where(hot, on, off)

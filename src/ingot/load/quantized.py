"""Quantization of f32 matrices and filters to int8 or int4 with scales, at pack time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.ir.dtype import DType, f32, i4, i8
from ingot.ir.graph import Graph, Node

GROUPS = {i8: 0, i4: 32}  # elements of a row that share a scale; 0 for all of them
GROUP_MULTIPLE = 32  # the group size of a row must be a multiple of this, as panels process this many elements together
_SMALLEST_F16 = 2.0**-14  # the smallest normal number, the last one with full precision


def quantized(graph: Graph, value: str, dtype: DType, before: Node | None = None) -> str:
    """Return the f32 matrix [n, k] that `quantize_groups` and `dequantize` produce; the matrix itself where k is no
    multiple of 32.

    before: the node before which new nodes are inserted; by default, they are appended.
    """
    n, k = graph.type(value).dims
    if k % GROUP_MULTIPLE or not n or not k:
        return value
    group = GROUPS[dtype] or k
    hints = [f"{value}.{dtype}", f"{value}.{dtype}.scale"]
    quantized_pair = graph.add("quantize_groups", [value], hints, before=before, group=group, dtype=dtype).outputs
    name = f"{value}.{dtype}.f32"
    return graph.add("dequantize", list(quantized_pair), name, before=before, axis=1, block=group, dtype=f32).output


def quantized_filter(graph: Graph, value: str, before: Node | None = None) -> str:
    """Return the f32 filter [O, C, ...] dequantized from int8, with one f32 scale per output channel; the largest
    quantized value of a channel is 127 or -127.
    """

    def add(op: str, *operands: str, **attributes: Any) -> str:
        return graph.add(op, list(operands), f"{value}.{i8}.{op}", before=before, **attributes).output

    axes = tuple(range(1, graph.type(value).rank))
    largest = add("reduce_max", add("abs", value), axes=axes, keepdims=False)
    step = graph.add_constant(graph.fresh(f"{value}.{i8}.factor"), np.array(1 / 127, np.float32))
    least = graph.add_constant(graph.fresh(f"{value}.{i8}.least"), np.array(2.0**-120, np.float32))
    scale = add("maximum", add("mul", largest, step), least)
    quantized_values = add("quantize", value, scale, axis=0, block=0, dtype=i8, precision=f32)
    return add("dequantize", quantized_values, scale, axis=0, block=0, dtype=f32)


def grouped(group_of: np.ndarray, size: int) -> np.ndarray | None:
    """Return the order (i32) in which columns of the same group are adjacent, given the group of each column; None
    unless all groups have this size.
    """
    order = np.argsort(group_of, kind="stable").astype(np.int32)
    return order if np.array_equal(group_of[order], np.arange(len(group_of)) // size) else None


def narrowed(scales: np.ndarray) -> np.ndarray:
    """Return the scales as f16, or as f32 where f16 lacks the range."""
    sizes = np.abs(scales[scales != 0])
    if sizes.size and (sizes.min() < _SMALLEST_F16 or sizes.max() > np.finfo(np.float16).max):
        return scales.astype(np.float32)
    return scales.astype(np.float16)

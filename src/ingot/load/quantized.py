"""Matrices that become codes with scales when they are packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.ir.dtype import DType, f32, i4, i8
from ingot.ir.graph import Graph, Node

GROUPS = {i8: 0, i4: 32}  # elements of a row that share a scale; 0 for all of them
LEAST_GROUP = 32  # elements of a row that panels have together
_SMALLEST_F16 = 2.0**-14  # that has all bits


def quantized(graph: Graph, value: str, dtype: DType, before: Node | None = None) -> str:
    """The f32 matrix [n, k] that `quantize_groups`' codes stand for; the matrix where k is no multiple of 32.

    before: where nodes are added, last unless it is given.
    """
    n, k = graph.type(value).dims
    if k % LEAST_GROUP or not n or not k:
        return value
    group = GROUPS[dtype] or k
    hints = [f"{value}.{dtype}", f"{value}.{dtype}.scale"]
    made = graph.add("quantize_groups", [value], hints, before=before, group=group, dtype=dtype).outputs
    name = f"{value}.{dtype}.f32"
    return graph.add("dequantize", list(made), name, before=before, axis=1, block=group, dtype=f32).output


def quantized_filter(graph: Graph, value: str, before: Node | None = None) -> str:
    """The f32 filter [O, C, ...] that codes of int8 stand for, with a scale in f32 for each output channel, whose
    largest code is 127 or -127.
    """

    def add(op: str, *operands: str, **attributes: Any) -> str:
        return graph.add(op, list(operands), f"{value}.{i8}.{op}", before=before, **attributes).output

    axes = tuple(range(1, graph.type(value).rank))
    largest = add("reduce_max", add("abs", value), axes=axes, keepdims=False)
    step = graph.add_constant(graph.fresh(f"{value}.{i8}.factor"), np.array(1 / 127, np.float32))
    least = graph.add_constant(graph.fresh(f"{value}.{i8}.least"), np.array(2.0**-120, np.float32))
    scale = add("maximum", add("mul", largest, step), least)
    codes = add("quantize", value, scale, axis=0, block=0, dtype=i8, precision=f32)
    return add("dequantize", codes, scale, axis=0, block=0, dtype=f32)


def grouped(group_of: np.ndarray, size: int) -> np.ndarray | None:
    """The columns as their groups of one size follow one another, i32, by the group of each; None where they do not
    make such groups.
    """
    together = np.argsort(group_of, kind="stable").astype(np.int32)
    return together if np.array_equal(group_of[together], np.arange(len(group_of)) // size) else None


def narrowed(scales: np.ndarray) -> np.ndarray:
    """Scales as f16, or as they are where f16 lacks the range."""
    sizes = np.abs(scales[scales != 0])
    if sizes.size and (sizes.min() < _SMALLEST_F16 or sizes.max() > np.finfo(np.float16).max):
        return scales.astype(np.float32)
    return scales.astype(np.float16)

"""Matrices as codes of 8 or 4 bits with a scale for each group of a row, made as they are packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.dtype import DType, f16, f32, i4, i8
from ingot.ir import Graph, Node

GROUPED = (i8, i4)
GROUP = 32


def quantised(graph: Graph, value: str, dtype: DType, before: Node | None = None) -> str:
    """The f32 matrix [n, k] that codes of a dtype stand for; the matrix itself where k is no multiple of the group.

    Of 8 bits, the largest code of a group is 127 or -127. Of 4 bits the element of largest magnitude is -8, as in
    llama.cpp's Q4_0, which leaves all sixteen codes in use. Scales are f16. before: where nodes are added, last unless
    it is given.
    """
    n, k = graph.type(value).dims
    if k % GROUP or not n or not k:
        return value

    def add(op: str, *operands: str, **attributes: Any) -> str:
        return graph.add(op, list(operands), f"{value}.{dtype}.{op}", before=before, **attributes).output

    def number(x: float) -> str:
        return graph.add_constant(graph.fresh(f"{value}.{dtype}.factor"), np.array(x, np.float32))

    groups = add("reshape", value, shape=(n, k // GROUP, GROUP))
    if dtype is i8:
        scale = add("mul", add("reduce_max", add("abs", groups), axes=(2,), keepdims=False), number(1 / 127))
    else:
        high, low = (add(f"reduce_{which}", groups, axes=(2,), keepdims=False) for which in ("max", "min"))
        extreme = add("where", add("greater", add("neg", low), high), low, high)
        scale = add("mul", extreme, number(-1 / 8))
    scale = add("cast", scale, dtype=f16)
    attributes = {"axis": 1, "block": GROUP}
    codes = add("quantize", value, scale, **attributes, dtype=dtype, precision=f32)
    return add("dequantize", codes, scale, **attributes, dtype=f32)


def quantised_filter(graph: Graph, value: str, before: Node | None = None) -> str:
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

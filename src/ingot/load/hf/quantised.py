"""Matrices of a folder as codes of 8 or 4 bits with a scale for each group, made as they are packed."""

from __future__ import annotations

from ingot.dtype import DType, f32, i4, i8
from ingot.ir import Graph

GROUPS = {i8: 128, i4: 32}  # elements of a row that share a scale


def quantised(graph: Graph, value: str, dtype: DType) -> str:
    """The f32 matrix [n, k] that `quantize_groups`' codes stand for; the matrix where k is no multiple of 32."""
    n, k = graph.type(value).dims
    if k % min(GROUPS.values()) or not n or not k:
        return value
    group = GROUPS[dtype]
    hints = [f"{value}.{dtype}", f"{value}.{dtype}.scale"]
    codes, scales = graph.add("quantize_groups", [value], hints, group=group, dtype=dtype).outputs
    return graph.add("dequantize", [codes, scales], f"{value}.{dtype}.f32", axis=1, block=group, dtype=f32).output

"""The minimum cost of a step: floating-point operations of multiply-adds, and bytes read and written."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ingot.lower.view import View


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: two for each multiply-add; other operations are not counted. Bytes: each element is counted once."""

    flops: int
    weight_bytes: int
    other_bytes: int


def view_bytes(view: View) -> int:
    """Return the bytes of the elements that a view covers; a broadcast dim counts once."""
    distinct = prod(int(dim) for dim, stride in zip(view.shape, view.strides, strict=True) if stride != 0)
    return view.dtype.nbytes(distinct)

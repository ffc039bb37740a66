"""What a step costs at least: floating-point operations of product-sums, and bytes read and written."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ingot.lower.view import View


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: two for each multiply-add of a product-sum; nothing else counts. The bytes: each element touched once."""

    flops: int
    weight_bytes: int
    other_bytes: int


def view_bytes(view: View) -> int:
    """Bytes of the elements that a view shows, those of a broadcast dim once."""
    distinct = prod(int(dim) for dim, stride in zip(view.shape, view.strides, strict=True) if stride != 0)
    return view.dtype.nbytes(distinct)

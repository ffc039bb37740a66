"""Kernel rules of Fourier transforms, and the factors of their passes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ingot.ir.dim import has_size
from ingot.ir.dtype import DType, f32, f64
from ingot.ir.graph import Node, TensorType
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import both, kernel_rule, of, operand_type
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.view import View, collapse
from ingot.lower.weight_expr import WeightExpr
from ingot.support import abi

LANES = {f32: 16, f64: 1}  # of a vector
_LINES = abi.constant("INGOT_FFT_LINES")
_MAX_IN_BLOCKS = 8192  # numbers of a line; a block of longer lines does not fit in the second-level cache
_PLAIN, _SPLIT, _JOIN, _MIRROR = (abi.constant(f"INGOT_FFT_{name}") for name in ("PLAIN", "SPLIT", "JOIN", "MIRROR"))
_SIDES = (("real", "imaginary"), ("out_real", "out_imaginary"))
_LARGEST = abi.constant("INGOT_FFT_RADIX")


def radices(length: int) -> list[int]:
    """Factor a length into the radices of passes, 4s first: their strides fill all lanes soonest."""
    found: list[int] = []
    for factor in (4, 2, *range(3, math.isqrt(length) + 1, 2)):
        while length % factor == 0:
            found.append(factor)
            length //= factor
    return found if length == 1 else [*found, length]


def is_large(length: int) -> bool:
    """Return whether a length has a prime factor that is too large for a pass."""
    return max(radices(length), default=1) > _LARGEST


def _small_factors(selection: Selection, node: Node) -> str:
    size = _size(selection, node)
    if has_size(size):
        return f"the length is {size}, whose factors only a run knows"
    length = _passed(node, size)
    return f"{length} has a prime factor above {_LARGEST}" if is_large(length) else ""


def _size(selection: Selection, node: Node) -> int:
    """Return the number of elements of a line."""
    size = node.length if node.op.name == "irfft" else operand_type(selection, node).dims[node.axis]
    assert isinstance(size, int)
    return size


def _passed(node: Node, size: int) -> int:
    """Return how many numbers go through the passes: for a real line of even length, one for each two elements."""
    return size if node.op.name == "fft" or size % 2 else size // 2


def _factors(length: int, block: int, lanes: int, roots: int) -> tuple[np.ndarray, int]:
    """Return the angles of the twiddle factors in the order of fft.c, and the index of the roots of a complete line."""
    parts: list[np.ndarray] = []
    count, stride = length, block
    for radix in radices(length):
        if radix % 2:
            parts.append(_angles(np.arange(radix), radix, -1))
        over, count = count, count // radix
        if stride < lanes:
            turns = np.arange(1, radix)[:, None] * np.repeat(np.arange(count), stride)
            parts.append(_angles(turns, over, 1))
        else:
            parts.append(_angles(np.arange(count)[:, None] * np.arange(1, radix), over, -1))
        stride *= radix
    begin = sum(part.size for part in parts)
    if roots:
        parts.append(_angles(np.arange(roots // 2 + 1), roots, -1))
    return np.concatenate([part.reshape(-1) for part in parts] or [np.zeros(1)]), begin


def _angles(turns: np.ndarray, over: int, axis: int) -> np.ndarray:
    """Return the angles 2 pi turns / over, and the same plus a quarter turn, stacked along an axis.

    Their cosines are the real and imaginary parts of exp(-2 pi i turns / over).
    """
    quarters = 4 * (turns % over)
    return np.stack([quarters, (quarters + over) % (4 * over)], axis) * (2 * math.pi / (4 * over))


def _first_elements(view: View, axis: int) -> View:
    """Return a view of the first element of each line along an axis."""
    stops = tuple(1 if i == axis else dim for i, dim in enumerate(view.shape))
    return view.slice((0,) * len(stops), stops, (1,) * len(stops))


def _transform(kernel: str, dtype: DType, op: str) -> None:
    @kernel_rule(op, kernel, both(of(dtype), _small_factors))
    def lower(lowering: Lowering, node: Node) -> None:
        given = [lowering.view(operand) for operand in node.operands if operand is not None]
        results = [lowering.result(name, strided=True) for name in node.outputs]
        size = _size(lowering, node)
        length, form = _passed(node, size), _form(node, size)
        is_paired = length != size
        lines = [_first_elements(view, node.axis) for view in (*given, *results)]
        shape, strides = collapse(lines)
        names = (*_SIDES[0][: len(given)], *_SIDES[1][: len(results)])
        locations = {
            name: (pointer(view), own, view.strides[node.axis])
            for name, view, own in zip(names, (*given, *results), strides, strict=True)
        }
        if is_paired:  # every second element is the imaginary part of the element before it
            real, imaginary = _SIDES[op == "irfft"]
            first, own, step = locations[real]
            locations[real] = first, own, 2 * step
            locations[imaginary] = replace(first, byte_offset=first.byte_offset + step * dtype.itemsize), own, 2 * step
        block = _LINES if math.prod(map(int, shape)) >= _LINES and length <= _MAX_IN_BLOCKS else 1
        angles, roots_offset = _factors(length, block, LANES[dtype], size if is_paired else 0)
        table = WeightExpr(f"{op}.{size}", (TensorType(f64, angles.shape),), data=angles).derive("cos")
        factors = lowering.weight(table if dtype is f64 else table.derive("cast", dtype=dtype))
        is_inverse = op == "irfft" or (op == "fft" and node.inverse)
        fields: dict[str, Field] = {
            "factors": pointer(factors), "rank": len(shape), "shape": shape, "form": form, "inverse": int(is_inverse),
            "length": length, "divisor": size if is_inverse else 1, "block": block, "roots_offset": roots_offset,
            "read": length if form == _SPLIT else given[0].shape[node.axis],
            "written": length if form == _JOIN else results[0].shape[node.axis],
            "radices": tuple(radices(length)), "pass_count": len(radices(length)),
        }  # fmt: skip
        for name, (first, own, step) in locations.items():
            fields |= {name: first, f"{name}_strides": own, f"{name}_step": step}
        work = math.prod(map(int, shape)) * length * (3 + len(radices(length))) * NS.fourier_pass
        lowering.step(kernel, "fft_args", fields, [*given, factors], results, work=work)


def _form(node: Node, size: int) -> int:
    if node.op.name == "fft" or (node.op.name == "rfft" and size % 2):
        return _PLAIN
    return _SPLIT if node.op.name == "rfft" else _MIRROR if size % 2 else _JOIN


for _dtype in (f32, f64):
    for _op in ("fft", "rfft", "irfft"):
        _transform(f"fft_{_dtype}", _dtype, _op)

"""Rules for the bit representation of numbers: the next float, mantissa with exponent, and a hash of elements."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.ir.dtype import bf16, f16, f32, f64, i32, i64, u64
from ingot.load.aten.builder import AtenBuilder, Tensor
from ingot.load.aten.elementwise import BITS
from ingot.load.aten.registry import aten

_FIELDS = {f64: (52, 1023), f32: (23, 127), f16: (10, 15), bf16: (7, 127)}  # bits of a fraction, bias of an exponent


@aten("nextafter.default")
def nextafter(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """Return the float next to x in the direction of y: its bits plus or minus one, with the sign handled
    separately.
    """
    x, y = b.promote(x, y)
    whole, zero = BITS[b.dtype(x).bits], b.scalar(0, b.dtype(x))
    bits, one = b.add("bitcast", x, dtype=whole), b.scalar(1, whole)
    grows = b.add("where", b.add("greater", x, zero), b.add("less", x, y), b.add("less", y, x))
    moved = b.add("where", grows, b.add("add", bits, one), b.add("sub", bits, one))
    smallest = b.scalar(1 - (1 << (b.dtype(x).bits - 1)), whole)
    from_zero = b.add("where", b.add("less", y, zero), smallest, one)
    moved = b.add("bitcast", b.add("where", b.add("equal", x, zero), from_zero, moved), dtype=b.dtype(x))
    is_nan = b.add("logical_or", b.add("isnan", x), b.add("isnan", y))
    moved = b.add("where", is_nan, b.add("add", x, y), moved)
    return b.add("where", b.add("equal", x, y), y, moved)


@aten("frexp.Tensor")
def frexp(b: AtenBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Split x into a mantissa of 1/2 .. 1 and a power of two; zeros, infinities and NaN are returned with the
    power 0.
    """
    dtype = b.dtype(x)
    fraction, bias = _FIELDS[dtype]
    whole = BITS[dtype.bits]
    mask = ((1 << (dtype.bits - 1 - fraction)) - 1) << fraction
    is_small = b.add("less", b.add("abs", x), b.scalar(2.0 ** (1 - bias), dtype))
    scaled = b.add("where", is_small, b.add("mul", x, b.scalar(2.0 ** (fraction + 1), dtype)), x)
    bits = b.add("bitcast", scaled, dtype=whole)
    field = b.add("shift_right", b.add("bitwise_and", bits, b.scalar(mask, whole)), b.scalar(fraction, whole))
    power = b.add("sub", b.cast(field, i32), b.scalar(bias - 1, i32))
    power = b.add("where", is_small, b.add("sub", power, b.scalar(fraction + 1, i32)), power)
    high_bits = b.add("bitwise_and", bits, b.scalar(~mask, whole))
    part = b.add("bitcast", b.add("bitwise_or", high_bits, b.scalar((bias - 1) << fraction, whole)), dtype=dtype)
    has_none = b.add("logical_or", b.add("isnan", x), b.add("isinf", x))
    has_none = b.add("logical_or", has_none, b.add("equal", x, b.scalar(0, dtype)))
    return b.add("where", has_none, x, part), b.add("where", has_none, b.scalar(0, i32), power)


@aten("hash_tensor.default")
def hash_tensor(b: AtenBuilder, x: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Tensor:
    """The exclusive or of elements as integers of 64 bits; a float has the bits of its float64."""
    whole = b.cast(x, f64) if b.dtype(x).kind == "f" else x
    whole = b.add("bitcast", whole, dtype=i64) if b.dtype(whole) in (f64, u64) else b.cast(whole, i64)
    position, one = b.add("iota", length=64, start=0, step=1, dtype=i64), b.scalar(1, i64)
    bits = b.add("bitwise_and", b.add("shift_right", b.reshape(whole, (*b.shape(x), 1)), position), one)
    axes = b.axes(x, list(dim))
    if axes:
        bits = b.add("bitwise_and", b.add("reduce_sum", bits, axes=axes, keepdims=bool(keepdim)), one)
    joined = b.add("reduce_sum", b.add("shift_left", bits, position), axes=(b.rank(bits) - 1,), keepdims=False)
    return b.add("bitcast", joined, dtype=u64)

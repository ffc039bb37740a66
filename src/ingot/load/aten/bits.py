"""Rules for the bit representation of floats: the next float, and mantissa with exponent."""

from __future__ import annotations

from ingot.ir.dtype import bf16, f16, f32, f64, i32
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
    kept = b.add("bitwise_and", bits, b.scalar(~mask, whole))
    part = b.add("bitcast", b.add("bitwise_or", kept, b.scalar((bias - 1) << fraction, whole)), dtype=dtype)
    has_none = b.add("logical_or", b.add("isnan", x), b.add("isinf", x))
    has_none = b.add("logical_or", has_none, b.add("equal", x, b.scalar(0, dtype)))
    return b.add("where", has_none, x, part), b.add("where", has_none, b.scalar(0, i32), power)

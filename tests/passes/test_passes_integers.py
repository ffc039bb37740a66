"""Products and moves of dequantized numbers as those of integers: text in, text out."""

import pytest

from pass_case import Case, check_all_passes, check_pass

CASES: list[Case] = [
    (
        "a product between dequantize and quantize, its scale beside the result's",
        ("multiply_integers", "move_integers", "dce"),
        """
        input x: u8[B, 6]
        weight w: i8[6, 4]
        constant s: f32[] = [0.5]
        constant t: f32[4] = [0.25, 0.5, 1.0, 2.0]
        constant r: f32[] = [0.125]
        constant z: u8[] = [3]
        a = dequantize(x, s, z, axis=0, block=0, dtype=@f32)
        b = dequantize(w, t, axis=1, block=0, dtype=@f32)
        c = matmul(a, b)
        d = relu(c)
        y = quantize(d, r, z, axis=0, block=0, dtype=@u8, precision=@f32)
        output y = y
        """,
        """
        input x: u8[B, 6]
        weight w: i8[6, 4]
        constant z: u8[] = [3]
        constant y.scale: f32[4] = [1.0e+00, 2.0e+00, 4.0e+00, 8.0e+00]
        constant y.one: f32[] = [1.0e+00]
        c.sums = matmul_integer(x, w, none, z, none): i32[B, 4]
        c = dequantize(c.sums, y.scale, axis=1, block=0, dtype=@f32): f32[B, 4]
        d = relu(c): f32[B, 4]
        y = quantize(d, y.one, z, axis=0, block=0, dtype=@u8, precision=@f32): u8[B, 4]
        output y = y
        """,
    ),
    (
        "a bias in steps of the sums is added to them",
        ("multiply_integers", "dce"),
        """
        input x: u8[B, 3, 5, 5]
        weight w: i8[4, 3, 3, 3]
        weight c: i32[4]
        constant s: f32[] = [0.5]
        constant t: f32[4] = [0.25, 0.5, 1.0, 2.0]
        constant r: f32[] = [0.125]
        constant z: u8[] = [3]
        constant u: f32[4] = [0.125, 0.25, 0.5, 1.0]
        a = dequantize(x, s, z, axis=0, block=0, dtype=@f32)
        b = dequantize(w, t, axis=0, block=0, dtype=@f32)
        d = dequantize(c, u, axis=0, block=0, dtype=@f32)
        y = conv(a, b, d, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], groups=1)
        output y = y
        """,
        """
        input x: u8[B, 3, 5, 5]
        weight w: i8[4, 3, 3, 3]
        weight c: i32[4]
        constant z: u8[] = [3]
        constant y.scale: f32[4] = [1.25e-01, 2.5e-01, 5.0e-01, 1.0e+00]
        y.sums = conv_integer(x, w, c, z, none, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], groups=1)
        y = dequantize(y.sums, y.scale, axis=1, block=0, dtype=@f32): f32[B, 4, 5, 5]
        output y = y
        """,
    ),
    (
        "bytes are moved, and stay where steps are equal",
        ("move_integers", "dce"),
        """
        input x: u8[B, 6, 4]
        constant s: f32[] = [0.5]
        constant t: f32[4] = [0.25, 0.5, 1.0, 2.0]
        constant r: f32[] = [0.125]
        constant z: u8[] = [3]
        a = dequantize(x, s, z, axis=0, block=0, dtype=@f32)
        b = permute(a, axes=[0, 2, 1])
        y = quantize(b, s, z, axis=0, block=0, dtype=@u8, precision=@f32)
        output y = y
        """,
        """
        input x: u8[B, 6, 4]
        b.quantized = permute(x, axes=[0, 2, 1]): u8[B, 4, 6]
        output y = b.quantized
        """,
    ),
    (
        "a scale for each channel goes into the sums before and behind",
        ("multiply_integers", "move_integers", "dce"),
        """
        input x: u8[B, 2, 5, 5]
        weight v: i8[3, 2, 1, 1]
        weight w: i8[3, 1, 3, 3]
        constant s: f32[] = [0.5]
        constant t: f32[3] = [0.25, 0.5, 1.0]
        constant r: f32[3] = [0.125, 0.5, 2.0]
        constant z: u8[3] = [3, 3, 3]
        a = dequantize(x, s, axis=0, block=0, dtype=@f32)
        b = dequantize(v, t, axis=0, block=0, dtype=@f32)
        c = conv(a, b, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        d = relu(c)
        e = quantize(d, r, z, axis=1, block=0, dtype=@u8, precision=@f32)
        f = dequantize(e, r, z, axis=1, block=0, dtype=@f32)
        g = dequantize(w, t, axis=0, block=0, dtype=@f32)
        y = conv(f, g, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=3)
        output y = y
        """,
        """
        input x: u8[B, 2, 5, 5]
        weight v: i8[3, 2, 1, 1]
        weight w: i8[3, 1, 3, 3]
        constant e.zero: u8[] = [3]
        constant e.scale: f32[3] = [1.0e+00, 5.0e-01, 2.5e-01]
        constant e.one: f32[] = [1.0e+00]
        constant f.zero: u8[] = [3]
        constant y.scale: f32[3] = [3.125e-02, 2.5e-01, 2.0e+00]
        c.sums = conv_integer(x, v, none, none, none, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        c = dequantize(c.sums, e.scale, axis=1, block=0, dtype=@f32): f32[B, 3, 5, 5]
        d = relu(c): f32[B, 3, 5, 5]
        e = quantize(d, e.one, e.zero, axis=1, block=0, dtype=@u8, precision=@f32): u8[B, 3, 5, 5]
        y.sums = conv_integer(e, w, none, f.zero, none, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=3)
        y = dequantize(y.sums, y.scale, axis=1, block=0, dtype=@f32): f32[B, 3, 3, 3]
        output y = y
        """,
    ),
    (
        "sums that are cast and scaled are dequantized",
        ("multiply_integers", "dce"),
        """
        input x: u8[B, 6]
        input q: f32[]
        weight w: i8[6, 4]
        a = matmul_integer(x, w, transpose_b=false)
        b = cast(a, dtype=@f32)
        y = mul(b, q)
        output y = y
        """,
        """
        input x: u8[B, 6]
        input q: f32[]
        weight w: i8[6, 4]
        a = matmul_integer(x, w): i32[B, 4]
        y = dequantize(a, q, axis=0, block=0, dtype=@f32): f32[B, 4]
        output y = y
        """,
    ),
    (
        "other steps are rounded anew",
        ("move_integers",),
        """
        input x: u8[B, 6]
        constant s: f32[] = [0.5]
        constant t: f32[4] = [0.25, 0.5, 1.0, 2.0]
        constant r: f32[] = [0.125]
        constant z: u8[] = [3]
        a = dequantize(x, s, z, axis=0, block=0, dtype=@f32)
        y = quantize(a, r, z, axis=0, block=0, dtype=@u8, precision=@f32)
        output y = y
        """,
        None,
    ),
]


@pytest.mark.parametrize(("name", "passes", "before", "after"), CASES, ids=[case[0] for case in CASES])
def test_pass(name: str, passes: tuple[str, ...], before: str, after: str | None) -> None:
    check_pass(passes, before, after)


@pytest.mark.parametrize(("name", "passes", "before", "after"), CASES, ids=[case[0] for case in CASES])
def test_all_passes(name: str, passes: tuple[str, ...], before: str, after: str | None) -> None:
    check_all_passes(before)

"""Quantized matrices with a column order (act-order): text in, text out."""

import pytest

from pass_case import Case, check_all_passes, check_pass

CASES: list[Case] = [
    (
        "rows are ordered once for all that read them, which become one product",
        ("order_columns", "cse", "dce", "merge_matmul"),
        """
        input x: f32[B, S, 4]
        weight c1: i8[2, 4]
        weight s1: f16[2, 2]
        weight c2: i8[3, 4]
        weight s2: f16[3, 2]
        constant order: i32[4] = [2, 0, 3, 1]
        constant places1: i32[4] = [1, 3, 0, 2]
        constant places2: i32[4] = [1, 3, 0, 2]
        g1 = gather(c1, order, axis=1)
        d1 = dequantize(g1, s1, axis=1, block=2, dtype=@f32)
        w1 = gather(d1, places1, axis=1)
        g2 = gather(c2, order, axis=1)
        d2 = dequantize(g2, s2, axis=1, block=2, dtype=@f32)
        w2 = gather(d2, places2, axis=1)
        y1 = matmul(x, w1, transpose_b=true)
        y2 = matmul(x, w2, transpose_b=true)
        y = concat(y2, y1, axis=2)
        output y = y
        """,
        """
        input x: f32[B, S, 4]
        weight c1: i8[2, 4]
        weight s1: f16[2, 2]
        weight c2: i8[3, 4]
        weight s2: f16[3, 2]
        constant order: i32[4] = [2, 0, 3, 1]
        g1 = gather(c1, order, axis=1)
        d1 = dequantize(g1, s1, axis=1, block=2, dtype=@f32)
        g2 = gather(c2, order, axis=1)
        d2 = dequantize(g2, s2, axis=1, block=2, dtype=@f32)
        x.ordered = gather(x, order, axis=2)
        d1.early.merged = concat(d1, d2, axis=0)
        y1.merged = matmul(x.ordered, d1.early.merged, transpose_b=true)
        y1 = slice(y1.merged, starts=[0, 0, 0], stops=[B, S, 2], steps=[1, 1, 1])
        y2 = slice(y1.merged, starts=[0, 0, 2], stops=[B, S, 5], steps=[1, 1, 1])
        y = concat(y2, y1, axis=2)
        output y = y
        """,
    ),
    (
        "not ordered: floats, columns taken twice or left out, rows, places that a run computes",
        ("order_columns",),
        """
        input x: f32[2, 3]
        input p: i32[3]
        weight c: i8[3, 3]
        weight s: f16[3, 1]
        weight w: f32[3, 3]
        constant places: i32[3] = [1, 2, 0]
        constant twice: i32[3] = [1, 1, 0]
        constant few: i32[2] = [1, 0]
        d = dequantize(c, s, axis=1, block=3, dtype=@f32)
        a = gather(w, places, axis=1)
        b = gather(d, twice, axis=1)
        e = gather(d, few, axis=1)
        f = gather(d, places, axis=0)
        h = gather(d, p, axis=1)
        ya = matmul(x, a, transpose_b=true)
        yb = matmul(x, b, transpose_b=true)
        z = slice(x, starts=[0, 0], stops=[2, 2], steps=[1, 1])
        ye = matmul(z, e, transpose_b=true)
        yf = matmul(x, f, transpose_b=true)
        yh = matmul(x, h, transpose_b=true)
        output ya = ya
        output yb = yb
        output ye = ye
        output yf = yf
        output yh = yh
        """,
        None,
    ),
    (
        "not ordered: a table that rows are taken of, an output, a matrix of columns, one times itself",
        ("order_columns",),
        """
        input x: f32[2, 3]
        input ids: i32[2]
        weight c: i8[3, 3]
        weight s: f16[3, 1]
        constant p1: i32[3] = [1, 2, 0]
        constant p2: i32[3] = [2, 1, 0]
        constant p3: i32[3] = [0, 2, 1]
        constant p4: i32[3] = [2, 0, 1]
        d = dequantize(c, s, axis=1, block=3, dtype=@f32)
        a = gather(d, p1, axis=1)
        b = gather(d, p2, axis=1)
        e = gather(d, p3, axis=1)
        f = gather(d, p4, axis=1)
        rows = gather(a, ids, axis=0)
        ya = matmul(x, a, transpose_b=true)
        yb = matmul(x, b, transpose_b=true)
        ye = matmul(x, e)
        yf = matmul(f, f, transpose_b=true)
        output rows = rows
        output ya = ya
        output b = b
        output yb = yb
        output ye = ye
        output yf = yf
        """,
        None,
    ),
]


@pytest.mark.parametrize(("name", "passes", "before", "after"), CASES, ids=[case[0] for case in CASES])
def test_order_columns(name: str, passes: tuple[str, ...], before: str, after: str | None) -> None:
    check_pass(passes, before, after)


@pytest.mark.parametrize("before", [case[2] for case in CASES], ids=[case[0] for case in CASES])
def test_all_passes_keep_the_numbers(before: str) -> None:
    check_all_passes(before)

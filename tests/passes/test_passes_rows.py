"""Rows that nothing reads are not computed: text in, text out."""

import pytest

from pass_case import Case, check_all_passes, check_pass

CASES: list[Case] = [
    (
        "a layer of which one row is wanted; what others read stays whole",
        ("take_rows", "cse", "dce"),
        """
        input x: f32[6, 4]
        input take: i32[1]
        weight w: f32[8, 4]
        weight v: f32[4, 8]
        weight g: f32[4]
        n = rms_norm(x, g, eps=1e-05)
        m = matmul(n, w, transpose_b=true)
        s = silu(m)
        d = matmul(s, v, transpose_b=true)
        r = add(d, x)
        y = gather(r, take, axis=0)
        output y = y
        output n = n
        """,
        """
        input x: f32[6, 4]
        input take: i32[1]
        weight w: f32[8, 4]
        weight v: f32[4, 8]
        weight g: f32[4]
        n = rms_norm(x, g, eps=1e-05)
        n.gathered = gather(n, take, axis=0)
        m = matmul(n.gathered, w, transpose_b=true)
        s = silu(m)
        d = matmul(s, v, transpose_b=true)
        x.gathered = gather(x, take, axis=0)
        r = add(d, x.gathered)
        output y = r
        output n = n
        """,
    ),
    (
        "heads, and a broadcast row",
        ("take_rows", "cse", "dce"),
        """
        input x: f32[6, 12]
        input row: f32[1, 4]
        input take: i32[2]
        a = slice(x, starts=[0, 4], stops=[6, 8], steps=[1, 1])
        b = mul(a, row)
        c = reshape(b, shape=[6, 2, 2])
        y = gather(c, take, axis=0)
        output y = y
        """,
        """
        input x: f32[6, 12]
        input row: f32[1, 4]
        input take: i32[2]
        x.gathered = gather(x, take, axis=0)
        a = slice(x.gathered, starts=[0, 4], stops=[2, 8], steps=[1, 1])
        b = mul(a, row)
        c = reshape(b, shape=[2, 2, 2])
        output y = c
        """,
    ),
    (
        "products with selected matrices",
        ("take_rows", "cse", "dce"),
        """
        input x: f32[6, 2, 4]
        input chosen: i64[6, 2]
        input take: i32[1]
        weight w: f32[3, 5, 4]
        p = expert_matmul(x, chosen, w)
        y = gather(p, take, axis=0)
        output y = y
        """,
        """
        input x: f32[6, 2, 4]
        input chosen: i64[6, 2]
        input take: i32[1]
        weight w: f32[3, 5, 4]
        x.gathered = gather(x, take, axis=0)
        chosen.gathered = gather(chosen, take, axis=0)
        p = expert_matmul(x.gathered, chosen.gathered, w)
        output y = p
        """,
    ),
    (
        "as many rows as there are, another axis, rows that are mixed",
        ("take_rows",),
        """
        input x: f32[4, 4]
        input all: i32[4]
        input one: i32[1]
        a = relu(x)
        b = gather(a, all, axis=0)
        c = exp(x)
        d = gather(c, one, axis=1)
        e = softmax(x, axis=0)
        f = gather(e, one, axis=0)
        g = matmul(x, x, transpose_a=true)
        h = gather(g, one, axis=0)
        output b = b
        output d = d
        output f = f
        output h = h
        """,
        None,
    ),
    (
        "one row of ordered columns",
        ("take_rows",),
        """
        input x: f32[6, 3]
        input take: i32[1]
        constant order: i32[3] = [2, 0, 1]
        a = relu(x)
        b = gather(a, order, axis=1)
        y = gather(b, take, axis=0)
        output y = y
        """,
        """
        input x: f32[6, 3]
        input take: i32[1]
        constant order: i32[3] = [2, 0, 1]
        x.gathered = gather(x, take, axis=0)
        a = relu(x.gathered)
        b = gather(a, order, axis=1)
        output y = b
        """,
    ),
    (
        "rows of what has no operands",
        ("take_rows",),
        """
        input one: i32[1]
        a = iota(length=4, start=0, step=1, dtype=@i64)
        b = gather(a, one, axis=0)
        output b = b
        """,
        None,
    ),
    (
        "a table of weights that is cast",
        ("take_rows",),
        """
        weight table: f16[9, 4]
        input ids: i32[3]
        a = cast(table, dtype=@f32)
        b = gather(a, ids, axis=0)
        output b = b
        """,
        None,
    ),
]


@pytest.mark.parametrize(("passes", "before", "after"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_pass(passes, before, after, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK", "2")
    check_pass(passes, before, after)


@pytest.mark.parametrize("before", [c[2] for c in CASES], ids=[c[0] for c in CASES])
def test_all_passes(before, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK", "2")
    check_all_passes(before)

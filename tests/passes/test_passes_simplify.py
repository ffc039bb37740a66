"""Identities, equal nodes, absorption and folding: text in, text out.

An expected text of None means that the pass must leave the graph alone: a look-alike, or something it refuses.
"""

import pytest

from ingot.ir.text import dump
from ingot.passes import optimize
from pass_case import Case, check_all_passes, check_pass, read

CASES: list[Case] = [
    (
        "powers of one and two, of other dtypes too",
        ("identity", "dce"),
        """
        input x: f32[B, 6]
        input i: i64[B]
        constant one: f32[] = [1.0]
        constant two: f32[1] = [2.0]
        constant column: f32[1, 1, 1] = [2.0]
        constant pair: i64[] = [2]
        a = pow(x, one)
        b = pow(a, two)
        c = pow(x, column)
        d = pow(i, pair)
        output b = b
        output c = c
        output d = d
        """,
        """
        input x: f32[B, 6]
        input i: i64[B]
        constant column: f32[1, 1, 1] = [2.0]
        b = mul(x, x)
        c = pow(x, column)
        d = mul(i, i)
        output b = b
        output c = c
        output d = d
        """,
    ),
    (
        "dead nodes, weights and constants",
        ("dce",),
        """
        input x: f32[3]
        weight w: f32[3]
        constant c: f32[] = [1.0]
        a = add(x, w)
        b = mul(a, c)
        y = relu(x)
        output y = y
        """,
        """
        input x: f32[3]
        y = relu(x)
        output y = y
        """,
    ),
    (
        "reshape chains and reshape to the same shape",
        ("identity", "dce"),
        """
        input x: f32[B, 6]
        a = reshape(x, shape=[B, 2, 3])
        b = reshape(a, shape=[B, 3, 2])
        c = reshape(b, shape=[B, 3, 2])
        output y = c
        """,
        """
        input x: f32[B, 6]
        b = reshape(x, shape=[B, 3, 2])
        output y = b
        """,
    ),
    (
        "permute chains",
        ("identity", "dce"),
        """
        input x: f32[2, 3, 4]
        a = permute(x, axes=[2, 0, 1])
        b = permute(a, axes=[1, 2, 0])
        c = permute(a, axes=[2, 1, 0])
        output b = b
        output c = c
        """,
        """
        input x: f32[2, 3, 4]
        c = permute(x, axes=[1, 0, 2])
        output b = x
        output c = c
        """,
    ),
    (
        "a permute between merging and splitting leading dims, a slice of a concat",
        ("identity", "dce"),
        """
        input x: f32[B, 4, S, 8]
        input z: f32[B, 4, 3, 8]
        a = reshape(x, shape=[4*B, S, 8])
        b = permute(a, axes=[0, 2, 1])
        c = reshape(b, shape=[B, 4, 8, S])
        d = reshape(b, shape=[B*2, 2, 8, S])
        e = concat(x, z, axis=2)
        f = slice(e, starts=[0, 0, S, 0], stops=[B, 4, S+3, 8], steps=[1, 1, 1, 1])
        g = slice(e, starts=[0, 0, 1, 0], stops=[B, 4, S, 8], steps=[1, 1, 1, 1])
        output c = c
        output d = d
        output f = f
        output g = g
        """,
        """
        input x: f32[B, 4, S, 8]
        input z: f32[B, 4, 3, 8]
        a = reshape(x, shape=[4*B, S, 8])
        b = permute(a, axes=[0, 2, 1])
        c = permute(x, axes=[0, 1, 3, 2])
        d = reshape(b, shape=[B*2, 2, 8, S])
        e = concat(x, z, axis=2)
        g = slice(e, starts=[0, 0, 1, 0], stops=[B, 4, S, 8], steps=[1, 1, 1, 1])
        output c = c
        output d = d
        output f = z
        output g = g
        """,
    ),
    (
        "whole slices and slices of slices",
        ("identity", "dce"),
        """
        input x: f32[S, 9]
        a = slice(x, starts=[0, 0], stops=[S, 9], steps=[1, 1])
        b = slice(a, starts=[0, 2], stops=[S, 8], steps=[1, 1])
        c = slice(b, starts=[0, 1], stops=[S, 4], steps=[1, 1])
        output y = c
        """,
        """
        input x: f32[S, 9]
        c = slice(x, starts=[0, 3], stops=[S, 6], steps=[1, 1])
        output y = c
        """,
    ),
    (
        "a strided slice of a strided slice stays",
        ("identity", "dce"),
        """
        input x: f32[9]
        b = slice(x, starts=[0], stops=[9], steps=[2])
        c = slice(b, starts=[4], stops=[-1], steps=[-1])
        output y = c
        """,
        None,
    ),
    (
        "casts: to itself, there and back through a wider type",
        ("identity", "dce"),
        """
        input x: i32[3]
        a = cast(x, dtype=@i32)
        b = cast(a, dtype=@i64)
        c = cast(b, dtype=@i32)
        d = cast(b, dtype=@f64)
        output c = c
        output d = d
        """,
        """
        input x: i32[3]
        d = cast(x, dtype=@f64)
        output c = x
        output d = d
        """,
    ),
    (
        "casts through a narrower type round",
        ("identity", "dce"),
        """
        input x: f32[3]
        input n: i64[3]
        a = cast(x, dtype=@i64)
        b = cast(a, dtype=@f32)
        c = cast(n, dtype=@f32)
        d = cast(c, dtype=@i64)
        output b = b
        output d = d
        """,
        None,
    ),
    (
        "neutral operands",
        ("identity", "dce"),
        """
        input x: f32[2, 3]
        constant zero: f32[1] = [0.0]
        constant one: f32[] = [1.0]
        a = add(zero, x)
        b = mul(a, one)
        c = sub(b, zero)
        d = div(c, one)
        e = pow(d, one)
        f = concat(e, axis=0)
        g = pad(f, low=[0, 0], high=[0, 0], value=0.0)
        h = expand(g, shape=[2, 3])
        y = relu(h)
        output y = y
        """,
        """
        input x: f32[2, 3]
        y = relu(x)
        output y = y
        """,
    ),
    (
        "a neutral operand that broadcasts, and one on the wrong side",
        ("identity", "dce"),
        """
        input x: f32[3]
        constant zeros: f32[2, 1] = [0.0, 0.0]
        constant zero: f32[1, 1] = [0.0]
        constant one: f32[] = [1.0]
        a = add(x, zeros)
        b = sub(zero, x)
        c = div(one, x)
        d = add(x, zero)
        output a = a
        output b = b
        output c = c
        output d = d
        """,
        None,
    ),
    (
        "keepdims restored, expand before a broadcast dropped, conditions that always hold",
        ("identity", "dce"),
        """
        input x: f32[2, 3]
        input b: f32[3]
        input m: bool[2, 3]
        constant yes: bool[1] = [true]
        a = reduce_mean(x, axes=[1], keepdims=false)
        k = reshape(a, shape=[2, 1])
        e = expand(b, shape=[2, 3])
        s = add(k, e)
        n = logical_not(m)
        l = logical_not(n)
        c = logical_and(yes, l)
        y = where(c, s, x)
        output y = y
        """,
        """
        input x: f32[2, 3]
        input b: f32[3]
        input m: bool[2, 3]
        k = reduce_mean(x, axes=[1], keepdims=true)
        s = add(k, b)
        y = where(m, s, x)
        output y = y
        """,
    ),
    (
        "consecutive rows are a slice, others are not",
        ("identity", "dce"),
        """
        weight table: f32[9, 4]
        constant rows: i64[1, 3] = [2, 3, 4]
        constant jumps: i64[2] = [2, 4]
        a = gather(table, rows, axis=0)
        b = gather(table, jumps, axis=0)
        output a = a
        output b = b
        """,
        """
        weight table: f32[9, 4]
        constant jumps: i64[2] = [2, 4]
        a.rows = slice(table, starts=[2, 0], stops=[5, 4], steps=[1, 1])
        a = reshape(a.rows, shape=[1, 3, 4])
        b = gather(table, jumps, axis=0)
        output a = a
        output b = b
        """,
    ),
    (
        "operands in canonical order: product, activation, weight, constant",
        ("identity",),
        """
        input x: f32[2, 3]
        weight w: f32[3, 3]
        weight b: f32[3]
        constant c: f32[] = [2.0]
        m = matmul(x, w)
        a = add(b, m)
        r = add(x, m)
        s = mul(c, r)
        d = sub(c, s)
        output a = a
        output d = d
        """,
        """
        input x: f32[2, 3]
        weight w: f32[3, 3]
        weight b: f32[3]
        constant c: f32[] = [2.0]
        m = matmul(x, w)
        a = add(m, b)
        r = add(m, x)
        s = mul(r, c)
        d = sub(c, s)
        output a = a
        output d = d
        """,
    ),
    (
        "equal nodes and constants, either way round",
        ("cse",),
        """
        input x: f32[2, 3]
        input z: f32[2, 3]
        constant c: f32[] = [2.0]
        constant d: f32[] = [2.0]
        a = add(x, z)
        b = add(z, x)
        e = mul(a, c)
        f = mul(b, d)
        output e = e
        output f = f
        """,
        """
        input x: f32[2, 3]
        input z: f32[2, 3]
        constant c: f32[] = [2.0]
        a = add(x, z)
        e = mul(a, c)
        output e = e
        output f = e
        """,
    ),
    (
        "not equal: order, attributes, sign of zero, shape of a constant",
        ("cse",),
        """
        input x: f32[2, 3]
        input z: f32[2, 3]
        constant c: f32[] = [0.0]
        constant d: f32[] = [-0.0]
        constant e: f32[1] = [0.0]
        a = sub(x, z)
        b = sub(z, x)
        f = softmax(x, axis=0)
        g = softmax(x, axis=1)
        h = add(x, c)
        i = add(x, d)
        j = add(x, e)
        output a = a
        output b = b
        output f = f
        output g = g
        output h = h
        output i = i
        output j = j
        """,
        None,
    ),
    (
        "transposes into matmul",
        ("absorb_transpose", "dce"),
        """
        input x: f32[2, 5, 3]
        input z: f32[2, 3, 5]
        weight w: f32[4, 3]
        wt = permute(w, axes=[1, 0])
        zt = permute(z, axes=[0, 2, 1])
        a = matmul(x, wt)
        b = matmul(zt, wt)
        output a = a
        output b = b
        """,
        """
        input x: f32[2, 5, 3]
        input z: f32[2, 3, 5]
        weight w: f32[4, 3]
        a = matmul(x, w, transpose_b=true)
        b = matmul(z, w, transpose_a=true, transpose_b=true)
        output a = a
        output b = b
        """,
    ),
    (
        "a transpose that is undone",
        ("absorb_transpose", "dce"),
        """
        input x: f32[2, 3]
        weight w: f32[3, 4]
        wt = permute(w, axes=[1, 0])
        a = matmul(x, wt, transpose_b=true)
        output a = a
        """,
        """
        input x: f32[2, 3]
        weight w: f32[3, 4]
        a = matmul(x, w)
        output a = a
        """,
    ),
    (
        "permutes of other dims are not transposes",
        ("absorb_transpose",),
        """
        input x: f32[3, 3, 3]
        input z: f32[3, 3, 3, 3]
        a = permute(x, axes=[1, 0, 2])
        b = permute(x, axes=[2, 1, 0])
        c = permute(x, axes=[2, 0, 1])
        d = permute(z, axes=[0, 2, 3, 1])
        e = permute(z, axes=[1, 0, 3, 2])
        p = matmul(x, a)
        q = matmul(b, x)
        r = matmul(x, c)
        s = matmul(z, d)
        t = matmul(z, e)
        output p = p
        output q = q
        output r = r
        output s = s
        output t = t
        """,
        None,
    ),
    (
        "factors of operands, through views, and of the result",
        ("absorb_scale", "dce"),
        """
        input x: f32[2, 6]
        input z: f32[6, 3]
        constant two: f32[] = [2.0]
        constant four: f32[1] = [4.0]
        a = mul(two, x)
        b = reshape(a, shape=[3, 4])
        c = permute(b, axes=[1, 0])
        e = div(z, four)
        f = reshape(e, shape=[3, 6])
        g = matmul(c, f)
        y = mul(g, four)
        output y = y
        """,
        """
        input x: f32[2, 6]
        input z: f32[6, 3]
        b = reshape(x, shape=[3, 4])
        c = permute(b, axes=[1, 0])
        f = reshape(z, shape=[3, 6])
        y = matmul(c, f, scale=2.0)
        output y = y
        """,
    ),
    (
        "a factor between two matmuls goes into the second",
        ("absorb_scale", "dce"),
        """
        input x: f32[2, 3]
        input z: f32[2, 3]
        weight w: f32[3, 3]
        constant two: f32[] = [2.0]
        a = matmul(x, w)
        b = mul(a, two)
        y = matmul(b, z, transpose_b=true)
        output y = y
        """,
        """
        input x: f32[2, 3]
        input z: f32[2, 3]
        weight w: f32[3, 3]
        a = matmul(x, w)
        y = matmul(a, z, transpose_b=true, scale=2.0)
        output y = y
        """,
    ),
    (
        "no factor: a vector, zero as divisor, a broadcast, a second reader, an output, integers",
        ("absorb_scale",),
        """
        input x: f32[3, 3]
        input v: f32[3]
        input n: i64[3, 3]
        constant c: f32[3] = [1.0, 2.0, 3.0]
        constant two: f32[1, 1] = [2.0]
        constant zero: f32[] = [0.0]
        constant three: i64[] = [3]
        a = mul(x, c)
        b = matmul(a, x)
        d = div(b, zero)
        e = mul(v, two)
        f = matmul(e, x)
        g = matmul(x, x)
        h = mul(g, two)
        i = relu(g)
        j = mul(n, three)
        k = matmul(j, n)
        output d = d
        output f = f
        output h = h
        output i = i
        output k = k
        """,
        None,
    ),
    (
        "folding",
        ("fold", "dce"),
        """
        input x: f32[2, 2]
        constant c: f32[] = [4.0]
        constant t: f32[2, 3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        weight ids: i64[4]
        a = sqrt(c)
        i = iota(length=2, start=0, step=1, dtype=@i64)
        d = gather(t, i, axis=1)
        e = mul(d, a)
        s = dims(values=[2, 3])
        f = cast(s, dtype=@f32)
        g = mul(x, e)
        y = add(g, f)
        output y = y
        """,
        """
        input x: f32[2, 2]
        constant e: f32[2, 2] = [2.0, 4.0, 8.0, 10.0]
        constant f: f32[2] = [2.0, 3.0]
        g = mul(x, e)
        y = add(g, f)
        output y = y
        """,
    ),
    (
        "folding leaves symbolic values, results over the budget, and layouts of weights",
        ("fold",),
        """
        input x: f32[S, 4]
        weight w: f32[4, 3]
        weight v: f32[4, 3]
        constant one: f32[1] = [1.0]
        i = iota(length=S, start=0, step=1, dtype=@i64)
        d = dims(values=[S])
        big = expand(one, shape=[600, 600])
        t = permute(w, axes=[1, 0])
        c = concat(w, v, axis=1)
        r = reshape(w, shape=[2, 6])
        output i = i
        output d = d
        output big = big
        output t = t
        output c = c
        output r = r
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


def test_folding_counts_what_it_reads():
    """Views at their full size, and operands in addition to results; references that need memory of their own are not
    called.
    """
    text = """
        constant one: f32[1, 1] = [1.0]
        constant image: f32[1, 1, 1] = [1.0]
        wide = expand(one, shape=[1048576, 1048576])
        total = reduce_sum(wide, axes=[0, 1], keepdims=false)
        pool = max_pool(image, kernel=[1], strides=[1073741824], pads=[536870912, 536870912], dilations=[1])
        output total = total
        output pool = pool
        """
    graph = read(text)
    optimize(graph, ("fold",))
    assert dump(graph) == dump(read(text))

"""Recognition of attention; folding of batch norm; merging of matmuls; sinking of reshapes: text in, text out.

An expected text of None means that the pass must leave the graph alone: a look-alike, or something it refuses.
"""

import pytest

from pass_case import Case, check_all_passes, check_pass

CASES: list[Case] = [
    (
        "attention, rank 4, the key transposed by a general permute, a bool choice",
        ("fuse_attention", "identity", "dce"),
        """
        input q: f32[B, 2, S, 4]
        input k: f32[B, T, 2, 4]
        input v: f32[B, 2, T, 3]
        input m: bool[S, T]
        constant ninf: f32[] = [-inf]
        kt = permute(k, axes=[0, 2, 3, 1])
        s = matmul(q, kt, scale=0.5)
        w = where(m, s, ninf)
        p = softmax(w, axis=3)
        y = matmul(p, v)
        output y = y
        """,
        """
        input q: f32[B, 2, S, 4]
        input k: f32[B, T, 2, 4]
        input v: f32[B, 2, T, 3]
        input m: bool[S, T]
        kt.permuted = permute(k, axes=[0, 2, 1, 3])
        y = attention(q, kt.permuted, v, m, scale=0.5, safe=false)
        output y = y
        """,
    ),
    (
        "attention, weights that a step drops",
        ("fuse_attention", "dce"),
        """
        input q: f32[2, 1, 5, 4]
        input k: f32[2, 1, 7, 4]
        input v: f32[2, 1, 7, 3]
        input step: f64[]
        s = matmul(q, k, transpose_b=true, scale=0.5)
        p = softmax(s, axis=3)
        w = dropout(p, step, none, rate=0.3, seed=9, stream=2)
        y = matmul(w, v)
        output y = y
        """,
        """
        input q: f32[2, 1, 5, 4]
        input k: f32[2, 1, 7, 4]
        input v: f32[2, 1, 7, 3]
        input step: f64[]
        y = attention_dropout(q, k, v, none, step, none, safe=false, seed=9, stream=2, scale=0.5, rate=0.3)
        output y = y
        """,
    ),
    (
        "attention, rank 3, an added mask and a fill",
        ("fuse_attention", "dce"),
        """
        input q: f32[2, 5, 4]
        input k: f32[2, 7, 4]
        input v: f32[2, 7, 3]
        input m: bool[7]
        input a: f32[2, 1, 7]
        constant low: f32[] = [-1e+30]
        s = matmul(q, k, transpose_b=true)
        t = add(a, s)
        w = where(m, low, t)
        p = softmax(w, axis=2)
        y = matmul(p, v)
        output y = y
        """,
        """
        input q: f32[2, 5, 4]
        input k: f32[2, 7, 4]
        input v: f32[2, 7, 3]
        input m: bool[7]
        input a: f32[2, 1, 7]
        constant masked: f32[] = [-1e+30]
        m.mask = where(m, masked, a)
        q.heads = reshape(q, shape=[2, 1, 5, 4])
        k.heads = reshape(k, shape=[2, 1, 7, 4])
        v.heads = reshape(v, shape=[2, 1, 7, 3])
        m.mask.heads = reshape(m.mask, shape=[2, 1, 1, 7])
        y.attention = attention(q.heads, k.heads, v.heads, m.mask.heads, scale=1.0, safe=false)
        y = reshape(y.attention, shape=[2, 5, 3])
        output y = y
        """,
    ),
    (
        "attention that sets the NaN of rows of nothing to zero, or something else",
        ("fuse_attention", "dce"),
        """
        input q: f32[2, 2, 5, 4]
        input k: f32[2, 2, 7, 4]
        input m: f32[5, 7]
        constant zero: f32[] = [0.0]
        constant one: f32[] = [1.0]
        s = matmul(q, k, transpose_b=true)
        t = add(s, m)
        p = softmax(t, axis=3)
        n = isnan(p)
        w = where(n, zero, p)
        y = matmul(w, k)
        s2 = matmul(k, q, transpose_b=true)
        p2 = softmax(s2, axis=3)
        n2 = isnan(p2)
        w2 = where(n2, one, p2)
        z = matmul(w2, q)
        output y = y
        output z = z
        """,
        """
        input q: f32[2, 2, 5, 4]
        input k: f32[2, 2, 7, 4]
        input m: f32[5, 7]
        constant one: f32[] = [1.0]
        y = attention(q, k, k, m, scale=1.0, zero_nan=true)
        s2 = matmul(k, q, transpose_b=true)
        p2 = softmax(s2, axis=3)
        n2 = isnan(p2)
        w2 = where(n2, one, p2)
        z = matmul(w2, q)
        output y = y
        output z = z
        """,
    ),
    (
        "grouped heads: repeated keys and values, one head, a gather",
        ("fuse_attention", "identity", "dce"),
        """
        input q: f32[B, 4, S, 4]
        input k: f32[B, 2, S, 4]
        input v: f32[B, 2, S, 4]
        input k1: f32[B, 1, S, 4]
        constant heads: i64[4] = [0, 0, 1, 1]
        k5 = reshape(k, shape=[B, 2, 1, S, 4])
        kr = expand(k5, shape=[B, 2, 2, S, 4])
        k4 = reshape(kr, shape=[B, 4, S, 4])
        v5 = reshape(v, shape=[B, 2, 1, S, 4])
        vr = expand(v5, shape=[B, 2, 2, S, 4])
        v4 = reshape(vr, shape=[B, 4, S, 4])
        y = attention(q, k4, v4, scale=0.5)
        kg = gather(k, heads, axis=1)
        vg = gather(v, heads, axis=1)
        z = attention(q, kg, vg, scale=0.5)
        ke = expand(k1, shape=[B, 4, S, 4])
        w = attention(q, ke, ke, scale=0.5)
        output y = y
        output z = z
        output w = w
        """,
        """
        input q: f32[B, 4, S, 4]
        input k: f32[B, 2, S, 4]
        input v: f32[B, 2, S, 4]
        input k1: f32[B, 1, S, 4]
        y = attention(q, k, v, scale=0.5)
        z = attention(q, k, v, scale=0.5)
        w = attention(q, k1, k1, scale=0.5)
        output y = y
        output z = z
        output w = w
        """,
    ),
    (
        "not attention: a weak fill, probabilities as output, another axis, weights as keys, a batch that broadcasts",
        ("fuse_attention", "dce"),
        """
        input q: f32[2, 4, 4]
        input k: f32[2, 4, 4]
        input k1: f32[1, 4, 4]
        input m: bool[4, 4]
        input x: f32[4, 4]
        weight w: f32[4, 4]
        constant low: f32[] = [-10000.0]
        s = matmul(q, k, transpose_b=true)
        t = where(m, s, low)
        p = softmax(t, axis=2)
        a = matmul(p, k)
        s2 = matmul(q, k, transpose_b=true)
        p2 = softmax(s2, axis=2)
        b = matmul(p2, k)
        s3 = matmul(q, k, transpose_b=true)
        p3 = softmax(s3, axis=1)
        c = matmul(p3, k)
        s4 = matmul(x, w)
        p4 = softmax(s4, axis=1)
        d = matmul(p4, x)
        s5 = matmul(q, k1, transpose_b=true)
        p5 = softmax(s5, axis=2)
        e = matmul(p5, k1)
        output a = a
        output p2 = p2
        output b = b
        output c = c
        output d = d
        output e = e
        """,
        None,
    ),
    (
        "repeats in another order are not groups",
        ("fuse_attention", "dce"),
        """
        input q: f32[2, 4, 3, 4]
        input k: f32[2, 2, 3, 4]
        constant heads: i64[4] = [0, 1, 0, 1]
        k5 = reshape(k, shape=[2, 1, 2, 3, 4])
        kr = expand(k5, shape=[2, 2, 2, 3, 4])
        k4 = reshape(kr, shape=[2, 4, 3, 4])
        y = attention(q, k4, k4, scale=0.5)
        kg = gather(k, heads, axis=1)
        z = attention(q, kg, kg, scale=0.5)
        output y = y
        output z = z
        """,
        None,
    ),
    (
        "batch norm after a conv, after a linear layer, and alone",
        ("fold_batch_norm", "fold", "identity", "dce"),
        """
        input x: f32[2, 1, 3]
        input z: f32[2, 2]
        constant w: f32[2, 1, 1] = [1.0, 2.0]
        constant l: f32[2, 2] = [1.0, 2.0, 3.0, 4.0]
        constant b: f32[2] = [5.0, 6.0]
        constant scale: f32[2] = [2.0, 3.0]
        constant bias: f32[2] = [1.0, 1.0]
        constant mean: f32[2] = [1.0, 2.0]
        constant variance: f32[2] = [3.0, 0.0]
        c = conv(x, w, strides=[1], pads=[0, 0], dilations=[1], groups=1)
        y = batch_norm(c, scale, bias, mean, variance, eps=1.0)
        r = relu(y)
        u = batch_norm(r, scale, bias, mean, variance, eps=1.0)
        m = matmul(z, l)
        a = add(m, b)
        v = batch_norm(a, scale, bias, mean, variance, eps=1.0)
        output u = u
        output v = v
        """,
        """
        input x: f32[2, 1, 3]
        input z: f32[2, 2]
        constant y.shift: f32[2] = [0.0, -5.0]
        constant w.scaled: f32[2, 1, 1] = [1.0, 6.0]
        constant u.factor.shaped: f32[2, 1] = [1.0, 3.0]
        constant u.shift.shaped: f32[2, 1] = [0.0, -5.0]
        constant l.scaled: f32[2, 2] = [1.0, 6.0, 3.0, 12.0]
        constant v.bias.1: f32[2] = [5.0, 13.0]
        y = conv(x, w.scaled, y.shift, strides=[1], pads=[0, 0], dilations=[1], groups=1)
        r = relu(y)
        u.scaled = mul(r, u.factor.shaped)
        u = add(u.scaled, u.shift.shaped)
        v.product = matmul(z, l.scaled)
        v = add(v.product, v.bias.1)
        output u = u
        output v = v
        """,
    ),
    (
        "parallel matmuls, one without a bias",
        ("merge_matmul", "dce"),
        """
        input x: f32[B, 3]
        weight w1: f32[2, 3]
        weight w2: f32[4, 3]
        weight b1: f32[2]
        a = matmul(x, w1, transpose_b=true)
        b = matmul(x, w2, transpose_b=true)
        c = add(a, b1)
        d = concat(b, c, axis=1)
        output d = d
        """,
        """
        input x: f32[B, 3]
        weight w1: f32[2, 3]
        weight w2: f32[4, 3]
        weight b1: f32[2]
        constant b.zeros: f32[4] = [0.0, 0.0, 0.0, 0.0]
        w1.merged = concat(w1, w2, axis=0)
        a.merged = matmul(x, w1.merged, transpose_b=true)
        b1.merged = concat(b1, b.zeros, axis=0)
        a.merged.biased = add(a.merged, b1.merged)
        c = slice(a.merged.biased, starts=[0, 0], stops=[B, 2], steps=[1, 1])
        b = slice(a.merged.biased, starts=[0, 2], stops=[B, 6], steps=[1, 1])
        d = concat(b, c, axis=1)
        output d = d
        """,
    ),
    (
        "three parallel matmuls without a bias, one of them read twice",
        ("merge_matmul", "dce"),
        """
        input x: f32[2, S, 3]
        weight w1: f32[3, 2]
        weight w2: f32[3, 2]
        weight w3: f32[3, 4]
        a = matmul(x, w1, scale=0.5)
        b = matmul(x, w2, scale=0.5)
        d = mul(a, b)
        c = matmul(x, w3, scale=0.5)
        e = add(a, d)
        f = concat(c, e, axis=2)
        output f = f
        """,
        """
        input x: f32[2, S, 3]
        weight w1: f32[3, 2]
        weight w2: f32[3, 2]
        weight w3: f32[3, 4]
        w1.merged = concat(w1, w2, w3, axis=1)
        a.merged = matmul(x, w1.merged, scale=0.5)
        a = slice(a.merged, starts=[0, 0, 0], stops=[2, S, 2], steps=[1, 1, 1])
        b = slice(a.merged, starts=[0, 0, 2], stops=[2, S, 4], steps=[1, 1, 1])
        c = slice(a.merged, starts=[0, 0, 4], stops=[2, S, 8], steps=[1, 1, 1])
        d = mul(a, b)
        e = add(a, d)
        f = concat(c, e, axis=2)
        output f = f
        """,
    ),
    (
        "merged though apart: no more memory than is needed elsewhere",
        ("merge_matmul", "dce"),
        """
        input x: f32[4, 3]
        weight w1: f32[3, 2]
        weight w2: f32[3, 2]
        weight w3: f32[2, 5]
        a = matmul(x, w1)
        b = matmul(x, w2)
        c = matmul(a, w3)
        d = matmul(b, w3)
        e = concat(x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, axis=0)
        f = exp(e)
        output c = c
        output d = d
        output f = f
        """,
        """
        input x: f32[4, 3]
        weight w1: f32[3, 2]
        weight w2: f32[3, 2]
        weight w3: f32[2, 5]
        w1.merged = concat(w1, w2, axis=1)
        a.merged = matmul(x, w1.merged)
        a = slice(a.merged, starts=[0, 0], stops=[4, 2], steps=[1, 1])
        b = slice(a.merged, starts=[0, 2], stops=[4, 4], steps=[1, 1])
        c = matmul(a, w3)
        d = matmul(b, w3)
        e = concat(x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, axis=0)
        f = exp(e)
        output c = c
        output d = d
        output f = f
        """,
    ),
    (
        "not merged: read apart, so that the graph needs more memory; results that leave it need none",
        ("merge_matmul", "dce"),
        """
        input x: f32[B, 8]
        weight w1: f32[8, 8]
        weight w2: f32[8, 8]
        weight w3: f32[8, 8]
        a = matmul(x, w1)
        b = matmul(a, w3)
        c = exp(b)
        d = matmul(x, w2)
        e = matmul(d, w3)
        f = add(c, e)
        y = matmul(x, w3)
        output f = f
        output y = y
        """,
        None,
    ),
    (
        "not merged: activations and residuals that a kernel computes with its sums",
        ("merge_matmul", "dce"),
        """
        input x: f32[B, 8]
        input z: f32[B, 8]
        weight w1: f32[8, 8]
        weight w2: f32[8, 8]
        weight w3: f32[8, 8]
        a = matmul(x, w1)
        b = relu(a)
        c = matmul(x, w2)
        d = add(c, z)
        e = matmul(x, w3)
        f = concat(b, d, e, axis=1)
        output f = f
        """,
        None,
    ),
    (
        "merged: a gate, whose activation is computed with it",
        ("merge_matmul", "dce"),
        """
        input x: f32[B, 8]
        weight w1: f32[8, 16]
        weight w2: f32[8, 16]
        a = matmul(x, w1)
        b = silu(a)
        c = matmul(x, w2)
        d = mul(b, c)
        output d = d
        """,
        """
        input x: f32[B, 8]
        weight w1: f32[8, 16]
        weight w2: f32[8, 16]
        w1.merged = concat(w1, w2, axis=1)
        a.merged = matmul(x, w1.merged)
        a = slice(a.merged, starts=[0, 0], stops=[B, 16], steps=[1, 1])
        c = slice(a.merged, starts=[0, 16], stops=[B, 32], steps=[1, 1])
        b = silu(a)
        d = mul(b, c)
        output d = d
        """,
    ),
    (
        "not merged: other inputs, flags and scales, products of activations",
        ("merge_matmul", "dce"),
        """
        input x: f32[3, 3]
        input z: f32[3, 3]
        weight w1: f32[3, 3]
        weight w2: f32[3, 3]
        a = matmul(x, w1)
        b = matmul(z, w2)
        c = matmul(x, w2, transpose_b=true)
        d = matmul(x, w2, scale=2.0)
        e = matmul(x, z)
        f = matmul(w1, x)
        output a = a
        output b = b
        output c = c
        output d = d
        output e = e
        output f = f
        """,
        None,
    ),
    (
        "a layer between a reshape that merges rows and one that splits them",
        ("sink_reshape", "identity", "dce"),
        """
        input x: f32[B, S, 3]
        weight w: f32[3, 4]
        weight b: f32[4]
        r = reshape(x, shape=[B*S, 3])
        m = matmul(r, w)
        a = add(m, b)
        g = gelu(a)
        y = reshape(g, shape=[B, S, 4])
        output y = y
        """,
        """
        input x: f32[B, S, 3]
        weight w: f32[3, 4]
        weight b: f32[4]
        m.rows = matmul(x, w)
        a.rows = add(m.rows, b)
        g.rows = gelu(a.rows)
        output y = g.rows
        """,
    ),
    (
        "reshapes that split columns, transposed rows, a table of all rows, a softmax over the rows",
        ("sink_reshape",),
        """
        input x: f32[2, 3, 4]
        input z: f32[6, 4]
        weight w: f32[8, 2]
        weight v: f32[6, 2]
        r = reshape(x, shape=[3, 8])
        m = matmul(r, w)
        s = reshape(x, shape=[6, 4])
        t = matmul(s, v, transpose_a=true)
        a = add(s, z)
        p = softmax(s, axis=0)
        output m = m
        output t = t
        output a = a
        output p = p
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

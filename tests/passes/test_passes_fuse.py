"""Recognition of norms, activations and rotary embedding: text in, text out.

An expected text of None means that the pass must leave the graph alone: a look-alike, or something it refuses.
"""

import pytest

from pass_case import Case, check_all_passes, check_pass

CASES: list[Case] = [
    (
        "layer norm by hand: pow, sqrt, weight and bias",
        ("fuse_norm", "dce"),
        """
        input x: f32[B, S, 8]
        weight w: f32[8]
        weight b: f32[8]
        constant two: f32[] = [2.0]
        constant eps: f32[] = [0.5]
        m = reduce_mean(x, axes=[2], keepdims=true)
        d = sub(x, m)
        q = pow(d, two)
        v = reduce_mean(q, axes=[2], keepdims=true)
        e = add(v, eps)
        s = sqrt(e)
        n = div(d, s)
        p = mul(w, n)
        y = add(p, b)
        output y = y
        """,
        """
        input x: f32[B, S, 8]
        weight w: f32[8]
        weight b: f32[8]
        y = layer_norm(x, w, b, eps=0.5)
        output y = y
        """,
    ),
    (
        "layer norm by hand: a variance that is centred twice, beside a numerator that is centred once",
        ("fuse_norm", "dce"),
        """
        input x: f32[B, S, 8]
        constant eps: f32[] = [0.5]
        m = reduce_mean(x, axes=[2], keepdims=true)
        n = sub(x, m)
        m1 = reduce_mean(x, axes=[2], keepdims=true)
        d1 = sub(x, m1)
        m2 = reduce_mean(d1, axes=[2], keepdims=true)
        d2 = sub(d1, m2)
        q = mul(d2, d2)
        v = reduce_mean(q, axes=[2], keepdims=true)
        e = add(v, eps)
        r = sqrt(e)
        y = div(n, r)
        output y = y
        """,
        """
        input x: f32[B, S, 8]
        y = layer_norm(x, eps=0.5)
        output y = y
        """,
    ),
    (
        "layer norm by hand: one difference from the mean, centred again where it is squared",
        ("fuse_norm", "dce"),
        """
        input x: f32[B, S, 8]
        constant eps: f32[] = [0.5]
        m = reduce_mean(x, axes=[2], keepdims=true)
        d = sub(x, m)
        m2 = reduce_mean(d, axes=[2], keepdims=true)
        d2 = sub(d, m2)
        q = mul(d2, d2)
        v = reduce_mean(q, axes=[2], keepdims=true)
        e = add(v, eps)
        r = rsqrt(e)
        y = mul(d, r)
        output y = y
        """,
        """
        input x: f32[B, S, 8]
        y = layer_norm(x, eps=0.5)
        output y = y
        """,
    ),
    (
        "not layer norm: statistics that two results share",
        ("fuse_norm", "dce"),
        """
        input x: f32[3, 8]
        weight w: f32[8]
        weight b: f32[8]
        constant eps: f32[] = [0.5]
        m = reduce_mean(x, axes=[1], keepdims=true)
        d = sub(x, m)
        q = mul(d, d)
        v = reduce_mean(q, axes=[1], keepdims=true)
        e = add(eps, v)
        r = rsqrt(e)
        f = mul(w, d)
        y = mul(f, r)
        n = mul(r, d)
        z = add(n, b)
        output y = y
        output z = z
        """,
        None,
    ),
    (
        "layer norm: mul for the square, rsqrt, weight first, a sum for a mean, bias without weight",
        ("fuse_norm", "dce"),
        """
        input x: f32[3, 8]
        weight w: f32[8]
        constant inverse: f32[] = [0.125]
        constant eps: f32[] = [0.5]
        t = reduce_sum(x, axes=[1], keepdims=true)
        m = mul(inverse, t)
        d = sub(x, m)
        q = mul(d, d)
        v = reduce_mean(q, axes=[1], keepdims=true)
        e = add(eps, v)
        r = rsqrt(e)
        f = mul(w, d)
        y = mul(f, r)
        n = layer_norm(y, eps=0.5)
        z = add(w, n)
        output z = z
        """,
        """
        input x: f32[3, 8]
        weight w: f32[8]
        y = layer_norm(x, w, eps=0.5)
        z = layer_norm(y, none, w, eps=0.5)
        output z = z
        """,
    ),
    (
        "RMS norm: pow and rsqrt, mul and division",
        ("fuse_norm", "dce"),
        """
        input x: f32[S, 8]
        weight w: f32[8]
        constant two: f32[] = [2.0]
        constant eps: f32[] = [0.5]
        q = pow(x, two)
        v = reduce_mean(q, axes=[1], keepdims=true)
        e = add(v, eps)
        r = rsqrt(e)
        n = mul(x, r)
        y = mul(w, n)
        a = mul(y, y)
        b = reduce_mean(a, axes=[1], keepdims=true)
        c = add(b, eps)
        d = sqrt(c)
        z = div(y, d)
        output z = z
        """,
        """
        input x: f32[S, 8]
        weight w: f32[8]
        y = rms_norm(x, w, eps=0.5)
        z = rms_norm(y, eps=0.5)
        output z = z
        """,
    ),
    (
        "not norms: another axis, a mean of 1/7 of 8, a weight along another axis",
        ("fuse_norm", "dce"),
        """
        input x: f32[8, 8]
        weight w: f32[8, 1]
        constant eps: f32[] = [0.5]
        constant seventh: f32[] = [0.14285715]
        q = mul(x, x)
        v = reduce_mean(q, axes=[0], keepdims=true)
        e = add(v, eps)
        r = rsqrt(e)
        a = mul(x, r)
        t = reduce_sum(q, axes=[1], keepdims=true)
        u = mul(t, seventh)
        f = add(u, eps)
        s = sqrt(f)
        b = div(x, s)
        c = layer_norm(x, eps=0.5)
        d = mul(c, w)
        output a = a
        output b = b
        output d = d
        """,
        None,
    ),
    (
        "softmax and log-softmax by hand",
        ("fuse_norm", "dce"),
        """
        input x: f32[S, 8]
        m = reduce_max(x, axes=[1], keepdims=true)
        d = sub(x, m)
        e = exp(d)
        t = reduce_sum(e, axes=[1], keepdims=true)
        y = div(e, t)
        n = reduce_max(y, axes=[0], keepdims=true)
        f = sub(y, n)
        g = exp(f)
        u = reduce_sum(g, axes=[0], keepdims=true)
        l = log(u)
        z = sub(f, l)
        output z = z
        """,
        """
        input x: f32[S, 8]
        y = softmax(x, axis=1)
        z = log_softmax(y, axis=0)
        output z = z
        """,
    ),
    (
        "not softmax: no maximum, different axes, an exponential that something else reads",
        ("fuse_norm", "dce"),
        """
        input x: f32[4, 4]
        a = exp(x)
        b = reduce_sum(a, axes=[1], keepdims=true)
        p = div(a, b)
        m = reduce_max(x, axes=[1], keepdims=true)
        d = sub(x, m)
        e = exp(d)
        t = reduce_sum(e, axes=[0], keepdims=true)
        q = div(e, t)
        u = reduce_sum(e, axes=[1], keepdims=true)
        r = div(e, u)
        output p = p
        output q = q
        output r = r
        """,
        None,
    ),
    (
        "GELU with erf, in three associations",
        ("fuse_activation", "dce"),
        """
        input x: f32[B, 4]
        constant half: f32[] = [0.5]
        constant one: f32[] = [1.0]
        constant two: f32[] = [2.0]
        constant root: f32[] = [1.4142135]
        constant inverse: f32[] = [0.70710677]
        a = mul(x, half)
        b = div(x, root)
        c = erf(b)
        d = add(c, one)
        y = mul(a, d)
        e = mul(inverse, y)
        f = erf(e)
        g = add(one, f)
        h = mul(g, y)
        z = div(h, two)
        i = mul(z, inverse)
        j = erf(i)
        k = add(j, one)
        l = mul(k, half)
        w = mul(l, z)
        output w = w
        """,
        """
        input x: f32[B, 4]
        y = gelu(x, approximate="erf")
        z = gelu(y, approximate="erf")
        w = gelu(z, approximate="erf")
        output w = w
        """,
    ),
    (
        "GELU with tanh: a power, a product, the factored form",
        ("fuse_activation", "dce"),
        """
        input x: f32[B, 4]
        constant half: f32[] = [0.5]
        constant one: f32[] = [1.0]
        constant three: f32[] = [3.0]
        constant c: f32[] = [0.044715]
        constant r: f32[] = [0.7978846]
        a1 = pow(x, three)
        a2 = mul(a1, c)
        a3 = add(x, a2)
        a4 = mul(a3, r)
        a5 = tanh(a4)
        a6 = add(a5, one)
        a7 = mul(x, half)
        y = mul(a7, a6)
        b1 = mul(y, y)
        b2 = mul(b1, y)
        b3 = mul(c, b2)
        b4 = add(b3, y)
        b5 = mul(r, b4)
        b6 = tanh(b5)
        b7 = add(one, b6)
        b8 = mul(y, b7)
        z = mul(half, b8)
        c1 = mul(z, c)
        c2 = mul(c1, z)
        c3 = add(one, c2)
        c4 = mul(z, r)
        c5 = mul(c4, c3)
        c6 = tanh(c5)
        c7 = add(c6, one)
        c8 = mul(half, c7)
        w = mul(z, c8)
        output w = w
        """,
        """
        input x: f32[B, 4]
        y = gelu(x, approximate="tanh")
        z = gelu(y, approximate="tanh")
        w = gelu(z, approximate="tanh")
        output w = w
        """,
    ),
    (
        "not GELU: 0.0447, 1.414, another x, an erf that is an output",
        ("fuse_activation", "dce"),
        """
        input x: f32[4]
        input z: f32[4]
        constant half: f32[] = [0.5]
        constant one: f32[] = [1.0]
        constant three: f32[] = [3.0]
        constant c: f32[] = [0.0447]
        constant r: f32[] = [0.7978846]
        constant root: f32[] = [1.414]
        constant inverse: f32[] = [0.70710677]
        a1 = pow(x, three)
        a2 = mul(a1, c)
        a3 = add(x, a2)
        a4 = mul(a3, r)
        a5 = tanh(a4)
        a6 = add(a5, one)
        half_x = mul(x, half)
        a = mul(half_x, a6)
        b1 = div(x, root)
        b2 = erf(b1)
        b3 = add(b2, one)
        b = mul(half_x, b3)
        c1 = mul(x, inverse)
        c2 = erf(c1)
        c3 = add(c2, one)
        d = mul(half_x, c3)
        e1 = mul(z, inverse)
        e2 = erf(e1)
        e3 = add(e2, one)
        e = mul(half_x, e3)
        output a = a
        output b = b
        output c2 = c2
        output d = d
        output e = e
        """,
        None,
    ),
    (
        "sigmoid, SiLU, ReLU, hard swish",
        ("fuse_activation", "dce"),
        """
        input x: f32[4]
        constant zero: f32[] = [0.0]
        constant one: f32[] = [1.0]
        constant three: f32[] = [3.0]
        constant six: f32[] = [6.0]
        a = neg(x)
        b = exp(a)
        c = add(b, one)
        s = div(one, c)
        d = sigmoid(s)
        e = mul(s, d)
        f = maximum(e, zero)
        g = add(f, three)
        h = clip(g, minimum=0.0, maximum=6.0)
        i = mul(f, h)
        y = div(i, six)
        output y = y
        """,
        """
        input x: f32[4]
        s = sigmoid(x)
        e = silu(s)
        f = relu(e)
        y = hard_swish(f)
        output y = y
        """,
    ),
    (
        "rotary embedding",
        ("fuse_rotary", "dce"),
        """
        input x: f32[B, 2, S, 6]
        input cos: f32[1, 1, S, 6]
        input sin: f32[1, 1, S, 6]
        lo = slice(x, starts=[0, 0, 0, 0], stops=[B, 2, S, 3], steps=[1, 1, 1, 1])
        hi = slice(x, starts=[0, 0, 0, 3], stops=[B, 2, S, 6], steps=[1, 1, 1, 1])
        n = neg(hi)
        r = concat(n, lo, axis=3)
        a = mul(x, cos)
        b = mul(r, sin)
        y = add(a, b)
        output y = y
        """,
        """
        input x: f32[B, 2, S, 6]
        input cos: f32[1, 1, S, 6]
        input sin: f32[1, 1, S, 6]
        y = rotary(x, cos, sin)
        output y = y
        """,
    ),
    (
        "not rotary: the halves swapped, a table along the heads",
        ("fuse_rotary", "dce"),
        """
        input x: f32[1, 4, 4, 6]
        input cos: f32[1, 4, 1, 6]
        input sin: f32[1, 4, 1, 6]
        input full: f32[4, 6]
        lo = slice(x, starts=[0, 0, 0, 0], stops=[1, 4, 4, 3], steps=[1, 1, 1, 1])
        hi = slice(x, starts=[0, 0, 0, 3], stops=[1, 4, 4, 6], steps=[1, 1, 1, 1])
        n = neg(lo)
        r = concat(n, hi, axis=3)
        a = mul(x, full)
        b = mul(r, full)
        y = add(a, b)
        m = neg(hi)
        s = concat(m, lo, axis=3)
        c = mul(x, cos)
        d = mul(s, sin)
        z = add(c, d)
        output y = y
        output z = z
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

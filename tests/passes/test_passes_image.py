"""Passes on convolutions and pools: pads, whole-image pools."""

import pytest

from pass_case import Case, check_pass

CASES: list[Case] = [
    (
        "a layer's scale goes into the product before it, and its residual is added before the permutes of both",
        ("fold_layer_scale", "dce"),
        """
        input x: f32[B, 5, 7, 4]
        weight w: f32[4, 6]
        weight v: f32[6, 4]
        weight b: f32[4]
        weight s: f32[4]
        image = permute(x, axes=[0, 3, 1, 2])
        hidden = matmul(x, w, transpose_a=false, transpose_b=false, scale=1.0)
        product = matmul(hidden, v, transpose_a=false, transpose_b=false, scale=1.0)
        sum = add(product, b)
        scaled = mul(s, sum)
        branch = permute(scaled, axes=[0, 3, 1, 2])
        y = add(image, branch)
        output y = y
        output image = image
        """,
        """
        input x: f32[B, 5, 7, 4]
        weight w: f32[4, 6]
        weight v: f32[6, 4]
        weight b: f32[4]
        weight s: f32[4]
        image = permute(x, axes=[0, 3, 1, 2])
        hidden = matmul(x, w, transpose_a=false, transpose_b=false, scale=1.0)
        v.scaled = mul(v, s)
        scaled.product = matmul(hidden, v.scaled, transpose_a=false, transpose_b=false, scale=1.0)
        b.scaled = mul(b, s)
        scaled = add(scaled.product, b.scaled)
        y.last = add(x, scaled)
        y = permute(y.last, axes=[0, 3, 1, 2])
        output y = y
        output image = image
        """,
    ),
    (
        "scales that stay: of a product that another node reads, of rows, of a weight that two products read",
        ("fold_layer_scale", "dce"),
        """
        input x: f32[B, 4]
        input r: f32[B, 1]
        weight w: f32[6, 4]
        weight v: f32[5, 4]
        weight s: f32[6]
        a = matmul(x, w, transpose_a=false, transpose_b=true, scale=1.0)
        b = mul(a, s)
        c = matmul(x, v, transpose_a=false, transpose_b=true, scale=1.0)
        d = mul(c, r)
        e = matmul(b, w, transpose_a=false, transpose_b=false, scale=1.0)
        f = matmul(d, v, transpose_a=false, transpose_b=false, scale=1.0)
        output a = a
        output d = d
        output e = e
        output f = f
        """,
        None,
    ),
    (
        "moves of what a convolution makes sink below an activation, and what they make of it are rows of a product",
        ("sink_move", "absorb_transpose", "dce"),
        """
        input x: f32[B, 3, 7, 6]
        weight w: f32[4, 3, 3, 2]
        weight v: f32[4, 5]
        a = conv(x, w, strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        b = reshape(a, shape=[B, 4, 15])
        c = permute(b, axes=[0, 2, 1])
        d = gelu(c, approximate="erf")
        y = matmul(d, v, transpose_a=false, transpose_b=false, scale=1.0)
        output y = y
        """,
        """
        input x: f32[B, 3, 7, 6]
        weight w: f32[4, 3, 3, 2]
        weight v: f32[4, 5]
        a = conv(x, w, strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        d.first = gelu(a, approximate="erf")
        d.moved = reshape(d.first, shape=[B, 4, 15])
        d = permute(d.moved, axes=[0, 2, 1])
        y = matmul(d, v, transpose_a=false, transpose_b=false, scale=1.0)
        output y = y
        """,
    ),
    (
        "moves that stay: of what else is read, of what no convolution makes",
        ("sink_move", "dce"),
        """
        input x: f32[B, 3, 7]
        weight w: f32[4, 3, 2]
        a = conv(x, w, strides=[1], pads=[0, 0], dilations=[1], groups=1)
        b = permute(a, axes=[0, 2, 1])
        c = relu(b)
        d = permute(x, axes=[0, 2, 1])
        e = relu(d)
        output b = b
        output c = c
        output e = e
        """,
        None,
    ),
    (
        "a permute sinks below the pad of a line of channels and stays there, though it is its own inverse",
        ("sink_permute", "dce"),
        """
        input x: f32[B, 3, 7]
        weight v: f32[3, 5, 2]
        a = conv_transpose(x, v, strides=[1], pads=[0, 0], dilations=[1], groups=1, output_padding=[0])
        b = permute(a, axes=[0, 2, 1])
        y = pad(b, low=[0, 0, 4], high=[0, 0, 1], value=0.0)
        output y = y
        """,
        """
        input x: f32[B, 3, 7]
        weight v: f32[3, 5, 2]
        a = conv_transpose(x, v, strides=[1], pads=[0, 0], dilations=[1], groups=1, output_padding=[0])
        y.first = pad(a, low=[0, 4, 0], high=[0, 1, 0], value=0.0)
        y = permute(y.first, axes=[0, 2, 1])
        output y = y
        """,
    ),
    (
        "biases of channels become those of convolutions",
        ("absorb_bias", "fold", "dce"),
        """
        input x: f32[B, 3, 7, 6]
        weight w: f32[4, 3, 3, 2]
        weight v: f32[4, 5, 2, 2]
        weight b: f32[4, 1, 1]
        constant c: f32[1, 5, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0]
        a = conv(x, w, strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        d = add(b, a)
        e = conv_transpose(d, v, strides=[2, 2], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1, \
output_padding=[0, 0])
        y = add(e, c)
        output y = y
        """,
        """
        input x: f32[B, 3, 7, 6]
        weight w: f32[4, 3, 3, 2]
        weight v: f32[4, 5, 2, 2]
        weight b: f32[4, 1, 1]
        constant y.bias: f32[5] = [1.0, 2.0, 3.0, 4.0, 5.0]
        d.bias = reshape(b, shape=[4])
        d = conv(x, w, d.bias, strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        y = conv_transpose(d, v, y.bias, strides=[2, 2], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1, \
output_padding=[0, 0])
        output y = y
        """,
    ),
    (
        "biases that stay: of columns, of one element, of a run, beside another one, of what else is read",
        ("absorb_bias", "dce"),
        """
        input x: f32[B, 3, 7, 6]
        input r: f32[4, 1, 1]
        weight w: f32[4, 3, 1, 1]
        weight b: f32[4]
        constant c: f32[6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        constant o: f32[] = [1.0]
        weight k: f32[4, 1, 1]
        d = conv(x, w, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        e = add(d, c)
        f = conv(x, w, strides=[1, 2], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        g = add(f, o)
        h = conv(x, w, strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        i = add(h, r)
        j = conv(x, w, b, strides=[2, 2], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        l = add(j, k)
        m = conv(x, w, strides=[3, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        n = add(m, k)
        q = add(m, m)
        output e = e
        output g = g
        output i = i
        output l = l
        output n = n
        output m = q
        """,
        None,
    ),
    (
        "channels last, as TensorFlow has them, around a convolution and its bias, a residual and a pad",
        ("sink_permute", "identity", "dce", "absorb_bias", "absorb_pad", "fold"),
        """
        input x: f32[B, 7, 6, 3]
        weight w: f32[4, 3, 3, 3]
        weight v: f32[4, 4, 3, 3]
        constant b: f32[4] = [1.0, 2.0, 3.0, 4.0]
        p = pad(x, low=[0, 1, 1, 0], high=[0, 1, 1, 0], value=0.0)
        pf = permute(p, axes=[0, 3, 1, 2])
        c = conv(pf, w, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        cl = permute(c, axes=[0, 2, 3, 1])
        d = add(cl, b)
        r = relu(d)
        q = pad(r, low=[0, 1, 1, 0], high=[0, 1, 1, 0], value=0.0)
        qf = permute(q, axes=[0, 3, 1, 2])
        e = conv(qf, v, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        el = permute(e, axes=[0, 2, 3, 1])
        s = add(el, r)
        j = concat(s, r, axis=3)
        k = slice(j, starts=[0, 0, 0, 2], stops=[B, 7, 6, 8], steps=[1, 1, 1, 2])
        m = reduce_mean(k, axes=[1, 2], keepdims=false)
        n = reduce_max(k, axes=[2], keepdims=true)
        output m = m
        output n = n
        """,
        """
        input x: f32[B, 7, 6, 3]
        weight w: f32[4, 3, 3, 3]
        weight v: f32[4, 4, 3, 3]
        constant d.first.bias: f32[4] = [1.0, 2.0, 3.0, 4.0]
        pf.first = permute(x, axes=[0, 3, 1, 2])
        d.first = conv(pf.first, w, d.first.bias, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], groups=1)
        r.first = relu(d.first)
        e = conv(r.first, v, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], groups=1)
        s.first = add(e, r.first)
        j.first = concat(s.first, r.first, axis=1)
        k.first = slice(j.first, starts=[0, 2, 0, 0], stops=[B, 8, 7, 6], steps=[1, 2, 1, 1])
        m = reduce_mean(k.first, axes=[2, 3], keepdims=false)
        n.first = reduce_max(k.first, axes=[3], keepdims=true)
        n = permute(n.first, axes=[0, 2, 3, 1])
        output m = m
        output n = n
        """,
    ),
    (
        "fixed operands of every rank are turned with an image; a reduction of rows turns what is left",
        ("sink_permute", "dce", "fold"),
        """
        input x: f32[2, 3, 4, 5]
        constant a: f32[5, 3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
        constant b: f32[4, 1, 1] = [1.0, 2.0, 3.0, 4.0]
        constant c: f32[] = [2.0]
        i = max_pool(x, kernel=[1, 1], strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1])
        p = permute(i, axes=[0, 2, 3, 1])
        s = sub(a, p)
        t = mul(s, b)
        u = pow(t, c)
        v = minimum(u, u)
        y = reduce_sum(v, axes=[1], keepdims=false)
        output y = y
        """,
        """
        input x: f32[2, 3, 4, 5]
        constant c: f32[] = [2.0]
        constant s.fixed: f32[1, 3, 1, 5] = [1.0, 4.0, 7.0, 10.0, 13.0, 2.0, 5.0, 8.0, 11.0, 14.0, 3.0, 6.0, 9.0, \
12.0, 15.0]
        constant t.fixed: f32[4, 1] = [1.0, 2.0, 3.0, 4.0]
        i = max_pool(x, kernel=[1, 1], strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1])
        s.first = sub(s.fixed, i)
        t.first = mul(s.first, t.fixed)
        u.first = pow(t.first, c)
        v.first = minimum(u.first, u.first)
        y.first = reduce_sum(v.first, axes=[2], keepdims=false)
        y = permute(y.first, axes=[0, 2, 1])
        output y = y
        """,
    ),
    (
        "permutes that stay: before a norm over channels, beside what a run gives, of no image, of other axes",
        ("sink_permute", "dce"),
        """
        input x: f32[B, 3, 4, 5]
        input h: f32[B, 4, 5, 3]
        weight w: f32[3, 3, 1, 1]
        c = conv(x, w, none, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        p = permute(c, axes=[0, 2, 3, 1])
        m = reduce_mean(p, axes=[3], keepdims=true)
        d = sub(p, m)
        e = add(p, h)
        q = permute(x, axes=[0, 2, 3, 1])
        f = relu(q)
        r = permute(c, axes=[0, 3, 2, 1])
        g = relu(r)
        s = reshape(c, shape=[B, 3, 20])
        t = permute(s, axes=[0, 2, 1])
        i = relu(t)
        output d = d
        output e = e
        output f = f
        output g = g
        output i = i
        """,
        None,
    ),
    (
        "zeros around a convolution",
        ("absorb_pad", "dce"),
        """
        input x: f32[2, 3, 7, 6]
        weight w: f32[4, 3, 3, 2]
        p = pad(x, low=[0, 0, 0, 2], high=[0, 0, 1, 1], value=0.0)
        y = conv(p, w, strides=[2, 1], pads=[1, 0, 0, 1], dilations=[1, 1], groups=1)
        output y = y
        """,
        """
        input x: f32[2, 3, 7, 6]
        weight w: f32[4, 3, 3, 2]
        y = conv(x, w, strides=[2, 1], pads=[1, 2, 1, 2], dilations=[1, 1], groups=1)
        output y = y
        """,
    ),
    (
        "pads around pools, one after the other",
        ("absorb_pad", "dce"),
        """
        input x: f32[2, 3, 7, 6]
        p = pad(x, low=[0, 0, 1, 1], high=[0, 0, 1, 1], value=0.0)
        q = pad(p, low=[0, 0, 1, 0], high=[0, 0, 0, 0], value=0.0)
        a = avg_pool(q, kernel=[3, 3], strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1], count_include_pad=false)
        m = pad(x, low=[0, 0, 1, 1], high=[0, 0, 1, 1], value=-inf)
        b = max_pool(m, kernel=[2, 3], strides=[2, 1], pads=[0, 0, 0, 0], dilations=[1, 1])
        output a = a
        output b = b
        """,
        """
        input x: f32[2, 3, 7, 6]
        a = avg_pool(x, kernel=[3, 3], strides=[2, 1], pads=[2, 1, 1, 1], dilations=[1, 1], count_include_pad=true)
        b = max_pool(x, kernel=[2, 3], strides=[2, 1], pads=[1, 1, 1, 1], dilations=[1, 1])
        output a = a
        output b = b
        """,
    ),
    (
        "pads that count otherwise stay: of channels, of another value, zeros among pads that do not count",
        ("absorb_pad", "dce"),
        """
        input x: f32[2, 3, 7, 6]
        weight w: f32[4, 5, 3, 2]
        weight v: f32[4, 3, 3, 2]
        p = pad(x, low=[0, 1, 0, 0], high=[0, 1, 1, 0], value=0.0)
        a = conv(p, w, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        q = pad(x, low=[0, 0, 1, 1], high=[0, 0, 1, 1], value=1.0)
        b = conv(q, v, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)
        r = pad(x, low=[0, 0, 1, 1], high=[0, 0, 1, 1], value=0.0)
        c = avg_pool(r, kernel=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], count_include_pad=false)
        d = max_pool(r, kernel=[3, 3], strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1])
        output a = a
        output b = b
        output c = c
        output d = d
        """,
        None,
    ),
    (
        "a pool of the whole image",
        ("identity",),
        """
        input x: f32[B, 3, 7, 6]
        a = avg_pool(x, kernel=[7, 6], strides=[7, 6], pads=[0, 0, 0, 0], dilations=[1, 1], count_include_pad=true)
        b = max_pool(x, kernel=[7, 6], strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1])
        c = max_pool(x, kernel=[7, 6], strides=[1, 1], pads=[0, 0, 0, 1], dilations=[1, 1])
        d = avg_pool(x, kernel=[9, 9], strides=[2, 2], pads=[1, 0, 2, 3], dilations=[1, 1])
        e = avg_pool(x, kernel=[9, 9], strides=[2, 2], pads=[1, 0, 2, 3], dilations=[1, 1], count_include_pad=true)
        f = max_pool(x, kernel=[7, 6], strides=[9, 9], pads=[0, 1, 0, 0], dilations=[1, 1])
        output a = a
        output b = b
        output c = c
        output d = d
        output e = e
        output f = f
        """,
        """
        input x: f32[B, 3, 7, 6]
        a = reduce_mean(x, axes=[2, 3], keepdims=true)
        b = reduce_max(x, axes=[2, 3], keepdims=true)
        c = max_pool(x, kernel=[7, 6], strides=[1, 1], pads=[0, 0, 0, 1], dilations=[1, 1])
        d = reduce_mean(x, axes=[2, 3], keepdims=true)
        e = avg_pool(x, kernel=[9, 9], strides=[2, 2], pads=[1, 0, 2, 3], dilations=[1, 1], count_include_pad=true)
        f = max_pool(x, kernel=[7, 6], strides=[9, 9], pads=[0, 1, 0, 0], dilations=[1, 1])
        output a = a
        output b = b
        output c = c
        output d = d
        output e = e
        output f = f
        """,
    ),
]


@pytest.mark.parametrize("passes, before, after", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_pass(passes: tuple[str, ...], before: str, after: str | None) -> None:
    check_pass(passes, before, after)

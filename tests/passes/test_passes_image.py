"""Passes on convolutions and pools: pads, whole-image pools."""

import pytest

from pass_case import Case, check_pass

CASES: list[Case] = [
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

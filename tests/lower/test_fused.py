"""Fused programs give the bits of their ops run one by one, for any shapes, number of tasks and instruction set."""

import numpy as np
import pytest

from differential import Arrays, checked, expect_same, native
from ingot.emit.kernels import kernel_source
from ingot.ir.graph import Graph
from ingot.lower import Target, lower
from ingot.run.library import load
from pass_case import random_array, read

NORMALISED = """
    input x: f32[{d}]
    input y: f32[{d}]
    weight w: f32[{cols}]
    weight b: f32[{cols}]
    s = sigmoid(x)
    t = tanh(y)
    h = mul(s, t)
    n = layer_norm(h, w, b, eps=1e-05)
    g = gelu(n, approximate="erf")
    e = exp(g)
    out = log1p(e)
    output out = out
    """
SPELLED = """
    input x: f32[{d}]
    input w: f32[{cols}]
    h = silu(x)
    m = reduce_mean(h, axes=[{last}], keepdims=true)
    v = sub(h, m)
    q = mul(v, v)
    p = reduce_sum(q, axes=[{last}], keepdims=true)
    r = sqrt(p)
    u = maximum(r, m)
    n = div(v, u)
    out = mul(n, w)
    output out = out
    output mean = m
    output squares = q
    """
EXTREMES = """
    input x: f32[{d}]
    high = reduce_max(x, axes=[{last}], keepdims=true)
    low = reduce_min(x, axes=[{last}], keepdims=true)
    range = sub(high, low)
    above = sub(x, low)
    out = div(above, range)
    flat = reduce_sum(out, axes=[{last}], keepdims=false)
    output out = out
    output flat = flat
    """
NORMS = """
    input x: f32[{d}]
    weight w: f32[{cols}]
    a = mul(x, w)
    n = rms_norm(a, w, eps=1e-06)
    k = rms_norm(n, eps=0.001)
    j = layer_norm(k, none, none, eps=0.001)
    l = layer_norm(a, none, w, eps=0.001)
    p = add(n, j)
    out = mul(p, l)
    output out = out
    """
TEXTS = {"normalised": NORMALISED, "spelled": SPELLED, "extremes": EXTREMES, "norms": NORMS}
SHAPES = ["1, 64", "3, 1", "5, 7", "2, 3, 16", "40, 33", "7, 1000", "3, 1025", "2, 4096", "2, 5000", "2, 2, 9001", "77"]


def filled(text: str, dims: str) -> Graph:
    sizes = dims.split(", ")
    return read(text.format(d=dims, cols=sizes[-1], last=len(sizes) - 1))


def feeds_of(graph: Graph, seed: int = 5) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: random_array(rng, graph, name) for name in graph.inputs}


def steps_of(graph: Graph) -> list[str]:
    return [step.kernel for step in lower(graph.copy(), Target("scalar")).steps]


def check_same(graph: Graph, feeds: Arrays) -> None:
    """Compare a fused group, on every set and with any number of tasks, with its unfused ops."""
    expected = native(graph, feeds, fuses=False)
    for isa in load().isas():
        for threads in (1, 2, 3):
            expect_same(f"{isa}, {threads} threads", native(graph, feeds, isa=isa, threads=threads), expected)
    with checked(3):
        expect_same("poisoned", native(graph, feeds, threads=2), expected)


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("name", TEXTS)
def test_a_group_has_the_bits_of_its_ops(name: str, dims: str) -> None:
    graph = filled(TEXTS[name], dims)
    assert steps_of(graph).count("fused_f32") == 1 and len(steps_of(graph)) == 1
    check_same(graph, feeds_of(graph))


# One node that reads two groups, of which one reads from memory what the other makes.
APART = {
    "codes, which only memory holds": """
        input x: f32[4, 16]
        constant scale: f32[] = [0.02]
        constant zero: u8[] = [3]
        q = quantize(x, scale, zero, axis=0, block=0, dtype=@u8, precision=@f32)
        d = dequantize(q, scale, zero, axis=0, block=0, dtype=@f32)
        s = sigmoid(d)
        r = quantize(s, scale, zero, axis=0, block=0, dtype=@u8, precision=@f32)
        e = dequantize(r, scale, zero, axis=0, block=0, dtype=@f32)
        out = mul(e, d)
        output out = out
        """,
    "sums of rows that broadcast as one row": """
        input x: f32[16, 16]
        input y: f32[16, 16]
        e = sigmoid(x)
        sums = reduce_sum(e, axes=[1], keepdims=false)
        a = add(y, sums)
        t = tanh(a)
        out = mul(t, e)
        output out = out
        """,
}


@pytest.mark.parametrize("name", APART)
def test_groups_that_stay_separate(name: str) -> None:
    graph = read(APART[name])
    assert steps_of(graph).count("fused_f32") == 2
    check_same(graph, feeds_of(graph))


def test_special_numbers() -> None:
    for text in TEXTS.values():
        graph = filled(text, "9, 37")
        feeds = feeds_of(graph)
        for i, special in enumerate((np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-45)):
            feeds["x"][i, (7 * i) % 37 :: 11] = special
        check_same(graph, feeds)


def test_emitted_programs_bring_the_routines_that_they_use() -> None:
    text = kernel_source({"fused_f32"}, {"fused_args"}, {"INGOT_FUSED_OP_sum", "INGOT_FUSED_OP_exp"}).kernels
    assert "K(exp_fused)" in text and "FUSED_UNARY(exp," in text and "FUSED_REDUCE(sum," in text
    assert "tanh" not in text and "FUSED_BINARY" not in text

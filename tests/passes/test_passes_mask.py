"""Recognition of masks: text in, text out.

An expected text of None means that the mask must stay: it is not exactly causal.
"""

import numpy as np
import pytest

from ingot.passes import optimize
from pass_case import Case, check_all_passes, check_pass, expect_equal, read, run

INPUTS = """
        input q: f32[2, 2, 3, 4]
        input k: f32[2, 2, 4, 4]
"""
SYMBOLIC = """
        input q: f32[B, 2, S, 4]
        input k: f32[B, 2, S, 4]
        input padding: bool[S]
"""

# The mask `m` of q [.., 3, 4] and k [.., 4, 4], and what attention gets in its place; None where the mask stays.
MASKS = [
    ("bool", "bool[3, 4] = [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0]", "causal=true"),
    ("bool, one more", "bool[3, 4] = [1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1]", "causal=true, causal_offset=1"),
    ("bool, one less", "bool[3, 4] = [0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0]", "causal=true, causal_offset=-1"),
    ("-inf", "f32[1, 1, 3, 4] = [0, -inf, -inf, -inf, 0, 0, -inf, -inf, 0, 0, 0, -inf]", "causal=true"),
    ("low", "f32[3, 4] = [0, 0, -3e38, -3e38, 0, 0, 0, -3e38, 0, 0, 0, 0]", "causal=true, causal_offset=1"),
    ("all true", "bool[1, 4] = [1, 1, 1, 1]", ""),
    ("all zero", "f32[4] = [0, 0, 0, 0]", ""),
    ("-1e4 is weak", "f32[3, 4] = [0, -1e4, -1e4, -1e4, 0, 0, -1e4, -1e4, 0, 0, 0, -1e4]", None),
    (
        "a low row of nothing",
        "f32[3, 4] = [-3e38, -3e38, -3e38, -3e38, 0, -3e38, -3e38, -3e38, 0, 0, -3e38, -3e38]",
        None,
    ),
    ("and padding", "bool[3, 4] = [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0]", None),
    ("upper", "bool[3, 4] = [1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1]", None),
    ("a slope of two", "bool[3, 4] = [1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1]", None),
    ("one row for all", "bool[1, 4] = [1, 1, 0, 0]", None),
    ("one head only", "bool[2, 1, 4] = [1, 0, 1, 1, 1, 1, 1, 1]", None),
]

# The nodes between `i` = iota(S) as a row [1, S], `r` as a column [S, 1] and the mask `m`.
SPELLINGS = [
    ("less or equal", "m = less_equal(i, r)", "causal=true"),
    ("greater, swapped", "m = greater(r, i)", "causal=true, causal_offset=-1"),
    ("not greater", "a = greater(i, r)\n m = logical_not(a)", "causal=true"),
    ("shifted rows", "a = add(r, two)\n m = less_equal(i, a)", "causal=true, causal_offset=2"),
    ("difference", "a = sub(i, r)\n m = less(a, two)", "causal=true, causal_offset=1"),
    ("chosen floats", "a = less_equal(i, r)\n m = where(a, zero, lowest)", "causal=true"),
    ("hidden floats", "a = greater(i, r)\n m = where(a, ninf, zero)", "causal=true"),
    (
        "one minus, times the lowest",
        "a = less_equal(i, r)\n b = cast(a, dtype=@f32)\n c = sub(one, b)\n m = mul(c, lowest)",
        "causal=true",
    ),
    ("triangle of -inf", "a = expand(ninf, shape=[S, S])\n m = trilu(a, k=1, upper=true)", "causal=true"),
    ("triangle of true", "a = expand(yes, shape=[S, S])\n m = trilu(a, k=0, upper=false)", "causal=true"),
    (
        "with a batch",
        "a = less_equal(i, r)\n b = reshape(a, shape=[1, 1, S, S])\n m = expand(b, shape=[B, 1, S, S])",
        "causal=true",
    ),
    ("and always", "a = less_equal(i, r)\n b = greater_equal(r, nil)\n m = logical_and(a, b)", "causal=true"),
    ("equal to itself", "a = sub(i, i)\n b = equal(a, nil)\n m = expand(b, shape=[S, S])", ""),
    ("and padding", "a = less_equal(i, r)\n m = logical_and(a, padding)", None),
    ("a window", "a = less_equal(i, r)\n c = add(i, two)\n b = greater(c, r)\n m = logical_and(a, b)", None),
    ("other direction", "m = greater_equal(i, r)", None),
    ("a symbolic shift", "a = add(r, length)\n m = less_equal(i, a)", None),
    ("added one", "a = less_equal(i, r)\n b = cast(a, dtype=@f32)\n m = sub(b, one)", None),
]


def with_attention(inputs: str, nodes: str, outcome: str | None) -> tuple[str, str | None]:
    before = f"{inputs}{nodes}\n y = attention(q, k, k, m, scale=0.5)\n output y = y"
    after = None if outcome is None else f"{inputs}\n y = attention(q, k, k, scale=0.5, {outcome})\n output y = y"
    return before, after


def table(mask: str) -> str:
    """A constant; 0 and 1 of a bool as the text form writes them."""
    head, values = mask.split(" = ")
    if head.startswith("bool"):
        values = values.replace("1", "true").replace("0", "false")
    return f"constant m: {head} = {values}"


def symbolic(nodes: str) -> str:
    return f"""
        constant two: i64[] = [2]
        constant nil: i64[] = [0]
        constant zero: f32[] = [0.0]
        constant one: f32[] = [1.0]
        constant ninf: f32[] = [-inf]
        constant lowest: f32[] = [-3.4028235e+38]
        constant yes: bool[] = [true]
        n = iota(length=S, start=0, step=1, dtype=@i64)
        i = reshape(n, shape=[1, S])
        r = reshape(n, shape=[S, 1])
        d = dims(values=[S])
        length = reshape(d, shape=[])
        {nodes}"""


CASES: list[Case] = [
    *((name, ("mask", "dce"), *with_attention(INPUTS, table(mask), outcome)) for name, mask, outcome in MASKS),
    *(
        (f"symbolic: {name}", ("mask", "dce"), *with_attention(SYMBOLIC, symbolic(nodes), outcome))
        for name, nodes, outcome in SPELLINGS
    ),
]


@pytest.mark.parametrize(("passes", "before", "after"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_mask(passes, before, after):
    if after is None:
        check_kept(before)
    else:
        check_pass(passes, before, after)


def check_kept(before: str) -> None:
    """The passes leave attention its mask, without `causal`, and keep the numbers."""
    graph = read(before)
    expected = run(graph)
    optimize(graph, ("mask", "dce"))
    (node,) = (node for node in graph.nodes if node.op.name == "attention")
    assert node.operands[3] is not None and not node.causal
    expect_equal(expected, run(graph))


@pytest.mark.parametrize("before", [c[2] for c in CASES], ids=[c[0] for c in CASES])
def test_all_passes(before, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK", "2")
    check_all_passes(before)


def test_a_large_mask_is_not_folded():
    """Longer than the folding budget allows, and still recognised from its index arithmetic."""
    rows = 1100
    text = with_attention(SYMBOLIC, symbolic(SPELLINGS[5][1]), "")[0].replace("S", str(rows)).replace("B", "1")
    graph = read(text)
    optimize(graph)
    (node,) = (node for node in graph.nodes if node.op.name == "attention")
    assert node.causal and len(node.operands) == 3
    assert not any(value.kind == "constant" for value in graph.values.values())
    assert np.isfinite(run(graph)["y"]).all()

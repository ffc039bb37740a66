"""Attention whose rows see nothing or overflow: what the spelling gives, whatever the passes and the engine."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from differential import check_emitted, every_engine, native
from ingot.ir.graph import Graph
from ingot.passes import optimize
from ingot.run.interpret import interpret
from pass_case import read

INPUTS = """
    input q: f32[2, 2, 5, 8]
    input k: f32[2, 2, 7, 8]
    input v: f32[2, 2, 7, 8]
    input m: bool[2, 1, 5, 7]
    input a: f32[2, 1, 5, 7]
    constant ninf: f32[] = [-inf]
    constant weak: f32[] = [-1e+30]
    constant low: f32[] = [-3.4028235e+38]
    constant zero: f32[] = [0.0]
    """
SCORES = "s = matmul(q, k, transpose_b=true, scale=0.5)\n "
OUT = "\n output y = y"
SOFTMAX = "\n p = softmax(t, axis=3)\n y = matmul(p, v)" + OUT
SAFE = "\n p = softmax(t, axis=3)\n n = isnan(p)\n w = where(n, zero, p)\n y = matmul(w, v)" + OUT
Sees = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # scores, m, a -> masked scores
INF, WEAK, LOW = -torch.inf, -1e30, float(np.finfo(np.float32).min)

# name -> (nodes, the masked scores, whether zeros stand for NaN)
SPELLINGS: dict[str, tuple[str, Sees, bool]] = {
    "chosen with -inf": (SCORES + "t = where(m, s, ninf)" + SOFTMAX, lambda s, m, a: s.where(m, INF), False),
    "added": (SCORES + "t = add(s, a)" + SOFTMAX, lambda s, m, a: s + a, False),
    "chosen and added": (
        SCORES + "c = where(m, s, ninf)\n t = add(a, c)" + SOFTMAX,
        lambda s, m, a: s.where(m, INF) + a,
        False,
    ),
    "NaN set to zero": (SCORES + "t = where(m, s, ninf)" + SAFE, lambda s, m, a: s.where(m, INF), True),
    "a finite fill": (SCORES + "t = where(m, s, weak)" + SOFTMAX, lambda s, m, a: s.where(m, WEAK), False),
    "the lowest fill": (SCORES + "t = where(m, s, low)" + SOFTMAX, lambda s, m, a: s.where(m, LOW), False),
    "two finite fills": (
        SCORES + "c = where(m, s, low)\n t = where(m, c, low)" + SOFTMAX,
        lambda s, m, a: s.where(m, LOW),
        False,
    ),
    "a finite fill over -inf": (
        SCORES + "c = add(s, a)\n t = where(m, c, weak)" + SOFTMAX,
        lambda s, m, a: (s + a).where(m, WEAK),
        False,
    ),
    "the op, bool": ("y = attention(q, k, v, m, scale=0.5)" + OUT, lambda s, m, a: s.where(m, INF), True),
    "the op, float": ("y = attention(q, k, v, a, scale=0.5)" + OUT, lambda s, m, a: s + a, True),
    "the op, NaN": (
        "y = attention(q, k, v, m, scale=0.5, safe=false)" + OUT,
        lambda s, m, a: s.where(m, INF),
        False,
    ),
    "the op, zeros for NaN": (
        "y = attention(q, k, v, m, scale=0.5, zero_nan=true)" + OUT,
        lambda s, m, a: s.where(m, INF),
        True,
    ),
}


def feeds_of(keys: int = 7, rows: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    sizes = (("q", rows), ("k", keys), ("v", keys))
    feeds = {n: rng.standard_normal((2, 2, r, 8)).astype(np.float32) for n, r in sizes}
    feeds["m"] = rng.random((2, 1, rows, keys)) < 0.5
    feeds["a"] = np.where(rng.random((2, 1, rows, keys)) < 0.5, 0, -np.inf).astype(np.float32)
    feeds["m"][0, :, 1], feeds["m"][1, :, 4] = False, False
    feeds["a"][0, :, 2], feeds["a"][1, :, 4] = -np.inf, -np.inf
    return feeds


def fused(graph: Graph) -> bool:
    graph = graph.copy()
    optimize(graph)
    return any(node.op.name == "attention" for node in graph.nodes)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_row_that_sees_nothing(name: str) -> None:
    nodes, masked, zeros = SPELLINGS[name]
    graph, feeds = read(INPUTS + nodes), feeds_of()
    q, k, v, m, a = (torch.from_numpy(feeds[n]) for n in "qkvma")
    p = masked(0.5 * q @ k.mT, m, a).softmax(-1)
    expected = ((p.nan_to_num(0) if zeros else p) @ v).numpy()
    assert fused(graph)
    for engine, got in every_engine(graph, feeds).items():
        np.testing.assert_allclose(got["y"], expected, 2e-5, 2e-5, err_msg=engine)


@pytest.mark.parametrize("name", ("added", "NaN set to zero", "the op, NaN", "the op, zeros for NaN"))
@pytest.mark.parametrize("online", (False, True), ids=("whole rows", "online"))
def test_rows_of_nan(name: str, online: bool) -> None:
    """A NaN or an infinite number in q makes its row NaN; setting NaN to zero takes that too, not only hidden rows."""
    nodes, masked, zeros = SPELLINGS[name]
    keys = 5000 if online else 7  # more than a whole row of scores
    graph = read((INPUTS.replace(" 5, ", " 40, ").replace("7]", f"{keys}]").replace("7, ", f"{keys}, ")) + nodes)
    feeds = feeds_of(keys, rows=40)
    feeds["q"][0, 1, 3, 2], feeds["q"][1, 0, 30, 0], feeds["q"][1, 1, 39] = np.nan, np.inf, -np.inf
    q, k, v, m, a = (torch.from_numpy(feeds[n]) for n in "qkvma")
    p = masked(0.5 * q @ k.mT, m, a).softmax(-1)
    expected = ((p.nan_to_num(0) if zeros else p) @ v).numpy()
    assert fused(graph) and (zeros or np.isnan(expected).any())
    for engine, got in every_engine(graph, feeds).items():
        np.testing.assert_allclose(got["y"], expected, 2e-5, 2e-5, err_msg=engine)


FILLS = (-np.inf, LOW, WEAK, -1e9)
ORDERS = {  # of two masks: m with the first fill, then n with the second, or a, which is the second where n hides
    "chosen": "c = where(m, s, first)\n t = where(n, c, second)",
    "added": "c = where(m, s, first)\n t = add(c, a)",
    "chosen last": "c = add(s, a)\n t = where(m, c, first)",
}


@pytest.mark.parametrize("second", FILLS)
@pytest.mark.parametrize("first", FILLS)
@pytest.mark.parametrize("order", ORDERS)
def test_two_masks(order: str, first: float, second: float) -> None:
    """In places that neither, one or both of them hide, and in rows where one of these is all there is."""
    constants = f"constant first: f32[] = [{first}]\n constant second: f32[] = [{second}]\n "
    graph = read(INPUTS + "input n: bool[2, 1, 5, 7]\n " + constants + SCORES + ORDERS[order] + SOFTMAX)
    rng = np.random.default_rng(10)
    feeds = feeds_of()
    kept = rng.random((2, 2, 1, 5, 7)) < 0.4
    kept[0, 0, :, 0] = kept[1, 0, :, 0] = False  # both hide the row
    kept[0, 0, :, 1], kept[1, 0, :, 1] = rng.random(7) < 0.5, False  # the second does, the first in places
    kept[0, 0, :, 2], kept[1, 0, :, 2] = False, rng.random(7) < 0.5
    kept[0, 0, :, 3] = ~kept[1, 0, :, 3]  # each hides what the other shows
    feeds["m"], feeds["n"] = kept
    feeds["a"] = np.where(feeds["n"], 0, np.float32(second)).astype(np.float32)
    feeds = {name: feeds[name] for name in graph.inputs}
    q, k, v, m, a, n = (torch.from_numpy(feeds[name]) for name in "qkvman")
    scores = 0.5 * q @ k.mT
    masked = {
        "chosen": lambda: scores.where(m, first).where(n, second),
        "added": lambda: scores.where(m, first) + a,
        "chosen last": lambda: (scores + a).where(m, first),
    }[order]()
    expected = (masked.softmax(-1) @ v).numpy()
    finite = {first, "added" if order != "chosen" else second} - {-np.inf}
    assert fused(graph) == (len(finite) < 2 or -1e9 not in finite)
    for engine, got in every_engine(graph, feeds).items():
        np.testing.assert_allclose(got["y"], expected, 2e-5, 2e-5, err_msg=engine)


def test_emitted_rows_that_see_nothing() -> None:
    inputs = "".join(line + "\n" for line in INPUTS.splitlines() if line.split(":")[0].strip()[-1:] in "qkvm")
    zeros = "z = attention(q, k, v, m, scale=0.5, zero_nan=true)\n output z = z"
    graph = read(inputs + SPELLINGS["the op, NaN"][0] + "\n " + zeros)
    feeds = {name: array for name, array in feeds_of().items() if name in graph.inputs}
    feeds["q"][0, 1, 3, 2] = np.nan
    expected = native(graph, feeds)
    assert np.isnan(expected["y"]).any() and not np.isnan(expected["z"]).any()
    check_emitted(graph, feeds, expected, "-O1")


def test_torch_attention_gives_zeros() -> None:
    """The op is safe because torch's is: its exports are loaded as this op."""
    q, k, v, m, a = (torch.from_numpy(feeds_of()[n]) for n in "qkvma")
    for mask in (m, a):
        expected = F.scaled_dot_product_attention(q, k, v, mask, scale=0.5)
        assert (expected[0, :, 1 if mask is m else 2] == 0).all() and expected.isfinite().all()


@pytest.mark.parametrize("scale", (0.35, 1.0))
@pytest.mark.parametrize("size", (1e36, 1e37, 1e38, 3e38))
@pytest.mark.parametrize("width", (1, 8))
def test_scores_beyond_the_range_of_floats(size: float, width: int, scale: float) -> None:
    """NaN in the same rows for the interpreter and the kernels; elsewhere the limit, which is one value's row."""
    inputs = "".join(f"input {n}: f32[1, 2, {r}, {width}]\n " for n, r in (("q", 40), ("k", 7), ("v", 7)))
    graph = read(f"{inputs} y = attention(q, k, v, scale={scale})" + OUT)
    rng = np.random.default_rng(9)
    shapes = {"q": (1, 2, 40, width), "k": (1, 2, 7, width), "v": (1, 2, 7, width)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["q"] = np.clip(feeds["q"].astype(np.float64) * size, -3.4e38, 3.4e38).astype(np.float32)
    exact = interpret(graph, feeds, float64=True)["y"]
    results = every_engine(graph, feeds)
    expected = results["plain, interpreted"]["y"]
    assert np.isfinite(expected).any() and (size * scale < 2e38 or np.isnan(expected).any())
    for engine, got in ((name, each["y"]) for name, each in results.items()):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=engine)
        finite = np.isfinite(got)
        np.testing.assert_allclose(got[finite], exact[finite], 2e-5, 2e-5, err_msg=engine)

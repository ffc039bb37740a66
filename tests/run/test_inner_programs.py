"""Subgraphs of known shapes are programs of their own: what an `if` takes and what a loop repeats runs natively."""

import numpy as np
import pytest

from ingot import InferenceSession
from ingot.errors import InputError
from ingot.ir.graph import Graph
from ingot.ir.text import parse
from ingot.run.program import BranchSegment

CHOICE = """graph choice
input x: f32[B, 8]
input c: bool[]
weight w: f32[8, 8]
h = matmul(x, w): f32[B, 8]
y, n = if(c, h, w, h, then_branch={
graph then
input a: f32[B, 8]
input u: f32[8, 8]
b = matmul(a, u): f32[B, 8]
d = relu(b): f32[B, 8]
k = reduce_sum(d, axes=[1], keepdims=false): f32[B]
output b = d
output k = k
}, else_branch={
graph other
input a: f32[B, 8]
constant w: f32[8, 8] = CONSTANT
b = matmul(a, w): f32[B, 8]
k = reduce_max(b, axes=[1], keepdims=false): f32[B]
output b = b
output k = k
}): f32[B, 8], f32[B]
z = add(y, x): f32[B, 8]
output z = z
output n = n
"""

LOOP = """graph loop
input x: f32[4, 8]
input trips: i64[]
weight w: f32[8, 8]
y, s = loop(trips, none, x, w, carried=1, body={
graph body
input i: i64[]
input keep: bool[]
input a: f32[4, 8]
input u: f32[8, 8]
b = matmul(a, u): f32[4, 8]
t = tanh(b): f32[4, 8]
output keep = keep
output t = t
output b = b
}): f32[4, 8], f32[?, 4, 8]
output y = y
output s = s
"""


def read(text: str) -> Graph:
    rng = np.random.default_rng(1)
    constant = ", ".join(map(repr, rng.standard_normal(64).tolist()))
    lines = text.replace("CONSTANT", f"[{constant}]").replace("{\n", "{").replace("\n}", "}").split("\n")
    joined, depth = [], 0
    for line in lines:  # a subgraph is on one line, separated by semicolons
        joined.append(("; " if depth and joined else "\n") + line)
        depth += line.count("{") - line.count("}")
    return parse("".join(joined).lstrip("\n"), {"w": rng.standard_normal((8, 8)).astype(np.float32)})


@pytest.mark.parametrize("threads", [1, 2])
def test_branches_are_programs(threads: int) -> None:
    """A strict session takes an `if` of such branches; weights around it are weights in it, and packed once."""
    graph = read(CHOICE)
    session = InferenceSession(graph, threads=threads, strict=True)
    reference = InferenceSession(graph, executor="interpret")
    rng = np.random.default_rng(2)
    for batch in (1, 3, 1, 40):
        for c in (True, False, True):
            feeds = {"x": rng.standard_normal((batch, 8)).astype(np.float32), "c": np.array(c)}
            for got, expected in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert any(isinstance(segment, BranchSegment) for segment in session.program.segments)
    assert str(session.explain()).count("gemm_f32_packed") >= 3
    keys = [key for key, _ in session.weights.items() if key.endswith("w")]
    assert len(keys) == len(set(keys))


def test_a_saved_program_has_its_branches(tmp_path) -> None:
    graph = read(CHOICE)
    session = InferenceSession(graph, threads=1)
    feeds = {"x": np.random.default_rng(3).standard_normal((3, 8)).astype(np.float32)}
    expected = [session.run(None, feeds | {"c": np.array(c)}) for c in (True, False)]
    session.save(tmp_path / "program")
    again = InferenceSession(tmp_path / "program", threads=1, strict=True)
    for c, results in zip((True, False), expected, strict=True):
        for got, wanted in zip(again.run(None, feeds | {"c": np.array(c)}), results, strict=True):
            assert np.array_equal(got, wanted)


def test_a_loop_repeats_a_program() -> None:
    graph = read(LOOP)
    session, reference = InferenceSession(graph, threads=1), InferenceSession(graph, executor="interpret")
    x = np.random.default_rng(4).standard_normal((4, 8)).astype(np.float32)
    for trips in (0, 1, 5):
        feeds = {"x": x, "trips": np.array(trips)}
        for got, expected in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert "matmul" in str(session.explain()) and session.program.fallback == ["loop 'y'"]


def test_a_refusing_branch_is_an_error_when_it_is_taken() -> None:
    graph = parse(
        "graph g\ninput c: bool[]\ninput x: f32[2]\n"
        "y = if(c, x, c, then_branch={graph t; input a: f32[2]; b = neg(a): f32[2]; output b = b}, else_branch={"
        'graph r; input c: bool[]; b = refuse(c, why="rank", result=<f32[2]>): f32[2]; output b = b}): f32[2]\n'
        "output y = y\n"
    )
    for options in ({"strict": True}, {"executor": "interpret"}):
        session = InferenceSession(graph, **options)  # type: ignore[arg-type]
        x = np.ones(2, np.float32)
        assert np.array_equal(session.run(None, {"c": np.array(True), "x": x})[0], -x)
        with pytest.raises(InputError, match="takes a branch that does not fit these dims, rank"):
            session.run(None, {"c": np.array(False), "x": x})

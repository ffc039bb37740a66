"""`fuse=False`: a step for each node, and the bits of the fused program."""

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.ir.text import parse
from random_graphs import random_graph

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore::ingot.errors.ReferenceWarning")]

FUSED = """
    input x: f32[6, 40]
    weight w: f32[40, 64]
    weight v: f32[64, 40]
    weight b: f32[64]
    h = matmul(x, w)
    i = add(h, b)
    j = gelu(i)
    k = matmul(j, v)
    l = add(k, x)
    m = layer_norm(l, none, none, eps=1e-5)
    y = tanh(m)
    output y = y
    """
DIGITS = Path(ingot.__file__).parent / "data" / "digits.onnx"


def kernels(session: ingot.InferenceSession) -> list[str]:
    return [step.kernel for program in session.program.native for step in program.plan.steps]


def test_each_node_is_a_step() -> None:
    rng = np.random.default_rng(1)
    shapes = {"w": (40, 64), "v": (64, 40), "b": (64,)}
    graph = parse(FUSED, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    x = {"x": rng.standard_normal((6, 40)).astype(np.float32)}
    fused, apart = (ingot.InferenceSession(graph, threads=2, fuse=fuse) for fuse in (True, False))
    assert len(kernels(fused)) == 3 and len(kernels(apart)) == len(apart.graph)
    assert not any(name.startswith("fused") for name in kernels(apart))
    assert fused.run(None, x)[0].tobytes() == apart.run(None, x)[0].tobytes()


@pytest.mark.parametrize("seed", range(0, 120, 6))
def test_bits(seed: int) -> None:
    graph, feeds = random_graph(seed)
    first, second = (ingot.InferenceSession(graph, threads=2, fuse=fuse) for fuse in (True, False))
    for _ in range(2):  # of states
        for a, b in zip(first.run(None, feeds), second.run(None, feeds), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert len(kernels(first)) <= len(kernels(second)) and first.program.fallback == second.program.fallback


def test_saved_and_cached_programs(tmp_path: Path) -> None:
    session = ingot.InferenceSession(DIGITS, dims={"batch": 2}, fuse=False, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    feeds = {"image": np.random.default_rng(0).random((2, 1, 8, 8), np.float32)}
    session.save(tmp_path / "program")
    for fuse in (True, False):
        found = ingot.InferenceSession(tmp_path / "program", fuse=fuse)
        assert found.run(None, feeds)[0].tobytes() == session.run(None, feeds)[0].tobytes()

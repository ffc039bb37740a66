"""Gated matmuls, activation(x @ Wg + bg) * (x @ Wu + bu): what becomes one step, what does not, and its bits."""

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import models
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.lower.cpu.formats import F32
from ingot.lower.packed_weight import make_packed_weight
from ingot.lower.weight_expr import weight_expr
from ingot.run import packing, store
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.run.store import WeightStore

GATED = "gemm_f32_gated"


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32) / np.float32(4)


def gated(
    rows: int = 3, k: int = 40, half: int = 48, gate: int = 0, bias: bool = False, transposed: bool = True,
    merged: bool = False, activation: str = "silu", shown: str = "", **attributes: object,
) -> Graph:  # fmt: skip
    """gate: which half the activation is of. merged: the weight is a concat. shown: a value that is an output too."""
    graph = Graph("gated")
    x = graph.add_input("x", TensorType(f32, (rows, k)))
    axis = 0 if transposed else 1
    if merged:
        shape = (half, k) if transposed else (k, half)
        parts = [graph.add_weight(f"w{i}", draw(*shape, seed=i)) for i in range(2)]
        weight = graph.add("concat", parts, "w", axis=axis).output
    else:
        weight = graph.add_weight("w", draw(*((2 * half, k) if transposed else (k, 2 * half))))
    value = graph.add("matmul", [x, weight], "product", transpose_b=transposed).output
    if bias:
        value = graph.add("add", [value, graph.add_weight("b", draw(2 * half))], "biased").output
    halves = [
        graph.add(
            "slice", [value], f"half{i}", starts=(0, i * half), stops=(rows, i * half + half), steps=(1, 1)
        ).output
        for i in range(2)
    ]
    factor = graph.add(activation, [halves[gate]], "factor", **attributes).output
    graph.set_output("y", graph.add("mul", [factor, halves[1 - gate]], "y").output)
    if shown:
        graph.set_output("shown", shown)
    return graph


def session(graph: Graph, **options: object) -> ingot.InferenceSession:
    return ingot.InferenceSession(graph.copy(), passes=(), strict=True, **options)


def kernels(session: ingot.InferenceSession) -> list[str]:
    return [row["kernel"] for row in session.explain().to_json()["nodes"]]


@pytest.mark.parametrize("rows", [1, 3, 17, 128])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gate": 1, "bias": True, "activation": "gelu", "approximate": "erf"},
        {"half": 16, "merged": True},
        {"half": 112, "merged": True, "transposed": False, "gate": 1},
        {"transposed": False, "bias": True, "activation": "clip", "minimum": -0.5, "maximum": 0.25},
        {"k": 600, "half": 80, "bias": True, "activation": "sigmoid"},
    ],
    ids=str,
)
def test_one_step_with_the_bits_of_many(rows: int, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = gated(rows, **options)
    feeds = {"x": draw(rows, options.get("k", 40), seed=9)}
    one, many = session(graph), session(gated(rows, **options, shown="factor"))
    assert kernels(one) == [GATED] and GATED not in kernels(many)
    (expected,) = many.run(["y"], feeds)
    (exact,) = interpret(graph, feeds, float64=True).values()
    np.testing.assert_allclose(expected, exact, rtol=1e-4, atol=1e-5)
    monkeypatch.setenv("INGOT_CHECK", "3")
    for isa in load().isas():
        monkeypatch.setenv("INGOT_ISA", isa)
        for threads in (1, 2, 3):
            (got,) = session(graph, threads=threads).run(None, feeds)
            assert got.tobytes() == expected.tobytes(), (isa, threads)


@pytest.mark.parametrize(
    "options",
    [
        {"half": 24},
        {"half": 33},
        {"shown": "product"},
        {"shown": "half0"},
        {"shown": "half1"},
        {"bias": True, "shown": "biased"},
        {"activation": "exp"},
    ],
    ids=str,
)
def test_stays_unfused(options: dict) -> None:
    graph = gated(**options)
    whole = session(graph)
    assert GATED not in kernels(whole)
    feeds = {"x": draw(3, 40, seed=9)}
    np.testing.assert_allclose(
        whole.run(["y"], feeds)[0], interpret(graph, feeds, float64=True)["y"], rtol=1e-4, atol=1e-5
    )


def test_halves_that_overlap_or_stop_early_stay_unfused() -> None:
    for starts in ((0, 32), (0, 0), (16, 48)):
        graph = Graph("split_sums")
        x = graph.add_input("x", TensorType(f32, (3, 8)))
        m = graph.add("matmul", [x, graph.add_weight("w", draw(8, 96))]).output
        left, right = (
            graph.add("slice", [m], f"s{i}", starts=(0, at), stops=(3, at + 48), steps=(1, 1)).output
            for i, at in enumerate(starts)
        )
        graph.set_output("y", graph.add("mul", [graph.add("silu", [left]).output, right]).output)
        assert GATED not in kernels(session(graph))


class Llama(nn.Module):
    """The feed-forward of Llama: down(silu(gate(x)) * up(x))."""

    def __init__(self, bias: bool):
        super().__init__()
        self.gate, self.up = nn.Linear(64, 176, bias=bias), nn.Linear(64, 176, bias=False)
        self.down = nn.Linear(176, 64, bias=bias)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Chunked(nn.Module):
    """One projection, cut in two; the second half is the gate."""

    def __init__(self, spelling: str):
        super().__init__()
        self.spelling, self.both, self.down = spelling, nn.Linear(64, 352), nn.Linear(176, 64)

    def forward(self, x):
        if self.spelling == "glu":
            return self.down(nn.functional.glu(self.both(x), -1))
        up, gate = self.both(x).chunk(2, -1)
        return self.down(up * nn.functional.gelu(gate, approximate="tanh"))


@pytest.mark.parametrize(
    "build", [lambda: Llama(False), lambda: Llama(True), lambda: Chunked("glu"), lambda: Chunked("geglu")]
)
def test_a_gated_feed_forward_is_two_steps(build) -> None:
    module, x = models.seeded(build), torch.randn(2, 5, 64)
    whole = ingot.InferenceSession(module, example_inputs=(x,))
    assert kernels(whole) == [GATED, "gemm_f32_packed"]
    (name,) = (argument.name for argument in whole.get_inputs())
    (got,) = whole.run(None, {name: x.numpy()})
    with torch.inference_mode():
        np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-4, atol=1e-5)


def test_a_saved_program_keeps_its_panels(tmp_path) -> None:
    graph, feeds = gated(merged=True), {"x": draw(3, 40, seed=9)}
    first = session(graph)
    first.save(tmp_path / "program")
    again = ingot.InferenceSession(tmp_path / "program")
    assert again.run(None, feeds)[0].tobytes() == first.run(None, feeds)[0].tobytes()
    assert (tmp_path / "program" / "weights.bin").stat().st_size < 2 * 4 * 96 * 40  # the panels alone


def test_its_flops_are_those_of_both_halves() -> None:
    (step,) = session(gated(rows=5)).profile({"x": draw(5, 40)}).steps
    assert (step.kernel, step.cost.flops, step.cost.weight_bytes) == (GATED, 2 * 5 * 40 * 96, 4 * 40 * 96)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_packing_in_pieces(transposed: bool, merged: bool, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few panels, over threads, make what one piece makes."""
    graph = gated(k=24, half=208, transposed=transposed, merged=merged)
    packed_weight = make_packed_weight(weight_expr(graph, "w"), "gate_panels", transposed, F32)
    whole = interpret_weight(graph, merged, transposed)
    expected = whole.reshape(24, 2, 13, 16).transpose(2, 0, 1, 3).reshape(-1)
    for module in (store, packing):
        monkeypatch.setattr(module, "COPY_BYTES", 2 * 32 * 24 * 4)
    monkeypatch.setattr(store, "_SERIAL_BYTES", 0)
    assert WeightStore(threads).array(packed_weight).tobytes() == expected.tobytes()


def interpret_weight(graph: Graph, merged: bool, transposed: bool) -> np.ndarray:
    """The weight as [k, 2 * half]."""
    parts = [graph.data(name) for name in (("w0", "w1") if merged else ("w",))]
    return np.concatenate([part.T if transposed else part for part in parts], axis=1)

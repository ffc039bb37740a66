"""`ingot bench`: what it prints and counts; no time is asserted."""

import json
import re
import subprocess
from pathlib import Path

import click
import numpy as np
import pytest
from test_cli import DIGITS

import ingot
from ingot.cli.bench import expect_close, steps_sentence
from ingot.cli.demo_language import FOLDER as TINY_LM
from ingot.inspect import grid
from ingot.inspect.flops import flops
from ingot.inspect.kernel_bench import FAMILIES, Candidates
from ingot.inspect.kernel_choices import isolated
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.lower.cost import Cost
from ingot.run import probe
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.session.reports import Profile, StepTime, StepTotal

ROOT = Path(__file__).parents[2]
SHAPES = {
    "gemm": (3, 40, 70),
    "attention": (1, 2, 9, 12, 8),
    "attention-causal": (2, 2, 5, 9, 8),
    "conv": (4, 9, 8, 6, 3, 2, 2),
    "softmax": (5, 33),
    "layer_norm": (5, 33),
}
# Multiply-adds counted by hand: the causal rows of `attention-causal` see 5, 6, 7, 8 and 9 keys.
FLOPS = {
    "gemm": 2 * 3 * 40 * 70,
    "attention": 2 * 2 * 9 * 12 * (8 + 8),
    "attention-causal": 2 * 2 * 2 * (5 + 6 + 7 + 8 + 9) * (8 + 8),
    "conv": 2 * (6 * 5 * 4) * (2 * 3 * 3),
    "softmax": 0,
    "layer_norm": 0,
}


def text_of(family: str) -> str:
    return ",".join(map(str, SHAPES[family]))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_candidate_computes_the_op(family: str) -> None:
    """The reference's numbers on every instruction set, and equal bits between the sets of one kernel."""
    graph = FAMILIES[family].graph(SHAPES[family])
    found = Candidates.of(graph, load().isas(), 2)
    feeds = dict(zip(graph.inputs, found.inputs, strict=True))
    (expected,) = ingot.InferenceSession(graph, executor="interpret").run(None, feeds)
    results: dict[str, set[bytes]] = {}
    for candidate in found.able:
        (result,) = candidate.program.run(found.inputs)
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4, err_msg=candidate.kernel)
        results.setdefault(candidate.kernel, set()).add(result.tobytes())
    assert all(len(bits) == 1 for bits in results.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_of_nodes_are_those_counted_by_hand(family: str) -> None:
    graph = FAMILIES[family].graph(SHAPES[family])
    assert sum(flops(graph, node) for node in graph.nodes) == FLOPS[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_choice_is_what_a_session_runs_and_costs_are_exact(family: str) -> None:
    graph = FAMILIES[family].graph(SHAPES[family])
    found = Candidates.of(graph, load().isas(), 1)
    (chosen,) = (candidate for candidate in found.able if candidate.chosen)
    session = ingot.InferenceSession(graph, threads=1, passes=())
    assert chosen.kernel in [row["kernel"] for row in session.explain().to_json()["nodes"]]
    assert chosen.isa == load().isa()
    assert {candidate.cost.flops for candidate in found.able} == {FLOPS[family]}


def test_bytes_of_a_matvec() -> None:
    """The weights once, padded columns left out; the row that comes in and the row that goes out."""
    (gemv, *_) = Candidates.of(FAMILIES["gemm"].graph((1, 40, 70)), ["scalar"], 1).able
    assert gemv.kernel == "gemv_f32_packed"
    assert (gemv.cost.weight_bytes, gemv.cost.other_bytes) == (4 * 40 * 70, 4 * (40 + 70))


def test_a_gather_reads_what_it_writes() -> None:
    graph = Graph("lookup")
    ids = graph.add_input("ids", TensorType(ingot.ir.dtype.i64, (3,)))
    table = graph.add_weight("table", np.ones((1000, 4), np.float32))
    graph.set_output("y", graph.add("gather", [table, ids], axis=0).output)
    profile = ingot.InferenceSession(graph).profile({"ids": np.arange(3)}, runs=3)
    assert [step.cost.weight_bytes for step in profile.steps] == [3 * 4 * 4]
    assert [step.cost.other_bytes for step in profile.steps] == [3 * 8 + 3 * 4 * 4]


def test_a_broadcast_operand_is_read_once() -> None:
    graph = Graph("sum")
    x, row = (graph.add_input(n, TensorType(f32, s)) for n, s in (("x", (50, 6)), ("row", (1, 6))))
    graph.set_output("y", graph.add("add", [x, row]).output)
    feeds = {"x": np.ones((50, 6), np.float32), "row": np.ones((1, 6), np.float32)}
    (step,) = ingot.InferenceSession(graph, passes=()).profile(feeds).steps
    assert step.bytes_touched == 4 * (50 * 6 + 6 + 50 * 6)


@pytest.mark.parametrize("isa", load().isas())
def test_probes_run_on_every_instruction_set(isa: str) -> None:
    for threads in (1, 2, 3):
        assert probe.Probe("probe_fma_f32", isa, threads, count=1000).seconds(2) > 0
        reading = probe.Probe("probe_read_f32", isa, threads, nbytes=5000)
        assert reading.nbytes == 6144 and reading.seconds(2) > 0


def test_bench_of_a_model_as_json(call) -> None:
    code, out, err = call("bench", DIGITS, "--seconds", "0.05", "--dim", "batch=3", "--threads", "1", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["threads"] == 1 and document["runs"] > 0
    times = document["seconds"]
    assert 0 < times["min"] <= times["p50"] <= times["p90"] <= times["p99"]
    assert all(value > 0 for value in (*document["limits"].values(), *document["memory"].values()))
    listed = call("list-nodes", DIGITS, "--stage", "plan", "--dim", "batch=3", "--threads", "1", "--json")[1]
    kernels = [row["op"] for row in json.loads(listed)["nodes"]]
    assert [step["kernel"] for step in document["steps"]] == kernels
    assert all(step["of_limit"] >= 0 for step in document["steps"])


def test_bench_lists_the_slowest_steps_and_sums_up_the_others(call) -> None:
    code, out, _ = call("bench", "model", DIGITS, "--seconds", "0.05", "--top", "2")
    assert code == 0
    lines = out.splitlines()
    assert any(re.match(r" *\d+ others ", line) for line in lines)
    assert any("GFLOP/s" in line and "of limit" in line for line in lines)
    assert lines[-1].startswith("a run takes ")


def test_the_time_of_a_run_is_separate_from_its_steps() -> None:
    rest = "15 us in the Python call around them"
    assert steps_sentence(24e-6, 9e-6) == f"a run takes 24 us: 9 us in steps, {rest}"
    each = "each timed with a clock and a barrier after it"
    assert steps_sentence(9e-6, 24e-6) == f"a run takes 9 us; its steps, {each}, 24 us together"


def test_what_a_small_step_touches_is_near() -> None:
    """Operations, weights and activations at 10^9 a second; of these, those that fit are 4 times as quick."""
    roofline = probe.Roofline(1e9, 1e9, ((1000, 4e9), (50_000, 1e9)))
    assert roofline.seconds(0, 0, 1000) == 1000 / 4e9
    assert roofline.seconds(0, 0, 1001) == roofline.seconds(0, 1001, 0) == roofline.seconds(1001, 0, 0) == 1001 / 1e9
    assert roofline.seconds(0, 0, 1e6) == 1e6 / 1e9 and roofline.arena_bytes == 1e9


def test_equal_steps_are_one_kind() -> None:
    cost = Cost(100, 20, 3)
    steps = [StepTime("gemm", name, 2, 1000, cost, "1x2x3") for name in "ab"] + [StepTime("add", "c", 1, 500, cost)]
    totals = Profile(tuple(steps)).totals()
    assert totals == {"gemm x2 1x2x3": StepTotal(2, 2000, 200, 46), "add x1": StepTotal(1, 500, 100, 23)}


def test_bench_without_a_native_program(call) -> None:
    code, out, _ = call("bench", DIGITS, "--seconds", "0.02", "--executor", "interpret")
    assert code == 0 and "no table of steps" in out


@pytest.mark.parametrize("family", FAMILIES)
def test_bench_kernels_marks_the_choice(call, family: str) -> None:
    code, out, err = call("bench", "kernels", family, text_of(family), "--seconds", "0.02", "--isa", "all")
    assert (code, err) == (0, "")
    assert out.count("<--") == 1
    code, out, _ = call("bench", "kernels", family, text_of(family), "--seconds", "0.02", "--json")
    document = json.loads(out)
    (chosen,) = (row for row in document["candidates"] if row["chosen"])
    assert min(row["to_best"] for row in document["candidates"]) == 1 <= chosen["to_best"]


@pytest.mark.parametrize(("slack", "code"), [("100000%", 0), ("100000", 0)])
def test_bench_kernels_assert(call, slack: str, code: int) -> None:
    got, _, _ = call("bench", "kernels", "gemm", "1,64,64", "--seconds", "0.02", "--assert", slack)
    assert got == code


def test_bench_kernels_grid(call, monkeypatch) -> None:
    """The grid has shapes that its families accept; a family without shapes and a shape beside it are refused."""
    assert all(len(shape) == len(FAMILIES[name].numbers) for name in grid.GRID for shape in grid.shapes(name))
    monkeypatch.setattr(grid, "GRID", {"gemm": "1,64,64 70,16,8", "conv": "16,8,8,16,3,1,1"})
    code, out, _ = call("bench", "kernels", "--grid", "--seconds", "0.02", "--json")
    assert code == 0 and [row["count"] for row in json.loads(out)["choices"]] == [1, 1, 1]
    code, out, _ = call("bench", "kernels", "gemm", "--grid", "--seconds", "0.02")
    assert code == 0 and "2 distinct ops" in out
    for arguments in (["softmax", "--grid"], ["gemm", "1,64,64", "--grid"], ["gemm"]):
        assert call("bench", "kernels", *arguments)[0] == 2


def test_bench_kernels_assert_fails_when_the_choice_is_slow(capsys) -> None:
    expect_close(1.05, 0.05)
    with pytest.raises(click.exceptions.Exit) as ended:
        expect_close(1.06, 0.05)
    assert ended.value.exit_code == 1 and "takes 1.06 times the best time" in capsys.readouterr().err


def test_bench_choices(call) -> None:
    code, out, _ = call("bench", "choices", DIGITS, "--seconds", "0.01", "--dim", "batch=2", "--json")
    rows = json.loads(out)["choices"]
    assert code == 0 and {row["op"] for row in rows} >= {"conv"}
    for row in rows:
        assert row["to_best"] >= 1 and (row["to_best"] == 1) == (row["chosen"] == row["best"])
    code, out, _ = call("bench", "choices", DIGITS, "--seconds", "0.01", "--assert", "100000%")
    assert code == 0 and f"{len(rows)} distinct ops" in out


def test_nodes_alone_give_the_results_that_they_give_in_the_graph() -> None:
    session = ingot.InferenceSession(DIGITS, dims={"batch": 2})
    graph = session.graph
    feeds = {name: np.random.default_rng(5).random(graph.type(name).dims, np.float32) for name in graph.inputs}
    values = dict(feeds)
    interpret(graph, feeds, watch=values.__setitem__)
    for node in graph.nodes:
        alone = isolated(graph, node)
        varying = [name for name in dict.fromkeys(node.operands) if name is not None and graph.data(name) is None]
        got = interpret(alone, {x: values[name] for x, name in zip(alone.inputs, varying, strict=True)})
        for result, output in zip(got.values(), node.outputs, strict=True):
            np.testing.assert_array_equal(result, values[output])


WRONG = [
    (("choices", DIGITS, "--executor", "interpret"), "expected 'native'"),
    (("kernels", "gemm", "1,2"), "M,K,N"),
    (("kernels", "gemm", "1,2,3,4"), "M,K,N"),
    (("kernels", "gemm", "1,0,3"), "positive"),
    (("kernels", "gemm", "1,-2,3"), "positive"),
    (("kernels", "gemm", "1,x,3"), "positive"),
    (("kernels", "gemm", "99999999999,99999999999,99999999999"), "too large"),
    (("kernels", "gem", "1,2,3"), "attention-causal"),
    (("kernels", "conv", "3,8,8,4,3,1,2"), "SHAPE"),
    (("kernels", "gemm", "1,2,3", "--assert", "much"), "percentage"),
    (("kernels", "gemm"), "SHAPE"),
    (("kernels",), "FAMILY"),
    ((), "MODEL"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, tuple) else None)
def test_wrong_use_is_a_usage_error(call, arguments: tuple[str, ...], text: str) -> None:
    code, _, err = call("bench", *arguments)
    assert code == 2 and text in err and "Traceback" not in err


@pytest.mark.parametrize(("sequences", "mode"), [(1, "decode of 1"), (3, "batch of 3")])
def test_bench_of_a_language_model(call, sequences: int, mode: str) -> None:
    options = ("--prompt", 20, "--tokens", 3, "--threads", 1, "--context", 64, "--sequences", sequences)
    code, out, err = call("bench", TINY_LM, *options, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["precision"] == "bf16" and document["memory"]["sequences"] == sequences
    assert all(seconds > 0 for seconds in document["seconds"].values())
    assert document["tokens_per_second"]["prefill"] == pytest.approx(20 / document["seconds"]["prefill"])
    assert set(document["steps"]) == {"prefill of 64", mode}
    assert all(row["count"] and row["nanoseconds"] for rows in document["steps"].values() for row in rows.values())


def test_bench_of_a_language_model_in_words(call) -> None:
    code, out, err = call("bench", "llm", TINY_LM, "--prompt", 4, "--tokens", 2, "--context", 64, "--top", 2)
    assert (code, err) == (0, "")
    assert out.startswith("tiny-lm: weights as stored, precision bf16, ")
    for words in ("load", "prefill", "decode", "prefill of 64: kernel", "decode of 1: kernel", "other kinds"):
        assert words in out
    code, _, err = call("bench", "llm", TINY_LM, "--context", 64)
    assert code == 65 and "context of 64, got 128 + 32 tokens" in err


def test_roofline_compiles_with_the_structs_of_today() -> None:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT / 'src' / 'ingot' / 'csrc'}"]
    subprocess.run(["cc", *flags, str(ROOT / "benchmarks" / "roofline" / "roofline.c")], check=True)


def test_against_another_engine(call, tmp_path, monkeypatch) -> None:
    code, out, err = call("bench", DIGITS, "--against", "onnxruntime", "--seconds", "0.05", "--json")
    found = json.loads(out)
    assert code == 0, err
    assert set(found["seconds"]) == {"ingot", "onnxruntime"} and found["outputs_agree"]
    assert found["ratio"] == pytest.approx(found["seconds"]["ingot"] / found["seconds"]["onnxruntime"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    code, _, err = call("bench", DIGITS, "--against", "onnxruntime")
    assert code == 2 and "not installed, expected `pip install onnxruntime`" in err

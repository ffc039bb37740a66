"""Comparisons: planted faults are found at their nodes, random graphs give no alarm, capturing changes no bit."""

import json
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import pytest

import ingot
from adapters import adapter
from hf_models import save_model
from hf_recurrent_cases import RECURRENT_CASES
from ingot.compile import Mode, compile_mode
from ingot.errors import InputError, UnsupportedError
from ingot.inspect.comparison import planned_side
from ingot.inspect.comparison.captured import Captured
from ingot.inspect.comparison.compared import Compare
from ingot.inspect.comparison.foreign import OnnxSession
from ingot.inspect.comparison.heat import HeatMap
from ingot.inspect.comparison.measure import cosine, divergence, kurtosis, measure, noise, permuted_axes
from ingot.inspect.comparison.result import Comparison
from ingot.inspect.comparison.sides import Planned, Recorded, Reference, Side
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.ir.text import parse
from ingot.passes import optimize
from ingot.passes.precision import F32
from ingot.run.interpret import bind_symbols
from ingot.session.source import target_of
from inspect_models import DIGITS, TINY_LM
from planted_faults import FAULTS, PROGRAM_FAULTS, Fault
from random_graphs import random_graph

assert adapter  # a fixture


def side(executor: str, graph: Graph, feeds: dict) -> Side:
    """A side over a graph that has not been through the passes."""
    if executor in ("interpret", "float64"):
        return Reference(graph, feeds, float64=executor == "float64")
    optimized = graph.copy()
    optimize(optimized)
    return planned_side(executor, optimized, feeds, Mode(sizes=bind_symbols(graph, feeds)), 2)


def compared(a: Side, graph: Graph, feeds: dict) -> Comparison:
    return Compare("model", a, Reference(graph, feeds, float64=True), graph, feeds).result()


def expect_found(fault: Fault, executor: str, *, checks_sound: bool = True) -> None:
    """The sound graph agrees; the faulty one differs first at the fault's node."""
    graph, feeds = fault.build()
    optimized = graph.copy()
    optimize(optimized)
    faulty = optimized.copy()
    fault.plant(faulty)
    if checks_sound:
        assert compared(planned_side(executor, optimized, feeds, Mode(), 2), graph, feeds).agrees
    first = compared(planned_side(executor, faulty, feeds, Mode(), 2), graph, feeds).first
    assert first is not None and fault.node in (first.name, *first.replaced), first


@pytest.mark.parametrize("below", [-1, 1])
def test_a_float_near_a_half_is_rounded_to_either_side(below: int) -> None:
    """A sum in f32 is a half, which a sum in float64 is not; both are right."""
    graph = Graph("half")
    graph.add_input("x", TensorType(f32, (64,)))
    graph.add_constant("offset", np.float32(-0.25) - below * np.float32(3e-7))
    graph.add("add", ["x", "offset"], "moved")
    graph.add("round", ["moved"], "rounded")
    graph.set_output("rounded", "rounded")
    graph.set_output("moved", "moved")
    feeds = {"x": np.arange(64, dtype=np.float32) - np.float32(32.25)}
    assert compared(side("native", graph, feeds), graph, feeds).agrees


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_in_a_graph_is_found(fault: Fault) -> None:
    expect_found(fault, "native")


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=() if i % 4 == 0 else pytest.mark.slow) for i, f in enumerate(FAULTS)], ids=str
)
def test_a_fault_in_a_graph_is_found_on_webgpu(adapter: str, fault: Fault) -> None:
    expect_found(fault, "webgpu")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS[::4], ids=str)
def test_a_fault_in_a_graph_is_found_in_emitted_c(monkeypatch, fault: Fault) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")
    expect_found(fault, "emit-c", checks_sound=False)  # each side is compiled twice


@pytest.mark.parametrize("fault", PROGRAM_FAULTS, ids=str)
def test_a_fault_in_a_program_is_found(fault: Fault) -> None:
    graph, feeds = fault.build()
    optimized = graph.copy()
    optimize(optimized)
    compiled = compile_mode(optimized, target_of("native", 2, F32))
    fault.break_program(compiled)
    first = compared(Planned(compiled, feeds, 2), graph, feeds).first
    assert first is not None and fault.node in (first.name, *first.replaced), first
    assert first.problem in ("numbers", "layout")  # the passes are not to blame


def expect_no_alarm(seed: int, executors: tuple[str, ...]) -> None:
    graph, feeds = random_graph(seed)
    for a, b in zip(executors, (*executors[1:], executors[0]), strict=True):
        found = Compare(str(seed), side(a, graph, feeds), side(b, graph, feeds), graph, feeds).result()
        assert found.agrees, f"seed {seed}: {found}"


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_give_no_alarm(seed: int) -> None:
    expect_no_alarm(seed, ("native", "float64", "interpret"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_random_graphs_give_no_alarm_on_any_executor(adapter: str, seed: int) -> None:
    expect_no_alarm(seed, ("native", "webgpu", "float64", "interpret"))


@pytest.mark.slow
@pytest.mark.parametrize("b", ["onnxruntime", "emit-c", "interpret", DIGITS])
def test_sides_of_other_kinds_agree(monkeypatch, b: str) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")
    assert ingot.compare(DIGITS, b=b, dims={"batch": 2}).agrees


@pytest.mark.slow
def test_torch_is_a_side() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    examples = (torch.randn(3, 8),)
    for a, b in (("native", "torch"), ("torch", "float64")):
        found = ingot.compare(model.eval(), a=a, b=b, example_inputs=examples)
        assert found.agrees and len(found.values) >= 3, found


def test_a_result_prints_and_converts() -> None:
    found = ingot.compare(DIGITS, b="interpret", inputs={"image": np.ones((2, 1, 8, 8), np.float32)})
    row = found.value("gelu")
    assert "conv2d" in row.replaced and "node_conv2d" in {source.name for source in row.sources}
    assert "every value is within its tolerance" in str(found) and json.loads(json.dumps(found.to_json()))["agrees"]


def test_types_come_before_numbers() -> None:
    graph = parse("input x: f32[2, 3]\ny = relu(x): f32[2, 3]\nz = tanh(y): f32[2, 3]\noutput z = z")
    other = parse("input x: f32[2, 3]\ny = permute(x, axes=[1, 0]): f32[3, 2]\nz = tanh(y): f32[3, 2]\noutput z = z")
    feeds = {"x": np.ones((2, 3), np.float32)}
    first = Compare("model", Reference(other, feeds), Reference(graph, feeds), graph, feeds).result().first
    assert first is not None and (first.name, first.problem) == ("y", "shape") and first.local is None


def test_the_origin_of_a_nan_is_named() -> None:
    graph = parse(
        "input x: f32[3]\nconstant c: f32[3] = [1.0, 1.0, 1.0]\na = sub(x, c): f32[3]\ny = log(a): f32[3]\n"
        "z = tanh(y): f32[3]\noutput z = z"
    )
    found = compared(
        side("native", graph, {"x": np.array([3, 2, 0.5], np.float32)}), graph, {"x": np.array([3, 2, 0.5], np.float32)}
    )
    assert found.nonfinite is not None and found.nonfinite.at == (2,)
    assert "log 'y'" in found.nonfinite.origin and "'a' -0.5" in found.nonfinite.origin


def test_a_fault_of_loading_is_no_fault_of_passes_or_kernels(tmp_path) -> None:
    """Values that another project computed, or another model: its errors do not count as rounding."""
    feeds = {"image": np.ones((1, 1, 8, 8), np.float32)}
    last = ingot.compare(DIGITS, b="interpret", inputs=feeds).values[-1]
    np.savez(tmp_path / "b.npz", **{last.name: np.full(last.shape, 7, np.float32)})
    first = ingot.compare(DIGITS, b=tmp_path / "b.npz", inputs=feeds).first
    assert first is not None and (first.name, first.problem) == (last.name, "graph")
    graph = parse("input x: f32[3]\ny = relu(x): f32[3]\nz = tanh(y): f32[3]\noutput z = z")
    other = parse("input x: f32[3]\ny = abs(x): f32[3]\nz = tanh(y): f32[3]\noutput z = z")
    own = {"x": np.array([-1, 2, 3], np.float32)}
    first = Compare("model", side("native", graph, own), Reference(other, own), other, own, graph).result().first
    assert first is not None and (first.name, first.problem) == ("z", "graph") and "y" in first.replaced
    with pytest.raises(InputError, match="no recorded value is one of the model"):
        Recorded(graph, own, {"w": own["x"]})


@pytest.mark.slow
def test_states_of_a_torch_module_begin_anew() -> None:
    import torch

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x
            return self.count * 2

    module = Counting()
    found = ingot.compare(module, b="torch", example_inputs=(torch.ones(3),), inputs={"x": np.ones(3, np.float32)})
    assert found.agrees and not found.changed, found
    assert module.count.tolist() == [0, 0, 0]


def test_errors_of_other_projects_are_typed(tmp_path) -> None:
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    node = helper.make_node("Relu", ["x"], ["y"])
    imports = [helper.make_opsetid("", 18)]
    model = helper.make_model(
        helper.make_graph([node], "g", ports[:1], ports[1:]), opset_imports=imports, ir_version=99
    )
    with pytest.raises(UnsupportedError, match="compare: onnxruntime raised"):
        OnnxSession(model.SerializeToString(), Graph(), {})
    model.ir_version = 8
    session = OnnxSession(model.SerializeToString(), Graph(), {"x": np.ones(3, np.float32)})
    with pytest.raises(UnsupportedError, match="compare: onnxruntime raised"):
        session.run()


def test_a_value_that_changes_between_runs_is_reported() -> None:
    class Unsteady(Reference):
        def run(self) -> dict:
            return {name: array + 1 for name, array in super().run().items()}

    graph = parse("input x: f32[3]\ny = relu(x): f32[3]\noutput y = y")
    found = compared(Unsteady(graph, {"x": np.ones(3, np.float32)}), graph, {"x": np.ones(3, np.float32)})
    assert found.changed == ("A: y",) and not found.agrees


def test_a_precision_is_ranked_by_its_error() -> None:
    found = ingot.compare(DIGITS, precision="int8", against="f32", dims={"batch": 4})
    assert found.keep_wider and found.first is None
    noisy = found.value(found.keep_wider[0])
    assert 1e-3 < noisy.noise < 1e-1 and 0.99 < noisy.cosine < 1 and 0 < noisy.divergence < 1e-3 < 1 <= noisy.kurtosis
    assert found.value("div").noise == 0


def test_a_language_model_is_compared_by_layer_and_position() -> None:
    ids = np.arange(5, dtype=np.int32)
    found = ingot.compare(TINY_LM, inputs={"ids": ids}, b="interpret")
    assert found.agrees and found.value("logits").shape == (5, 4096)
    ranked = ingot.compare(TINY_LM, precision="int8", against="f32", dims={"rows": 3})
    assert "int8" in ranked.a and any("mlp" in name or "gated" in name for name in ranked.keep_wider)
    with pytest.raises(InputError, match="the input ids and the dim rows, got image"):
        ingot.compare(TINY_LM, inputs={"image": ids})
    with pytest.raises(InputError, match="no such side of a language model, got 'torch'"):
        ingot.compare(TINY_LM, b="torch")


# transformers halves values of rwkv after some layers.
RECURRENT = {case.name: case for case in RECURRENT_CASES if case.type != "rwkv"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if i else ()) for i, name in enumerate(RECURRENT)]
)
def test_a_model_with_recurrent_state_is_compared(name: str, tmp_path) -> None:
    save_model(RECURRENT[name], tmp_path / "model")
    for b in ("interpret", "transformers"):
        found = ingot.compare(tmp_path / "model", b=b, precision="f32", dims={"rows": 6}, seed=1)
        assert len(found.values) > 3
        assert found.agrees, (b, found.first)


@pytest.mark.slow
def test_transformers_is_a_side_of_a_language_model() -> None:
    found = ingot.compare(TINY_LM, b="transformers", precision="f32", dims={"rows": 4})
    names = {row.name for row in found.values}
    assert found.agrees and found.b == "transformers" and {"logits", "model.layers.3.self_attn.q_proj"} <= names
    assert found.value("logits").local.maximum < 1e-4
    with pytest.raises(InputError, match="side B transformers needs a language model"):
        ingot.compare(DIGITS, b="transformers")


def test_captured_arrays_are_stored_on_disk() -> None:
    captured = Captured(memory_bytes=100)
    arrays = {f"x{i}": np.random.default_rng(i).random((3, i)) for i in range(8)} | {
        "scalar": np.float32(3).reshape(())
    }
    for name, array in arrays.items():
        captured.add(name, array)
    assert captured.file_bytes and set(captured) == set(arrays) and len(captured) == len(arrays)
    for name, array in arrays.items():
        assert np.array_equal(captured[name], array) and captured[name].dtype == array.dtype


def test_errors_are_measured() -> None:
    expected = np.linspace(1, 2, 1000)
    got = expected.astype(np.float32).copy()
    got[7] += np.float32(0.5)
    error = measure(got, expected)
    assert error.at == (7,) and error.maximum == pytest.approx(0.5 / expected[7], rel=1e-6)
    assert error.median < 1e-7 and error.quantile < 1e-7 and error.ulp == pytest.approx(0.5 * 2**23, rel=0.01)
    got[3] = np.nan
    assert measure(got, expected).maximum == np.inf and measure(got, expected).at == (3,)
    assert permuted_axes(np.arange(6.0).reshape(2, 3).T.reshape(2, 3), np.arange(6.0).reshape(2, 3), 0) == (1, 0)
    p = np.array([[1.0, 2.0, -np.inf]])
    assert (
        divergence(p, p) == 0
        and cosine(p[:, :2], 2 * p[:, :2]) == pytest.approx(1)
        and noise(2 * p[:, :2], p[:, :2]) == 1
    )
    q = np.array([[2.0, 1.0, -np.inf]])
    assert divergence(q, p) == pytest.approx(np.tanh(0.5))
    spread, normal = np.linspace(-5, 2, 10_001), np.random.default_rng(0).normal(3, 2, 200_000)
    assert kurtosis(np.float32([-1, 1, np.inf, np.nan])) == 1 and kurtosis(np.ones(5, np.float32)) is None
    assert kurtosis(spread) == pytest.approx(1.8, rel=1e-3) and kurtosis(normal) == pytest.approx(3, rel=0.03)
    assert kurtosis(np.append(normal, 400)) > 100 and kurtosis(np.zeros(0)) is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"a": "gpu"}, "unknown side, got 'gpu'"),
        ({"against": "f32"}, "option against"),
        ({"dims": {"b": 2}}, "no such dim, got b"),
        ({"inputs": {"image": np.ones((1, 1, 8, 9), np.float32)}}, "wrong dim 3, got 9, expected 8"),
    ],
    ids=str,
)
def test_wrong_options_are_errors(options: dict, error: str) -> None:
    with pytest.raises(InputError, match=error):
        ingot.compare(DIGITS, **options)


def test_the_command_fails_if_a_condition_does(call, tmp_path) -> None:
    assert call("compare", DIGITS, "--assert", "local<1e-5", "--assert", "values==9")[0] == 0
    code, _, err = call("compare", DIGITS, "--assert", "local<1e-12")
    assert code == 1 and "does not hold, got local" in err
    (tmp_path / "no.onnx").write_text("no model")  # which is not read before a condition
    assert call("compare", tmp_path / "no.onnx", "--assert", "local~1")[0] == 2
    assert call("compare", tmp_path / "no.onnx", "--assert", "speed>1")[0] == 2
    np.save(tmp_path / "x.npy", np.ones((2, 1, 8, 8), np.float32))
    code, out, _ = call("compare", DIGITS, "--input", f"image={tmp_path / 'x.npy'}", "--all", "--json")
    assert code == 0 and json.loads(out)["values"][0]["shape"] == [2, 1, 8, 8]
    assert os.path.exists(DIGITS) and call("compare", DIGITS, "--b", "absent.onnx")[0] == 2


@pytest.mark.parametrize(
    ("shape", "at", "matrix", "cell"),
    [((), (), (1, 1), (0, 0)), ((5,), (3,), (1, 5), (0, 3)), ((4, 6), (2, 5), (4, 6), (2, 5)),
     ((1, 32, 8, 8), (0, 3, 2, 4), (32, 64), (1, 20)), ((2, 3, 200), (1, 0, 199), (6, 200), (3, 49))],
)  # fmt: skip
def test_a_heat_map_shows_where_the_errors_are(shape: tuple, at: tuple, matrix: tuple, cell: tuple) -> None:
    expected = np.ones(shape, np.float32)
    got = expected.copy()
    got[at] = 1.5
    found = HeatMap.of(got, expected)
    cells = np.array(found.cells)
    assert (found.rows, found.columns) == matrix and cells.shape[0] <= 16 and cells.shape[1] <= 64
    assert cells[cell] == 0.5 and np.count_nonzero(cells) == 1
    assert [*found.lines()][2 + cell[0]] == f"|{' ' * cell[1]}@{' ' * (cells.shape[1] - cell[1] - 1)}|"


def test_shades_of_a_heat_map_span_four_decades() -> None:
    expected = np.zeros(7)
    *_, row = HeatMap.of(np.array([0, 1, 0.5, 1e-2, 1e-3, 1e-4, 1e-9]), expected).lines()
    assert row == "| @%=:..|"
    *_, row = HeatMap.of(np.array([0, np.nan, 1, 0, 0, 0, 0]), expected).lines()
    assert row == "| @.    |"


def test_the_command_writes_errors_for_model_explorer(call, tmp_path) -> None:
    path, model = tmp_path / "errors.json", tmp_path / "wrong.onnx"
    proto = onnx.load(DIGITS)
    (weight,) = (each for each in proto.graph.initializer if each.name == "classifier.features.2.weight")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[3] *= 1.5
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(proto, model)
    code, out, _ = call("compare", model, "--b", DIGITS, "-o", path, "--json")
    found = json.loads(path.read_text())["results"]
    rows = {row["name"]: row for row in json.loads(out)["values"]}
    assert code == 1 and found["gelu"]["value"] < 1 < found["gelu_1"]["value"] == max(
        v["value"] for v in found.values()
    )
    assert found["gelu_2"]["value"] == rows["gelu_2"]["local"]["maximum"] / rows["gelu_2"]["tolerance"]
    cells = np.array(rows["gelu_1"]["heat"]["cells"])
    assert cells.shape == (16, 64) and [*np.flatnonzero(cells.max(axis=1) > 1e-3)] == [1]  # channel 3


def test_a_wrong_weight_is_named(tmp_path, call) -> None:
    """Another model with the same names: the first wrong value, and the weight that it is computed from."""
    model = onnx.load(DIGITS)
    (weight,) = (each for each in model.graph.initializer if each.name == "classifier.features.2.weight")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[5, 3] *= -1
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, tmp_path / "wrong.onnx")
    found = ingot.compare(tmp_path / "wrong.onnx", b=DIGITS)
    text = "weight 'classifier.features.2.weight' differs in 9 of 4,608 elements"
    assert found.b == "digits.onnx" and found.first is not None and found.first.name == "gelu_1"
    assert found.first.problem == "graph" and found.first.detail.endswith(text)
    code, out, _ = call("bisect", tmp_path / "wrong.onnx", "--b", DIGITS)
    assert code == 0 and text in out and "1 node fails alone" in out and "conv 'conv2d_1'" in out


def test_a_wrong_weight_of_a_language_model_is_named(tmp_path) -> None:
    shutil.copytree(TINY_LM, tmp_path / "wrong")
    path, name = tmp_path / "wrong" / "model.safetensors", "model.layers.3.mlp.down_proj.weight"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    row = json.loads(content[8 : 8 + size])[name]
    at = 8 + size + row["data_offsets"][0] + 2 * (7 * row["shape"][1] + 11)
    content[at : at + 2] = np.array([5.0], ml_dtypes.bfloat16).tobytes()
    path.write_bytes(content)
    found = ingot.compare(tmp_path / "wrong", b=TINY_LM, dims={"rows": 4})
    assert row["dtype"] == "BF16" and found.first is not None and f"{name!r} differs in 1 of" in found.first.detail
    same = ingot.compare(TINY_LM, b=TINY_LM, dims={"rows": 2}, precision="f32")
    assert same.agrees and same.b == Path(TINY_LM).name
    with pytest.raises(InputError, match="or the path of a language model"):
        ingot.compare(TINY_LM, b=DIGITS)

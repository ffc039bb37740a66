"""What INGOT_WGPU_FEATURES adds on WebGPU: sums by subgroups, products in f16, and what an adapter may lack."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ingot
import ingot.ops
from adapters import adapter, quick_on_each
from ingot.cli import commands
from ingot.cli.demo_language import FOLDER
from ingot.errors import InputError, UnsupportedError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.device import open_device
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession

assert ingot.ops and adapter
pytestmark = pytest.mark.usefixtures("adapter")

F16_ERROR = 2.0**-7  # of a product in f16, relative to the sum of the sizes of its terms


@quick_on_each
def test_subgroups_meet_in_norms_and_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows shorter and longer than a workgroup, with NaN and infinities among them; twice the same bits."""
    rng = np.random.default_rng(5)
    for cols in (1, 3, 64, 65, 300):
        graph, x = Graph("rows"), (rng.standard_normal((7, cols)) * 3 - 5).astype(np.float32)
        x[3, cols // 2], x[4, cols - 1], x[5] = np.nan, np.inf, -np.inf
        graph.add_input("x", TensorType(f32, x.shape))
        for op in ("max", "min", "sum", "mean"):
            graph.set_output(op, graph.add(f"reduce_{op}", ["x"], axes=(1,), keepdims=False).output)
        graph.set_output("softmax", graph.add("softmax", ["x"], axis=1).output)
        monkeypatch.delenv("INGOT_WGPU_FEATURES", raising=False)
        plain = InferenceSession(graph, executor="webgpu", strict=True, passes=())
        monkeypatch.setenv("INGOT_WGPU_FEATURES", "subgroups")
        session = InferenceSession(graph, executor="webgpu", strict=True, passes=())
        assert "subgroup" in "".join(session.program.only.dispatches.shaders)
        assert "subgroup" not in "".join(plain.program.only.dispatches.shaders)
        found, again = session.run(None, {"x": x}), session.run(None, {"x": x})
        exact = interpret(graph, {"x": x}, float64=True)
        for name, value, same in zip(graph.outputs, found, again, strict=True):
            np.testing.assert_allclose(value, exact[name], rtol=2e-6, atol=2e-6, err_msg=f"{name} of {cols}")
            assert value.tobytes() == same.tobytes(), name


def test_the_shipped_model_s_tokens_are_native_s_by_subgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_WGPU_FEATURES", "subgroups")
    llms = [ingot.LLM(FOLDER, executor=each, precision="f32") for each in ("webgpu", "native")]
    prompt = llms[0].tokenizer.encode("def fibonacci(n):\n")
    found, expected = (list(llm.generate_tokens(prompt, max_tokens=24)) for llm in llms)
    assert found == expected and len(found) == 24
    assert "subgroupAdd" in "".join(llms[0].engine.mode("decode").native.dispatches.shaders)


def of_f16(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A product in float64, and how far from it one in f16 may be."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ b, F16_ERROR * (np.abs(a) @ np.abs(b))


@quick_on_each
def test_products_in_f16_are_within_their_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of panels, gated pairs and of what is no weight; where the adapter lacks f16, that is an error."""
    features = open_device().adapter.features
    monkeypatch.setenv("INGOT_WGPU_FEATURES", "shader-f16")
    if "shader-f16" not in features:
        lacks = r"INGOT_WGPU_FEATURES: not supported by '.*', got 'shader-f16', expected some of subgroups"
        with pytest.raises(UnsupportedError, match=lacks):
            InferenceSession(Path(ingot.__file__).parent / "data" / "digits.onnx", executor="webgpu")
        return
    rng = np.random.default_rng(3)
    for m, k, n in ((5, 37, 32), (40, 300, 64)):
        a, b, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (k, n)))
        graph = Graph("products")
        feeds = {"a": a, "b": b, "again": a}
        for name, array in feeds.items():
            graph.add_input(name, TensorType(f32, array.shape))
        gate, up = (graph.add("matmul", ["a", graph.add_weight(*each)]).output for each in (("w", b), ("v", v)))
        graph.set_output("gated", graph.add("mul", [graph.add("relu", [gate]).output, up]).output)
        graph.set_output("given", graph.add("matmul", ["a", "b"]).output)
        graph.set_output("packed", graph.add("matmul", ["again", graph.add_weight("z", b)]).output)
        session = InferenceSession(graph, executor="webgpu", strict=True)
        lowered = session.program.only
        assert all("alias Term = f16;" in text for text in lowered.dispatches.shaders)
        assert {step.kernel for step in lowered.plan.steps} == {"gemm_f32_gated", "gemm_f32_packed", "matmul_f32"}
        (x, x_most), (y, y_most) = (of_f16(a, each) for each in (b, v))
        gated, given, packed = session.run(None, feeds)
        assert (np.abs(gated - np.maximum(0, x) * y) <= x_most * (np.abs(y) + y_most) + np.abs(x) * y_most).all()
        for result in (given, packed):
            assert (np.abs(result - x) <= x_most).all()


def test_features_are_listed_and_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(Path(ingot.__file__).parent / "data" / "digits.onnx")
    monkeypatch.setenv("INGOT_WGPU_FEATURES", "subgroups")
    arguments = ["explain", model, "--executor", "webgpu", "--dim", "batch=1", "--json"]
    assert json.loads(CliRunner().invoke(commands, arguments).stdout)["isa"] == "wgsl+subgroups"
    monkeypatch.setenv("INGOT_WGPU_FEATURES", "subgroups, f64")
    with pytest.raises(InputError, match=r"no such feature, got 'f64', expected some of subgroups, shader-f16"):
        InferenceSession(model, executor="webgpu")

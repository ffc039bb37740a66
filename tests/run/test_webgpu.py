"""WebGPU on a software adapter: every sample of every op, models beside native, and what a model or a machine lacks."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import ingot
import ingot.ops
import models
from ingot import abi
from ingot.compile import compile_mode
from ingot.dtype import boolean, f32, from_numpy, i64
from ingot.errors import InputError, LimitError, ReferenceWarning, UnsupportedError
from ingot.ir import OPS, Graph, Op, Sample, TensorType
from ingot.lower.wgpu import WEBGPU
from ingot.lower.wgpu.kernels import KERNELS
from ingot.ops.define import draw
from ingot.run.device import open_device
from ingot.run.interpret import interpret
from ingot.session import InferenceSession
from op_cases import STATIC_CASES, one_node

assert ingot.ops

# Ops no sample of which is made of kernels in WGSL alone; the rest of a graph runs there all the same.
GAPS = {
    "append_keys", "append_keys_int4", "append_keys_int8", "append_values", "append_values_int4", "append_values_int8",
    "arange", "bitcast", "cached_attention", "compress", "conv_integer", "decode_blocks", "decode_image", "det",
    "dynamic_quantize", "expert_matmul", "fft", "gru", "irfft", "label_encode", "lstm", "matmul_integer", "measure",
    "non_max_suppression", "nonzero", "pairwise_coupling", "pow", "quantize", "quantize_groups", "reduce_over",
    "regex_full_match", "rfft", "rnn", "scatter_elements", "string_concat", "string_normalize", "string_split", "topk",
    "tree_ensemble", "unique", "unpack",
}  # fmt: skip
# Those some samples of which are not, and why.
PARTIAL = {
    "conv": "no integers", "dequantize": "codes of 8 bits and narrower", "floor_div": "no floats",
    "grid_sample": "no kernel for images", "matmul": "no integers", "max_pool": "no u8", "max_pool_indices": "no u8",
    "mod": "no floats", "roi_align": "samples of the grid", "tfidf": "no strings",
}  # fmt: skip
# Samples whose numbers do not fit in 32 bits.
WIDE = {("clip", "x:i64>-9<10[3,5]"), ("shift_left", "a:i64>-99<100[3,67] b:i64>-9<99[67]")} | {
    ("roi_align", sample.operands) for sample in OPS["roi_align"].samples
}
# Rows of the element-wise table of types that are held there, without a function in elementwise.wgsl.
UNWRITTEN = {
    *("floor_div_f32", "mod_f32", "pow_f32", "pow_i64"),
    *("gelu_gradient_erf_f32", "gelu_gradient_tanh_f32", "relu_gradient_f32", "silu_gradient_f32"),
}


def is_whole(op: Op, sample: Sample) -> bool:
    """Whether a sample is one segment of kernels."""
    compiled = compile_mode(one_node(op, sample)[0], WEBGPU)
    return len(compiled.segments) == 1 and compiled.segments[0].native is not None


@functools.cache
def whole(name: str) -> tuple[Sample, ...]:
    """The samples of an op that are."""
    return tuple(sample for sample in OPS[name].samples if is_whole(OPS[name], sample))


def side_by_side(op: Op, samples: Sequence[Sample]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Samples of an op in one graph, and what it is fed."""
    graph, feeds = Graph(op.name), {}
    for number, sample in enumerate(samples):
        names: list[str | None] = []
        for i, array in enumerate(draw(sample.operands, np.random.default_rng(7), op.domain)):
            names.append(None if array is None else f"x{number}.{i}")
            if array is not None:
                graph.add_input(f"x{number}.{i}", TensorType(from_numpy(array.dtype), array.shape))
                feeds[f"x{number}.{i}"] = array
        for i, output in enumerate(graph.add(op.name, names, **sample.attributes).outputs):
            graph.set_output(f"y{number}.{i}", output)
    return graph, feeds


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest error relative to max(1, |expected|); equal infinities and NaNs agree."""
    assert actual.shape == expected.shape
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float(np.max(np.where(same, 0, error), initial=0))


def on_webgpu(source: object, **options: object) -> InferenceSession:
    return InferenceSession(source, executor="webgpu", strict=True, **options)  # type: ignore[arg-type]


def expect_reference(graph: Graph, feeds: dict[str, np.ndarray], tolerance: float) -> None:
    exact = interpret(graph, feeds, float64=True)
    for name, result in zip(graph.outputs, on_webgpu(graph, passes=()).run(None, feeds), strict=True):
        assert result.dtype == graph.type(graph.outputs[name]).dtype.numpy
        assert error_of(result, exact[name]) <= tolerance, name


# -- ops --------------------------------------------------------------------------------------------------------

TRIED = sorted({op.name for op in OPS.values() if op.samples and op.operand_names} - GAPS)


@pytest.mark.parametrize("name", TRIED)
def test_samples_are_the_reference_s(name: str) -> None:
    op = OPS[name]
    expect_reference(*side_by_side(op, [s for s in whole(name) if (name, s.operands) not in WIDE]), op.tolerance[f32])


def test_gaps_are_the_known_ones() -> None:
    """An op that is listed and has kernels by now fails, too."""
    counts = {op.name: (len(whole(op.name)), len(op.samples)) for op in OPS.values() if op.samples and op.operand_names}
    assert {name for name, (found, _) in counts.items() if found == 0} == GAPS
    assert {name for name, (found, all) in counts.items() if 0 < found < all} == set(PARTIAL)


def test_wide_samples_are_still_too_wide() -> None:
    for name in {name for name, _ in WIDE}:
        op, samples = OPS[name], [sample for sample in whole(name) if (name, sample.operands) in WIDE]
        with pytest.raises((LimitError, AssertionError)):
            expect_reference(*side_by_side(op, samples), op.tolerance[f32])


@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_weights_are_packed_for_products(name: str) -> None:
    for op, sample, static in STATIC_CASES:
        if op.name == name and is_whole(op, sample):
            graph, feeds = one_node(op, sample, static)
            expect_reference(graph, feeds, op.tolerance[f32])


def test_the_element_wise_table_is_written_in_wgsl() -> None:
    held = {row.kernel for row in abi.elementwise().values() if row.dtype in (f32.name, i64.name, boolean.name)}
    assert held - KERNELS.keys() == UNWRITTEN


# -- models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "block", "causal block", "bert"])
def test_models_are_native_s(model: str) -> None:
    built = {
        "mlp": models.mlp,
        "block": models.block,
        "causal block": lambda: models.block("manual", causal=True),
        "bert": models.bert,
    }[model]()
    expect_native(*built)


def expect_native(module: object, example: tuple[np.ndarray, ...]) -> None:
    native = InferenceSession(module, example_inputs=example)
    session = on_webgpu(native.graph)
    feeds = dict(zip((argument.name for argument in native.get_inputs()), map(np.asarray, example), strict=True))
    for actual, expected in zip(session.run(None, feeds), native.run(None, feeds), strict=True):
        assert error_of(actual, expected) <= 1e-4


def test_digits_are_read_as_by_native() -> None:
    data = Path(ingot.__file__).parent / "data"
    with np.load(data / "digits.npz") as held_out:
        feeds = {"image": held_out["images"][:16, None].astype(np.float32)}
    model = (data / "digits.onnx").read_bytes()
    session, native = on_webgpu(model), InferenceSession(model)
    (actual,), (expected,) = session.run(None, feeds), native.run(None, feeds)
    assert error_of(actual, expected) <= 1e-5
    assert all(np.array_equal(session.run(None, feeds)[0], actual) for _ in range(3)), "the same bits at every run"
    assert session.context().run(None, {"image": feeds["image"][:3]})[0].shape == (3, 10)


# -- what a model or a machine lacks ----------------------------------------------------------------------------


def product(k: int) -> Graph:
    """A graph of one product with ones, f32[2, k] @ f32[k, 1024]."""
    graph = Graph("product")
    graph.add_input("x", TensorType(f32, (2, k)))
    weight = graph.add_weight("w", np.broadcast_to(np.float32(1), (k, 1024)))
    attributes = {"transpose_a": False, "transpose_b": False, "scale": 1.0}
    graph.set_output("y", graph.add("matmul", ["x", weight], **attributes).output)
    return graph


def rows_of(table: np.ndarray) -> Graph:
    """A graph that takes two rows of a table."""
    graph = Graph("rows")
    graph.add_input("x", TensorType(i64, (2,)))
    graph.set_output("y", graph.add("gather", [graph.add_weight("w", table), "x"], axis=0).output)
    return graph


TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_after_the_first_run_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    session, feeds = on_webgpu(product(4)), {"x": np.ones((2, 4), np.float32)}
    gpu, made = open_device().gpu, []

    def noted(name: str) -> Callable[..., object]:
        create = getattr(gpu, name)
        return lambda **given: made.append((name, given.get("size"))) or create(**given)

    for name in ("create_buffer", "create_bind_group", "create_compute_pipeline", "create_shader_module"):
        monkeypatch.setattr(gpu, name, noted(name))
    assert session.run(None, feeds)[0][1, 1023] == 4
    assert made == []
    assert session.context().run(None, feeds)[0].shape == (2, 1024)
    assert ("create_bind_group", None) in made
    assert ("create_buffer", 4 * 4 * 1024) not in made, "a context shares the weights"


def test_an_index_outside_is_an_error() -> None:
    session = on_webgpu(rows_of(TABLE))
    for _ in range(2):
        with pytest.raises(InputError, match=r"index out of range, got 3, expected -3..2"):
            session.run(None, {"x": np.array([0, 3])})
    assert session.run(None, {"x": np.array([-1, 0])})[0].tolist() == [[4, 5], [0, 1]]


def test_integers_are_checked_where_they_enter() -> None:
    session = on_webgpu(rows_of(TABLE))
    with pytest.raises(InputError, match=r"input 'x': webgpu has integers of 32 bits, got 2147483648, expected -2147"):
        session.run(None, {"x": np.array([0, 2**31])})
    with pytest.raises(LimitError, match=r"weight 'w': webgpu has integers of 32 bits, got -2147483649"):
        on_webgpu(rows_of(np.array([[-(2**31) - 1]])))


def test_a_region_is_no_larger_than_a_binding() -> None:
    with pytest.raises(LimitError, match=r"weights: too large, got 134348800 bytes, expected at most 134217728"):
        on_webgpu(product(32800))


def test_what_has_no_kernel_runs_on_the_reference_or_is_refused() -> None:
    graph = Graph("power")
    graph.add_input("x", TensorType(f32, (3,)))
    power = graph.add("pow", [graph.add("exp", ["x"]).output, "x"], "power").output
    graph.set_output("y", graph.add("neg", [power]).output)
    with pytest.raises(UnsupportedError, match=r"strict: no kernel of webgpu, got pow 'power'"):
        on_webgpu(graph)
    session, feeds = InferenceSession(graph, executor="webgpu"), {"x": np.array([0.5, 1, 2], np.float32)}
    with pytest.warns(ReferenceWarning, match="pow 'power'"):
        (result,) = session.run(None, feeds)
    assert error_of(result, interpret(graph, feeds, float64=True)["y"]) <= 1e-5
    assert "on the reference: pow 'power'" in str(session.explain())


def test_what_webgpu_does_not_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="precision: webgpu computes in f32 alone, got 'bf16'"):
        on_webgpu(product(4), precision="bf16")
    session = on_webgpu(product(4))
    with pytest.raises(UnsupportedError, match="profile: no clock around steps"):
        session.profile({"x": np.ones((2, 4), np.float32)})
    with pytest.raises(UnsupportedError, match="save: no program of its own"):
        session.save(tmp_path / "saved")


def test_a_limit_of_a_dim_is_a_program_for_each_size() -> None:
    model = (Path(ingot.__file__).parent / "data" / "digits.onnx").read_bytes()
    dims = {symbol: ingot.at_most(4) for symbol in InferenceSession(model).graph.symbols}
    session = on_webgpu(model, dims=dims)
    for size in (2, 3):
        feeds = {"image": np.ones((size, 1, 8, 8), np.float32)}
        assert session.run(None, feeds)[0].shape == (size, 10)
    assert "webgpu: one program for several sizes" in session.bindings.unplanned


def printed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | environment
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_a_machine_without_the_adapter() -> None:
    """A name that no adapter has, and no driver at all."""
    model = Path(ingot.__file__).parent / "data" / "digits.onnx"
    wrong = printed("-m", "ingot", "run", str(model), "--executor", "webgpu", INGOT_WGPU_ADAPTER="no such thing")
    assert wrong.returncode == InputError.exit_code
    assert "INGOT_WGPU_ADAPTER: no such adapter, got 'no such thing', expected part of one of" in wrong.stderr
    code = (
        "import sys, ingot; assert 'wgpu' not in sys.modules; from ingot.run.device import open_device; open_device()"
    )
    none = printed("-c", code, VK_ICD_FILENAMES="/nowhere.json", VK_DRIVER_FILES="/nowhere.json")
    assert "webgpu: no adapter, got none, expected a driver of Vulkan" in none.stderr


def test_a_command_explains_what_webgpu_takes() -> None:
    model = str(Path(ingot.__file__).parent / "data" / "digits.onnx")
    found = json.loads(
        printed("-m", "ingot", "explain", model, "--executor", "webgpu", "--dim", "batch=1", "--json").stdout
    )
    assert found["isa"] == "wgsl"
    assert "conv2d_f32_packed" in {node["kernel"] for node in found["nodes"]}
    folder = str(Path(ingot.__file__).parent / "models" / "tiny-lm")
    assert "webgpu has no states" in printed("-m", "ingot", "explain", folder, "--executor", "webgpu").stderr


def test_doctor_names_adapters_and_their_limits(tmp_path: Path) -> None:
    """Whatever their drivers print, and what ends with one that is broken is not doctor."""
    found = printed("-m", "ingot", "doctor", "--json", XDG_RUNTIME_DIR="")
    assert found.stderr == ""
    lines = json.loads(found.stdout)["adapters"]
    assert any("llvmpipe" in line and "binding_bytes 134217728" in line for line in lines)
    (tmp_path / "wgpu.py").write_text("import os\nos.abort()\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    (line,) = json.loads(printed("-m", "ingot", "doctor", "--json", PYTHONPATH=path).stdout)["adapters"]
    assert line == "webgpu: a driver ended the process that looked for adapters, got -6"

"""WebGPU on software adapters: samples of all ops, models compared with native, and missing features."""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import ingot
import ingot.ops
import models
from adapters import BY_SUBGROUPS, adapter, quick_on_each
from ingot.compile import compile_mode
from ingot.errors import InputError, LimitError, ReferenceWarning, UnsupportedError
from ingot.ir.dtype import DType, bf16, boolean, f16, f32, from_numpy, i64
from ingot.ir.graph import OPS, Graph, Op, Sample, TensorType
from ingot.lower import Target
from ingot.lower.wgpu import WEBGPU
from ingot.lower.wgpu.kernels import KERNELS
from ingot.ops.define import draw
from ingot.run.device import open_device
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from ingot.support import abi
from op_cases import STATIC_CASES, one_node
from stored_products import CODES, products_of, random, stored

assert ingot.ops and adapter
pytestmark = pytest.mark.usefixtures("adapter")

CPU = Target("scalar", 1)
# Ops of which native has no kernel for any sample, either: results of no known size, strings, tables, what only
# loaders make, or operands that have to be weights, which have tests of their own; special functions and
# factorisations, which run on the reference alone.
NOWHERE = {
    "affine_blocks", "airy_ai", "arange", "bessel", "cholesky", "compress", "decode_blocks", "decode_image", "digamma",
    "eig", "eigh", "erfc", "erfcx", "erfinv", "gcd", "householder_product", "i0", "i0e", "i1", "i1e", "igamma",
    "label_encode", "ldl_factor", "ldl_solve", "lgamma", "lu_factor", "matrix_exp", "measure", "ndtri",
    "non_max_suppression", "nonzero", "pairwise_coupling", "pivoted_rows", "polynomial", "qr_factor", "quantize_groups",
    "reduce_over", "regex_full_match", "solve_triangular", "string_concat", "string_normalize", "string_split", "svd",
    "tree_ensemble", "unique", "unpack", "unpack_bits", "zeta",
}  # fmt: skip
# Ops of which native has a kernel for some sample, and a device has none, and why.
GAPS = {
    "append_keys": "caches are f32", "append_values": "caches are f32", "cached_attention": "caches are f32",
    "append_keys_int8": "caches are f32", "append_values_int8": "caches are f32",
    "append_keys_int4": "caches are f32", "append_values_int4": "caches are f32",
    "attention_dropout": "its step is f64", "attention_dropout_gradient": "its step is f64",
    "bitcast": "types that memory has wider", "dropout": "its step is f64", "dynamic_quantize": "f64",
    "draw_uniform": "f64", "linear_attention": "its recurrence has no shader yet",
    "repeated_ngrams": "its tokens have no shader yet",
    "causal_conv": "states have no shader yet", "linear_attention_of_rows": "states have no shader yet",
    "linear_recurrence": "states have no shader yet", "selective_scan": "states have no shader yet",
    "wkv": "states have no shader yet",
    "quantize": "integers of 16 bits and 4, floats of 8", "dequantize": "integers of 16 bits and 4, floats of 8",
}  # fmt: skip
# Samples whose numbers do not fit in 32 bits.
WIDE = {
    ("clip", "x:i64>-9<10[3,5]"), ("shift_left", "a:i64>-99<100[3,67] b:i64>-9<99[67]"),
    ("max_pool_indices", "x:u8<99[1,2,5,4]"),
    *(("roi_align", sample.operands) for sample in OPS["roi_align"].samples),
}  # fmt: skip


def is_whole(op: Op, sample: Sample, target: Target = WEBGPU) -> bool:
    """Whether a sample is one segment of kernels."""
    compiled = compile_mode(one_node(op, sample)[0], target)
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


def expect_samples(name: str) -> None:
    op, samples = OPS[name], [s for s in whole(name) if (name, s.operands) not in WIDE]
    assert whole(name) or name in GAPS
    if samples:
        expect_reference(*side_by_side(op, samples), op.tolerance[f32])


# -- ops --------------------------------------------------------------------------------------------------------

SAMPLED = sorted(op.name for op in OPS.values() if op.samples and op.operand_names)


@pytest.mark.parametrize("name", sorted({*SAMPLED} - NOWHERE))
def test_samples_are_the_reference_s(name: str) -> None:
    expect_samples(name)


@pytest.mark.parametrize(
    "name",
    [
        name if name in BY_SUBGROUPS else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted({*SAMPLED} - NOWHERE)
    ],
)
def test_samples_by_subgroups_are_the_reference_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_WGPU_FEATURES", "subgroups")
    expect_samples(name)


@quick_on_each
def test_powers_and_remainders_at_their_ends() -> None:
    rng = np.random.default_rng(11)
    ends = np.array([0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, np.inf, -np.inf, np.nan, 1e30, 7e-30, 16777215], np.float32)
    wide = (rng.choice((-1, 1), 200) * np.exp(rng.uniform(-60, 60, 200))).astype(np.float32)
    x, y = (np.ravel(each) for each in np.meshgrid(np.concatenate([ends, wide]), np.concatenate([ends, wide[:20]])))
    near = np.exp(rng.uniform(-3, 3, 3000)).astype(np.float32), rng.uniform(-12, 12, 3000).astype(np.float32)
    x, y = np.concatenate([x, near[0]]), np.concatenate([y, near[1]])
    graph = Graph("ends")
    for name in ("x", "y"):
        graph.add_input(name, TensorType(f32, x.shape))
    for op in ("pow", "mod", "floor_div"):
        graph.set_output(op, graph.add(op, ["x", "y"]).output)
    with np.errstate(all="ignore"):
        found = dict(zip(graph.outputs, on_webgpu(graph).run(None, {"x": x, "y": y}), strict=True))
        exact = interpret(graph, {"x": x, "y": y}, float64=True)
        for op, values in found.items():
            expected = exact[op].astype(np.float32)
            normal = (np.abs(expected) >= 2.0**-126) | (expected == 0)
            same = (values == expected) | (np.isnan(values) & np.isnan(expected))
            wrong = normal & ~same & ~(np.abs(values - expected) <= 2e-6 * np.abs(expected))
            assert not wrong.any(), (op, x[wrong][:5], y[wrong][:5], values[wrong][:5], expected[wrong][:5])


def test_gaps_are_the_known_ones() -> None:
    """An op that is listed and has kernels by now fails, too."""
    native = {op: [sample for sample in OPS[op].samples if is_whole(OPS[op], sample, CPU)] for op in SAMPLED}
    assert {name for name, samples in native.items() if not samples} == NOWHERE
    assert {name for name, samples in native.items() if not {*map(id, samples)} <= {*map(id, whole(name))}} == {*GAPS}


def test_wide_samples_are_still_too_wide() -> None:
    for name in {name for name, _ in WIDE}:
        op, samples = OPS[name], [sample for sample in whole(name) if (name, sample.operands) in WIDE]
        with pytest.raises((LimitError, AssertionError)):
            expect_reference(*side_by_side(op, samples), op.tolerance[f32])


@pytest.mark.parametrize("name", sorted({op.name for op, _, _ in STATIC_CASES}))
def test_weights_are_packed_for_products(name: str) -> None:
    for op, sample, static in STATIC_CASES:
        if op.name == name and is_whole(op, sample):
            graph, feeds = one_node(op, sample, static)
            expect_reference(graph, feeds, op.tolerance[f32])


def test_the_element_wise_table_is_written_in_wgsl() -> None:
    held = {row.kernel for row in abi.elementwise().values() if row.dtype in (f32.name, i64.name, boolean.name)}
    assert held <= KERNELS.keys()


# -- models -----------------------------------------------------------------------------------------------------


BUILT: dict[str, Callable[[], models.Built]] = {
    "mlp": models.mlp,
    "block": models.block,
    "causal block": lambda: models.block("manual", causal=True),
    "bert": models.bert,
    "gpt2": models.gpt2,
    "vit": lambda: models.image("vit", 1),
    "resnet": lambda: models.image("resnet", 1),
    "mobilenet": lambda: models.image("mobilenet_v2", 1),
    "whisper encoder": models.whisper_encoder,
}


@pytest.mark.parametrize("model", BUILT)
def test_models_are_native_s(model: str) -> None:
    expect_native(*BUILT[model]())


def expect_native(module: object, example: tuple[np.ndarray, ...]) -> None:
    native = InferenceSession(module, example_inputs=example)
    session = on_webgpu(native.graph)
    feeds = dict(zip((argument.name for argument in native.get_inputs()), map(np.asarray, example), strict=True))
    for actual, expected in zip(session.run(None, feeds), native.run(None, feeds), strict=True):
        assert error_of(actual, expected) <= 1e-4


@pytest.mark.parametrize("k", [64, 37])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_weights_stored_in_16_bits_keep_their_dtype(dtype: DType, k: int) -> None:
    """In panels and rows of pairs, of which a half may be left over."""

    def pairs(graph: Graph, name: str, n: int, columns: int) -> str:
        weight = graph.add_weight(name, random(name, n, columns).astype(dtype.numpy))
        return graph.add("cast", [weight], f"{name}.f32", dtype=f32).output

    for rows in (1, 40):
        graph = products_of(pairs, rows, k, 48)
        feeds = {"ids": np.arange(rows, dtype=np.int32)}
        exact, session = interpret(graph, feeds, float64=True), on_webgpu(graph)
        for name, result in zip(graph.outputs, session.run(None, feeds), strict=True):
            assert error_of(result, exact[name]) <= 1e-5
        assert {t.dtype for t in session.program.only.lowered.tensors.values() if t.kind == "weight"} == {dtype}


@pytest.mark.parametrize("name", CODES)
def test_quantized_weights_stay_quantized(name: str) -> None:
    """By groups of 32 and 128 elements, of which some are left over."""
    scales = (np.float16, np.float32)
    for (group, rows), scale in itertools.product(((32, 1), (32, 20), (128, 2), (128, 40)), scales):
        graph = products_of(lambda *given: stored(*given, CODES[name], group, scale), rows, 160, 64)  # noqa: B023
        feeds = {"ids": np.arange(rows, dtype=np.int32)}
        exact, session = interpret(graph, feeds, float64=True), on_webgpu(graph)
        for output, result in zip(graph.outputs, session.run(None, feeds), strict=True):
            assert error_of(result, exact[output]) <= 1e-5
        held = sum(value.data.nbytes for value in graph.values.values() if value.data is not None)
        assert session.weight_bytes < 1.2 * held


@pytest.mark.parametrize("precision", ["bf16w", "int8w", "int4w"])
def test_fixed_matrices_are_rounded(precision: str) -> None:
    module, example = models.mlp(sizes=(256, 256, 256, 64))
    native = InferenceSession(module, example_inputs=example, precision=precision)
    session = on_webgpu(InferenceSession(module, example_inputs=example).graph, precision=precision)
    feeds = {native.get_inputs()[0].name: np.asarray(example[0])}
    assert error_of(session.run(None, feeds)[0], native.run(None, feeds)[0]) <= 1e-5
    assert f"_{precision.removesuffix('w')}" in " ".join(s.kernel for s in session.program.only.plan.steps)


@quick_on_each
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


def test_after_the_first_run_nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_run_follows_one_that_was_interrupted() -> None:
    session, feeds = on_webgpu(product(4)), {"x": np.ones((2, 4), np.float32)}
    session.program.only._found.map_async("READ_NOSYNC", 0, 256)  # whose end nobody waits for
    assert session.run(None, feeds)[0][1, 1023] == 4


def test_what_a_kernel_writes_past_a_tensor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step gets a number of rows that is too large by one."""
    monkeypatch.setenv("INGOT_CHECK", "3")
    graph, feeds = Graph("rows"), {"x": np.ones((3, 8), np.float32)}
    graph.add_input("x", TensorType(f32, (3, 8)))
    once = graph.add("softmax", ["x"], axis=1).output
    graph.set_output("y", graph.add("softmax", [once], axis=1).output)
    session = on_webgpu(graph)
    assert session.run(None, feeds)[0][2, 7] == 0.125
    program = session.program.only
    assert program.dispatches.steps[0].words[2] == 3
    program._parameters[0, 2] = 4
    program._device.gpu.queue.write_buffer(program._parameter_buffer, 0, program._parameters)
    program._grids[0] = (4, 1)
    with pytest.raises(AssertionError, match="a kernel wrote past a tensor, at arena0"):
        session.run(None, feeds)


def test_an_index_outside_is_an_error() -> None:
    session = on_webgpu(rows_of(TABLE))
    for _ in range(2):
        with pytest.raises(InputError, match=r"index out of range, got 3, expected -3..2"):
            session.run(None, {"x": np.array([0, 3])})
    assert session.run(None, {"x": np.array([-1, 0])})[0].tolist() == [[4, 5], [0, 1]]


def test_integers_are_checked_where_they_enter() -> None:
    session = on_webgpu(rows_of(TABLE))
    with pytest.raises(InputError, match=r"input 'x': webgpu has 32-bit integers, got 2147483648, expected -2147"):
        session.run(None, {"x": np.array([0, 2**31])})
    with pytest.raises(LimitError, match=r"weight 'w': webgpu has 32-bit integers, got -2147483649"):
        on_webgpu(rows_of(np.array([[-(2**31) - 1]])))


def test_a_region_is_no_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Graph("large")
    large.add_input("x", TensorType(f32, (1 << 30,)))
    large.set_output("y", large.add("reduce_sum", ["x"], axes=(0,), keepdims=False).output)
    with pytest.raises(LimitError, match=r"input:x: too large, got 4294967296 bytes, expected at most 134217728"):
        on_webgpu(large)
    monkeypatch.setenv("INGOT_WGPU_BINDING_BYTES", str(1 << 40))
    with pytest.raises(LimitError, match=r"inputs: too large, got 4294967296 bytes, expected at most the \d+ of '"):
        on_webgpu(large)
    monkeypatch.setenv("INGOT_WGPU_BINDING_BYTES", "4096")
    with pytest.raises(LimitError, match=r"output:y: too large, got 8192 bytes, expected at most 4096"):
        on_webgpu(product(4))
    monkeypatch.setenv("INGOT_WGPU_BINDING_BYTES", "8")
    with pytest.raises(InputError, match=r"INGOT_WGPU_BINDING_BYTES: too small, got 8, expected at least 256"):
        on_webgpu(product(4))


@pytest.mark.parametrize("nbytes", [12 << 10, 16 << 10])
def test_what_is_larger_than_a_binding_is_multiplied_and_looked_up_in_parts(
    nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_WGPU_BINDING_BYTES", str(nbytes))
    rng, graph = np.random.default_rng(3), Graph("parts")
    for name in ("x", "y", "z"):
        graph.add_input(name, TensorType(f32, (5, 64)))
    graph.add_input("rows", TensorType(i64, (7,)))
    for name, shape in (("matrix", (64, 100)), ("gates", (64, 160)), ("table", (150, 33)), ("tied", (120, 64))):
        graph.add_weight(name, rng.standard_normal(shape).astype(np.float32) / 8)
    bias = graph.add_weight("bias", rng.standard_normal(100).astype(np.float32))
    attributes = {"transpose_a": False, "transpose_b": False, "scale": 1.0}
    sums = graph.add("add", [graph.add("matmul", ["x", "matrix"], **attributes).output, bias])
    graph.set_output("sums", graph.add("relu", [sums.output]).output)
    both = graph.add("matmul", ["y", "gates"], **attributes).output
    halves = [graph.add("slice", [both], starts=(0, i), stops=(5, i + 80), steps=(1, 1)).output for i in (0, 80)]
    graph.set_output("gated", graph.add("mul", [graph.add("silu", halves[:1]).output, halves[1]]).output)
    graph.set_output("raw", graph.add("gather", ["table", "rows"], axis=0).output)
    graph.set_output("packed", graph.add("gather", ["tied", "rows"], axis=0).output)
    graph.set_output("logits", graph.add("matmul", ["z", "tied"], **attributes | {"transpose_b": True}).output)
    feeds = {name: rng.standard_normal((5, 64)).astype(np.float32) for name in ("x", "y", "z")}
    feeds["rows"] = np.array([0, 119, 31, 32, -1, 64, 99])
    exact = interpret(graph, feeds, float64=True)
    session = on_webgpu(graph)
    for name, result in zip(graph.outputs, session.run(None, feeds), strict=True):
        assert error_of(result, exact[name]) <= 1e-5, name
    kernels = [choice.candidates[-1][0] for choice in session.explain().choices]
    assert {"gemm_f32_packed", "gemm_f32_gated", "gather_i64", "gather_f32_panels"} <= set(kernels)


def test_what_has_no_kernel_runs_on_the_reference_or_is_refused() -> None:
    graph = Graph("shares")
    graph.add_input("x", TensorType(f32, (3, 2, 2)))
    shares = graph.add("pairwise_coupling", [graph.add("sigmoid", ["x"]).output], "shares").output
    graph.set_output("y", graph.add("neg", [shares]).output)
    with pytest.raises(UnsupportedError, match=r"strict: no kernel of webgpu, got pairwise_coupling 'shares'"):
        on_webgpu(graph)
    feeds = {"x": np.random.default_rng(5).random((3, 2, 2), np.float32)}
    session = InferenceSession(graph, executor="webgpu")
    with pytest.warns(ReferenceWarning, match="pairwise_coupling 'shares'"):
        (result,) = session.run(None, feeds)
    assert error_of(result, interpret(graph, feeds, float64=True)["y"]) <= 1e-5
    assert "on the reference: pairwise_coupling 'shares'" in str(session.explain())


def test_what_webgpu_does_not_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="precision: webgpu rounds no rows, got 'bf16', expected one of f32, bf16w"):
        on_webgpu(product(4), precision="bf16")
    session = on_webgpu(product(4))
    with pytest.raises(UnsupportedError, match="save: no native program"):
        session.save(tmp_path / "saved")


def test_one_program_serves_every_size_up_to_a_limit() -> None:
    model = (Path(ingot.__file__).parent / "data" / "digits.onnx").read_bytes()
    native = InferenceSession(model)
    dims = {symbol: ingot.at_most(70) for symbol in native.graph.symbols}
    session = on_webgpu(model, dims=dims)
    for size in (70, 1, 33, 70):
        feeds = {"image": np.random.default_rng(size).random((size, 1, 8, 8), np.float32)}
        assert error_of(session.run(None, feeds)[0], native.run(None, feeds)[0]) <= 1e-5
    assert session.bindings.unplanned == "" and session.bindings.kept == 1


@pytest.mark.parametrize("model", ["block", "causal block"])
def test_a_length_is_set_at_each_run(model: str) -> None:
    module, (example,) = models.block("manual", causal=model != "block")
    length = torch.export.Dim("length", min=2, max=40)
    exported = torch.export.export(module, (torch.from_numpy(np.asarray(example)),), dynamic_shapes=({1: length},))
    native, session = (InferenceSession(exported, executor=each) for each in ("native", "webgpu"))
    session = InferenceSession(
        exported, executor="webgpu", strict=True, dims=dict.fromkeys(native.graph.symbols, ingot.at_most(40))
    )
    (name,) = (argument.name for argument in native.get_inputs())
    for size in (40, 3, 17):
        x = np.random.default_rng(size).standard_normal((example.shape[0], size, example.shape[2])).astype(np.float32)
        assert error_of(session.run(None, {name: x})[0], native.run(None, {name: x})[0]) <= 1e-4
    assert session.bindings.unplanned == "" and session.bindings.kept == 1


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
    none = printed("-c", code, VK_DRIVER_FILES="/nowhere.json", VK_ADD_DRIVER_FILES="")
    assert "webgpu: no adapter, got none, expected a driver of Vulkan" in none.stderr


def test_a_device_that_is_lost() -> None:
    code = """
import numpy as np, ingot
from ingot.run.device import open_device
session = ingot.InferenceSession(ingot.__path__[0] + "/data/digits.onnx", executor="webgpu")
for _ in range(2):
    session.run(None, {"image": np.ones((1, 1, 8, 8), np.float32)})
    open_device().gpu.destroy()
"""
    lost = printed("-c", code).stderr
    assert f"ResourceError: webgpu: {open_device().adapter.name!r} failed" in lost and "device is lost" in lost


def test_a_command_explains_what_webgpu_takes() -> None:
    model = str(Path(ingot.__file__).parent / "data" / "digits.onnx")
    found = json.loads(
        printed("-m", "ingot", "explain", model, "--executor", "webgpu", "--dim", "batch=1", "--json").stdout
    )
    assert found["isa"] == "wgsl"
    assert "conv2d_f32_packed" in {node["kernel"] for node in found["nodes"]}
    folder = str(Path(ingot.__file__).parent / "models" / "tiny-lm")
    found = json.loads(printed("-m", "ingot", "explain", folder, "--executor", "webgpu", "--json").stdout)
    assert found["isa"] == "wgsl" and "cached_attention_f32" in {node["kernel"] for node in found["nodes"]}


def test_a_profile_has_every_step() -> None:
    graph = Graph("steps")
    graph.add_input("x", TensorType(f32, (64, 64)))
    found = "x"
    for _ in range(3):
        found = graph.add("softmax", [graph.add("permute", [found], axes=(1, 0)).output], axis=1).output
    graph.set_output("y", found)
    profile = on_webgpu(graph).profile({"x": np.ones((64, 64), np.float32)}, runs=3)
    assert len(profile.steps) == len(on_webgpu(graph).program.only.plan.steps) >= 3
    assert all(0 < step.nanoseconds < 1e9 for step in profile.steps)


def test_bench_has_times_of_steps_and_no_limits_of_the_cpu() -> None:
    model = str(Path(ingot.__file__).parent / "data" / "digits.onnx")
    done = printed("-m", "ingot", "bench", model, "--executor", "webgpu", "--seconds", "0.1", "--json")
    found = json.loads(done.stdout)
    assert found["limits"] is None and all(step["microseconds"] > 0 for step in found["steps"])


def test_doctor_names_adapters_and_their_limits(tmp_path: Path) -> None:
    """Whatever their drivers print, and what ends with one that is broken is not doctor."""
    found = printed("-m", "ingot", "doctor", "--json", XDG_RUNTIME_DIR="")
    assert found.stderr == ""
    lines = json.loads(found.stdout)["adapters"]
    assert any(open_device().adapter.name in line and "binding_bytes" in line and "subgroups" in line for line in lines)
    (tmp_path / "wgpu.py").write_text("import os\nos.abort()\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    (line,) = json.loads(printed("-m", "ingot", "doctor", "--json", PYTHONPATH=path).stdout)["adapters"]
    assert line == "webgpu: a driver crashed the process that lists adapters, got exit status -6"

"""`import ingot as ort`: programs written for ONNX Runtime give what they give with it."""

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import ingot
import ingot.ort.capi.onnxruntime_pybind11_state as errors
from adapters import adapter
from ingot.errors import KindError, MissingFileError

assert adapter

RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal((4, 5)).astype(np.float32)


def saved(nodes: list, inputs: dict, outputs: dict, weights: dict | None = None) -> bytes:
    """The bytes of a model; inputs and outputs: name -> element type and shape."""
    graph = helper.make_graph(
        nodes,
        "small graph",
        [helper.make_tensor_value_info(name, *each) for name, each in inputs.items()],
        [helper.make_tensor_value_info(name, *each) for name, each in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    model.producer_name, model.domain, model.model_version, model.doc_string = "tests", "some.where", 7, "What it is."
    helper.set_model_props(model, {"character": "a\nb", "kind": "small"})
    return model.SerializeToString()


FLOAT, LONG = TensorProto.FLOAT, TensorProto.INT64
LINEAR = saved(
    [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
    {"x": (FLOAT, ["batch", 4])}, {"y": (FLOAT, ["batch", 5]), "h": (FLOAT, ["batch", 5])}, {"w": W},
)  # fmt: skip
TWICE = saved([helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["both"])})
FIXED = saved([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [3, 4])}, {"y": (FLOAT, [3, 4])})
LABELS = {"keys_floats": [1.0, 2.0], "values_floats": [3.0, 4.0], "default_float": 0.5}
CUT = saved(
    [
        helper.make_node("Round", ["x"], ["e"]),
        helper.make_node("LabelEncoder", ["e"], ["y"], domain="ai.onnx.ml", **LABELS),
    ],
    {"x": (FLOAT, ["n", 3, 3])}, {"y": (FLOAT, ["n", 3, 3])},
)  # fmt: skip
NUMBERS = {
    TensorProto.FLOAT: "f", TensorProto.DOUBLE: "f", TensorProto.FLOAT16: "f", TensorProto.INT64: "i",
    TensorProto.INT32: "i", TensorProto.UINT8: "i", TensorProto.BOOL: "b", TensorProto.STRING: "s",
}  # fmt: skip


def echo(kind: int, shape: list) -> bytes:
    """A model that gives back what it gets."""
    return saved([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, shape)}, {"y": (kind, shape)})


def plain(value: Any) -> Any:
    """What can be compared: arrays as dtype, shape and numbers, whoever made them."""
    if isinstance(value, np.ndarray):
        numbers = value.astype(np.float64).round(4).tolist() if value.dtype.kind in "fiub" else value.tolist()
        return [str(value.dtype), list(value.shape), numbers]
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def options(ort: Any) -> Any:
    made = ort.SessionOptions()
    made.intra_op_num_threads = 1
    made.inter_op_num_threads = 1
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    made.log_severity_level = 3
    made.enable_cpu_mem_arena = made.enable_mem_pattern = False
    made.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = ort.InferenceSession(path_or_bytes=LINEAR, sess_options=made, providers=["CPUExecutionProvider"])
    got = session.get_session_options()
    return [
        session.run(["y"], {"x": X}), got.intra_op_num_threads, got.log_severity_level, int(got.execution_mode),
        int(got.graph_optimization_level), made.get_session_config_entry("session.set_denormal_as_zero"),
    ]  # fmt: skip


def no_optimization(ort: Any) -> Any:
    made = ort.SessionOptions()
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(LINEAR, made).run(None, {"x": X})


def names(ort: Any) -> Any:
    cpu = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    session = ort.InferenceSession(LINEAR, None, [cpu])
    nodes = [*session.get_inputs(), *session.get_outputs(), *ort.InferenceSession(TWICE).get_outputs()]
    meta = session.get_modelmeta()
    facts = [meta.producer_name, meta.domain, meta.version, meta.description, meta.graph_name, meta.custom_metadata_map]
    found = [session.get_providers(), cpu[0] in ort.get_available_providers(), ort.get_device()]
    return [[(each.name, each.type, each.shape) for each in nodes], facts, found]


def a_fixed_dim(ort: Any) -> Any:
    made = ort.SessionOptions()
    made.add_free_dimension_override_by_name("batch", 3)
    return [each.shape for each in ort.InferenceSession(LINEAR, made).get_inputs()]


def runs(ort: Any) -> Any:
    session, told = ort.InferenceSession(LINEAR), ort.RunOptions()
    told.logid, told.log_severity_level = "a tag", 3
    return [
        session.run([], {"x": X}), session.run(None, {"x": X}, told),
        session.run(["h", "y"], {"x": X}, run_options=told),
        session.run(["h"], {"x": X.tolist()}), session.run(["h"], {"x": list(X)}),
    ]  # fmt: skip


def values(ort: Any) -> Any:
    x = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(x)
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64, "cpu", 0)
    empty.update_inplace(np.arange(6).reshape(2, 3))
    session = ort.InferenceSession(LINEAR)
    out = session.run_with_ort_values(["y"], {"x": value})
    return [
        [each.shape(), each.data_type(), each.element_type(), each.device_name(), each.is_tensor(), each.has_value()]
        for each in (value, empty, ort.OrtValue.ortvalue_from_shape_and_type([4], 16, "cpu"))
    ] + [
        value.data_ptr() == x.ctypes.data, value.tensor_size_in_bytes(), empty.numpy(), [each.numpy() for each in out],
        session.run(["y"], {"x": value}),
        ort.OrtValue.from_dlpack(torch.arange(3)).numpy(), value.is_sparse_tensor(), value.is_tensor_sequence(),
    ]  # fmt: skip


def later(ort: Any) -> Any:
    session, done, told = ort.InferenceSession(LINEAR), threading.Semaphore(0), []

    def callback(results: list, data: Any, error: str) -> None:
        told.append([data, results, bool(error)])
        done.release()

    for feed in ({"x": X}, {"x": X.astype(np.float64)}):
        session.run_async(["y"], feed, callback, "mine")
        assert done.acquire(timeout=30)
    return told


def bound(ort: Any) -> Any:
    session, found = ort.InferenceSession(LINEAR), []
    binding, x, y = session.io_binding(), X.copy(), np.zeros((3, 5), np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    found += [binding.copy_outputs_to_cpu(), [each.numpy().copy() for each in binding.get_outputs()]]
    x[:] = 1
    session.run_with_iobinding(binding)
    found.append(binding.copy_outputs_to_cpu())
    binding.bind_output("y", "cpu", 0, np.float32, [3, 5], y.ctypes.data)
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("h", "cpu")
    session.run_with_iobinding(binding)
    found += [y, sorted(len(each.shape()) for each in binding.get_outputs())]
    binding.clear_binding_outputs()
    binding.clear_binding_inputs()
    given, taken = ort.OrtValue.ortvalue_from_numpy(X[:2].copy()), ort.OrtValue.ortvalue_from_numpy(y[:2])
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", taken)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return [*found, taken.numpy(), y]


def bound_where_the_reference_helps(ort: Any) -> Any:
    session, y = ort.InferenceSession(CUT), np.zeros((2, 3, 3), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", RNG_CUBE)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    return [y, binding.copy_outputs_to_cpu()]


RNG_CUBE = np.random.default_rng(1).standard_normal((2, 3, 3)).astype(np.float32)


def profiled(ort: Any) -> Any:
    made = ort.SessionOptions()
    made.enable_profiling = True
    made.profile_file_prefix = "mine"
    session = ort.InferenceSession(LINEAR, made)
    session.run(None, {"x": X})
    assert session.get_profiling_start_time_ns() > 0
    name = session.end_profiling()
    events = json.loads(Path(name).read_text())
    runs = [each for each in events if each["name"] == "model_run"]
    assert any(each["cat"] == "Node" and each["dur"] >= 0 for each in events)
    return [Path(name).name.startswith("mine"), len(runs), {"cat", "dur", "ts", "ph", "args"} <= set(runs[0])]


def written_after_the_passes(ort: Any) -> Any:
    made = ort.SessionOptions()
    made.optimized_model_filepath = "after.onnx"
    ort.InferenceSession(FIXED, made)
    return onnxruntime.InferenceSession("after.onnx").run(None, {"x": X})


def harmless(ort: Any) -> Any:
    ort.set_default_logger_severity(4)
    ort.set_default_logger_verbosity(0)
    ort.set_seed(1)
    ort.disable_telemetry_events()
    session = ort.InferenceSession(LINEAR, enable_fallback=0)
    session.disable_fallback()
    session.enable_fallback()
    session.set_providers(["CPUExecutionProvider"])
    return [ort.get_version_string(), ort.__version__, ort.has_collective_ops(), session.get_overridable_initializers()]


PROGRAMS = [
    options, no_optimization, names, a_fixed_dim, runs, values, later, bound, bound_where_the_reference_helps, profiled,
    written_after_the_passes, harmless,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::ingot.errors.ReferenceWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_gives_the_same(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = plain(program(onnxruntime))
    assert plain(program(ingot.ort)) == expected
    if program is not harmless:  # which asks for a version
        assert plain(program(ingot)) == expected


@pytest.mark.parametrize("kind", NUMBERS)
def test_lists_are_accepted_as_there(kind: int) -> None:
    lists = {"f": [[1, 2.5], [3, -1e3]], "i": [[1, 2], [3, 250]], "b": [[True, False], [False, True]]}
    fed = {"x": lists.get(NUMBERS[kind], [["a", "bc"], ["", "d"]])}
    model = echo(kind, ["n", "m"])
    expected = plain(onnxruntime.InferenceSession(model).run(None, fed))
    for executor in ("native", "interpret"):
        assert plain(ingot.InferenceSession(model, executor=executor).run(None, fed)) == expected


ONE = np.ones(2, np.float32)


@pytest.mark.parametrize(
    "kind, shape, value, expected",
    [
        (FLOAT, [], 3, np.float32(3)),
        (FLOAT, [], True, np.float32(1)),
        (LONG, [], 2**40, np.int64(2**40)),
        (FLOAT, [], np.float32(2.5), np.float32(2.5)),
        (FLOAT, ["n"], (1, 2.5), np.array([1, 2.5], np.float32)),
        (FLOAT, ["n"], [], np.empty(0, np.float32)),
        (TensorProto.STRING, ["n"], np.array(["a", "bc"]), np.array(["a", "bc"], object)),
        (FLOAT, ["n"], torch.ones(2), ONE),
        (FLOAT, ["n"], torch.ones(2, requires_grad=True), ONE),
        (FLOAT, [2], torch.ones(4)[::2], ONE),
        (LONG, ["n"], torch.arange(3), np.arange(3)),
        (TensorProto.BFLOAT16, ["n"], torch.ones(2, dtype=torch.bfloat16), np.ones(2, ml_dtypes.bfloat16)),
        (FLOAT, ["n"], [torch.tensor(1.0), torch.tensor(2.0)], np.array([1, 2], np.float32)),
    ],
)
def test_other_accepted_inputs(kind: int, shape: list, value: Any, expected: Any) -> None:
    for executor in ("native", "interpret"):
        (got,) = ingot.InferenceSession(echo(kind, shape), executor=executor).run(None, {"x": value})
        assert got.dtype == expected.dtype and np.array_equal(got, expected)


class OnlyDlpack:
    """A tensor of a library that has no `__array__`."""

    def __dlpack__(self, **given: Any) -> Any:
        return ONE.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return ONE.__dlpack_device__()


def test_dlpack_is_accepted() -> None:
    assert np.array_equal(ingot.InferenceSession(echo(FLOAT, ["n"])).run(None, {"x": OnlyDlpack()})[0], ONE)


@pytest.mark.parametrize(
    "kind, value, message",
    [
        (LONG, [1.5, 2], "a list of numbers out of range, got 1.5, expected i64"),
        (TensorProto.UINT8, [1, 256], "a list of numbers out of range, got 256, expected u8"),
        (TensorProto.BOOL, [0, 2], "a list of numbers out of range, got 2, expected bool"),
        (FLOAT, [[1], [1, 2]], "a list that is not an array"),
        (FLOAT, np.float64(1.5), r"wrong dtype, got float64, expected f32 of .*: array.astype\('float32'\)"),
        (FLOAT, torch.ones(2, device="meta"), "got no data, expected one on the CPU"),
        (FLOAT, torch.ones(2, dtype=torch.float64), "wrong dtype, got float64, expected f32"),
        (FLOAT, object(), "wrong dtype, got object, expected f32"),
        (FLOAT, 3.0, "wrong rank"),
    ],
)
def test_rejected_inputs(kind: int, value: Any, message: str) -> None:
    with pytest.raises(ingot.InputError, match=f"input 'x': .*{message}") as caught:
        ingot.InferenceSession(echo(kind, ["n"])).run(None, {"x": value})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("model", [LINEAR, FIXED])
@pytest.mark.parametrize("feeds", [[X], X, None, "x"])
def test_feeds_without_names(model: bytes, feeds: Any) -> None:
    with pytest.raises(KindError, match=r"names are needed, got \w+, expected \{'x': array\}") as caught:
        ingot.InferenceSession(model).run(None, feeds)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("names", ["y", 3])
def test_what_is_no_list_of_names(names: Any) -> None:
    with pytest.raises(KindError, match=rf"got {names!r}, expected \['y'"):
        ingot.InferenceSession(LINEAR).run(names, {"x": X})


@pytest.mark.parametrize(
    "source, builtin, message",
    [
        (torch.nn.Linear(2, 2), TypeError, r"InferenceSession\(module, example_inputs=\(x,\)\)"),
        (torch.nn.Linear, TypeError, r"the class Linear; make one, Linear\(...\)"),
        (json, TypeError, "the Python module 'json'"),
        (torch.nn.Linear(2, 2).state_dict(), TypeError, "build the module that they belong to"),
        (onnx.load_from_string(LINEAR), TypeError, r"SerializeToString\(\)"),
        ("weights.pt", ValueError, r"torch.export.save\(torch.export.export"),
        ("weights.safetensors", ValueError, "the folder that contains them"),
        ("modle.onnx", FileNotFoundError, "no such file, expected perhaps 'model.onnx'"),
        ("none/model.onnx", FileNotFoundError, "got no folder 'none' either"),
        ("", ValueError, "path of a model: empty"),
    ],
    ids="module,class,Python module,weights,proto,pt,safetensors,misspelt,no folder,no path".split(","),
)
def test_sources_that_are_none(
    source: Any, builtin: type, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(LINEAR)
    Path("weights.safetensors").write_bytes(bytes(20))
    torch.save(torch.nn.Linear(2, 2).state_dict(), "weights.pt")
    with pytest.raises(builtin, match=message) as caught:
        ingot.InferenceSession(source)
    assert isinstance(caught.value, ingot.IngotError)


def test_a_model_with_a_suffix_of_others(tmp_path: Path) -> None:
    (tmp_path / "model.pb").write_bytes(FIXED)
    assert np.array_equal(ingot.InferenceSession(tmp_path / "model.pb").run(None, {"x": X})[0], -X)


def test_every_op_that_is_not_known_is_named() -> None:
    """Those that read what another makes too."""
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], domain="mine"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Bar", ["b"], ["c"], domain="mine"),
        helper.make_node("Mish", ["c"], ["y"]),
    ]
    model = onnx.load_from_string(saved(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}))
    model.opset_import.add(domain="mine", version=1)
    with pytest.raises(ingot.UnsupportedError) as caught:
        ingot.InferenceSession(model.SerializeToString())
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["Foo (opset 18)", "Bar (opset 18)"]
    assert all("ingot ops" in line for line in lines)


def test_errors_that_clients_catch(tmp_path: Path) -> None:
    session = ingot.InferenceSession(LINEAR)
    with pytest.raises(errors.InvalidArgument):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(errors.NoSuchFile):
        ingot.InferenceSession(tmp_path / "none.onnx")
    with pytest.raises(errors.InvalidProtobuf):
        ingot.InferenceSession(b"nothing")
    with pytest.raises(ValueError, match="missing"):
        session.run(None, {})
    assert errors.NoSuchFile is MissingFileError and errors.InferenceSession is ingot.InferenceSession
    told = ingot.ort.RunOptions()
    told.terminate = True
    with pytest.raises(errors.Fail, match="terminate"):
        session.run(None, {"x": X}, told)
    with pytest.raises(errors.Fail, match="terminate"):
        session.run_with_iobinding(session.io_binding(), told)


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda ort, s: ort.SparseTensor(), "SparseTensor is not supported: tensors are dense"),
        (lambda ort, s: ort.OrtMemType.DEFAULT, "OrtMemType.DEFAULT is not supported"),
        (lambda ort, s: ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0), "ortvalue_from_numpy on 'cuda'"),
        (lambda ort, s: s.io_binding().bind_input("x", "cuda", 0, np.float32, [1], 0), "bind_input 'x' on 'cuda'"),
        (lambda ort, s: ort.SessionOptions().register_custom_ops_library("x.so"), "SessionOptions.register_custom"),
        (lambda ort, s: s.run_with_ortvaluevector(1, 2), "InferenceSession.run_with_ortvaluevector"),
        (lambda ort, s: ort.create_and_register_allocator(1, 2), "create_and_register_allocator is not supported"),
        (lambda ort, s: setattr(ort.SessionOptions(), "no_such", 1), "no such option, got SessionOptions.no_such"),
    ],
)
def test_what_cannot_be_done_names_the_call(call: Any, error: str) -> None:
    with pytest.raises(ingot.UnsupportedError, match=error):
        call(ingot.ort, ingot.InferenceSession(LINEAR))


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda s: s.io_binding().bind_input("x", "cpu", 0, np.float32, [1, 4], 0), "got address 0, expected 16 bytes"),
        (lambda s: s.io_binding().bind_input("x", "cpu", 0, "no", [1, 4], 8), "no element type"),
        (lambda s: s.io_binding().bind_input("x", "cpu", 0, np.float32, [-1, 4], 8), "expected numbers and dims of 0"),
        (lambda s: s.io_binding().bind_cpu_input("z", X), "no such name, got 'z'"),
        (lambda s: s.io_binding().bind_output("z"), "no such name, got 'z'"),
        (lambda s: ingot.InferenceSession(LINEAR, 3), "sess_options: got int"),
        (lambda s: ingot.InferenceSession(LINEAR, providers="CPUExecutionProvider"), "expected a list of names"),
        (lambda s: ingot.InferenceSession(LINEAR, providers=[3]), "expected a name"),
        (lambda s: ingot.InferenceSession(LINEAR, provider_options=[{}]), "expected one for each of 0"),
        (lambda s: ingot.InferenceSession(), "got none"),
        (lambda s: ingot.InferenceSession(LINEAR, path_or_bytes=LINEAR), "got source and path_or_bytes"),
        (lambda s: s.end_profiling(), "SessionOptions.enable_profiling"),
        (lambda s: s.run_with_ort_values(None, {"x": X}), "no OrtValue, got ndarray, expected OrtValue.ortvalue_from"),
        (lambda s: s.run_async(None, {"x": X}, None, None), "callback: not callable, got None"),
        (lambda s: s.profile({"x": X}, runs=0), "runs: out of range, got 0"),
        (lambda s: ingot.InferenceSession(torch.nn.Linear(4, 2), example_inputs=(X,)), r"expected torch.from_numpy"),
        (lambda s: ingot.ort.OrtValue.ortvalue_from_numpy(X).update_inplace(X[:1]), "different type"),
    ],
)
def test_wrong_arguments(call: Any, error: str) -> None:
    with pytest.raises(ingot.InputError, match=error):
        call(ingot.InferenceSession(LINEAR))


def test_another_device_is_passed_over_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not available") as told:
        session = ingot.InferenceSession(LINEAR, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert len(told) == 1 and told[0].filename == __file__ and session.get_providers() == ["CPUExecutionProvider"]


WEBGPU, CPU = "WebGpuExecutionProvider", "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("providers", "options", "expected"),
    [
        ([WEBGPU], {}, [WEBGPU, CPU]),
        ([(WEBGPU, {"deviceId": "0"}), CPU], {}, [WEBGPU, CPU]),
        ([CPU, WEBGPU], {}, [CPU]),
        ([WEBGPU, CPU], {"executor": "native"}, [CPU]),
        (None, {"executor": "webgpu"}, [WEBGPU, CPU]),
    ],
)
def test_providers_choose_the_executor(adapter: str, providers: Any, options: dict[str, str], expected: Any) -> None:
    session = ingot.InferenceSession(LINEAR, providers=providers, **options)
    assert session.get_providers() == list(session.get_provider_options()) == expected
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], np.maximum(X @ W, 0), rtol=1e-5, atol=1e-6)
    assert ingot.ort.get_available_providers() == [CPU, WEBGPU]
    assert session.weight_bytes == session.bindings.weight_bytes > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.set_providers(expected)
    other = [CPU] if expected[0] == WEBGPU else [WEBGPU]
    with pytest.warns(UserWarning, match="providers are fixed when a session is created"):
        session.set_providers(other)


def test_a_machine_without_webgpu_runs_on_the_cpu() -> None:
    """As ONNX Runtime has it, a warning, and the CPU."""
    code = f"""
import warnings, ingot
with warnings.catch_warnings(record=True) as told:
    session = ingot.InferenceSession(ingot.__path__[0] + "/data/digits.onnx", providers=[{WEBGPU!r}])
print(ingot.ort.get_available_providers(), session.get_providers(), [str(each.message) for each in told])
"""
    own = {"VK_DRIVER_FILES": "/nonexistent", "VK_ADD_DRIVER_FILES": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | own)
    warned = f"provider {WEBGPU!r} is not available, expected one of {CPU}"
    assert done.stdout == f"{[CPU]} {[CPU]} {[warned]}\n", done.stderr


def test_options_without_effect_are_reported_on_request(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("INGOT_DEBUG", "1")
    made = ingot.ort.SessionOptions()
    made.enable_mem_pattern = False
    made.intra_op_num_threads = 1
    assert capfd.readouterr().err == "onnxruntime: SessionOptions.enable_mem_pattern has no effect\n"


def test_a_value_is_an_array_for_others() -> None:
    x = X.copy()
    value = ingot.ort.OrtValue.ortvalue_from_numpy(x)
    for shared in (np.asarray(value), np.from_dlpack(value), torch.from_dlpack(value).numpy()):
        assert np.array_equal(shared, X) and np.shares_memory(shared, x)
    assert not np.shares_memory(np.array(value), x)


def test_threads_are_those_of_the_options() -> None:
    made = ingot.ort.SessionOptions()
    made.intra_op_num_threads = 3
    assert ingot.InferenceSession(LINEAR, made).threads == 3
    assert ingot.InferenceSession(LINEAR, made, threads=1).threads == 1


def test_a_model_from_the_cache_knows_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(FIXED)
    for _ in range(2):
        session = ingot.InferenceSession(tmp_path / "model.onnx", cache=tmp_path / "cache")
        assert session.get_modelmeta().custom_metadata_map == {"character": "a\nb", "kind": "small"}


def test_import_stays_light() -> None:
    """Neither the names nor asking for one that is not there brings numpy."""
    code = (
        "import sys, ingot\nassert not hasattr(ingot, 'nothing') and 'numpy' not in sys.modules\n"
        "assert ingot.ort.get_device() == 'CPU' and 'numpy' not in sys.modules\n"
        "import ingot as ort; ort.SessionOptions(); print(ort.InferenceSession.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ingot.ort.session\n"


def test_errors_by_their_import() -> None:
    code = (
        "import sys, ingot\nsys.modules['onnxruntime'] = ingot.ort\n"
        "import onnxruntime as ort\nfrom onnxruntime import SessionOptions, InferenceSession\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile, Fail\n"
        "from onnxruntime.capi import _pybind_state as C\n"
        "try:\n    ort.InferenceSession('none.onnx')\n"
        "except NoSuchFile: print(InferenceSession is ingot.InferenceSession, C.NoSuchFile is NoSuchFile)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"

"""Models of opsets before 13: every form of every op, and networks as the exporters of those years wrote them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from torch.nn import functional

import onnx_exporters as exporters
from ingot.errors import LoadError, UnsupportedError
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from onnx_earlier_cases import FORMULAS, Formula
from onnx_models import Case, model, one_node, run_oracle, text_model, value_info


@pytest.mark.parametrize(("case", "formula"), FORMULAS, ids=[str(case) for case, _ in FORMULAS])
def test_forms_that_nobody_else_runs(case: Case, formula: Formula, rng: np.random.Generator) -> None:
    proto, feeds = one_node(case, rng)
    expected = formula(*feeds.values())
    expected = expected if isinstance(expected, list) else [expected]
    results = list(interpret(load_onnx(proto.SerializeToString()), feeds).values())
    for got, wanted in zip(results, expected[: case.outputs], strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-5, atol=2e-5)


def by_torch(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """What `exporters.pytorch_of_opset_6` means."""
    w = [torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in proto.graph.initializer]
    y = functional.conv2d(torch.from_numpy(x), w[0], padding=1) + w[1][:, None, None]
    y = functional.batch_norm(y, w[4], w[5], w[2], w[3])
    y = functional.max_pool2d(functional.pad(functional.prelu(y, w[6]), (1, 1, 1, 1)), 2)
    y = functional.interpolate(y, scale_factor=2) * w[7]
    return functional.linear(y.mean((2, 3)), w[9], w[10]).softmax(1).numpy()


# The network, opsets, how many kernels it becomes at most, and how many of them copy.
EXPORTED: dict[str, tuple[Callable, tuple[int, ...], int, int]] = {
    "tf2onnx": (exporters.tf2onnx, (9, 10, 11, 12), 6, 0),
    "keras2onnx": (exporters.keras2onnx, (7, 8, 9, 10, 11, 12), 7, 2),
    "paddle": (exporters.paddle, (9, 10, 11, 12), 10, 0),
    "pytorch": (exporters.pytorch, (9, 10), 14, 3),
    "pytorch, images of any size": (partial(exporters.pytorch, sides=("h", "w")), (9, 10), 14, 3),
    "pytorch of opset 6": (exporters.pytorch_of_opset_6, (6,), 15, 6),
    "a tagger": (exporters.recurrent, (9, 11), 7, 1),
}


@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize(("name", "opset"), [(name, opset) for name, row in EXPORTED.items() for opset in row[1]])
def test_networks_of_exporters_fold(name: str, opset: int, batch: int | str, rng: np.random.Generator) -> None:
    """Natively, without the transposes, reshapes and sizes that they are wrapped in; the numbers are the oracle's."""
    build, opsets, most, copies = EXPORTED[name]
    proto = build(batch) if opsets == (6,) else build(batch, opset)
    assert proto.opset_import[0].version == opset
    feeds = exporters.feeds_of(proto, rng)
    session = InferenceSession(proto.SerializeToString(), threads=1, strict=True)
    (got,) = session.run(None, feeds)
    expected = by_torch(proto, feeds["x"]) if opsets == (6,) else run_oracle("ort", proto, feeds)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    kernels = [step.kernel for step in session.profile(feeds).steps]
    assert len(kernels) <= most and sum(kernel.startswith("copy") for kernel in kernels) <= copies, kernels


def test_subgraphs_and_functions_have_their_opset(rng: np.random.Generator) -> None:
    """Attributes of opset 11 in a branch and in a loop's body; in a function, of the opset that it imports."""
    body = """g (float[1, 3] x, bool c, int64 n) => (float[3] y, float[1, 3] l, float[k] z) <float m = {0.25}> {
        y = If (c) <then_branch = t () => (float[3] p) { p = Squeeze<axes=[0]>(x) },
                    else_branch = e () => (float[3] q) { s = Clip(x, , m)  q = ReduceSum<axes=[0], keepdims=0>(s) }>
        l, z = Loop (n, , x) <body = b (int64 i, bool d, float[1, 3] v) => (bool d, float[1, 3] w, float u) {
            w = Add(v, v)  u = ReduceMax<keepdims=0>(w) }> }"""
    proto = onnx.load_from_string(text_model(body, opset=11))
    x = rng.standard_normal((1, 3)).astype(np.float32)
    graph = load_onnx(proto.SerializeToString())
    for taken in (True, False):
        feeds = {"x": x, "c": np.array(taken), "n": np.array(3)}
        for got, wanted in zip(interpret(graph, feeds).values(), run_oracle("ort", proto, feeds), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
    function = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]> g (float[1, 3] x) => (y) { y = local.bounded(x) }
        <domain: "local", opset_import: ["" : 9]> bounded(v) => (w) { c = Clip<max: float = 0.25>(v)
        w = Unsqueeze<axes: ints = [0]>(c) }""")
    (y,) = interpret(load_onnx(function.SerializeToString()), {"x": x}).values()
    np.testing.assert_array_equal(y, np.minimum(x, np.float32(0.25))[None])


def test_a_file_of_the_first_format_is_of_opset_1() -> None:
    """It imports none. A weight of it is an input, too."""
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["y"], broadcast=1, axis=0)]
    x, weight = np.ones((2, 3), np.float32), np.arange(2, dtype=np.float32)
    inputs, outputs = [value_info("x", x), value_info("w", weight)], [value_info("y", x)]
    proto = model(onnx.helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weight, "w")]))
    proto.ir_version = 2
    del proto.opset_import[:]
    graph = load_onnx(proto.SerializeToString())
    assert graph.inputs == ["x"]
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], x + weight[:, None])


# Refused nodes: opset, node, error, message.
REFUSED = {
    "an axis too far back": (6, "Add<axis=1, broadcast=1>(x, w)", LoadError, "attribute 'axis' is 1"),
    "no dtype": (1, 'Cast<to="COMPLEX"> (x)', LoadError, "'COMPLEX', expected the name of a dtype"),
    "half a copy": (1, "Tile(x, half, half)", LoadError, "[0.5], expected whole numbers"),
    "a copy of an axis that is not there": (1, "Tile(x, two, two)", LoadError, "axis 2 is out of range"),
    "copies of a run": (1, "Tile(x, s, two)", UnsupportedError, "an input 1 that is not known at load"),
    "an odd norm": (1, "GlobalLpPool<p=1.5>(i)", UnsupportedError, "an attribute 'p' of 1.5"),
    "lengths of sequences": (
        8,
        "Scan<num_scan_inputs=1, body = b (float[3] e) => (float[3] o) { o = Neg(e) }>(l, i)",
        UnsupportedError,
        "lengths of sequences",
    ),
    "a crop of more than there is": (1, "Crop<border=[1, 0, 3, 0]>(i)", LoadError, "border [1, 0, 3, 0]"),
    "training": (6, "BatchNormalization(i, v, v, v, v)", UnsupportedError, "output 't' is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_file_node_and_opset(name: str, tmp_path: Path) -> None:
    opset, node, error, message = REFUSED[name]
    outputs = "y, t" if name == "training" else "y"
    head = "float[2, 3] x, float[2, 3, 2] w, float[1, 2, 3, 3] i, float[2] v, float s, int64[1] l"
    text = f"g ({head}) => (y) <float half = {{0.5}}, float two = {{2.0}}> {{ {outputs} = {node} }}"
    (tmp_path / "old.onnx").write_bytes(text_model(text, opset))
    with pytest.raises(error) as caught:
        InferenceSession(tmp_path / "old.onnx", threads=1)
    told = str(caught.value)
    assert type(caught.value) is error and message in told
    assert f"onnx file {str(tmp_path / 'old.onnx')!r}: onnx node 'y'" in told and (
        error is LoadError or f"(opset {opset})" in told
    )

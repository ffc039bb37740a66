"""Unusual forms of ONNX models, which ONNX Runtime runs: every executor gives the same."""

import itertools
from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import ingot
from ingot import InferenceSession
from ingot.errors import InputError, LimitError, UnboundError
from ingot.load.onnx import load_onnx
from ingot.load.onnx.parse import MAX_NAME_BYTES
from onnx_form_cases import LARGEST_RANK, MODELS, OPTIONAL_FORMS, SORTED, scalars
from onnx_models import Case, model, one_node, run_oracle, text_model
from random_onnx import REFUSALS

pytestmark = pytest.mark.filterwarnings("ignore::ingot.errors.ReferenceWarning")
EXECUTORS = ("native", "interpret")


def assert_runs(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], expected: list[np.ndarray]) -> None:
    for executor in EXECUTORS:
        results = InferenceSession(proto.SerializeToString(), threads=1, executor=executor).run(None, feeds)
        for got, wanted in zip(results, expected, strict=True):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", [*OPTIONAL_FORMS, *LARGEST_RANK], ids=str)
def test_node(case: Case, rng: np.random.Generator) -> None:
    proto, feeds = one_node(case, rng)
    assert_runs(proto, feeds, run_oracle("ort", proto, feeds))


@pytest.mark.parametrize(
    "cases", [list(group) for _, group in itertools.groupby(scalars(), lambda c: c[0].op)], ids=lambda g: g[0][0].op
)
def test_one_number_of_any_rank(cases: list[tuple[Case, bool]], rng: np.random.Generator) -> None:
    """Whatever ONNX Runtime takes; the table has a form of each node that it does take."""
    tried = 0
    for case, fed in cases:
        proto, feeds = one_node(case, rng, fed)
        try:
            expected = run_oracle("ort", proto, feeds)
        except REFUSALS:
            continue
        assert_runs(proto, feeds, expected)
        tried += 1
    assert tried >= len(cases) // 4


def with_functions(body: str) -> onnx.ModelProto:
    """A model in ONNX's text form, with functions of the domain `local`."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "local" : 1]> {body}')


@pytest.mark.parametrize("name", MODELS)
def test_order_and_names(name: str, rng: np.random.Generator) -> None:
    proto, in_order = map(with_functions, (MODELS[name], SORTED.get(name, MODELS[name])))
    for flag in (False, True):
        feeds = {"x": rng.standard_normal((2, 3)).astype(np.float32), "c": np.array(flag)}
        assert_runs(proto, feeds, run_oracle("ort", in_order, feeds))


def test_the_longest_name() -> None:
    for length in (MAX_NAME_BYTES, MAX_NAME_BYTES + 1):
        nodes = [helper.make_node("Relu", ["x"], ["n" * length]), helper.make_node("Neg", ["n" * length], ["y"])]
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
        content = model(helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")])).SerializeToString()
        if length == MAX_NAME_BYTES:
            assert "n" * length in load_onnx(content).values
        else:
            with pytest.raises(LimitError, match="name too long"):
                load_onnx(content)


def test_a_correct_order_is_preserved() -> None:
    """Only what has to move moves: of nodes that are not in order, the first in the file that can run is next."""
    content = text_model("g (float[2] x) => (y) { d = Abs (x) y = Add (c, d) a = Exp (x) c = Neg (b) b = Sin (a) }")
    assert [node.output for node in load_onnx(content).nodes] == ["d", "a", "b", "c", "y"]


def unranked(*nodes: onnx.NodeProto, inputs: str) -> bytes:
    """A model over inputs that declare no shape, but for c f32[n,3]."""
    shapes = {"c": ["n", 3]}
    declared = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes.get(name)) for name in inputs.split()
    ]
    return model(helper.make_graph(nodes, "g", declared, [onnx.ValueInfoProto(name="y")])).SerializeToString()


NODES = [helper.make_node("Add", ["a", "b"], ["t"]), helper.make_node("Softmax", ["t"], ["y"], axis=-1)]
SHAPES = [((2, 3), (3,)), ((4,), (2, 4)), ((2, 3), (3,)), ((1, 2, 3), (1,)), ((6,), (1,)), ((), (6,))]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_inputs_without_a_shape(executor: str, rng: np.random.Generator) -> None:
    """A run says how many dims each has, and gets a program for its shapes."""
    content = unranked(*NODES, inputs="a b")
    session, oracle = InferenceSession(content, threads=1, executor=executor), onnxruntime.InferenceSession(content)
    assert [(arg.name, arg.shape) for arg in session.get_inputs()] == [("a", []), ("b", [])]
    for shapes in SHAPES:
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in zip("ab", shapes, strict=True)}
        np.testing.assert_allclose(*session.run(None, feeds), *oracle.run(None, feeds), rtol=1e-5, atol=1e-6)
    if executor == "native":
        assert session.bindings.hits == 1 and session.bindings.misses == len(SHAPES) - 1


def test_a_rank_may_be_given(rng: np.random.Generator) -> None:
    """By `dims=`; the dims are then symbols, and what is left open a run says."""
    content = unranked(*NODES, inputs="a b")
    feeds = {"a": rng.standard_normal((2, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    (expected,) = onnxruntime.InferenceSession(content).run(None, feeds)
    for dims, symbols in (
        ({"a_rank": 2}, ["a_0", "a_1", "b_rank"]),
        ({"a_rank": 2, "b_rank": 1}, ["a_0", "a_1", "b_0"]),
        ({"a_rank": 2, "b_rank": 1, "a_0": 2, "b_0": ingot.at_most(4)}, ["a_1", "b_0"]),
    ):
        session = InferenceSession(content, threads=1, dims=dims)
        assert session._executable.bindings.interface.symbols == symbols
        np.testing.assert_allclose(*session.run(None, feeds), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match=r"no such dim, got .'a_0'., expected .'a_rank', 'b_rank'"):
        InferenceSession(content, dims={"a_0": 2})
    with pytest.raises(LimitError, match="input 'a': rank too high, got 99, expected at most 12"):
        InferenceSession(content, dims={"a_rank": 99})
    with pytest.raises(LimitError, match="input 'a': rank too high, got 20"):
        InferenceSession(content).run(None, {"a": np.ones((1,) * 20, np.float32), "b": feeds["b"]})
    with pytest.raises(UnboundError, match=r"input 'a': has no shape, got none, expected its dims.*'a_rank'"):
        load_onnx(content)


def test_an_input_without_a_shape_and_symbols(rng: np.random.Generator) -> None:
    content = unranked(helper.make_node("MatMul", ["a", "c"], ["y"]), inputs="a c")
    session, oracle = InferenceSession(content, threads=1), onnxruntime.InferenceSession(content)
    for shape in ((2, 4), (4,), (5, 2, 3)):
        feeds = {"a": rng.standard_normal(shape).astype(np.float32)}
        feeds["c"] = rng.standard_normal((shape[-1], 3)).astype(np.float32)
        np.testing.assert_allclose(*session.run(None, feeds), *oracle.run(None, feeds), rtol=1e-5, atol=1e-6)

"""Models whose form depends on their dims: loaded for each binding; branches that only some dims fit."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from ingot import InferenceSession, at_most
from ingot.errors import InputError, LoadError, UnboundError, UnsupportedError
from ingot.load.onnx import load_onnx
from onnx_binding_cases import MODELS, SQUEEZED, WEIGHED
from onnx_models import run_oracle, text_model

F = np.float32


EACH = {"a rank that depends on a dim", "a squeeze of whatever is 1", "a convolution by filters of any width"}


def feeds_of(n: int, m: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n + 10 * m).standard_normal((n, m, 4)).astype(F)}


def assert_runs(session: InferenceSession, content: bytes, feeds: Mapping[str, np.ndarray]) -> None:
    expected = run_oracle("ort", onnx.load_from_string(content), feeds)
    for got, wanted in zip(session.run(None, feeds), expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_each_binding_has_its_form(name: str, executor: str) -> None:
    body, sizes = MODELS[name]
    content = text_model(body)
    session = InferenceSession(content, executor=executor, threads=1)
    assert session.get_inputs()[0].shape == ["n", "m", 4] and [o.name for o in session.get_outputs()] == ["y"]
    for n, m in sizes:
        assert_runs(session, content, feeds_of(n, m))
        bound = InferenceSession(content, executor=executor, threads=1, dims={"n": n, "m": m})
        assert bound.get_inputs()[0].shape == [n, m, 4]
        assert_runs(bound, content, feeds_of(n, m))


@pytest.mark.parametrize("name", MODELS)
def test_limits(name: str) -> None:
    """A model that has another graph for each size is never loaded for a limit: each size has a program of its own."""
    body, sizes = MODELS[name]
    content = text_model(body)
    session = InferenceSession(content, threads=1, dims={"n": at_most(8), "m": at_most(8)})
    assert (session.bindings.unplanned == "the model has another graph for each size") == (name in EACH)
    for n, m in sizes:
        assert_runs(session, content, feeds_of(n, m))
    with pytest.raises(InputError, match="too large, got 9, expected at most 8"):
        session.run(None, feeds_of(9, 1))


def test_some_dims_may_be_given() -> None:
    """Those that the form depends on are enough; others stay symbols."""
    content = text_model(SQUEEZED)
    session = InferenceSession(content, threads=1, dims={"m": 1})
    assert session.graph.symbols == ["n"]
    other = InferenceSession(content, threads=1, dims={"n": 2})
    for n in (2, 3):
        assert_runs(session, content, feeds_of(n, 1))
    for m in (1, 3):
        assert_runs(other, content, feeds_of(2, m))
    with pytest.raises(InputError, match="wrong dim 0, got 3, expected 2"):
        other.run(None, feeds_of(3, 1))


def test_an_error_names_what_a_graph_lacks(tmp_path) -> None:
    content = text_model(SQUEEZED)
    with pytest.raises(UnboundError, match=r"known rank is needed: f32\[...\]"):
        load_onnx(content)
    session = InferenceSession(content, threads=1)
    for ask in (lambda: session.graph, session.explain, lambda: session.weights):
        with pytest.raises(
            InputError, match=r"no values yet, got none, expected dims=\{'n': 1, 'm': 1\}, or --dim n=1 --dim m=1"
        ):
            ask()
    with pytest.raises(
        UnsupportedError, match=r"another graph for other dims, got none, expected dims=\{'n': 1, 'm': 1\}"
    ):
        session.save(tmp_path / "program")
    with pytest.raises(InputError, match=r"no such dim, got .'k'.*expected .'n', 'm'"):
        InferenceSession(content, dims={"k": 1})
    session.run(None, feeds_of(2, 1))
    assert "softmax" in str(session.explain()) and not session.graph.symbols
    bound = InferenceSession(content, threads=1, dims={"n": 2, "m": 1})
    bound.save(tmp_path / "program")
    assert_runs(InferenceSession(tmp_path / "program", threads=1), content, feeds_of(2, 1))


def test_contexts_share_the_weights_of_a_binding() -> None:
    content = text_model(WEIGHED)
    session = InferenceSession(content, threads=1)
    for n in (1, 2):
        session.run(None, feeds_of(n, 3))
    held = session.weight_bytes
    (expected,) = session.run(None, feeds_of(2, 3))
    assert np.array_equal(session.context().run(None, feeds_of(2, 3))[0], expected)
    assert session.weight_bytes == held


def test_errors_that_no_dims_avoid_are_raised_at_once() -> None:
    body = "agraph (float[n, m, 4] x) => (y) { z = Squeeze (x) y = NoSuchOp (x) }"
    with pytest.raises(UnsupportedError, match="NoSuchOp has no rule") as caught:
        InferenceSession(text_model(body))
    assert not isinstance(caught.value, UnboundError)


# A branch that needs m to be 4, and one that needs n to be 4. The rank of t depends on whether k is 1.
UNFITTING = """agraph (float[n, m] x, float[k] z, bool c) => (y, t) <int64[1] zero = {0}, int64[1] one = {1}> {
    s = Shape (z)
    e = Equal (s, one)
    t = If (e) <then_branch = p () => (a) { a = Squeeze (z, zero) }, else_branch = q () => (b) { b = Identity (z) }>
    u = Shape (t)
    w = Constant <value = float[4, 2] {1, 2, 3, 4, 5, 6, 7, 8}> ()
    v = Transpose (w)
    y = If (c) <
        then_branch = f () => (g) { g = MatMul (x, w) },
        else_branch = h () => (i) { j = MatMul (v, x) i = Transpose (j) }
    >
}"""


def test_a_branch_may_fit_other_dims_alone() -> None:
    content = text_model(UNFITTING)
    session = InferenceSession(content, threads=1)
    rng = np.random.default_rng(5)
    for shape, fits in [((3, 4), (True,)), ((4, 3), (False,)), ((4, 4), (True, False)), ((2, 3), ())]:
        feeds = {"x": rng.standard_normal(shape).astype(F), "z": np.ones(1, F)}
        for c in (True, False):
            if c in fits:
                assert_runs(session, content, feeds | {"c": np.array(c)})
                continue
            error = InputError if fits else LoadError  # where none fits, the model does not
            with pytest.raises(error, match="matmul"):
                session.run(None, feeds | {"c": np.array(c)})


@pytest.mark.parametrize("dim", ["-1", "?"])
def test_dims_without_a_name(dim: str) -> None:
    """Two of them are two dims, though exporters write the same for both."""
    proto = onnx.load_from_string(text_model("agraph (float[n, m, 4] x) => (y) { y = Neg (x) }"))
    for info in (*proto.graph.input, *proto.graph.output):
        for each in info.type.tensor_type.shape.dim[:2]:
            each.Clear()
            if dim == "?":
                each.dim_param = dim
            else:
                each.dim_value = int(dim)
    session = InferenceSession(proto.SerializeToString(), threads=1)
    x = np.ones((2, 3, 4), F)
    assert np.array_equal(session.run(None, {"x": x})[0], -x)

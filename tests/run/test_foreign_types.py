"""Sessions over strings, which no kernel takes, and narrow numbers, which kernels move and cast."""

import numpy as np
import pytest

import ingot
from ingot.errors import UnsupportedError
from ingot.ir.dtype import f8e4m3fn, i4, string
from ingot.ir.graph import Graph, TensorType
from ingot.ir.text import parse
from ingot.load.onnx import load_onnx
from onnx_models import text_model

pytestmark = pytest.mark.checked

WORDS = np.array([["a", "bb", "1.5"], ["", "é\n", "-2"]], object)
X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)

# Nodes over w: string[2, 3] and x: f32[2, 3], and how many of them kernels are for.
PROGRAMS = {
    "nothing but strings": ("output y = w", 0),
    "strings handed through": ("e = exp(x)\noutput y = w\noutput z = e", 1),
    "a constant string": ('constant c: string[2] = ["a", "b\\n"]\ne = exp(x)\noutput y = c\noutput z = e', 1),
    "moved strings": (
        "t = permute(w, axes=[1, 0])\nu = reshape(t, shape=[6])\nv = concat(u, u, axis=0)\ne = exp(x)\n"
        "output y = v\noutput z = e",
        1,
    ),
    "chosen strings": (
        'constant c: string[3] = ["a", "b", "c"]\nk = less(x, x)\ny = where(k, w, c)\ne = equal(w, w)\n'
        "output y = y\noutput e = e",
        1,
    ),
    "numbers as strings": (
        "e = exp(x)\ns = cast(e, dtype=@string)\nf = cast(s, dtype=@f32)\ny = exp(f)\noutput y = y",
        2,
    ),
    "a shape that depends on data": (
        "u = reshape(w, shape=[6])\n"
        's = string_normalize(u, stopwords=["a", "", "bb", "é\\n"], ignore_case=true, case="none")\n'
        "f = cast(s, dtype=@f32)\ny = exp(f)\ne = exp(x)\noutput y = y\noutput e = e",
        1,
    ),
    "narrow and back": ("e = exp(x)\nn = cast(e, dtype=@i4)\nf = cast(n, dtype=@f32)\ny = exp(f)\noutput y = y", 4),
    "floats of 8 bits": (
        "n = cast(x, dtype=@f8e5m2)\nt = permute(n, axes=[1, 0])\nf = cast(t, dtype=@f32)\ny = exp(f)\n"
        "output y = y\noutput n = n",
        3,
    ),
    "quantized": (
        "constant s: f32[] = [0.5]\nq = quantize(x, s, axis=0, block=0, dtype=@i8, precision=@f32, saturate=true)\n"
        "d = dequantize(q, s, axis=0, block=0, dtype=@f32)\ny = exp(d)\noutput y = y",
        2,
    ),
    "quantized in half bytes": (
        "constant s: f32[] = [0.5]\nq = quantize(x, s, axis=0, block=0, dtype=@i4, precision=@f32, saturate=true)\n"
        "d = dequantize(q, s, axis=0, block=0, dtype=@f32)\ny = exp(d)\noutput y = y",
        4,
    ),
}


def graph_of(name: str) -> Graph:
    nodes, _ = PROGRAMS[name]
    constants = [line for line in nodes.splitlines() if line.startswith("constant")]
    rest = [line for line in nodes.splitlines() if not line.startswith("constant")]
    return parse("\n".join(["graph g", "input w: string[2, 3]", "input x: f32[2, 3]", *constants, *rest]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_operands_that_kernels_reject_stay_on_the_reference(name: str, tmp_path) -> None:
    graph, feeds = graph_of(name), {"w": WORDS, "x": X}
    expected = ingot.InferenceSession(graph, executor="interpret").run(None, feeds)
    session = ingot.InferenceSession(graph)
    steps = [step for part in session.program.native for step in part.lowered.steps]
    tensors = [tensor for part in session.program.native for tensor in part.lowered.tensors.values()]
    assert len(steps) == PROGRAMS[name][1] and all(tensor.dtype.is_native for tensor in tensors)
    session.save(tmp_path / "program")
    for each in (session, ingot.InferenceSession(tmp_path / "program")):
        for got, wanted in zip(each.run(None, feeds), expected, strict=True):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            if got.dtype == object:
                assert got.tolist() == wanted.tolist()
            else:
                np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-6)


def test_weights_of_narrow_numbers_become_weights_of_kernels(tmp_path) -> None:
    """What depends on weights alone is computed once, from the bytes that a saved program keeps."""
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.integers(-8, 8, (300, 300)).astype(i4.numpy),
        "v": rng.standard_normal((300, 40)).astype(f8e4m3fn.numpy),
    }
    graph = parse(
        "graph g\ninput x: f32[4, 300]\nweight w: i4[300, 300]\nweight v: f8e4m3fn[300, 40]\n"
        "constant s: f32[] = [0.25]\nd = dequantize(w, s, axis=0, block=0, dtype=@f32)\nh = matmul(x, d)\n"
        "f = cast(v, dtype=@f32)\n"
        "y = matmul(h, f)\noutput y = y\n",
        weights,
    )
    x = rng.standard_normal((4, 300)).astype(np.float32)
    expected = x @ (weights["w"].astype(np.float32) * 0.25) @ weights["v"].astype(np.float32)
    session = ingot.InferenceSession(graph, strict=True)
    session.save(tmp_path / "program")
    for each in (session, ingot.InferenceSession(tmp_path / "program", strict=True)):
        np.testing.assert_allclose(each.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-3)


def test_strict_names_what_has_no_kernel() -> None:
    with pytest.raises(ingot.UnsupportedError, match="got permute 't', reshape 'u', concat 'v'"):
        ingot.InferenceSession(graph_of("moved strings"), strict=True)


@pytest.mark.parametrize("bad", [np.array([["a", 1, None]] * 2, object), np.array([[b"a"] * 3] * 2), np.ones((2, 3))])
@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_what_is_no_array_of_strings(bad: np.ndarray, executor: str) -> None:
    session = ingot.InferenceSession(graph_of("strings handed through"), executor=executor)
    with pytest.raises(ingot.InputError, match="input 'w'"):
        session.run(None, {"w": bad, "x": X})


@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_a_state_of_strings_is_carried(executor: str) -> None:
    graph = parse(
        "graph g\ninput x: f32[2]\ninput w: string[2]\nstate s: string[2] -> t\nt = string_concat(s, w)\n"
        "y = exp(x)\noutput y = y\noutput t = t\n"
    )
    session = ingot.InferenceSession(graph, executor=executor)
    feeds = {"x": np.zeros(2, np.float32), "w": np.array(["a", "b"], object)}
    assert [session.run(["t"], feeds)[0].tolist() for _ in range(3)] == [["a", "b"], ["aa", "bb"], ["aaa", "bbb"]]


def test_equal_strings_are_one_constant() -> None:
    lines = "".join(f'constant c{i}: string[2] = ["{"a" * 3}", "b"]\n' for i in range(2))
    graph = parse(f"graph g\n{lines}y = concat(c0, c1, axis=0)\noutput y = y\n")
    session = ingot.InferenceSession(graph)
    assert session.run(None, {})[0].tolist() == ["aaa", "b"] * 2


def test_an_onnx_model_of_words() -> None:
    graph = load_onnx(
        text_model(
            "g (string[N] x) => (float[N] y) { s = StringConcat(x, c)  f = Cast<to=1>(s)  y = Exp(f) }".replace(
                "{", '<string[1] c = {"0"}> {', 1
            ),
            opset=20,
        )
    )
    session = ingot.InferenceSession(graph)
    for words in (["1", "-"], [""]):
        x = np.array([word + "1." for word in words], object)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], np.exp([float(word + "1.0") for word in words]), rtol=1e-5
        )


def test_a_graph_that_holds_strings_is_not_saved(tmp_path) -> None:
    graph = Graph("words")
    words = graph.add_weight("w", np.array(["a", "b"], object))
    graph.add_input("x", TensorType(string, (2,)))
    graph.set_output("y", graph.add("string_concat", ["x", words]).output)
    with pytest.raises(UnsupportedError, match="contains strings"):
        ingot.InferenceSession(graph).save(tmp_path / "program")

"""Sequences, optionals, subgraphs and shapes that depend on data: the loader, the text form and both executors."""

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ingot import InferenceSession
from ingot.errors import InputError, LimitError, LoadError, UnsupportedError
from ingot.ir.dim import scaled
from ingot.ir.dtype import bf16
from ingot.ir.text import dump, parse
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from onnx_cases import NODES
from onnx_image_cases import RESIZES
from onnx_models import Case, case, one_node, run_oracle, text_model
from onnx_value_cases import BY_REFERENCE, VALUES, absent_optional, scan_with_batch

F = np.float32


def feeds_of(name: str, rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((2, 3, 4)).astype(F), **VALUES[name][1]}


def assert_same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted)
        for each in zip(got, wanted, strict=True):
            assert_same(*each)
        return
    if isinstance(wanted, dict):
        assert got == pytest.approx(wanted, rel=2e-6, abs=2e-6)
        assert {(type(k), type(v)) for k, v in got.items()} == {(type(k), type(v)) for k, v in wanted.items()}
        return
    wanted = np.asarray(wanted)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", VALUES)
def test_both_executors_agree_with_the_oracle(name: str, rng: np.random.Generator) -> None:
    """So does the graph that its text reads back, and the one after the passes."""
    content, feeds = text_model(VALUES[name][0]), feeds_of(name, rng)
    oracle = "reference" if name in BY_REFERENCE else "ort"
    expected = run_oracle(oracle, onnx.load_from_string(content), feeds)
    graph = load_onnx(content)
    graph.validate()
    again = parse(dump(graph))
    again.validate()
    assert dump(again) == dump(graph) == dump(graph.copy())
    session = InferenceSession(content, threads=1)
    for results in (interpret(again, feeds).values(), session.run(None, feeds), session.run(None, feeds)):
        for got, wanted in zip(results, expected, strict=True):
            assert_same(got, wanted)


# What is a constant in cases of these may as well be fed.
RUNTIME = {
    "AffineGrid", "BlackmanWindow", "Col2Im", "DFT", "Dropout", "HammingWindow", "HannWindow", "MaxUnpool",
    "MelWeightMatrix", "Pad", "Resize", "STFT",
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in NODES if case.op in RUNTIME and case.constants], ids=str)
def test_constants_that_are_fed(case: Case, rng: np.random.Generator) -> None:
    """What rules make of parameters that only a run knows gives what they make of constants."""
    state = rng.bit_generator.state
    proto, feeds = one_node(case, rng)
    expected = interpret(load_onnx(proto.SerializeToString()), feeds)
    rng.bit_generator.state = state
    proto, feeds = one_node(case, rng, fed=True)
    graph = parse(dump(load_onnx(proto.SerializeToString())))
    results = interpret(graph, feeds)  # and the state of random numbers, which a fed mode may ask for
    for name, wanted in expected.items():
        got = results[name]
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in RESIZES if "x[1,2" in case.operands], ids=str)
def test_images_of_symbolic_size_are_resized(case: Case, rng: np.random.Generator) -> None:
    """Natively, where the sizes wanted are integers, or those of images times fractions of few bits."""
    proto, feeds = one_node(case, rng)
    spatial = proto.graph.input[0].type.tensor_type.shape.dim[2:]
    for i, dim in enumerate(spatial):
        dim.dim_param = f"s{i}"
    scales = case.constants["s"] if case.constants["s"].dtype == F else np.ones(1, F)
    is_exact = all(scaled(1, scale.item()) is not None for scale in scales)
    strict = is_exact and "keep_aspect_ratio_policy" not in case.attributes
    session = InferenceSession(proto.SerializeToString(), threads=1, strict=strict)
    for more in (0, 2):
        x = rng.standard_normal([1, 2, *(size + more for size in feeds["x0"].shape[2:])]).astype(F)
        for got, wanted in zip(session.run(None, {"x0": x}), run_oracle(case.oracle, proto, {"x0": x}), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_a_scan_of_opset_8(rng: np.random.Generator) -> None:
    """Batch by batch, what is carried adds up."""
    feeds = {"s": rng.standard_normal((2, 4)).astype(F), "x": rng.standard_normal((2, 3, 4)).astype(F)}
    y, z = interpret(load_onnx(scan_with_batch()), feeds).values()
    assert_same(z, feeds["s"][:, None] + np.cumsum(feeds["x"], 1))
    assert_same(y, z[:, -1])


def test_a_scan_whose_state_has_the_dims_of_an_input(rng: np.random.Generator) -> None:
    """Natively, too: the iterations read dims that only the operands of a run have."""
    proto, feeds = one_node(
        case("LinearAttention", "q[2,5,16] k>-.3<.3[2,5,16] v[2,5,12] none none b>0<1[2,5,2]", 2, opset=27,
             q_num_heads=2, kv_num_heads=2, update_rule="delta"), rng,
    )  # fmt: skip
    expected = run_oracle("reference", proto, feeds)
    for declared in proto.graph.input:
        for dim in declared.type.tensor_type.shape.dim:
            dim.Clear()
    session = InferenceSession(proto.SerializeToString(), threads=1)
    for got, wanted in zip(session.run(None, feeds), expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_an_absent_optional() -> None:
    (has,) = interpret(load_onnx(absent_optional()), {}).values()
    assert has.dtype == bool and not has


@pytest.mark.parametrize("name", ["a scan", "a loop of a known number of turns"])
def test_a_loop_with_a_known_count_is_unrolled(name: str) -> None:
    session = InferenceSession(text_model(VALUES[f"control: {name}"][0]), threads=1, strict=True)
    assert not session.program.fallback


@pytest.mark.parametrize("change", ["m = Constant<value_int=2000>", "c = Constant<value=bool {0}>"])
def test_other_loops_stay_loops(change: str) -> None:
    """Of too many turns, or of none."""
    text = VALUES["control: a loop of a known number of turns"][0]
    name = change.partition(" ")[0]
    known = {"m": "m = Constant<value_int=3>", "c": "c = Constant<value=bool {1}>"}[name]
    session = InferenceSession(text_model(text.replace(known, change)), threads=1)
    assert session.program.fallback == ["loop 'y'"]


def test_what_has_a_shape_stays_native(rng: np.random.Generator) -> None:
    """Before and next to a node with a data-dependent shape; nodes on the reference are named."""
    session = InferenceSession(text_model(VALUES["length: what follows a length"][0]), threads=1)
    program = session.program
    assert [part.graph.outputs for part in program.native] == [{"r": "r"}]
    assert any(each.startswith("nonzero ") for each in program.fallback)
    with pytest.raises(UnsupportedError, match="strict: no kernel, got nonzero"):
        InferenceSession(text_model(VALUES["length: positions"][0]), strict=True)


def test_a_rank_known_at_run_time() -> None:
    """What it takes is a visible step, and beyond the largest rank an error of the run; sizes of any number bind it."""
    content = text_model(VALUES["rank: a loop that adds a dim each time"][0])
    session = InferenceSession(content, threads=1)
    assert "on the reference: loop 'y'" in str(session.explain())
    with pytest.raises(UnsupportedError, match="strict: no kernel, got loop 'y'"):
        InferenceSession(content, strict=True)
    with pytest.raises(InputError, match=r"node 'y': .*wrong rank, got f32"):
        session.run(None, {"x": np.zeros((2, 3, 4), F), "m": np.array(10)})
    session = InferenceSession(text_model("g (float[2, 6] x, int64[k] s) => (y) { y = Reshape(x, s) }"), threads=1)
    for shape in ([12], [3, 2, 2], [2, 6], [1, 12]):
        (y,) = session.run(None, {"x": np.zeros((2, 6), F), "s": np.array(shape)})
        assert y.shape == tuple(shape)
    assert session.bindings.misses == 3


LOOP = """g (float x, int64[1] s) => (y, z) { y, z = Loop (, , x) <body = b (int64 i, bool k, float v) =>
    (bool l, float w, float[n] e) { l = Identity(k)  w = Add(v, v)  e = ConstantOfShape(s) }> }"""


def test_a_scan_builds_outputs_of_elements_of_one_rank():
    content = text_model(
        """g (float s, float[3, 2] x) => (float[2] y, float[3, 2] z) { y, z = Scan<num_scan_inputs=1,
        body = b (float[2] v, float[2] e) => (float[2] a, float[2] o) { a = Mul(v, e)  o = Add(a, v) }>(s, x) }"""
    )
    with pytest.raises(UnsupportedError, match=r"'y': Scan .* an output of type f32"):
        load_onnx(content)


@pytest.mark.parametrize("name", ["length: what follows a length", "control: a scan", "size: Reshape"])
def test_saved_programs(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    session, feeds = InferenceSession(text_model(VALUES[name][0]), threads=1), feeds_of(name, rng)
    session.save(tmp_path / "program")
    again = InferenceSession(tmp_path / "program", threads=1)
    for got, wanted in zip(again.run(None, feeds), session.run(None, feeds), strict=True):
        assert np.array_equal(got, wanted)


def test_what_a_loop_scans_is_limited() -> None:
    """Before the memory for it is taken."""
    graph = load_onnx(text_model(LOOP))
    with pytest.raises(LimitError, match="scan outputs too large"):
        interpret(graph, {"x": np.array(1, F), "s": np.array([2**30])})


BAD = {
    "a position outside": ("s = SequenceConstruct(x, x)  y = SequenceAt(s, i)", InputError, "index out of range"),
    "joined lists of none": (
        "e = SequenceEmpty()  y = ConcatFromSequence<axis=0>(e)", InputError, "the sequence is empty",
    ),
    "a shape of other size": ("y = Reshape(x, i)", InputError, "number of elements"),
    "a negative dim": ("m = Constant<value_ints=[-7, -7]>()  a = Mul(m, i)  y = Expand(x, a)", InputError, "sizes out"),
    "a step of 0": ("z = Sub(i, i)  y = Slice(x, i, i, z, z)", InputError, "sizes out of range"),
    "shapes that do not broadcast": ("a = Concat<axis=0>(i, i)  y = Expand(x, a)", InputError, "do not broadcast"),
    "an axis twice": ("z = Sub(i, i)  a = Concat<axis=0>(z, z)  y = ReduceSum(x, a)", InputError, "given twice"),
    "a window below nothing": ("n = Neg(i)  y = HannWindow(n)", InputError, "sizes out of range"),
    "frames that do not move": (
        "d = Constant<value_ints=[1, 6, 1]>()  r = Reshape(x, d)  z = Sub(i, i)  n = Div(i, i)  y = STFT(r, z, , n)",
        InputError, "sizes out of range",
    ),
    "frames longer than the signal": (
        "d = Constant<value_ints=[1, 6, 1]>()  r = Reshape(x, d)  n = Div(i, i)  y = STFT(r, n, , i)",
        InputError, "iota: bad length",
    ),
    "a transform over the parts": (
        "d = Constant<value_ints=[2, 3, 1]>()  r = Reshape(x, d)  q = Sub(i, i)  t = Constant<value_int=2>()"
        "  w = Squeeze(q)  a = Add(w, t)  y = DFT(r, , a)", InputError, "sizes out of range",
    ),
    "a shape that an unpooling exceeds": (
        "d = Constant<value_ints=[1, 1, 2, 3]>()  r = Reshape(x, d)  z = Cast<to=7>(r)  q = Div(i, i)"
        "  o = Concat<axis=0>(q, q, q, q)  y = MaxUnpool<kernel_shape=[1, 1]>(r, z, o)", InputError, "sizes out of",
    ),
    "an empty block": (
        "d = Constant<value_ints=[1, 2, 3]>()  r = Reshape(x, d)  z = Sub(i, i)  b = Concat<axis=0>(i, i)"
        "  e = Concat<axis=0>(z, z)  y = Col2Im(r, b, e)", InputError, "sizes out of range",
    ),
    "an image of negative size": (
        "n = Neg(i)  s = Concat<axis=0>(n, n)  y = Resize(x, , , s)", InputError, "sizes out of range",
    ),
    "an image of infinite size": (
        "c = Constant<value_floats=[inf, 1.0]>()  f = Cast<to=1>(i)  s = Mul(c, f)  y = Resize(x, , s)",
        InputError, "sizes out of range",
    ),
    "an axis outside": ("y = Squeeze(x, i)", InputError, "out of range"),
    "a body without inputs": (
        "y = Loop (i, , x) <body = b () => (bool c) { c = Constant<value_int=1>() }>", LoadError, "got 0, expected 3",
    ),
    "what is carried of another dtype": (
        "y = Loop (i, , x) <body = b (int64 j, bool k, float[2] v) => (bool k, int64[2] w) { w = Cast<to=7>(v) }>",
        LoadError, "types differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_models_and_runs(name: str) -> None:
    body, error, message = BAD[name]
    content = text_model(f"g (float[2, 3] x, int64[1] i) => (y) {{ {body} }}", opset=20)
    for executor in ("interpret", "native"):
        with pytest.raises(error, match=message):
            session = InferenceSession(content, executor=executor, threads=1)
            session.run(None, {"x": np.zeros((2, 3), F), "i": np.array([9])})


STRINGS: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "in a sequence": (
        "g (seq(string[N]) s, string[2] t) => (seq(string[N]) q, string[M] y)"
        " { q = SequenceInsert(s, t) y = ConcatFromSequence<axis=0>(q) }",
        {"s": [["a"]], "t": ["b", "c"]},
        [[["a"], ["b", "c"]], ["a", "b", "c"]],
    ),
    "handed through beside a sequence": (
        "g (seq(float[2]) s, string[2] t, float[2] x) => (seq(float[2]) q, string[2] u, float[2] y)"
        " { q = Identity(s) u = Identity(t) y = Relu(x) }",
        {"s": [], "t": ["a", "b"], "x": [1, -2]},
        [[], ["a", "b"], [1.0, 0.0]],
    ),
    "captured by a branch": (
        "g (bool c, string[2] s) => (string[2] y) { y = If(c) <then_branch = a () => (string[2] p) { p = Identity(s) },"
        ' else_branch = b () => (string[2] q) { q = Constant<value_strings=["u;}", "v"]>() }> }',
        {"c": False, "s": ["a", "b"]},
        [["u;}", "v"]],
    ),
    "chosen by data": (
        "g (string[2,2] s, bool[2] c, float[2] x) => (string[K,2] y, string[L,2] u, float[2] z)"
        " { y = Compress<axis=0>(s, c) u = Unique<axis=0>(s) z = Relu(x) }",
        {"s": [["b", "c"], ["a", "d"]], "c": [False, True], "x": [1, -2]},
        [[["a", "d"]], [["a", "d"], ["b", "c"]], [1.0, 0.0]],
    ),
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_among_other_values(name: str) -> None:
    body, given, expected = STRINGS[name]
    dtypes = {"x": F, "c": bool}
    feeds: dict[str, Any] = {key: np.array(value, dtypes.get(key, object)) for key, value in given.items()}
    if body.startswith("g (seq"):
        feeds["s"] = [np.array(each, object) for each in given["s"]]
    content = text_model(body)
    graph = parse(dump(load_onnx(content)))
    for results in (interpret(graph, feeds).values(), InferenceSession(content, threads=1).run(None, feeds)):
        assert [[e.tolist() for e in r] if isinstance(r, list) else r.tolist() for r in results] == expected


def test_bf16_in_a_loop_is_rounded_at_each_node() -> None:
    """The loop itself moves its values and widens none."""
    body = """g (bfloat16[2] x, int64 n) => (bfloat16[2] y, bfloat16[K,2] z) {
        c = Constant<value = bool {1}>()
        y, z = Loop(n, c, x) <body = b (int64 i, bool before, bfloat16[2] v)
        => (bool after, bfloat16[2] w, bfloat16[2] s)
        { after = Identity(before) w = Add(v, v) s = Identity(w) }> }"""
    x = np.array([1, 3], bf16.numpy)
    y, z = InferenceSession(text_model(body), threads=1).run(None, {"x": x, "n": np.array(2)})
    assert y.dtype == z.dtype == bf16.numpy
    assert y.tolist() == [4, 12] and z.tolist() == [[2, 6], [4, 12]]


@pytest.mark.parametrize("executor", ["interpret", "native"])
def test_a_loop_without_an_end_is_interrupted(executor: str) -> None:
    """Ctrl-C ends it, and the session runs again."""
    content = text_model(
        """m (bool keep, float[1] x) => (float[1] y) {
            y = Loop (, keep, x) <body = b (int64 i, bool k, float[1] v) => (bool k, float[1] w) { w = Abs (v) }>
        }"""
    )
    session = InferenceSession(content, threads=1, executor=executor)
    x = np.full(1, -3, F)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"keep": np.array(True), "x": x})
    (y,) = session.run(None, {"keep": np.array(False), "x": x})
    assert y == x

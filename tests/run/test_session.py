"""The public face: runs, names, errors, bindings, contexts, saved programs."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import ingot
from ingot.ir.dim import symbol
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import OPS, Graph, TensorType
from ingot.ir.text import parse
from ingot.run.arena import Arena
from ingot.run.store import WeightStore
from ingot.session.inference import InferenceSession
from ingot.session.source import Shared
from registered import registering

assert registering

pytestmark = pytest.mark.checked

MLP = """graph mlp
input x: f32[B, 24]
weight w1: f32[40, 24]
weight b1: f32[40]
weight w2: f32[7, 40]
w1t = permute(w1, axes=[1, 0]): f32[24, 40]
h = matmul(x, w1t): f32[B, 40]
hb = add(h, b1): f32[B, 40]
r = gelu(hb): f32[B, 40]
y = matmul(r, w2, transpose_b=true): f32[B, 7]
output logits = y
output hidden = r
"""


@pytest.fixture(scope="module")
def mlp() -> Graph:
    rng = np.random.default_rng(3)
    shapes = {"w1": (40, 24), "b1": (40,), "w2": (7, 40)}
    return parse(MLP, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


def feed(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((batch, 24)).astype(np.float32)}


def test_native_equals_interpret_for_every_batch(mlp: Graph) -> None:
    native = ingot.InferenceSession(mlp)
    reference = ingot.InferenceSession(mlp, executor="interpret")
    for batch in (1, 4, 5, 33):
        for got, expected in zip(native.run(None, feed(batch)), reference.run(None, feed(batch)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_row_has_the_same_bits_in_every_batch(mlp: Graph) -> None:
    session = ingot.InferenceSession(mlp, threads=2)
    rows = feed(37)["x"]
    (whole,) = session.run(["logits"], {"x": rows})
    for i in (0, 5, 36):
        (alone,) = session.run(["logits"], {"x": rows[i : i + 1]})
        assert np.array_equal(whole[i].view(np.int32), alone[0].view(np.int32))


def test_names_shapes_and_order(mlp: Graph) -> None:
    session = ingot.InferenceSession(mlp)
    (x,), (logits, hidden) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.shape, x.type) == ("x", ["B", 24], "tensor(float)")
    assert (logits.name, logits.shape, hidden.name) == ("logits", ["B", 7], "hidden")
    both = session.run(["hidden", "logits"], feed(2))
    assert [a.shape for a in both] == [(2, 40), (2, 7)]


def test_dims_bind_at_load(mlp: Graph) -> None:
    session = ingot.InferenceSession(mlp, dims={"B": 3})
    assert session.get_inputs()[0].shape == [3, 24]
    assert session.plan.arena_bytes >= session.plan.lower_bound_bytes
    with pytest.raises(ingot.InputError, match="wrong dim 0, got 4, expected 3"):
        session.run(None, feed(4))
    with pytest.raises(ingot.InputError, match="no such dim"):
        ingot.InferenceSession(mlp, dims={"Q": 3})


@pytest.mark.parametrize(
    "bad, message",
    [
        ({}, "missing"),
        ({"y": np.zeros((2, 24), np.float32)}, "y"),
        ({"x": np.zeros((2, 24), np.float64)}, "wrong dtype"),
        ({"x": np.zeros((2, 2, 24), np.float32)}, "wrong rank"),
        ({"x": np.zeros((2, 25), np.float32)}, "wrong dim 1, got 25, expected 24"),
        ({"x": [[0.0] * 24, [0.0]]}, "'x': a list that is not an array"),
        ({"x": [["0.0"] * 24]}, "a list of <U3, expected numbers for f32"),
        ({"x": [[None] * 24]}, "a list of object, expected numbers for f32"),
        ({"x": None}, "got NoneType, expected f32"),
        ({"x": np.zeros((2, 24), np.float32), "z": np.zeros(1)}, r"unknown \['z'\], expected \['x'\]$"),
        ({"X": np.zeros((2, 24), np.float32)}, r"missing \['x'\], unknown \['X'\].*, 'x' perhaps for 'X'"),
    ],
)
def test_wrong_inputs(mlp: Graph, bad: dict[str, object], message: str) -> None:
    for options in ({}, {"executor": "interpret"}):
        session = ingot.InferenceSession(mlp, **options)
        with pytest.raises(ingot.InputError, match=message):
            session.run(None, bad)  # type: ignore[arg-type]
        assert session.run(None, feed(2))[0].shape == (2, 7)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"executor": "gpu"}, "option executor"),
        ({"precision": "int3"}, "option precision"),
        ({"threads": -1}, "option threads"),
        ({"threads": 10**6}, "option threads"),
        ({"threads": "2"}, "option threads: not an integer, got '2'"),
        ({"threads": 2.5}, "option threads: not an integer, got 2.5"),
        ({"passes": ("no_such",)}, "no_such"),
        ({"passes": "fold"}, r"option passes: .* expected \['fold'\]"),
        ({"dims": ["rows"]}, "option dims: names are needed"),
        ({"cache": 3}, "option cache: got 3"),
    ],
)
def test_wrong_options(mlp: Graph, options: dict[str, object], message: str) -> None:
    with pytest.raises(ingot.InputError, match=message):
        ingot.InferenceSession(mlp, **options)  # type: ignore[arg-type]


def test_wrong_sources(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        ingot.InferenceSession(tmp_path / "none.onnx")
    with pytest.raises(ingot.InputError, match="source"):
        ingot.InferenceSession(42)
    with pytest.raises(ingot.LoadError, match="a saved program"):
        ingot.InferenceSession(tmp_path)


def test_strange_arrays(mlp: Graph) -> None:
    """Unaligned, strided, reversed, Fortran, read-only and broadcast inputs are copied where they must be."""
    session = ingot.InferenceSession(mlp)
    plain = feed(6)["x"]
    (expected,) = session.run(["logits"], {"x": plain})
    wide = np.zeros((12, 48), np.float32)
    wide[::2, ::2] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    unaligned = np.frombuffer(b"?" + plain.tobytes(), np.uint8)[1:].view(np.float32).reshape(plain.shape)
    for strange in (unaligned, wide[::2, ::2], np.asfortranarray(plain), plain[::-1].copy()[::-1], frozen):
        assert np.array_equal(session.run(["logits"], {"x": strange})[0], expected)
    one = np.broadcast_to(plain[:1], (6, 24))
    assert np.array_equal(session.run(["logits"], {"x": one})[0][3], expected[0])


def test_arrays_of_other_kinds(mlp: Graph, tmp_path) -> None:
    """Mapped ones and subclasses are read; another byte order and a mask are errors, not other numbers."""
    session, plain = ingot.InferenceSession(mlp), feed(6)["x"]
    (expected,) = session.run(["logits"], {"x": plain})
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=plain.shape)
    mapped[:] = plain
    for same in (mapped, plain.view(np.matrix)):
        assert np.array_equal(session.run(["logits"], {"x": same})[0], expected)
    for options in ({}, {"executor": "interpret"}):
        other = ingot.InferenceSession(mlp, **options)
        with pytest.raises(ingot.InputError, match="wrong dtype"):
            other.run(None, {"x": plain.astype(">f4")})
        with pytest.raises(ingot.InputError, match="a masked array"):
            other.run(None, {"x": np.ma.masked_less(plain, 0)})


def pickled(session):
    return pickle.loads(pickle.dumps(session))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("source", ["graph", "path", "bytes", "program"])
def test_a_copy_is_rebuilt_from_the_source(mlp: Graph, copied, source: str, tmp_path) -> None:
    made, options = mlp, {"executor": "native", "threads": 1, "strict": True, "dims": {"B": ingot.at_most(4)}}
    if source in ("path", "bytes"):
        made = ingot.export_onnx(mlp).SerializeToString()
    if source == "path":
        (tmp_path / "mlp.onnx").write_bytes(made)
        made = tmp_path / "mlp.onnx"
    if source == "program":
        ingot.InferenceSession(mlp, dims={"B": 4}).save(tmp_path / "program")
        made, options = tmp_path / "program", {"threads": 1, "strict": True}
    session = ingot.InferenceSession(made, **options)
    other = copied(session)
    assert type(other) is type(session) and other is not session
    assert (other.executor, other.threads, other.strict) == (session.executor, session.threads, session.strict)
    assert other.get_inputs() == session.get_inputs() and other.get_outputs() == session.get_outputs()
    for a, b in zip(session.run(None, feed(4)), other.run(None, feed(4)), strict=True):
        assert np.array_equal(a, b)


def test_states_of_a_copy_begin_anew() -> None:
    graph = parse("graph g\ninput x: f32[1]\nstate s: f32[1] = given -> n\nn = add(s, x)\noutput y = n\n",
                  {"s": np.array([5], np.float32)})  # fmt: skip
    session = ingot.InferenceSession(graph)
    assert [session(np.ones(1, np.float32)).item() for _ in range(2)] == [6, 7]
    assert pickled(session)(np.ones(1, np.float32)).item() == 6


def test_a_call_takes_arrays_by_order_or_name(mlp: Graph) -> None:
    session, (x,) = ingot.InferenceSession(mlp), feed(2).values()
    expected = session.run(None, {"x": x})
    for results in (session(x), session(x=x)):
        assert isinstance(results, list) and all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))
    single = parse("graph g\ninput x: f32[2]\ny = neg(x)\noutput y = y\n")
    assert ingot.InferenceSession(single)([1.0, 2.0]).tolist() == [-1, -2]
    for wrong, named in (((x, x), {}), ((x,), {"x": x})):
        with pytest.raises(ingot.InputError, match=r"too many inputs, .* expected each of \['x'\] once"):
            session(*wrong, **named)
    with pytest.raises(ingot.InputError, match="missing"):
        session()
    with pytest.raises(ingot.InputError, match="unknown"):
        session(x, z=x)


def test_a_session_ends_with_its_block(mlp: Graph) -> None:
    with ingot.InferenceSession(mlp) as session:
        other = session.context()
        expected = session.run(None, feed(2))
    x = feed(2)["x"]
    for late in (lambda: session.run(None, {"x": x}), lambda: session(x), session.get_inputs, session.explain):
        with pytest.raises(ingot.InputError, match=r"session: closed, .* its `with` block"):
            late()
    assert np.array_equal(other.run(None, feed(2))[0], expected[0])


def test_outputs_are_the_callers(mlp: Graph) -> None:
    """Nothing that a later run does changes an earlier result, and outputs share no memory."""
    session = ingot.InferenceSession(mlp)
    first = session.run(None, feed(2, seed=1))
    kept = [a.copy() for a in first]
    session.run(None, feed(2, seed=2))
    assert not np.may_share_memory(*first)
    del session
    gc.collect()
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))


def test_inputs_are_alive_for_the_whole_call(registering: None) -> None:
    """Whoever lets go of an array during a run takes no memory from it; what is written into one may be read."""
    given, seen = {}, []

    def meddle(x: np.ndarray) -> np.ndarray:
        seen.append(weakref.ref(given.pop("x")))
        gc.collect()
        seen[0]()[:] = 5
        return x * 0

    ingot.register_op("meddle", meddle)
    text = "graph g\ninput x: f32[4000]\na = exp(x)\nb = meddle(a)\nc = add(b, x)\noutput c = c\n"
    session = ingot.InferenceSession(parse(text))
    given["x"] = np.ones(4000, np.float32)
    assert np.all(session.run(None, given)[0] == 5)
    assert seen[0]() is None


def test_outputs_that_are_inputs_views_and_constants() -> None:
    graph = Graph("odd")
    graph.add_input("x", TensorType(f32, (2, 3)))
    graph.add_constant("c", np.arange(4, dtype=np.int64))
    transposed = graph.add("permute", ["x"], axes=(1, 0)).output
    for name, value in (("same", "x"), ("turned", transposed), ("again", transposed), ("constant", "c")):
        graph.set_output(name, value)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same, turned_x, again, constant = ingot.InferenceSession(graph).run(None, {"x": x})
    assert np.array_equal(same, x) and not np.may_share_memory(same, x)
    assert np.array_equal(turned_x, x.T) and np.array_equal(again, x.T)
    assert np.array_equal(constant, np.arange(4))


def test_io_binding(mlp: Graph) -> None:
    session = InferenceSession(mlp)
    x, logits = feed(3)["x"], np.empty((3, 7), np.float32)
    binding = session.io_binding()
    binding.bind_input("x", x)
    binding.bind_output("logits", logits)
    for seed in (1, 2):
        x[:] = feed(3, seed)["x"]
        session.run_with_iobinding(binding)
        expected = session.run(None, {"x": x})
        assert np.array_equal(logits, expected[0])
        assert np.array_equal(binding.get_outputs()[1], expected[1])
    binding.bind_output("logits", np.empty((4, 7), np.float32))
    with pytest.raises(ingot.InputError, match="logits"):
        session.run_with_iobinding(binding)
    with pytest.raises(ingot.InputError, match="row-major"):
        binding.bind_input("x", x.T)


def test_bound_arrays_that_share_memory() -> None:
    """An output apart from everything else, inputs as they like."""
    both = parse("graph g\ninput x: f32[4]\ninput z: f32[4]\ny = add(x, z)\noutput y = y\n")
    room = np.arange(8, dtype=np.float32)
    binding = InferenceSession(both).io_binding()
    for name in ("x", "z"):
        binding.bind_input(name, room[:4])
    for start in (0, 1, 3):
        binding.bind_output("y", room[start : start + 4])
        with pytest.raises(ingot.InputError, match="shares memory"):
            binding.run()
    for wrong in (np.empty(3, np.float32), np.empty(4)):
        binding.bind_output("y", wrong)
        with pytest.raises(ingot.InputError, match=r"bind_output 'y': wrong array, got .*, expected float32\[4\]"):
            binding.run()
    binding.bind_output("y", room[4:])
    binding.run()
    assert room.tolist() == [0, 1, 2, 3, 0, 2, 4, 6]


def test_concurrent_calls_and_contexts(mlp: Graph) -> None:
    session = ingot.InferenceSession(mlp, threads=2)
    feeds = [feed(1 + i % 3, seed=i) for i in range(24)]
    expected = [session.run(None, f)[0] for f in feeds]
    failures: list[int] = []

    def work(runner: object, turn: int) -> None:
        for i in range(turn, 24, 4):
            for _ in range(20):
                if not np.array_equal(runner.run(None, feeds[i])[0], expected[i]):  # type: ignore[attr-defined]
                    failures.append(i)

    runners = [session, session, session.context(), session.context()]
    threads = [threading.Thread(target=work, args=(runner, turn)) for turn, runner in enumerate(runners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_bindings_are_cached_and_bounded(mlp: Graph) -> None:
    context = ingot.InferenceSession(mlp).context()
    for batch in (1, 2, 1, 2):
        context.run(None, feed(batch))
    assert (context.bindings.hits, context.bindings.misses) == (2, 2)
    for batch in range(1, 40):
        context.run(None, feed(batch))
    assert context.cached_programs <= 16


def test_save_and_load(mlp: Graph, tmp_path) -> None:
    session = ingot.InferenceSession(mlp)
    expected = session.run(None, feed(5))
    session.save(tmp_path / "program")
    loaded = ingot.InferenceSession(tmp_path / "program")
    for batch in (5, 9):
        got, fresh = loaded.run(None, feed(batch)), session.run(None, feed(batch))
        assert all(np.array_equal(a, b) for a, b in zip(got, fresh, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(expected, loaded.run(None, feed(5)), strict=True))


@pytest.mark.parametrize("file", ["graph.ingot", "weights.json", "weights.bin"])
def test_damaged_program(mlp: Graph, tmp_path, file: str) -> None:
    session = ingot.InferenceSession(mlp, dims={"B": 2})
    session.save(tmp_path)
    path = tmp_path / file
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\xff" + whole):
        path.write_bytes(damaged)
        with pytest.raises(ingot.LoadError):
            ingot.InferenceSession(tmp_path)
    path.unlink()
    with pytest.raises(ingot.LoadError):
        ingot.InferenceSession(tmp_path)


def test_bad_index_is_an_input_error() -> None:
    graph = Graph("table")
    graph.add_weight("w", np.eye(9, 4, dtype=np.float32))
    graph.add_input("ids", TensorType(i64, (symbol("N"),)))
    graph.set_output("y", graph.add("gather", ["w", "ids"], axis=0).output)
    session = ingot.InferenceSession(graph)
    assert session.run(None, {"ids": np.array([0, -9, 8])})[0].shape == (3, 4)
    for bad in (9, -10, 1 << 62, -(1 << 63)):
        with pytest.raises(ingot.InputError, match=f"got {bad}, expected -9..8"):
            session.run(None, {"ids": np.array([0, bad, 3])})
    assert np.array_equal(session.run(None, {"ids": np.array([1])})[0], np.eye(9, 4, dtype=np.float32)[1:2])


def test_an_op_without_kernel_runs_on_the_reference_unless_strict() -> None:
    graph = Graph("votes")
    graph.add_input("x", TensorType(f32, (4, 3, 3)))
    scaled = graph.add("sigmoid", ["x"]).output
    graph.set_output("y", graph.add("exp", [graph.add("pairwise_coupling", [scaled]).output]).output)
    x = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32)
    session = ingot.InferenceSession(graph)
    expected = np.exp(OPS["pairwise_coupling"].function(1 / (1 + np.exp(-x))))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)
    assert session.explain().fallback and "on the reference" in str(session.explain())
    with pytest.raises(ingot.UnsupportedError, match="pairwise_coupling"):
        ingot.InferenceSession(graph, strict=True)


@pytest.mark.parametrize(
    "nodes",
    [
        "n = add(s, x)\ny = pairwise_coupling(n)",
        "d = pairwise_coupling(s)\nn = add(d, x)\ny = exp(x)",
        "d = pairwise_coupling(x)\nn = add(d, x)\ny = exp(s)",
    ],
)
def test_states_next_to_an_op_without_kernel_are_carried(nodes: str) -> None:
    """The graph is cut; see test_stateful.py for what runs leave."""
    graph = parse(f"graph g\ninput x: f32[1, 3, 3]\nstate s: f32[1, 3, 3] -> n\n{nodes}\noutput y = y\n")
    with pytest.raises(ingot.UnsupportedError, match=r"strict: .*pairwise_coupling '\w'"):
        ingot.InferenceSession(graph, strict=True)
    x = np.random.default_rng(0).random((1, 3, 3)).astype(np.float32)
    native, reference = (ingot.InferenceSession(graph, executor=each) for each in ("native", "interpret"))
    for _ in range(3):
        np.testing.assert_allclose(native.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-5)


def test_states_have_one_home() -> None:
    """A session of a trainer reads what the trainer's kernels write: it cannot hand on arrays of its own."""
    graph = parse(
        "graph g\ninput x: f32[1, 3, 3]\nstate s: f32[1, 3] -> s\nc = pairwise_coupling(x)\ny = mul(c, s)\n"
        "output y = y\n"
    )
    shared = Shared(graph, Arena(), {}, WeightStore(1), frozenset(), graph.copy)
    with pytest.raises(ingot.UnsupportedError, match="states 's': no kernel, got pairwise_coupling 'c'"):
        ingot.InferenceSession(shared)


def test_explain_profile_and_plan_tell_the_truth(mlp: Graph) -> None:
    session = ingot.InferenceSession(mlp, dims={"B": 2})
    explanation = session.explain().to_json()
    assert [row["kernel"] for row in explanation["nodes"]] == ["gemv_f32_packed", "gemv_f32_packed"]
    many = ingot.InferenceSession(mlp, dims={"B": 64})
    row = many.explain().to_json()["nodes"][0]
    assert row["kernel"] == "gemm_f32_packed" and "64 rows, expected at most 4" in str(row["refused"])
    profile = session.profile(feed(2))
    assert len(profile.steps) == 2 and profile.microseconds > 0
    layout = session.plan.layout()
    assert {t["name"] for t in layout["tensors"]} >= {"x", "w1", "w2", "logits", "hidden"}
    with pytest.raises(ingot.InputError, match="no such node"):
        session.explain("nothing")


def test_check_level_three_finds_nothing(mlp: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected, _) = ingot.InferenceSession(mlp).run(None, feed(6))
    monkeypatch.setenv("INGOT_CHECK", "3")
    assert np.array_equal(ingot.InferenceSession(mlp).run(None, feed(6))[0], expected)


@pytest.mark.parametrize("level, expected", [("1", "gemm_f32_packed"), ("2", "GB/s"), ("3", "pass "), ("5", "sum ")])
def test_debug_ladder(mlp: Graph, monkeypatch: pytest.MonkeyPatch, capfd, level: str, expected: str) -> None:
    monkeypatch.setenv("INGOT_DEBUG", level)
    ingot.InferenceSession(mlp, dims={"B": 8}).run(None, feed(8))
    assert expected in capfd.readouterr().err

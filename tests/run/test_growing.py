"""Sessions without dims: when sizes keep changing, one program is planned for many, with the bits of each alone."""

import threading

import numpy as np
import pytest
from test_at_most import LIMIT, LONG, MEAN, MODELS, ROWS, exported, same

import ingot
from ingot.ir.text import parse
from ingot.session.dynamic_shapes import MAX_BINDINGS

pytestmark = [pytest.mark.native, pytest.mark.checked]


def rows(count: int, width: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(count).standard_normal((count, width)).astype(np.float32)}


@pytest.fixture
def graph():
    return parse(ROWS, {"w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)})


@pytest.mark.parametrize("name", MODELS)
def test_bits_of_a_session_for_each_size(name: str) -> None:
    program, feeds = exported(name)
    session, each = ingot.InferenceSession(program, threads=2), ingot.InferenceSession(program, threads=2, dims={})
    rng = np.random.default_rng(4)
    lengths = [int(length) for length in rng.integers(1, LIMIT + 1, 24)]
    cases = [(1, length) for length in lengths[:16]] + [(int(rng.integers(1, 5)), length) for length in lengths[16:]]
    for case in cases:
        given = feeds(*case)
        assert same(session.run(None, given), each.run(None, given)), case
    # Two programs for two sizes; a plan for lengths, perhaps one for longer ones, and as much for batches.
    assert 4 <= session.bindings.misses <= 6 and session.bindings.refusal == ""
    batch, length = session.graph.symbols
    assert session.bindings.limits.keys() == {batch, length}
    assert session.bindings.limits[length] in (LIMIT, 64)  # what a table of positions has, or the next power of two


def test_few_sizes_have_programs_of_their_own(graph) -> None:
    session = ingot.InferenceSession(graph)
    for size in (3, 70, 3, 70, 3):
        session.run(None, rows(size))
    assert (session.bindings.misses, session.bindings.hits, session.bindings.limits) == (2, 3, {})


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ((3, 70, 5), [{}, {}, {"n": 128}]),
        ((1, 2, 3, 4, 5, 9, 3), [{}, {}, {"n": 4}, {"n": 4}, {"n": 8}, {"n": 16}, {"n": 16}]),
        ((2, 0, 3, 0, 5), [{}, {}, {"n": 4}, {"n": 4}, {"n": 8}]),
    ],
)
def test_limits_are_powers_of_two_and_grow(graph, sizes, limits) -> None:
    session, each = ingot.InferenceSession(graph), ingot.InferenceSession(graph, dims={})
    for size, limit in zip(sizes, limits, strict=True):
        assert same(session.run(None, rows(size)), each.run(None, rows(size)))
        assert session.bindings.limits == limit
    assert f"dim n, at most {limits[-1]['n']}: one program for every size" in str(session.explain())


def test_dims_that_are_given_are_all_that_is_planned(graph) -> None:
    session = ingot.InferenceSession(graph, dims={})
    for size in range(1, 20):
        session.run(None, rows(size))
    assert (session.bindings.misses, session.bindings.kept, session.bindings.limits) == (19, MAX_BINDINGS, {})


NO_PLAN = [(MEAN, (1, 5, 9, 3, 7), "sizes only"), (LONG, (5000, 9, 2), "2048")]


@pytest.mark.parametrize(("text", "sizes", "reason"), NO_PLAN)
def test_where_no_one_program_serves_each_size_has_its_own(text: str, sizes, reason: str) -> None:
    graph = parse(text)
    session, each = ingot.InferenceSession(graph), ingot.InferenceSession(graph, dims={})
    (name,) = graph.inputs
    for size in sizes:
        shape = [size if d == "n" else d for d in session.get_inputs()[0].shape]
        x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        assert same(session.run(None, {name: x}), each.run(None, {name: x}))
    assert (session.bindings.misses, session.bindings.limits) == (len(sizes), {})
    assert reason in session.bindings.refusal and "a program for each size, at most 16 cached" in str(session.explain())


TABLE = """graph table
input x: f32[n, m]
a = exp(x): f32[n, m]
b = softmax(a, axis=1): f32[n, m]
y = reduce_sum(b, axes=[0], keepdims=false): f32[m]
output y = y
"""


def test_sizes_that_never_came_together_take_little_memory() -> None:
    session = ingot.InferenceSession(parse(TABLE))
    for shape in [(2, 2), (9000, 1), (1, 9000), (7, 8), (9, 9000)]:
        session.run(None, {"x": np.ones(shape, np.float32)})
    assert session.bindings.limits == {} and session.bindings.misses == 5
    assert "which were never used together" in session.bindings.refusal
    assert session.bindings.arena_bytes < 64 << 20


def test_threads_that_find_new_sizes_together(graph) -> None:
    session, each = ingot.InferenceSession(graph, threads=2), ingot.InferenceSession(graph, dims={})
    feeds = [rows(size) for size in range(1, 60)]
    expected = [each.run(None, given) for given in feeds]
    wrong = []

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).permutation(len(feeds)):
            if not same(session.run(None, feeds[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and session.bindings.limits == {"n": 64}
    assert session.bindings.misses <= 2 + 6


def test_a_grown_session_is_saved_and_bound_to_arrays(graph, tmp_path) -> None:
    session, each = ingot.InferenceSession(graph), ingot.InferenceSession(graph, dims={})
    for size in (3, 9, 14):
        session.run(None, rows(size))
    binding = session.io_binding()
    binding.bind_input("x", rows(12)["x"])
    binding.bind_output("y")
    binding.run()
    assert same(binding.copy_outputs_to_cpu(), each.run(None, rows(12)))
    session.save(tmp_path / "grown")
    loaded = ingot.InferenceSession(tmp_path / "grown")
    for size in (14, 2, 40, 7):
        assert same(loaded.run(None, rows(size)), each.run(None, rows(size)))

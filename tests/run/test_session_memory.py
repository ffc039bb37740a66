"""What a session holds, and when it lets go: of evicted lengths, of contexts, and of everything once it is dropped."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from attacks.hostile_configs import write_llama
from ingot.ir.dim import Expr, symbol
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import Graph, TensorType
from ingot.session.dynamic_shapes import MAX_BINDINGS

TABLE_BYTES = 1 << 20
LENGTHS = 301


def sliced(shape: tuple[int, ...], axes: tuple[int, ...], op: str = "add") -> Graph:
    """A table, cut along some axes to the length of the input, is added to it or is its matrix."""
    graph, length = Graph("sliced"), symbol("S")
    table = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    assert table.nbytes == TABLE_BYTES
    stops: list[int | Expr] = [length if axis in axes else dim for axis, dim in enumerate(shape)]
    graph.add_weight("table", table)
    graph.add_input("x", TensorType(f32, (3, length) if op == "matmul" else tuple(stops)))
    ones = (1,) * len(shape)
    cut = graph.add("slice", ["table"], starts=(0,) * len(shape), stops=tuple(stops), steps=ones).output
    graph.set_output("y", graph.add(op, ["x", cut]).output)
    return graph


def input_of(graph: Graph, length: int) -> dict[str, np.ndarray]:
    shape = [dim if isinstance(dim, int) else length for dim in graph.type("x").shape]
    return {"x": np.random.default_rng(length).standard_normal(shape).astype(np.float32)}


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# Graph, and the most bytes of weights that it may have: parts that lie in the table as they are need no copies.
CASES = {
    "rows": (lambda: sliced((1024, 256), (0,)), TABLE_BYTES),
    "rows of one": (lambda: sliced((1, 1024, 256), (1,)), TABLE_BYTES),
    "columns": (lambda: sliced((256, 1024), (1,)), MAX_BINDINGS * TABLE_BYTES * LENGTHS // 1024),
    "both": (lambda: sliced((512, 512), (0, 1)), MAX_BINDINGS * 4 * LENGTHS**2),
    "packed": (lambda: sliced((1024, 256), (0,), "matmul"), MAX_BINDINGS * TABLE_BYTES * LENGTHS // 1024),
}


@pytest.mark.parametrize("name", CASES)
def test_lengths_leave_nothing_behind(name: str):
    make, most = CASES[name]
    graph = make()
    session = ingot.InferenceSession(graph, threads=1)
    first = session.run(None, input_of(graph, 1))
    before, seen = 0, []
    for length in range(1, LENGTHS + 1):
        got = session.run(None, input_of(graph, length))
        if length == MAX_BINDINGS:
            before = resident()
        seen.append(session.weight_bytes)
    assert max(seen) <= most and seen[-1] > 0
    assert len(session.weights.items()) <= MAX_BINDINGS
    assert resident() - before < most + (8 << 20)
    assert first[0].tobytes() == session.run(None, input_of(graph, 1))[0].tobytes()
    assert got[0].tobytes() == session.run(None, input_of(graph, LENGTHS))[0].tobytes()
    reference = ingot.InferenceSession(graph, executor="interpret").run(None, input_of(graph, LENGTHS))
    np.testing.assert_allclose(got[0], reference[0], rtol=1e-4, atol=1e-4)


def test_what_bindings_share_stays(tmp_path: Path):
    """A matrix is packed once, whatever lengths come and go; a context that ends takes away only what was its own."""
    graph = Graph("product")
    graph.add_weight("w", np.random.default_rng(6).standard_normal((64, 96)).astype(np.float32))
    graph.add_input("x", TensorType(f32, (symbol("S"), 64)))
    graph.set_output("y", graph.add("matmul", ["x", "w"]).output)
    session = ingot.InferenceSession(graph)
    session.run(None, input_of(graph, 5))
    ((key, packed),) = session.weights.items()
    for length in range(1, 2 * MAX_BINDINGS):
        session.run(None, input_of(graph, length))
        assert session.weights.items()[0][0] == key and session.weights.items()[0][1] is packed
    context = session.context()
    context.run(None, input_of(graph, 7))
    held = session.weight_bytes
    del context
    assert session.weight_bytes == held == packed.nbytes


@pytest.mark.parametrize("name", CASES)
def test_a_program_saved_after_evictions(name: str, tmp_path: Path):
    graph = CASES[name][0]()
    session = ingot.InferenceSession(graph)
    for length in range(1, MAX_BINDINGS + 5):
        session.run(None, input_of(graph, length))
    session.save(tmp_path)
    loaded = ingot.InferenceSession(tmp_path)
    for length in (1, 2, MAX_BINDINGS + 4, 100):
        feed = input_of(graph, length)
        assert loaded.run(None, feed)[0].tobytes() == session.run(None, feed)[0].tobytes()


def test_constants_that_depend_on_a_length():
    """They have one name in all bindings, and other elements in each."""
    graph, length = Graph("positions"), symbol("S")
    graph.add_input("x", TensorType(i64, (length,)))
    positions = graph.add("iota", [], length=length, start=0, step=1, dtype=i64).output
    graph.set_output("y", graph.add("add", ["x", positions]).output)
    graph.set_output("squares", graph.add("mul", [positions, positions]).output)
    session = ingot.InferenceSession(graph)
    for count in (3, 70, 5, 3, 70):
        y, squares = session.run(None, {"x": np.zeros(count, np.int64)})
        assert y.tolist() == list(range(count)) and squares.tolist() == [i * i for i in range(count)]


# -- what is dropped ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def perceptron(rows: int | Expr, has_fallback: bool = False) -> Graph:
    graph = Graph("perceptron")
    graph.add_weight("w", np.random.default_rng(7).standard_normal((128, 256)).astype(np.float32))
    graph.add_weight("v", np.random.default_rng(8).standard_normal((256, 64)).astype(np.float32))
    graph.add_input("x", TensorType(f32, (rows, 128)))
    hidden = graph.add("gelu", [graph.add("matmul", ["x", "w"]).output]).output
    y = graph.add("matmul", [hidden, "v"]).output
    if has_fallback:
        y, _ = graph.add("topk", [y], k=3, axis=1, largest=True).outputs
        y = graph.add("exp", [y]).output
    graph.set_output("y", y)
    return graph


def use(session: Any) -> list[Any]:
    """Runs a session in every way; what must go when it is dropped."""
    feed = {"x": np.ones((4, 128), np.float32)}
    session.run(None, feed)
    held = [session, session.graph, session.weights]
    if session.executor == "interpret":
        return held
    program = session.program
    context = session.context()
    context.run(None, feed)
    session.explain()
    session.plan.layout()
    held += [context, program, *program.native]
    if program.single is not None:
        session.profile(feed)
        binding = session.io_binding()
        binding.bind_input("x", feed["x"])
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        held += [binding, *binding.get_outputs()]
    held += [array for _, array in session.weights.items()]
    held += [region for native in program.native for region in native._arena.memory.regions.values()]
    return held


SESSIONS: dict[str, Callable[[Path], Any]] = {
    "static": lambda _: ingot.InferenceSession(perceptron(4)),
    "symbolic": lambda _: ingot.InferenceSession(perceptron(symbol("B"))),
    "segmented": lambda _: ingot.InferenceSession(perceptron(4, has_fallback=True)),
    "segmented and symbolic": lambda _: ingot.InferenceSession(perceptron(symbol("B"), has_fallback=True)),
    "interpreted": lambda _: ingot.InferenceSession(perceptron(4), executor="interpret"),
    "saved": lambda folder: ingot.InferenceSession(folder),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_dropped_session_goes_at_once(name: str, tmp_path: Path, no_collector: None):
    ingot.InferenceSession(perceptron(4)).save(tmp_path)
    session = SESSIONS[name](tmp_path)
    data = [v.data for v in session.graph.values.values() if v.data is not None]
    references = [weakref.ref(held) for held in (*use(session), *data)]
    del session, data
    assert [reference() for reference in references if reference() is not None] == []


def test_sessions_one_after_another_take_the_memory_of_one(no_collector: None):
    held = []
    for _ in range(6):
        graph = Graph("large")
        graph.add_weight("w", np.ones((2048, 2048), np.float32))
        graph.add_input("x", TensorType(f32, (2, 2048)))
        graph.set_output("y", graph.add("matmul", ["x", "w"]).output)
        session = ingot.InferenceSession(graph)
        session.run(None, {"x": np.ones((2, 2048), np.float32)})
        del graph, session
        held.append(resident())
    assert max(held) - held[0] < 8 << 20


TEN_THOUSAND = """
import gc, os
import numpy as np
import ingot.ops
from ingot.ir.text import parse

text = "graph g\\ninput x: f32[4]\\nweight w: f32[4]\\ny = add(x, w)\\noutput y = y\\n"
graph = parse(text, {"w": np.ones(4, np.float32)})
pages = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
held = lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
def use(count):
    for _ in range(count):
        ingot.InferenceSession(graph).run(None, {"x": np.ones(4, np.float32)})
    gc.collect()
use(1000)
before, ours = pages(), held()
use(9000)
assert held() == ours, (held(), ours)
print(pages() - before)
"""


@pytest.mark.slow
def test_ten_thousand_sessions_leave_nothing_behind():
    done = subprocess.run([sys.executable, "-c", TEN_THOUSAND], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 1 << 20


def work_and_stop(llm: ingot.LLM, prompt: list[int]) -> list[Any]:
    """Answers that are read to the end, closed, and abandoned; what must go with the model."""
    list(llm.generate_tokens(prompt, max_tokens=4))
    closed = llm.generate_tokens(prompt, max_tokens=9)
    next(closed)
    closed.close()  # type: ignore[attr-defined]
    list(llm.run([llm.generation([5, i], max_tokens=3) for i in range(4)]))
    llm.logits(prompt)
    abandoned = llm.run([llm.generation([9, i], max_tokens=9) for i in range(2)])
    drawn = [next(abandoned), next(abandoned)]
    engine = llm.engine
    modes, state = [mode for _, mode in engine.modes.items()], engine.modes._state.memory
    arrays = [array for _, array in engine.modes._weights.items()] + [mode.output for mode in modes]
    weights = [v.data for v in llm.model.graph.values.values() if v.data is not None]
    return [llm, engine, engine.sequences, *drawn, *modes, *arrays, *weights, *state.regions.values()]


def test_a_dropped_language_model_goes_at_once(tmp_path: Path, no_collector: None):
    folder = write_llama(tmp_path / "llama", {"max_position_embeddings": 128}, 99)
    llm = ingot.LLM(folder, threads=1, sequences=3)
    references = [weakref.ref(held) for held in work_and_stop(llm, [1, 2, 3])]
    del llm
    assert [reference() for reference in references if reference() is not None] == []

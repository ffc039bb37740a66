"""The differential test: one graph through every executor and setting, which must all agree.

Within a tolerance: the interpreter before and after the passes, and native, against the float64 interpreter. The bound
is measured: how far the outputs move when every node errs by its op's tolerance. To the bit: native for any number of
threads, any instruction set, with and without shared memory, over a poisoned arena, and from a saved session.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ingot.compile import compile_mode
from ingot.emit.c import emit
from ingot.errors import InputError, UnsupportedError
from ingot.inspect.comparison.bounds import perturbed
from ingot.ir.dtype import DTYPES
from ingot.ir.graph import Graph, TensorType
from ingot.ir.text import dump, parse
from ingot.lower import Target
from ingot.passes import optimize
from ingot.run.interpret import bind_symbols, interpret
from ingot.run.library import load
from ingot.run.native import Arena
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.session.inference import InferenceSession
from random_growth import STORAGE, stored

Arrays = Mapping[str, np.ndarray]

_RUNS = 3  # that follow each other, where a graph keeps states
_PAIRS = 2  # of runs: with errors of random sign, and with the opposite signs; the worst run counts
_WORST = 6.0  # how much worse errors may conspire than they did in the trials
_ROUNDING = 1e-5  # added to every bound, relative to max(1, |x|)

# One nanosecond of work is worth a part here, so that small graphs are cut too.
_EAGER = {"task_nanoseconds": 1, "run_nanoseconds": 0, "chunk_nanoseconds": 100}
_SPECIALS = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3e-39, 1.2e-38, 3.4e38, -3.4e38, 88.8, -103.9, 2.5, 16777217, 1e10],
    np.float32,
)
_VARIANTS: dict[str, dict[str, object]] = {
    "2 threads": {"threads": 2},
    "3 threads": {"threads": 3},
    "nothing in place": {"inplace": False},
    "no reuse of memory": {"reuse": False, "threads": 2},
    "no fused programs": {"fuses": False},
    **{f"isa {isa}": {"isa": isa} for isa in load().isas()},
}


class Mismatch(AssertionError):
    """Two ways to run one graph disagree. `kind` names the difference, without numbers."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


def check(graph: Graph, feeds: Arrays, *, saved: bool = False, emitted: str = "") -> None:
    """Runs the whole matrix. Raises Mismatch, or whatever the failing stage raises.

    saved: through a session and its saved form too. emitted: as C too, compiled with this level of optimisation.
    """
    oracle = Oracle(graph, feeds)
    oracle.expect_near("interpreted", interpret(graph, feeds))
    check_text(graph, feeds)
    optimized = graph.copy()
    optimize(optimized)
    check_signature(graph, optimized)
    oracle.expect_near("interpreted after the passes", interpret(optimized, feeds))
    symbols = bind_symbols(graph, feeds)
    plain = native(graph.bind(symbols), feeds)
    oracle.expect_near("native", plain)
    with checked(3):
        expect_same("native, no reuse, 3 threads", native(graph.bind(symbols), feeds, threads=3, reuse=False), plain)
    if symbols:
        optimized = optimized.bind(symbols)
        optimize(optimized)
        oracle.expect_near("interpreted after the passes and binding", interpret(optimized, feeds))
    fused = native(optimized, feeds)
    oracle.expect_near("native after the passes", fused)
    for name, settings in {**_VARIANTS, "small regions": {"region_bytes": _small(optimized)}}.items():
        expect_same(f"native after the passes, {name}", native(optimized, feeds, **settings), fused)
    with checked(3):
        expect_same("native after the passes, poisoned", native(optimized, feeds, threads=2), fused)
    check_specials(optimized, feeds)
    if graph.states:
        check_states(graph.bind(symbols), feeds)
        check_states(optimized, feeds)
        check_sessions_of_states(optimized, feeds)
        return  # emitted C that keeps states: tests/run/test_stateful.py
    if saved:
        check_session(graph, feeds, fused)
    if emitted:
        check_emitted(optimized, feeds, fused, emitted)


class Oracle:
    """What a graph computes, in float64, and how far from it an honest executor may be, per output."""

    def __init__(self, graph: Graph, feeds: Arrays):
        self.exact = interpret(graph, feeds, float64=True)
        self.dtypes = {name: graph.type(value).dtype for name, value in graph.outputs.items()}
        self.dtypes |= {f"state:{name}": graph.type(name).dtype for name in graph.states}
        self.bounds = dict.fromkeys(self.exact, _ROUNDING)
        self.undecided: set[str] = set()
        nodes = {node.outputs[0]: node for node in graph.nodes}
        for trial in range(2 * _PAIRS):
            rng, sign = np.random.default_rng(trial // 2), 1 - 2 * (trial % 2)

            def watch(
                name: str, array: np.ndarray, rng: np.random.Generator = rng, sign: int = sign
            ) -> np.ndarray | None:
                return perturbed(nodes[name], array, rng, sign) if name in nodes else None

            self._add_trial(interpret(graph, feeds, float64=True, watch=watch))

    def _add_trial(self, noisy: Arrays) -> None:
        for name, exact in self.exact.items():
            if exact.dtype.kind != "f":
                self.undecided |= set() if np.array_equal(exact, noisy[name]) else {name}
            else:
                self.bounds[name] = max(self.bounds[name], _ROUNDING + _WORST * _error(noisy[name], exact))

    def expect_near(self, kind: str, results: Arrays) -> None:
        """Raises Mismatch unless every output has its type and is within its bound; integers are exact."""
        if list(results) != list(self.exact):
            raise Mismatch(kind, f"outputs are {list(results)}, expected {list(self.exact)}")
        for name, exact in self.exact.items():
            got, dtype = results[name], self.dtypes[name]
            if got.shape != exact.shape or got.dtype != dtype.numpy:
                wanted = f"{dtype}{list(exact.shape)}"
                raise Mismatch(kind, f"output {name} is {got.dtype}{list(got.shape)}, expected {wanted}")
            if dtype.kind == "f":
                error = _error(got, exact)
                if not error <= self.bounds[name]:
                    raise Mismatch(kind, f"output {name} has error {error:.3g}, bound {self.bounds[name]:.3g}")
            elif name not in self.undecided and not np.array_equal(got, exact):
                raise Mismatch(kind, f"output {name} differs in {np.sum(got != exact)} of {got.size} elements")


def _small(graph: Graph) -> int:
    """Bytes of a region: few, but enough for any one value, packed."""
    types = [value.type for value in graph.values.values()]
    sizes = [
        t.dtype.bits * math.prod(t.shape) // 8
        for t in types
        if isinstance(t, TensorType) and all(isinstance(n, int) for n in t.shape)
    ]
    return max(1 << 19, 2 * max(sizes, default=0))


def _error(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error relative to max(1, |exact|); NaN and infinities must be the same, else infinity."""
    finite = np.isfinite(exact)
    if not np.array_equal(got[~finite], exact[~finite], equal_nan=True):
        return np.inf
    return float((np.abs(got[finite] - exact[finite]) / np.maximum(1, np.abs(exact[finite]))).max(initial=0))


def native(graph: Graph, feeds: Arrays, **settings: object) -> dict[str, np.ndarray]:
    """Runs a graph natively, twice: the second run finds the first one's memory. Raises Mismatch when they differ."""
    target = Target(**{"isa": load().isa(), **_EAGER, **settings})  # type: ignore[arg-type]
    program = Program(compile_mode(graph.copy(), target), WeightStore(), Arena())
    inputs = [feeds[name].copy() for name in graph.inputs]
    first, second = (run_from(program, inputs, {name: feeds[name] for name in graph.states}) for _ in range(2))
    expect_same("native, a second run", second, first)
    expect_same("native, its inputs", dict(zip(graph.inputs, inputs, strict=True)), feeds)
    return first


def every_engine(graph: Graph, feeds: Arrays) -> dict[str, dict[str, np.ndarray]]:
    """The outputs of a graph by the interpreter and by every instruction set, before the passes and after them."""
    optimized = graph.copy()
    optimize(optimized)
    results = {}
    for name, each in (("plain", graph), ("optimized", optimized)):
        results[f"{name}, interpreted"] = interpret(each, feeds)
        for isa in load().isas():
            results[f"{name}, {isa}"] = native(each, feeds, isa=isa)
    return results


def run_from(program: Program, inputs: list[np.ndarray], states: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a run over given states, and, as `state:<name>`, what they are after it."""
    memory = state_memory(program) if states else {}
    for name, array in states.items():
        memory[name][...] = array
    results = dict(zip(program.graph.outputs, program.run(inputs), strict=True))
    return results | {f"state:{name}": memory[name].copy() for name in states}


def state_memory(program: Program) -> dict[str, np.ndarray]:
    """A program's states as they lie in its arena, by name."""
    assert program.single is not None
    tensors = program.single.lowered.tensors.values()
    return {tensor.name: program.single.tensor(tensor.id) for tensor in tensors if tensor.kind == "state"}


def check_states(graph: Graph, feeds: Arrays) -> None:
    """Runs that follow each other are those of the graph whose states are inputs, and their updates outputs."""
    apart = graph.copy()
    for name, update in graph.states.items():
        apart.values[name].kind = "input"
        apart.inputs.append(name)
        apart.set_output(f"state:{name}", update)
    apart.states.clear()
    target = Target(isa=load().isa(), threads=2, **_EAGER)  # type: ignore[arg-type]
    program = Program(compile_mode(graph.copy(), target), WeightStore(), Arena())
    twin = Program(compile_mode(apart.copy(), target), WeightStore(), Arena())
    states = {name: feeds[name] for name in graph.states}
    memory = state_memory(program)
    for name, array in states.items():
        memory[name][...] = array
    for run in range(_RUNS):
        results = dict(zip(graph.outputs, program.run([feeds[name] for name in graph.inputs]), strict=True))
        given = [(feeds | states)[name] for name in apart.inputs]
        expected = dict(zip(apart.outputs, twin.run(given), strict=True))
        states = {name: expected[f"state:{name}"] for name in graph.states}
        expect_same(f"states, run {run}", results, expected)
        expect_same(f"states, after run {run}", memory, states)


def check_sessions_of_states(graph: Graph, feeds: Arrays) -> None:
    """Runs of a session that follow each other, native, saved or interpreted, are those of the graph over the states
    that the run before has left. States begin with what is fed for them.
    """
    graph = graph.copy()
    for name in graph.states:
        graph.begin_state(name, feeds[name])
    program = Program(compile_mode(graph.copy(), Target(isa=load().isa(), threads=1)), WeightStore(), Arena())
    inputs = {name: feeds[name] for name in graph.inputs}
    with tempfile.TemporaryDirectory() as folder:
        native = InferenceSession(graph, threads=2, passes=[])
        native.save(folder)
        saved, interpreted = InferenceSession(folder), InferenceSession(graph, executor="interpret", passes=[])
        states = {name: feeds[name] for name in graph.states}
        for run in range(_RUNS):
            expected = dict(zip(graph.outputs, program.run(list(inputs.values())), strict=True))
            for kind, session in (("session", native), ("saved session", saved)):
                results = dict(zip(graph.outputs, session.run(None, inputs), strict=True))
                expect_same(f"{kind} of states, run {run}", results, expected)
            exact = interpret(graph, inputs | states)
            results = dict(zip(graph.outputs, interpreted.run(None, inputs), strict=True))
            expect_same(f"interpreted session of states, run {run}", results, exact)
            states = {name: exact[f"state:{name}"] for name in graph.states}


def expect_same(kind: str, results: Arrays, expected: Arrays) -> None:
    """Raises Mismatch unless the arrays are equal to the bit, NaN payloads aside."""
    for name, array in results.items():
        if not same_bits(array, expected[name]):
            with np.errstate(all="ignore"):
                worst = np.abs(array.astype(np.float64) - expected[name]).max(initial=0)
            raise Mismatch(kind, f"{name} has other bits, largest difference {worst:.3g}")


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    nan, zero = np.isnan(a), np.zeros((), a.dtype)
    return np.array_equal(nan, np.isnan(b)) and np.where(nan, zero, a).tobytes() == np.where(nan, zero, b).tobytes()


def check_text(graph: Graph, feeds: Arrays) -> None:
    """The text form gives the graph back, and what it computes."""
    text = dump(graph)
    weights = {n: v.data for n, v in graph.values.items() if v.kind == "weight" and v.data is not None}
    again = parse(text, weights)
    if dump(again) != text:
        raise Mismatch("text", "the dump of the parsed dump differs")
    expect_same("text", interpret(again, feeds), interpret(graph, feeds))


def check_signature(graph: Graph, optimized: Graph) -> None:
    """The passes leave a valid graph with the same inputs and outputs, and have nothing more to do."""
    optimized.validate()
    for name in ("inputs", "outputs", "states"):
        before, after = getattr(graph, name), getattr(optimized, name)
        if list(before) != list(after):
            raise Mismatch("signature", f"{name} are {list(after)}, expected {list(before)}")
    for name, value in graph.outputs.items():
        before, after = graph.type(value), optimized.type(optimized.outputs[name])
        if before != after:
            raise Mismatch("signature", f"output {name} is {after}, expected {before}")
    once = dump(optimized)
    again = optimized.copy()
    optimize(again)
    if dump(again) != once:
        raise Mismatch("passes", "a second round of passes finds more to do")


def check_session(graph: Graph, feeds: Arrays, expected: Arrays) -> None:
    """A session, and the same one saved and loaded, give the bits of the optimised graph."""
    with tempfile.TemporaryDirectory() as folder:
        session = InferenceSession(graph, threads=2)
        names = list(graph.outputs)
        for how in STORAGE:
            inputs = {name: stored(array, how) for name, array in feeds.items()}
            results = dict(zip(names, session.run(None, inputs), strict=True))
            expect_same(f"session, inputs stored {how}", results, expected)
        contexts = [session, session, session.context()]
        with ThreadPoolExecutor(len(contexts)) as pool:
            for results in pool.map(lambda context: context.run(None, feeds), contexts):
                expect_same("session, three calls at a time", dict(zip(names, results, strict=True)), expected)
        session.save(folder)
        again = InferenceSession(folder, threads=1)
        expect_same("saved session", dict(zip(names, again.run(None, feeds), strict=True)), expected)


def check_emitted(graph: Graph, feeds: Arrays, expected: Arrays, level: str) -> None:
    """The C that a static graph is emitted as computes the same bits, where every op has a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            emit(graph.copy(), WeightStore(), folder)
        except UnsupportedError:
            return
        path = Path(folder)
        command = ["cc", level, "-Wall", "-Werror", "model.c", "main.c", "-lm", "-o", "model"]
        _run_command(command, folder)
        layout = json.loads((path / "layout.json").read_text())
        rows = {row["name"]: row for row in layout["tensors"]}
        for identifier, name in layout["inputs"].items():
            (path / f"{identifier}.raw").write_bytes(feeds[name].tobytes())
        _run_command(["./model", *(f"{each}={each}.raw" for each in (*layout["inputs"], *layout["outputs"]))], folder)
        for identifier, name in layout["outputs"].items():
            data = np.frombuffer((path / f"{identifier}.raw").read_bytes(), DTYPES[rows[name]["dtype"]].numpy)
            expect_same("emitted C", {name: data.reshape(rows[name]["shape"])}, expected)


def _run_command(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise Mismatch(f"emitted C, {command[0]}", f"exit code {done.returncode}\n{done.stderr[:2000]}")


def check_specials(graph: Graph, feeds: Arrays) -> None:
    """NaN, infinities, zeros, huge and tiny numbers among the feeds give the same bits whatever the instruction set."""
    rng = np.random.default_rng(len(graph))
    wild = {name: array.copy() for name, array in feeds.items()}
    for array in wild.values():
        if array.dtype == np.float32:
            array[...] = np.where(rng.random(array.shape) < 0.15, rng.choice(_SPECIALS, array.shape), array)
    expected = _native_or_fault(graph, wild)
    for isa in load().isas():
        kind = f"special numbers, isa {isa}"
        results = _native_or_fault(graph, wild, isa=isa, threads=2)
        if isinstance(expected, str) or isinstance(results, str):
            if results != expected:
                raise Mismatch(kind, f"one faults, got {results}, expected {expected}")
        else:
            expect_same(kind, results, expected)


def _native_or_fault(graph: Graph, feeds: Arrays, **settings: object) -> dict[str, np.ndarray] | str:
    try:
        return native(graph, feeds, **settings)
    except InputError:
        return "fault"


@contextmanager
def checked(level: int) -> Iterator[None]:
    """INGOT_CHECK at a level for a while."""
    before = os.environ.get("INGOT_CHECK")
    os.environ["INGOT_CHECK"] = str(level)
    try:
        yield
    finally:
        if before is None:
            del os.environ["INGOT_CHECK"]
        else:
            os.environ["INGOT_CHECK"] = before

"""Random schedules of threads over shared sessions; `python tests/kit/schedules.py --count 500 [--start S]` runs many.

A thread makes a row of calls: plain runs of many batches, so that programs are compiled, dropped and made anew and the
arena grows under others; runs over bound arrays; profiles; indices out of range; contexts of its own. The models are
one segment, several segments around an op that has no kernel, and a static one of several. Every result must have the
bits that a session which nobody else uses gives.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ingot
from ingot.ir.graph import Graph
from ingot.ir.text import parse
from seeds import parse_seeds

WIDTH, HIDDEN = 32, 512  # large enough that runs of two threads meet in the arena
BATCHES = (1, 2, 3, 5, 8, 17, 33, 40, 64, 96, 128, 200)
SEEDS, REPEATS = 3, 5
SECONDS = 120  # after which a thread hangs
FAILURES = (AssertionError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

HEAD = f"""graph shared
input x: f32[B, {WIDTH}]
weight w: f32[{WIDTH}, {HIDDEN}]
weight v: f32[{HIDDEN}, 8]
h = matmul(x, w): f32[B, {HIDDEN}]
g = gelu(h): f32[B, {HIDDEN}]
"""
TAIL = """y = matmul(e, v): f32[B, 8]
output y = y
output g = g
"""
TABLE = f"""graph table
input x: i64[B]
weight w: f32[50, {WIDTH}]
y = gather(w, x, axis=0): f32[B, {WIDTH}]
output y = y
"""
MODELS = {
    "whole": f"{HEAD}e = softmax(g, axis=1): f32[B, {HIDDEN}]\n{TAIL}",
    # What no kernel takes, and what calls no library whose locks a fork could find taken.
    "cut": f"{HEAD}constant k: f32[1] = [2.0]\nconstant n: f32[1] = [1.0]\nconstant d: f32[] = [0.5]\n"
    f"l = label_encode(g, k, n, d): f32[B, {HIDDEN}]\nc = mul(g, l): f32[B, {HIDDEN}]\n"
    f"e = tanh(c): f32[B, {HIDDEN}]\n{TAIL}",
}
MODELS["static"] = MODELS["cut"].replace("[B,", "[40,")


@functools.cache
def graph(model: str) -> Graph:
    """A model with its weights."""
    rng = np.random.default_rng(1)
    shapes = {"w": (50, WIDTH)} if model == "table" else {"w": (WIDTH, HIDDEN), "v": (HIDDEN, 8)}
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return parse(TABLE if model == "table" else MODELS[model], weights)


def feed(model: str, batch: int, seed: int) -> dict[str, np.ndarray]:
    """An input; of the static model always the one batch that it takes."""
    rng = np.random.default_rng(seed)
    if model == "table":
        return {"x": rng.integers(0, 50, batch)}
    return {"x": rng.standard_normal((40 if model == "static" else batch, WIDTH), np.float32)}


@functools.cache
def expected(model: str, batch: int, seed: int) -> tuple[bytes, ...]:
    """The bits from a session of its own."""
    return bits(ingot.InferenceSession(graph(model), threads=1).run(None, feed(model, batch, seed)))


def bits(outputs: list[np.ndarray]) -> tuple[bytes, ...]:
    return tuple(output.tobytes() for output in outputs)


@dataclass(frozen=True)
class Call:
    """What a thread does: one of the KINDS, with a runner (which context), on a batch of random rows."""

    kind: str
    model: str
    runner: int
    batch: int
    seed: int


KINDS = ("run", "run", "run", "run", "bound", "profile", "fault", "context")
Runners = dict[str, list[Any]]


def schedule(seed: int) -> tuple[Runners, list[list[Call]]]:
    """Sessions with two contexts each, and the calls of 2 to 4 threads."""
    rng = np.random.default_rng(seed)
    names = [*MODELS, "table"]
    runners: Runners = {}
    for name in names:
        session = ingot.InferenceSession(graph(name), threads=int(rng.integers(1, 3)))
        runners[name] = [session, session.context()]
    loved = names if rng.random() < 0.5 else [str(rng.choice(names))]  # often all threads are at one
    calls = [
        [
            Call(
                str(rng.choice(KINDS)),
                str(rng.choice(loved)),
                int(rng.integers(2)),
                int(rng.choice(BATCHES)),
                int(rng.integers(SEEDS)),
            )
            for _ in range(int(rng.integers(8, 25)))
        ]
        for _ in range(int(rng.integers(2, 5)))
    ]
    return runners, calls


def perform(runners: Runners, call: Call) -> None:
    """Makes one call and compares. Raises AssertionError."""
    model, batch, seed = call.model, call.batch, call.seed
    runner, inputs, right = runners[model][call.runner], feed(model, batch, seed), expected(model, batch, seed)
    match call.kind:
        case "bound" if model in ("whole", "table"):
            session = runners[model][0]
            binding = session.io_binding()
            binding.bind_input("x", inputs["x"])
            for output in session.get_outputs():
                binding.bind_output(output.name)
            for _ in range(3):
                binding.run()
                assert bits([each.numpy() for each in binding.get_outputs()]) == right, call
        case "profile" if model in ("whole", "table"):
            runners[model][0].profile(inputs, runs=2)
        case "fault" if model == "table":
            bad = 50 + seed * 1000 + batch
            inputs["x"][-1] = bad
            try:
                runner.run(None, inputs)
            except ingot.InputError as error:
                assert f"got {bad}, expected -50..49" in str(error), (call, error)
            else:
                raise AssertionError(f"{call}: no fault")
        case "context":
            assert bits(runners[model][0].context().run(None, inputs)) == right, call
        case _:
            for _ in range(REPEATS):
                assert bits(runner.run(None, inputs)) == right, call


def check(seed: int) -> None:
    """Runs a schedule. Raises what the first thread to fail raised, AssertionError for wrong bits and for a hang."""
    runners, calls = schedule(seed)
    for call in (call for row in calls for call in row):
        expected(call.model, call.batch, call.seed)
    begin = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def work(row: list[Call]) -> None:
        begin.wait(SECONDS)
        try:
            for call in row:
                perform(runners, call)
        except (*FAILURES, ingot.IngotError) as error:
            errors.append(error)

    in_threads([functools.partial(work, row) for row in calls])
    if errors:
        raise errors[0]


def in_threads(works: list[Callable[[], None]]) -> None:
    """Calls each in a thread of its own, which are switched often. Raises AssertionError when one hangs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "a thread hangs"
    finally:
        sys.setswitchinterval(interval)


def main() -> int:
    options = parse_seeds(__doc__, 500)
    failed = 0
    for seed in range(options.start, options.start + options.count):
        try:
            check(seed)
        except (*FAILURES, ingot.IngotError) as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__} {error}")
    print(f"{options.count} schedules from {options.start}: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

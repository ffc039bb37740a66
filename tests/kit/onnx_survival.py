"""Mutants of ONNX models, loaded and run: `python [-O] tests/kit/onnx_survival.py --count 20000 [--start S] [--jobs J]`

A mutant loads or is refused with a typed error, in little time and memory; what loads binds and runs with small dims,
or is refused the same way. `--seed N` repeats one here and raises. The exit code is 1 when there are findings.
"""

from __future__ import annotations

import contextlib
import sys

import numpy as np

import ingot
from forked import Say, judge_seeds, limit_memory, limited
from ingot.errors import IngotError
from ingot.ir.dim import bind
from ingot.ir.graph import Graph, TensorType
from ingot.load.onnx import load_onnx
from onnx_mutations import mutant, originals
from seeds import parse_seeds, print_outcomes

LOAD_SECONDS = 10
RUN_SECONDS = 20
MAX_FED_ELEMENTS = 1 << 16


def feeds_of(graph: Graph, size: int) -> dict[str, np.ndarray] | None:
    """Small inputs, every symbol bound to `size`; None when they cannot be small."""
    feeds, symbols = {}, dict.fromkeys(graph.symbols, size)
    for name in graph.inputs:
        if not isinstance(graph.values[name].type, TensorType):
            return None
        shape = [bind(dim, symbols) for dim in graph.type(name).shape]
        if (
            not all(isinstance(dim, int) and dim >= 0 for dim in shape)
            or np.prod(shape, dtype=float) > MAX_FED_ELEMENTS
        ):
            return None
        feeds[name] = np.ones(shape, graph.type(name).dtype.numpy)  # type: ignore[arg-type]
        if graph.type(name).dtype.kind == "s":
            feeds[name] = feeds[name].astype(str).astype(object)
    return feeds


def judge_mutant(seed: int, say: Say = print) -> str:
    """What became of the mutant of a seed; see `load_and_run`."""
    return load_and_run(mutant(seed), say)


def load_and_run(content: bytes, say: Say = print, seconds: int = RUN_SECONDS) -> str:
    """What became of a file; raises what is not an error of Ingot. A limit ends what takes too long."""
    say("! slow to load")
    try:
        with limited(LOAD_SECONDS):
            graph = load_onnx(content)
    except IngotError:
        return "refused"
    graph.validate()
    outcome = "loaded"
    say("slow")  # unless it ends: a file may ask for much work, within the limits of its sizes
    for size in (1, 3):
        feeds = feeds_of(graph, size)
        if feeds is None:
            continue
        with limited(seconds), contextlib.suppress(IngotError):
            ingot.InferenceSession(graph, threads=1).run(None, feeds)
            outcome = "ran"
        if not graph.symbols:
            break
    return outcome


def survive(start: int, count: int, jobs: int) -> dict[int, str]:
    """Outcomes of many seeds, by several processes."""
    originals()  # once for all children
    ingot.InferenceSession(load_onnx(originals()[0]), threads=1)
    return judge_seeds(start, count, jobs, judge_mutant)


def main() -> int:
    options = parse_seeds(__doc__, 20_000, one="load and run this seed only, here", parallel=True)
    if options.seed is not None:
        limit_memory()
        print(judge_mutant(options.seed))
        return 0
    outcomes = survive(options.start, options.count, options.jobs)
    return print_outcomes(outcomes, options, ("refused", "loaded", "ran", "slow"), rare=3)


if __name__ == "__main__":
    sys.exit(main())

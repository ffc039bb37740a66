"""`python -O tests/kit/saved_fuzz.py --count 30000 [--start S]`: changed saved programs; `--seed N` repeats one.

Whatever a folder holds, loading it, binding its dims and running it ends well or in a typed error: no other exception,
no signal, no more than so much memory or time. Mutants run in child processes without asserts. The exit code is 1 when
one failed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from forked import limited
from ingot import InferenceSession
from ingot.errors import IngotError, InputError, LimitError, LoadError, ResourceError, UnsupportedError
from ingot.ir.graph import Graph
from ingot.run.interpret import bind_symbols
from saved_mutants import Mutation, sources
from seeds import parse_seeds

TYPED = (LoadError, LimitError, UnsupportedError, InputError, ResourceError)
UNTYPED = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, IngotError, LookupError, MemoryError, OSError),
    *(RuntimeError, TypeError, ValueError),
)
BYTES, SECONDS = 1 << 30, 20
_BATCH = 200
_OF_ONE_SOURCE = 5000  # mutants of one set of programs


def save_sources(root: Path, seed: int) -> list[Path]:
    """Programs to be changed, each in a folder of its own, symbolic ones after a run; and what symbols were."""
    folders = []
    for i, (graph, arrays) in enumerate(sources(seed)):
        session, folder = InferenceSession(graph, threads=1), root / f"program{i}"
        session.run(None, arrays)
        session.save(folder)
        folder.with_suffix(".json").write_text(json.dumps(bind_symbols(graph, arrays)))
        folders.append(folder)
    return folders


def feeds(graph: Graph, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """An array for each input; a symbol without a size, and now and then one with it, is any small number."""
    rng = np.random.default_rng(seed)
    any_size = {symbol: int(rng.integers(1, 6)) for symbol in graph.symbols}
    bound = graph.bind(any_size | (sizes if rng.random() < 0.8 else {}))
    made = {}
    for name in bound.inputs:
        type = bound.type(name)
        numbers = rng.uniform(0, 3, type.dims if type.size < 1 << 20 else (1,) * type.rank)
        made[name] = numbers.astype(type.dtype.numpy)
    return made


def check(folder: Path, program: Path, seed: int) -> str:
    """Runs one mutant of a program, written to a folder; its outcome, which begins with ! if it is a fault."""
    content = {name: (program / name).read_bytes() for name in ("graph.ingot", "weights.bin", "weights.json")}
    mutation = Mutation(
        content["graph.ingot"].decode(), json.loads(content["weights.json"]), content["weights.bin"], seed
    )
    text, manifest = mutation.made()
    (folder / "weights.bin").write_bytes(content["weights.bin"])
    (folder / "graph.ingot").write_text(text)
    (folder / "weights.json").write_text(manifest)
    try:
        session = InferenceSession(folder, threads=1)
        session.run(None, feeds(session.graph, json.loads(program.with_suffix(".json").read_text()), seed))
    except TYPED as error:
        return type(error).__name__
    except UNTYPED as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"! {type(error).__name__} in {os.path.basename(frame.filename)} {frame.name}: {str(error)[:80]!r}"
    return "runs"


def run_batch(seeds: range, programs: list[Path], scratch: Path) -> list[str]:
    """The outcomes of some seeds, in a child each time one kills the one before."""
    outcomes: list[str] = []
    while len(outcomes) < len(seeds):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reader)
                _work(seeds[len(outcomes) :], programs, scratch, writer)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as lines:
            outcomes += [line.rstrip("\n") for line in lines]
        status = os.waitpid(child, 0)[1]
        assert not os.WIFEXITED(status) or status == 0, "the fuzzer itself failed"
        if status:
            outcomes.append(f"! killed by {signal.Signals(os.WTERMSIG(status)).name}")
    return outcomes


def _work(seeds: range, programs: list[Path], scratch: Path, writer: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    np.seterr(all="ignore")
    for seed in seeds:
        with limited(SECONDS):
            outcome = check(scratch, programs[seed % len(programs)], seed)
        os.write(writer, f"{outcome}\n".encode())


def fuzz(start: int, count: int) -> Iterator[tuple[range, list[str]]]:
    """The outcomes of seeds, batch by batch."""
    while count:
        size = min(count, _OF_ONE_SOURCE - start % _OF_ONE_SOURCE)
        with tempfile.TemporaryDirectory() as root:
            programs, scratch = save_sources(Path(root), start // _OF_ONE_SOURCE), Path(root) / "mutant"
            scratch.mkdir()
            for first in range(start, start + size, _BATCH):
                seeds = range(first, min(first + _BATCH, start + size))
                yield seeds, run_batch(seeds, programs, scratch)
        start, count = start + size, count - size


def show(seed: int) -> None:
    """Print a mutant and its program, and run it here."""
    with tempfile.TemporaryDirectory() as root:
        programs, scratch = save_sources(Path(root), seed // _OF_ONE_SOURCE), Path(root) / "mutant"
        scratch.mkdir()
        program = programs[seed % len(programs)]
        print(*run_batch(range(seed, seed + 1), [program], scratch), flush=True)
        os.system(f"diff -U1 {program} {scratch}")
        session = InferenceSession(scratch, threads=1)
        session.run(None, feeds(session.graph, json.loads(program.with_suffix(".json").read_text()), seed))


def main() -> int:
    options = parse_seeds(__doc__, 30_000, one="show this mutant only")
    if options.seed is not None:
        show(options.seed)
        return 0
    totals: Counter[str] = Counter()
    for seeds, outcomes in fuzz(options.start, options.count):
        faults = [f"seed {seed}: {outcome}" for seed, outcome in zip(seeds, outcomes, strict=True) if outcome[0] == "!"]
        print(f"{seeds.start}..{seeds.stop - 1}: {len(faults)} faults", *faults, sep="\n  ", flush=True)
        totals.update(outcomes)
    for outcome, times in totals.most_common():
        print(f"{times} x {outcome}")
    return int(any(outcome.startswith("!") for outcome in totals))


if __name__ == "__main__":
    sys.exit(main())

"""Write the model unless it is there, and measure one run."""

from __future__ import annotations

import mmap
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.harness import packages, page, report
from benchmarks.harness.report import verdict
from benchmarks.harness.resources import peak_bytes
from benchmarks.large.model import CONTEXT, FOLDER_TYPE, SCALES, write, write_folder

FOLDER = ROOT / "build" / "llm"
ROUNDS, TOKENS = 5, 8
LOAD_GOAL, READ_GOAL = 3.0, 0.9
_PIECE_BYTES = 64 << 10  # small: the most memory until then does not count


def fresh_seconds(nbytes: int, threads: int) -> tuple[float, float]:
    """The seconds, and those of all threads together, until so much memory is there."""
    from ingot.run.store import allocate

    begin, began = time.perf_counter(), time.process_time()
    shares = np.array_split(allocate(nbytes), threads)
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(lambda share: share[:: mmap.PAGESIZE].fill(1), shares))
    return time.perf_counter() - begin, time.process_time() - began


def fetch(files: list[Path]) -> None:
    """Reads files, so that they are in the page cache."""
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(_PIECE_BYTES):
                pass


def measured(path: Path, threads: int) -> str:
    """The table of one run."""
    from ingot import LLM
    from ingot.run.library import load
    from ingot.run.probe import Probe

    files = [path] if path.is_file() else list(path.iterdir())
    fetch(files)
    isa, before, begin, began = load().isa(), peak_bytes(), time.perf_counter(), time.process_time()
    llm = LLM(path, context=CONTEXT, threads=threads, sequences=1)
    loaded, worked = time.perf_counter() - begin, time.process_time() - began
    list(llm.generate_tokens([1, 2, 3], max_tokens=2, temperature=0))
    used, arena = peak_bytes() - before, llm.memory.total - llm.memory.weights
    fresh, cleared = fresh_seconds(llm.memory.weights, threads)
    probe = Probe("probe_read_f32", isa, threads, nbytes=llm.memory.weights)
    decodes, reads = [], []
    for number in range(ROUNDS):
        reads.append(probe.seconds(2))
        tokens = llm.generate_tokens([number, 2, 3], max_tokens=TOKENS + 1, temperature=0)
        next(tokens)
        begin = time.perf_counter()
        decodes.append((sum(1 for _ in tokens), time.perf_counter() - begin))
    seconds = [took / count for count, took in decodes]
    fraction = statistics.median(read / decode for read, decode in zip(reads, seconds, strict=True))
    size, token = sum(file.stat().st_size for file in files), statistics.median(seconds)
    rows = [
        ["load, s", f"{loaded:.2f}", f"at most {LOAD_GOAL:.1f}", verdict(loaded <= LOAD_GOAL)],
        ["its CPU time, s", f"{worked:.2f}", "", ""],
        ["fresh memory for the panels, s", f"{fresh:.2f}, CPU time {cleared:.2f}", "", ""],
        ["decode, tokens/s", f"{1 / token:.2f}", "", ""],
        ["decode, GB/s", f"{1e-9 * llm.memory.weights / token:.1f}", "", ""],
        ["of read bandwidth", f"{fraction:.0%}", f"at least {READ_GOAL:.0%}", verdict(fraction >= READ_GOAL)],
        ["most memory, MiB", f"{used / 2**20:.0f}", f"file and arena: {(size + arena) / 2**20:.0f}",
         verdict(used <= size + arena)],
    ]  # fmt: skip
    words = f"{path.name}: {size / 1e9:.2f} GB, panels of {llm.memory.weights / 1e9:.2f} GB."
    return f"{words}\n\n{report.table(['', '', 'goal', ''], rows)}"


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, threads=page.THREADS)
    parser.add_argument("--type", choices=[FOLDER_TYPE, *SCALES], default=FOLDER_TYPE)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the model is, or is written")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    is_folder = asked.type == FOLDER_TYPE
    path = asked.folder / f"llama-3b-{asked.type}{'' if is_folder else '.gguf'}"
    if not path.exists():  # by a process that takes the memory with it: the most that this one has had is measured
        if not is_folder:
            packages.require("gguf")
        target, args = (write_folder, (path,)) if is_folder else (write, (path, asked.type))
        writer = Process(target=target, args=args)
        writer.start()
        writer.join()
    page.publish(__package__, asked, "A model of 3 B parameters", ["ingot"], measured(path, asked.threads))


if __name__ == "__main__":
    main()

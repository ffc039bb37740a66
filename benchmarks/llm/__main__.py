"""Measure every precision on every engine, and how far the engines agree."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import isa, page, report
from benchmarks.harness.report import verdict
from benchmarks.harness.rounds import Measurement
from benchmarks.harness.worker import Worker
from benchmarks.llm import model
from benchmarks.llm.engines import GREEDY_TOKENS, LOGITS_PROMPT
from benchmarks.llm.files import FOLDER, written
from benchmarks.llm.rounds import Run, Runs, measure_round, share

ROUNDS = 5
PROGRAM = "benchmarks.llm.engines"
ENGINES = ("llama.cpp", "openvino", "ingot", "read")

# The least that Ingot's tokens a second over llama.cpp's may be.
GOALS = {
    "f32": {"prefill 128": 1.3, "prefill 512": 1.3, "decode": 0.97},
    "bf16": {"prefill 128": 1.2, "prefill 512": 1.35, "decode": 0.97},
    "int8": {"prefill 128": 3.8, "prefill 512": 3.8, "decode": 1.5},
    "int4": {"prefill 128": 2.6, "prefill 512": 2.6, "decode": 1.2},
    "q4_0": {"prefill 128": 2.6, "prefill 512": 2.6, "decode": 1.2},
    "q4_k_m": {"prefill 128": 3.4, "prefill 512": 3.4, "decode": 1.6},
    "iq4_xs": {"prefill 128": 2.6, "prefill 512": 2.6, "decode": 1.2},
}
# The same on AVX2, where less is reached.
AVX2_GOALS = {
    **{precision: dict.fromkeys(goals, 1.0) for precision, goals in GOALS.items()},
    **{
        precision: {"prefill 128": 2.2, "prefill 512": 2.2, "decode": 1.5}
        for precision in ("int8", "int4", "q4_0", "q4_k_m")
    },
}
READ_GOALS = {"best": 0.9, "avx2": 0.8}  # the least share of the read bandwidth that decode may use
# The most that logits may differ, of the largest: llama.cpp keeps keys and values in f16.
TOLERANCE = {"f32": 1e-3, "bf16": 2e-2, "int8": 5e-2, "int4": 1e-1, "q4_0": 5e-2, "q4_k_m": 5e-2, "iq4_xs": 5e-2}


def measure(precision: str, engines: list[str], rounds: int, threads: int, folder: Path) -> tuple[Runs, str]:
    """Every measure on every engine in interleaved rounds; and how far the engines agree."""
    written(folder, precision, engines)
    runs = {engine: Run(Worker(engine, folder, threads, PROGRAM)) for engine in engines}
    try:
        for run in runs.values():
            reply = run.worker.request(load=precision)
            run.load_seconds, run.settings = reply["seconds"], reply["settings"]
            run.measured = {name: Measurement() for name in run.settings}
        for number in range(rounds):
            first = number % len(engines)
            measure_round(number, {engine: runs[engine] for engine in engines[first:] + engines[:first]})
        for run in runs.values():
            run.peak_bytes = run.worker.request(peak=0)
        return runs, agreement(precision, runs)
    finally:
        for run in runs.values():
            run.worker.close()


def outputs_of(worker: Worker) -> tuple[np.ndarray, list[int]]:
    """The logits after a prompt, and greedy tokens after another."""
    return np.array(worker.request(logits=LOGITS_PROMPT)), worker.request(greedy=GREEDY_TOKENS)


def agreement(precision: str, runs: Runs) -> str:
    """A sentence for each other engine about its logits and greedy tokens compared with Ingot's. Ends this program when
    logits differ by more than TOLERANCE, or tokens in f32.
    """
    others = [engine for engine in _computing(runs) if engine != "ingot"]
    if "ingot" not in runs:
        return ""
    mine, my_tokens = outputs_of(runs["ingot"].worker)
    sentences = []
    for engine in others:
        theirs, their_tokens = outputs_of(runs[engine].worker)
        difference = float(np.abs(mine - theirs).max() / np.abs(theirs).max())
        equal = next((i for i in range(GREEDY_TOKENS) if their_tokens[i] != my_tokens[i]), GREEDY_TOKENS)
        found = f"logits differ from those of {engine} by at most {difference:.1e} of the largest"
        if difference > TOLERANCE[precision] or (precision == "f32" and equal < GREEDY_TOKENS):
            sys.exit(f"{precision}: {found}, {equal} greedy tokens are equal")
        sentences.append(
            f"After a prompt of {LOGITS_PROMPT} tokens the {found}; "
            f"the first {equal} of {GREEDY_TOKENS} greedy tokens are equal."
        )
    return " ".join(sentences)


def _computing(runs: Runs) -> list[str]:
    """The engines with a model."""
    return [engine for engine in runs if engine != "read"]


def speed_table(goals: dict[str, float], runs: Runs) -> str:
    """Tokens a second."""
    engines = _computing(runs)
    ratios = ["Ingot / OpenVINO"] if "openvino" in runs else []
    head = ["", *(f"{engine}, tokens/s" for engine in engines), *ratios, "Ingot / llama.cpp", "at least", ""]
    rows = []
    for name, goal in goals.items():
        cells = [name]
        measured = {engine: runs[engine].measured[name] for engine in engines}
        cells += [f"{1 / found.median:.1f} ± {found.spread / 2:.0%}" for found in measured.values()]
        if "openvino" in runs:
            cells.append(f"{share(measured['openvino'], measured['ingot']):.2f}" if "ingot" in runs else "")
        if "ingot" in runs and "llama.cpp" in runs:
            ratio = share(measured["llama.cpp"], measured["ingot"])
            cells += [f"{ratio:.2f}", f"{goal:.2f}", verdict(ratio >= goal)]
        rows.append(cells + [""] * (len(head) - len(cells)))
    return report.table(head, rows)


def memory_table(streamed: dict[str, int], runs: Runs, least: float) -> str:
    """The bandwidth that decode uses, the bandwidth of reading alone, and the memory of the process.

    streamed: bytes of a token, of engines of which they are known, and of "read". least: the goal of the share.
    """
    head = ["", "decode GB/s", "read GB/s", "of read bandwidth", "at least", "", "peak RSS MiB", "load s"]
    rows, read = [], runs["read"].measured["decode"]
    for engine in _computing(runs):
        run, cells = runs[engine], [engine, "", "", ""]
        decode, fraction = run.measured["decode"], math.nan
        if engine in streamed:
            speeds = [1e-9 * streamed[engine] / decode.median, 1e-9 * streamed["read"] / read.median]
            fraction = share(read, decode) * streamed[engine] / streamed["read"]
            cells[1:] = [*(f"{speed:.1f}" for speed in speeds), f"{fraction:.0%}"]
        cells += [f"{least:.0%}", verdict(fraction >= least)] if engine == "ingot" else ["", ""]
        rows.append([*cells, f"{run.peak_bytes / 2**20:.0f}", f"{run.load_seconds:.2f}"])
    return report.table(head, rows)


def section(precision: str, engines: list[str], rounds: int, threads: int, folder: Path, held_to: str) -> str:
    """All about one precision."""
    engines = [engine for engine in engines if engine != "openvino" or precision in model.QUANTIZED]
    engines += [] if "read" in engines else ["read"]
    runs, words = measure(precision, engines, rounds, threads, folder)
    streamed = dict.fromkeys(("ingot", "read"), model.streamed_bytes(folder, precision))
    if "llama.cpp" in engines:
        streamed["llama.cpp"] = model.gguf_bytes(folder, precision)
    parts = [
        f"## {precision}",
        speed_table((AVX2_GOALS if held_to == "avx2" else GOALS)[precision], runs),
        f"A token's computation on Ingot reads {streamed['ingot'] / 1e6:.0f} MB of weights; `read` does "
        "nothing else, on as many threads, in the same rounds.",
        memory_table(streamed, runs, READ_GOALS[held_to]),
        words,
    ]
    if "llama.cpp" in runs:
        chosen = ", ".join(f"{setting} for {name}" for name, setting in runs["llama.cpp"].settings.items())
        parts.append(f"llama.cpp chose {chosen}.")
    return "\n\n".join(part for part in parts if part)


def main() -> None:
    """Measure and report; one precision alone, where an option names it."""
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, engines=ENGINES)
    parser.add_argument("--precision", choices=model.PRECISIONS, help="this one alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models are, or are written")
    isa.option(parser, "best")
    asked = parser.parse_args()
    isa.hold(asked.isa)
    if asked.precision and asked.write:
        parser.error("--write is for the whole page, without --precision")
    precisions = [asked.precision] if asked.precision else model.PRECISIONS
    sections = [section(p, asked.engines, asked.rounds, asked.threads, asked.folder, asked.isa) for p in precisions]
    title, file = ("Language models on AVX2", "avx2.md") if asked.isa == "avx2" else ("Language models", "results.md")
    page.publish(__package__, asked, title, asked.engines, *sections, file=file)


if __name__ == "__main__":
    main()

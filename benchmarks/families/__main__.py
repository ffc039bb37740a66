"""Measure the parts that have no stored result, and report all."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.families import model
from benchmarks.harness import packages, page
from benchmarks.harness.report import table, verdict
from benchmarks.harness.rounds import Measurement
from benchmarks.harness.worker import Worker
from benchmarks.llm.engines import DECODE_PROMPT, LOGITS_PROMPT
from benchmarks.llm.rounds import Run, measure_round, share

FOLDER = ROOT / "build" / "families"
PROGRAM = "benchmarks.families.engines"
ENGINES = ("llama.cpp", "ingot", "read")
ROUNDS = 3
GOALS = {"prefill 128": 1.5, "prefill 512": 1.5, "decode": 1.1}  # Ingot's tokens a second over llama.cpp's, at least


@dataclass(frozen=True)
class Result:
    """What was measured of a part: seconds of a token by engine and measure, and how far logits agree."""

    rounds: dict[str, dict[str, list[float]]]
    settings: dict[str, str]
    load_seconds: dict[str, float]
    peak_bytes: dict[str, int]
    difference: float
    same_best: bool

    def measured(self, engine: str, measure: str) -> Measurement:
        """The rounds of one measure."""
        return Measurement(self.rounds[engine][measure])


def stored(folder: Path, part: str) -> Path:
    """The path of a result."""
    return folder / f"{part.replace(' ', '-')}.json"


def measure(part: str, rounds: int, threads: int, folder: Path) -> Result:
    """Compare the logits of both engines, then measure them in interleaved rounds."""
    if not model.path_of(folder, part).exists():
        subprocess.run([sys.executable, "-m", "benchmarks.families.model", str(folder), part], check=True)
    runs = {engine: Run(Worker(engine, folder, threads, PROGRAM)) for engine in ENGINES}
    try:
        for run in runs.values():
            reply = run.worker.request(load=part)
            run.load_seconds, run.settings = reply["seconds"], reply["settings"]
            run.measured = {name: Measurement() for name in run.settings}
        theirs, ours = (np.array(runs[e].worker.request(logits=LOGITS_PROMPT)) for e in ("llama.cpp", "ingot"))
        for number in range(rounds):
            order = list(runs)[number % len(runs) :] + list(runs)[: number % len(runs)]
            measure_round(number, {engine: runs[engine] for engine in order})
        return Result(
            {e: {name: each.rounds for name, each in run.measured.items()} for e, run in runs.items()},
            runs["llama.cpp"].settings,
            {engine: run.load_seconds for engine, run in runs.items()},
            {engine: run.worker.request(peak=0) for engine, run in runs.items() if engine != "read"},
            float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
            bool(ours.argmax() == theirs.argmax()),
        )
    finally:
        for run in runs.values():
            run.worker.close()


def section(part: str, found: Result) -> str:
    """The tables of a part."""
    shape, precision = model.shape_of(part)
    rows = []
    for name, goal in GOALS.items():
        theirs, ours = (found.measured(engine, name) for engine in ("llama.cpp", "ingot"))
        ratio = share(theirs, ours)
        speeds = [f"{1 / each.median:.1f} ± {each.spread / 2:.0%}" for each in (theirs, ours)]
        rows.append([name, *speeds, f"{ratio:.2f}", f"{goal:.2f}", verdict(ratio >= goal)])
    head = ["", "llama.cpp, tokens/s", "Ingot, tokens/s", "Ingot / llama.cpp", "at least", ""]
    of_read = [share(found.measured("read", "decode"), found.measured(e, "decode")) for e in ("llama.cpp", "ingot")]
    experts = f", {shape.chosen} of {shape.experts_in(precision)} experts" if shape.chosen else ""
    words = (
        f"{shape.layers} layers of width {shape.width}{experts}; {model.active_parameters(part) / 1e9:.2f} B numbers, "
        f"{model.read_bytes(part) / 1e6:.0f} MB, are read for a token, of a file of "
        f"{found_size(part):.2f} GB. Of the read bandwidth, decode after a prompt of {DECODE_PROMPT} tokens uses "
        f"{of_read[1]:.0%}, and llama.cpp's {of_read[0]:.0%}. After a prompt of {LOGITS_PROMPT} tokens logits differ "
        f"by at most {found.difference:.1e} of the largest, and the best token is "
        f"{'the same' if found.same_best else 'another one'}. Most memory: "
        f"{found.peak_bytes['ingot'] / 2**20:.0f} MiB, llama.cpp {found.peak_bytes['llama.cpp'] / 2**20:.0f} MiB; "
        f"loaded in {found.load_seconds['ingot']:.1f} s and {found.load_seconds['llama.cpp']:.1f} s. llama.cpp chose "
        f"{', '.join(f'{setting} for {name}' for name, setting in found.settings.items())}."
    )
    return f"## {shape.title}, {precision}\n\n{table(head, rows)}\n\n{words}"


def found_size(part: str) -> float:
    """The GB of a part's file."""
    shape, precision = model.shape_of(part)
    total = 0
    for tensor in shape.tensors(precision):
        type = model.type_of(tensor, shape, precision)
        total += int(np.prod(model.stored_shape(tensor, type))) * (4 if type == "f32" else 1)
    return total / 1e9


def summary(results: dict[str, Result]) -> str:
    """The ratios of all parts."""
    rows = []
    for part, found in results.items():
        ratios = {name: share(found.measured("llama.cpp", name), found.measured("ingot", name)) for name in GOALS}
        is_met = all(ratio >= GOALS[name] for name, ratio in ratios.items())
        rows.append([part, *(f"{ratio:.2f}" for ratio in ratios.values()), verdict(is_met)])
    goals = ", ".join(f"{name} {goal:.2f}" for name, goal in GOALS.items())
    return f"Ingot's tokens a second over llama.cpp's; at least: {goals}.\n\n{table(['', *GOALS, ''], rows)}"


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, only=True)
    parser.add_argument("--precisions", default="", metavar="A,B", help="of bf16, q4_0, q4_k_m, mxfp4; by default all")
    parser.add_argument("--again", action="store_true", help="also measure parts that have a result")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models and the results are")
    asked = parser.parse_args()
    packages.require("llama.cpp", "gguf")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for part in chosen(asked):
        if asked.again or not stored(asked.folder, part).exists():
            found = measure(part, asked.rounds, asked.threads, asked.folder)
            stored(asked.folder, part).write_text(json.dumps(vars(found)))
            print(section(part, found), file=sys.stderr, flush=True)
    paths = {part: stored(asked.folder, part) for part in model.parts()}
    results = {part: Result(**json.loads(path.read_text())) for part, path in paths.items() if path.exists()}
    sections = [section(part, found) for part, found in results.items()]
    page.publish(__package__, asked, "Families of language models", ENGINES, summary(results), *sections)


def chosen(asked: argparse.Namespace) -> list[str]:
    """The parts that options name. Ends the program for an unknown precision."""
    precisions = asked.precisions.split(",") if asked.precisions else sorted({p.split()[1] for p in model.parts()})
    for precision in precisions:
        if not any(part.endswith(f" {precision}") for part in model.parts()):
            sys.exit(f"--precisions: got {precision!r}, expected some of bf16, q4_0, q4_k_m, mxfp4")
    return [part for part in page.chosen(model.parts(), asked.only) if part.split()[1] in precisions]


if __name__ == "__main__":
    main()

"""`make bench`: everything, into benchmarks/results.md; with `--only REGEX` those workloads alone, printed.

With `--precision bf16` or `bf16amx` the workloads that have products, beside OpenVINO in bf16, printed; with int8 those
of encoders and vision, beside what the quantizers of ONNX Runtime and OpenVINO make of them.

Takes the options of benchmarks.side_by_side.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import goals, report, side_by_side
from benchmarks.engines import version
from benchmarks.workloads import QUANTIZED

FOLDER = Path(__file__).parent
# One thread: a choice of the workloads, and the engines that are ever the fastest there.
SINGLE_THREAD = r"^(mlp|block-sdpa (1x64x128|4x128x256)|bert|vit|resnet50|chain|sdpa)"
SINGLE_THREAD_ENGINES = ["openvino", "onnxruntime", "ingot"]
SINGLE_THREAD_ROUNDS = 3
WITHOUT_PRODUCTS = r"(chain|noop|steps)\b"
ROUNDED_ENGINES = {
    "bf16": ["openvino", "ingot"], "bf16amx": ["openvino", "ingot"], "int8": ["onnxruntime", "openvino", "ingot"],
}  # fmt: skip
# The other sections: a heading, words, and the program that prints the section; it may end with 1 for a missed goal.
SECTIONS = (
    ("Kernels", "The kernel that lowering chooses, alone, beside the machine's limit measured in the same rounds: "
     "fused multiply-adds on registers, or reading as many bytes as the weights have.", "benchmarks.kernels"),
    ("The matvec contract", "The bounds of `src/ingot/contracts/matvec.yaml`.", "benchmarks.matvec"),
    ("Calls", "What is left when there is next to nothing to compute.", "benchmarks.overhead"),
    ("Cold start", "From an ONNX file of BERT-base to the first output, 128 tokens; imports are not counted.",
     "benchmarks.cold"),
    ("The cost of a fixed order", "Kernels beside themselves in the order of summation that is fastest, on one thread: "
     "product-sums in one chain over k, reductions in eight chains a row.", "benchmarks.order"),
    ("Crowding", "More threads than cores, and a process beside that keeps one core busy.", "benchmarks.crowding"),
    ("Ablation", "Microseconds of one run, all in one process, on one thread unless said otherwise. One call per "
     "kernel: a call from Python for each node; unfused: one call for all; no passes: fused as the model is spelled.",
     "benchmarks.ablation"),
)  # fmt: skip


def output_of(*arguments: str) -> str:
    """What a Python program prints. Raises CalledProcessError when it ends with more than 1."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        done.check_returncode()
    return done.stdout.strip()


def workloads(only: str, engines: list[str], rounds: int, threads: int) -> tuple[str, side_by_side.Results]:
    """The goals and the figures of the chosen workloads."""
    results = side_by_side.measure(side_by_side.chosen(only), engines, rounds, threads)
    return f"{goals.reached(results)}\n\n{report.side_by_side(results, engines)}", results


def main() -> None:
    """Measures and writes results.md."""
    asked = side_by_side.options().parse_args()
    engines = asked.engines.split(",")
    if asked.precision != "f32":
        names = [name for name in side_by_side.chosen(asked.only) if not re.match(WITHOUT_PRODUCTS, name)]
        if asked.precision == "int8":
            names = [name for name in QUANTIZED if re.search(asked.only, name)]
        rounded = ROUNDED_ENGINES[asked.precision]
        results = side_by_side.measure(names, rounded, asked.rounds, asked.threads, asked.precision)
        print(report.side_by_side(results, rounded, asked.precision))
        return
    if asked.only:
        print(workloads(asked.only, engines, asked.rounds, asked.threads)[0])
        return
    start = time.time()
    figures = json.loads(output_of("benchmarks/roofline/roofline.py", "--json"))
    text, results = workloads("", engines, asked.rounds, asked.threads)
    single, _ = workloads(SINGLE_THREAD, SINGLE_THREAD_ENGINES, SINGLE_THREAD_ROUNDS, 1)
    versions = sorted({version(engine) for engine in engines} | {f"numpy {importlib.metadata.version('numpy')}"})
    sections = [
        "# Benchmarks",
        f"Written by `make bench`. {report.machine()}. Python {platform.python_version()}, {', '.join(versions)}. "
        f"{time.strftime('%Y-%m-%d')}, {asked.rounds} rounds, {asked.threads} threads for every engine, f32.",
        "## Side by side",
        "Medians in microseconds of one run through the engine's Python interface; each engine in a process of its "
        "own, rounds interleaved, the others stopped meanwhile. Differences are from torch in float64, relative to the "
        "largest output. First the goals: geometric means of Ingot's time over that of the best other engine.",
        text,
        "## One thread",
        f"Some of them with one thread for every engine, {SINGLE_THREAD_ROUNDS} rounds.",
        single,
    ]
    for heading, words, program in SECTIONS:
        sections += [f"## {heading}", words, output_of("-m", program)]
    sections += [
        "## Roofline",
        "What this machine does at best (see `benchmarks/roofline`), and the share of it that Ingot reached above.",
        report.roofline(figures),
        report.shares(results, figures, asked.threads),
        f"Measured in {(time.time() - start) / 60:.0f} minutes.",
    ]
    (FOLDER / "results.md").write_text("\n\n".join(sections) + "\n")
    print(f"wrote {FOLDER / 'results.md'}")


if __name__ == "__main__":
    main()

"""Measure the models, and report medians, goals and shares of what the machine can do."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from benchmarks import ROOT
from benchmarks.harness import isa, page, report, rounds
from benchmarks.harness.packages import require
from benchmarks.models import chart, goals
from benchmarks.models.networks import NETWORKS
from benchmarks.models.workloads import QUANTIZED, WORKLOADS

PROGRAM = "benchmarks.models.worker"
ROUNDS = 9
# Of each precision: the engines that have it.
ENGINES = {
    "f32": ["eager", "compile", "onnxruntime", "openvino", "ingot"], "bf16": ["openvino", "ingot"],
    "bf16amx": ["openvino", "ingot"], "int8": ["onnxruntime", "openvino", "ingot"],
}  # fmt: skip
# One thread: a choice of the workloads, and the engines that are ever the fastest there.
SINGLE_THREAD = r"^(mlp|block-sdpa (1x64x128|4x128x256)|bert|vit|resnet50|chain|sdpa)"
SINGLE_THREAD_ENGINES = ["openvino", "onnxruntime", "ingot"]
SINGLE_THREAD_ROUNDS = 3
WITHOUT_PRODUCTS = r"(chain|noop|steps)\b"


def machine_figures() -> report.Figures:
    """What this machine can do, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "roofline", "--json"]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


def section(names: list[str], engines: list[str], count: int, threads: int) -> tuple[str, rounds.Results]:
    """The goals and the figures of workloads in f32, in so many rounds."""
    results = rounds.measure(PROGRAM, names, engines, count, threads)
    return f"{goals.reached(results)}\n\n{report.side_by_side(results, engines)}", results


def whole_page(engines: list[str], count: int, threads: int) -> list[str]:
    """Everything in f32."""
    figures = machine_figures()
    text, results = section(list(WORKLOADS), engines, count, threads)
    single_engines = [engine for engine in SINGLE_THREAD_ENGINES if engine in engines]
    single, _ = section(page.chosen(WORKLOADS, SINGLE_THREAD), single_engines, SINGLE_THREAD_ROUNDS, 1)
    return [
        text,
        "## One thread",
        f"Some of them with one thread for every engine, {SINGLE_THREAD_ROUNDS} rounds.",
        single,
        "## Roofline",
        "What this machine does at best, by `python -m benchmarks roofline`, and Ingot's share of it above.",
        report.roofline(figures),
        report.shares(results, figures, threads),
    ]


def held_page(only: str, engines: list[str], count: int, threads: int) -> list[str]:
    """The workloads and twelve further networks, with the engines held to an instruction set."""
    results = rounds.measure(PROGRAM, page.chosen([*WORKLOADS, *NETWORKS], only), engines, count, threads)
    return [
        "`INGOT_ISA` and the variables of oneDNN and MKL hold every engine to AVX2, except ONNX Runtime, which has no "
        "such option: on a CPU with AVX-512 it uses AVX-512.",
        report.side_by_side(results, engines),
    ]


def rounded_section(only: str, engines: list[str], count: int, threads: int, precision: str) -> str:
    """The figures of a precision below f32."""
    names = page.chosen(QUANTIZED if precision == "int8" else WORKLOADS, only)
    names = [name for name in names if not re.match(WITHOUT_PRODUCTS, name)]
    return report.side_by_side(rounds.measure(PROGRAM, names, engines, count, threads, precision), engines, precision)


def main() -> None:
    """Measure and report; a part alone, where options choose one."""
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, only=True)
    parser.add_argument("--engines", metavar="A,B", help=f"by default {','.join(ENGINES['f32'])}, of f32")
    parser.add_argument("--precision", choices=list(ENGINES), default="f32")
    isa.option(parser, "best")
    parser.add_argument("--chart", action="store_true", help="draw README's chart of results.md, and measure nothing")
    asked = parser.parse_args()
    if asked.chart:
        chart.draw()
        return
    isa.hold(asked.isa)
    is_part = bool(asked.only) or asked.precision != "f32"
    if is_part and asked.write:
        parser.error("--write is for the whole page, without --only and --precision")
    engines = page.engine_list(asked.engines or ",".join(ENGINES[asked.precision]))
    if asked.precision == "int8" and "openvino" in engines:
        require("nncf")
    options = (engines, asked.rounds, asked.threads)
    if asked.precision != "f32":
        parts = [rounded_section(asked.only, *options, asked.precision)]
    elif asked.isa == "avx2":
        parts = held_page(asked.only, *options)
    elif asked.only:
        parts = [section(page.chosen(WORKLOADS, asked.only), *options)[0]]
    else:
        parts = whole_page(*options)
    title, file = f"Models in {asked.precision}", "results.md"
    if asked.isa == "avx2":
        title, file = f"{title} on AVX2", "avx2.md"
    page.publish(__package__, asked, title, engines, *parts, file=file)
    if asked.write and asked.isa == "best":
        chart.draw()


if __name__ == "__main__":
    main()

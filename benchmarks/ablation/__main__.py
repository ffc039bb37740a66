"""Measure every variant of some workloads."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks.harness import page
from benchmarks.harness.report import table
from benchmarks.harness.resources import seconds_of
from benchmarks.models.workloads import WORKLOADS
from ingot import InferenceSession

ROUNDS = 3
CHOSEN = ("mlp 1x512", "mlp 32x512", "block-naive 1x16x64", "block-sdpa 4x64x128", "gpt2 16", "bert 32", "bert 128")
EACH = "one call per kernel"
VARIANTS: dict[str, dict[str, object]] = {
    "interpreter": {"executor": "interpret"},
    EACH: {"fuse": False, "threads": 1},
    "unfused": {"fuse": False, "threads": 1},
    "no passes": {"passes": (), "threads": 1},
    "full": {"threads": 1},
    "full, 2 threads": {"threads": 2},
}
TORCH = {"torch": 1, "torch, 2 threads": 2}  # threads
COLUMNS = (*VARIANTS, *TORCH)


def one_call_each(session: InferenceSession, feeds: Mapping[str, np.ndarray]) -> Callable[[], object]:
    """Runs a session's steps by a C call for each, on outputs that stay."""
    program = session.program.single
    assert program is not None
    outputs = [np.empty(shape, dtype) for shape, dtype in program.output_types({})]
    rows = program.pointers([*(feeds[argument.name] for argument in session.get_inputs()), *outputs])
    calls = [program.library.new("ingot_program") for _ in program.plan.steps]
    for index, call in enumerate(calls):
        call[0] = program.program[0]
        call.steps, call.step_count = program.program.steps + index, 1
        call.patch_count = program.program.patch_count if index == 0 else 0  # pointers that the first call has set

    def run() -> None:
        entry = program.library.entry.ingot_run  # the program has the memory that its steps use
        for call in calls:
            entry(call, rows.rows, rows.fault)

    expected = session.run(None, feeds)
    run()
    assert all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))
    return run


def eager(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], threads: int) -> Callable[[], object]:
    """Runs a module in PyTorch on so many threads."""

    def run() -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            module(*inputs)

    return run


def measure(name: str) -> dict[str, float]:
    """Median seconds of one run for each column, rounds interleaved."""
    module, inputs = WORKLOADS[name].build()
    program = torch.export.export(module, inputs)
    calls: dict[str, Callable[[], object]] = {}
    for variant, options in VARIANTS.items():
        session = InferenceSession(program, **options)
        names = [argument.name for argument in session.get_inputs()]
        feeds = {n: tensor.numpy() for n, tensor in zip(names, inputs, strict=True)}
        calls[variant] = lambda session=session, feeds=feeds: session.run(None, feeds)
        if variant == EACH:
            calls[variant] = one_call_each(session, feeds)
    calls |= {variant: eager(module, inputs, threads) for variant, threads in TORCH.items()}
    for call in calls.values():
        call()
    rounds = [{variant: seconds_of(call) for variant, call in calls.items()} for _ in range(ROUNDS)]
    return {variant: statistics.median(r[variant] for r in rounds) for variant in calls}


def ablation(only: str) -> str:
    """The table, in microseconds."""
    rows = []
    for name in page.chosen(CHOSEN, only):
        measured = measure(name)
        rows.append([name, *(f"{measured[variant] * 1e6:.1f}" for variant in COLUMNS)])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return table(["workload", *COLUMNS], rows)


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, only=True).parse_args()
    page.publish(__package__, asked, "Ablation", ["ingot", "eager"], ablation(asked.only))


if __name__ == "__main__":
    main()

"""What each part of Ingot is worth, beside PyTorch: all variants of a workload in one process, rounds interleaved."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks.report import table
from benchmarks.workloads import WORKLOADS
from ingot import InferenceSession

ROUNDS = 3
BATCH_SECONDS = 0.1
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


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, over a batch of about BATCH_SECONDS; at least one."""
    start = time.perf_counter()
    runs = 0
    while runs == 0 or time.perf_counter() < start + BATCH_SECONDS:
        call()
        runs += 1
    return (time.perf_counter() - start) / runs


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


def call_overhead() -> float:
    """Median seconds of one run of a graph that does next to nothing: relu on a single element."""
    module = torch.nn.ReLU()
    session = InferenceSession(torch.export.export(module, (torch.zeros(1),)), threads=1)
    feeds = {session.get_inputs()[0].name: np.zeros(1, np.float32)}
    return statistics.median(seconds_of(lambda: session.run(None, feeds)) for _ in range(ROUNDS))


def ablation() -> str:
    """The table, in microseconds, and the cost of a call."""
    rows = []
    for name in CHOSEN:
        measured = measure(name)
        rows.append([name, *(f"{measured[variant] * 1e6:.1f}" for variant in COLUMNS)])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    overhead = f"One `run` of a graph with a single one-element relu: {call_overhead() * 1e6:.2f} us."
    return f"{table(['workload', *COLUMNS], rows)}\n\n{overhead}"


if __name__ == "__main__":
    print(ablation())

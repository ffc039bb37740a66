"""What each part of Ingot is worth: the interpreter, native without passes, with all of them, one thread and two."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.report import table
from benchmarks.workloads import WORKLOADS
from ingot import InferenceSession

ROUNDS = 3
BATCH_SECONDS = 0.1
CHOSEN = ("mlp 1x512", "mlp 32x512", "block-naive 1x16x64", "block-sdpa 4x64x128", "gpt2 16", "bert 32", "bert 128")
VARIANTS: dict[str, dict[str, object]] = {
    "interpreter": {"executor": "interpret"},
    "native, no passes, 1 thread": {"passes": (), "threads": 1},
    "native, 1 thread": {"threads": 1},
    "native, no passes, 2 threads": {"passes": (), "threads": 2},
    "native, 2 threads": {"threads": 2},
}


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, over a batch of about BATCH_SECONDS; at least one."""
    start = time.perf_counter()
    runs = 0
    while runs == 0 or time.perf_counter() < start + BATCH_SECONDS:
        call()
        runs += 1
    return (time.perf_counter() - start) / runs


def measure(name: str) -> dict[str, float]:
    """Median seconds of one run for each variant, rounds interleaved."""
    module, inputs = WORKLOADS[name].build()
    program = torch.export.export(module, inputs)
    sessions = {variant: InferenceSession(program, **options) for variant, options in VARIANTS.items()}
    calls = {}
    for variant, session in sessions.items():
        names = [argument.name for argument in session.get_inputs()]
        feeds = {n: tensor.numpy() for n, tensor in zip(names, inputs, strict=True)}
        calls[variant] = lambda session=session, feeds=feeds: session.run(None, feeds)
        calls[variant]()
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
        rows.append([name, *(f"{measured[variant] * 1e6:.1f}" for variant in VARIANTS)])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    overhead = f"One `run` of a graph with a single one-element relu: {call_overhead() * 1e6:.2f} us."
    return f"{table(['workload', *VARIANTS], rows)}\n\n{overhead}"


if __name__ == "__main__":
    print(ablation())

"""Measure calls of models that compute next to nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from benchmarks.harness.resources import seconds_of
from benchmarks.models.workloads import WORKLOADS, Block
from ingot import InferenceSession

ROUNDS = 15
FEW, MANY = 1, 21  # tiny layers
LAYERS, WIDTH = 8, 64  # of transformer blocks, which together have some 200 nodes


def calls(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A workload's `run`, and its run on bound buffers."""
    module, inputs = WORKLOADS[name].build()
    session = InferenceSession(torch.export.export(module, inputs), threads=2)
    feeds = {session.get_inputs()[0].name: inputs[0].numpy()}
    binding = session.io_binding()
    binding.bind_input(session.get_inputs()[0].name, inputs[0].numpy())
    binding.bind_output(session.get_outputs()[0].name)
    return lambda: session.run(None, feeds), binding.run


def symbolic(module: torch.nn.Module, shape: tuple[int, ...], axis: int) -> InferenceSession:
    """A session of a module one dim of whose input is free, with a program for each size."""
    dims = ({axis: torch.export.Dim("size", min=1, max=4096)},)
    program = torch.export.export(module.eval(), (torch.zeros(shape),), dynamic_shapes=dims)
    return InferenceSession(program, threads=2, dims={})


def binding() -> tuple[int, float, float]:
    """The nodes of a graph, and the median microseconds in which it is bound to a size that is new: what the first run
    at the size takes more than the second; and those of a run of a no-op graph at alternating sizes.
    """
    session = symbolic(torch.nn.Sequential(*(Block(WIDTH, True) for _ in range(LAYERS))), (1, 7, WIDTH), 1)
    name = session.get_inputs()[0].name
    took = []
    for size in range(8, 8 + 2 * ROUNDS):
        feeds = {name: np.zeros((1, size, WIDTH), np.float32)}
        times = [time.perf_counter()]
        for _ in range(2):
            session.run(None, feeds)
            times.append(time.perf_counter())
        took.append((times[1] - times[0]) - (times[2] - times[1]))
    small = symbolic(torch.nn.ReLU(), (2,), 0)
    few, more = ({small.get_inputs()[0].name: np.zeros(size, np.float32)} for size in (2, 3))
    hit = seconds_of(lambda: (small.run(None, few), small.run(None, more))) / 2
    return len(session.graph), 1e6 * statistics.median(took), 1e6 * hit


def overhead() -> str:
    """The table, in microseconds; rounds are interleaved."""
    measured = {"run": calls("noop")[0], "io_binding": calls("noop")[1]}
    measured |= {str(count): calls(f"steps {count}")[1] for count in (FEW, MANY)}
    rounds = [{name: 1e6 * seconds_of(call) for name, call in measured.items()} for _ in range(ROUNDS)]
    step = statistics.median((r[str(MANY)] - r[str(FEW)]) / (MANY - FEW) for r in rounds)
    nodes, miss, hit = binding()
    rows = [
        [what, f"{value:.2f}", f"{goal:.1f}", verdict(value <= goal)]
        for what, value, goal in (
            ("a no-op graph by io_binding", statistics.median(r["io_binding"] for r in rounds), 2.0),
            ("a no-op graph by run", statistics.median(r["run"] for r in rounds), 4.0),
            ("each further tiny layer, 16x16", step, 0.3),
            (f"binding a graph of {nodes} nodes to a new size", miss, 10000.0),
            ("a run of a no-op graph at another size, which is bound", hit, 50.0),
        )
    ]
    return table(["call", "us", "goal", ""], rows)


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__).parse_args()
    page.publish(__package__, asked, "Calls", ["ingot"], overhead())


if __name__ == "__main__":
    main()

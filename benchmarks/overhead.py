"""What a call and a step cost when there is next to nothing to compute: `python -m benchmarks.overhead`."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.ablation import seconds_of
from benchmarks.goals import verdict
from benchmarks.report import table
from benchmarks.workloads import WORKLOADS
from ingot import InferenceSession

ROUNDS = 15
FEW, MANY = 1, 21  # tiny layers


def calls(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A workload's `run`, and its run on bound buffers."""
    module, inputs = WORKLOADS[name].build()
    session = InferenceSession(torch.export.export(module, inputs), threads=2)
    feeds = {session.get_inputs()[0].name: inputs[0].numpy()}
    binding = session.io_binding()
    binding.bind_input(session.get_inputs()[0].name, inputs[0].numpy())
    binding.bind_output(session.get_outputs()[0].name)
    return lambda: session.run(None, feeds), binding.run


def overhead() -> str:
    """The table, in microseconds; rounds are interleaved."""
    measured = {"run": calls("noop")[0], "io_binding": calls("noop")[1]}
    measured |= {str(count): calls(f"steps {count}")[1] for count in (FEW, MANY)}
    rounds = [{name: 1e6 * seconds_of(call) for name, call in measured.items()} for _ in range(ROUNDS)]
    step = statistics.median((r[str(MANY)] - r[str(FEW)]) / (MANY - FEW) for r in rounds)
    rows = [
        [what, f"{value:.2f}", f"{goal:.1f}", verdict(value <= goal)]
        for what, value, goal in (
            ("a no-op graph by io_binding", statistics.median(r["io_binding"] for r in rounds), 2.0),
            ("a no-op graph by run", statistics.median(r["run"] for r in rounds), 4.0),
            ("each further tiny layer, 16x16", step, 0.3),
        )
    ]
    return table(["call", "us", "goal", ""], rows)


if __name__ == "__main__":
    print(overhead())

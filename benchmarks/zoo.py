"""`make bench-zoo`: the networks of `tests/zoo` that take more than a millisecond, beside the other engines; writes
benchmarks/zoo.md. Takes the options of benchmarks.side_by_side.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from pathlib import Path

import torch
from architecture import Architecture
from test_zoo import ZOO
from torch import nn
from torch.utils._pytree import tree_leaves
from ways import inputs_of

from benchmarks import report, side_by_side
from benchmarks.engines import version
from benchmarks.workloads import Made, Workload

LEAST_SECONDS = 1e-3
_ABOUT = """The networks of `tests/zoo` that take Ingot more than a millisecond, at the first of the sizes that they are
tested with: medians in microseconds of one run through the engine's Python interface, each engine in a process of its
own, rounds interleaved, the others stopped meanwhile. The first tensor of each network's results is compared."""


class First(nn.Module):
    """A network that takes its inputs by position and gives the first tensor of its results."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        results = tree_leaves(self.module(**dict(zip(self.names, inputs, strict=True))))
        return next(result for result in results if isinstance(result, torch.Tensor))


def _workload(row: Architecture) -> Workload:
    def make() -> Made:
        feeds = inputs_of(row, 0)
        return First(row.build(), list(feeds)), tuple(feeds.values())

    return Workload(f"zoo {row.name}", make)


@functools.cache
def workloads() -> dict[str, Workload]:
    """Every network of the zoo, by `zoo` and its name."""
    return {workload.name: workload for workload in map(_workload, ZOO)}


def main() -> None:
    """Measures Ingot alone first, to know which networks are long enough."""
    asked = side_by_side.options().parse_args()
    engines = asked.engines.split(",")
    names = [name for name in workloads() if re.search(asked.only, name)]
    alone = side_by_side.measure(names, ["ingot"], 1, asked.threads)
    names = [name for name in names if LEAST_SECONDS <= alone[name]["ingot"].median < float("inf")]
    results = side_by_side.measure(names, engines, asked.rounds, asked.threads)
    where = f"{report.machine()}. {', '.join(sorted({version(engine) for engine in engines}))}. "
    where += f"{time.strftime('%Y-%m-%d')}, {asked.rounds} rounds, {asked.threads} threads for every engine."
    text = f"# The zoo\n\n{where}\n\n{_ABOUT}\n\n{report.side_by_side(results, engines)}\n"
    if asked.only:
        sys.stdout.write(text)
    else:
        (Path(__file__).parent / "zoo.md").write_text(text)


if __name__ == "__main__":
    main()

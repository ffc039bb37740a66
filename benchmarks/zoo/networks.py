"""The networks of `tests/zoo` as workloads."""

from __future__ import annotations

import functools

import torch
from architecture import Architecture
from test_zoo import ZOO
from torch import nn
from torch.utils._pytree import tree_leaves
from ways import inputs_of

from benchmarks.models.workloads import Built, Workload


class First(nn.Module):
    """A network that takes its inputs by position and gives the first tensor of its results."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        results = tree_leaves(self.module(**dict(zip(self.names, inputs, strict=True))))
        return next(result for result in results if isinstance(result, torch.Tensor))


def _workload(row: Architecture) -> Workload:
    def make() -> Built:
        feeds = inputs_of(row, 0)
        return First(row.build(), list(feeds)), tuple(feeds.values())

    return Workload(f"zoo {row.name}", make)


@functools.cache
def workloads() -> dict[str, Workload]:
    """Every network of the zoo, by `zoo` and its name."""
    return {workload.name: workload for workload in map(_workload, ZOO)}

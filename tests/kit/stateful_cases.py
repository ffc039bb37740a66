"""Programs that keep states: what each is fed in several runs, and what it gives, by numpy or torch.

Each state is updated in another way; see the names.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ingot.ir.graph import OPS, Graph
from ingot.ir.text import parse
from ingot.load import load_model

Arrays = dict[str, np.ndarray]

RUNS = 3
_THIRD = np.float32(1 / 3)


@dataclass(frozen=True)
class Case:
    """One program. step: the outputs of a run of its feeds, from the states as it finds them, which it changes.

    is_whole: whether native kernels compute all of it, so that it can be emitted as C.
    """

    graph: Graph
    states: Mapping[str, Any]  # what they begin with
    step: Callable[[dict[str, Any], Arrays], list[np.ndarray]]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"x": (2, 3)})
    is_whole: bool = True


def _case(source: str, states: Mapping[str, np.ndarray], step: Any, **facts: Any) -> Case:
    """The case of a text; states that it marks as `given` begin with their data."""
    given = {name: data for name, data in states.items() if re.search(rf"state {name}: .* = given", source)}
    return Case(parse(f"graph g\n{source}", given), states, step, **facts)


def _zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def _sum(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    states["s"] = states["s"] + feeds["x"]
    return [states["s"]]


def _previous(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    before, states["s"] = np.abs(states["s"]), feeds["x"]
    return [before]


def _kept(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    return [feeds["x"] * states["s"]]


def _exchanged(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    y = feeds["x"] + states["a"]
    states["a"], states["b"] = states["b"], y
    return [y]


def _counted(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    states["n"] = states["n"] + 1
    return [feeds["x"] * np.float32(states["n"])]


def _fixed(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    y = feeds["x"] + states["s"]
    states["s"] = np.full((2, 3), 2, np.float32)
    return [y]


def _coupled(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    """Pairwise coupling of equal votes for three classes is a third each; the state is read before and behind it."""
    y = feeds["x"][0] * states["s"]
    states["s"] = states["s"] + _THIRD
    return [y]


def _drawn(states: Arrays, feeds: Arrays) -> list[np.ndarray]:
    drawn = OPS["draw_uniform"].function(states["d"], shape=(2, 3), stream=7)
    states["d"] = states["d"] + np.array([0, 1])
    return [feeds["x"] + drawn.astype(np.float32)]


CASES = {
    "a sum": _case(
        "input x: f32[2, 3]\nstate s: f32[2, 3] -> n\nn = add(s, x)\noutput y = n\n", {"s": _zeros(2, 3)}, _sum
    ),
    "a sum that begins with data": _case(
        "input x: f32[2, 3]\nstate s: f32[2, 3] = given -> n\nn = add(s, x)\noutput y = n\n",
        {"s": np.arange(6, dtype=np.float32).reshape(2, 3)}, _sum,
    ),
    "the input of the run before": _case(
        "input x: f32[2, 3]\nstate s: f32[2, 3] -> x\ny = abs(s)\noutput y = y\n", {"s": _zeros(2, 3)}, _previous
    ),
    "unchanged": _case(
        "input x: f32[2, 3]\nstate s: f32[2, 3] = given -> s\ny = mul(x, s)\noutput y = y\n",
        {"s": np.full((2, 3), 3, np.float32)}, _kept,
    ),
    "two that change places": _case(
        "input x: f32[2, 3]\nstate a: f32[2, 3] -> b\nstate b: f32[2, 3] -> y\ny = add(x, a)\noutput y = y\n",
        {"a": _zeros(2, 3), "b": _zeros(2, 3)}, _exchanged,
    ),
    "a count of runs": _case(
        "input x: f32[2, 3]\nconstant one: i64[] = [1]\nstate n: i64[] = given -> m\nm = add(n, one)\n"
        "f = cast(m, dtype=@f32)\ny = mul(x, f)\noutput y = y\n",
        {"n": np.array(4)}, _counted,
    ),
    "a constant": _case(
        "input x: f32[2, 3]\nconstant c: f32[2, 3] = [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]\nstate s: f32[2, 3] -> c\n"
        "y = add(x, s)\noutput y = y\n",
        {"s": _zeros(2, 3)}, _fixed,
    ),
    "random numbers": _case(
        "input x: f32[2, 3]\nconstant one: i64[2] = [0, 1]\nstate d: i64[2] = given -> n\nn = add(d, one)\n"
        "u = draw_uniform(d, shape=[2, 3], stream=7)\nf = cast(u, dtype=@f32)\ny = add(x, f)\noutput y = y\n",
        {"d": np.array([5, 0])}, _drawn,
    ),
    "beside an op without a kernel": _case(
        "input x: f32[1, 3]\ninput v: f32[1, 3, 3]\nstate s: f32[1, 3] -> n\nc = pairwise_coupling(v)\nn = add(s, c)\n"
        "y = mul(x, s)\noutput y = y\n",
        {"s": _zeros(1, 3)}, _coupled, shapes={"x": (1, 3), "v": (1, 3, 3)}, is_whole=False,
    ),
    "behind an op without a kernel": _case(
        "input x: f32[1, 3]\ninput v: f32[1, 3, 3]\nstate s: f32[1, 3] -> n\nw = abs(v)\n"
        "c = pairwise_coupling(w)\nn = add(s, c)\ny = mul(x, s)\noutput y = y\n",
        {"s": _zeros(1, 3)}, _coupled, shapes={"x": (1, 3), "v": (1, 3, 3)}, is_whole=False,
    ),
}  # fmt: skip


class _Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n.add_(x)
        return self.n * 1.0


class _Cache(nn.Module):
    """Rows that are written one after the other, as a language model's keys are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.full((1, 3, 2), 0.5))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(1, self.place, x)
        self.place.add_(1)
        return self.rows.cumsum(1)


def _torch_case(module: nn.Module, *shape: int) -> Case:
    graph = load_model(torch.export.export(module.eval(), (torch.ones(shape),))).graph
    assert isinstance(graph, Graph)
    name = graph.inputs[0]

    def step(states: dict[str, Any], feeds: Arrays) -> list[np.ndarray]:
        if not states:
            states["module"] = copy.deepcopy(module)
        with torch.no_grad():
            return [states["module"](torch.from_numpy(feeds[name])).numpy().copy()]

    return Case(graph, {}, step, shapes={name: shape})


@functools.cache
def torch_cases() -> dict[str, Case]:
    """The same of exported modules that write buffers."""
    return {"torch: a sum": _torch_case(_Count(), 2), "torch: a cache": _torch_case(_Cache(), 1, 1, 2)}


def feeds_of(case: Case) -> list[Arrays]:
    """What RUNS runs are fed: votes that are equal, and random numbers else."""
    rng = np.random.default_rng(3)
    return [
        {
            name: np.full(shape, 0.5, np.float32) if name == "v" else rng.standard_normal(shape).astype(np.float32)
            for name, shape in case.shapes.items()
        }
        for _ in range(RUNS)
    ]


def expected_of(case: Case) -> list[list[np.ndarray]]:
    """The outputs of the runs of `feeds_of`."""
    states = dict(case.states)
    return [case.step(states, feeds) for feeds in feeds_of(case)]

"""Ctrl-C at any instruction of what a trainer does: its states are those before the call or those after it.

`python tests/kit/training_interrupts.py` tries every one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ingot
from ingot.ir.graph import Graph
from ingot.ir.text import parse
from interrupts import interrupt, places

LINE = "graph line\ninput x: f32[4, 3]\nweight w: f32[3, 2]\ny = matmul(x, w): f32[4, 2]\noutput y = y"


def line() -> Graph:
    """A graph that is soon compiled."""
    return parse(LINE, {"w": np.ones((3, 2), np.float32)})


def normed() -> nn.Module:
    """A module whose statistics move, and that drops elements."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))


class Life:
    """A trainer after a step, and the next batch."""

    def __init__(self, source: Graph | nn.Module, accumulate: int, folder: Path):
        rng = np.random.default_rng(0)
        rows = 4 * accumulate
        self.batch = rng.standard_normal((rows, 3), np.float32), rng.integers(0, 2, rows)
        self.trainer = ingot.Trainer(
            source, example_inputs=self.batch, optimizer=ingot.AdamW(lr=0.1), accumulate=accumulate, threads=1
        )
        self.path, self.earlier = folder / "checkpoint", folder / "earlier"
        self.trainer.save(self.earlier)
        self.step()

    def step(self) -> None:
        self.trainer.step(*self.batch)

    def gradients(self) -> None:
        """The first call compiles, and what states hold moves in memory."""
        self.trainer.gradients(*self.batch)

    def apply(self) -> None:
        trainer, held = self.trainer, self.trainer.state_dict()
        trainer.apply({name: np.ones_like(held[name]) for name in trainer.parameters})

    def evaluate(self) -> None:
        """The first call compiles."""
        self.trainer.evaluate(*self.batch)

    def load(self) -> None:
        self.trainer.load(self.earlier)

    @property
    def state(self) -> bytes:
        """What a checkpoint holds."""
        self.trainer.save(self.path)
        return self.path.read_bytes()

    @state.setter
    def state(self, content: bytes) -> None:
        self.path.write_bytes(content)
        self.trainer.load(self.path)


# What is called, of which model; a call that is the first of its kind is one of a trainer of its own each time.
CALLS = [(call, normed, False) for call in ("step", "gradients", "apply", "evaluate", "load")]
CALLS += [(call, line, True) for call in ("gradients", "evaluate")]


def check(
    call: str, make: Callable[[], Graph | nn.Module], is_first: bool, accumulate: int, stride: int = 1
) -> Iterator[bool]:
    """Interrupts a call at every so manieth place: whether it was. Raises AssertionError for states of no step."""
    with tempfile.TemporaryDirectory() as name:
        life = Life(make(), accumulate, Path(name))
        before = life.state
        found = places(getattr(life, call))
        after = life.state
        follows = {}
        for state in {before, after}:
            life.state = state
            life.step()
            follows[state] = life.state
        if not is_first:
            life.state = before
            found = places(getattr(life, call))
        for place in found[::stride]:
            life = Life(make(), accumulate, Path(name)) if is_first else life
            life.state = before
            yield interrupt(getattr(life, call), place) is not None
            where = f"{call} {accumulate}: interrupted after {place[0].co_qualname} {place[1]}"
            state = life.state
            assert state in (before, after), where
            life.step()
            assert life.state == follows[state], f"{where}: the step that follows"


def main() -> int:
    for call, make, is_first in CALLS:
        for accumulate in (1, 2):
            struck = list(check(call, make, is_first, accumulate))
            print(f"{call} {make.__name__} {accumulate}: {len(struck)} places, {sum(struck)} interrupts")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Ctrl-C at any instruction in each stage of a session's life.

`python tests/kit/session_interrupts.py` tries every one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import ingot
from interrupts import Place, interrupt, places
from schedules import bits, expected, feed, graph


class Life:
    """A session at the beginning of a stage, and what happens in it."""

    def __init__(self, model: str):
        self.model = model
        self.session = ingot.InferenceSession(graph(model), threads=1)
        self.binding = self.session.io_binding()

    def right(self, batch: int) -> bool:
        """Whether a run gives the bits of a session of its own."""
        return bits(self.session.run(None, feed(self.model, batch, 0))) == expected(self.model, batch, 0)

    def load(self) -> None:
        """Loads, compiles and runs a session of its own."""
        Life(self.model).right(3)

    def compile(self) -> None:
        """Compiles for two batches and runs; the second needs a larger arena."""
        self.session.run(None, feed(self.model, 3, 0))
        self.session.run(None, feed(self.model, 64, 0))

    def run(self) -> None:
        """Runs what is compiled already, the first time over an arena that has moved."""
        self.session.run(None, feed(self.model, 3, 0))
        self.session.run(None, feed(self.model, 3, 0))

    def bind(self) -> None:
        """Binds arrays and runs over them."""
        self.binding.bind_input("x", feed(self.model, 3, 0)["x"])
        for output in self.session.get_outputs():
            self.binding.bind_output(output.name)
        self.binding.run()
        self.binding.run()

    def bound_right(self) -> bool:
        """Whether a binding that was interrupted can be bound and run."""
        self.bind()
        return bits([each.numpy() for each in self.binding.get_outputs()]) == expected(self.model, 3, 0)


STAGES = {
    "load": ("whole", "cut"),
    "compile": ("whole", "cut"),
    "run": ("whole", "cut"),
    "bind": ("whole",),
}


def attempts(stage: str, model: str) -> tuple[Callable[[], tuple[Life, Callable[[], None]]], list[Place]]:
    """What makes a session for a stage, with the stage; and the places where it may be interrupted."""

    def begin() -> tuple[Life, Callable[[], None]]:
        life = Life(model)
        if stage in ("run", "bind"):
            life.compile()
        return life, getattr(life, stage)

    begin()[1]()  # what is imported or cached once is so before
    return begin, places(begin()[1])


def check(
    stage: str, model: str, stride: int = 1, start: int = 0, kind: type[BaseException] = KeyboardInterrupt
) -> Iterator[bool]:
    """Interrupts a stage at every so manieth place: whether it was. Raises AssertionError for what is left behind."""
    begin, found = attempts(stage, model)
    other = Life(model)
    other.compile()
    for place in found[start::stride]:
        life, work = begin()
        where = f"{stage} {model}: interrupted after {place[0].co_qualname} {place[1]}"
        error = interrupt(work, place, kind)
        yield error is not None
        assert life.right(3) and life.right(64) and life.right(3), where
        assert model != "whole" or life.bound_right(), where
        assert other.right(3) and other.right(64), f"{where}: another session"


def main() -> int:
    for stage, models in STAGES.items():
        for model in models:
            struck = list(check(stage, model))
            print(f"{stage} {model}: {len(struck)} places, {sum(struck)} interrupts")
    return 0


if __name__ == "__main__":
    sys.exit(main())

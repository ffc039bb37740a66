"""Contracts: what kernels promise, as YAML beside this file, and the gate that tries to falsify it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot.contracts import attention, conv, norms, product  # noqa: F401  which fill the table of checks
from ingot.contracts.check import CHECKS, SUBJECTS, Falsified
from ingot.errors import InputError
from ingot.support.machine import threads

FOLDER = Path(__file__).parent
STATUSES = ("active", "proposed")  # of an invariant: held by the gate, or not yet
_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Invariant:
    """A property that always holds, in words, and the name of the check that tries to falsify it."""

    id: str
    says: str
    check: str
    status: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A shape, and the most that its time may be as a multiple of numpy's."""

    shape: tuple[int, ...]
    target: float


@dataclass(frozen=True, slots=True)
class Contract:
    """A file of contracts. shapes and tolerance: what checks try, and the rounding that they allow."""

    id: str
    version: str
    author: str
    title: str
    references: tuple[str, ...]
    invariants: tuple[Invariant, ...]
    bounds: tuple[Bound, ...]
    shapes: tuple[tuple[int, ...], ...]
    tolerance: float


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the gate's table.

    found: "holds" or "falsified" of an invariant, "met" or "missed" of a bound, or "not run". detail: by what, or the
    figure.
    """

    contract: str
    version: str
    id: str
    says: str
    status: str
    found: str
    detail: str


def names() -> list[str]:
    """The contracts that there are, in order of their names."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Contract:
    """A contract by its name. Raises InputError for a name that there is not."""
    import yaml

    if name not in names():
        raise InputError(f"contract: unknown name, got {name!r}, expected one of {', '.join(names())}")
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return Contract(
        text["id"], text["version"], text["author"], text["title"], tuple(text["references"]),
        tuple(Invariant(**row) for row in text["invariants"]),
        tuple(Bound(_shape(row), row["ratio_to_numpy"]) for row in text["bounds"]),
        tuple(tuple(shape) for shape in text["properties"]["shapes"]), text["properties"]["tolerance"],
    )  # fmt: skip


def _shape(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(row["shape"]) if "shape" in row else (row["k"], row["n"])


def gate(contract: Contract, *, shapes: int | None = None, seed: int = 0, timed: bool = False) -> list[Finding]:
    """Tries to falsify each active invariant on the contract's shapes.

    shapes: how many of them, from the first on; None for all. timed: measures the bounds, too, which takes seconds.
    """
    found = []
    for row in contract.invariants:
        outcome, detail = "not run", ""
        if row.status == "active":
            outcome, detail = _tried(contract, row, contract.shapes[:shapes], seed)
        found.append(_finding(contract, row.id, row.says, row.status, outcome, detail))
    for number, bound in enumerate(contract.bounds, 1):
        says = f"at {'x'.join(map(str, bound.shape))}, at most {bound.target:.2f} of numpy's time"
        outcome, detail = "not run", ""
        if timed:
            ratio = _ratio(contract, bound, seed)
            outcome, detail = "met" if ratio <= bound.target else "missed", f"{ratio:.2f}"
        found.append(_finding(contract, f"BOUND-{contract.id.upper()}-{number:03}", says, "target", outcome, detail))
    return found


def _finding(contract: Contract, *fields: str) -> Finding:
    return Finding(contract.id, contract.version, *fields)


def _tried(contract: Contract, row: Invariant, shapes: Sequence[tuple[int, ...]], seed: int) -> tuple[str, str]:
    for shape in shapes:
        try:
            CHECKS[row.check](contract.id, shape, contract.tolerance, np.random.default_rng(seed))
        except Falsified as error:
            return "falsified", f"at {'x'.join(map(str, shape))}: {error}"
    return "holds", f"{len(shapes)} shapes"


def _ratio(contract: Contract, bound: Bound, seed: int) -> float:
    """The median time of a run on all threads over that of numpy's formula, in interleaved rounds."""
    subject = SUBJECTS[contract.id]
    feeds = subject.feeds(bound.shape, np.random.default_rng(seed))
    session = subject.session(bound.shape, feeds, threads())
    given = {name: feeds[name] for name in session.graph.inputs}
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for spent, run in zip(times, (lambda: session.run(None, given), lambda: subject.formula(feeds)), strict=True):
            begin = time.perf_counter()
            run()
            spent.append(time.perf_counter() - begin)
    return float(np.median(times[0]) / np.median(times[1]))

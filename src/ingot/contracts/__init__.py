"""Contracts: invariants and bounds of kernels, in YAML files in this folder, and the gate that tests them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot.contracts import attention, conv, norms, product  # noqa: F401  fills the table of checks
from ingot.contracts.check import CHECKS, SUBJECTS, Falsified
from ingot.errors import InputError
from ingot.support.machine import threads

FOLDER = Path(__file__).parent
STATUSES = ("active", "proposed")  # of an invariant: tested by the gate, or not yet
_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Invariant:
    """A property that always holds. statement: the property in words; check: the name of the check that tests it."""

    id: str
    statement: str
    check: str
    status: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A performance bound. target: the largest allowed time at the shape, as a multiple of numpy's time."""

    shape: tuple[int, ...]
    target: float


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract file. shapes: tested by the checks; tolerance: the rounding error that they allow."""

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
    """A row of the gate's result.

    found: "holds" or "falsified" for an invariant, "met" or "missed" for a bound, or "not run". detail: the failure, or
    the measured ratio.
    """

    contract: str
    version: str
    id: str
    statement: str
    status: str
    found: str
    detail: str


def names() -> list[str]:
    """Return the names of all contracts, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Contract:
    """Load a contract by its name. Raises InputError for an unknown name."""
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
    """Test each active invariant on the contract's shapes; return the findings.

    shapes: how many of the shapes to test, from the first on; None for all. timed: also measure the bounds, which takes
    seconds.
    """
    found = []
    for row in contract.invariants:
        outcome, detail = "not run", ""
        if row.status == "active":
            outcome, detail = _tried(contract, row, contract.shapes[:shapes], seed)
        found.append(_finding(contract, row.id, row.statement, row.status, outcome, detail))
    for number, bound in enumerate(contract.bounds, 1):
        statement = f"at {'x'.join(map(str, bound.shape))}, at most {bound.target:.2f} of numpy's time"
        outcome, detail = "not run", ""
        if timed:
            ratio = _ratio(contract, bound, seed)
            outcome, detail = "met" if ratio <= bound.target else "missed", f"{ratio:.2f}"
        found.append(
            _finding(contract, f"BOUND-{contract.id.upper()}-{number:03}", statement, "target", outcome, detail)
        )
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
    """Return the median time of a run on all threads divided by that of numpy's formula, in interleaved rounds."""
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

"""The result of a comparison: a row for each value, and what is wrong first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ingot.inspect.comparison.heat import HeatMap
from ingot.inspect.comparison.measure import Error
from ingot.ir.graph import Source
from ingot.ir.node import shown_sources
from ingot.support.node_data import node_data

_SHOWN = 8  # names in a line of text


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """A value of both sides.

    name, op, kernel, sources: of its node on side A. replaced: the values of the model that A computes only inside of
    this one. dtype, shape: on side A. problem: "" or one of "dtype", "shape", "layout", "graph", "passes", "precision",
    "numbers", "accumulated"; detail: what is wrong. tolerance: of the local error, relative to max(1, |expected|).
    accumulated: the error of a whole run. local: the error of this node on the values of side B, None where A cannot
    use these. noise, cosine, divergence: of the local error: its norm relative to the value's, the cosine of the angle,
    and the mean Kullback-Leibler divergence of the softmax over the last axis, in nats. kurtosis: of the elements on
    side B. These are None for integers. heat: where the local (else the accumulated) errors are, of the values with the
    largest errors.
    """

    name: str
    op: str
    kernel: str
    sources: tuple[Source, ...]
    replaced: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    problem: str
    detail: str
    tolerance: float
    accumulated: Error | None
    local: Error | None
    noise: float | None = None
    cosine: float | None = None
    divergence: float | None = None
    kurtosis: float | None = None
    heat: HeatMap | None = None

    @property
    def error(self) -> Error | None:
        """The local error, else the accumulated one."""
        return self.local or self.accumulated

    @property
    def ratio(self) -> float:
        """The largest error relative to the tolerance."""
        return 0.0 if self.error is None else self.error.maximum / max(self.tolerance, 1e-300)

    @property
    def rank(self) -> float:
        """The rank of the value by its error: the ratio, or infinity with a problem."""
        return math.inf if self.problem else self.ratio

    @property
    def title(self) -> str:
        """The name with op, kernel and sources."""
        return f"{self.op} {self.name!r} by {self.kernel}{shown_sources(self.sources, self.name)}"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The first NaN, or infinity that the other side lacks: the value, the index, and what computed it."""

    name: str
    kind: str
    at: tuple[int, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ways to run a model on the same inputs.

    values: those that both sides show, in A's order of execution. first: the first of them with a problem. nonfinite:
    the first NaN or infinity. changed: what watching changed: outputs of A or B whose bits differ between two plain
    runs and the watched run. keep_wider: with `against`, the layers whose rounding causes half of the error energy.
    file_bytes: of captured values on disk.
    """

    model: str
    a: str
    b: str
    values: tuple[ComparedValue, ...]
    first: ComparedValue | None
    nonfinite: NonFinite | None
    changed: tuple[str, ...]
    keep_wider: tuple[str, ...] = ()
    is_precision: bool = False
    file_bytes: int = 0

    @property
    def agrees(self) -> bool:
        """True if every value is within its tolerance, and watching changed no bit."""
        return self.first is None and not self.changed

    def value(self, name: str) -> ComparedValue:
        """Return the row of a value. Raises KeyError for a value that only one side shows."""
        for row in self.values:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; sources as in `list-nodes`."""
        document = asdict(self)
        for row, value in zip(document["values"], self.values, strict=True):
            row["sources"] = plain_sources(value.sources)
        document["first"] = None if self.first is None else self.first.name
        return _without_infinity(document | {"agrees": self.agrees})

    def node_data(self) -> dict[str, Any]:
        """Return a document of Model Explorer: the error of each node, see `node_data`.

        It is the noise if the values are ranked, else the largest error relative to the tolerance.
        """
        ranks = [(row.noise or 0.0) if self.is_precision else row.ratio for row in self.values]
        return node_data(
            (row.name, [source.name for source in row.sources if source.name], rank)
            for row, rank in zip(self.values, ranks, strict=True)
        )

    def __str__(self) -> str:
        return "\n".join([f"{self.model}: {self.a} against {self.b}", *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        yield f"{len(self.values)} values compared"
        if self.nonfinite is not None:
            found = self.nonfinite
            yield f"first {found.kind}: {found.name!r} at {list(found.at)}, {found.origin}"
        if self.first is not None:
            yield from _first_lines(self.first)
        elif self.values and not self.is_precision:
            worst = max(self.values, key=lambda row: row.rank)
            yield "every value is within its tolerance"
            yield f"nearest to it: {worst.title}, error {_of(worst.error):.3g}, tolerance {worst.tolerance:.3g}"
        if self.keep_wider:
            yield f"half of the error comes from, keep wider: {_listed(self.keep_wider)}"
        if self.changed:
            yield f"bits differ between two plain runs and the watched run: {_listed(self.changed)}"
        else:
            yield "two plain runs and the watched run give the same bits"
        if self.file_bytes:
            yield f"{self.file_bytes:,} bytes of captured values were on disk"


def plain_sources(sources: Iterable[Source]) -> list[dict[str, str]]:
    """Return sources as plain data."""
    return [{"name": s.name, "op": s.op, "domain": s.domain, "module": s.module} for s in sources]


def _first_lines(row: ComparedValue) -> Iterator[str]:
    yield f"first problem: {row.title}"
    yield f"  {row.problem}: {row.detail}" if row.detail else f"  {row.problem}"
    if row.replaced:
        yield f"  replaces {_listed(row.replaced)}"
    for label, error in (("local", row.local), ("accumulated", row.accumulated)):
        if error is not None:
            yield f"  {label} error: {error_text(error)}"
    yield f"  tolerance {row.tolerance:.3g} of {row.dtype}{list(row.shape)}"
    if row.heat is not None and math.prod(row.shape) > 1:
        yield from (f"  {line}" for line in row.heat.lines())


def error_text(error: Error) -> str:
    """Return an error in one line."""
    ulp = "" if error.ulp is None else f", {error.ulp:.3g} ulp"
    numbers = f"max {error.maximum:.3g}, mean {error.mean:.3g}, median {error.median:.3g}, 99.9 % {error.quantile:.3g}"
    where = f"at {list(error.at)}: got {error.got:.7g}, expected {error.expected:.7g}"
    return f"{numbers}{ulp}; {where}; {error.different:,} of {error.size:,} elements differ"


def _of(error: Error | None) -> float:
    return 0.0 if error is None else error.maximum


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _without_infinity(value: Any) -> Any:
    """Return plain data in which numbers that JSON lacks are text."""
    if isinstance(value, dict):
        return {key: _without_infinity(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinity(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

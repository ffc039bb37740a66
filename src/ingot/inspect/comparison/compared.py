"""Compare the values of two sides: types first, then numbers, on the whole run and node by node."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ingot.inspect.comparison.bounds import Bounds, is_float, replacing, tolerance_of
from ingot.inspect.comparison.captured import Captured
from ingot.inspect.comparison.heat import HeatMap
from ingot.inspect.comparison.measure import Error, cosine, divergence, kurtosis, measure, noise, permuted_axes
from ingot.inspect.comparison.origin import first_nonfinite, is_worse
from ingot.inspect.comparison.result import ComparedValue, Comparison
from ingot.inspect.comparison.sides import Arrays, Reference, Side
from ingot.inspect.comparison.weights import differing_weights
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import Graph, TensorType

_HALF = 0.5  # of the energy of all local errors
_MOST_HEAT = 8  # values whose heat map is kept

_Quality = tuple[float | None, float | None, float | None, float | None]


@dataclass(slots=True)
class _Measured:
    """The measurements of one value. problem, detail: as in `ComparedValue`, from its type."""

    dtype: str
    shape: tuple[int, ...]
    problem: str = ""
    detail: str = ""
    accumulated: Error | None = None
    local: Error | None = None
    quality: _Quality = (None, None, None, None)
    heat: HeatMap | None = None


@dataclass(slots=True)
class Compare:
    """The comparison of two sides over one model.

    loaded: the graph of B's model, which names the values. feeds: its inputs. own: A's graph as loaded, if it is
    another. is_precision: the sides differ by design; values are ranked, not judged.
    """

    model: str
    a: Side
    b: Side
    loaded: Graph
    feeds: Arrays
    own: Graph | None = None
    is_precision: bool = False
    _golden: Captured = field(default_factory=Captured)
    _found: dict[str, _Measured] = field(default_factory=dict)
    _rewritten: dict[str, Error] = field(default_factory=dict)
    _as_loaded: dict[str, Error] | None = None
    _nonfinite: list[str] = field(default_factory=list)

    def result(self) -> Comparison:
        """Run both sides and judge their values. Raises the errors of a run."""
        changed = self._capture() + self._accumulate()
        if self.a.can_replace:
            if self.a.graph is not self.loaded:
                self._check_passes()
            self.a.run_watched(self._localize)
        rows = self._judged([self._row(name) for name in self.a.makers if name in self._found])
        rows = _with_heat(rows, is_precision=self.is_precision)
        rows = self._with_weights(rows)
        first = next((row for row in rows if row.problem), None)
        bad = next(iter(self._nonfinite), None)
        return Comparison(
            self.model, self.a.title, self.b.title, tuple(rows), None if self.is_precision else first,
            None if bad is None else first_nonfinite(self.loaded, self.feeds, bad, self._golden),
            tuple(changed), _to_keep(rows) if self.is_precision else (), self.is_precision, self._golden.file_bytes,
        )  # fmt: skip

    # -- runs ---------------------------------------------------------------------------------------------------

    def _capture(self) -> list[str]:
        """Capture the values of B that A shows, too; return the outputs whose bits that changed."""
        wanted = self.a.makers.keys()

        def watch(arrays: Arrays) -> Arrays:
            for name, array in arrays.items():
                if name in wanted:
                    self._golden.add(name, array)
            return {}

        if isinstance(self.b, Reference):  # numpy has no threads whose order could change a bit
            self.b.run_watched(watch)
            return []
        plain = self.b.run(), self.b.run()
        return _changed("B", (*plain, self.b.run_watched(watch)))

    def _accumulate(self) -> list[str]:
        """Measure the errors of A's own run; return the outputs whose bits watching changed."""
        plain = self.a.run(), self.a.run()

        def watch(arrays: Arrays) -> Arrays:
            for name, array in arrays.items():
                if name in self._golden and name not in self._found:
                    self._found[name] = self._measured(name, array, self._golden[name])
            return {}

        return _changed("A", (*plain, self.a.run_watched(watch)))

    def _measured(self, name: str, array: Any, expected: Any) -> _Measured:
        """Return what is known of a value of A: first its type, then its numbers."""
        if not isinstance(array, np.ndarray) or not isinstance(expected, np.ndarray):
            is_wrong = type(array) is not type(expected)
            got, wanted = type(array).__name__, type(expected).__name__
            return _Measured(got, (), "dtype" if is_wrong else "", f"got {got}, expected {wanted}" if is_wrong else "")
        dtype = from_numpy(array.dtype)
        found = _Measured(dtype.name, array.shape)
        declared = self.loaded.values.get(name)
        if declared is not None and isinstance(declared.type, TensorType) and not self.is_precision:
            wanted_dtype = declared.type.dtype
            if dtype is not wanted_dtype and not (self.a.title.startswith("webgpu") or self.a.title == "float64"):
                return replace(found, problem="dtype", detail=f"got {dtype}, expected {wanted_dtype}")
        if array.shape != expected.shape:
            detail = f"got {list(array.shape)}, expected {list(expected.shape)}"
            return replace(found, problem="shape", detail=detail)
        if dtype.kind == "s":
            is_wrong = not np.array_equal(array, expected)
            return replace(found, problem="numbers" if is_wrong else "", detail="other strings" if is_wrong else "")
        found.accumulated = measure(array, expected)
        found.heat = HeatMap.of(array, expected) if array.size and found.accumulated.maximum else None
        if is_float(array) and is_worse(array, expected):
            self._nonfinite.append(name)
        return found

    def _check_passes(self) -> None:
        """Run the graph after the passes in float64, with B's values; note what differs, and capture its new values."""
        wanted = self.a.makers.keys()

        def watch(arrays: Arrays) -> Arrays:
            changed = {}
            for name, array in arrays.items():
                if name in self._golden:
                    expected = self._golden[name]
                    if isinstance(array, np.ndarray) and array.shape == getattr(expected, "shape", None):
                        if array.dtype.kind != "O":
                            self._rewritten[name] = measure(array, expected)
                        changed[name] = replacing(array, expected)
                elif name in wanted:
                    self._golden.add(name, array)
            return changed

        Reference(self.a.graph, self.feeds, float64=True).run_watched(watch)

    def _localize(self, arrays: Arrays) -> Arrays:
        """Measure values that A computes from B's values, and replace them by B's."""
        replaced = {}
        for name, array in arrays.items():
            if name not in self._golden:
                continue
            expected = self._golden[name]
            if name not in self._found:
                self._found[name] = self._measured(name, array, expected)
                self._found[name].accumulated = None
            found = self._found[name]
            if found.problem or not isinstance(array, np.ndarray) or array.dtype.kind == "O":
                continue
            if found.local is None:
                found.local = measure(array, expected)
                found.heat = HeatMap.of(array, expected) if array.size and found.local.maximum else None
                if is_float(array) and array.size:
                    found.quality = (
                        noise(array, expected), cosine(array, expected), divergence(array, expected),
                        kurtosis(expected),
                    )  # fmt: skip
            replaced[name] = replacing(array, expected)
        return replaced

    # -- judgement ----------------------------------------------------------------------------------------------

    def _row(self, name: str) -> ComparedValue:
        found, maker = self._found[name], self.a.makers[name]
        graph = self.loaded if name in self.loaded.values else self.a.graph
        region = covered(graph, name, self._found)
        ops = [node.op.name for each in (name, *region) if (node := graph.producer(each)) is not None]
        value = graph.values[name].type
        dtype = value.dtype if isinstance(value, TensorType) else None
        tolerance = 0.0 if dtype is None else max((tolerance_of(op, dtype) for op in ops), default=0.0)
        return ComparedValue(
            name, maker.op, maker.kernel, maker.sources, region, found.dtype, found.shape, found.problem, found.detail,
            tolerance, found.accumulated, found.local, *found.quality, found.heat,
        )  # fmt: skip

    def _judged(self, rows: list[ComparedValue]) -> list[ComparedValue]:
        """Return the rows with their problems; bounds are measured only if an error exceeds the ops' tolerance."""
        if self.is_precision:
            return rows
        own = [row.local if self.a.can_replace else row.accumulated for row in rows]
        if any(_exceeds(error, row.tolerance) for error, row in zip(own, rows, strict=True)):
            bounds = self._bounds(is_local=self.a.can_replace)
            rows = [self._bounded(row, error, bounds) for row, error in zip(rows, own, strict=True)]
        if not any(row.problem for row in rows) and any(_exceeds(row.accumulated, row.tolerance) for row in rows):
            bounds = self._bounds(is_local=False)
            rows = [self._accumulated(row, bounds) for row in rows]
        return rows

    def _bounds(self, *, is_local: bool) -> Bounds:
        """Measure bounds over the graph of the model, and for values that passes added, over the graph after them."""
        is_exact = self._is_exact
        bounds = Bounds.measured(self.loaded, self.feeds, self._golden, is_local=is_local, is_exact=is_exact)
        if added := [name for name in self._golden if name not in self.loaded.values]:
            more = Bounds.measured(self.a.graph, self.feeds, self._golden, is_local=is_local, is_exact=is_exact)
            bounds.undecided |= more.undecided.intersection(added)
            bounds.errors |= {name: more.errors[name] for name in added}
        return bounds

    def _bounded(self, row: ComparedValue, error: Error | None, bounds: Bounds) -> ComparedValue:
        if row.problem or error is None:
            return row
        is_decided = row.name not in bounds.undecided
        bound = bounds.errors[row.name] if row.tolerance else 0.0
        row = replace(row, tolerance=max(row.tolerance, bound))
        if not _exceeds(error, row.tolerance) or not is_decided:
            return row
        if _exceeds(self._loaded_error(row.name), row.tolerance):
            return replace(row, problem="graph", detail="the graph as loaded computes other numbers in float64")
        rewritten = self._rewritten.get(row.name)
        if _exceeds(rewritten, row.tolerance):
            more = f" and the rounding to {self.a.rounding}" if self.a.rounding else ""
            problem = "precision" if self.a.rounding else "passes"
            detail = f"the graph after the passes{more} computes other numbers in float64"
            return replace(row, problem=problem, detail=detail)
        axes = None
        if self.a.can_replace and (array := self._again(row.name)) is not None:
            axes = permuted_axes(array, np.asarray(self._golden[row.name]), row.tolerance)
        if axes is not None:
            return replace(row, problem="layout", detail=f"the expected elements with their axes in the order {axes}")
        return replace(row, problem="numbers", detail="")

    def _with_weights(self, rows: list[ComparedValue]) -> list[ComparedValue]:
        """Return the rows, the first of which with another graph names the weights that differ."""
        index = next((i for i, row in enumerate(rows) if row.problem), None)
        if index is None or rows[index].problem != "graph" or self.own is None or self.own is self.loaded:
            return rows
        row = rows[index]
        if text := differing_weights(self.own, self.loaded, (row.name, *row.replaced)):
            rows[index] = replace(row, detail=f"{row.detail}; {text}")
        return rows

    @property
    def _is_exact(self) -> bool:
        """Whether side B is the loaded graph, run in float64."""
        return self.b.title == "float64" and self.b.graph is self.loaded

    def _loaded_error(self, name: str) -> Error | None:
        """Return the error of A's graph as loaded, in float64 on B's values; None where it has none by construction."""
        own = self.loaded if self.own is None else self.own
        if self.a.is_foreign or (self._is_exact and own is self.loaded):
            return None
        if self._as_loaded is None:
            errors = self._as_loaded = {}

            def watch(arrays: Arrays) -> Arrays:
                found = {each: array for each, array in arrays.items() if each in self._golden}
                for each, array in found.items():
                    expected = self._golden[each]
                    is_alike = isinstance(array, np.ndarray) and array.shape == getattr(expected, "shape", None)
                    if is_alike and array.dtype.kind != "O":
                        errors[each] = measure(array, expected)
                return {each: replacing(array, self._golden[each]) for each, array in found.items()}

            Reference(own, self.feeds, float64=True).run_watched(watch)
        return self._as_loaded.get(name)

    def _accumulated(self, row: ComparedValue, bounds: Bounds) -> ComparedValue:
        bound = max(row.tolerance, bounds.errors[row.name]) if row.tolerance else 0.0
        if row.problem or row.name in bounds.undecided or not _exceeds(row.accumulated, bound):
            return row
        detail = f"no node alone exceeds its tolerance; the errors before it explain {bound:.3g}"
        return replace(row, problem="accumulated", detail=detail)

    def _again(self, name: str) -> np.ndarray | None:
        """Return the value of A computed from B's values."""
        found: list[np.ndarray] = []

        def watch(arrays: Arrays) -> Arrays:
            if name in arrays and not found:
                found.append(np.array(arrays[name], order="C"))
            return {each: replacing(a, self._golden[each]) for each, a in arrays.items() if each in self._golden}

        self.a.run_watched(watch)
        return found[0] if found else None


def covered(graph: Graph, name: str, shown: Container[str]) -> tuple[str, ...]:
    """Return the values before `name` that are computed on the way to it alone from values that are shown."""
    found, waiting = dict[str, None](), [name]
    for each in waiting:
        node = graph.producer(each)
        for operand in () if node is None else node.operands:
            if operand is None or operand in shown or operand in found or graph.producer(operand) is None:
                continue
            found[operand] = None
            waiting.append(operand)
    return tuple(reversed(found))


def _exceeds(error: Error | None, tolerance: float) -> bool:
    return error is not None and not error.maximum <= tolerance


def _changed(side: str, runs: tuple[Arrays, ...]) -> list[str]:
    """Return the outputs that do not have the same bits in all runs."""
    first, *others = runs
    return [
        f"{side}: {name}"
        for name, array in first.items()
        if any(not _has_same_bits(array, other[name]) for other in others)
    ]


def _has_same_bits(a: Any, b: Any) -> bool:
    if not isinstance(a, np.ndarray) or a.dtype.kind == "O":
        return True
    return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _with_heat(rows: list[ComparedValue], *, is_precision: bool) -> list[ComparedValue]:
    """Return the rows with the heat maps of the first problem and of the largest errors alone."""
    ranked = sorted(rows, key=lambda row: -((row.noise or 0.0) if is_precision else row.rank))
    kept = {row.name for row in ranked[:_MOST_HEAT]} | {row.name for row in [r for r in rows if r.problem][:1]}
    return [row if row.name in kept else replace(row, heat=None) for row in rows]


def _to_keep(rows: list[ComparedValue]) -> tuple[str, ...]:
    """Return the values with the largest local noise that make up half of the energy of all local errors."""
    ranked = sorted((row for row in rows if row.noise), key=lambda row: -(row.noise or 0))
    total, sum_, found = sum((row.noise or 0) ** 2 for row in ranked), 0.0, []
    for row in ranked:
        if sum_ >= _HALF * total:
            break
        sum_ += (row.noise or 0) ** 2
        found.append(row.name)
    return tuple(found)

"""Tolerances of values: the tolerance of an op, and how far the tolerances of several ops move a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.inspect.comparison.captured import Captured
from ingot.inspect.comparison.measure import relative_errors
from ingot.ir.dtype import DType, f32, from_numpy
from ingot.ir.graph import Graph, Node
from ingot.ir.op import OPS
from ingot.run.interpret import interpret

PAIRS = 2  # of runs: with errors of random sign, and with the opposite signs; the worst run counts
WORST = 6.0  # how much worse errors may combine than they did in the trials
ROUNDING = 1e-5  # added to every bound that trials give
HALF_ULP = 2.0**-24  # relative error of an f32 operand

# Ops that add no error of their own: their result is an operand's element, or decided by comparing elements.
ERROR_FREE = {
    "reshape", "permute", "slice", "concat", "expand", "pad", "trilu", "gather", "gather_elements", "topk", "where",
    "neg", "abs", "relu", "sign", "floor", "ceil", "round", "clip", "maximum", "minimum", "reduce_max", "reduce_min",
    "max_pool", "max_pool_indices", "argmax", "argmin", "iota", "dims", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "isnan", "isinf", "logical_not", "logical_and", "logical_or", "logical_xor",
}  # fmt: skip


def tolerance_of(op: str, dtype: DType) -> float:
    """Return an op's tolerance in a dtype, relative to max(1, |expected|); 0 for integers.

    It covers the rounding of a result to its dtype, which ops without an error of their own have, too.
    """
    return 0.0 if dtype.kind != "f" else OPS[op].tolerance.get(dtype, 2.0**-7)


def perturbed(node: Node, array: Any, rng: np.random.Generator, sign: int = 1) -> np.ndarray | None:
    """Return a float result with an error of the op's tolerance, of random sign; None for a result without error.

    sign: 1, or -1 for the opposite signs.
    """
    if node.op.name in ERROR_FREE or not isinstance(array, np.ndarray) or not is_float(array):
        return None
    return _moved(array, node.op.tolerance[f32] * np.maximum(1, np.abs(np.nan_to_num(array))), rng, sign)


def _rounded(array: Any, rng: np.random.Generator, sign: int) -> Any:
    """Return a float array with an error of rounding to f32; another value as it is."""
    if not isinstance(array, np.ndarray) or not is_float(array):
        return array
    return _moved(array, HALF_ULP * np.abs(np.nan_to_num(array)), rng, sign)


def _moved(array: np.ndarray, size: np.ndarray, rng: np.random.Generator, sign: int) -> np.ndarray:
    signs = sign * rng.choice((-1.0, 1.0), array.shape)
    return np.asarray(array + np.where(np.isfinite(array), signs * size, 0).astype(array.dtype))


def is_float(array: np.ndarray) -> bool:
    """Return whether an array has elements of a float dtype of any width."""
    return from_numpy(array.dtype).kind == "f"


@dataclass(slots=True)
class Bounds:
    """Bounds of the errors of values against float64, if every node of a graph errs by its op's tolerance.

    errors: relative to max(1, |expected|), by name. undecided: values of integers that such errors change.
    """

    errors: dict[str, float] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)

    @staticmethod
    def measured(
        graph: Graph, feeds: Mapping[str, Any], expected: Mapping[str, Any], *, is_local: bool, is_exact: bool
    ) -> Bounds:
        """Measure with runs of the float64 reference, in which every node has an error.

        expected: the values to bound. is_local: nodes that read one of them read its expected value, rounded to f32, so
        that only the errors since the last of them count. is_exact: they are the values of such a run without errors;
        otherwise one more run computes these, since what another project computes may be no such value.

        Raises the errors of `interpret`.
        """
        bounds = Bounds(dict.fromkeys(expected, ROUNDING))
        nodes = {name: node for node in graph.nodes for name in node.outputs}
        exact: Mapping[str, Any] = expected
        if not is_exact:
            exact = unmoved = Captured()

            def keep(name: str, array: Any) -> Any:
                if name not in expected or name not in nodes:
                    return None
                unmoved.add(name, array)
                return replacing(array, expected[name]) if is_local else None

            interpret(graph, feeds, float64=True, watch=keep)
        for trial in range(2 * PAIRS):
            rng, sign = np.random.default_rng(trial // 2), 1 - 2 * (trial % 2)

            def watch(name: str, array: Any, rng: np.random.Generator = rng, sign: int = sign) -> Any:
                if name not in nodes:
                    return None
                moved = perturbed(nodes[name], array, rng, sign)
                moved = array if moved is None else moved
                if name not in expected:
                    return moved
                bounds._note(name, moved, exact[name])
                return _rounded(replacing(moved, expected[name]), rng, sign) if is_local else moved

            interpret(graph, feeds, float64=True, watch=watch)
        return bounds

    def _note(self, name: str, noisy: Any, exact: Any) -> None:
        """Include a value of a trial."""
        if not isinstance(noisy, np.ndarray) or noisy.shape != np.shape(exact):
            return
        if not is_float(noisy):
            if not np.array_equal(noisy, exact):
                self.undecided.add(name)
            return
        error = relative_errors(noisy, exact).max(initial=0)
        self.errors[name] = max(self.errors[name], ROUNDING + WORST * float(error))


def replacing(array: Any, expected: Any) -> Any:
    """Return the expected value in the dtype of an array that it replaces; the array itself if the types differ."""
    if not isinstance(array, np.ndarray) or not isinstance(expected, np.ndarray) or array.shape != expected.shape:
        return array
    if from_numpy(array.dtype).kind != from_numpy(expected.dtype).kind:
        return array
    with np.errstate(all="ignore"):
        return np.array(expected, array.dtype, order="C")

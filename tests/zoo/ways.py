"""A model of the zoo by every way: exported static and symbolic, through torch's door and ONNX's, beside torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from architecture import Architecture, Mark
from torch.utils._pytree import tree_leaves

import ingot
from ingot.errors import IngotError
from onnx_export import export_onnx

SHAPES = ("static", "symbolic")
DOORS = ("torch", "onnx")
WAYS = [f"{shapes} {door}" for shapes in SHAPES for door in DOORS]
TOLERANCE = 1e-4


def export(row: Architecture, module: torch.nn.Module, symbolic: bool) -> torch.export.ExportedProgram:
    """The row's module at its first sizes. Raises what torch.export raises."""
    feeds = inputs_of(row, 0)
    dims = {name: dict(row.dims.get(name, {})) for name in feeds} if symbolic else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, (), feeds, dynamic_shapes=dims, strict=False)


def inputs_of(row: Architecture, which: int) -> dict[str, torch.Tensor]:
    """The row's inputs at one of its sizes."""
    torch.manual_seed(which)
    return row.inputs(*row.sizes[which])


def why_not(row: Architecture, shapes: str, doors: Sequence[str] = DOORS) -> dict[str, Mark | None]:
    """Way -> why it does not work, or None: with these shapes, through each of the doors."""
    module = row.build()
    try:
        program = export(row, module, shapes == "symbolic")
    except RuntimeError as error:
        return {f"{shapes} {door}": _mark("torch", error) for door in doors}
    results = [
        (feeds, _answers(module, feeds)) for feeds in (inputs_of(row, i) for i in range(1 + (shapes != "static")))
    ]
    through = {"torch": _compare, "onnx": _through_onnx}
    return {f"{shapes} {door}": through[door](program, results) for door in doors}


def _through_onnx(program: torch.export.ExportedProgram, results: list) -> Mark | None:
    try:
        model = export_onnx(program).model_proto.SerializeToString()
    except RuntimeError as error:
        return _mark("torch", error)
    return _compare(model, results)


def _compare(source: Any, results: list) -> Mark | None:
    """None if the native steps alone give torch's numbers."""
    try:
        session = ingot.InferenceSession(source, threads=1, strict=True)
        outputs = [session.run(None, {name: x.numpy() for name, x in feeds.items()}) for feeds, _ in results]
    except IngotError as error:
        return _mark("ingot", error)
    for got, (_, expected) in zip(outputs, results, strict=True):
        assert [x.shape for x in got] == [x.shape for x in expected]
        worst = max(relative(a, b) for a, b in zip(got, expected, strict=True))
        if not worst < TOLERANCE:
            return Mark("ingot", "Difference", f"{worst:.1e} from torch's numbers")
    return None


def under_limits(program: torch.export.ExportedProgram, row: Architecture) -> tuple[str, str]:
    """Of a session whose dims have limits: where it gives other bits than one without, at each of the row's sizes and
    for one of a batch, and why it has a program for each; "" where it does not.
    """
    each = ingot.InferenceSession(program, threads=1, dims={})
    torch.manual_seed(2)
    few = row.inputs(1, row.sizes[0][1])
    given = [{name: x.numpy() for name, x in feeds.items()} for feeds in (inputs_of(row, 1), few, inputs_of(row, 0))]
    limits: dict[str, int] = {}
    for feeds in given:
        for argument in each.get_inputs():
            for dim, size in zip(argument.shape, feeds[argument.name].shape, strict=True):
                if isinstance(dim, str) and dim.isidentifier():
                    limits[dim] = max(size, limits.get(dim, 1))
    limited = ingot.InferenceSession(program, threads=1, dims={name: ingot.at_most(n) for name, n in limits.items()})
    for feeds in given:
        for got, wanted in zip(limited.run(None, feeds), each.run(None, feeds), strict=True):
            if got.shape != wanted.shape or got.tobytes() != wanted.tobytes():
                return f"{limits}: {list(got.shape)}, {limited.bindings}", ""
    if not limited.bindings.unplanned:
        assert (limited.bindings.misses, limited.bindings.kept) == (1, 1)
    return "", limited.bindings.unplanned


def _answers(module: torch.nn.Module, feeds: dict[str, torch.Tensor]) -> list[np.ndarray]:
    with torch.no_grad():  # models keep tensors for others of their kind, which train elsewhere
        return [leaf.numpy() for leaf in tree_leaves(module(**feeds)) if isinstance(leaf, torch.Tensor)]


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference beside the largest number expected."""
    got, expected = (np.where(np.isfinite(x), x, 0).astype(np.float64) for x in (got, expected))
    return float(np.abs(got - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1e-30))


def _mark(whose: str, error: BaseException) -> Mark:
    while whose == "torch" and error.__cause__ is not None:
        error = error.__cause__
    return Mark(whose, type(error).__name__, str(error))

"""Emit a tensor model as a site: a drawing page for a model of grey images, a page of numbers for any other."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ingot.compile import Mode, compile_at_most, compile_mode
from ingot.emit.web.site import Page, emit_site
from ingot.emit.weights import WeightSource
from ingot.errors import InputError
from ingot.ir.dim import AtMost, Expr, given
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph
from ingot.ir.sized import has_sizes
from ingot.lower.wgpu import webgpu_target
from ingot.passes.precision import F32, Precision

RUN = "run"  # the only program of a model
LARGEST_SIDE = 256  # pixels of a drawn image


def emit_model(
    name: str,
    graph: Graph,
    weights: WeightSource,
    folder: str | os.PathLike[str],
    *,
    limits: Mapping[str, int] = {},
    ink: float = 1.0,
    precision: Precision = F32,
    force: bool = False,
) -> list[str]:
    """Write a graph, after all passes, as a site; return the paths.

    limits: the largest size of each symbol that runs pass; a first dim of inputs without a limit is 1. ink: the value
    of a drawn pixel. precision: one that rounds constant weights only. force: as for `emit_site`.

    Raises InputError for symbols without a limit, for ink that is no number and for another precision, UnsupportedError
    where there is no one program for all sizes up to the limits, and what `emit_site` and `compile_mode` raise.
    """
    sizes: dict[str, int] = _batches(graph) | {symbol: AtMost(most, symbol) for symbol, most in limits.items()}
    if missing := [symbol for symbol in graph.symbols if symbol not in sizes]:
        raise InputError(f"emit: dims have no values, got none, expected {given(missing)}")
    if not math.isfinite(ink):
        raise InputError(f"option ink: no number, got {ink}, expected the value of a pixel")
    compile = compile_at_most if limits else compile_mode
    compiled = compile(graph, webgpu_target(precision), Mode(sizes=sizes, precision=precision))
    page = Page("draw", {"ink": ink}) if reads_images(compiled.graph) else Page()
    return emit_site(name, {RUN: compiled}, weights, folder, page, force=force)


def reads_images(graph: Graph) -> bool:
    """Return whether a graph computes a row of scores from one grey image."""
    if has_sizes(graph):
        return False
    inputs = [graph.type(name) for name in graph.inputs]
    outputs = [graph.type(value) for value in graph.outputs.values()]
    if len(inputs) != 1 or len(outputs) != 1 or {inputs[0].dtype, outputs[0].dtype} != {f32}:
        return False
    image, scores = inputs[0].dims, outputs[0].dims
    is_image = len(image) == 4 and image[:2] == (1, 1) and max(image) <= LARGEST_SIDE
    return is_image and len(scores) == 2 and scores[0] == 1


def _batches(graph: Graph) -> dict[str, int]:
    """Return the symbols that are the first dim of inputs, as 1: a page runs batches of one."""
    first = (graph.type(name).shape[:1] for name in graph.inputs)
    return {str(dim): 1 for shape in first for dim in shape if isinstance(dim, Expr) and str(dim) in graph.symbols}

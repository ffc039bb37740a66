"""Language models in a comparison: one sequence from an empty cache, with the logits of every position."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.compile import Mode, compile_mode
from ingot.errors import InputError
from ingot.inspect.comparison.sides import Planned, Reference, Side
from ingot.ir.graph import Graph
from ingot.llm.options import Options
from ingot.load.hf import Folder, LanguageModel, read_folder
from ingot.load.language import read_model
from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.passes import optimize

ROWS = 16  # random tokens, if none are given
SIDES = ("native", "webgpu", "interpret", "float64")


def language_inputs(
    path: str, inputs: Mapping[str, Any], dims: Mapping[str, int], seed: int
) -> tuple[Folder, dict[str, np.ndarray], int]:
    """Return the folder, an array for each input of its graph, and the context of the run.

    inputs: `ids`, the tokens; by default `rows` random ones. Raises InputError for other inputs and dims.
    """
    if unknown := [*sorted(inputs.keys() - {"ids"}), *sorted(dims.keys() - {"rows"})]:
        raise InputError(f"compare: a language model has the input ids and the dim rows, got {', '.join(unknown)}")
    folder = read_folder(path) if os.path.isdir(path) else read_model(path)
    vocabulary = int(folder.config.get("vocab_size", 0)) or 2
    drawn = np.random.default_rng(seed).integers(0, vocabulary, dims.get("rows", ROWS))
    ids = np.asarray(inputs.get("ids", drawn), np.int32).reshape(-1)
    count, context = len(ids), -(-len(ids) // CACHE_BLOCK) * CACHE_BLOCK
    rows = np.arange(count, dtype=np.int32)
    blocks = np.arange(context // CACHE_BLOCK, dtype=np.int32)[None]
    feeds = {"ids": ids, "positions": rows, "owners": np.zeros(count, np.int32), "blocks": blocks, "take": rows}
    return folder, feeds, context


def language_side(
    name: str, folder: Folder, feeds: Mapping[str, np.ndarray], context: int, precision: str | None, threads: int
) -> tuple[Side, Graph]:
    """Return a side over a language model, and its graph as loaded. Raises InputError for another side.

    precision: None for that of the stored weights.
    """
    if name not in SIDES:
        raise InputError(f"compare: no such side of a language model, got {name!r}, expected one of {', '.join(SIDES)}")
    executor = "webgpu" if name == "webgpu" else "native"
    options = Options.of(
        folder, context=context, precision=precision, threads=threads, cache_dtype="f32", sequences=1, executor=executor
    )
    model: LanguageModel = options.load(folder)
    graph = model.graph
    graph.remove_output("hidden")
    if name in ("interpret", "float64"):
        return Reference(graph, feeds, float64=name == "float64"), graph
    optimized = graph.copy()
    optimize(optimized)
    count = len(feeds["ids"])
    mode = Mode("compare", {"rows": count, "taken": count, "sequences": 1})
    side = Planned(compile_mode(optimized, options.target, mode), feeds, threads)
    side.title = f"{name}, {options.precision}, {options.target.isa}"  # weights were rounded as they were loaded
    return side, graph

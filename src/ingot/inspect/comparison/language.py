"""Language models in a comparison: one sequence from an empty cache, with the logits of every position."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.compile import Mode, compile_mode
from ingot.errors import InputError, UnsupportedError
from ingot.inspect.comparison.foreign import expect_installed, typed_errors
from ingot.inspect.comparison.sides import Planned, Recorded, Reference, Side
from ingot.inspect.stages import TRANSFORMERS
from ingot.ir.graph import Graph, TensorType, bind_type
from ingot.llm.options import Options
from ingot.load.hf import Folder, read_folder
from ingot.load.language import read_model
from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.passes import optimize
from ingot.run.interpret import bind_symbols

ROWS = 16  # random tokens, if none are given
LANGUAGE_SIDES = ("native", "webgpu", "interpret", "float64")


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


def language_graph(
    name: str, folder: Folder, context: int, precision: str | None, threads: int
) -> tuple[Graph, Options]:
    """Return the graph of a side as loaded, with weights of its precision, and the options of its program.

    precision: None for that of the stored weights.
    """
    executor = "webgpu" if name == "webgpu" else "native"
    options = Options.of(
        folder, context=context, precision=precision, threads=threads, cache_dtype="f32", sequences=1, executor=executor
    )
    graph = options.load(folder).graph
    graph.remove_output("hidden")
    return graph, options


def transformers_side(folder: str, graph: Graph, feeds: Mapping[str, Any]) -> Recorded:
    """Return what transformers computes in f32 for the tokens: logits, and results of modules by their paths.

    Raises as `expect_installed`, UnsupportedError for what is no folder and for errors of transformers, and InputError
    if no path of a module names a value of the graph.
    """
    expect_installed("torch")
    expect_installed("transformers")
    if not os.path.isdir(folder):
        raise UnsupportedError(f"compare: transformers needs a folder, got {folder}")
    import torch

    symbols, found = bind_symbols(graph, feeds), dict[str, np.ndarray]()

    def keep(name: str, result: Any) -> None:
        first = result[0] if isinstance(result, tuple) and result else result
        type = bind_type(graph.values[name].type, symbols)
        if isinstance(first, torch.Tensor) and isinstance(type, TensorType) and first.numel() == type.size:
            found[name] = first.detach().float().numpy().reshape(type.dims)

    with typed_errors("transformers"), torch.no_grad():
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        showed_progress = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, trust_remote_code=False
            ).eval()
        finally:
            if showed_progress:
                logging.enable_progress_bar()
        for path, module in model.named_modules():
            if path in graph.values:
                module.register_forward_hook(lambda module, given, result, path=path: keep(path, result))
        keep(graph.outputs["logits"], model(torch.from_numpy(feeds["ids"].astype(np.int64))[None]).logits)
    side = Recorded(graph, feeds, found)
    side.title = TRANSFORMERS
    return side


def language_side(name: str, options: Options, graph: Graph, feeds: Mapping[str, Any]) -> Side:
    """Return a side over the graph of a language model, or over a part of it."""
    if name in ("interpret", "float64"):
        return Reference(graph, feeds, float64=name == "float64")
    optimized = graph.copy()
    optimize(optimized)
    return planned_language_side(name, options, optimized, feeds)


def planned_language_side(
    name: str, options: Options, optimized: Graph, feeds: Mapping[str, Any], passes: tuple[str, ...] | None = None
) -> Planned:
    """Return a side that runs kernels. optimized: a graph after the passes. passes: those that a mode may repeat."""
    mode = Mode("compare", bind_symbols(optimized, feeds))
    compiled = compile_mode(optimized, options.target, mode, passes=passes)
    side = Planned(compiled, feeds, options.target.threads)
    side.title = f"{name}, {options.precision}, {options.target.isa}"  # weights were rounded as they were loaded
    return side

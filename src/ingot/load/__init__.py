"""Foreign models -> Graph. Each format is a package of its own, imported when a source is of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ingot.errors import InputError, UnboundError
from ingot.ir import Graph, Type


@dataclass(frozen=True, slots=True)
class Deferred:
    """A model that has a graph only once its dims have values, and another one for other values.

    interface: a graph of its inputs alone. outputs: their types, None where they are not declared. load: the graph for
    sizes of symbols, which may be some of them; raises what the format's loader raises.
    """

    interface: Graph
    outputs: Mapping[str, Type | None]
    load: Callable[[Mapping[str, int]], Graph]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and the identities of the files that it was read from, by location, where the format tells."""

    graph: Graph | Deferred
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def is_onnx_file(source: Any) -> bool:
    """True for a path that is read as ONNX: that of any file that is no .pt2."""
    return isinstance(source, (str, os.PathLike)) and os.path.isfile(source) and not os.fspath(source).endswith(".pt2")


def is_saved_program(source: Any) -> bool:
    """True for a folder that is not a Hugging Face one: what `save` wrote, which no loader reads."""
    is_folder = isinstance(source, (str, os.PathLike)) and os.path.isdir(source)
    return is_folder and not os.path.isfile(os.path.join(source, "config.json"))


def load_model(source: Any, example_inputs: tuple[Any, ...] | None = None) -> Loaded:
    """A foreign model, with its graph if it has one without sizes: see `ingot.session.InferenceSession` for sources.

    Raises FileNotFoundError for a path that does not exist, InputError for what is no model, and what the format's
    loader raises.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _load_onnx(bytes(source))
    if isinstance(source, (str, os.PathLike)):
        return _load_path(os.fspath(source))
    kind = type(source)
    if "torch" in sys.modules:
        from ingot.load import aten

        loaded = aten.load_any(source, example_inputs)
        if loaded is not None:
            return Loaded(loaded)
    raise InputError(
        f"source: cannot be read, got {kind.__module__}.{kind.__name__}, expected a path, bytes or a module"
    )


def _load_path(path: str) -> Loaded:
    from ingot.load.gguf import is_gguf

    if not os.path.exists(path):
        raise FileNotFoundError(2, "no such file", path)
    if os.path.isdir(path):
        return Loaded(_load_encoder(path))
    if is_gguf(path):
        raise InputError(f"{path}: a language model keeps state between runs, got a GGUF file; use ingot.LLM")
    if path.endswith(".pt2"):
        from ingot.load.aten import load_pt2

        return Loaded(load_pt2(path))
    return _load_onnx(path)


def _load_onnx(source: str | bytes) -> Loaded:
    from ingot.load.onnx import interface_of, load_parsed, parse_model

    parsed = parse_model(source)
    try:
        return Loaded(load_parsed(parsed), parsed.files)
    except UnboundError:
        return Loaded(Deferred(*interface_of(parsed), partial(load_parsed, parsed)), parsed.files)


def _load_encoder(folder: str) -> Graph:
    from ingot.load.hf import load_language_model, read_folder

    model = load_language_model(read_folder(folder), context=None)
    if model.kind != "encoder":
        raise InputError(
            f"{folder}: a decoder keeps state between runs, got {model.config['model_type']}; use ingot.LLM"
        )
    return model.graph

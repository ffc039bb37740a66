"""A model folder -> a Graph, through the template of its model type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot.dtype import DType, bf16, f32, i4, i8
from ingot.errors import InputError, LimitError, LoadError, UnsupportedError
from ingot.ir import Graph
from ingot.load.hf.decoder import build_decoder
from ingot.load.hf.dense import build_dense
from ingot.load.hf.encoder import build_encoder
from ingot.load.hf.folder import Folder
from ingot.load.hf.settings import Settings, read_settings
from ingot.load.hf.template import Template, read_template
from ingot.load.hf.weights import Weights
from ingot.ops.kv_cache import CACHE_BLOCK

MAX_CONTEXT = 1 << 22  # tokens of a context


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A model as one Graph. context: positions of a sequence; kind: "decoder" or "encoder"; config: config.json.

    decoder.py says what the inputs, states and outputs of a decoder are, encoder.py those of an encoder.
    """

    graph: Graph
    kind: str
    context: int
    vocab_size: int
    config: Mapping[str, Any]

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of the cache that a sequence of `context` positions takes."""
        return -(-self.context // CACHE_BLOCK)


def load_language_model(
    folder: Folder,
    *,
    context: int | None,
    sequences: int = 1,
    cache_dtype: DType = f32,
    weights: DType | None = None,
) -> LanguageModel:
    """The Graph of a model folder, from config and headers alone: weights are mapped, none is read.

    context: positions to plan for, None for all that the model has. sequences: how many the cache holds at once.
    cache_dtype: f32, bf16, i8 or i4. weights: the dtype that matrices are rounded to, None for as they are stored.

    Raises LoadError for a config or weights that contradict the template, UnsupportedError for an architecture or
    choice that no template makes, LimitError, and InputError for a context that the model does not have.
    """
    assert cache_dtype in (f32, bf16, i8, i4) and sequences > 0
    template, settings = _described(folder)
    context = _context(settings, context)
    graph = Graph(template.name)
    found = Weights(graph, folder, template, weights)
    if template.kind == "encoder":
        build_encoder(graph, template, settings, found)
    else:
        build_decoder(graph, template, settings, found, context=context, sequences=sequences, cache_dtype=cache_dtype)
    found.finish(_ignored(template, settings, found.prefix))
    return LanguageModel(graph, template.kind, context, settings.values["vocab"], folder.config)


def load_dense(folder: Folder, context: int) -> LanguageModel:
    """The Graph of a decoder's folder over whole sequences of at most `context` tokens; dense.py says what it takes.

    Raises as `load_language_model`, and UnsupportedError for an encoder.
    """
    template, settings = _described(folder)
    if template.kind == "encoder":
        raise UnsupportedError(f"{folder.path}: cannot be trained on text, got an encoder, expected a decoder")
    context = _context(settings, context)
    graph = Graph(template.name)
    found = Weights(graph, folder, template, None)
    build_dense(graph, template, settings, found, context)
    found.finish(_ignored(template, settings, found.prefix))
    return LanguageModel(graph, template.kind, context, settings.values["vocab"], folder.config)


def kind_of(folder: Folder) -> str:
    """Whether a folder's model is a "decoder" or an "encoder". Raises LoadError, UnsupportedError."""
    return _described(folder)[0].kind


def longest_context(folder: Folder) -> int:
    """The positions that a model has, as far as they can be planned for. Raises LoadError, UnsupportedError."""
    return min(_described(folder)[1].values["context"], MAX_CONTEXT)


def _described(folder: Folder) -> tuple[Template, Settings]:
    """The template of a folder's architecture, and what the config says to it."""
    model_type = folder.config.get("model_type")
    where = folder.where("config.json")
    if not isinstance(model_type, str):
        raise LoadError(f"{where}: model_type: missing or no text, got {model_type!r}")
    try:
        template = read_template(model_type)
    except UnsupportedError as error:
        raise UnsupportedError(f"{where}: {error}; docs/adding-an-architecture.md adds one") from error
    return template, read_settings(template, folder.config, where)


def _context(settings: Settings, context: int | None) -> int:
    """The positions to plan for. Raises InputError, LimitError."""
    longest = settings.values["context"]
    if context is None:
        if longest > MAX_CONTEXT:
            field = settings.field("context")
            raise LimitError(f"{field}: too long, got {longest}, expected at most {MAX_CONTEXT}, or give a context")
        return longest
    if not 1 <= context <= min(longest, MAX_CONTEXT):
        raise InputError(
            f"option context: out of range, got {context}, expected 1..{min(longest, MAX_CONTEXT)} "
            f"({settings.field('context')} = {longest})"
        )
    return context


def _ignored(template: Template, settings: Settings, prefix: str) -> list[str]:
    """Patterns of weights that a file may hold beside those that are asked for."""
    patterns = [prefix + pattern for pattern in template.ignored] + list(template.ignored)
    if template.head is not None and template.head.tied.evaluate(settings.values):
        patterns.append(f"{template.head.linear.path}.weight")
    return patterns

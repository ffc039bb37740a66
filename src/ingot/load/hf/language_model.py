"""Load a model folder as a Graph, with the template of its model type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingot.errors import IngotError, InputError, LimitError, LoadError, UnsupportedError
from ingot.ir.dtype import DType, bf16, f32, i4, i8
from ingot.ir.graph import Graph
from ingot.load.hf.decoder import build_decoder
from ingot.load.hf.dense import build_dense
from ingot.load.hf.encoder import build_encoder
from ingot.load.hf.folder import OWN_TEMPLATE, Folder
from ingot.load.hf.recurrent import SLOTS, is_recurrent
from ingot.load.hf.rope import scaled_context
from ingot.load.hf.settings import Settings, read_settings
from ingot.load.hf.template import Template
from ingot.load.hf.template_file import foreign_template, read_template
from ingot.load.hf.weights import Misfit, Weights
from ingot.load.hf.windows import Windows, windows_of
from ingot.ops.kv_cache import CACHE_BLOCK

MAX_CONTEXT = 1 << 22  # tokens of a context
_MOST_PREDICTING = 16  # layers for later tokens
_KINDS = ("decoder", "encoder")
CLASSIFIER = "ForSequenceClassification"  # the end of an architecture's name


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A model as one Graph. context: positions of a sequence; kind: "decoder" or "encoder"; config: config.json.

    windows: the cache of layers with a window, None if every layer caches all positions.

    decoder.py describes the inputs, states and outputs of a decoder, encoder.py those of an encoder.
    """

    graph: Graph
    kind: str
    context: int
    vocab_size: int
    config: Mapping[str, Any]
    cache_blocks: int = 0
    windows: Windows | None = None

    @property
    def has_recurrent_state(self) -> bool:
        """Whether sequences have states that depend on all tokens before, which no block of the cache holds."""
        return SLOTS in self.graph.inputs

    @property
    def state_slots(self) -> int:
        """The number of sequences and checkpoints whose states can be stored; 0 for a model without such states."""
        return next((self.graph.type(name).dims[0] for name in self.graph.states if is_recurrent(name)), 0)

    @property
    def blocks_per_sequence(self) -> int:
        """Cache blocks that a sequence of `context` positions occupies."""
        return -(-self.context // CACHE_BLOCK)


def load_language_model(
    folder: Folder,
    *,
    context: int | None,
    sequences: int = 1,
    cache_positions: int | None = None,
    cache_dtype: DType = f32,
    weights: DType | None = None,
    rows: int | None = None,
    checkpoints: int = 0,
) -> LanguageModel:
    """Load the Graph of a model folder, from config and headers alone: weights are mapped, none is read.

    context: positions to plan for, None for the model's maximum. sequences: the number of sequences in the cache.
    cache_positions: the positions of all of them together, at least those of one; None for the context of each.
    cache_dtype: f32, bf16, i8 or i4. weights: the dtype that matrices are rounded or quantized to, None for the stored
    dtype. rows: the most rows of a run, with which layers with a window cache only the positions that runs need; None
    if every layer caches all positions. checkpoints: of recurrent states and of windows that can be kept besides those
    of the sequences.

    Raises LoadError for a config or weights that contradict the template, UnsupportedError for an architecture or
    option that no template supports, LimitError, and InputError for a context that the model does not support.
    """
    assert cache_dtype in (f32, bf16, i8, i4) and sequences > 0
    template, settings = _described(folder)
    context = _context(template, settings, context)
    graph = Graph(template.name)
    found = Weights(graph, folder, template, weights)
    each = -(-context // CACHE_BLOCK)
    blocks = sequences * each if cache_positions is None else max(each, -(-cache_positions // CACHE_BLOCK))
    windows, kind, vocab = None, _kind(template, settings), settings.values["vocab"]
    if rows is not None and kind == "decoder":
        with _template_errors(template):
            windows = windows_of(
                template, settings,
                context=context, sequences=sequences, rows=rows, checkpoints=checkpoints, most=blocks,
            )  # fmt: skip
    cache = {"cache_blocks": blocks, "cache_dtype": cache_dtype, "slots": sequences + checkpoints, "windows": windows}
    _build(graph, template, settings, found, context=context, **cache)
    found.finish(_ignored(template, settings, found.prefix, folder.config))
    return LanguageModel(graph, kind, context, vocab, folder.config, blocks, windows)


def load_dense(folder: Folder, context: int) -> LanguageModel:
    """Load a decoder's folder as a Graph over whole sequences of at most `context` tokens; dense.py describes its
    interface.

    Raises as `load_language_model`, and UnsupportedError for an encoder.
    """
    template, settings = _described(folder)
    if _kind(template, settings) == "encoder":
        raise UnsupportedError(f"{folder.path}: cannot be trained on text, got an encoder, expected a decoder")
    context = _context(template, settings, context)
    graph = Graph(template.name)
    found = Weights(graph, folder, template, None)
    with _template_errors(template):
        build_dense(graph, template, settings, found, context)
    found.finish(_ignored(template, settings, found.prefix, folder.config))
    return LanguageModel(graph, _kind(template, settings), context, settings.values["vocab"], folder.config)


def load_classifier(folder: Folder, *, context: int, weights: DType | None = None) -> LanguageModel:
    """Load an encoder's folder as a Graph with the scores of its classifier; encoder.py describes its interface.

    Raises as `load_language_model`, and UnsupportedError for a folder without a classifier.
    """
    template, settings = _described(folder)
    labels = labels_of(folder)
    if labels is None or _kind(template, settings) == "decoder":
        raise UnsupportedError(f"{folder.path}: no classifier, expected an encoder ...{CLASSIFIER}")
    context = _context(template, settings, context)
    graph = Graph(template.name)
    found = Weights(graph, folder, template, weights)
    with _template_errors(template):
        build_encoder(graph, template, settings, found, labels)
    found.finish(_ignored(template, settings, found.prefix, folder.config))
    return LanguageModel(graph, _kind(template, settings), context, settings.values["vocab"], folder.config)


def labels_of(folder: Folder) -> int | None:
    """Return the number of labels of an encoder that classifies texts; None for another model.

    Raises LoadError, and UnsupportedError for an architecture without a template.
    """
    architectures, labels = folder.config.get("architectures"), folder.config.get("id2label")
    names = architectures if isinstance(architectures, list) else []
    if not any(isinstance(name, str) and name.endswith(CLASSIFIER) for name in names):
        return None
    if template_of(folder).classifier is None:
        return None
    if labels is not None and (not isinstance(labels, dict) or not labels):
        raise LoadError(f"{folder.where('config.json')}: id2label: got {labels!r}, expected an object of names")
    return 2 if labels is None else len(labels)  # 2 is the default of transformers


def kind_of(folder: Folder) -> str:
    """Return whether a folder's model is a "decoder" or an "encoder". Raises LoadError, UnsupportedError."""
    return _kind(*_described(folder))


def _kind(template: Template, settings: Settings) -> str:
    """Return whether a model is a "decoder" or an "encoder". Raises LoadError."""
    return template.kind.word({**settings.values, **{kind: kind for kind in _KINDS}}, _KINDS)


def longest_context(folder: Folder) -> int:
    """Return the config's number of positions, at most MAX_CONTEXT; a linear or YaRN scaling may reach more.

    Raises LoadError, UnsupportedError.
    """
    return min(_described(folder)[1].values["context"], MAX_CONTEXT)


def _described(folder: Folder) -> tuple[Template, Settings]:
    """Return the template of a folder's architecture, and its settings from the config."""
    template, where = template_of(folder), folder.where("config.json")
    return template, read_settings(template, folder.config, where)


def template_of(folder: Folder) -> Template:
    """Return the template that was given for a folder, else the one in the folder, else Ingot's own for its
    model type.

    Raises LoadError, LimitError, UnsupportedError for a model type without one, MissingFileError.
    """
    own = folder.own_template
    if own is not None:
        return foreign_template(*own)
    model_type = folder.config.get("model_type")
    where = folder.where("config.json")
    if not isinstance(model_type, str):
        raise LoadError(f"{where}: model_type: missing or no text, got {model_type!r}")
    try:
        return read_template(model_type)
    except UnsupportedError as error:
        expected = f"{OWN_TEMPLATE} in the folder, or --template FILE; see docs/adding-an-architecture.md"
        raise UnsupportedError(f"{where}: {error}, {expected}") from error


def misfits(folder: Folder) -> tuple[Template, list[Misfit]]:
    """Return the mismatches between a folder's template and its tensors. Raises as `load_language_model`, except for
    such mismatches.
    """
    template, settings = _described(folder)
    graph = Graph(template.name)
    found = Weights(graph, folder, template, None)
    context = min(settings.values["context"], CACHE_BLOCK)
    _build(graph, template, settings, found, context=context, cache_blocks=1, cache_dtype=f32, slots=1)
    return template, found.misfits(_ignored(template, settings, found.prefix, folder.config))


def _build(graph: Graph, template: Template, settings: Settings, found: Weights, **cache: Any) -> None:
    """Build a model in an empty graph; cache: options of `build_decoder`, unused for an encoder."""
    with _template_errors(template):
        if _kind(template, settings) == "encoder":
            build_encoder(graph, template, settings, found)
        else:
            build_decoder(graph, template, settings, found, **cache)


@contextlib.contextmanager
def _template_errors(template: Template) -> Iterator[None]:
    """Convert errors that no check of a template anticipates to a LoadError that names the template."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, IngotError):
            raise
        raise LoadError(f"{template.file}: cannot be built, {type(error).__name__}: {str(error)[:200]}") from error


def _context(template: Template, settings: Settings, context: int | None) -> int:
    """Return the positions to plan for. Raises InputError, LimitError."""
    longest = settings.values["context"]
    if context is None:
        if longest > MAX_CONTEXT:
            field = settings.field("context")
            raise LimitError(f"{field}: too long, got {longest}, expected at most {MAX_CONTEXT}, or give a context")
        return longest
    most = min(scaled_context(template, settings), MAX_CONTEXT)
    if not 1 <= context <= most:
        raise InputError(
            f"option context: out of range, got {context}, expected 1..{most} ({settings.field('context')} = {longest})"
        )
    return context


def _ignored(template: Template, settings: Settings, prefix: str, config: Mapping[str, Any]) -> list[str]:
    """Return the patterns of weights that a file may contain although the template does not use them."""
    patterns = [prefix + pattern for pattern in template.ignored] + list(template.ignored)
    patterns += [
        f"{prefix}layers.{settings.values['layers'] + i}.*" for i in range(_predicting_layers(template, config))
    ]
    if template.head is not None and template.head.tied.evaluate(settings.values):
        patterns.append(f"{template.head.linear.path}.weight")
    return patterns


def _predicting_layers(template: Template, config: Mapping[str, Any]) -> int:
    """Return the number of layers after the last one that predict later tokens, which the model does not need."""
    inner = config.get(template.config_in) if template.config_in else config
    count = inner.get("num_nextn_predict_layers") if isinstance(inner, dict) else 0
    return count if type(count) is int and 0 < count <= _MOST_PREDICTING else 0

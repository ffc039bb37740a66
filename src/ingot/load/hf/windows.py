"""Layers whose rows see a limited number of positions: their cache holds the last positions of each sequence only.

Input: window_blocks i32 [sequences, blocks_per_sequence], the cache block of each 64 positions in these layers; only if
there are such layers. No row of a run reads the entries of positions before those that it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.load.hf.attention import is_sharing
from ingot.load.hf.recurrent import is_recurrent
from ingot.load.hf.settings import MAX_SIZE, Settings, layer_names
from ingot.load.hf.template import Attention, Choose, Gated, Residual, Step, Streams, Sum, Template, WeightsOf
from ingot.ops.kv_cache import CACHE_BLOCK

WINDOW_BLOCKS = "window_blocks"  # the input
SPARE = CACHE_BLOCK  # positions before those that the next row sees; without them no token could be taken back


@dataclass(frozen=True, slots=True)
class Windows:
    """The cache of layers with a window. layers: those whose keys and values it holds; blocks: of the whole cache.

    span: the most positions that a row sees in any of the layers, its own included.
    """

    layers: frozenset[int]
    span: int
    blocks: int

    def first_seen(self, length: int) -> int:
        """Return the index of the first block that the next row of a sequence of `length` tokens sees."""
        return max(0, length - self.span + 1) // CACHE_BLOCK

    def first_kept(self, length: int) -> int:
        """Return the index of the first block that a sequence of `length` tokens keeps in any case."""
        return max(0, length - self.span + 1 - SPARE) // CACHE_BLOCK

    def holds(self, state: str) -> bool:
        """Return whether a state has keys or values of one of the layers, or their scales."""
        return not is_recurrent(state) and int(state.split(".")[1]) in self.layers


def windows_of(
    template: Template, settings: Settings, *, context: int, sequences: int, rows: int, checkpoints: int, most: int
) -> Windows | None:
    """Return the cache of a model's layers with a window; None for a model without such layers.

    rows: the most rows of a run; checkpoints: the windows kept besides; most: the blocks of the cache of layers that
    see all positions. Raises LoadError.
    """
    spans = {layer: span for layer, span in _spans(template, settings, context).items() if span < context}
    if not spans:
        return None
    span = max(spans.values())
    return Windows(frozenset(spans), span, min(most, blocks_of(span, sequences, rows, checkpoints)))


def blocks_of(span: int, sequences: int, rows: int, checkpoints: int = 0) -> int:
    """Return the blocks that so many sequences need at most, of which each row sees `span` positions.

    rows: the most rows of a run; checkpoints: ends of full blocks whose windows are kept besides.
    """
    # With one new row, whichever position of its block is the first one that is kept. The other rows of a run take at
    # most one more block of each sequence, and those that they fill.
    each = (span + SPARE + CACHE_BLOCK - 2) // CACHE_BLOCK + 1
    return sequences * (each + 1) + rows // CACHE_BLOCK + checkpoints * -(-(span - 1) // CACHE_BLOCK)


def _spans(template: Template, settings: Settings, context: int) -> dict[int, int]:
    """Return how many positions a row sees of the keys and values that each layer computes, in whichever layer."""
    spans: dict[int, int] = {}
    computed: dict[Any, int] = {}  # the last layer that computes keys and values for layers that share them
    for layer in range(settings.values["layers"]):
        names = layer_names(template, settings, layer)
        for attention in _attentions(template.steps, names):
            owner = layer
            if attention.shared is not None:
                like = attention.shared.like.evaluate(names)
                if not is_sharing(attention, names):
                    computed[like] = layer
                owner = computed.get(like, layer)
            bounds = (size.integer(names, 0, MAX_SIZE) for size in (attention.window, attention.segment))
            span = min((bound for bound in bounds if bound), default=context)
            spans[owner] = max(span, spans.get(owner, 0))
    return spans


def _attentions(steps: Sequence[Step], names: Mapping[str, Any]) -> Iterator[Attention]:
    """Yield the attention steps that a layer with these names has."""
    for step in steps:
        match step:
            case Attention():
                yield step
            case Residual() | Gated() | WeightsOf():
                yield from _attentions(step.steps, names)
            case Sum():
                for branch in step.branches:
                    yield from _attentions(branch, names)
            case Streams():
                yield from _attentions((*step.steps, *step.then), names)
            case Choose():
                yield from _attentions(step.then if step.when.evaluate(names) else step.otherwise, names)

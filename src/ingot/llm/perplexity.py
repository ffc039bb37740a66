"""How well a language model foretells a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ingot.errors import InputError
from ingot.llm.engine import SCORE_ROWS
from ingot.llm.model import LLM


@dataclass(frozen=True, slots=True)
class Perplexity:
    """tokens: how many were scored. nats: the mean of the negative logarithms of their probabilities."""

    tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        """The number of tokens among which a choice at random would be as hard to foretell."""
        return math.exp(self.nats)


def perplexity(
    llm: LLM, text: str, *, stride: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Perplexity:
    """Scores every token of a text but the first, each once, in windows of the model's context.

    Windows begin `stride` tokens after each other, half a context unless it is given, so that a token has at least
    context - stride before it, but in the first window; the tokens that begin a prompt stand before each. on_progress:
    told how many tokens are scored, of how many.

    Raises InputError for a text of fewer than two tokens, a stride out of its range, and an encoder.
    """
    ids, prefix = llm.tokenizer.encode(text), list(llm.tokenizer.prefix)
    room = llm.context - len(prefix)
    step = room - room // 2 if stride is None else stride
    if not 1 <= step < room:
        raise InputError(f"option stride: out of range, got {stride}, expected 1..{room - 1}")
    if len(ids) < 2:
        raise InputError(f"text: too short, got {len(ids)} tokens, expected at least 2")
    total, scored = 0.0, 1
    for begin in range(0, len(ids), step):
        window = ids[begin : begin + room]
        for position, losses in _losses(llm, prefix + window):
            # Of position p of the window, the loss is that of token p + 1.
            first = begin + position + 1 - len(prefix)
            fresh = losses[max(scored - first, 0) :]
            total += float(fresh.sum())
            scored += len(fresh)
        if on_progress is not None:
            on_progress(scored, len(ids))
        if scored == len(ids):
            break
    return Perplexity(scored - 1, total / (scored - 1))


def _losses(llm: LLM, ids: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    """The negative log-probabilities of the ids from the second on, some at a time, with the place of the first."""
    engine = llm.engine
    with engine.lock:
        sequence = engine.sequences.start(())
        for begin in range(0, len(ids) - 1, SCORE_ROWS):
            known = ids[begin : begin + SCORE_ROWS]
            following = ids[begin + 1 : begin + SCORE_ROWS + 1]
            logits = engine.each(sequence, known, "score")[: len(following)].astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            chosen = logits[np.arange(len(following)), following]
            yield begin, np.log(np.exp(logits).sum(-1)) - chosen

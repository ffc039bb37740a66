"""Perplexity of a language model on a text."""

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
    """A score. tokens: the number of scored tokens. nats: the mean negative logarithm of their probabilities."""

    tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        """e to the power of nats: the number of equally likely tokens that would be as hard to predict."""
        return math.exp(self.nats)


def perplexity(
    llm: LLM, text: str, *, stride: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Perplexity:
    """Score every token of a text except the first, each once, in windows of the model's context.

    stride: the distance between the starts of windows, by default half a context. Every token outside the first window
    is scored with at least context - stride tokens before it. Each window begins with the tokenizer's prefix.
    on_progress: called with (tokens scored, tokens in total).

    Raises InputError for a text of fewer than two tokens, a stride out of its range, and an encoder.
    """
    ids, prefix = llm.tokenizer.encode(text), list(llm.tokenizer.prefix)
    size = llm.context - len(prefix)
    step = size - size // 2 if stride is None else stride
    if not 1 <= step < size:
        raise InputError(f"option stride: out of range, got {stride}, expected 1..{size - 1}")
    if len(ids) < 2:
        raise InputError(f"text: too short, got {len(ids)} tokens, expected at least 2")
    total, scored = 0.0, 1
    for begin in range(0, len(ids), step):
        window = ids[begin : begin + size]
        for position, losses in _losses(llm, prefix + window):
            # The loss at position p of the window is that of token p + 1.
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
    """Yield chunks (begin, losses): the negative log-probabilities of the ids from position begin + 1 on."""
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

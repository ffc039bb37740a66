"""Speculative decoding: several tokens in a step of the model, without any change of the answers.

A draft of the next tokens runs together with the last token. Each token is then drawn as without a draft, from its row
of logits and with its own random number, for as long as the draft predicted the tokens before it. So an answer has the
same tokens, also when they are sampled (Leviathan et al. 2023 keep only the distribution).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence as Tokens
from typing import Protocol

import numpy as np

from ingot.llm.engine import VERIFY_ROWS, Engine
from ingot.llm.generation import Answer, Drawn, Generation, decode_plainly, taken
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import Sequence

NGRAMS = (4, 3, 2)  # lengths of the texts that prompt lookup searches, the longest first
FIRST_RATE = 0.6  # the share of tokens that drafts are expected to predict, before any measurement
_NEWEST = 0.15  # the weight of the newest measurement of a rate
_MOST_RATE = 0.98
_RECOVERY = 0.01  # by which an unused rate approaches the first one, so that drafts are tried again
_PLAIN_STEPS = 32  # of which one runs without drafts
_SLOWEST = 3.0  # the largest factor by which one measurement of a time may exceed the present one


class Drafter(Protocol):
    """Predicts the next tokens of answers."""

    def draft(self, generations: Tokens[Generation], count: int) -> list[list[int]]:
        """Return up to `count` tokens for each answer, none where it cannot predict any."""


class Lookup:
    """Drafts from the answer's own text: the tokens that followed its last ones before (Saxena 2023).

    Finds text that repeats, such as code that is edited and documents that are quoted.
    """

    def __init__(self) -> None:
        self._indexes: weakref.WeakKeyDictionary[Generation, _Index] = weakref.WeakKeyDictionary()

    def draft(self, generations: Tokens[Generation], count: int) -> list[list[int]]:
        """Return the tokens that followed the last occurrence of the longest text that was found."""
        return [self._index(generation).continuation(generation.tokens, count) for generation in generations]

    def _index(self, generation: Generation) -> _Index:
        if generation not in self._indexes:
            self._indexes[generation] = _Index()
        return self._indexes[generation]


class _Index:
    """The last position after each short run of tokens in a text that grows."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def continuation(self, tokens: list[int], count: int) -> list[int]:
        """Return the `count` tokens after an earlier occurrence of the text's end; a period is continued."""
        for end in range(self._indexed + 1, len(tokens)):  # without the end itself
            for length in NGRAMS:
                if length <= end:
                    self._after[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for length in NGRAMS:
            begin = self._after.get(tuple(tokens[-length:])) if length <= len(tokens) else None
            if begin is not None:
                found = tokens[begin : begin + count]
                period = len(tokens) - begin
                return [found[i % period] for i in range(count)] if len(found) < count else found
        return []


class DraftModel:
    """Drafts by a small language model with the same tokens.

    Its sequences stay cached between steps: each draft computes only the tokens since the last one.
    """

    def __init__(self, engine: Engine, vocab_size: int):
        """vocab_size: of the model whose tokens are drafted."""
        self._engine, self._vocab_size = engine, min(vocab_size, engine.model.vocab_size)
        self._samplers: weakref.WeakKeyDictionary[Generation, Sampler] = weakref.WeakKeyDictionary()
        self._owner = (None for _ in ())  # the active sequences are its own
        self._run = weakref.ref(self._owner)

    def draft(self, generations: Tokens[Generation], count: int) -> list[list[int]]:
        """Return the tokens that the small model draws with the random numbers that the answers will be drawn with."""
        engine = self._engine
        drafts: dict[Generation, list[int]] = {generation: [] for generation in generations}
        engine.sequences.forget_active()  # of an interrupted draft
        active: list[tuple[Generation, Sequence]] = []
        for generation in generations:
            tokens = generation.tokens
            if max(tokens) >= self._vocab_size or len(tokens) + count > engine.model.context:
                continue
            sequence = engine.sequences.start(tokens, self._run)
            sampler = self._sampler(generation)
            engine.prefill(sequence, tokens[len(sequence.tokens) :], sampler)
            active.append((generation, sequence))
            drafts[generation].append(sampler.token)
        for _ in range(count - 1):
            if active:
                engine.decode([(sequence, drafts[g][-1], self._samplers[g]) for g, sequence in active])
            for generation, _ in active:
                drafts[generation].append(self._samplers[generation].token)
        for _, sequence in active:
            engine.sequences.finish(sequence)
        return [_below(drafts[generation], self._vocab_size) for generation in generations]

    def _sampler(self, generation: Generation) -> Sampler:
        if generation not in self._samplers:
            self._samplers[generation] = generation.sampler.unadjusted(self._engine.model.vocab_size)
        sampler = self._samplers[generation]
        sampler.draws = generation.sampler.draws
        return sampler


def _below(tokens: list[int], limit: int) -> list[int]:
    """Return the tokens before the first one that is not below a limit."""
    end = next((i for i, token in enumerate(tokens) if not 0 <= token < limit), len(tokens))
    return tokens[:end]


class Speculation:
    """Decodes answers with drafts for as long as the measured times and rates promise more tokens per second.

    drafted, accepted: tokens of drafts that ran, and that were drawn.
    """

    def __init__(self, engine: Engine, drafter: Drafter):
        engine.prepare(["verify"])
        self._engine, self._drafter = engine, drafter
        self.drafted = self.accepted = self._steps = 0
        self._plain: dict[int, float] = {}  # answers -> seconds of a step without drafts
        self._verified: dict[int, float] = {}  # rows -> seconds of a step with drafts
        self._drafting = 0.0  # seconds of a drafted token for one answer
        self._rates: weakref.WeakKeyDictionary[Generation, float] = weakref.WeakKeyDictionary()

    def decode(self, engine: Engine, answers: Tokens[Answer]) -> list[list[Drawn]]:
        """Draw one token or more of each answer, as `decode_plainly`. The caller holds the engine's lock."""
        generations = [generation for generation, _ in answers]
        count, begin = self._best_count(generations), time.perf_counter()
        drafts = self._drafter.draft(generations, count) if count else []
        drafts = [self._fitting(g, draft) for g, draft in zip(generations, drafts, strict=True)] if drafts else []
        drafted = time.perf_counter()
        growing = [(sequence, 1 + len(draft)) for (_, sequence), draft in zip(answers, drafts, strict=bool(drafts))]
        if any(drafts) and engine.sequences.can_grow(growing):
            self._drafting = _averaged(self._drafting, (drafted - begin) / (count * len(answers)))
            return self._verify(answers, drafts)
        drawn = decode_plainly(engine, answers)
        self._plain[len(answers)] = _averaged(self._plain.get(len(answers), 0), time.perf_counter() - drafted)
        for generation in generations if not count else ():
            rate = self._rate(generation)
            self._rates[generation] = rate + _RECOVERY * (FIRST_RATE - rate)
        return drawn

    def _rate(self, generation: Generation) -> float:
        return self._rates.get(generation, FIRST_RATE)

    def _fitting(self, generation: Generation, draft: list[int]) -> list[int]:
        """Return the tokens of a draft that the answer and the context have room for."""
        left = min(generation.max_tokens - generation.usage.completion_tokens - 1, len(draft))
        return draft[: max(0, min(left, self._engine.model.context - len(generation.tokens)))]

    def _best_count(self, generations: list[Generation]) -> int:
        """Return how many tokens to draft for each answer: the most tokens per second, by what was measured."""
        answers = len(generations)
        plain = self._plain.get(answers)
        self._steps += 1
        if plain is None or self._steps % _PLAIN_STEPS == 0:  # keep the time of plain steps up to date
            return 0
        rates = [self._rate(generation) for generation in generations]
        best, speed = 0, answers / plain
        for count in range(1, VERIFY_ROWS // answers):
            tokens = sum((1 - rate ** (count + 1)) / (1 - rate) for rate in rates)
            seconds = self._seconds(answers * (1 + count), plain) + count * answers * self._drafting
            if tokens / seconds > speed:
                best, speed = count, tokens / seconds
        return best

    def _seconds(self, rows: int, plain: float) -> float:
        """Return the time of a step with so many rows: measured, or as with fewer rows, so that it is tried."""
        measured = [seconds for other, seconds in self._verified.items() if other <= rows]
        return self._verified.get(rows) or max(measured, default=plain)

    def _verify(self, answers: Tokens[Answer], drafts: list[list[int]]) -> list[list[Drawn]]:
        """Run the last token of each answer with its draft, and draw tokens until the draft differs."""
        begin = time.perf_counter()
        parts = [(sequence, [g.tokens[-1], *draft]) for (g, sequence), draft in zip(answers, drafts, strict=True)]
        logits = self._engine.verify(parts)
        drawn: list[list[Drawn]] = []
        row = 0
        for (generation, sequence), draft in zip(answers, drafts, strict=True):
            rows = logits[row : row + 1 + len(draft)]
            row += len(rows)
            tokens, used = self._draw(generation, draft, rows)
            self._engine.sequences.truncate(sequence, len(sequence.tokens) - len(rows) + used)
            drawn.append(tokens)
        self._verified[row] = _averaged(self._verified.get(row, 0), time.perf_counter() - begin)
        return drawn

    def _draw(self, generation: Generation, draft: list[int], logits: np.ndarray) -> tuple[list[Drawn], int]:
        """Draw a token from each row of logits while the draft predicts the tokens; return them and the rows used.

        logits: f32[len(draft) + 1, vocabulary], row-major.
        """
        drawn: list[Drawn] = []
        used, rate = 0, self._rate(generation)
        for predicted, row in zip([*draft, -1], logits, strict=True):
            generation.sampler.native.draw(row)
            used += 1
            token = taken(generation)
            if token is not None:
                drawn.append(token)
            if generation.finish_reason is not None or predicted < 0:
                break
            is_right = generation.token == predicted
            rate += _NEWEST * (is_right - rate)
            if not is_right:
                break
            self.accepted += 1
            generation.usage.accepted_tokens += 1
        self.drafted += len(draft)
        generation.usage.drafted_tokens += len(draft)
        self._rates[generation] = min(rate, _MOST_RATE)
        return drawn, used


def _averaged(present: float, new: float) -> float:
    """Return the moving average of a time with a new measurement; 0 for no measurement yet.

    It falls faster than it rises: interruptions by other work only add time.
    """
    weight = 0.5 if new < present else 0.1
    return present + weight * (min(new, _SLOWEST * present) - present) if present else new

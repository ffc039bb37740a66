"""Speculative decoding: several tokens in a step of the model, without any change of the answers.

A draft of the next tokens runs together with the last token. Each token is then drawn as without a draft, from its row
of logits and with its own random number, for as long as the draft predicted the tokens before it. So an answer has the
same tokens, also when they are sampled (Leviathan et al. 2023 keep only the distribution).
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence as Tokens
from typing import Protocol

import numpy as np

from ingot.errors import InputError, UnsupportedError
from ingot.llm.engine import VERIFY_ROWS, Engine
from ingot.llm.generation import Answer, Drawn, Generation, decode_plainly, taken
from ingot.llm.memory import allocated
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import Sequence

NGRAMS = (4, 3, 2)  # lengths of the texts that prompt lookup searches, the longest first
FIRST_RATE = 0.6  # the share of tokens that drafts are expected to predict, before any measurement
_NEWEST, _TYPICAL = 0.15, 0.03  # the weight of a token in the rate of one answer, and of all
_RECOVERY = 0.01  # by which an unused rate approaches the first one, so that drafts are tried again
_FEW = 4  # numbers of drafted tokens that are tried after the best one
_PLAIN_STEPS = 32  # of which one runs without drafts
_SLOWEST = 3.0  # the largest factor by which one measurement of a time may exceed the present one


class Drafter(Protocol):
    """Predicts the next tokens of answers."""

    def sources(self, generations: Tokens[Generation]) -> list[int]:
        """Return a number for the source of each answer's next draft; 0 if there is none.

        Drafts of one source are right equally often.
        """

    def draft(self, generations: Tokens[Generation], count: int) -> list[list[int]]:
        """Return up to `count` tokens for each of the answers, none where it cannot predict any."""


class Lookup:
    """Drafts from the answer's own text: the tokens that followed its last ones before (Saxena 2023).

    Finds text that repeats, such as code that is edited and documents that are quoted.
    """

    def __init__(self) -> None:
        self._indexes: weakref.WeakKeyDictionary[Generation, _Index] = weakref.WeakKeyDictionary()

    def sources(self, generations: Tokens[Generation]) -> list[int]:
        """Return the lengths of the texts that were found before."""
        return [self._index(generation).match(generation.tokens)[0] for generation in generations]

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
        self._found = (0, 0)

    def match(self, tokens: list[int]) -> tuple[int, int]:
        """Return how many tokens at the text's end occur earlier, 0 for none, and the position after them."""
        if len(tokens) == self._indexed:
            return self._found
        for end in range(max(1, self._indexed), len(tokens)):  # without the end itself
            for length in NGRAMS:
                if length <= end:
                    self._after[tuple(tokens[end - length : end])] = end
        self._indexed, self._found = len(tokens), (0, 0)
        for length in NGRAMS:
            begin = self._after.get(tuple(tokens[-length:])) if length <= len(tokens) else None
            if begin is not None:
                self._found = length, begin
                break
        return self._found

    def continuation(self, tokens: list[int], count: int) -> list[int]:
        """Return the `count` tokens after an earlier occurrence of the text's end; a period is continued."""
        length, begin = self.match(tokens)
        found = tokens[begin : begin + count] if length else []
        return [found[i % len(found)] for i in range(count)] if 0 < len(found) < count else found


class DraftModel:
    """Drafts by a small language model with the same tokens.

    Its sequences stay cached between steps: each draft computes only the tokens since the last one.
    """

    def __init__(self, engine: Engine, vocab_size: int):
        """vocab_size: of the model whose tokens are drafted. Raises UnsupportedError for recurrent state."""
        _expect_no_state(engine)
        self._engine, self._vocab_size = engine, min(vocab_size, engine.model.vocab_size)
        self._samplers: weakref.WeakKeyDictionary[Generation, Sampler] = weakref.WeakKeyDictionary()
        self._owner = (None for _ in ())  # the active sequences are its own
        self._run = weakref.ref(self._owner)

    @property
    def nbytes(self) -> int:
        """Bytes of the small model's weights, cache and activations."""
        return allocated(self._engine).total

    def sources(self, generations: Tokens[Generation]) -> list[int]:
        """Return 1 for each answer."""
        return [1] * len(generations)

    def draft(self, generations: Tokens[Generation], count: int) -> list[list[int]]:
        """Return the tokens that the small model draws with the random numbers that the answers will be drawn with.

        Its logits that are no numbers end a draft, and no answer.
        """
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
            active.append((generation, sequence))
            with contextlib.suppress(InputError):  # no token was drawn
                engine.prefill(sequence, tokens[len(sequence.tokens) :], sampler)
            drafts[generation].append(sampler.token)
        drawing = active
        for _ in range(count - 1):
            drawing = [(generation, sequence) for generation, sequence in drawing if drafts[generation][-1] >= 0]
            if drawing:
                engine.decode([(sequence, drafts[g][-1], self._samplers[g]) for g, sequence in drawing])
            for generation, _ in drawing:
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


def _expect_no_state(engine: Engine) -> None:
    """Raise UnsupportedError for a model whose sequences cannot be cut back to the tokens before a wrong draft."""
    if engine.model.has_recurrent_state:
        name = engine.model.config["model_type"]
        raise UnsupportedError(f"drafts: not with recurrent state, which cannot be cut back, got {name}")


def _below(tokens: list[int], limit: int) -> list[int]:
    """Return the tokens before the first one that is not below a limit."""
    end = next((i for i, token in enumerate(tokens) if not 0 <= token < limit), len(tokens))
    return tokens[:end]


class Speculation:
    """Decodes answers with drafts for as long as the measured times and rates promise more tokens per second.

    drafted, accepted: tokens of drafts that ran, and that were drawn. Raises UnsupportedError for recurrent state.
    """

    def __init__(self, engine: Engine, drafter: Drafter):
        _expect_no_state(engine)
        engine.prepare(["verify"])
        self._engine, self._drafter = engine, drafter
        self.drafted = self.accepted = self._steps = 0
        self._plain: dict[int, float] = {}  # answers -> seconds of a step without drafts
        self._verified: dict[int, float] = {}  # rows -> seconds of a step with drafts
        self._drafting = 0.0  # seconds of a drafted token for one answer
        self._typical: dict[int, float] = {}  # source -> rate of right tokens, of all answers
        self._rates: weakref.WeakKeyDictionary[Generation, dict[int, float]] = weakref.WeakKeyDictionary()

    @property
    def draft_bytes(self) -> int:
        """Bytes of the draft model; 0 without one."""
        return self._drafter.nbytes if isinstance(self._drafter, DraftModel) else 0

    def decode(self, engine: Engine, answers: Tokens[Answer]) -> list[list[Drawn]]:
        """Draw one token or more of each answer, as `decode_plainly`. The caller holds the engine's lock."""
        if len(answers) >= VERIFY_ROWS:
            return decode_plainly(engine, answers)
        sources = self._drafter.sources([generation for generation, _ in answers])
        count, begin = self._best_count([g for g, _ in answers], sources), time.perf_counter()
        drafts = self._drafts(answers, sources, count) if count else []
        drafted = time.perf_counter()
        if any(drafts) and engine.sequences.can_grow(_growth(answers, drafts)):
            self._drafting = _averaged(self._drafting, (drafted - begin) / (count * sum(map(bool, drafts))))
            return self._verify(answers, sources, drafts)
        drawn = decode_plainly(engine, answers)
        self._plain[len(answers)] = _averaged(self._plain.get(len(answers), 0), time.perf_counter() - drafted)
        for (generation, _), source in zip(answers, sources, strict=True):
            if source and not count:
                rate = self._rate(generation, source)
                self._rates[generation][source] = rate + _RECOVERY * (FIRST_RATE - rate)
        return drawn

    def _rate(self, generation: Generation, source: int) -> float:
        """Return the measured rate of right tokens from a source, at first that of all answers."""
        typical = self._typical.setdefault(source, FIRST_RATE)
        return self._rates.setdefault(generation, {}).setdefault(source, typical)

    def _drafts(self, answers: Tokens[Answer], sources: list[int], count: int) -> list[list[int]]:
        """Return a draft for each answer: at most `count` tokens, and as many as its end and the context allow."""
        drafting = [generation for (generation, _), source in zip(answers, sources, strict=True) if source]
        drafts = dict(zip(drafting, self._drafter.draft(drafting, count), strict=True))
        fitting = []
        for generation, _ in answers:
            left = generation.max_tokens - generation.usage.completion_tokens - 1
            most = max(0, min(left, self._engine.model.context - len(generation.tokens)))
            fitting.append(drafts.get(generation, [])[:most])
        return fitting

    def _best_count(self, generations: list[Generation], sources: list[int]) -> int:
        """Return how many tokens to draft for each answer: the most tokens per second, by what was measured."""
        answers = len(generations)
        plain = self._plain.get(answers)
        self._steps += 1
        if plain is None or self._steps % _PLAIN_STEPS == 0:  # keep the time of plain steps up to date
            return 0
        rates = [self._rate(g, source) for g, source in zip(generations, sources, strict=True) if source]
        best, speed = 0, answers / plain
        expected, powers, seconds = float(answers), rates, plain
        for count in range(1, (VERIFY_ROWS - answers) // len(rates) + 1 if rates else 0):
            expected += sum(powers)
            powers = [power * rate for power, rate in zip(powers, rates, strict=True)]
            # A number of rows that was not measured is expected to cost as little as fewer rows, so that it is tried.
            seconds = self._verified.get(answers + count * len(rates), seconds)
            new = expected / (seconds + count * len(rates) * self._drafting)
            if new > speed:
                best, speed = count, new
            elif count > best + _FEW:  # more are worth less and less
                break
        return best

    def _verify(self, answers: Tokens[Answer], sources: list[int], drafts: list[list[int]]) -> list[list[Drawn]]:
        """Run the last token of each answer with its draft, and draw tokens until the draft differs."""
        begin = time.perf_counter()
        parts = [(sequence, [g.tokens[-1], *draft]) for (g, sequence), draft in zip(answers, drafts, strict=True)]
        logits = self._engine.verify(parts)
        drawn: list[list[Drawn]] = []
        row = 0
        for (generation, sequence), source, draft in zip(answers, sources, drafts, strict=True):
            rows = logits[row : row + 1 + len(draft)]
            row += len(rows)
            tokens, used = self._draw(generation, source, draft, rows)
            self._engine.sequences.truncate(sequence, len(sequence.tokens) - len(rows) + used)
            drawn.append(tokens)
        self._verified[row] = _averaged(self._verified.get(row, 0), time.perf_counter() - begin)
        return drawn

    def _draw(
        self, generation: Generation, source: int, draft: list[int], logits: np.ndarray
    ) -> tuple[list[Drawn], int]:
        """Draw a token from each row of logits while the draft predicts the tokens; return them and the rows used.

        logits: f32[len(draft) + 1, vocabulary], row-major.
        """
        drawn: list[Drawn] = []
        used = accepted = 0
        for predicted, row in zip([*draft, -1], logits, strict=True):
            generation.sampler.native.draw(row)
            used += 1
            token = taken(generation)
            if token is not None:
                drawn.append(token)
            if generation.finish_reason is not None:
                break
            if predicted < 0:
                continue
            if generation.token != predicted:
                self._learn(generation, source, accepted, False)
                break
            accepted += 1
        else:
            self._learn(generation, source, accepted, True)
        self.drafted, self.accepted = self.drafted + len(draft), self.accepted + accepted
        generation.usage.drafted_tokens += len(draft)
        generation.usage.accepted_tokens += accepted
        return drawn, used

    def _learn(self, generation: Generation, source: int, accepted: int, is_whole: bool) -> None:
        """Update the rates of a source with its right tokens, and a wrong one unless the draft was whole."""
        own, typical = self._rate(generation, source), self._typical[source]
        self._rates[generation][source] = _learned(own, _NEWEST, accepted, is_whole)
        self._typical[source] = _learned(typical, _TYPICAL, accepted, is_whole)


def _learned(rate: float, weight: float, accepted: int, is_whole: bool) -> float:
    """Return the moving average of a rate after so many right tokens, and a wrong one unless the draft was whole."""
    rate = 1 - (1 - rate) * (1 - weight) ** accepted
    return rate if is_whole else rate * (1 - weight)


def _growth(answers: Tokens[Answer], drafts: list[list[int]]) -> list[tuple[Sequence, int]]:
    """Return the number of tokens by which each sequence grows in a step with drafts."""
    return [(sequence, 1 + len(draft)) for (_, sequence), draft in zip(answers, drafts, strict=True)]


def _averaged(present: float, new: float) -> float:
    """Return the moving average of a time with a new measurement; 0 for no measurement yet.

    It falls faster than it rises: interruptions by other work only add time.
    """
    weight = 0.5 if new < present else 0.1
    return present + weight * (min(new, _SLOWEST * present) - present) if present else new

"""Active answers and their scheduler, which decodes one sequence or several together."""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from ingot.errors import IngotError
from ingot.llm.constraint import Constraint
from ingot.llm.engine import Engine
from ingot.llm.sampling import LogProbs, Sampler, Sampling
from ingot.llm.sequences import Run, Sequence
from ingot.support.columns import counted


@dataclass(slots=True)
class Usage:
    """Token counts and times of an answer, in seconds. reused_tokens: tokens of the prompt found in a cached sequence.

    drafted_tokens, accepted_tokens: tokens that speculative decoding predicted, and those of them that were drawn.
    is_cut: whether max_tokens ended the answer before it followed its schema or expression.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafted_tokens: int = field(default=0, repr=False)
    accepted_tokens: int = field(default=0, repr=False)
    is_cut: bool = False

    @property
    def prefill_tokens_per_second(self) -> float:
        """The speed of the prompt tokens that were computed."""
        return (self.prompt_tokens - self.reused_tokens) / max(self.prefill_seconds, 1e-9)

    @property
    def decode_tokens_per_second(self) -> float:
        """The speed of the tokens after the first, which belongs to the prefill."""
        return max(self.completion_tokens - 1, 0) / max(self.decode_seconds, 1e-9)


class Generation:
    """One answer. finish_reason: None while it is active, then "stop", "length" or the reason given to `stop`.

    prompt: at least one token, at most the context. tokens: the prompt and the tokens drawn so far. ends: tokens that
    end the answer and are not part of it. token, logprobs: of the token drawn last; logprobs is None unless that option
    is set. timeout: seconds until the answer ends with the finish reason "timeout", from now on. computed: tokens of
    the prompt that a service has computed or found in the cache so far.
    """

    def __init__(
        self,
        prompt: Tokens[int],
        *,
        sampling: Sampling,
        vocab_size: int,
        max_tokens: int,
        ends: Iterable[int] = (),
        constraint: Constraint | None = None,
        timeout: float | None = None,
    ):
        self.prompt = list(prompt)
        self.tokens = list(prompt)
        self.sampler = Sampler(sampling, vocab_size, None if constraint is None else constraint.mask)
        self.sampler.accept(self.prompt)
        self.constraint = constraint
        self.ends = frozenset(ends)
        self.max_tokens = max_tokens
        self.deadline = math.inf if timeout is None else time.perf_counter() + timeout
        self.usage = Usage(prompt_tokens=len(self.prompt))
        self.finish_reason: str | None = None
        self.run: Run | None = None
        self.sequence: Sequence | None = None
        self.token = -1
        self.computed = 0
        self.logprobs: LogProbs | None = None

    def __repr__(self) -> str:
        drawn, state = self.usage.completion_tokens, self.finish_reason or "going on"
        prompt = counted(len(self.prompt), "token")
        return f"<Generation: prompt of {prompt}, {drawn} of at most {self.max_tokens} drawn, {state}>"

    def stop(self, reason: str = "stop") -> None:
        """End the answer from outside, for example when its text contains a stop string. Any thread may call it."""
        self.finish_reason = self.finish_reason or reason

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended; an answer after its deadline ends here."""
        if self.max_tokens == 0:
            self.stop("length")
        elif self.deadline < time.perf_counter():
            self.stop("timeout")
        return self.finish_reason is not None

    def take(self) -> bool:
        """Add the token just drawn. Return False if it ends the answer and is not part of it."""
        self.token, self.logprobs = self.sampler.token, self.sampler.logprobs
        if self.token in self.ends:
            self.finish_reason = "stop"
            return False
        self.tokens.append(self.token)
        self.usage.completion_tokens += 1
        if self.constraint is not None:
            self.constraint.accept(self.token)
            if self.constraint.is_complete:
                self.finish_reason = "stop"
        if self.usage.completion_tokens >= self.max_tokens:
            self.finish_reason = self.finish_reason or "length"
            self.usage.is_cut = self.constraint is not None and not self.constraint.may_end
        return True


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token of an answer, with its logprobs if that option is set; or the error that ended the answer."""

    generation: Generation
    token: int
    logprobs: LogProbs | None = None
    error: IngotError | None = None


Answer = tuple[Generation, Sequence]
Decode = Callable[[Engine, Tokens[Answer]], list[list[Drawn]]]


def taken(generation: Generation) -> Drawn | None:
    """Add the token that the sampler drew. Return None if it is not part of the answer, or if the answer has ended."""
    if generation.finish_reason is not None:
        return None
    try:
        generation.sampler.check()
        if not generation.take():
            return None
    except IngotError as error:
        generation.stop("error")
        return Drawn(generation, -1, error=error)
    return Drawn(generation, generation.token, generation.logprobs)


def decode_plainly(engine: Engine, answers: Tokens[Answer]) -> list[list[Drawn]]:
    """Draw one token of each answer. An answer that ended has none. The caller holds the engine's lock."""
    engine.decode([(sequence, generation.tokens[-1], generation.sampler) for generation, sequence in answers])
    tokens = [taken(generation) for generation, _ in answers]
    return [[] if token is None else [token] for token in tokens]


def one_by_one(tokens: list[Drawn]) -> Iterator[Drawn]:
    """Yield tokens that an answer drew in one step, each with the answer as it was then; end when it is stopped."""
    if len(tokens) < 2:
        yield from tokens
        return
    generation = tokens[0].generation
    reason = generation.finish_reason
    if reason is not None:  # else another thread may end the answer now
        generation.finish_reason = None
    for drawn in tokens:
        generation.token, generation.logprobs = drawn.token, drawn.logprobs
        if drawn is tokens[-1] and reason is not None:
            generation.finish_reason = reason
        yield drawn
        if generation.finish_reason is not None:
            return


class Scheduler:
    """Runs generations on an engine: prompts one after another, then one token at a time for all active ones together.

    Several threads, and several iterators of one thread, may generate at once: their steps alternate.
    """

    def __init__(self, engine: Engine, decode: Decode = decode_plainly):
        self.engine, self._decode = engine, decode

    def run(self, generations: Iterable[Generation]) -> Iterator[Generation]:
        """Yield a generation each time it has a new `token`, until all have finished; they start in the given order.

        Waits while other threads use every slot of the cache. Raises InputError if other iterators of this thread do.
        """
        waiting = [generation for generation in generations if generation.max_tokens > 0]
        run = self._run(deque(waiting))
        for generation in waiting:
            generation.run = weakref.ref(run)  # slots stay reserved until the run ends
        return run

    def _run(self, waiting: deque[Generation]) -> Generator[Generation, None, None]:
        active: list[Generation] = []
        try:
            while waiting or active:
                for generation in self._admit(waiting, active):
                    if self._begin(generation):
                        yield generation
                unfinished = [generation for generation in active if not generation.is_over]
                for tokens in self._advance(unfinished) if unfinished else ():
                    for drawn in one_by_one(tokens):
                        if drawn.error is not None:
                            raise drawn.error
                        yield drawn.generation
        finally:
            with self.engine.steps.lock:  # the garbage collector may close the generator during another step
                self._release(active)

    def _admit(self, waiting: deque[Generation], active: list[Generation]) -> list[Generation]:
        """Release finished generations and start waiting ones in the free slots, before another caller can use them."""
        sequences = self.engine.sequences

        def admit() -> list[Generation]:
            joined = []
            self._release([generation for generation in active if generation.finish_reason is not None])
            active[:] = [generation for generation in active if generation.finish_reason is None]
            while waiting and (sequences.has_room or not active):
                waiting[0].sequence = self.engine.start(waiting[0].prompt, waiting[0].run)
                active.append(waiting[0])
                joined.append(waiting.popleft())
            return joined

        if active:
            with self.engine.lock:
                return admit()
        return self.engine.with_room(admit)

    def _begin(self, generation: Generation) -> bool:
        """Compute the prompt and draw the first token. Return False if the token is not part of the answer."""
        begin, sequence = time.perf_counter(), generation.sequence
        assert sequence is not None
        with self.engine.lock:
            cached = generation.usage.reused_tokens = len(sequence.tokens)
            self.engine.prefill(sequence, generation.prompt[cached:], generation.sampler)
        generation.usage.prefill_seconds = time.perf_counter() - begin
        return generation.take()

    def _advance(self, active: list[Generation]) -> list[list[Drawn]]:
        """Decode for each generation; return the new tokens of each."""
        begin = time.perf_counter()
        with self.engine.lock:
            drawn = self._decode(self.engine, [(g, g.sequence) for g in active if g.sequence is not None])
        seconds = time.perf_counter() - begin
        for generation in active:
            generation.usage.decode_seconds += seconds
        return drawn

    def _release(self, generations: Iterable[Generation]) -> None:
        """Release the slots of generations. The caller holds the lock."""
        for generation in generations:
            sequence = generation.sequence
            generation.sequence = None  # before, so that no sequence is finished twice
            if sequence is not None:
                self.engine.sequences.finish(sequence)

"""The service of a language model: answers for many threads, decoded together for as long as the process lives.

Continuous batching (Yu et al. 2022, "Orca") with prompts in chunks (Agrawal et al. 2023, "Sarathi"): each step runs one
token of every answer and a chunk of waiting prompts, so that a long prompt does not delay other answers.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from ingot.errors import IngotError, InputError, ResourceError, StoppedError
from ingot.llm.engine import Engine, mixed_rows
from ingot.llm.generation import Generation
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import Sequence

MAX_WAITING = 256  # answers that wait for a sequence
STEP_SECONDS = 0.05  # the time of a step that decodes answers and computes a chunk of a prompt
LEAST_CHUNK = 16  # tokens of a prompt that a step computes at least
_PAUSE_SECONDS = 0.005  # until free sequences are looked for again
_FORGETTING = 0.2  # the weight of the newest measurement of the time per token

Notify = Callable[[Generation, bool, "IngotError | None"], None]


class BusyError(ResourceError):
    """The queue of a service is full."""


@dataclass
class Counts:
    """Totals of a service since its start: tokens, answers and steps."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0


@dataclass(eq=False)
class _Request:
    generation: Generation
    notify: Notify
    sequence: Sequence | None = None
    submitted: float = field(default_factory=time.perf_counter)

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        if self.generation.max_tokens == 0:
            self.generation.stop("length")
        return self.generation.finish_reason is not None

    @property
    def rest(self) -> list[int]:
        """The tokens of the prompt that are not computed yet."""
        assert self.sequence is not None
        return self.generation.prompt[len(self.sequence.tokens) :]


@dataclass(frozen=True, slots=True)
class _Part:
    """The tokens of a request in a step. draws: whether the request's next token is drawn after them."""

    request: _Request
    tokens: list[int]
    draws: bool

    @property
    def sequence(self) -> Sequence:
        assert self.request.sequence is not None
        return self.request.sequence

    @property
    def sampler(self) -> Sampler | None:
        return self.request.generation.sampler if self.draws else None


class Service:
    """Draws the tokens of many answers on one engine, in a thread of its own.

    max_waiting: the most answers that wait for one of the engine's sequences. In f32 an answer has the same bits as if
    it were drawn alone. Use it as a context manager, or call `close`.
    """

    def __init__(self, engine: Engine, max_waiting: int = MAX_WAITING):
        engine.prepare(["mixed"])
        self.engine = engine
        self.max_waiting = max_waiting
        self.counts = Counts()
        self._waiting: list[tuple[int, int, _Request]] = []  # a heap: (priority, number of arrival, request)
        self._arrivals = itertools.count()
        self._active: list[_Request] = []
        self._changed = threading.Condition()
        self._closing = False
        self._seconds_per_token = 0.0
        self._thread = threading.Thread(target=self._work, name="ingot service", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Service: {len(self._active)} active of {self.engine.sequences.count}, {len(self._waiting)} waiting>"

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether the service draws answers: neither closed nor ended by a bug."""
        return not self._closing

    @property
    def waiting(self) -> int:
        """The number of answers that wait for a sequence."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """The number of answers that have a sequence."""
        return len(self._active)

    def submit(self, generation: Generation, notify: Notify, priority: int = 0) -> None:
        """Queue an answer. Lower priorities go first, equal ones in order of arrival.

        notify(generation, is_token, error) is called in the thread of the service: with is_token after each new
        `generation.token`, and once without it at the end, when `generation.finish_reason` or the error is set. It must
        return soon and raise nothing.

        Raises BusyError if max_waiting answers wait, StoppedError after `close`.
        """
        with self._changed:
            if self._closing:
                raise StoppedError("service: closed, got another answer")
            self.expect_room()
            heapq.heappush(self._waiting, (priority, next(self._arrivals), _Request(generation, notify)))
            self._changed.notify()

    def expect_room(self, count: int = 1) -> None:
        """Raise BusyError unless so many answers more can be queued."""
        waiting = len(self._waiting)
        if waiting + count > self.max_waiting:
            raise BusyError(
                f"service: busy, got {count} more and {waiting} waiting, expected at most {self.max_waiting}"
            )

    def close(self) -> None:
        """End the service and its answers, with the finish reason "closed"."""
        with self._changed:
            self._closing = True
            for request in [*self._active, *(request for *_, request in self._waiting)]:
                request.generation.stop("closed")
            self._changed.notify()
        self._thread.join()

    # -- in the thread of the service ---------------------------------------------------------------------------

    def _work(self) -> None:
        steps = self._steps()
        self._run = weakref.ref(steps)  # the sequences of the service are active until the generator ends
        try:
            for _ in steps:
                self.counts.steps += 1
        finally:  # nobody waits for ever, not even after a bug
            self._closing = True
            error = StoppedError("service: ended before the answer")
            for request in [*self._active, *(request for *_, request in self._waiting)]:
                self._fail(request, error)

    def _steps(self) -> Generator[None, None, None]:
        while True:
            with self._changed:
                while not self._waiting and not self._active:
                    if self._closing:
                        return
                    self._changed.wait()
            self._release()
            self._admit()
            if self._active:
                self._step()
                yield
            elif self._waiting:
                time.sleep(_PAUSE_SECONDS)  # other callers of the model use every sequence

    def _admit(self) -> None:
        """Start waiting answers in free sequences; end those that were stopped while they waited."""
        sequences = self.engine.sequences
        with self.engine.lock, self._changed:
            for entry in [entry for entry in self._waiting if entry[2].is_over]:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
                self._end(entry[2])
            while self._waiting and sequences.has_room:
                *_, request = heapq.heappop(self._waiting)
                generation = request.generation
                request.sequence = sequences.start(generation.prompt, self._run)
                generation.usage.reused_tokens = len(request.sequence.tokens)
                self._active.append(request)

    def _step(self) -> None:
        """Run one token of each answer and a chunk of the prompts, and report the new tokens."""
        parts = self._parts()
        begin = time.perf_counter()
        try:
            with self.engine.lock:
                self._compute(parts)
        except IngotError as error:
            for part in parts:
                self._fail(part.request, error)
            return
        seconds = time.perf_counter() - begin
        self._measure(sum(len(part.tokens) for part in parts), seconds)
        for part in parts:
            if part.draws:
                self._take(part.request, seconds)

    def _parts(self) -> list[_Part]:
        """Return the tokens of a step: the last one of each answer, and the next ones of prompts."""
        parts = [_Part(request, [request.generation.token], True) for request in self._active if not request.rest]
        room = self._chunk(len(parts))
        for request in self._active:
            if room and (rest := request.rest):
                parts.append(_Part(request, rest[:room], len(rest) <= room))
                room -= len(parts[-1].tokens)
        return parts

    def _chunk(self, decoding: int) -> int:
        """Return how many tokens of prompts a step computes together with so many answers."""
        most = mixed_rows(self.engine.model.context, self.engine.sequences.count) - decoding
        if not decoding or not self._seconds_per_token:
            return most
        return max(LEAST_CHUNK, min(most, int(STEP_SECONDS / self._seconds_per_token) - decoding))

    def _measure(self, tokens: int, seconds: float) -> None:
        """Update the time per token from a step with a long enough chunk."""
        if tokens >= LEAST_CHUNK:
            new, old = seconds / tokens, self._seconds_per_token
            self._seconds_per_token = new if not old else old + _FORGETTING * (new - old)

    def _compute(self, parts: list[_Part]) -> None:
        if all(part.draws and len(part.tokens) == 1 for part in parts):
            self.engine.decode([(part.sequence, part.tokens[0], part.request.generation.sampler) for part in parts])
        else:
            self.engine.mixed([(part.sequence, part.tokens, part.sampler) for part in parts])

    def _take(self, request: _Request, seconds: float) -> None:
        """Report the token that an answer drew in a step of so many seconds."""
        generation, usage = request.generation, request.generation.usage
        if generation.finish_reason is not None:
            return
        try:
            generation.sampler.check()
        except InputError as error:
            self._fail(request, error)
            return
        if usage.completion_tokens:
            usage.decode_seconds += seconds
        else:
            usage.prefill_seconds = time.perf_counter() - request.submitted
        if generation.take():
            self.counts.completion_tokens += 1
            request.notify(generation, True, None)

    def _fail(self, request: _Request, error: IngotError) -> None:
        request.generation.stop("error")
        self._end(request, error)

    def _release(self) -> None:
        """End finished answers; their sequences stay cached."""
        for request in [each for each in self._active if each.is_over]:
            self._end(request)

    def _end(self, request: _Request, error: IngotError | None = None) -> None:
        generation, counts = request.generation, self.counts
        if request in self._active:
            self._active.remove(request)
        if request.sequence is not None:
            with self.engine.steps.lock:
                self.engine.sequences.finish(request.sequence)
            counts.prompt_tokens += generation.usage.prompt_tokens
            counts.reused_tokens += generation.usage.reused_tokens
        if error is not None:
            counts.failed += 1
        elif generation.finish_reason in ("stop", "length"):
            counts.finished += 1
        else:
            counts.cancelled += 1
        request.notify(generation, False, error)

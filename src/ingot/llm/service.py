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

from ingot.errors import IngotError, ResourceError, StoppedError
from ingot.llm.engine import PAUSE_SECONDS, Engine, mixed_rows
from ingot.llm.generation import Decode, Drawn, Generation, decode_plainly, one_by_one, taken
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import Sequence

MAX_WAITING = 256  # answers that wait for a sequence
STEP_SECONDS = 0.05  # the time of a step that decodes answers and computes a chunk of a prompt
LEAST_CHUNK = 16  # tokens of a prompt that a step computes at least
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
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    preempted: int = 0
    failed: int = 0
    steps: int = 0


@dataclass(eq=False)
class _Request:
    generation: Generation
    notify: Notify
    rank: tuple[int, int]  # priority, and number of arrival
    sequence: Sequence | None = None
    submitted: float = field(default_factory=time.perf_counter)

    def __lt__(self, other: _Request) -> bool:
        return self.rank < other.rank

    @property
    def rest(self) -> list[int]:
        """The tokens whose keys and values are not computed yet; only the last one while the answer is drawn."""
        assert self.sequence is not None
        return self.generation.tokens[len(self.sequence.tokens) :]


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

    max_waiting: the most answers that wait for one of the engine's sequences, None for any number. In f32 an answer has
    the same bits as if it were drawn alone. Use it as a context manager, or call `close`.
    """

    def __init__(self, engine: Engine, max_waiting: int | None = MAX_WAITING, decode: Decode = decode_plainly):
        engine.prepare(["mixed"])
        self.engine = engine
        self._decode = decode
        self.max_waiting = max_waiting
        self.counts = Counts()
        self._waiting: list[_Request] = []  # a heap
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
    def is_open(self) -> bool:
        """Whether it accepts answers: it is not closed, and its thread lives, which a forked child does not have."""
        return not self._closing and self._thread.is_alive()

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
            heapq.heappush(self._waiting, _Request(generation, notify, (priority, next(self._arrivals))))
            self._changed.notify()

    def expect_room(self, count: int = 1) -> None:
        """Raise BusyError unless so many answers more can be queued."""
        waiting = len(self._waiting)
        if self.max_waiting is not None and waiting + count > self.max_waiting:
            raise BusyError(
                f"service: busy, got {count} more and {waiting} waiting, expected at most {self.max_waiting}"
            )

    def close(self) -> None:
        """End the service and its answers, with the finish reason "closed"."""
        if not self._thread.is_alive():  # a forked child has no such thread, and another may have held the lock
            return
        with self._changed:
            self._closing = True
            for request in [*self._active, *self._waiting]:
                request.generation.stop("closed")
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # the garbage collector may call from any thread
            self._thread.join()

    # -- in the thread of the service ---------------------------------------------------------------------------

    def _work(self) -> None:
        steps = self._steps()
        self._run = weakref.ref(steps)  # the sequences of the service are active until the generator ends
        try:
            for _ in steps:
                self.counts.steps += 1
        finally:  # nobody waits for ever, not even after a bug
            with self._changed:
                self._closing = True
            error = StoppedError("service: ended before the answer")
            for request in [*self._active, *self._waiting]:
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
                time.sleep(PAUSE_SECONDS)  # other callers of the model use every sequence

    def _admit(self) -> None:
        """Start waiting answers in free sequences; end those that were stopped while they waited.

        An answer starts in the step that computes its first tokens, so that it finds those of earlier prompts in the
        cache.
        """
        sequences = self.engine.sequences
        rests = [len(request.rest) for request in self._active]
        prompts = sum(rest for rest in rests if rest > 1)
        room = self._chunk(rests.count(1))
        with self.engine.lock, self._changed:
            for request in [request for request in self._waiting if request.generation.is_over]:
                self._waiting.remove(request)
                heapq.heapify(self._waiting)
                self._end(request)
            while self._waiting and prompts < room and sequences.has_room:
                if not sequences.can_start(self._waiting[0].generation.tokens):
                    break
                request = heapq.heappop(self._waiting)
                generation = request.generation
                request.sequence = self.engine.start(generation.tokens, self._run)
                generation.computed = len(request.sequence.tokens)
                if not generation.usage.completion_tokens:
                    generation.usage.reused_tokens = len(request.sequence.tokens)
                self._active.append(request)
                prompts += len(request.rest)

    def _put_back(self) -> None:
        """Put the youngest answer of the lowest priority back into the queue: its tokens are computed again later."""
        request = max(self._active)
        assert request.sequence is not None
        self._active.remove(request)
        self.engine.sequences.finish(request.sequence)
        request.sequence = None
        self.counts.preempted += 1
        with self._changed:
            heapq.heappush(self._waiting, request)

    def _step(self) -> None:
        """Run one token of each answer and a chunk of the prompts, and report the new tokens."""
        begin, sequences = time.perf_counter(), self.engine.sequences
        parts: list[_Part] = []
        try:
            with self.engine.lock:
                parts = self._parts()
                while parts and not sequences.can_grow([(part.sequence, len(part.tokens)) for part in parts]):
                    self._put_back()
                    parts = self._parts()
                drawn = self._compute(parts) if parts else []
        except IngotError as error:
            for part in parts:
                self._fail(part.request, error)
            return
        seconds = time.perf_counter() - begin
        self._measure(sum(len(part.tokens) for part in parts), seconds)
        for part in parts:
            if not part.draws:
                part.request.generation.computed = len(part.sequence.tokens)
        for request, tokens in drawn:
            self._report(request, tokens, seconds)

    def _parts(self) -> list[_Part]:
        """Return the tokens of a step: the last one of each answer, and the next ones of prompts."""
        rests = [(request, request.rest) for request in self._active]
        parts = [_Part(request, rest, True) for request, rest in rests if len(rest) == 1]
        room = self._chunk(len(parts))
        for request, rest in rests:
            if room and len(rest) > 1:
                assert request.sequence is not None
                tokens = rest[: self.engine.sequences.piece(request.sequence, min(room, len(rest)))]
                parts.append(_Part(request, tokens, len(tokens) == len(rest)))
                room -= len(tokens)
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

    def _compute(self, parts: list[_Part]) -> list[tuple[_Request, list[Drawn]]]:
        """Run a step; return the tokens that answers drew. The caller holds the engine's lock."""
        drawing = [part.request for part in parts if part.draws]
        if all(part.draws and len(part.tokens) == 1 for part in parts):
            steps = self._decode(self.engine, [(part.request.generation, part.sequence) for part in parts])
        else:
            self.engine.mixed([(part.sequence, part.tokens, part.sampler) for part in parts])
            tokens = [taken(request.generation) for request in drawing]
            steps = [[] if token is None else [token] for token in tokens]
        return list(zip(drawing, steps, strict=True))

    def _report(self, request: _Request, tokens: list[Drawn], seconds: float) -> None:
        """Report the tokens that an answer drew in a step of so many seconds."""
        usage = request.generation.usage
        if usage.completion_tokens > len(tokens):
            usage.decode_seconds += seconds
        else:
            usage.prefill_seconds = time.perf_counter() - request.submitted
        for drawn in one_by_one(tokens):
            if drawn.error is not None:
                self._fail(request, drawn.error)
            else:
                self.counts.completion_tokens += 1
                request.notify(request.generation, True, None)

    def _fail(self, request: _Request, error: IngotError) -> None:
        request.generation.stop("error")
        self._end(request, error)

    def _release(self) -> None:
        """End finished answers; their sequences stay cached."""
        for request in [each for each in self._active if each.generation.is_over]:
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
            counts.drafted_tokens += generation.usage.drafted_tokens
            counts.accepted_tokens += generation.usage.accepted_tokens
        if error is not None:
            counts.failed += 1
        elif generation.finish_reason in ("stop", "length"):
            counts.finished += 1
        else:
            counts.cancelled += 1
        request.notify(generation, False, error)

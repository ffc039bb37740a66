"""Runs of a model for many threads: requests that wait at the same time are joined along the first dim."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import IngotError, InputError, StoppedError, bounded
from ingot.llm.service import MAX_WAITING, BusyError
from ingot.session.inference import InferenceSession

MAX_ROWS = 32  # rows of the first dim in a joined run
MAX_DELAY_SECONDS = 0.005  # for which a run waits for other requests
_DELAY_SHARE = 0.5  # of the measured time of a run, for which it waits at most
_FORGETTING = 0.2  # the weight of the newest measurement
_COMPARED = 4  # joined runs whose answers are compared with those of separate runs

Arrays = dict[str, np.ndarray]


@dataclass(eq=False)
class _Call:
    feed: Arrays
    rows: int
    key: tuple[object, ...]  # what calls of one run have in common; () for a call that runs alone
    future: Future[list[np.ndarray]] = field(default_factory=Future)


def end_all(futures: Iterable[Future[Any]]) -> None:
    """Give each future that has no result yet a StoppedError."""
    for future in futures:
        if future.running() or (not future.done() and future.set_running_or_notify_cancel()):
            future.set_exception(StoppedError("model: closed before the run"))


def joined_dim(session: InferenceSession) -> str | None:
    """Return the symbol that is the first dim of each input and output, and of no other dim; None without one."""
    arguments = [*session.get_inputs(), *session.get_outputs()]
    firsts = {argument.shape[0] if argument.shape else None for argument in arguments}
    rest = [dim for argument in arguments for dim in argument.shape[1:] if isinstance(dim, str)]
    (first, *others) = firsts
    if others or not isinstance(first, str) or any(argument.type == "tensor(string)" for argument in arguments):
        return None
    return first if first.isidentifier() and not any(first in re.findall(r"\w+", dim) for dim in rest) else None


class Batcher:
    """Runs a session in a thread of its own.

    Requests are joined if all inputs and outputs have the same symbol as first dim, and nothing else has it. A run
    waits for others at most `MAX_DELAY_SECONDS` and half of its measured time, and only if the last run joined some.
    Each answer has the bits that it has alone: the first joined runs are compared with separate ones, and after a
    difference, as from a sum over the first dim, no request is joined any more.

    most_rows: of a joined run; 1: join none. max_waiting: the most requests that wait.
    """

    def __init__(self, session: InferenceSession, most_rows: int = MAX_ROWS, max_waiting: int = MAX_WAITING):
        self.session, self.max_waiting = session, max_waiting
        self.runs = self.requests = 0
        self._most = most_rows if most_rows > 1 and joined_dim(session) is not None else 1
        self._compared = 0
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._seconds = 0.0
        self._last = 1  # requests of the last run
        self._thread = threading.Thread(target=self._work, name="ingot batches", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Batcher: {self.requests} requests in {self.runs} runs, {len(self._waiting)} waiting>"

    @property
    def is_open(self) -> bool:
        """Whether it accepts requests: it is not closed, and its thread has not ended by a bug."""
        return not self._closing

    @property
    def joins(self) -> bool:
        """Whether requests may be joined."""
        return self._most > 1

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def submit(self, feed: Arrays) -> Future[list[np.ndarray]]:
        """Queue a run; a request whose future is cancelled before does not run. The future raises the errors of
        `InferenceSession.run`.

        Raises BusyError if max_waiting requests wait, StoppedError after `close`.
        """
        shapes = tuple((name, array.dtype, array.shape[1:]) for name, array in feed.items())
        rows = {array.shape[0] if array.ndim else 0 for array in feed.values()}
        count = rows.pop() if len(rows) == 1 else 0
        call = _Call(feed, count, shapes if self.joins and 0 < count < self._most else ())
        with self._changed:
            if self._closing:
                raise StoppedError("model: closed, got another request")
            if len(self._waiting) >= self.max_waiting:
                raise BusyError(f"model: busy, got one more and {self.max_waiting} waiting, expected fewer")
            self._waiting.append(call)
            self._changed.notify()
        return call.future

    def close(self) -> None:
        """End the thread; requests that wait get a StoppedError."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # -- in the thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        calls: list[_Call] = []
        try:
            while calls := self._next():
                started = [call for call in calls if call.future.set_running_or_notify_cancel()]
                if started:
                    self._answer(started)
        finally:  # nobody waits for ever, not even after a bug
            with self._changed:
                self._closing = True
            end_all(call.future for call in [*calls, *self._waiting])

    def _next(self) -> list[_Call]:
        """Wait for requests, and return those of the next run; none after `close`."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if self._last > 1:
                until = time.monotonic() + min(MAX_DELAY_SECONDS, _DELAY_SHARE * self._seconds)
                while not self._closing and self._ready() < self._most and (rest := until - time.monotonic()) > 0:
                    self._changed.wait(rest)
            return [] if self._closing else self._taken()

    def _ready(self) -> int:
        """Return how many rows could run with the request that waits longest; enough for one that runs alone."""
        first = self._waiting[0]
        return sum(call.rows for call in self._waiting if call.key == first.key) if first.key else self._most

    def _taken(self) -> list[_Call]:
        """Remove the request that waits longest, and those that join it, from the queue."""
        first = self._waiting.popleft()
        calls, rows = [first], first.rows
        if first.key and self.joins:
            for call in list(self._waiting):
                if call.key == first.key and rows + call.rows <= self._most:
                    self._waiting.remove(call)
                    calls.append(call)
                    rows += call.rows
        self._last = len(calls)
        return calls

    def _answer(self, calls: list[_Call]) -> None:
        self.requests += len(calls)
        if len(calls) > 1 and self._join(calls):
            return
        for call in calls:
            try:
                call.future.set_result(self._run(call.feed))
            except IngotError as error:
                call.future.set_exception(error)

    def _join(self, calls: list[_Call]) -> bool:
        """Run requests together. Return False, without answers, if each has to run alone."""
        total = sum(call.rows for call in calls)
        try:
            with bounded("joined requests"):
                feed = {name: np.concatenate([call.feed[name] for call in calls]) for name in calls[0].feed}
            results = self._run(feed)
        except IngotError:  # of one of them, which shall not be the others' error
            return False
        if any(result.shape[:1] != (total,) for result in results):
            self._most = 1
            return False
        ends = np.cumsum([call.rows for call in calls])
        answers = [[result[end - call.rows : end] for result in results] for call, end in zip(calls, ends, strict=True)]
        if self._compared < _COMPARED and not self._same_alone(calls, answers):
            self._most = 1
            return False
        for call, answer in zip(calls, answers, strict=True):
            call.future.set_result(answer)
        return True

    def _same_alone(self, calls: list[_Call], answers: list[list[np.ndarray]]) -> bool:
        """Return whether answers of a joined run have the bits of separate runs. Equal inputs prove nothing."""
        try:
            separate = [self._run(call.feed) for call in calls]
        except IngotError:
            return False
        contents = {tuple(array.tobytes() for array in call.feed.values()) for call in calls}
        self._compared += len(contents) > 1
        pairs = [(a, b) for one, other in zip(answers, separate, strict=True) for a, b in zip(one, other, strict=True)]
        return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)

    def _run(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        begin = time.perf_counter()
        results = self.session.run(None, feed)
        seconds = time.perf_counter() - begin
        self._seconds = seconds if not self.runs else self._seconds + _FORGETTING * (seconds - self._seconds)
        self.runs += 1
        if not all(isinstance(result, np.ndarray) for result in results):
            raise InputError("model: an output is no tensor, got a sequence or none, expected tensors alone")
        return results

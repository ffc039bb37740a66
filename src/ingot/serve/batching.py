"""Runs of a model for many threads: requests that wait at the same time are joined along the first dim."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ingot.errors import IngotError, InputError, bounded
from ingot.llm.service import MAX_WAITING
from ingot.serve.queues import Entry, RunQueue
from ingot.session.inference import InferenceSession

MAX_ROWS = 32  # rows of the first dim in a joined run
MAX_DELAY_SECONDS = 0.005  # for which a run waits for other requests
_DELAY_SHARE = 0.5  # of the measured time of a run, for which it waits at most
_FORGETTING = 0.2  # the weight of the newest measurement
_COMPARED = 4  # joined runs whose answers are compared with those of separate runs

Arrays: TypeAlias = dict[str, np.ndarray]
Results: TypeAlias = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class _Call:
    """The arrays of a request. key: what calls of one run have in common; () for a call that runs alone."""

    feed: Arrays
    rows: int
    key: tuple[object, ...]


def joined_dim(session: InferenceSession) -> str | None:
    """Return the symbol that is the first dim of each input and output, and of no other dim; None without one."""
    arguments = [*session.get_inputs(), *session.get_outputs()]
    firsts = {argument.shape[0] if argument.shape else None for argument in arguments}
    rest = [dim for argument in arguments for dim in argument.shape[1:] if isinstance(dim, str)]
    (first, *others) = firsts
    if others or not isinstance(first, str) or any(argument.type == "tensor(string)" for argument in arguments):
        return None
    return first if first.isidentifier() and not any(first in re.findall(r"\w+", dim) for dim in rest) else None


class Batcher(RunQueue[_Call, Results]):
    """Runs a session in a thread of its own.

    Requests are joined if all inputs and outputs have the same symbol as first dim, and nothing else has it. A run
    waits for others at most `MAX_DELAY_SECONDS` and half of its measured time, and only if the last run joined some.
    Each answer has the bits that it has alone: the first joined runs are compared with separate ones, and after a
    difference, as from a sum over the first dim, no request is joined any more.

    most_rows: of a joined run; 1: join none. max_waiting: the most requests that wait.
    """

    def __init__(self, session: InferenceSession, most_rows: int = MAX_ROWS, max_waiting: int = MAX_WAITING):
        self.session = session
        self._most = most_rows if most_rows > 1 and joined_dim(session) is not None else 1
        self._compared = 0
        self._seconds = 0.0
        self._last = 1  # requests of the last run
        super().__init__(max_waiting)

    @property
    def joins(self) -> bool:
        """Whether requests may be joined."""
        return self._most > 1

    def submit(self, feed: Arrays) -> Future[Results]:
        """Queue a run. The future raises the errors of `InferenceSession.run`. Raises the errors of `put`."""
        shapes = tuple((name, array.dtype, array.shape[1:]) for name, array in feed.items())
        rows = {array.shape[0] if array.ndim else 0 for array in feed.values()}
        count = rows.pop() if len(rows) == 1 else 0
        return self.put([_Call(feed, count, shapes if self.joins and 0 < count < self._most else ())])[0]

    # -- in the thread ------------------------------------------------------------------------------------------

    def _delay(self) -> None:
        if self._last > 1:
            until = time.monotonic() + min(MAX_DELAY_SECONDS, _DELAY_SHARE * self._seconds)
            while not self._closing and self._ready() < self._most and (rest := until - time.monotonic()) > 0:
                self._changed.wait(rest)

    def _ready(self) -> int:
        """Return how many rows could run with the request that waits longest; enough for one that runs alone."""
        first = self._waiting[0].work
        rows = (entry.work.rows for entry in self._waiting if entry.work.key == first.key)
        return sum(rows) if first.key else self._most

    def _chosen(self) -> list[Entry[_Call, Results]]:
        first, *others = self._waiting
        chosen, rows = [first], first.work.rows
        if first.work.key and self.joins:
            for entry in others:
                if entry.work.key == first.work.key and rows + entry.work.rows <= self._most:
                    chosen.append(entry)
                    rows += entry.work.rows
        self._last = len(chosen)
        return chosen

    def _answer(self, entries: list[Entry[_Call, Results]]) -> None:
        if len(entries) > 1 and self._join(entries):
            return
        for entry in entries:
            try:
                entry.future.set_result(self._run(entry.work.feed))
            except IngotError as error:
                entry.future.set_exception(error)

    def _join(self, entries: list[Entry[_Call, Results]]) -> bool:
        """Run requests together. Return False, without answers, if each has to run alone."""
        calls = [entry.work for entry in entries]
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
        for entry, answer in zip(entries, answers, strict=True):
            entry.future.set_result(answer)
        return True

    def _same_alone(self, calls: list[_Call], answers: list[Results]) -> bool:
        """Return whether answers of a joined run have the bits of separate runs. Equal inputs prove nothing."""
        try:
            separate = [self._run(call.feed) for call in calls]
        except IngotError:
            return False
        contents = {tuple(array.tobytes() for array in call.feed.values()) for call in calls}
        self._compared += len(contents) > 1
        pairs = [(a, b) for one, other in zip(answers, separate, strict=True) for a, b in zip(one, other, strict=True)]
        return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)

    def _run(self, feed: Mapping[str, np.ndarray]) -> Results:
        begin = time.perf_counter()
        results = self.session.run(None, feed)
        seconds = time.perf_counter() - begin
        self._seconds = seconds if not self.runs else self._seconds + _FORGETTING * (seconds - self._seconds)
        self.runs += 1
        if not all(isinstance(result, np.ndarray) for result in results):
            raise InputError("model: an output is no tensor, got a sequence or none, expected tensors alone")
        return results

"""Queues of runs: the requests of many threads wait, and one thread runs those together that may run together."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ingot.errors import StoppedError
from ingot.llm.service import BusyError

Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(eq=False)
class Entry(Generic[Work, Result]):
    """A request for a part of a run, and its result in the future."""

    work: Work
    future: Future[Result] = field(default_factory=Future)


class RunQueue(ABC, Generic[Work, Result]):
    """Runs requests in a thread of its own.

    max_waiting: the most requests that wait, but those that are put together may be more. requests, runs: the numbers
    of those that have begun.
    """

    def __init__(self, max_waiting: int):
        self.max_waiting = max_waiting
        self.requests = self.runs = 0
        self._waiting: list[Entry[Work, Result]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="ingot runs", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name}: {self.requests} requests in {self.runs} runs, {len(self._waiting)} waiting>"

    @property
    def is_open(self) -> bool:
        """Whether it accepts requests: it is not closed, and its thread has not ended by a bug."""
        return not self._closing

    def put(self, works: Sequence[Work]) -> list[Future[Result]]:
        """Queue requests; one whose future is cancelled before its run does not run.

        Raises BusyError if others wait and together more than max_waiting would, StoppedError after `close`.
        """
        entries: list[Entry[Work, Result]] = [Entry(work) for work in works]
        with self._changed:
            if self._closing:
                raise StoppedError("model: closed, got another request")
            waiting = len(self._waiting)
            if waiting and waiting + len(entries) > self.max_waiting:
                got = f"got {len(entries)} more and {waiting} waiting"
                raise BusyError(f"model: busy, {got}, expected at most {self.max_waiting}")
            self._waiting += entries
            self._changed.notify()
        return [entry.future for entry in entries]

    def close(self) -> None:
        """End the thread; requests that wait get a StoppedError."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # -- in the thread ------------------------------------------------------------------------------------------

    @abstractmethod
    def _chosen(self) -> list[Entry[Work, Result]]:
        """Return those of the waiting requests that run next, with the one that waits longest."""

    @abstractmethod
    def _answer(self, entries: list[Entry[Work, Result]]) -> None:
        """Run requests, and give their futures results or errors."""

    def _delay(self) -> None:
        """Wait for further requests, if that may pay; called with the lock."""

    def _loop(self) -> None:
        entries: list[Entry[Work, Result]] = []
        try:
            while entries := self._next():
                started = [entry for entry in entries if entry.future.set_running_or_notify_cancel()]
                if started:
                    self.requests += len(started)
                    self._answer(started)
        finally:  # nobody waits for ever, not even after a bug
            with self._changed:
                self._closing = True
            for entry in [*entries, *self._waiting]:
                _stop(entry.future)

    def _next(self) -> list[Entry[Work, Result]]:
        """Wait for requests, and return those of the next run; none after `close`."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            self._delay()
            if self._closing:
                return []
            entries = self._chosen()
            chosen = set(entries)
            self._waiting = [entry for entry in self._waiting if entry not in chosen]
            return entries


class Queued:
    """A model with the queue of its runs."""

    queue: RunQueue[Any, Any]

    @property
    def is_alive(self) -> bool:
        """Whether its thread accepts requests."""
        return self.queue.is_open

    def close(self) -> None:
        """End the queue."""
        self.queue.close()


def _stop(future: Future[Any]) -> None:
    """Give a future that has no result yet a StoppedError."""
    if future.running() or (not future.done() and future.set_running_or_notify_cancel()):
        future.set_exception(StoppedError("model: closed before the run"))

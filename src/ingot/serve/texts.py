"""A queue of texts of many requests: those of about the same length run together, up to a number of tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ingot.errors import IngotError, StoppedError
from ingot.llm.service import BusyError
from ingot.serve.batching import end_all

MAX_TEXTS = 4096  # that wait for an embedding or a score, but a request alone may have more
_WASTE = 1.25  # tokens with padding of a run, by those of its texts
_SMALL = 64  # tokens of a run whose padding is not counted


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a text; types: their types, for a model that reads pairs."""

    tokens: list[int]
    types: list[int] | None = None


@dataclass(eq=False)
class _Entry:
    text: Text
    future: Future[np.ndarray] = field(default_factory=Future)

    @property
    def length(self) -> int:
        return len(self.text.tokens)


class TextQueue:
    """Runs texts in a thread of its own.

    rows: how many texts of a length may run together. run: return the result of each text. max_waiting: the most texts
    that wait, at least MAX_TEXTS. A run has the text that waits longest, and those with the nearest lengths, as long as
    padding costs little.
    """

    def __init__(
        self, rows: Callable[[int], int], run: Callable[[list[Text]], list[np.ndarray]], max_waiting: int = MAX_TEXTS
    ):
        self._rows, self._run, self.max_waiting = rows, run, max(MAX_TEXTS, max_waiting)
        self.texts = self.runs = 0
        self._waiting: list[_Entry] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="ingot texts", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<TextQueue: {self.texts} texts in {self.runs} runs, {len(self._waiting)} waiting>"

    @property
    def is_open(self) -> bool:
        """Whether it accepts texts: it is not closed, and its thread has not ended by a bug."""
        return not self._closing

    def submit(self, texts: Sequence[Text]) -> list[Future[np.ndarray]]:
        """Queue texts; one whose future is cancelled before its run does not run.

        Raises BusyError if others wait and together more than max_waiting would, StoppedError after `close`.
        """
        entries = [_Entry(text) for text in texts]
        with self._changed:
            if self._closing:
                raise StoppedError("model: closed, got another request")
            if self._waiting and len(self._waiting) + len(entries) > self.max_waiting:
                got = f"{len(entries)} texts more and {len(self._waiting)} waiting"
                raise BusyError(f"model: busy, got {got}, expected at most {self.max_waiting}")
            self._waiting += entries
            self._changed.notify()
        return [entry.future for entry in entries]

    def close(self) -> None:
        """End the thread; texts that wait get a StoppedError."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # -- in the thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        entries: list[_Entry] = []
        try:
            while entries := self._next():
                started = [entry for entry in entries if entry.future.set_running_or_notify_cancel()]
                if started:
                    self._answer(started)
        finally:  # nobody waits for ever, not even after a bug
            with self._changed:
                self._closing = True
            end_all(entry.future for entry in [*entries, *self._waiting])

    def _answer(self, entries: list[_Entry]) -> None:
        self.texts += len(entries)
        self.runs += 1
        try:
            results = self._run([entry.text for entry in entries])
        except IngotError as error:
            for entry in entries:
                entry.future.set_exception(error)
            return
        for entry, result in zip(entries, results, strict=True):
            entry.future.set_result(result)

    def _next(self) -> list[_Entry]:
        """Wait for texts, and return those of the next run; none after `close`."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if self._closing:
                return []
            entries = self._nearest()
            taken = {id(entry) for entry in entries}
            self._waiting = [entry for entry in self._waiting if id(entry) not in taken]
            return entries

    def _nearest(self) -> list[_Entry]:
        first, *others = self._waiting
        entries, longest, tokens = [first], first.length, first.length
        for entry in sorted(others, key=lambda other: abs(other.length - first.length)):
            longest, tokens = max(longest, entry.length), tokens + entry.length
            padded = longest * (len(entries) + 1)
            if len(entries) >= self._rows(longest) or (padded > _WASTE * tokens and padded > _SMALL):
                break
            entries.append(entry)
        return entries

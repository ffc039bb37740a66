"""A queue of texts of many requests: those of about the same length run together, up to a number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.errors import IngotError
from ingot.serve.queues import Entry, RunQueue

MAX_TEXTS = 4096  # that wait for an embedding or a score, but a request alone may have more
_WASTE = 1.25  # tokens with padding of a run, by those of its texts
_SMALL = 64  # tokens of a run whose padding is not counted


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a text; types: their types, for a model that reads pairs."""

    tokens: list[int]
    types: list[int] | None = None


class TextQueue(RunQueue[Text, np.ndarray]):
    """Runs texts in a thread of its own.

    rows: how many texts of a length may run together. run: return the result of each text. max_waiting: the most texts
    that wait, at least MAX_TEXTS. A run has the text that waits longest, and those with the nearest lengths, as long as
    padding costs little.
    """

    def __init__(
        self, rows: Callable[[int], int], run: Callable[[list[Text]], list[np.ndarray]], max_waiting: int = MAX_TEXTS
    ):
        self._rows, self._run = rows, run
        super().__init__(max(MAX_TEXTS, max_waiting))

    # -- in the thread ------------------------------------------------------------------------------------------

    def _answer(self, entries: list[Entry[Text, np.ndarray]]) -> None:
        self.runs += 1
        try:
            results = self._run([entry.work for entry in entries])
        except IngotError as error:
            for entry in entries:
                entry.future.set_exception(error)
            return
        for entry, result in zip(entries, results, strict=True):
            entry.future.set_result(result)

    def _chosen(self) -> list[Entry[Text, np.ndarray]]:
        first, *others = self._waiting
        own = longest = tokens = _length(first)
        entries = [first]
        for entry in sorted(others, key=lambda other: abs(_length(other) - own)):
            longest, tokens = max(longest, _length(entry)), tokens + _length(entry)
            padded = longest * (len(entries) + 1)
            if len(entries) >= self._rows(longest) or (padded > _WASTE * tokens and padded > _SMALL):
                break
            entries.append(entry)
        return entries


def _length(entry: Entry[Text, np.ndarray]) -> int:
    return len(entry.work.tokens)

"""Searches for the smallest failing case: over a sequence of changes, and over a set of items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise


def first_failing(count: int, fails: Callable[[int], bool]) -> int:
    """Return a number of changes that fails while one less does not, by bisection; `count` fails and 0 does not."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def smallest(items: Sequence[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """Return failing items of which no single one can be left out; all together fail.

    Zeller's and Hildebrandt's delta debugging: try chunks, then everything but a chunk, then smaller chunks.
    """
    kept, count, tried = list(items), 2, dict[frozenset[str], bool]()

    def is_failing(chunk: list[str]) -> bool:
        key = frozenset(chunk)
        if key not in tried:
            tried[key] = fails(chunk)
        return tried[key]

    while len(kept) > 1:
        bounds = [len(kept) * i // count for i in range(count + 1)]
        chunks = [kept[low:high] for low, high in pairwise(bounds)]
        rests = [kept[:low] + kept[high:] for low, high in pairwise(bounds)]
        if (chunk := next(filter(is_failing, chunks), None)) is not None:
            kept, count = chunk, 2
        elif count > 2 and (rest := next(filter(is_failing, rests), None)) is not None:
            kept, count = rest, count - 1
        elif count < len(kept):
            count = min(len(kept), 2 * count)
        else:
            break
    return kept

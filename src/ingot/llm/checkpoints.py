"""Checkpoints: lengths of a sequence, besides its own, after which it can be continued.

A recurrent state cannot be cut back, and a layer with a window gives up the positions that it no longer sees. So a
prefix of a sequence can be shared only after a length at which its states were copied and its window was kept. Such
lengths are multiples of a cache block. Pan et al. 2024, "Marconi: Prefix Caching for the Era of Hybrid LLMs", chooses
them as here: where prompts part, and at the end of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

from ingot.ops.kv_cache import CACHE_BLOCK

SPACING = 4 * CACHE_BLOCK  # between checkpoints of a text of which no other part is known to be shared


def wanted_lengths(shared: int, prompt: int) -> tuple[int, ...]:
    """Return the lengths of a prompt after which other prompts may part from it: that of the longest prefix that
    another sequence has, and its end.
    """
    lengths = {length // CACHE_BLOCK * CACHE_BLOCK for length in (shared, prompt - 1)}
    return tuple(sorted(length for length in lengths if length > 0))


def due_lengths(wanted: Iterable[int], begin: int, end: int) -> list[int]:
    """Return the lengths in begin + 1 .. end at which a sequence gets a checkpoint."""
    regular = range((begin // SPACING + 1) * SPACING, end + 1, SPACING)
    return sorted({*regular, *(length for length in wanted if begin < length <= end)})


def gap_without(lengths: Iterable[int], length: int) -> int:
    """Return the tokens between the checkpoints before and after one, which are computed again if it is given up."""
    below = max((each for each in lengths if each < length), default=0)
    above = min((each for each in lengths if each > length), default=length + SPACING)
    return above - below


def least_useful(lengths: Iterable[int], among: Iterable[int]) -> int:
    """Return the length, of some, without whose checkpoint the fewest tokens are computed again."""
    return min(among, key=lambda length: gap_without(lengths, length))

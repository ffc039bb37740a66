"""CacheUse: the blocks of keys and values that each sequence of a language model owns, as a table and as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.support import html
from ingot.support.columns import counted, table

_ROW = 22  # pixels of a sequence
_LABEL = 150  # pixels of its name


@dataclass(frozen=True, slots=True)
class CachedSequence:
    """A sequence in the cache. tokens: the number that is cached. is_active: whether an answer draws from it.

    blocks: the numbers of its blocks, by position; several sequences may own one. slot: that of its recurrent states;
    None in a model without states, and during a run.
    """

    tokens: int
    is_active: bool
    blocks: tuple[int, ...]
    slot: int | None

    @property
    def state(self) -> str:
        """ "active" or "cached"."""
        return "active" if self.is_active else "cached"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The sequences in the cache of a language model at one moment: `print` shows a table, a notebook draws blocks.

    blocks: their number. sequences: least recently used first, which give blocks up first.
    """

    blocks: int
    sequences: tuple[CachedSequence, ...]

    @property
    def used(self) -> int:
        """The number of blocks that sequences own."""
        return len(self._owners)

    @property
    def _owners(self) -> Counter[int]:
        return Counter(block for sequence in self.sequences for block in sequence.blocks)

    def __repr__(self) -> str:
        active = sum(sequence.is_active for sequence in self.sequences)
        sequences = f"{counted(len(self.sequences), 'sequence')}, {active} active"
        return f"<CacheUse {self.used} of {self.blocks} blocks of {CACHE_BLOCK} positions: {sequences}>"

    def __str__(self) -> str:
        owners = self._owners
        rows = [
            (each.state, counted(each.tokens, "token"), counted(len(each.blocks), "block"),
             f"{sum(owners[block] > 1 for block in each.blocks)} shared",
             "" if each.slot is None else f"states in slot {each.slot}",
             " ".join(_range(*run) for run in _runs(each.blocks)))
            for each in self.sequences
        ]  # fmt: skip
        return table(repr(self), rows)

    def _repr_html_(self) -> str:
        width = (html.WIDTH - _LABEL) / max(1, self.blocks)
        parts = []
        for number, each in enumerate(self.sequences):
            parts.append(html.text(0, number * _ROW + 14, f"{counted(each.tokens, 'token')}, {each.state}"))
            parts += [
                html.rectangle(
                    _LABEL + first * width, number * _ROW + 2, (last - first + 1) * width, _ROW - 4, number,
                    f"blocks {_range(first, last)} of sequence {number}", _range(first, last),
                )
                for first, last in _runs(each.blocks)
            ]  # fmt: skip
        return html.drawing(repr(self), parts, max(1, len(self.sequences)) * _ROW)


def _runs(blocks: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each run of consecutive numbers, in ascending order."""
    first = last = -1
    for block in sorted(blocks):
        if first >= 0 and block != last + 1:
            yield first, last
        if first < 0 or block != last + 1:
            first = block
        last = block
    if first >= 0:
        yield first, last


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"

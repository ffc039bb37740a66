"""Sequences of tokens and the blocks of the cache that hold their keys and values."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import numpy as np

from ingot.errors import InputError
from ingot.ops.cache import CACHE_BLOCK


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values lie in the cache: position p in slot p % CACHE_BLOCK of block
    `blocks[p // CACHE_BLOCK]`.

    blocks: i32[blocks_per_sequence], of which the first `block_count` are this sequence's; the rest are 0.
    """

    blocks: np.ndarray
    tokens: list[int] = field(default_factory=list)
    block_count: int = 0


class Sequences:
    """Which blocks belong to whom. A finished sequence is kept until its place is needed: a prompt that begins as it
    does takes it over, and computes only what is new.
    """

    def __init__(self, count: int, blocks_per_sequence: int):
        self.count = count
        self.blocks_per_sequence = blocks_per_sequence
        self._free = list(range(count * blocks_per_sequence - 1, -1, -1))
        self._active: list[Sequence] = []
        self._kept: list[Sequence] = []  # least recently used first

    @property
    def has_room(self) -> bool:
        """Whether one more sequence can be active."""
        return len(self._active) < self.count

    @property
    def latest(self) -> Sequence | None:
        """The sequence that was finished last, if it is still kept."""
        return self._kept[-1] if self._kept else None

    def start(self, tokens: Tokens[int]) -> Sequence:
        """A sequence that holds a beginning of the tokens, but never all of them: the last one's logits are wanted.

        Raises InputError when every place is in use.
        """
        if not self.has_room:
            raise InputError(f"sequences: all are in use, expected at most {self.count} at once")
        shared = [_shared(sequence.tokens, tokens) for sequence in self._kept]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)
        is_full = len(self._active) + len(self._kept) == self.count
        if best >= 0 and shared[best] and _is_worth(shared[best], len(self._kept[best].tokens), len(tokens)):
            sequence = self._kept.pop(best)
        else:
            if is_full:
                self.forget(self._kept[0])
            sequence = Sequence(np.zeros(self.blocks_per_sequence, np.int32))
        self.truncate(sequence, min(_shared(sequence.tokens, tokens), max(len(tokens) - 1, 0)))
        self._active.append(sequence)
        return sequence

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence and keeps what it holds, but no block for tokens that a run which failed did not add."""
        self._active.remove(sequence)
        self.truncate(sequence, len(sequence.tokens))
        if sequence.tokens:
            self._kept.append(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Gives the blocks of a kept sequence back."""
        self._kept.remove(sequence)
        self.truncate(sequence, 0)

    def forget_all(self) -> None:
        """Gives the blocks of all kept sequences back."""
        for sequence in list(self._kept):
            self.forget(sequence)

    def reserve(self, sequence: Sequence, length: int) -> None:
        """Gives a sequence the blocks for positions below `length`."""
        while sequence.block_count * CACHE_BLOCK < length:
            sequence.blocks[sequence.block_count] = self._free.pop()
            sequence.block_count += 1

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Cuts a sequence to its first tokens."""
        del sequence.tokens[length:]
        wanted = -(-length // CACHE_BLOCK)
        while sequence.block_count > wanted:
            sequence.block_count -= 1
            self._free.append(int(sequence.blocks[sequence.block_count]))
            sequence.blocks[sequence.block_count] = 0


def _is_worth(shared: int, kept: int, wanted: int) -> bool:
    """Whether to take over a kept sequence rather than to keep it for a prompt that is closer to it."""
    return shared >= min(kept, wanted) // 2


def _shared(a: Tokens[int], b: Tokens[int]) -> int:
    """How many tokens two sequences have in common from the beginning."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count

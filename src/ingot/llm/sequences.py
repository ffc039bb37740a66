"""Sequences of tokens and the blocks of the cache that hold their keys and values.

An interrupt may come between any two steps of what follows. So nothing is moved between lists of free and used places
or blocks: those are free that the living leave, looked up anew each time.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Generator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import InputError
from ingot.ops.kv_cache import CACHE_BLOCK

Run = weakref.ref[Generator[Any, None, None]]


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values lie in the cache: position p in slot p % CACHE_BLOCK of block
    `blocks[p // CACHE_BLOCK]`.

    blocks: i32[blocks_per_sequence], of which the first `block_count` are this sequence's. run: who draws its tokens.
    """

    blocks: np.ndarray
    tokens: list[int] = field(default_factory=list)
    block_count: int = 0
    run: Run | None = None

    @property
    def is_active(self) -> bool:
        """Whether the run that draws its tokens goes on; one that ended, however it did, may not have said so."""
        run = None if self.run is None else self.run()
        return run is not None and inspect.getgeneratorstate(run) != inspect.GEN_CLOSED


class Sequences:
    """Which blocks belong to whom. A finished sequence is kept until its place is needed: a prompt that begins as it
    does takes it over, and computes only what is new.
    """

    def __init__(self, count: int, blocks_per_sequence: int):
        self.count = count
        self.blocks_per_sequence = blocks_per_sequence
        self._held: list[Sequence] = []  # active and kept; least recently used first

    @property
    def has_room(self) -> bool:
        """Whether one more sequence can be active."""
        return sum(sequence.is_active for sequence in self._held) < self.count

    @property
    def latest(self) -> Sequence | None:
        """The sequence that was finished last, if it is still kept."""
        kept = [sequence for sequence in self._held if sequence.tokens and not sequence.is_active]
        return kept[-1] if kept else None

    def start(self, tokens: Tokens[int], run: Run | None = None) -> Sequence:
        """A sequence that holds a beginning of the tokens, but never all of them: the last one's logits are wanted.

        run: the generator that draws from it, which has a place until it ends. Without one, the place is the caller's
        for as long as no other call of these methods can come between.

        Raises InputError when every place is in use.
        """
        if not self.has_room:
            raise InputError(f"sequences: all are in use, expected at most {self.count} at once")
        self._held = [sequence for sequence in self._held if sequence.tokens or sequence.is_active]
        kept = [sequence for sequence in self._held if not sequence.is_active]
        shared = [_shared(sequence.tokens, tokens) for sequence in kept]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)
        if best >= 0 and shared[best] and _is_worth(shared[best], len(kept[best].tokens), len(tokens)):
            sequence = kept[best]
            self._held.remove(sequence)
        else:
            if len(self._held) == self.count:
                self._held.remove(kept[0])
            sequence = Sequence(np.zeros(self.blocks_per_sequence, np.int32))
        self.truncate(sequence, min(_shared(sequence.tokens, tokens), max(len(tokens) - 1, 0)))
        if run is not None:
            sequence.run = run
            self._held.append(sequence)
        return sequence

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence and keeps what it holds, but no block for tokens that a run which failed did not add."""
        self.truncate(sequence, len(sequence.tokens))
        sequence.run = None
        if sequence in self._held:
            self._held.remove(sequence)
        if sequence.tokens:
            self._held.append(sequence)

    def forget_all(self) -> None:
        """Gives the blocks of all kept sequences back."""
        self._held = [sequence for sequence in self._held if sequence.is_active]

    def reserve(self, sequence: Sequence, length: int) -> None:
        """Gives a sequence the blocks for positions below `length`."""
        wanted = -(-length // CACHE_BLOCK)
        if wanted > sequence.block_count:
            free = np.ones(self.count * self.blocks_per_sequence, np.bool_)
            for other in (*self._held, sequence):
                free[other.blocks[: other.block_count]] = False
            sequence.blocks[sequence.block_count : wanted] = np.flatnonzero(free)[: wanted - sequence.block_count]
            sequence.block_count = wanted

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Cuts a sequence to its first tokens."""
        del sequence.tokens[length:]
        sequence.block_count = min(sequence.block_count, -(-length // CACHE_BLOCK))


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

"""Sequences of tokens and the cache blocks that store their keys and values.

An interrupt may occur between any two statements here. So there are no lists of free slots or free blocks to update:
the blocks that no sequence owns are free, and are computed each time.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Generator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import InputError, ResourceError
from ingot.load.hf.windows import Windows
from ingot.ops.kv_cache import CACHE_BLOCK

Run = weakref.ref[Generator[Any, None, None]]


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values are cached: position p is slot p % CACHE_BLOCK of block `blocks[p // CACHE_BLOCK]`.

    blocks: i32[blocks_per_sequence]; this sequence owns the first `block_count`. window_blocks: the same in the cache
    of layers with a window; -1 for a block that was given up. slot: of its recurrent states, which are those after
    `state_length` tokens; -1 during a run, and after one that failed. run: the generator that draws its tokens. thread:
    the identifier of the thread that started it.
    """

    blocks: np.ndarray
    window_blocks: np.ndarray
    tokens: list[int] = field(default_factory=list)
    block_count: int = 0
    slot: int = 0
    state_length: int = 0
    run: Run | None = None
    thread: int = 0

    @property
    def is_active(self) -> bool:
        """Whether the run that draws its tokens is open; a run that was interrupted may not have reported its end."""
        run = None if self.run is None else self.run()
        return run is not None and inspect.getgeneratorstate(run) != inspect.GEN_CLOSED


class CacheFullError(ResourceError):
    """Active sequences own all blocks of the cache."""


class Sequences:
    """The sequences and their cache blocks.

    A finished sequence stays cached until its blocks are needed. A prompt with the same beginning takes the sequence
    over, or shares its full blocks, and computes only the new tokens. A block in which a sequence writes has no other
    owner.

    Layers with a window have a cache of their own. A sequence keeps the blocks that its next tokens see; others are
    given up when new blocks are needed, those of finished sequences and of the first positions first. So a prefix is
    only shared, and a sequence only cut, where the blocks that the next token sees are still there.

    Recurrent states are those after all tokens of a sequence, and replaced by each run. So a model with such states
    shares no blocks, and a sequence is only continued after its last token: if it is cut, it is empty.
    """

    def __init__(
        self,
        count: int,
        blocks_per_sequence: int,
        total: int | None = None,
        *,
        has_state: bool = False,
        windows: Windows | None = None,
    ):
        """total: the number of all blocks, by default enough for every sequence. has_state: whether the model has
        recurrent states, with `count` slots. windows: the cache of layers with a window, None for none.
        """
        self.count = count
        self.has_state = has_state
        self.windows = windows
        self.blocks_per_sequence = blocks_per_sequence
        self.total = count * blocks_per_sequence if total is None else total
        self._owners: list[Sequence] = []  # active and cached sequences, least recently used first
        _all.add(self)

    @property
    def has_room(self) -> bool:
        """Whether one more sequence can be active."""
        return sum(sequence.is_active for sequence in self._owners) < self.count

    @property
    def is_shared(self) -> bool:
        """Whether a sequence of another thread is active."""
        own = threading.get_ident()
        return any(sequence.is_active and sequence.thread != own for sequence in tuple(self._owners))

    @property
    def latest(self) -> Sequence | None:
        """The sequence that was finished last, if it is still cached."""
        cached = [sequence for sequence in self._owners if sequence.tokens and not sequence.is_active]
        return cached[-1] if cached else None

    @property
    def used_blocks(self) -> tuple[int, int]:
        """The number of blocks that sequences own, and of all blocks."""
        return len(set().union(*(each.blocks[: each.block_count].tolist() for each in tuple(self._owners)))), self.total

    @property
    def is_oversubscribed(self) -> bool:
        """Whether active sequences can need more blocks than there are."""
        return self.total < self.count * self.blocks_per_sequence

    def start(self, tokens: Tokens[int], run: Run | None = None) -> Sequence:
        """Return a sequence with a cached prefix of the tokens, but never all of them: the last must still be computed.

        run: the generator that draws from the sequence and owns a slot until it ends. Without a run, the caller owns
        the slot only until the next call of a method of this class.

        Raises InputError if every slot is in use.
        """
        if not self.has_room:
            raise InputError(f"sequences: all are in use, expected at most {self.count} at once")
        tokens = list(tokens)
        self._owners = [sequence for sequence in self._owners if sequence.tokens or sequence.is_active]
        cached = [sequence for sequence in self._owners if not sequence.is_active]
        shared = [self._usable(sequence, _shared(sequence.tokens, tokens)) for sequence in cached]
        if self.has_state:
            shared = [length if length < len(tokens) else 0 for length in shared]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)
        if best >= 0 and shared[best] and _is_worth(shared[best], len(cached[best].tokens), len(tokens)):
            sequence = cached[best]
            self._owners.remove(sequence)
        else:
            sequence = self._shared_prefix(tokens)
        self.truncate(sequence, min(_shared(sequence.tokens, tokens), max(len(tokens) - 1, 0)))
        if run is not None:
            sequence.run, sequence.thread = run, threading.get_ident()
            self._owners.append(sequence)
        return sequence

    def finish(self, sequence: Sequence) -> None:
        """End a sequence and keep it cached, without blocks that a failed run reserved but did not fill."""
        self.truncate(sequence, len(sequence.tokens))
        sequence.run = None
        if sequence in self._owners:
            self._owners.remove(sequence)
        if sequence.tokens:
            self._owners.append(sequence)
        # Sequences whose blocks are all shared cost no block, so that their number needs a limit of its own.
        if len(self._owners) > self.total:
            self._owners.remove(next(each for each in self._owners if not each.is_active))

    def end_other_threads(self) -> None:
        """End the sequences of other threads, which a forked child does not have."""
        for sequence in self._owners:
            if sequence.thread != threading.get_ident():
                sequence.run = None

    def forget_all(self) -> None:
        """Free the blocks of all finished sequences."""
        self._owners = [sequence for sequence in self._owners if sequence.is_active]

    def forget_active(self) -> None:
        """Free the blocks of all active sequences, for the owner of all of them."""
        self._owners = [sequence for sequence in self._owners if not sequence.is_active]

    def reserve(self, sequence: Sequence, length: int, *, is_restored: bool = False) -> None:
        """Assign blocks to a sequence for the positions below `length`.

        Cached sequences give the blocks up from their ends, the least recently used first. is_restored: whether the
        positions are those of a saved sequence, with the blocks of windows that the next token sees.

        Raises CacheFullError if active ones own too many blocks.
        """
        wanted, first = -(-length // CACHE_BLOCK), sequence.block_count
        needed = wanted - first
        if needed <= 0:
            return
        if self.windows is not None:
            seen = self.windows.first_seen(length) if is_restored else first
            sequence.window_blocks[seen:wanted] = self._room(sequence, wanted - seen, in_windows=True)
        sequence.blocks[first:wanted] = self._room(sequence, needed)
        sequence.block_count = wanted

    def _room(self, sequence: Sequence, needed: int, *, in_windows: bool = False) -> np.ndarray:
        """Return so many free blocks, which sequences give up if there are not enough."""
        while (missing := needed - len(free := self._free(sequence, in_windows))) > 0:
            if in_windows and self._take_behind(sequence, missing):
                continue
            oldest = next((each for each in self._owners if each is not sequence and not each.is_active), None)
            if oldest is None:
                raise CacheFullError(f"cache: full, got {needed} more blocks to fill, expected at most {len(free)}")
            self.truncate(oldest, max(0, oldest.block_count - missing) * CACHE_BLOCK)
            if not oldest.tokens:
                self._owners.remove(oldest)
        return free[:needed]

    def _take_behind(self, sequence: Sequence, count: int) -> bool:
        """Take, from one sequence, up to `count` blocks of windows that it no longer needs; a finished one goes first.

        Return False if no sequence has such blocks.
        """
        assert self.windows is not None
        for each in sorted((*self._owners, sequence), key=lambda each: each is sequence or each.is_active):
            behind = np.flatnonzero(each.window_blocks[: self.windows.first_kept(len(each.tokens))] >= 0)
            if len(behind):
                each.window_blocks[behind[:count]] = -1
                return True
        return False

    def can_grow(self, parts: Tokens[tuple[Sequence, int]]) -> bool:
        """Whether there are blocks for so many more tokens of each sequence."""
        if not self.is_oversubscribed:
            return True
        needed = sum(-(-(len(each.tokens) + count) // CACHE_BLOCK) - each.block_count for each, count in parts)
        return needed <= self.total - int(np.count_nonzero(self._owned_by_active()))

    def can_start(self, tokens: list[int]) -> bool:
        """Whether there are blocks for the tokens, and one for each active sequence to grow."""
        if not self.is_oversubscribed:
            return True
        owned = self._owned_by_active()
        length, other = self._longest_prefix(tokens)
        shared = () if other is None else other.blocks[: length // CACHE_BLOCK]
        needed = -(-len(tokens) // CACHE_BLOCK) - int(np.count_nonzero(owned[np.asarray(shared, np.int32)]))
        return needed + sum(each.is_active for each in self._owners) <= self.total - int(np.count_nonzero(owned))

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Cut a sequence to its first `length` tokens, or fewer: a shared block stays full or is given up, and the
        next token must find the blocks and states that it reads.
        """
        length = self._usable(sequence, length)
        used = length % CACHE_BLOCK
        if used and length < len(sequence.tokens) and self._is_shared(sequence, length // CACHE_BLOCK):
            length = self._usable(sequence, length - used)
        if not length:
            sequence.state_length = 0
        del sequence.tokens[length:]
        sequence.block_count = min(sequence.block_count, -(-length // CACHE_BLOCK))

    def _usable(self, sequence: Sequence, length: int) -> int:
        """Return the largest number of its tokens, at most `length`, after which a sequence can be continued."""
        if self.has_state and length != sequence.state_length:
            return 0
        while self.windows is not None and length:
            first = self.windows.first_seen(length)
            missing = np.flatnonzero(sequence.window_blocks[first : -(-length // CACHE_BLOCK)] < 0)
            if not len(missing):
                break
            length = 0 if self.has_state else int(first + missing[-1]) * CACHE_BLOCK
        return length

    def _free(self, sequence: Sequence, in_windows: bool) -> np.ndarray:
        """Return the blocks of a cache that neither this sequence nor any other owns."""
        free = np.ones(self.windows.blocks if in_windows and self.windows is not None else self.total, np.bool_)
        for other in (*self._owners, sequence):
            owned = (other.window_blocks if in_windows else other.blocks)[: other.block_count]
            free[owned[owned >= 0]] = False
        return np.flatnonzero(free)

    def _owned_by_active(self) -> np.ndarray:
        """Return whether an active sequence owns each block, bool[total]."""
        owned = np.zeros(self.total, np.bool_)
        for sequence in self._owners:
            if sequence.is_active:
                owned[sequence.blocks[: sequence.block_count]] = True
        return owned

    def _free_slot(self) -> int:
        """Return a slot that no sequence owns; the least recently used cached sequence gives its slot up."""
        if len(self._owners) >= self.count:
            self._owners.remove(next(each for each in self._owners if not each.is_active))
        used = {each.slot for each in self._owners}
        return next(slot for slot in range(self.count) if slot not in used)

    def _longest_prefix(self, tokens: list[int]) -> tuple[int, Sequence | None]:
        """Return the sequence with the longest prefix of the tokens in full blocks, after the length of the prefix."""
        if self.has_state:
            return 0, None
        lengths = [
            self._usable(other, _shared(other.tokens, tokens) // CACHE_BLOCK * CACHE_BLOCK) for other in self._owners
        ]
        best = max(range(len(lengths)), key=lengths.__getitem__, default=-1)
        return (lengths[best], self._owners[best]) if best >= 0 and lengths[best] else (0, None)

    def _is_shared(self, sequence: Sequence, index: int) -> bool:
        """Return whether another sequence owns the block at an index of this one."""
        others = (other for other in self._owners if other is not sequence)
        return any(index < other.block_count and other.blocks[index] == sequence.blocks[index] for other in others)

    def _shared_prefix(self, tokens: list[int]) -> Sequence:
        """Return a new sequence with the full blocks of the longest prefix of the tokens that any sequence has."""
        each = self.blocks_per_sequence
        sequence = Sequence(np.zeros(each, np.int32), np.full(each, -1, np.int32))
        if self.has_state:
            sequence.slot = self._free_slot()
        length, other = self._longest_prefix(tokens)
        if other is not None:
            sequence.block_count = length // CACHE_BLOCK
            sequence.blocks[: sequence.block_count] = other.blocks[: sequence.block_count]
            sequence.window_blocks[: sequence.block_count] = other.window_blocks[: sequence.block_count]
            sequence.tokens += other.tokens[:length]
        return sequence


_all: weakref.WeakSet[Sequences] = weakref.WeakSet()


def _after_fork() -> None:
    for sequences in _all:
        sequences.end_other_threads()


os.register_at_fork(after_in_child=_after_fork)


def _is_worth(shared: int, cached: int, wanted: int) -> bool:
    """Return whether to take over a cached sequence instead of keeping it for a prompt with a longer common prefix.

    Where blocks can be shared, a sequence is taken over only if it loses less than a block of its own tokens.
    """
    if shared >= CACHE_BLOCK:
        return cached - shared < CACHE_BLOCK
    return shared >= min(cached, wanted) // 2


def _shared(a: list[int], b: list[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    low, high = 0, min(len(a), len(b))
    if a[:1] != b[:1] or a[:high] == b[:high]:
        return high if a[:1] == b[:1] else 0
    while high - low > 1:  # a[:low] is common, a[:high] is not; lists are compared in C
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low

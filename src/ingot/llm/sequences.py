"""Sequences of tokens and the cache blocks that store their keys and values.

An interrupt may occur between any two statements here. So there are no lists of free slots or free blocks to update:
the blocks that no sequence owns are free, and are computed each time.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable, Generator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.errors import InputError, ResourceError
from ingot.llm.cache_use import CachedSequence, CacheUse
from ingot.llm.checkpoints import due_lengths, gap_without, least_useful, wanted_lengths
from ingot.load.hf.windows import Windows
from ingot.ops.kv_cache import CACHE_BLOCK

Run = weakref.ref[Generator[Any, None, None]]


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values are cached: position p is slot p % CACHE_BLOCK of block `blocks[p // CACHE_BLOCK]`.

    blocks: i32[blocks_per_sequence]; this sequence owns the first `block_count`. window_blocks: the same in the cache
    of layers with a window; -1 for a block that was given up. slot: of its recurrent states, -1 for none, which are
    those after `state_length` tokens; -1 during a run, and after one that failed. checkpoints: lengths after which it
    can be continued, too, each with the slot of a copy of the states; -1 in a model without states. wanted: lengths at
    which it gets checkpoints. run: the generator that draws its tokens. thread: the identifier of the thread that
    started it.
    """

    blocks: np.ndarray
    window_blocks: np.ndarray
    tokens: list[int] = field(default_factory=list)
    block_count: int = 0
    slot: int = -1
    state_length: int = 0
    checkpoints: dict[int, int] = field(default_factory=dict)
    wanted: tuple[int, ...] = ()
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
    only shared, and a sequence only cut, where the blocks that the next token sees are still there. Blocks that a
    checkpoint needs are given up last.

    Recurrent states are those after all tokens of a sequence, and replaced by each run. So in a model with such states
    a prefix is only shared, and a sequence only cut, after a checkpoint. No run writes the slot of a checkpoint, so
    that several sequences may own it. If all slots are owned, the least recently used sequence gives one up.
    """

    def __init__(
        self,
        count: int,
        blocks_per_sequence: int,
        total: int | None = None,
        *,
        slots: int = 0,
        copy_state: Callable[[int, int], None] | None = None,
        windows: Windows | None = None,
    ):
        """total: the number of all blocks, by default enough for every sequence. slots: of recurrent states, at least
        `count`, 0 for a model without them; those beyond `count` are for checkpoints. copy_state(source, slot): copies
        the states of a slot into another one. windows: the cache of layers with a window, None for none.
        """
        assert (slots >= count) == (copy_state is not None)
        self.count = count
        self.slots = slots
        self._copy_state = copy_state
        self.windows = windows
        self.blocks_per_sequence = blocks_per_sequence
        self.total = count * blocks_per_sequence if total is None else total
        self._owners: list[Sequence] = []  # active and cached sequences, least recently used first
        _all.add(self)

    @property
    def has_state(self) -> bool:
        """Whether the model has recurrent states."""
        return self.slots > 0

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
    def use(self) -> CacheUse:
        """The blocks that each sequence owns now."""
        owners = tuple(
            CachedSequence(
                len(each.tokens), each.is_active, tuple(each.blocks[: each.block_count].tolist()),
                each.slot if self.has_state and each.slot >= 0 else None,
            )
            for each in tuple(self._owners)
        )  # fmt: skip
        return CacheUse(self.total, owners)

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
        common = max((_shared(sequence.tokens, tokens) for sequence in self._owners), default=0)
        most = max(len(tokens) - 1, 0)
        cached = [sequence for sequence in self._owners if not sequence.is_active]
        shared = [self._usable(sequence, min(_shared(sequence.tokens, tokens), most)) for sequence in cached]
        best = max(range(len(shared)), key=shared.__getitem__, default=-1)
        if best >= 0 and shared[best] and _is_worth(shared[best], len(cached[best].tokens), len(tokens)):
            sequence = cached[best]
            self._owners.remove(sequence)
        else:
            sequence = self._shared_prefix(tokens)
        self.truncate(sequence, min(_shared(sequence.tokens, tokens), most))
        sequence.wanted = wanted_lengths(common, len(tokens))
        if self.has_state:
            self._give_slot(sequence)
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
            seen = max(first, self.windows.first_seen(length)) if is_restored else first
            sequence.window_blocks[seen:wanted] = self._room(sequence, wanted - seen, in_windows=True)
        sequence.blocks[first:wanted] = self._room(sequence, needed)
        sequence.block_count = wanted

    def _room(self, sequence: Sequence, needed: int, *, in_windows: bool = False) -> np.ndarray:
        """Return so many free blocks, which sequences give up if there are not enough."""
        while (missing := needed - len(free := self._free(sequence, in_windows))) > 0:
            if in_windows and self._take_behind(sequence, missing):
                continue
            if not self._give_up(sequence, missing, in_windows):
                raise CacheFullError(f"cache: full, got {needed} more blocks to fill, expected at most {len(free)}")
        return free[:needed]

    def _take_behind(self, sequence: Sequence, count: int) -> bool:
        """Take, from one sequence, up to `count` blocks of windows that neither its next tokens nor its checkpoints
        need; a finished one goes first.

        Return False if no sequence has such blocks.
        """
        assert self.windows is not None
        for each in sorted((*self._owners, sequence), key=lambda each: each is sequence or each.is_active):
            is_behind = each.window_blocks[: self.windows.first_kept(len(each.tokens))] >= 0
            for length in each.checkpoints:
                is_behind[self.windows.first_seen(length) : length // CACHE_BLOCK] = False
            behind = np.flatnonzero(is_behind)
            if len(behind):
                each.window_blocks[behind[:count]] = -1
                return True
        return False

    def _give_up(self, sequence: Sequence, missing: int, in_windows: bool) -> bool:
        """Let a sequence give up a checkpoint or the blocks of its end: the least recently used finished one, without
        which only checkpoints of windows can be given up. Return False if there are none.
        """
        finished = [each for each in self._owners if each is not sequence and not each.is_active]
        for each in finished[:1] or (*self._owners, sequence):
            if in_windows and (behind := self._checkpoints_behind(each)):
                del each.checkpoints[least_useful(each.checkpoints, behind)]
                if finished:
                    self._cut(each, len(each.tokens))
                return True
        if finished:
            self._cut(finished[0], max(0, finished[0].block_count - missing) * CACHE_BLOCK)
        return bool(finished)

    def _checkpoints_behind(self, sequence: Sequence) -> list[int]:
        """Return the checkpoints of a sequence that keep blocks of windows which its next tokens do not need."""
        assert self.windows is not None
        kept = self.windows.first_kept(len(sequence.tokens))
        return [length for length in sequence.checkpoints if self.windows.first_seen(length) < kept]

    def _cut(self, sequence: Sequence, length: int) -> None:
        """Cut a finished sequence, and forget it if nothing is left."""
        self.truncate(sequence, length)
        if not sequence.tokens and sequence in self._owners:
            self._owners.remove(sequence)

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
        if self.has_state and length != sequence.state_length:
            sequence.slot, sequence.state_length = -1, -1 if length else 0
        for behind in [each for each in sequence.checkpoints if each > length]:
            del sequence.checkpoints[behind]
        del sequence.tokens[length:]
        sequence.block_count = min(sequence.block_count, -(-length // CACHE_BLOCK))

    def piece(self, sequence: Sequence, count: int) -> int:
        """Return how many of the next `count` tokens of a prompt a run computes, so that it ends at a checkpoint."""
        if self.slots <= self.count:
            return count
        length = len(sequence.tokens)
        return min((due - length for due in due_lengths(sequence.wanted, length, length + count)), default=count)

    def keep(self, sequence: Sequence, begin: int) -> None:
        """Add the checkpoints that a sequence gets after a run that began at a length."""
        if sequence not in self._owners or (self.windows is None and self.slots <= self.count):
            return
        for length in due_lengths(sequence.wanted, begin, len(sequence.tokens)):
            if length in sequence.checkpoints:
                continue
            if not self.has_state:
                sequence.checkpoints[length] = -1
            elif length == sequence.state_length and self.slots > self.count:
                slot = self._free_slot(sequence)
                self._copied(sequence.slot, slot)
                sequence.checkpoints[length] = slot

    def _usable(self, sequence: Sequence, length: int, *, is_shared: bool = False) -> int:
        """Return the largest number of its tokens, at most `length`, after which a sequence can be continued.

        is_shared: by another sequence, to which its own slot does not belong.
        """
        while length:
            if self.has_state:
                ends = sequence.checkpoints if is_shared else (*sequence.checkpoints, sequence.state_length)
                length = max((end for end in ends if end <= length), default=0)
            if self.windows is None:
                break
            first = self.windows.first_seen(length)
            missing = np.flatnonzero(sequence.window_blocks[first : -(-length // CACHE_BLOCK)] < 0)
            if not len(missing):
                break
            length = int(first + missing[-1]) * CACHE_BLOCK
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

    def _copied(self, source: int, slot: int) -> None:
        assert self._copy_state is not None and source >= 0
        self._copy_state(source, slot)

    def _give_slot(self, sequence: Sequence) -> None:
        """Give a sequence that begins a slot with the states after its tokens."""
        length = len(sequence.tokens)
        if sequence.slot >= 0 and sequence.state_length == length:
            return
        source = sequence.checkpoints[length] if length else -1
        slot = self._free_slot(sequence, source)
        if length:
            self._copied(source, slot)
        sequence.slot, sequence.state_length = slot, length

    def _free_slot(self, sequence: Sequence, kept: int = -1) -> int:
        """Return a slot that no sequence owns, which one gives up if there is none; but not the slot `kept`."""
        owners = [each for each in self._owners if each is not sequence] + [sequence]
        while True:
            used = {slot for each in owners for slot in (each.slot, *each.checkpoints.values())}
            free = next((slot for slot in range(self.slots) if slot not in used), None)
            if free is not None:
                return free
            self._give_slot_up(owners, kept)

    def _give_slot_up(self, owners: list[Sequence], kept: int) -> None:
        """Let the owners of a slot give it up: by age, checkpoints before the states of a sequence's end, those that
        several sequences own last, and those first without which the fewest tokens are computed again.
        """
        ranks: dict[int, tuple[int, bool, bool, int]] = {}
        for age, each in enumerate(owners):
            for length, slot in each.checkpoints.items():
                ranks[slot] = (age, False, slot in ranks, gap_without(each.checkpoints, length))
            if each.slot >= 0 and not each.is_active:
                ranks[each.slot] = (age, True, False, 0)
        ranks.pop(kept, None)
        victim = min(ranks, key=ranks.__getitem__)
        for each in owners:
            for length in [length for length, slot in each.checkpoints.items() if slot == victim]:
                del each.checkpoints[length]
            if each.slot == victim:
                each.slot, each.state_length = -1, -1
            if not each.is_active and each in self._owners:
                self._cut(each, len(each.tokens))

    def _longest_prefix(self, tokens: list[int]) -> tuple[int, Sequence | None]:
        """Return the sequence with the longest prefix of the tokens in full blocks, after the length of the prefix."""
        lengths = [
            self._usable(other, _shared(other.tokens, tokens[:-1]) // CACHE_BLOCK * CACHE_BLOCK, is_shared=True)
            for other in self._owners
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
        length, other = self._longest_prefix(tokens)
        if other is not None:
            sequence.block_count = length // CACHE_BLOCK
            sequence.blocks[: sequence.block_count] = other.blocks[: sequence.block_count]
            sequence.window_blocks[: sequence.block_count] = other.window_blocks[: sequence.block_count]
            sequence.tokens += other.tokens[:length]
            sequence.checkpoints |= {each: slot for each, slot in other.checkpoints.items() if each <= length}
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

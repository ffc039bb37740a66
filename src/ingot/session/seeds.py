"""The seeds that sessions give random ops without a seed of their own; see docs/random.md."""

from __future__ import annotations

import random
import threading
from numbers import Integral

from ingot.errors import KindError

_SEED_BITS = 63  # a state stores a seed as i64

_lock = threading.Lock()
_generator: random.Random = random.SystemRandom()


def set_seed(seed: int) -> None:
    """Make the random ops of later sessions reproducible, by the order in which sessions and contexts are created.

    It applies to random ops without a seed of their own, in graphs that set none. seed: any integer. Without it, the
    seeds of sessions come from the operating system's generator. Raises KindError unless `seed` is an integer.
    """
    global _generator
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise KindError(f"set_seed: not an integer, got {seed!r}, expected an integer")
    with _lock:
        _generator = random.Random(int(seed))


def next_seed() -> int:
    """Return the seed of the next session or context, 0..2**63-1."""
    with _lock:
        return _generator.getrandbits(_SEED_BITS)

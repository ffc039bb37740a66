"""Memory that is touched before it is asked for."""

import threading

import numpy as np
import pytest

from ingot.errors import InputError
from ingot.run.arena import Arena

PREFETCH = 64 << 20  # bytes, the least that is touched ahead


def touching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ingot memory"]


@pytest.mark.parametrize(
    "asked", [PREFETCH // 2, PREFETCH - 4096, PREFETCH, PREFETCH + 4096], ids=["half", "less", "told", "more"]
)
def test_prefaulted_memory_is_zero(asked, monkeypatch):
    monkeypatch.delenv("INGOT_CHECK", raising=False)
    arena = Arena()
    with arena.expecting("state", PREFETCH):
        block = arena._prefetches["state"].block
        memory = arena.reserve({"state": asked, "arena0": 128})
        assert not touching()
    assert np.shares_memory(memory.regions["state"], block) == (asked in (PREFETCH - 4096, PREFETCH))
    assert {name: region.nbytes for name, region in memory.regions.items()} == {"state": asked, "arena0": 128}
    assert not memory.regions["state"].any()
    memory.regions["state"][:] = 1
    assert arena.reserve({"state": PREFETCH // 2}) is memory


@pytest.mark.parametrize("nbytes", [0, PREFETCH - 1])
def test_little_memory_needs_no_thread(nbytes):
    arena = Arena()
    with arena.expecting("state", nbytes):
        assert not arena._prefetches


def test_the_thread_ends_where_nothing_is_reserved(monkeypatch):
    monkeypatch.delenv("INGOT_CHECK", raising=False)
    with pytest.raises(InputError), Arena().expecting("state", 16 * PREFETCH):
        raise InputError("refused")
    assert not touching()


def test_guarded_memory_is_not_prefaulted(monkeypatch):
    monkeypatch.setenv("INGOT_CHECK", "3")
    arena = Arena()
    with arena.expecting("state", PREFETCH):
        assert not arena._prefetches

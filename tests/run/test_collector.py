"""The collector of cycles waits while programs are made, and is as it was afterwards."""

import gc
import weakref

import numpy as np
import pytest

from ingot import InferenceSession, InputError
from ingot.ir.text import parse
from ingot.support.collector import uncollected


def test_it_waits_and_goes_on() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_where_it_was() -> None:
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_created_objects_are_old_and_collected_with_everything() -> None:
    class Node:
        other = None

    with uncollected():
        made = [Node() for _ in range(3000)]
        made[0].other, made[1].other = made[1], made[0]
    assert sum(isinstance(each, Node) for each in gc.get_objects(generation=2)) == len(made)
    gone = weakref.ref(made[0])
    del made
    gc.collect()
    assert gone() is None


def test_what_was_set_aside_stays_so() -> None:
    gc.freeze()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_it_is_on_after_a_binding_that_fails() -> None:
    lines = ["graph g", "input x: f32[n]", "y = reshape(x, shape=[2, (n)//2]): f32[2, (n)//2]", "output y = y"]
    session = InferenceSession(parse("\n".join(lines) + "\n"), threads=1)
    with pytest.raises(InputError):
        session.run(None, {"x": np.zeros(3, np.float32)})
    assert gc.isenabled()
    assert session.run(None, {"x": np.ones(4, np.float32)})[0].shape == (2, 2)
    assert gc.isenabled()

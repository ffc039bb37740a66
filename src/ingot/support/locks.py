"""Locks that an interrupt, a signal handler and a fork leave in order.

What a lock of this kind guards is made aside and published by one assignment: whoever is interrupted, or is gone in a
child of fork, leaves the old or the new behind. The memory of runs has locks of its own, in C, under which no line of
Python runs.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref

from ingot.errors import InputError


class OwnedLock:
    """A lock that a thread takes once: one that is inside and asks again, as a signal handler does, is told so.

    A child of fork finds it free, unless the thread that forked holds it. is_awaited: a fork waits until other threads
    are out, because what they change takes several steps. lock: for what must be done even inside, as clearing up.
    """

    def __init__(self, where: str, is_awaited: bool = False):
        self.lock = threading.RLock()
        self._where = where
        self.is_awaited = is_awaited
        _locks.add(self)

    def once(self) -> threading.RLock:  # type: ignore[valid-type]
        """The lock itself, because `with` takes and gives back one that is written in C without an interrupt between.

        Raises InputError in a thread that is inside.
        """
        if self.is_mine:
            raise InputError(
                f"{self._where}: in the middle of a call, got another from inside it, as from a signal handler,"
                " expected it after the first has returned"
            )
        return self.lock

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]


_locks: weakref.WeakSet[OwnedLock] = weakref.WeakSet()
_held: list[list[threading.RLock]] = []  # type: ignore[valid-type]


def _await_others() -> None:
    """Before a fork. Should it be interrupted, what it holds by then is known: no line of Python runs between."""
    _held.append([])
    awaited = sorted((lock for lock in _locks if lock.is_awaited), key=id)
    _held[-1].extend(filter(operator.methodcaller("acquire"), [lock.lock for lock in awaited]))


def _release() -> None:
    for lock in _held.pop():
        lock.release()


def _free() -> None:
    """In the child: no other thread lives that could give a lock back."""
    for lock in _locks:
        if not lock.is_mine:
            lock.lock._at_fork_reinit()  # type: ignore[attr-defined]
    _release()


os.register_at_fork(before=_await_others, after_in_parent=_release, after_in_child=_free)

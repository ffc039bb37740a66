"""Locks that stay consistent across an interrupt, a signal handler and a fork.

Data guarded by such a lock is prepared separately and published by one assignment: an interrupted thread, or one that
is missing in a forked child, leaves either the old or the new data. The memory of runs has other locks, in C, under
which no Python code runs.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref

from ingot.errors import InputError


class OwnedLock:
    """A lock that a thread acquires once: a nested request of its owner, as from a signal handler, raises an error.

    A forked child finds it free, unless the forking thread holds it. is_awaited: a fork waits until other threads have
    released the lock, because their changes take several steps. lock: for work that is allowed even inside, such as
    cleaning up.
    """

    def __init__(self, where: str, is_awaited: bool = False):
        self.lock = threading.RLock()
        self._where = where
        self.is_awaited = is_awaited
        _locks.add(self)

    def once(self) -> threading.RLock:  # type: ignore[valid-type]
        """Return the lock for a `with` block: it is written in C, so no interrupt comes between acquire and release.

        Raises InputError in the thread that holds it.
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
    """Acquire the awaited locks before a fork.

    If it is interrupted, the list of held locks is exact: no Python code runs between.
    """
    _held.append([])
    awaited = sorted((lock for lock in _locks if lock.is_awaited), key=id)
    _held[-1].extend(filter(operator.methodcaller("acquire"), [lock.lock for lock in awaited]))


def _release() -> None:
    for lock in _held.pop():
        lock.release()


def _free() -> None:
    """Free all locks in the child: no other thread exists that could release them."""
    for lock in _locks:
        if not lock.is_mine:
            lock.lock._at_fork_reinit()  # type: ignore[attr-defined]
    _release()


os.register_at_fork(before=_await_others, after_in_parent=_release, after_in_child=_free)

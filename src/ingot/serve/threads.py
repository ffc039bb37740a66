"""Threads that read, render and tokenise requests while models run: long requests at a low priority."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import anyio

LONG_BYTES = 16 << 10  # of a request whose work is long
LONG_THREADS = 4
# A thread of this priority has a tenth of the time of a thread of a run, if both want one CPU. Processes that it starts
# have its priority; their limits of time are ten times their limits of CPU time.
LONG_NICE = 10

T = TypeVar("T")
_NBYTES: contextvars.ContextVar[int] = contextvars.ContextVar("bytes of the request", default=0)


def _lower_priority() -> None:
    """Lower the priority of this thread, where the system has one for each thread."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + LONG_NICE))


_long = ThreadPoolExecutor(LONG_THREADS, "ingot long requests", _lower_priority)


def note_bytes(nbytes: int) -> None:
    """Note the bytes of the request that the current task answers: `aside` decides by them."""
    _NBYTES.set(nbytes)


async def aside(work: Callable[..., T], *args: object) -> T:
    """Run a part of the work on a request in another thread than the event loop. Raises the errors of the work.

    Work on long requests has threads of its own, few and of a low priority, so that it delays neither the runs of
    models nor short requests. A task that is cancelled takes its work out of the queue.
    """
    if _NBYTES.get() <= LONG_BYTES:
        return await anyio.to_thread.run_sync(work, *args)
    return await asyncio.get_running_loop().run_in_executor(_long, contextvars.copy_context().run, work, *args)

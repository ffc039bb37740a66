"""Counters of this process's threads, by Linux's perf events: cycles, instructions, cache misses, page faults."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_CALLS = {"x86_64": 298, "aarch64": 241}  # the number of perf_event_open
_HARDWARE, _SOFTWARE = 0, 1  # PERF_TYPE_*
_EVENTS = {
    "cycles": (_HARDWARE, 0), "instructions": (_HARDWARE, 1), "cache_misses": (_HARDWARE, 3),
    "branch_misses": (_HARDWARE, 5), "page_faults": (_SOFTWARE, 2),
}  # fmt: skip
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0
_NO_KERNEL = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv: allowed where perf_event_paranoid is at most 2
_CLOSE_ON_EXEC = 8
_READING = struct.Struct("q")


@dataclass(slots=True)
class Counters:
    """The sums of counters over the threads that exist when counting begins.

    totals: by name, only those that the kernel allows; empty before the end. refusal: why none of the hardware's are
    among them, or "".
    """

    totals: dict[str, int] = field(default_factory=dict)
    refusal: str = ""


@contextmanager
def counted_events() -> Iterator[Counters]:
    """Count the events of all threads of this process in user space, while the block runs."""
    found = Counters()
    files: dict[str, list[int]] = {}
    try:
        found.refusal = _open_all(files)
        yield found
        found.totals = {name: sum(map(_read, each)) for name, each in files.items()}
    finally:
        for each in (file for some in files.values() for file in some):
            os.close(each)


def _open_all(files: dict[str, list[int]]) -> str:
    """Open the counters of each thread; return why there are none, or ""."""
    call = _CALLS.get(platform.machine())
    if sys.platform != "linux" or call is None:
        return f"perf events are not read on {sys.platform} {platform.machine()}"
    refused = 0
    for name, event in _EVENTS.items():
        opened: list[int] = []
        for thread in map(int, os.listdir("/proc/self/task")):
            file = _open(call, *event, thread)
            if file >= 0:
                opened.append(file)
            elif file != -errno.ESRCH and event[0] == _HARDWARE:  # ESRCH: the thread has ended
                refused = -file
        if opened:
            files[name] = opened
    return "" if any(_EVENTS[name][0] == _HARDWARE for name in files) else _why(refused)


def _open(call: int, kind: int, configuration: int, thread: int) -> int:
    """Return the file of a counter that counts, or the number of an error below 0."""
    attribute = bytearray(_ATTRIBUTE_BYTES)
    struct.pack_into("IIQ", attribute, 0, kind, _ATTRIBUTE_BYTES, configuration)
    struct.pack_into("Q", attribute, 40, _NO_KERNEL)
    memory = (ctypes.c_char * _ATTRIBUTE_BYTES).from_buffer(attribute)
    file = ctypes.CDLL(None, use_errno=True).syscall(call, memory, thread, -1, -1, _CLOSE_ON_EXEC)
    return int(file) if file >= 0 else -ctypes.get_errno()


def _read(file: int) -> int:
    (count,) = _READING.unpack(os.read(file, _READING.size))
    return int(count)


def _why(error: int) -> str:
    if error in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "the kernel shows none of this CPU, as in most virtual machines"
    if error in (errno.EACCES, errno.EPERM):
        level = "unknown"
        with suppress(OSError), open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
            level = file.read().strip()
        return f"the kernel refuses them, perf_event_paranoid is {level}; 2 or less, and no seccomp filter, allow them"
    return f"the kernel refuses them: {os.strerror(error)}" if error else "no thread could be counted"

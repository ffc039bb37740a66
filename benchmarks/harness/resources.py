"""Time and memory of the process that asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

BATCH_SECONDS = 0.1


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, over a batch of about BATCH_SECONDS; at least one."""
    start = time.perf_counter()
    runs = 0
    while runs == 0 or time.perf_counter() < start + BATCH_SECONDS:
        call()
        runs += 1
    return (time.perf_counter() - start) / runs


def peak_bytes() -> int:
    """The most resident memory that this process has had."""
    text = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))

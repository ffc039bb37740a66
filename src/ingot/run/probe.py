"""Measure this machine's peak rates: multiply-adds in registers, and reads of memory of a given size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ingot.run.library import load
from ingot.run.store import allocate
from ingot.support import abi

LANES = abi.constant("INGOT_PROBE_LANES")
GRAIN_BYTES = 4 * abi.constant("INGOT_PROBE_GRAIN")
SECONDS = 0.0005  # of one round; the best of ROUNDS counts: some fall between the time slices of other processes
ROUNDS = 200
LEAST_BYTES, MOST_BYTES = 16 << 10, 256 << 20  # less would measure loops; more is memory like any other
_SHIFTS = (0, 2, 5, 8)  # sizes of parts of the arena, as multiples of the least: cache sizes and values between them
CALL_BYTES = 1 << 20  # bytes that a call reads at least, so that the call itself does not count


class Probe:
    """A prepared probe kernel: `seconds()` is the time of one run on `threads` threads.

    nbytes: the memory that probe_read_f32 reads, rounded up to a multiple of 2048, `passes` times in each run. count:
    the multiply-adds of each task of probe_fma_f32.
    """

    def __init__(
        self, kernel: str, isa: str, threads: int, *, nbytes: int = GRAIN_BYTES, count: int = 0, passes: int = 1
    ):
        library = load()
        ffi: Any = library.ffi
        self.nbytes = -(-nbytes // GRAIN_BYTES) * GRAIN_BYTES
        self._memory = allocate(self.nbytes)
        self._memory[:] = 0  # untouched pages all map to one page
        self._out = ffi.new("float[]", threads * LANES)
        x = ffi.cast("float*", self._memory.ctypes.data)
        fields = {"x": x, "out": self._out, "count": count or self.nbytes // 4, "passes": passes}
        self._args = ffi.new("probe_args*", fields)
        self._steps = ffi.new("ingot_step[1]")
        self._steps[0].kernel = library.kernel(kernel, isa)
        self._steps[0].args = self._args
        self._steps[0].num_tasks, self._steps[0].iterations = threads, 1
        self._program = ffi.new("ingot_program*", {"steps": self._steps, "step_count": 1, "threads": threads})
        self._null, self._run = ffi.NULL, library.entry.ingot_run

    def seconds(self, runs: int = 1) -> float:
        """Return the seconds of one run, averaged over `runs`."""
        start = time.perf_counter()
        for _ in range(runs):
            self._run(self._program, self._null, self._null)
        return (time.perf_counter() - start) / runs

    def best(self) -> float:
        """Return the shortest time of a run, from several short rounds."""
        self.seconds()
        runs = max(1, round(SECONDS / self.seconds()))
        return min(self.seconds(runs) for _ in range(ROUNDS))


def fma_per_second(isa: str, threads: int) -> float:
    """Return fused multiply-adds per second on `threads` threads."""
    count = 200_000 if isa == "scalar" else 20_000_000
    return count * threads / Probe("probe_fma_f32", isa, threads, count=count).best()


def bytes_per_second(isa: str, threads: int, nbytes: int) -> float:
    """Return bytes per second when `threads` threads read `nbytes` of memory repeatedly, each its share."""
    passes = max(1, CALL_BYTES * threads // nbytes)
    probe = Probe("probe_read_f32", isa, threads, nbytes=nbytes, passes=passes)
    return probe.nbytes * passes / probe.best()


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak rates for a program: operations per second, and bytes per second of its weights and of other data.

    Weights are read once per run, from the memory level that all of them fit in. Activations are in the arena; a step
    uses a part of it that may fit in a faster level. Their rate is measured for several sizes, `arena` (bytes, bytes
    per second), up to the arena's size.
    """

    flops: float
    weight_bytes: float
    arena: tuple[tuple[int, float], ...]

    @staticmethod
    def measure(isa: str, threads: int, weight_bytes: int, arena_bytes: int) -> Roofline:
        """Measure with memory of a program's sizes, in about a second."""
        least = LEAST_BYTES * threads
        weights, arena = (max(least, min(nbytes, MOST_BYTES)) for nbytes in (weight_bytes, arena_bytes))
        sizes = sorted({*(least << shift for shift in _SHIFTS if least << shift < arena), arena})
        speeds = tuple((nbytes, bytes_per_second(isa, threads, nbytes)) for nbytes in sizes)
        return Roofline(2 * fma_per_second(isa, threads), bytes_per_second(isa, threads, weights), speeds)

    @property
    def arena_bytes(self) -> float:
        """Bytes per second for the complete arena."""
        return self.arena[-1][1]

    def seconds(self, flops: float, weight_bytes: float, other_bytes: float) -> float:
        """Return the minimum time of this work."""
        speed = next((speed for nbytes, speed in self.arena if other_bytes <= nbytes), self.arena_bytes)
        return max(flops / self.flops, weight_bytes / self.weight_bytes + other_bytes / speed)

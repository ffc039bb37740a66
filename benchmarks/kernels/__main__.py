"""Measure the kernels on one thread and on two."""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import dataclass

from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from ingot.inspect.kernel_bench import FAMILIES, Candidates
from ingot.run.library import load
from ingot.run.probe import Probe

ROUNDS = 15
SECONDS = 0.015  # of a kernel in a round, and of its probe
FMA_COUNT = 10_000_000  # many enough that the call does not count


@dataclass(frozen=True)
class Case:
    """A shape of a family, and the least share of the machine's limit: of multiply-adds, or of reading the weights."""

    family: str
    shape: tuple[int, ...]
    goal: float
    reads: bool = False


CASES = (
    *(Case("gemm", shape, 0.93) for shape in ((128, 768, 768), (512, 1024, 256), (1024, 1024, 1024))),
    *(Case("gemm", (m, k, n), 0.80) for m in (8, 16, 32) for k, n in ((768, 768), (1024, 4096))),
    Case("attention", (1, 12, 512, 512, 64), 0.75),
    Case("attention-causal", (2, 8, 777, 777, 80), 0.75),
    *(Case("conv", (c, size, size, c, 3, 1, 1), 0.88) for c, size in ((64, 56), (128, 28), (256, 14), (512, 7))),
    Case("gemm", (1, 1536, 1536), 0.0, reads=True),
    Case("gemm", (1, 4096, 4096), 0.90, reads=True),
    Case("gemm", (1, 4096, 11008), 0.90, reads=True),
)


def share(case: Case, threads: int) -> tuple[str, float, float]:
    """The kernel that was chosen, its median microseconds, and the median share of the limit over the rounds."""
    isa = load().isa()
    found = Candidates.of(FAMILIES[case.family].graph(case.shape), [isa], threads)
    (kernel,) = (candidate for candidate in found.able if candidate.chosen)
    cost = kernel.cost
    if case.reads:
        probe, work = Probe("probe_read_f32", isa, threads, nbytes=cost.weight_bytes), cost.weight_bytes
        full = probe.nbytes
    else:
        probe, work = Probe("probe_fma_f32", isa, threads, count=FMA_COUNT), cost.flops
        full = 2 * FMA_COUNT * threads
    kernel_runs = max(1, round(1e9 * SECONDS / kernel.measure(found.inputs, 2)))
    probe.seconds()
    probe_runs = max(1, round(SECONDS / probe.seconds(3)))
    times, shares = [], []
    for _ in range(ROUNDS):
        probe.seconds()
        limit = full / probe.seconds(probe_runs)
        seconds = 1e-9 * kernel.measure(found.inputs, kernel_runs)
        times.append(seconds)
        shares.append(work / seconds / limit)
    return kernel.kernel, 1e6 * statistics.median(times), statistics.median(shares)


def kernels(only: str) -> str:
    """The table, on one thread and on two."""
    rows = []
    for case in CASES:
        shape = f"{case.family} {'x'.join(map(str, case.shape))}"
        if not re.search(only, shape):
            continue
        for threads in (1, 2):
            kernel, microseconds, reached = share(case, threads)
            goal = [f"{case.goal:.0%}", verdict(reached >= case.goal)] if case.goal else ["", ""]
            limit = "reading" if case.reads else "multiply-adds"
            rows.append([shape, kernel, str(threads), f"{microseconds:.1f}", limit, f"{reached:.0%}", *goal])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return table(["shape", "kernel", "threads", "us", "limit", "share of it", "goal", ""], rows)


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, only=True).parse_args()
    page.publish(__package__, asked, "Kernels", ["ingot"], kernels(asked.only))


if __name__ == "__main__":
    main()

"""Results as Markdown."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.harness.rounds import Measurement, Results


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def microseconds(measurement: Measurement) -> str:
    """The median, or a dash for an engine that could not run the workload."""
    return "-" if math.isinf(measurement.median) else f"{measurement.median * 1e6:.1f}"


def ratio(measured: dict[str, Measurement]) -> float:
    """Ingot's median over the best other engine's; nan when one is missing."""
    others = [m.median for engine, m in measured.items() if engine != "ingot"]
    best = min(others, default=math.inf)
    mine = measured["ingot"].median if "ingot" in measured else math.inf
    return math.nan if math.isinf(best) or math.isinf(mine) else mine / best


def side_by_side(results: Results, engines: list[str], precision: str = "f32") -> str:
    """Medians in microseconds, Ingot's over the best other's, spreads and differences; losses are marked.

    In another precision than f32 every engine's difference is there.
    """
    head = ["workload", *engines, "Ingot / best other", "", "IQR of Ingot", "largest IQR", "largest difference"]
    if precision != "f32":
        head[-1:] = [f"difference of {engine}" for engine in engines]
    rows = []
    for name, measured in results.items():
        r = ratio(measured)
        mine = measured.get("ingot", Measurement())
        spreads = [m.spread for m in measured.values() if not math.isnan(m.spread)]
        differences = [measured[engine].difference for engine in engines]
        if precision == "f32":
            differences = [max((d for d in differences if not math.isnan(d)), default=math.nan)]
        rows.append(
            [name, *(microseconds(measured[e]) for e in engines), f"{r:.2f}", "**loss**" if r > 1 else "",
             f"{mine.spread:.1%}", f"{max(spreads, default=math.nan):.1%}", *(f"{d:.1e}" for d in differences)]
        )  # fmt: skip
    failures = [
        f"- {name} on {engine}: `{m.failure}`" for name, ms in results.items() for engine, m in ms.items() if m.failure
    ]
    parts = [table(head, rows), geometric_means(results)]
    return "\n\n".join([*parts, "Could not run:\n" + "\n".join(failures)] if failures else parts)


def geometric_means(results: Results) -> str:
    """The geometric mean of the ratios, by family and over all."""
    families: dict[str, list[float]] = {}
    for name, measured in results.items():
        if not math.isnan(ratio(measured)):
            families.setdefault(name.split()[0], []).append(ratio(measured))
    everything = [r for ratios in families.values() for r in ratios]
    if not everything:
        return "No workload ran on Ingot and on another engine."
    rows = [[f, str(len(rs)), f"{statistics.geometric_mean(rs):.2f}"] for f, rs in families.items()]
    rows.append(["**all**", str(len(everything)), f"**{statistics.geometric_mean(everything):.2f}**"])
    losses = sum(r > 1 for r in everything)
    return f"{table(['family', 'workloads', 'geometric mean of Ingot / best other'], rows)}\n\n{losses} losses."


Figures = dict[str, dict[str, float]]


def roofline(figures: Figures) -> str:
    """What the machine does at best, as `python -m benchmarks roofline --json` gives it."""
    rows = [
        [f"{quantity} {case}", f"{value:.1f}"] for quantity, cases in figures.items() for case, value in cases.items()
    ]
    return table(["quantity", "measured"], rows)


def shares(results: Results, figures: Figures, threads: int) -> str:
    """For the workloads whose work is plain: Ingot's arithmetic and weight traffic as shares of the machine's."""
    peak = max(value for case, value in figures["fma_gflops"].items() if case.endswith(f".{threads}"))
    read = figures["read_gb_per_s"][f"dram.{threads}"]
    rows = []
    for name, measured in results.items():
        products = multiply_adds(name)
        if products is None or "ingot" not in measured or measured["ingot"].failure:
            continue
        rate, traffic = (amount / measured["ingot"].median / 1e9 for amount in (2 * products[0], 4 * products[1]))
        rows.append([name, f"{rate:.1f}", f"{rate / peak:.0%}", f"{traffic:.1f}", f"{traffic / read:.0%}"])
    return table(["workload", "GFLOP/s", "of peak", "weights GB/s", "of streaming from memory"], rows)


def multiply_adds(name: str) -> tuple[int, int] | None:
    """Multiply-adds of a run and number of weights, for an MLP or a matvec."""
    family, _, size = name.partition(" ")
    if family == "mlp":
        batch, width = map(int, size.split("x"))
        return 3 * batch * width * width, 3 * width * width
    if family == "matvec":
        _, k, n = map(int, size.split("x"))
        return k * n, k * n
    return None


def machine() -> str:
    """This machine in a few words."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), "unknown CPU")
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    cpus = len(os.sched_getaffinity(0))
    return f"{model}, {cpus} CPUs available, {memory:.0f} GiB of memory, {platform.system()} {platform.release()}"


def verdict(met: bool) -> str:
    """The cell of a table."""
    return "met" if met else "**missed**"

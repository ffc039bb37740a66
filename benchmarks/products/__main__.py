"""Measure the products, and report GFLOP/s and the shapes at which another engine is faster."""

from __future__ import annotations

import os
import statistics

from benchmarks.harness import isa, page, rounds
from benchmarks.harness.report import table

PROGRAM = "benchmarks.products.worker"
ROUNDS = 5
ENGINES = ("openblas", "torch", "ingot")
ROWS = (16, 32, 48, 77, 96, 128, 197, 256, 512, 1024)
WEIGHTS = ((384, 1536), (768, 768), (768, 3072), (3072, 768), (512, 2048), (1024, 1024))
SHAPES = tuple(f"{m}x{k}x{n}" for m in ROWS for k, n in WEIGHTS)


def gigaflops(name: str, measured: rounds.Measurement) -> float:
    """The billions of operations per second of a product's median."""
    m, k, n = map(int, name.split("x"))
    return 2e-9 * m * k * n / measured.median


def tables(names: list[str], engines: list[str], count: int, threads: int) -> list[str]:
    """GFLOP/s of each product and engine, then the geometric mean of the ratios to the best other engine."""
    results = rounds.measure(PROGRAM, names, engines, count, threads)
    others = [engine for engine in engines if engine != "ingot"]
    rows, ratios = [], {}
    for name, measured in results.items():
        best = min(measured[engine].median for engine in others)
        ratios[name] = measured["ingot"].median / best
        cells = [f"{gigaflops(name, measured[engine]):.0f}" for engine in engines]
        rows.append([name, *cells, f"{ratios[name]:.2f}{' **loss**' if ratios[name] > 1 else ''}"])
    losses = sum(ratio > 1 for ratio in ratios.values())
    worst = max(ratios, key=lambda name: ratios[name])
    text = (
        f"The geometric mean of Ingot's times divided by those of the best other engine is "
        f"{statistics.geometric_mean(ratios.values()):.2f}; {losses} of {len(ratios)} are above 1, at most "
        f"{ratios[worst]:.2f} ({worst})."
    )
    return [text, table(["rows x k x columns", *engines, "Ingot / best other"], rows)]


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, rounds=ROUNDS, threads=1, engines=ENGINES, only=True)
    isa.option(parser, "avx2")
    asked = parser.parse_args()
    isa.hold(asked.isa)
    os.environ["OPENBLAS_NUM_THREADS"] = str(asked.threads)
    parts = tables(page.chosen(SHAPES, asked.only), asked.engines, asked.rounds, asked.threads)
    page.publish(__package__, asked, f"Products in f32, {asked.isa}", asked.engines, *parts)


if __name__ == "__main__":
    main()

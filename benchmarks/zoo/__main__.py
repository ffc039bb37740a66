"""Measure the networks, and report medians."""

from __future__ import annotations

from benchmarks.harness import page, report, rounds
from benchmarks.zoo.networks import workloads

PROGRAM = "benchmarks.zoo.worker"
ROUNDS = 9
ENGINES = ("eager", "compile", "onnxruntime", "openvino", "ingot")
LEAST_SECONDS = 1e-3


def main() -> None:
    """Measure Ingot alone, then those that are long enough."""
    asked = page.options(__package__, rounds=ROUNDS, threads=page.THREADS, engines=ENGINES, only=True).parse_args()
    names = page.chosen(workloads(), asked.only)
    alone = rounds.measure(PROGRAM, names, ["ingot"], 1, asked.threads)
    names = [name for name in names if LEAST_SECONDS <= alone[name]["ingot"].median < float("inf")]
    results = rounds.measure(PROGRAM, names, asked.engines, asked.rounds, asked.threads)
    page.publish(__package__, asked, "The zoo", asked.engines, report.side_by_side(results, asked.engines))


if __name__ == "__main__":
    main()

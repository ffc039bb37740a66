"""Rounds of measures of language models, each engine in a process of its own."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field

from benchmarks.harness.rounds import Measurement
from benchmarks.harness.worker import Worker
from benchmarks.llm.engines import DECODE_TOKENS, PREFILLS


@dataclass
class Run:
    """An engine on the model of one precision."""

    worker: Worker
    load_seconds: float = float("nan")
    settings: dict[str, str] = field(default_factory=dict)
    measured: dict[str, Measurement] = field(default_factory=dict)  # seconds of a token
    peak_bytes: int = 0


Runs = dict[str, Run]


def measure_round(number: int, runs: Runs) -> None:
    """One of each measure on each engine: seconds of a token."""
    for tokens in PREFILLS:
        for run in runs.values():
            if f"prefill {tokens}" in run.measured:
                run.measured[f"prefill {tokens}"].rounds.append(
                    run.worker.request(prefill=tokens, seed=number) / tokens
                )
    for run in runs.values():
        run.measured["decode"].rounds.append(run.worker.request(decode=DECODE_TOKENS, seed=number))
    print(f"round {number + 1}", file=sys.stderr, flush=True)


def share(numerator: Measurement, denominator: Measurement) -> float:
    """The median over rounds of a ratio."""
    return statistics.median(a / b for a, b in zip(numerator.rounds, denominator.rounds, strict=True))

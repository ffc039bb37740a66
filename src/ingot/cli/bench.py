"""`ingot bench`: how long one model takes here."""

from __future__ import annotations

import time

import click
import numpy as np

from ingot.cli.model import Model, as_json, random_feeds, with_model
from ingot.cli.terminal import human_time, print_json, print_text, track

SLICES = 50


@click.command()
@with_model
@click.option(
    "--seconds", type=click.FloatRange(0.01, 3600), default=2.0, show_default=True, help="How long to measure."
)
@as_json
def bench(model: Model, seconds: float, as_json: bool) -> None:
    """Measure the latency of MODEL on random inputs; symbolic dims without --dim are 1."""
    session = model.open()
    feeds = random_feeds(session, model.dims)
    start = time.perf_counter()
    session.run(None, feeds)
    first = time.perf_counter() - start
    taken: list[float] = []
    for _ in track(range(SLICES), "measuring"):
        end = time.perf_counter() + seconds / SLICES
        while (start := time.perf_counter()) < end:
            session.run(None, feeds)
            taken.append(time.perf_counter() - start)
    p50, p90, p99 = np.percentile(taken, [50, 90, 99])
    if as_json:
        times = {"p50": p50, "p90": p90, "p99": p99, "min": min(taken), "first": first}
        print_json({"runs": len(taken), "threads": session.threads, "isa": session.isa, "seconds": times})
        return
    print_text(f"{len(taken)} runs on {session.threads} thread(s), {session.isa}")
    for label, value in (("median", p50), ("90 %", p90), ("99 %", p99), ("best", min(taken)), ("first run", first)):
        print_text(f"  {label:<10} {human_time(value)}")


COMMANDS = [bench]

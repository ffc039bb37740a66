"""The command line of a fuzzer: the seeds that it runs, and its report of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence


def parse_seeds(description: str | None, count: int, *, one: str = "", parallel: bool = False) -> argparse.Namespace:
    """--count and --start; --seed, where `one` runs a single seed; --jobs for one in processes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help=f"how many seeds, {count} if not given")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    if one:
        parser.add_argument("--seed", type=int, help=one)
    if parallel:
        parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    return parser.parse_args()


def print_outcomes(outcomes: Mapping[int, str], options: argparse.Namespace, kinds: Sequence[str], rare: int) -> int:
    """Prints findings, the seeds of each kind from `kinds[rare]` on, and how many are of each; returns the exit code.

    outcomes: as `forked` has them, by seed: one of the kinds, or a finding. A seed without one is a finding, too.
    """
    findings = {seed: outcome for seed, outcome in outcomes.items() if outcome.startswith("!")}
    for seed, outcome in sorted(findings.items()):
        print(f"seed {seed}: {outcome}")
    for kind in kinds[rare:]:
        print(f"{kind}:", *(seed for seed, outcome in sorted(outcomes.items()) if outcome == kind))
    told = ", ".join(f"{list(outcomes.values()).count(kind)} {kind}" for kind in kinds)
    print(f"{len(outcomes)} seeds from {options.start}: {told}, {len(findings)} findings")
    return int(bool(findings) or len(outcomes) < options.count)

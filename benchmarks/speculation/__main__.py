"""Measure plain decoding and prompt lookup on the same prompts."""

from __future__ import annotations

import heapq
import inspect
import shutil
import statistics
import string
import sys
import tempfile
import textwrap
from collections.abc import Callable
from typing import Any

import ingot
from benchmarks.harness import page
from benchmarks.harness.report import table, verdict

ROUNDS = 5
TOKENS = 150
PROMPT_TOKENS = 230
GOAL = 1.6
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    heapq.merge, heapq.nsmallest, shutil.copyfile, shutil.copymode, shutil.copytree, shutil.move,
    string.capwords, tempfile.mkstemp, textwrap.dedent, textwrap.shorten,
)  # fmt: skip


def prompt_of(llm: ingot.LLM, function: Callable[..., Any]) -> list[int]:
    """The tokens of a function's beginning and of the first lines of its copy."""
    source = inspect.getsource(function)
    beginning = llm.tokenizer.decode(llm.encode(source)[:PROMPT_TOKENS])
    return llm.encode("\n".join([beginning, "", *source.splitlines()[:2]]))


def seconds_of(llm: ingot.LLM, ids: list[int]) -> tuple[float, list[int]]:
    """The seconds of the tokens after the first, and all tokens."""
    llm.engine.sequences.forget_all()
    tokens = list(llm.generate_tokens(ids, max_tokens=TOKENS))
    return llm.usage.decode_seconds, tokens


def measure(rounds: int, threads: int) -> str:
    """The table, in tokens a second."""
    plain, lookup = (
        ingot.LLM("tiny-lm", precision="f32", sequences=1, threads=threads, lookup=x) for x in (False, True)
    )
    rows, sums, count = [], [0.0, 0.0], 0
    for function in FUNCTIONS:
        ids = prompt_of(plain, function)
        times: list[tuple[float, float]] = []
        for _ in range(rounds):
            (slow, tokens), (fast, same) = seconds_of(plain, ids), seconds_of(lookup, ids)
            if tokens != same:
                sys.exit(f"{function.__name__}: the tokens differ")
            times.append((slow, fast))
        usage, medians = lookup.usage, [statistics.median(column) for column in zip(*times, strict=True)]
        sums, count = [a + b for a, b in zip(sums, medians, strict=True)], count + len(tokens)
        speeds = [f"{len(tokens) / seconds:.0f}" for seconds in medians]
        drafts = f"{usage.accepted_tokens} of {usage.drafted_tokens}"
        rows.append([function.__name__, str(len(tokens)), *speeds, f"{medians[0] / medians[1]:.2f}", drafts, ""])
    ratio = sums[0] / sums[1]
    speeds = [f"{count / seconds:.0f}" for seconds in sums]
    rows.append(["all", str(count), *speeds, f"{ratio:.2f}", "", f"goal {GOAL} {verdict(ratio >= GOAL)}"])
    return table(["text", "tokens", "plain", "lookup", "times", "accepted", ""], rows)


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, rounds=ROUNDS, threads=page.THREADS).parse_args()
    page.publish(__package__, asked, "Speculative decoding", ["ingot"], measure(asked.rounds, asked.threads))


if __name__ == "__main__":
    main()

"""Measure plain decoding and prompt lookup on the same prompts."""

from __future__ import annotations

import heapq
import inspect
import re
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
TOKENS = 220
SOURCE_TOKENS = 200
GOAL = 1.6
# Functions, and a variable of each with its new name.
EDITS: tuple[tuple[Callable[..., Any], str, str], ...] = (
    (heapq.merge, "iterables", "streams"), (heapq.nsmallest, "iterable", "values"), (shutil.copyfile, "dst", "target"),
    (shutil.copymode, "dst", "target"), (shutil.move, "src", "source"), (string.capwords, "sep", "gap"),
    (tempfile.mkstemp, "prefix", "start"), (textwrap.dedent, "text", "block"), (textwrap.shorten, "width", "length"),
)  # fmt: skip
Seconds = tuple[float, float]  # plain, and with prompt lookup


def compare(models: tuple[ingot.LLM, ingot.LLM], rounds: int, prompt: str, **options: Any) -> tuple[Seconds, list[str]]:
    """The median seconds of both models, and the cells of a row."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        answers = []
        for llm, seconds in zip(models, times, strict=True):
            llm.engine.sequences.forget_all()
            answers.append(llm.complete(prompt, temperature=0, max_tokens=TOKENS, **options))
            seconds.append(answers[-1].usage.decode_seconds)
        if answers[0].tokens != answers[1].tokens:
            sys.exit(f"{prompt[:30]!r}: the tokens differ")
    usage, (plain, lookup) = answers[1].usage, map(statistics.median, times)
    count = usage.completion_tokens
    drafts = f"{usage.accepted_tokens} of {usage.drafted_tokens}"
    return (plain, lookup), [
        str(count),
        f"{count / plain:.0f}",
        f"{count / lookup:.0f}",
        f"{plain / lookup:.2f}",
        drafts,
    ]


def measure(rounds: int, threads: int) -> str:
    """The table, in tokens a second."""
    options: Any = {"precision": "f32", "sequences": 1, "threads": threads}
    models = ingot.LLM("tiny-lm", **options), ingot.LLM("tiny-lm", lookup=True, **options)
    rows = []
    for kind in ("edit", "continuation"):
        sums = [0.0, 0.0]
        for function, old, new in EDITS:
            source = models[0].tokenizer.decode(models[0].encode(inspect.getsource(function))[:SOURCE_TOKENS])
            if kind == "edit":
                edited = re.sub(rf"\b{old}\b", new, source)
                prompt = f"{source}\n\n# {old} is renamed to {new}\n"
                seconds, cells = compare(models, rounds, prompt, regex=re.escape(edited))
            else:
                prompt = "\n".join([source, "", *source.splitlines()[:2]])
                seconds, cells = compare(models, rounds, prompt)
            sums = [a + b for a, b in zip(sums, seconds, strict=True)]
            rows.append([f"{kind} of {function.__name__}", *cells, ""])
        ratio = sums[0] / sums[1]
        goal = f"goal {GOAL} {verdict(ratio >= GOAL)}" if kind == "edit" else ""
        rows.append([f"every {kind}", "", "", "", f"{ratio:.2f}", "", goal])
    return table(["text", "tokens", "plain", "lookup", "times", "accepted", ""], rows)


def main() -> None:
    """Measure and report."""
    asked = page.options(__package__, rounds=ROUNDS, threads=page.THREADS).parse_args()
    page.publish(__package__, asked, "Speculative decoding", ["ingot"], measure(asked.rounds, asked.threads))


if __name__ == "__main__":
    main()

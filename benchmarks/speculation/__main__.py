"""Measure plain decoding and prompt lookup on the same prompts."""

from __future__ import annotations

import functools
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
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from benchmarks.speculation import deeper
from ingot.llm.completion import Completion
from ingot.llm.generation import Generation
from ingot.llm.sampling import Sampling

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


class Forced:
    """A constraint to the tokens of a text."""

    may_end = False

    def __init__(self, ids: list[int], vocab_size: int):
        self._ids, self._count = ids, 0
        self.mask = np.zeros(-(-vocab_size // 32), np.uint32)
        self._allow()

    @property
    def is_complete(self) -> bool:
        """Whether the text is drawn."""
        return self._count == len(self._ids)

    def accept(self, token: int) -> None:
        """Allow the token after this one alone."""
        self._count += 1
        self._allow()

    def _allow(self) -> None:
        self.mask[:] = 0
        token = self._ids[min(self._count, len(self._ids) - 1)]
        self.mask[token // 32] = np.uint32(1 << token % 32)


def free(llm: ingot.LLM, prompt: str, **options: Any) -> Completion:
    """An answer of the model."""
    return llm.complete(prompt, temperature=0, max_tokens=TOKENS, **options)


def forced(llm: ingot.LLM, prompt: str, text: str) -> Completion:
    """The text as an answer of the model."""
    ids, vocab_size = llm.tokenizer.encode(text), llm.model.vocab_size
    constraint: Any = Forced(ids, vocab_size)
    generation = Generation(
        llm.encode(prompt), sampling=Sampling(temperature=0), vocab_size=vocab_size, max_tokens=len(ids),
        constraint=constraint,
    )  # fmt: skip
    drawn = [each.token for each in llm.run([generation])]
    if drawn != ids:
        sys.exit(f"{prompt[:30]!r}: other tokens than those of the text")
    return Completion(text, drawn, "stop", generation.usage, [])


def compare(
    models: tuple[ingot.LLM, ingot.LLM], rounds: int, prompt: str, draw: Callable[[ingot.LLM, str], Completion]
) -> tuple[Seconds, list[str]]:
    """The median seconds of both models, and the cells of a row. draw: an answer of a model to the prompt."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        answers = []
        for llm, seconds in zip(models, times, strict=True):
            llm.engine.sequences.forget_all()
            answers.append(draw(llm, prompt))
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


def measure(model: str | None, draft: str | None, rounds: int, threads: int) -> str:
    """The table, in tokens a second."""
    options: Any = {"precision": None if model else "f32", "sequences": 1, "threads": threads}
    path = model or "tiny-lm"
    drafting: Any = {"lookup": True} if draft is None else {"draft": draft}
    models = ingot.LLM(path, **options), ingot.LLM(path, **drafting, **options)
    rows, is_forced = [], model is not None and draft is None
    for kind in ("edit",) if model and not draft else ("edit", "continuation"):
        sums = [0.0, 0.0]
        for function, old, new in EDITS:
            source = models[0].tokenizer.decode(models[0].encode(inspect.getsource(function))[:SOURCE_TOKENS])
            if kind == "edit":
                edited = re.sub(rf"\b{old}\b", new, source)
                prompt = f"{source}\n\n# {old} is renamed to {new}\n"
                how: dict[str, str] = {"text": edited} if is_forced else {"regex": re.escape(edited)}
                seconds, cells = compare(
                    models, rounds, prompt, functools.partial(forced if is_forced else free, **how)
                )
            else:
                prompt = "\n".join([source, "", *source.splitlines()[:2]])
                seconds, cells = compare(models, rounds, prompt, free)
            sums = [a + b for a, b in zip(sums, seconds, strict=True)]
            rows.append([f"{kind} of {function.__name__}", *cells, ""])
        ratio = sums[0] / sums[1]
        goal = f"goal {GOAL} {verdict(ratio >= GOAL)}" if kind == "edit" and draft is None else ""
        rows.append([f"every {kind}", "", "", "", f"{ratio:.2f}", "", goal])
    return table(["text", "tokens", "plain", "draft" if draft else "lookup", "times", "accepted", ""], rows)


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS)
    parser.add_argument(
        "--model", metavar="FILE", help="a folder or file; by default tiny-lm, with --draft tiny-lm in 100 layers"
    )
    parser.add_argument("--draft", metavar="FILE", help="a small model that drafts instead of prompt lookup")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model
        if asked.draft is not None and model is None:
            model = str(deeper.write(Path(folder) / "deeper"))
        found = measure(model, asked.draft, asked.rounds, asked.threads)
    page.publish(__package__, asked, "Speculative decoding", ["ingot"], found)


if __name__ == "__main__":
    main()

"""The second part of `ingot demo`: the shipped language model completes Python functions."""

from __future__ import annotations

import collections
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.llm import stream
from ingot.cli.terminal import console, human_bytes
from ingot.load.hub import SHIPPED

if TYPE_CHECKING:
    from rich.text import Text

    from ingot.llm import LLM
    from ingot.llm.keywords import TextKeywords

FOLDER = Path(SHIPPED["tiny-lm"])
PROMPTS = (
    'def count_words(path):\n    """Count the words of a file."""\n    counts = {}\n'
    "    with open(path) as file:\n        for line in file:\n",
    'def copy_file(source, target):\n    """Copy a file."""\n',
)
SAMPLING: TextKeywords = {
    "max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "stop": ("\n\ndef", "\n\nclass", "\n\n#", "\n\n@"),
}  # fmt: skip
PREFILL_TOKENS = 256
DECODE_TOKENS = 65
REPEATS = 5
MAP_CELLS = 24
STYLES = ("green", "cyan", "magenta", "yellow")


def open_model(threads: int) -> LLM:
    """Load the shipped language model in f32, which gives the same text on every machine.

    Raises ResourceError if the package `tokenizers` is missing.
    """
    from ingot.llm import LLM

    return LLM(FOLDER, threads=threads, sequences=1, precision="f32")


def complete(llm: LLM, seed: int, show: bool) -> dict[str, Any]:
    """Complete functions, printing the text as it is generated if `show`; return texts, speed and memory."""
    answers = []
    for prompt in PROMPTS:
        pieces = llm.stream(prompt, **(SAMPLING | {"seed": seed}))
        if show:
            click.secho(prompt, bold=True, nl=False)
        answer = stream(pieces) if show else "".join(pieces)
        if show:
            click.echo("" if answer.endswith("\n") else "\n")
        answers.append(answer.rstrip("\n"))
    completions = [{"prompt": p, "answer": a} for p, a in zip(PROMPTS, answers, strict=True)]
    return {"completions": completions, "precision": llm.options.precision, **speeds(llm), "memory": memory_map(llm)}


def speeds(llm: LLM) -> dict[str, float]:
    """Return median tokens per second for prompts cut from this file; no two prompts share a prefix."""
    ids = llm.tokenizer.encode(Path(__file__).read_text())
    prefill, decode = [], []
    for start in range(REPEATS):
        collections.deque(llm.generate_tokens(ids[start : start + PREFILL_TOKENS], DECODE_TOKENS), maxlen=0)
        prefill.append(llm.usage.prefill_tokens_per_second)
        decode.append(llm.usage.decode_tokens_per_second)
    return {
        "prefill_tokens_per_second": statistics.median(prefill),
        "decode_tokens_per_second": statistics.median(decode),
    }


def memory_map(llm: LLM) -> dict[str, int]:
    """Return the bytes of each memory region that the model has allocated."""
    memory = llm.memory
    return {
        "weights": memory.weights,
        "KV": memory.cache,
        "prefill": memory.modes["prefill"].arena,
        "decode": memory.modes["decode"].arena,
    }


def show_language_model(threads: int, seed: int) -> None:
    """Print the completions, the speed and the memory map."""
    from rich.text import Text

    llm = open_model(threads)
    terminal = console()
    layers, size = llm.model.config["num_hidden_layers"], human_bytes(sum(f.stat().st_size for f in FOLDER.iterdir()))
    terminal.print(f"\nA language model ({layers} layers, {size}, trained on Python's library) completes functions:\n")
    facts = complete(llm, seed, show=True)
    speeds = (
        f"prefill of {PREFILL_TOKENS} tokens {facts['prefill_tokens_per_second']:,.0f} tok/s, "
        f"decode {facts['decode_tokens_per_second']:,.0f} tok/s"
    )
    terminal.print("  ", Text("Speed", "bold"), "   ", f"{speeds}, {facts['precision']}", sep="")
    terminal.print("  ", Text("Memory", "bold"), "  ", memory_line(facts["memory"]), sep="")


def memory_line(memory: dict[str, int]) -> Text:
    """Return the regions as one line: a bar with proportional sections, then the bytes of each."""
    from rich.text import Text

    total, line = sum(memory.values()), Text()
    for amount, style in zip(memory.values(), STYLES, strict=True):
        line.append("━" * max(1, round(amount / total * MAP_CELLS)), style)
    for index, ((name, amount), style) in enumerate(zip(memory.items(), STYLES, strict=True)):
        line.append(" | " if index else " ")
        line.append(f"{name} {human_bytes(amount)}", style)
    return line

"""`ingot bench llm`: measure prefill and decode of a language model, and the time of its steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ingot.cli.gguf import named
from ingot.cli.llm import ModelFolder, with_folder
from ingot.cli.model import as_json
from ingot.cli.terminal import (
    human_bytes,
    human_time,
    print_folded,
    print_json,
    print_table,
    print_text,
    progress,
    track,
)
from ingot.errors import InputError

if TYPE_CHECKING:
    from ingot.llm import LLM
    from ingot.llm.engine import Engine
    from ingot.session.reports import StepTotal

_ROUNDS = 5
_PROFILED = 3  # runs whose steps are timed


@click.command(epilog="Example: ingot bench tiny-lm --prompt 64 --tokens 16")
@with_folder
@click.option("--prompt", type=click.IntRange(1), default=128, show_default=True, help="Tokens in the prompt.")
@click.option("--tokens", type=click.IntRange(1), default=32, show_default=True, help="Tokens to decode.")
@click.option(
    "--sequences", type=click.IntRange(1, 256), default=1, show_default=True, help="Sequences decoded together."
)
@click.option(
    "--top", type=click.IntRange(0), default=8, show_default=True, help="Kinds of steps to list for each mode."
)
@as_json
def llm(folder: ModelFolder, prompt: int, tokens: int, sequences: int, top: int, as_json: bool) -> None:
    """Measure the language model in FOLDER, or a GGUF file, on random tokens.

    Prints load time, prefill and decode speed, memory, and the time of steps. Times are medians of several rounds;
    decode is the time of one token after the prompt, for all sequences together. Steps are timed with a barrier after
    each; the prompt fills a whole prefill chunk. Equal steps of all layers are one row.
    """
    start = time.perf_counter()
    model = folder.open(sequences=sequences)
    loaded = time.perf_counter() - start
    if prompt + tokens > model.context:
        raise InputError(f"{folder.path}: context of {model.context}, got {prompt} + {tokens} tokens, expected fewer")
    with model.engine.lock:
        prefills, decodes = measured(model, prompt, tokens, sequences)
        steps = profiles(model.engine, sequences)
    prefill, decode = float(np.median(prefills)), float(np.median(decodes))
    speed = {"prefill": prompt / prefill, "decode": sequences / decode}
    facts: dict[str, Any] = {"seconds": {"load": loaded, "prefill": prefill, "decode": decode}}
    facts |= {"tokens_per_second": speed, "prompt": prompt, "tokens": tokens, "sequences": sequences}
    facts |= {"threads": model.options.target.threads, "precision": model.options.precision}
    if as_json:
        kinds = {mode: {name: asdict(row) for name, row in rows.items()} for mode, rows in steps.items()}
        print_json(facts | {"memory": asdict(model.memory) | {"total": model.memory.total}, "steps": kinds})
        return
    weights = model.options.weights or "as stored"
    print_text(f"{named(folder.path)}: weights {weights}, precision {facts['precision']}, {facts['threads']} thread(s)")
    print_text(f"  load     {human_time(loaded)}, {human_bytes(model.memory.total)}")
    print_text(f"  prefill  {speed['prefill']:,.0f} tokens/s, {human_time(prefill)} for {prompt} tokens")
    print_text(f"  decode   {speed['decode']:,.1f} tokens/s, {human_time(decode)} for {sequences} sequence(s)")
    for mode, rows in steps.items():
        print_steps(mode, rows, top)
    print_folded("steps are timed separately, with a clock and a barrier after each, on a full chunk of rows")


def measured(model: LLM, prompt: int, tokens: int, sequences: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each prefill of a random prompt, and of each decode step after it."""
    engine, generator = model.engine, np.random.default_rng(0)
    prefills: list[float] = []
    decodes: list[float] = []
    for _ in track(range(_ROUNDS), "measuring"):
        engine.sequences.forget_all()
        begun = []
        for _ in range(sequences):
            sequence = engine.sequences.start(())
            ids = generator.integers(0, model.model.vocab_size, prompt).tolist()
            start = time.perf_counter()
            engine.prefill(sequence, ids)
            prefills.append(time.perf_counter() - start)
            engine.sequences.finish(sequence)  # it keeps its blocks in the cache
            begun.append(sequence)
        for token in generator.integers(0, model.model.vocab_size, tokens).tolist():
            start = time.perf_counter()
            engine.decode([(sequence, token, None) for sequence in begun])
            decodes.append(time.perf_counter() - start)
    return prefills, decodes


def profiles(engine: Engine, sequences: int) -> dict[str, dict[str, StepTotal]]:
    """Return step times by kernel, tasks and product sizes: for a chunk of a prompt, and for one token per sequence."""
    from ingot.session.reports import Profile

    found = {}
    with progress("measuring steps"):
        for name in ("prefill", "decode" if sequences == 1 else "batch"):
            mode = engine.mode(name)
            chunk = len(mode.inputs["ids"])
            taken = 1 if name == "prefill" else sequences
            sizes = {"rows": chunk, "taken": taken, "sequences": taken}
            times = mode.native.profile(list(mode.inputs.values()), _PROFILED, sizes)
            found[f"{name} of {chunk}"] = Profile.of(mode.native, times).totals()
    return found


def print_steps(mode: str, rows: dict[str, StepTotal], top: int) -> None:
    """Print the slowest kinds of steps, the others as one row, and the total."""
    ordered = sorted(rows.items(), key=lambda item: -item[1].nanoseconds)
    total = max(1, sum(row.nanoseconds for _, row in ordered))
    shown = [_cells(name, row, total) for name, row in ordered[:top]]
    if rest := [row for _, row in ordered[top:]]:
        shown.append(_cells(f"{len(rest)} other kinds", _total(rest), total))
    shown.append(_cells("all", _total([row for _, row in ordered]), total))
    columns = [f"{mode}: kernel, m x k x n", "steps", "time", "share", "GFLOP/s", "GB/s"]
    print_table(columns, shown, right=columns[1:])


def _total(rows: Sequence[StepTotal]) -> StepTotal:
    """Return the sums of counts and times; rates of different kinds cannot be added."""
    from ingot.session.reports import StepTotal

    return StepTotal(sum(row.count for row in rows), sum(row.nanoseconds for row in rows))


def _cells(name: str, row: StepTotal, total: int) -> Sequence[str]:
    rates = [f"{amount / max(row.nanoseconds, 1):.1f}" if amount else "" for amount in (row.flops, row.nbytes)]
    return [name, str(row.count), human_time(row.nanoseconds * 1e-9), f"{row.nanoseconds / total:.1%}", *rates]

"""`ingot demo`: run the shipped digit classifier on held-out digits, report on its program, run a language model."""

from __future__ import annotations

import collections
import importlib.resources
import io
import time
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ingot.cli.demo_language import complete, open_model, show_language_model
from ingot.cli.model import as_json
from ingot.cli.terminal import console, human_bytes, human_time, print_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ingot.session.inference import InferenceSession

RUNS = 500
GAP = "   "
BAR_CELLS = 8
FULL = 16  # value of the brightest pixel in the data
SHADES = " .:-=+*#%@"


@click.command()
@click.option(
    "--seed", default=1, show_default=True, help="Random seed: selects the digits shown and the sampled text."
)
@click.option(
    "--threads", type=click.IntRange(0, 256), default=0, help="Number of threads; 0: choose for this machine."
)
@as_json
def demo(seed: int, threads: int, as_json: bool) -> None:
    """Run the models shipped with Ingot.

    Classifies handwritten digits and completes Python functions.
    """
    from ingot.session.inference import InferenceSession

    data = importlib.resources.files("ingot") / "data"
    with np.load(io.BytesIO((data / "digits.npz").read_bytes()), allow_pickle=False) as held_out:
        images, labels = held_out["images"], held_out["labels"]
    session = InferenceSession((data / "digits.onnx").read_bytes(), threads=threads)
    probabilities = classify(session, images)
    facts = measure(session, images, probabilities, labels)
    if as_json:
        print_json(facts | {"language_model": complete(open_model(threads), seed, show=False)})
        return
    terminal = console()
    terminal.print(f"\n{len(images)} digits that were not used in training; some of them, the hardest last:\n")
    columns = max(1, (terminal.width - len(GAP)) // (2 * images.shape[2] + len(GAP)))
    for line in digit_lines(images, labels, probabilities, selected(probabilities, labels, min(columns, 5), seed)):
        terminal.print(GAP, line, sep="", no_wrap=True, overflow="crop")
    terminal.print()
    terminal.print(fact_table(facts))
    show_language_model(threads, seed)


def classify(session: InferenceSession, images: np.ndarray) -> np.ndarray:
    """Classify images u8[n, 8, 8] in one run; return probabilities f32[n, 10]."""
    return session.run(None, {"image": images[:, None].astype(np.float32)})[0]


def selected(probabilities: np.ndarray, labels: np.ndarray, count: int, seed: int) -> list[int]:
    """Return indices of digits to draw: random ones with different labels, then the one with the lowest confidence."""
    hardest = int(probabilities.max(-1).argmin())
    picked: dict[int, int] = {}
    for index in np.random.default_rng(seed).permutation(len(labels)):
        if index != hardest:
            picked.setdefault(int(labels[index]), int(index))
    return [*sorted(list(picked.values())[: count - 1], key=lambda i: labels[i]), hardest]


def digit_lines(images: np.ndarray, labels: np.ndarray, probabilities: np.ndarray, indices: list[int]) -> list[Text]:
    """Draw the digits side by side, with label, prediction and confidence under each."""
    from rich.text import Text

    width = 2 * images.shape[2]
    lines = []
    for row in range(images.shape[1]):
        lines.append(Text(GAP).join(pixels(images[index, row]) for index in indices))
    captions = []
    bars = []
    for index in indices:
        guess, confidence = int(probabilities[index].argmax()), float(probabilities[index].max())
        right = guess == labels[index]
        style = "green" if right else "bold red"
        captions.append(Text(f"{labels[index]}, read as {guess}".center(width), style))
        filled = round(confidence * BAR_CELLS)
        level = Text("━" * filled, style) + Text("─" * (BAR_CELLS - filled), "dim")
        bars.append(level + Text(f"{confidence:6.1%} ".rjust(width - BAR_CELLS)))
    return [*lines, Text(), Text(GAP).join(captions), Text(GAP).join(bars)]


def pixels(row: np.ndarray) -> Text:
    """Draw a row of a digit, two cells a pixel: grey levels, or without colour characters of similar darkness."""
    from rich.text import Text

    text = Text()
    for value in row.tolist():
        grey = 20 + 235 * value // FULL
        shade = SHADES[value * (len(SHADES) - 1) // FULL]
        text.append(shade * 2, f"rgb({grey},{grey},{grey}) on rgb({grey},{grey},{grey})")
    return text


def measure(
    session: InferenceSession, images: np.ndarray, probabilities: np.ndarray, labels: np.ndarray
) -> dict[str, Any]:
    """Return accuracy, node counts, times, and the kernels and memory of a run with all digits at once."""
    right = int((probabilities.argmax(-1) == labels).sum())
    one = median_seconds(session, images[:1], RUNS)
    together = median_seconds(session, images, RUNS // 25)
    kernels = collections.Counter(step.kernel for part in session.program.native for step in part.lowered.steps)
    return {
        "digits": len(images),
        "right": right,
        "nodes_before": session.source_node_count,
        "nodes_after": len(session.graph),
        "kernels": dict(kernels.most_common()),
        "fallback": list(session.explain().fallback),
        "isa": session.isa,
        "threads": session.threads,
        "arena_bytes": session.plan.arena_bytes,
        "activation_bytes": session.plan.activation_bytes,
        "seconds_one": one,
        "seconds_all": together,
    }


def median_seconds(session: InferenceSession, images: np.ndarray, runs: int) -> float:
    """Return the median time of a run on these images, in seconds."""
    feeds = {"image": images[:, None].astype(np.float32)}
    session.run(None, feeds)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def fact_table(facts: dict[str, Any]) -> Table:
    """Return the report under the digits as a table."""
    from rich.table import Table
    from rich.text import Text

    kernels = [f"{name} x{count}" if count > 1 else name for name, count in facts["kernels"].items()]
    arena, activations = facts["arena_bytes"], facts["activation_bytes"]
    longest = max(arena, activations)
    times = f"{human_time(facts['seconds_one'])} for one digit, {human_time(facts['seconds_all'])} for all at once"
    rows: list[tuple[str, str | Text]] = [
        ("Right", f"{facts['right']} of {facts['digits']} ({facts['right'] / facts['digits']:.1%})"),
        ("Nodes", f"{facts['nodes_before']} as loaded, {facts['nodes_after']} after the passes"),
        ("Kernels", ", ".join(kernels)),
        ("Machine", f"{facts['isa']}, {facts['threads']} threads"),
        ("Memory", bar(arena, longest, "cyan") + Text(f" {human_bytes(arena)}: the arena, scratch included")),
        ("", bar(activations, longest, "dim") + Text(f" {human_bytes(activations)}: all activations without reuse")),
        ("Time", times),
    ]
    if facts["fallback"]:
        rows.append(("Reference", ", ".join(facts["fallback"])))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for label, value in rows:
        table.add_row(f"  {label}", value)
    return table


def bar(amount: float, longest: float, style: str, cells: int = 30) -> Text:
    """Return a bar; an amount of `longest` fills all `cells`."""
    from rich.text import Text

    filled = max(1, round(amount / max(longest, 1) * cells))
    return Text("━" * filled, style) + Text(" " * (cells - filled))


COMMANDS = [demo]

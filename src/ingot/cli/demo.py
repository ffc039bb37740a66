"""`ingot demo`: the shipped digit classifier on digits it has not seen, what Ingot made of it, and a language model."""

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
FULL = 16  # the brightest pixel of the data
SHADES = " .:-=+*#%@"


@click.command()
@click.option("--seed", default=1, show_default=True, help="Which digits are drawn, and how functions go on.")
@click.option("--threads", type=click.IntRange(0, 256), default=0, help="Threads of a run; 0: from the machine.")
@as_json
def demo(seed: int, threads: int, as_json: bool) -> None:
    """Classify digits, complete functions, show what was done."""
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
    terminal.print(f"\n{len(images)} digits that the model has never seen; some of them, the hardest last:\n")
    columns = max(1, (terminal.width - len(GAP)) // (2 * images.shape[2] + len(GAP)))
    for line in digit_lines(images, labels, probabilities, chosen(probabilities, labels, min(columns, 5), seed)):
        terminal.print(GAP, line, sep="", no_wrap=True, overflow="crop")
    terminal.print()
    terminal.print(fact_table(facts))
    show_language_model(threads, seed)


def classify(session: InferenceSession, images: np.ndarray) -> np.ndarray:
    """images u8[n, 8, 8] -> probabilities f32[n, 10], in one run."""
    return session.run(None, {"image": images[:, None].astype(np.float32)})[0]


def chosen(probabilities: np.ndarray, labels: np.ndarray, count: int, seed: int) -> list[int]:
    """Digits to draw: random ones with different labels, and last the one that the model is least sure of."""
    hardest = int(probabilities.max(-1).argmin())
    picked: dict[int, int] = {}
    for index in np.random.default_rng(seed).permutation(len(labels)):
        if index != hardest:
            picked.setdefault(int(labels[index]), int(index))
    return [*sorted(list(picked.values())[: count - 1], key=lambda i: labels[i]), hardest]


def digit_lines(images: np.ndarray, labels: np.ndarray, probabilities: np.ndarray, indices: list[int]) -> list[Text]:
    """The digits side by side, with label, prediction and confidence under each."""
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
    """One row of a digit, two cells a pixel: grey levels, or, without colour, characters of like darkness."""
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
    """What the demo reports: accuracy, nodes, time, and the kernels and memory of the run with all digits at once."""
    right = int((probabilities.argmax(-1) == labels).sum())
    alone = median_seconds(session, images[:1], RUNS)
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
        "seconds_one": alone,
        "seconds_all": together,
    }


def median_seconds(session: InferenceSession, images: np.ndarray, runs: int) -> float:
    """Median time of a run on these images."""
    feeds = {"image": images[:, None].astype(np.float32)}
    session.run(None, feeds)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def fact_table(facts: dict[str, Any]) -> Table:
    """The report under the digits."""
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
        ("", bar(activations, longest, "dim") + Text(f" {human_bytes(activations)}: all activations side by side")),
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
    """A bar of up to `cells` cells; the longest one has them all."""
    from rich.text import Text

    filled = max(1, round(amount / max(longest, 1) * cells))
    return Text("━" * filled, style) + Text(" " * (cells - filled))


COMMANDS = [demo]

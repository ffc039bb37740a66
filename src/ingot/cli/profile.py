"""`ingot profile`: when each thread computes each step of a run, and the time of compilation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import click

from ingot.cli.model import Model, as_json, expect_none, with_model
from ingot.cli.output import Output
from ingot.cli.terminal import human_time, print_json, print_table, print_text, progress
from ingot.session.inputs import random_inputs
from ingot.session.trace_formats import FORMATS, QUANTITIES, VIEWERS, Format, Quantity
from ingot.support.counters import counted_events
from ingot.support.spans import Span, recorded

if TYPE_CHECKING:
    from ingot.session.trace import Trace


@click.command()
@with_model
@click.option("--runs", type=click.IntRange(1, 1000), default=20, show_default=True, help="Number of traced runs.")
@click.option(
    "--top", type=click.IntRange(0), default=15, show_default=True, help="Number of steps to list, slowest first."
)
@click.option("-o", "--output", type=Output(), metavar="FILE", help="Write the trace to FILE.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="chrome", show_default=True,
    help="Format of FILE: for Perfetto and the trace viewer of Chrome, for speedscope, or for Model Explorer.",
)  # fmt: skip
@click.option(
    "--quantity", type=click.Choice(QUANTITIES), help="The number of each node for Model Explorer.  [default: time]"
)
@as_json
def profile(
    model: Model, runs: int, top: int, output: str | None, form: str, quantity: str | None, as_json: bool
) -> None:
    """Trace when each thread computes each step of a run.

    MODEL runs on random inputs, without additional barriers. The time of a step is the sum over its threads, the median
    of all runs. FILE has a row for each thread, with its steps and waits, and a row of compilation: the passes, the
    choice of kernels, the plan and the packing of weights. For Model Explorer, FILE has a number for each node, by the
    names of the model's file and of the file that `ingot emit-onnx` writes.

    \b
    Examples:
      ingot profile digits
      ingot profile digits --runs 5 -o digits.trace.json
      ingot profile digits --format model-explorer -o time.json
    """
    if form != "model-explorer":
        expect_none(f"--format {form}", {"--quantity": quantity})
    with recorded() as spans:
        session = model.open()
        feeds = random_inputs(session.interface, model.dims)
        session.run(None, feeds)
    with progress("tracing"), counted_events() as counters:
        trace = session.trace(feeds, runs).compiled_in(spans)
    of_run = {name: total / runs for name, total in counters.totals.items()}
    if output is not None:
        trace.save(output, cast("Format", form), cast("Quantity", quantity or "time"))
    if as_json:
        print_json(trace.to_json() | {"counters": of_run, "no_counters": counters.refusal})
        return
    print_trace(trace, top)
    print_text(_counted(of_run, counters.refusal))
    if output is not None:
        print_text(f"{output}: open it in {VIEWERS[cast('Format', form)]}")


def print_trace(trace: Trace, top: int) -> None:
    """Print the slowest steps, the waits of each thread and the phases of compilation."""
    ordered = sorted(trace.steps, key=lambda step: -step.nanoseconds)
    total = max(1, sum(step.nanoseconds for step in ordered))
    rows = [
        [f"{step.kernel} x{step.parts}", human_time(step.nanoseconds * 1e-9), f"{step.nanoseconds / total:.1%}",
         step.title]
        for step in ordered[:top]
    ]  # fmt: skip
    if others := ordered[top:]:
        rest = sum(step.nanoseconds for step in others)
        rows.append([f"{len(others)} others", human_time(rest * 1e-9), f"{rest / total:.1%}", ""])
    columns = ["kernel", "time", "share", "node"]
    print_table(columns, rows, right=columns[1:3], whole=columns[:3])
    waits = ", ".join(f"{share:.0%}" for share in trace.waiting)
    print_text(f"a run takes {human_time(trace.run_nanoseconds * 1e-9)}; its threads have no task for {waits} of it")
    phases = ", ".join(f"{name} {human_time(seconds)}" for name, seconds in phase_times(trace.compilation).items())
    print_text(f"compilation: {phases}")


def _counted(of_run: Mapping[str, float], refusal: str) -> str:
    """Return a line on the counters of a run. refusal: why there are none of the hardware."""
    parts = [f"{number:,.0f} {name.replace('_', ' ')}" for name, number in of_run.items()]
    if of_run.get("cycles") and "instructions" in of_run:
        parts.append(f"{of_run['instructions'] / of_run['cycles']:.2f} instructions per cycle")
    if refusal:
        parts.append(f"no hardware counters: {refusal}")
    return f"a run, in user mode: {', '.join(parts)}"


def phase_times(spans: tuple[Span, ...]) -> dict[str, float]:
    """Return the seconds of outermost spans, by name, in the order of their first begin."""
    found: dict[str, float] = {}
    end = 0
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        if span.end > end:
            found[span.name] = found.get(span.name, 0.0) + (span.end - span.begin) * 1e-9
            end = span.end
    return found


COMMANDS = (profile,)

"""`ingot bench`: measure a model and its steps, or compare the kernels for an op with the kernel chosen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ingot.cli.bench_against import ENGINES, compare
from ingot.cli.bench_language import llm
from ingot.cli.fetch import local
from ingot.cli.model import Model, as_json, with_model
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
from ingot.errors import ShapeError
from ingot.session.inputs import random_inputs

if TYPE_CHECKING:
    from ingot.inspect.kernel_bench import Candidate, Candidates
    from ingot.inspect.kernel_choices import KernelChoice
    from ingot.ir.dim import Limit
    from ingot.ir.graph import Graph
    from ingot.run.probe import Roofline
    from ingot.session.inference import InferenceSession
    from ingot.session.reports import Profile, StepTime

SLICES = 50
seconds_option = click.option(
    "--seconds", type=click.FloatRange(0.01, 3600), default=2.0, show_default=True, help="Duration of the measurement."
)


class ModelByDefault(click.Group):
    """A command group that accepts a model instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command `model` or `llm` before a model, and fetch the model."""
        from ingot.inspect.model import is_language_model

        if args and args[0] not in (*self.commands, "-h", "--help"):
            path = local(args[0], "--yes" in args)
            args = ["llm" if is_language_model(path) else "model", path, *args[1:]]
        return super().parse_args(ctx, args)


@click.group(cls=ModelByDefault, subcommand_metavar="MODEL|COMMAND [ARGS]...")
def bench() -> None:
    """Measure a model, or the kernels that Ingot chooses.

    `ingot bench MODEL` is short for `ingot bench model MODEL`, or `ingot bench llm MODEL` for a language model.
    """


bench.add_command(llm)


@bench.command()
@with_model
@seconds_option
@click.option(
    "--top", type=click.IntRange(0), default=15, show_default=True, help="Number of steps to list, slowest first."
)
@click.option("--against", type=click.Choice(ENGINES), help="Compare times and outputs with another engine.")
@as_json
def model(model: Model, seconds: float, top: int, against: str | None, as_json: bool) -> None:
    """Measure MODEL on random inputs: latency, memory, steps.

    With --against, Ingot and the other engine alternate in separate processes, on the same inputs and number of
    threads. The times, their ratio and the difference of the outputs are printed; the exit code is 1 if outputs differ.

    Symbolic dims without --dim are 1. GFLOP/s counts two operations for each multiply-add of a product; GB/s counts
    each element read or written once. A step's limit is the larger of two times: its operations at the measured peak
    of the registers, and its bytes at the measured bandwidth for as much memory as the weights, or for the part of the
    arena that the step uses. A convolution by Winograd's algorithm needs fewer operations than are counted, and may
    exceed its limit. Steps are timed with a clock and a barrier after each; a run is a call from Python, which also
    checks inputs and allocates outputs.
    """
    session = model.open()
    feeds = random_inputs(session.interface, model.dims)
    assumed = assumed_dims(session, model.dims)
    if assumed and not as_json:
        print_text(f"dims without a value are 1: {' '.join(f'--dim {name}=1' for name in assumed)}")
    if against is not None:
        compare(model, session.threads, feeds, seconds, as_json)
        return
    start = time.perf_counter()
    session.run(None, feeds)
    first = time.perf_counter() - start
    durations: list[float] = []
    for _ in track(range(SLICES), "measuring"):
        end = time.perf_counter() + seconds / SLICES
        while (start := time.perf_counter()) < end:
            session.run(None, feeds)
            durations.append(time.perf_counter() - start)
    p50, p90, p99 = np.percentile(durations, [50, 90, 99])
    times = {"p50": p50, "p90": p90, "p99": p99, "min": min(durations), "first": first}
    steps = None if session.executor == "interpret" or session.program.only is None else profiled(session, feeds, p50)
    if as_json:
        document: dict[str, Any] = {
            "runs": len(durations),
            "threads": session.threads,
            "isa": session.isa,
            "seconds": times,
        }
        if steps is not None:
            profile, roofline = steps
            document |= {"memory": memory(session), "limits": None if roofline is None else limits(roofline)}
            document["seconds"]["steps"] = profile.microseconds * 1e-6
            shares = [None if roofline is None else of_limit(step, roofline) for step in profile.steps]
            rows = [step.to_json() for step in profile.steps]
            document["steps"] = [row | {"of_limit": share} for row, share in zip(rows, shares, strict=True)]
        print_json(document)
        return
    print_text(f"{len(durations)} runs on {session.threads} thread(s), {session.isa}")
    for label, value in (("median", p50), ("90 %", p90), ("99 %", p99), ("best", min(durations)), ("first run", first)):
        print_text(f"  {label:<10} {human_time(value)}")
    if steps is None:
        print_text("no table of steps: the model does not run as a single segment of native kernels")
        return
    print_text(f"  {'memory':<10} " + ", ".join(f"{human_bytes(n)} {what}" for what, n in memory(session).items()))
    if steps[1] is not None:
        print_text(f"  {'limits':<10} {limits_text(steps[1])}")
    print_steps(*steps, top)
    print_folded(steps_sentence(p50, steps[0].microseconds * 1e-6))


def steps_sentence(run: float, steps: float) -> str:
    """Return a sentence that compares the time of a run with the sum of its steps, both in seconds."""
    if steps > run:
        each = "each timed with a clock and a barrier after it"
        return f"a run takes {human_time(run)}; its steps, {each}, {human_time(steps)} together"
    rest = human_time(run - steps)
    return f"a run takes {human_time(run)}: {human_time(steps)} in steps, {rest} in the Python call around them"


def assumed_dims(session: InferenceSession, dims: Mapping[str, int | Limit]) -> list[str]:
    """Return the symbolic dims of the inputs for which no option gives a value."""
    named = (dim for argument in session.get_inputs() for dim in argument.shape if isinstance(dim, str))
    return [name for name in dict.fromkeys(named) if name not in dims]


def profiled(
    session: InferenceSession, feeds: dict[str, np.ndarray], seconds: float
) -> tuple[Profile, Roofline | None]:
    """Time the steps over about half a second of runs; on the CPU also measure the roofline for that much memory."""
    from ingot.run.probe import Roofline

    with progress("measuring steps"):
        profile = session.profile(feeds, runs=min(1000, max(3, round(0.5 / seconds))))
        if session.executor == "webgpu":
            return profile, None
        weight_bytes = sum(step.cost.weight_bytes for step in profile.steps)
        return profile, Roofline.measure(session.isa, session.threads, weight_bytes, session.plan.arena_bytes)


def memory(session: InferenceSession) -> dict[str, int]:
    """Return the bytes of the weights and of the arena."""
    return {"weights": session.weight_bytes, "arena": session.plan.arena_bytes}


def limits(roofline: Roofline) -> dict[str, float]:
    """Return the machine's limits as JSON."""
    return {
        "gflops": roofline.flops / 1e9,
        "weights_gigabytes_per_second": roofline.weight_bytes / 1e9,
        "arena_gigabytes_per_second": roofline.arena_bytes / 1e9,
    }


def limits_text(roofline: Roofline) -> str:
    """Return the machine's limits in words."""
    flops, weights, arena = limits(roofline).values()
    return f"{flops:.0f} GFLOP/s; {weights:.0f} GB/s for weights, {arena:.0f} GB/s for the arena"


def of_limit(step: StepTime, roofline: Roofline) -> float:
    """Return the least possible time of a step divided by its measured time."""
    least = roofline.seconds(step.cost.flops, step.cost.weight_bytes, step.cost.other_bytes)
    return least / max(step.nanoseconds * 1e-9, 1e-9)


def print_steps(profile: Profile, roofline: Roofline | None, top: int) -> None:
    """Print the slowest steps, and the others as one row; with a roofline, each step's share of its limit."""
    ordered = sorted(profile.steps, key=lambda step: -step.nanoseconds)
    total = max(1, sum(step.nanoseconds for step in ordered))
    rows = [
        [f"{step.kernel} x{step.parts}", human_time(step.nanoseconds * 1e-9), f"{step.nanoseconds / total:.1%}",
         f"{step.gflops:.1f}" if step.cost.flops else "", f"{step.gigabytes_per_second:.1f}",
         "" if roofline is None else f"{of_limit(step, roofline):.0%}", step.title]
        for step in ordered[:top]
    ]  # fmt: skip
    others = ordered[top:]
    if others:
        rest = sum(step.nanoseconds for step in others)
        rows.append([f"{len(others)} others", human_time(rest * 1e-9), f"{rest / total:.1%}", "", "", "", ""])
    rows.append([f"all {len(ordered)}", human_time(total * 1e-9), "", "", "", "", ""])
    columns = ["kernel", "time", "share", "GFLOP/s", "GB/s", "of limit", "node"]
    print_table(columns, rows, right=columns[1:-1], whole=columns[:-1])


class Percent(click.ParamType):
    """`5%` or `5`, as 0.05."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the fraction. Raises BadParameter for text that is not a percentage."""
        digits = str(value).removesuffix("%")
        if not digits.replace(".", "", 1).isdecimal():
            self.fail(f"got {value!r}, expected a percentage such as 5%", param, ctx)
        return float(digits) / 100


@bench.command()
@click.argument("family", metavar="FAMILY", required=False)
@click.argument("shape", metavar="SHAPE", required=False)
@click.option("--grid", is_flag=True, help="Measure the shapes of well-known models, of FAMILY or of all.")
@click.option(
    "--threads", type=click.IntRange(0, 256), default=0, help="Number of threads; 0: choose for this machine."
)
@click.option("--isa", "every_isa", type=click.Choice(["best", "all"]), default="best", show_default=True)
@seconds_option
@click.option(
    "--assert",
    "slack",
    type=Percent(),
    metavar="PERCENT",
    help="Fail if the chosen kernel is slower than the best one by more.",
)
@as_json
def kernels(
    family: str | None, shape: str | None, grid: bool, threads: int, every_isa: str, seconds: float,
    slack: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure all kernels that can compute an op; <-- marks the kernel that Ingot chooses.

    \b
    FAMILY            SHAPE
    gemm              M,K,N  with a constant K x N matrix
    attention         BATCH,HEADS,ROWS,KEYS,WIDTH
    attention-causal  the same; the last row attends to all keys
    conv              CHANNELS,HEIGHT,WIDTH,OUT_CHANNELS,KERNEL,STRIDE,GROUPS  padded by KERNEL / 2
    softmax           ROWS,COLS
    layer_norm        ROWS,COLS

    For example: ingot bench kernels gemm 1,4096,4096 --assert 5%. The exit code is 1 if --assert fails. With --grid,
    the table has the shapes whose chosen kernel is not the fastest, and --seconds is the duration for each.
    """
    from ingot.inspect.kernel_bench import ROUNDS, Candidates
    from ingot.run.library import load
    from ingot.run.probe import Roofline
    from ingot.support.machine import threads as usable

    library, count = load(), threads or usable()
    if grid:
        if shape is not None or every_isa == "all":
            raise click.UsageError("--grid takes neither SHAPE nor --isa all")
        report_choices(grid_choices(family, library.isa(), count, seconds), library.isa(), count, slack, as_json)
        return
    if family is None or shape is None:
        raise click.UsageError("FAMILY and SHAPE are missing: give both, or --grid")
    graph = one_op(family, shape)
    isas = library.isas() if every_isa == "all" else (library.isa(),)
    with progress("compiling"):
        found = Candidates.of(graph, isas, count)
    found.measure(seconds, track(range(ROUNDS), "measuring"))
    best = min(found.able, key=lambda c: c.nanoseconds)
    cost = best.cost
    roofline = Roofline.measure(library.isa(), count, cost.weight_bytes, cost.other_bytes)
    rows = [candidate_row(candidate, best, roofline) for candidate in found.able]
    if as_json:
        refused = [{"kernel": kernel, "reason": reason} for kernel, reason in found.refused]
        facts = {"family": family, "shape": shape, "threads": count, "limits": limits(roofline)}
        print_json(facts | {"candidates": rows, "refused": refused})
    else:
        print_text(f"{family} {shape} on {count} thread(s); limits {limits_text(roofline)}")
        print_candidates(rows, found)
    (chosen,) = (row for row in rows if row["chosen"])
    if slack is not None:
        expect_close(chosen["to_best"], slack)


@bench.command()
@with_model
@click.option(
    "--seconds", type=click.FloatRange(0.01, 3600), default=0.5, show_default=True, help="Duration for each op."
)
@click.option("--assert", "slack", type=Percent(), metavar="PERCENT", help="Fail if a chosen kernel is slower by more.")
@as_json
def choices(model: Model, seconds: float, slack: float | None, as_json: bool) -> None:
    """Measure each distinct op of MODEL alone, by all kernels that can compute it.

    Lists the ops whose chosen kernel is not the fastest, by the time that the model could save. An op alone has no
    epilogue, and its operands are in the caches. Symbolic dims without --dim are 1.
    """
    from ingot.inspect.kernel_choices import distinct, measured_choices

    session = model.open()
    if session.executor != "native":
        raise click.BadParameter(f"got {session.executor!r}, expected 'native'", param_hint="--executor")
    assumed = assumed_dims(session, model.dims)
    sizes = {name: dim if isinstance(dim, int) else dim.size for name, dim in model.dims.items()}
    graph = session.graph.bind(sizes | dict.fromkeys(assumed, 1))
    nodes = distinct(graph)
    found = list(measured_choices(track(nodes, "measuring"), session.isa, session.threads, seconds))
    report_choices(found, session.isa, session.threads, slack, as_json)


def grid_choices(family: str | None, isa: str, threads: int, seconds: float) -> list[KernelChoice]:
    """Measure the shapes of the grid, of one family or of all. Raises BadParameter for a family without shapes."""
    from ingot.inspect.grid import GRID, shapes
    from ingot.inspect.kernel_bench import FAMILIES
    from ingot.inspect.kernel_choices import measured_choices

    if family is not None and family not in GRID:
        raise click.BadParameter(f"got {family!r}, expected one of {', '.join(GRID)}", param_hint="FAMILY")
    cases = [(name, shape) for name in GRID if family in (None, name) for shape in shapes(name)]
    graphs = ((FAMILIES[name].graph(shape), 1) for name, shape in track(cases, "measuring"))
    return list(measured_choices(graphs, isa, threads, seconds))


def report_choices(found: list[KernelChoice], isa: str, threads: int, slack: float | None, as_json: bool) -> None:
    """Print measured ops, those with the most time to save first; exit with code 1 if one is slower by `slack`."""
    found.sort(key=lambda choice: choice.count * (choice.best.nanoseconds - choice.chosen.nanoseconds))
    rows = [
        {"op": choice.node.op.name, "operands": choice.operands, "count": choice.count, "chosen": choice.chosen.kernel,
         "best": choice.best.kernel, "microseconds": choice.chosen.nanoseconds / 1000, "to_best": choice.to_best}
        for choice in found
    ]  # fmt: skip
    worst = max((choice.to_best for choice in found), default=1.0)
    if as_json:
        print_json({"threads": threads, "isa": isa, "choices": rows})
    else:
        print_choices(rows)
    if slack is not None:
        expect_close(worst, slack)


def print_choices(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each op whose chosen kernel is not the fastest, and how many ops were measured."""
    lines = [
        [row["op"], row["operands"], f"{row['count']} x", human_time(row["microseconds"] * 1e-6), row["chosen"],
         row["best"], f"{row['to_best']:.2f}"]
        for row in rows if row["to_best"] > 1
    ]  # fmt: skip
    columns = ["op", "operands", "nodes", "time", "chosen", "fastest", "ratio"]
    if lines:
        print_table(columns, lines, right=["nodes", "time", "ratio"], whole=["op", "nodes", "time", "ratio"])
    far = sum(row["to_best"] > 1.05 for row in rows)
    print_text(f"{len(rows)} distinct ops with several kernels; the choice takes over 1.05 of the least time in {far}")


def expect_close(to_best: float, slack: float) -> None:
    """Exit with code 1 if the chosen kernel takes more than 1 + slack times the time of the best candidate."""
    if to_best > 1 + slack:
        click.echo(
            f"ingot: the chosen kernel takes {to_best:.2f} times the best time, expected {1 + slack:.2f}", err=True
        )
        raise click.exceptions.Exit(1)


def one_op(family: str, shape: str) -> Graph:
    """Return the graph of a family and a shape. Raises BadParameter for an unknown family or an invalid shape."""
    from ingot.inspect.kernel_bench import FAMILIES

    if family not in FAMILIES:
        raise click.BadParameter(f"got {family!r}, expected one of {', '.join(FAMILIES)}", param_hint="FAMILY")
    names, parts = FAMILIES[family].numbers, shape.split(",")
    if len(parts) != len(names) or not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"got {shape!r}, expected positive numbers {','.join(names)}", param_hint="SHAPE")
    try:
        return FAMILIES[family].graph([int(part) for part in parts])
    except ShapeError as error:
        raise click.BadParameter(f"got {shape!r}: {error}", param_hint="SHAPE") from error


def candidate_row(candidate: Candidate, best: Candidate, roofline: Roofline) -> dict[str, Any]:
    """Return a measured candidate as JSON. A rate per nanosecond is the rate per second in billions."""
    cost, nanoseconds = candidate.cost, candidate.nanoseconds
    least = roofline.seconds(cost.flops, cost.weight_bytes, cost.other_bytes)
    return {
        "kernel": candidate.kernel, "isa": candidate.isa, "parts": candidate.parts, "microseconds": nanoseconds / 1000,
        "gflops": cost.flops / nanoseconds,
        "gigabytes_per_second": (cost.weight_bytes + cost.other_bytes) / nanoseconds,
        "of_limit": 1e9 * least / nanoseconds, "to_best": nanoseconds / best.nanoseconds, "chosen": candidate.chosen,
    }  # fmt: skip


def print_candidates(rows: Sequence[dict[str, Any]], found: Candidates) -> None:
    """Print a line for each candidate, fastest first, and the reasons why other kernels were refused."""
    from ingot.session.reports import refusals

    lines = [
        [f"{row['kernel']} x{row['parts']}", row["isa"], human_time(row["microseconds"] * 1e-6),
         f"{row['gflops']:.1f}" if row["gflops"] else "", f"{row['gigabytes_per_second']:.1f}",
         f"{row['of_limit']:.0%}", f"{row['to_best']:.2f}", "<--" if row["chosen"] else ""]
        for row in sorted(rows, key=lambda row: row["to_best"])
    ]  # fmt: skip
    columns = ["kernel", "isa", "time", "GFLOP/s", "GB/s", "limit", "ratio", ""]
    print_table(columns, lines, right=columns[2:-1], whole=columns)
    for line in refusals(found.refused):
        print_folded(line)


COMMANDS = [bench]

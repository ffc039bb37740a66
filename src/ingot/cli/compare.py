"""`ingot compare`: run a model in two ways, and compare the values."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.conditions import Condition, ConditionError, asserted, expect
from ingot.cli.fetch import local
from ingot.cli.model import as_json, read_arrays, with_options
from ingot.cli.output import Output
from ingot.cli.terminal import print_folded, print_json, print_table, progress
from ingot.inspect.stages import SIDES, TRANSFORMERS
from ingot.ir.dim import Limit
from ingot.support.files import written

if TYPE_CHECKING:
    from ingot.inspect.comparison import ComparedValue, Comparison
    from ingot.inspect.comparison.measure import Error

_ROWS = 10  # values in a table without --all
_NAMES = (  # for --assert
    "values", "local", "accumulated", "mean", "median", "quantile", "ulp", "noise", "cosine", "divergence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sides:
    """A model, the two ways to run it, and its inputs, as options give them."""

    model: str
    a: str
    b: str
    options: dict[str, Any]

    @staticmethod
    def of(
        model: str, a: str, b: str, inputs: tuple[str, ...], dims: Mapping[str, int | Limit], **options: Any
    ) -> Sides:
        """Check the options, and read the files of inputs. Raises UsageError."""
        known = (*SIDES, TRANSFORMERS)
        b = b if b in known else local(b, yes=False)
        if b not in known and not os.path.exists(b):
            raise click.UsageError(f"--b: got {b!r}, expected one of {', '.join(known)} or the path of a model")
        if limits := [name for name, dim in dims.items() if isinstance(dim, Limit)]:
            raise click.UsageError(f"--dim: a limit, got {', '.join(limits)}, expected numbers")
        sizes = {name: dim for name, dim in dims.items() if isinstance(dim, int)}
        arrays = _read(model, inputs) if inputs else {}
        return Sides(model, a, b, {"inputs": arrays, "dims": sizes} | options)


def with_sides(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with MODEL, --a, --b and the options of inputs; it receives one `Sides`."""

    @with_options
    @click.option("--a", "a", type=click.Choice(SIDES), default="native", show_default=True, help="The side to judge.")
    @click.option(
        "--b",
        "b",
        default="float64",
        metavar=f"[{'|'.join(SIDES)}|{TRANSFORMERS}|MODEL2|VALUES.npz]",
        show_default=True,
        help="The side to judge by: an executor, another model, which the reference runs, or expected values by name.",
    )
    @click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="[NAME=]X.npy|X.npz",
        help="Input file; .npy files without NAME are used in order, an .npz file has inputs by name.",
    )
    @click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Random seed of the other inputs.")
    @functools.wraps(command)
    def opened(
        model: str,
        threads: int,
        dims: dict[str, int | Limit],
        precision: str | None,
        a: str,
        b: str,
        inputs: tuple[str, ...],
        seed: int,
        **options: Any,
    ) -> None:
        sides = Sides.of(model, a, b, inputs, dims, precision=precision, threads=threads, seed=seed)
        command(sides, **options)

    return opened


@click.command()
@with_sides
@click.option(
    "--against", type=click.Choice(["f32"]), help="Rank values by the rounding of --precision; do not judge them."
)
@click.option("--all", "is_complete", is_flag=True, help="List every value, not only those with the largest errors.")
@click.option(
    "-o", "--output", type=Output(Path), metavar="FILE", help="Write the error of each node for Model Explorer."
)
@asserted(*_NAMES)
@as_json
def compare(
    sides: Sides,
    against: str | None,
    is_complete: bool,
    output: Path | None,
    conditions: tuple[Condition, ...],
    as_json: bool,
) -> None:
    """Run MODEL in two ways, and compare every value.

    Names the first node that leaves its tolerance. Types are compared first, then numbers. The local error is that of a
    node on the values of side B, the accumulated one that of a run of side A. Inputs without --input are random: floats
    in -1..1, integers 0 or 1; dims without --dim are 1.

    The text has a map of the first wrong value. FILE has a number for each node, to be loaded over the model in Model
    Explorer: the largest error relative to the tolerance, or with --against the noise.

    The exit code is 1 if a value leaves its tolerance. Names for --assert: local, accumulated, mean, median, quantile,
    ulp, noise, divergence (the largest of all values), cosine (the smallest), values.

    \b
    ingot compare digits
    ingot compare digits --b interpret --dim batch=3
    ingot compare digits --precision int8 --against f32
    """
    from ingot.inspect.comparison import compare

    with progress(f"comparing {sides.model}"):
        found = compare(sides.model, a=sides.a, b=sides.b, against=against, **sides.options)
    if output is not None:
        with written(output) as file:
            file.write(json.dumps(found.node_data()).encode())
    if as_json:
        print_json(found.to_json())
    else:
        print_folded(str(found))
        _print_values(found, is_complete)
    expect(conditions, _numbers(found))
    if not found.agrees:
        raise ConditionError(f"compare: {found.a} and {found.b} differ")


def _read(model: str, inputs: tuple[str, ...]) -> dict[str, Any]:
    """Return the arrays of --input by name."""
    from ingot.cli.run import read_inputs
    from ingot.inspect.model import InspectedModel
    from ingot.session.source import node_arg

    archives = [path for path in inputs if path.endswith(".npz")]
    found = {name: array for path in archives for name, array in read_arrays(path).items()}
    files = tuple(path for path in inputs if path not in archives)
    if not files:
        return found
    graph = InspectedModel(model, assumed=1).loaded
    arguments = [node_arg(name, graph.values[name].type) for name in graph.inputs if name not in found]
    return found | read_inputs(arguments, files, is_part=True)


def _print_values(found: Comparison, is_complete: bool) -> None:
    rows = list(found.values)
    if not is_complete:
        worst = {row.name for row in sorted(rows, key=lambda row: -_rank(row, found.is_precision))[:_ROWS]}
        rows = [row for row in rows if row.name in worst]
    if found.is_precision:
        numbers = ["noise", "cosine", "KL", "kurtosis"]
        table = (
            [
                row.name,
                row.kernel,
                _shown(row.noise),
                _shown(row.cosine, 8),
                _shown(row.divergence),
                _shown(row.kurtosis),
            ]
            for row in rows
        )
        print_table(["value", "kernel", *numbers], table, right=numbers)
        return
    columns = ["value", "kernel", "local", "accumulated", "tolerance", "problem"]
    table = (
        [row.name, row.kernel, _largest(row.local), _largest(row.accumulated), _shown(row.tolerance), row.problem]
        for row in rows
    )
    print_table(columns, table, right=columns[2:5])


def _rank(row: ComparedValue, is_precision: bool) -> float:
    """Return how early a value is in a short list."""
    return (row.noise or 0.0) if is_precision else row.rank


def _largest(error: Error | None) -> str:
    return "" if error is None else _shown(error.maximum)


def _shown(number: float | None, digits: int = 3) -> str:
    return "" if number is None else f"{number:.{digits}g}"


def _numbers(found: Comparison) -> Mapping[str, float | None]:
    """Return the numbers that conditions may use."""
    own = [error for row in found.values if (error := row.error) is not None]
    local = [row.local.maximum for row in found.values if row.local is not None]
    whole = [row.accumulated.maximum for row in found.values if row.accumulated is not None]
    rows = found.values
    return {
        "values": len(rows),
        "local": _worst(local),
        "accumulated": _worst(whole),
        "mean": _worst([error.mean for error in own]),
        "median": _worst([error.median for error in own]),
        "quantile": _worst([error.quantile for error in own]),
        "ulp": _worst([error.ulp for error in own if error.ulp is not None]),
        "noise": _worst([row.noise for row in rows if row.noise is not None]),
        "cosine": _worst([row.cosine for row in rows if row.cosine is not None], min),
        "divergence": _worst([row.divergence for row in rows if row.divergence is not None]),
    }


def _worst(numbers: Sequence[float], of: Callable[[Sequence[float]], float] = max) -> float | None:
    """Return the largest number, or the smallest by `min`; NaN if one is NaN, None if there are none."""
    if any(math.isnan(number) for number in numbers):
        return math.nan
    return of(numbers) if numbers else None


COMMANDS = [compare]

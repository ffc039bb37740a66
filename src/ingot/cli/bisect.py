"""`ingot bisect`: find the smallest part of a model that fails a comparison, and write it for a report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from ingot.cli.compare import Sides, with_sides
from ingot.cli.conditions import ConditionError
from ingot.cli.emit import force_option
from ingot.cli.model import as_json
from ingot.cli.output import Output
from ingot.cli.terminal import print_folded, print_json, print_text, stages


@click.command()
@with_sides
@click.option("--bundle", type=Output(Path), metavar="DIR", help="Write the part, its arrays and programs into DIR.")
@force_option
@as_json
def bisect(sides: Sides, bundle: Path | None, force: bool, as_json: bool) -> None:
    """Find what makes `ingot compare MODEL` fail.

    Finds the change of a pass from which on it fails, then the smallest part of the graph that fails alone on the
    values of side B, then the layers that must stay f32 if --precision is the cause. The options are those of `ingot
    compare`.

    With --bundle, DIR gets the part as text and as ONNX, its inputs, what both sides compute, versions and machine;
    `python DIR/reproduce.py` compares it again, and `make -C DIR` does so with a C compiler alone. Float weights are
    random where the failure remains.

    The exit code is 0 if something was found, and 1 if the sides agree.

    \b
    ingot bisect digits --precision int8
    ingot bisect digits --precision int8 --bundle fault
    """
    from ingot.inspect.bisection import bisect
    from ingot.inspect.bisection.bundle import write_bundle

    with stages(f"bisecting {sides.model}") as report:
        found = bisect(sides.model, a=sides.a, b=sides.b, report=report, **sides.options)
    if as_json:
        print_json(found.to_json())
    else:
        print_folded(str(found))
    if found.agrees:
        raise ConditionError(f"bisect: {found.a} and {found.b} agree, nothing to find")
    if bundle is not None:
        command = shlex.join(["ingot", *sys.argv[1:]])
        with stages("writing a bundle") as report:
            write_bundle(found, bundle, command=command, force=force)
        if not as_json:
            print_text(f"{bundle}: README.txt explains the files; python {shlex.quote(str(bundle / 'reproduce.py'))}")


COMMANDS = [bisect]

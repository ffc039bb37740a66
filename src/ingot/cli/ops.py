"""`ingot ops`: list the importers and the kernels of each op."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import print_json, print_lines, print_table, print_text, progress


@click.command()
@click.option("--foreign", is_flag=True, help="List the ATen and ONNX ops that can be imported instead.")
@as_json
def ops(foreign: bool, as_json: bool) -> None:
    """List all ops, their importers and their kernels.

    Shows the importers that build each op, its kernels, how a node without a kernel runs, and whether the op can be
    written as ONNX. A node without a kernel is expanded or legalized into simpler ops if possible, else it runs on the
    reference, which --strict refuses.
    """
    if foreign:
        with progress("reading the rules"):
            names = foreign_ops()
        if as_json:
            print_json(names)
        else:
            for importer, found in names.items():
                print_text(f"{importer}: {len(found)}\n  " + "\n  ".join(found))
        return
    with progress("reading the tables"):
        rows = matrix()
    if as_json:
        print_json(rows)
        return
    columns = ["op", *importers(), "without one", "to onnx", "kernels"]
    show = print_table if sys.stdout.isatty() else print_lines
    show(columns, ([_cell(row[column]) for column in columns] for row in rows))


def matrix() -> list[dict[str, Any]]:
    """Return one row per op: importers that build it, kernels, how a node without a kernel runs, ONNX export."""
    import ingot.emit.onnx
    import ingot.ops  # noqa: F401  fills OPS
    from ingot.emit.onnx.registry import RULES
    from ingot.ir.graph import OPS
    from ingot.load.built_ops import read_table
    from ingot.lower.cpu import KERNEL_RULES
    from ingot.lower.legalize import LEGALIZATIONS

    built = {importer: set().union(*read_table(importer).values()) for importer in importers()}
    rows = []
    for name, op in OPS.items():
        row: dict[str, Any] = {"op": name}
        row |= {importer: name in ops for importer, ops in built.items()}
        row["kernels"] = sorted({r.kernel for r in KERNEL_RULES.get(name, [])})
        is_legalized = name in LEGALIZATIONS
        simpler = "expands" if op.expand is not None else "legalized" if is_legalized else "reference"
        row["without one"] = "a view" if op.view else simpler
        row["to onnx"] = name in RULES
        rows.append(row)
    return rows


def importers() -> list[str]:
    """Return the importers that are available here: the rules of aten need torch."""
    return ["aten", "onnx"] if importlib.util.find_spec("torch") is not None else ["onnx"]


def foreign_ops() -> dict[str, list[str]]:
    """Return the foreign ops that have an import rule, by importer."""
    from ingot.load.onnx.registry import RULES as ONNX_RULES
    from ingot.load.onnx.registry import foreign_name

    found: dict[str, list[str]] = {}
    if "aten" in importers():
        from ingot.load.aten.registry import RULES as ATEN_RULES

        found["aten"] = sorted(ATEN_RULES)
    return found | {"onnx": sorted(foreign_name(domain, name) for domain, name in ONNX_RULES)}


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "-"
    return (", ".join(value) or "-") if isinstance(value, list) else str(value)


COMMANDS = [ops]

"""`ingot ops`: for each op, who makes it and what runs it."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import print_json, print_lines, print_table, print_text, progress


@click.command()
@click.option("--foreign", is_flag=True, help="List the ATen and ONNX ops that can be loaded instead.")
@as_json
def ops(foreign: bool, as_json: bool) -> None:
    """Print what each op is loaded from and runs on.

    The importers that make it, its kernels, or what it expands into, and whether it can be written as ONNX. A node
    that no kernel takes is expanded or restated in simpler ops where it can be, else it runs on the reference,
    which --strict refuses.
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
    """One row per op: whether a rule of an importer makes it, its kernels, what happens to a node that none takes, and
    whether it can be written as ONNX."""
    import ingot.emit.onnx
    import ingot.ops  # noqa: F401  fills OPS
    from ingot.emit.onnx.registry import RULES
    from ingot.ir.graph import OPS
    from ingot.load.built_ops import read_table
    from ingot.lower.cpu import KERNEL_RULES
    from ingot.lower.legalize import LEGALIZATIONS

    made = {importer: set().union(*read_table(importer).values()) for importer in importers()}
    rows = []
    for name, op in OPS.items():
        row: dict[str, Any] = {"op": name}
        row |= {importer: name in ops for importer, ops in made.items()}
        row["kernels"] = sorted({r.kernel for r in KERNEL_RULES.get(name, [])})
        is_restated = name in LEGALIZATIONS
        simpler = "expands" if op.expand is not None else "restated" if is_restated else "reference"
        row["without one"] = "a view" if op.view else simpler
        row["to onnx"] = name in RULES
        rows.append(row)
    return rows


def importers() -> list[str]:
    """The importers that can be imported here: aten's rules need torch."""
    return ["aten", "onnx"] if importlib.util.find_spec("torch") is not None else ["onnx"]


def foreign_ops() -> dict[str, list[str]]:
    """The foreign ops that have a rule, by importer."""
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

"""`ingot ops`: list the importers and the kernels of each op."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import columns_or, print_facts, print_json, print_lines, print_table, print_text, progress
from ingot.errors import InputError

PIPE_COLUMNS = 80  # of the table in a pipe, unless COLUMNS sets another width


@click.command(epilog="Example: ingot ops 'conv*'")
@click.argument("pattern", required=False)
@click.option("--foreign", is_flag=True, help="List the ATen and ONNX ops that can be loaded instead.")
@as_json
def ops(pattern: str | None, foreign: bool, as_json: bool) -> None:
    """List ops, their importers and their kernels.

    PATTERN: the name of an op, to print all its kernels; a part of names; or a pattern with * and ?.

    Shows the importers that build each op, its kernels, how a node without a kernel runs, and whether the op can be
    written as ONNX. A node without a kernel is expanded or legalized into simpler ops if possible, else it runs on the
    reference, which --strict refuses.
    """
    if foreign:
        with progress("reading the rules"):
            names = {importer: _fitting(found, pattern) for importer, found in foreign_ops().items()}
        _expect_some([name for found in names.values() for name in found], pattern)
        if as_json:
            print_json(names)
        else:
            for importer, found in names.items():
                print_text("\n  ".join([f"{importer}: {len(found)}", *found]))
        return
    with progress("reading the tables"):
        rows = {row["op"]: row for row in matrix()}
        if pattern not in rows:
            rows = {name: rows[name] for name in _fitting(rows, pattern)}
            _expect_some(rows, pattern)
    if as_json:
        print_json([rows[pattern]] if pattern in rows else list(rows.values()))
    elif pattern in rows:
        kernels = rows[pattern].pop("kernels") or ["-"]
        facts = [(column, _cell(value)) for column, value in rows[pattern].items()]
        print_facts([*facts, *zip(["kernels", *[""] * (len(kernels) - 1)], kernels, strict=True)])
    else:
        _print_matrix(list(rows.values()))


def _fitting(names: Iterable[str], pattern: str | None) -> list[str]:
    """The names that fit a pattern, whatever the case of their letters; all where there is none."""
    from ingot.inspect.nodes import fits_pattern

    return [name for name in names if pattern is None or fits_pattern(name.lower(), pattern.lower())]


def _expect_some(names: Collection[str], pattern: str | None) -> None:
    if not names:
        raise InputError(f"ops: nothing fits, got {pattern!r}, expected a part of a name that `ingot ops` prints")


def _print_matrix(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each op, with as many of its kernels as the line has room for."""
    *columns, last = ["op", *importers(), "without one", "to onnx", "kernels"]
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    room = max(columns_or(PIPE_COLUMNS) - sum(widths) - 2 * (len(widths) + 1), len(last))
    show = print_table if sys.stdout.isatty() else print_lines
    show([*columns, last], [[*line, shortened(row[last], room)] for line, row in zip(cells, rows, strict=True)])


def shortened(names: Sequence[str], room: int) -> str:
    """As many names as fit into so many characters, and how many are left out; their number where none fits."""
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + more
        if len(text) <= room:
            return text
    return str(len(names)) if names else "-"


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

"""`ingot ops`: for each op, who makes it and what runs it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import columns_or, print_facts, print_json, print_lines, print_table, print_text, progress
from ingot.errors import InputError

PIPE_COLUMNS = 80  # of the table in a pipe, unless COLUMNS says another width


@click.command(epilog="Example: ingot ops 'conv*'")
@click.argument("pattern", required=False)
@click.option("--foreign", is_flag=True, help="List the ATen and ONNX ops that can be loaded instead.")
@as_json
def ops(pattern: str | None, foreign: bool, as_json: bool) -> None:
    """Print what each op is loaded from and runs on.

    PATTERN: the name of an op, of which all kernels are printed; a part of names; or a pattern with * and ?.

    The importers that make it, its kernels, or what it expands into, and whether it can be written as ONNX. A node
    that no kernel takes is expanded or restated in simpler ops where it can be, else it runs on the reference,
    which --strict refuses.
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

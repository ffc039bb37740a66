"""`ingot ops`: for each op, who makes it and what runs it."""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable, Iterator
from typing import Any

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import print_json, print_table, print_text, progress


@click.command()
@click.option("--foreign", is_flag=True, help="List the ATen and ONNX ops that can be loaded instead.")
@as_json
def ops(foreign: bool, as_json: bool) -> None:
    """Print the support matrix: each op, the importers that make it, its kernels, or what it expands into.

    An op without a kernel runs on the reference, which --strict refuses.
    """
    with progress("reading the tables"):
        importers = importer_rules()
    if foreign:
        names = {importer: sorted(rules) for importer, rules in importers.items()}
        if as_json:
            print_json(names)
        else:
            for importer, found in names.items():
                print_text(f"{importer}: {len(found)}\n  " + "\n  ".join(found))
        return
    rows = matrix(importers)
    if as_json:
        print_json(rows)
        return
    columns = ["op", *importers, "kernels", "without one"]
    print_table(columns, ([_cell(row[column]) for column in columns] for row in rows))


def matrix(importers: dict[str, dict[str, Callable[..., Any]]]) -> list[dict[str, Any]]:
    """One row per op: the number of rules of each importer that may emit it, kernels, what happens without one."""
    import ingot.ops  # noqa: F401  fills OPS
    from ingot.ir import OPS
    from ingot.lower.cpu import ROWS

    emitted = {importer: [set(strings(rule)) for rule in rules.values()] for importer, rules in importers.items()}
    rows = []
    for name, op in OPS.items():
        row: dict[str, Any] = {"op": name}
        row |= {importer: sum(name in texts for texts in rules) for importer, rules in emitted.items()}
        row["kernels"] = sorted({r.kernel for r in ROWS.get(name, [])})
        row["without one"] = "a view" if op.view else "expands" if op.expand is not None else "reference"
        rows.append(row)
    return rows


def importer_rules() -> dict[str, dict[str, Callable[..., Any]]]:
    """The rule tables of the importers that can be imported here: foreign name -> rule."""
    from ingot.load.onnx.registry import RULES as ONNX_RULES

    found: dict[str, dict[str, Callable[..., Any]]] = {}
    if importlib.util.find_spec("torch") is not None:
        from ingot.load.aten.registry import RULES as ATEN_RULES

        found["aten"] = dict(ATEN_RULES)
    found["onnx"] = {
        f"{domain}::{name}" if domain else name: rules[-1][1] for (domain, name), rules in ONNX_RULES.items()
    }
    return found


def strings(rule: Callable[..., Any]) -> Iterator[str]:
    """The strings in a rule's code and in the functions of Ingot's loaders that it calls."""
    waiting: list[Any] = [rule]
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, str):
            yield thing
        elif isinstance(thing, types.CodeType):
            waiting += thing.co_consts
        elif isinstance(thing, types.FunctionType) and thing.__module__.startswith("ingot.load."):
            waiting.append(thing.__code__)
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
            waiting += [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return str(value or "-")


COMMANDS = [ops]

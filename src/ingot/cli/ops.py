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
    """One row per op: whether an importer has a rule that emits it, its kernels, what happens without one."""
    import ingot.ops  # noqa: F401  fills OPS
    from ingot.ir import OPS
    from ingot.lower.cpu import ROWS

    emitted = {name: {word for rule in rules.values() for word in words(rule)} for name, rules in importers.items()}
    rows = []
    for name, op in OPS.items():
        row: dict[str, Any] = {"op": name}
        row |= {importer: name in found for importer, found in emitted.items()}
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


def words(rule: Callable[..., Any]) -> Iterator[str]:
    """Strings and attribute names in the code of a rule and of the loaders' functions that it calls.

    A rule emits an op either by its name, `b.add("neg", x)`, or as a method, `call.neg(x)`.
    """
    waiting: list[Any] = [rule]
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, str):
            yield thing
        elif isinstance(thing, (tuple, list, frozenset)):
            waiting += thing
        elif isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, types.CodeType):
            waiting += thing.co_consts
            yield from thing.co_names
        elif isinstance(thing, types.FunctionType) and thing.__module__.startswith("ingot.load."):
            waiting.append(thing.__code__)
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
            waiting += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
            waiting += [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "-"
    return (", ".join(value) or "-") if isinstance(value, list) else str(value)


COMMANDS = [ops]

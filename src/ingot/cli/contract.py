"""`ingot contract`: what kernels promise, and whether it can be falsified here."""

from __future__ import annotations

import dataclasses

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import print_json, print_table
from ingot.errors import IngotError


class ContractError(IngotError):
    """A contract is falsified, or a bound of it missed."""

    exit_code = 70


@click.command()
@click.argument("name", required=False)
@click.option("--bounds", is_flag=True, help="Measure the bounds, too: seconds, on a machine that does nothing else.")
@as_json
def contract(name: str | None, bounds: bool, as_json: bool) -> None:
    """Try to falsify what kernels promise.

    Of all contracts, or of the one called NAME. Each invariant is tried on shapes around the borders of its kernels,
    against float64 or by a property. The exit code is 70 where one does not hold, or a bound is missed.
    """
    from ingot.contracts import gate, load, names

    contracts = [load(each) for each in ([name] if name else names())]
    found = [finding for each in contracts for finding in gate(each, timed=bounds)]
    if as_json:
        about = [dataclasses.asdict(each) for each in contracts]
        print_json({"contracts": about, "findings": [dataclasses.asdict(each) for each in found]})
    else:
        for each in contracts:
            print_table(
                [f"{each.id} {each.version}", each.title, "found"],
                ([f.id, f.says, f"{f.found} {f.detail}".strip()] for f in found if f.contract == each.id),
            )
    broken = [each.id for each in found if each.found in ("falsified", "missed")]
    if broken:
        raise ContractError(f"contract: falsified or missed, got {', '.join(broken)}, expected none")


COMMANDS = [contract]

"""`ingot contract`: check the contracts of kernels on this machine."""

from __future__ import annotations

import dataclasses

import click

from ingot.cli.model import as_json
from ingot.cli.terminal import print_json, print_table
from ingot.errors import IngotError


class ContractError(IngotError):
    """A contract is falsified, or one of its bounds is missed."""

    exit_code = 70


@click.command()
@click.argument("name", required=False)
@click.option("--bounds", is_flag=True, help="Also measure the performance bounds; needs an idle machine.")
@as_json
def contract(name: str | None, bounds: bool, as_json: bool) -> None:
    """Test the contracts of kernels on this machine.

    Tests all contracts, or only the contract NAME. Each invariant is tested on shapes around the limits of its
    kernels, against float64 results or by a property. The exit code is 70 if an invariant fails or a bound is missed.
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
                ([f.id, f.statement, f"{f.found} {f.detail}".strip()] for f in found if f.contract == each.id),
            )
    broken = [each.id for each in found if each.found in ("falsified", "missed")]
    if broken:
        raise ContractError(f"contract: falsified or missed, got {', '.join(broken)}, expected none")


COMMANDS = [contract]

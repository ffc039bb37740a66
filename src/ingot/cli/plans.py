"""Commands on plans: `ingot explain-tensor` and `ingot plan-diff`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ingot.cli.conditions import asserted, expect
from ingot.cli.model import Inspection, with_inspection
from ingot.cli.terminal import human_bytes, print_facts, print_json, print_table, print_text
from ingot.passes.precision import PRECISIONS

_ROWS = 16  # of a table


@click.command("explain-tensor")
@with_inspection(["plan"], default="plan")
@click.argument("name")
@asserted
def explain_tensor(inspection: Inspection, name: str, conditions: tuple[str, ...], as_json: bool) -> None:
    """Show where the tensor NAME of MODEL is during a run.

    Shows its address, the steps that write and read it, the values in it with their strides, the tensors that have its
    bytes before and after it, and whether it is live at the peak. Names for --assert: bytes, offset, birth, death.

    \b
    ingot explain-tensor digits gelu --dim batch=1
    """
    from ingot.inspect.plans import memory_document

    document = memory_document(inspection.open(), name)
    if as_json:
        print_json(document)
    else:
        _print_memory(document)
    expect(conditions, {key: document[key] for key in ("bytes", "offset", "birth", "death")})


def _print_memory(document: Mapping[str, Any]) -> None:
    print_text(f"{document['name']}: {document['kind']} {document['dtype']}{document['shape']}")
    rows = [("address", f"{document['region']} from byte {document['offset']:,}, {human_bytes(document['bytes'])}")]
    if document["birth"] is not None:
        peak = "live" if document["is_live_at_peak"] else "not live"
        rows.append(("life", f"steps {document['birth']} to {document['death']}; {peak} at the peak, step "
                             f"{document['peak_step']} with {human_bytes(document['peak_bytes'])}"))  # fmt: skip
    for key, label in (("written_by", "written by"), ("read_by", "read by"), ("before", "before"), ("after", "after")):
        rows.append((label, ", ".join(document[key][:_ROWS]) or "none"))
    for value in document["values"]:
        layout = "row-major" if value["is_row_major"] else f"strides {value['strides']}"
        rows.append(("value", f"{value['name']} {value['shape']}, {layout}, from byte {value['offset']:,}"))
    print_facts(rows)


@click.command("plan-diff")
@with_inspection(["plan"], default="plan", modes=("prefill", "decode"))
@click.argument("other", required=False, metavar="[MODEL2]")
@click.option("--b-precision", type=click.Choice(list(PRECISIONS)), help="Precision of plan B, if it differs.")
@click.option("--b-threads", type=click.IntRange(1, 256), help="Number of threads of plan B, if it differs.")
@asserted
def plan_diff(
    inspection: Inspection,
    other: str | None,
    b_precision: str | None,
    b_threads: int | None,
    conditions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare the plan of MODEL with another plan.

    The other plan is that of MODEL2, or of MODEL with --b-precision or --b-threads. Names for --assert are the
    differences B - A: steps, barriers, flops, bytes, arena_bytes, weight_bytes, reference; and changed, the number of
    nodes with other kernels.

    \b
    ingot plan-diff digits --dim batch=1 --b-precision int8
    """
    from ingot.inspect.plans import difference_document

    document = difference_document(inspection.open(), inspection.other(other, b_precision, b_threads).open())
    a, b = document["a"], document["b"]
    if as_json:
        print_json(document)
    else:
        _print_difference(document)
    numbers: dict[str, float | None] = {
        key: b[key] - a[key] for key in a if isinstance(a[key], int) and key != "threads"
    }
    expect(conditions, numbers | {"changed": len(document["changed"])})


def _print_difference(document: Mapping[str, Any]) -> None:
    a, b = document["a"], document["b"]
    for name, side in (("A", a), ("B", b)):
        print_text(f"{name}: {side['model']}, {side['precision']}, {side['isa']}, {side['threads']} thread(s)")
    keys = [key for key in a if isinstance(a[key], int) and key != "threads"]
    rows: list[list[Any]] = [[key, f"{a[key]:,}", f"{b[key]:,}", f"{b[key] - a[key]:+,}"] for key in keys]
    print_table(["", "A", "B", "B - A"], rows, right=["A", "B", "B - A"])
    if document["kernels"]:
        rows = [[name, *pair] for name, pair in document["kernels"].items()]
        print_table(["kernel and tasks", "A", "B"], rows, right=["A", "B"])
    if changed := document["changed"][:_ROWS]:
        print_table(["node", "A", "B"], ([row["name"], ", ".join(row["a"]), ", ".join(row["b"])] for row in changed))
    for key in ("only_a", "only_b"):
        if document[key]:
            print_text(f"nodes only in {key[-1].upper()}: {', '.join(document[key][:_ROWS])}")


COMMANDS = [explain_tensor, plan_diff]

"""The ledger: what was tried on each parser so far, and the page that shows it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fuzz.corpus import HERE
from fuzz.targets import TARGETS
from places import ROOT

PATH, PAGE = HERE / "ledger.json", ROOT / "docs" / "reliability.md"
KINDS = ("executions", "accepted", "refused", "ended", "wrong")
PAGE_HEAD = """\
# Reliability

What reads files, texts or requests of others is tried with inputs that nobody wrote: a fuzzer changes inputs and keeps
those that take a branch which no other input takes. An input must be accepted or refused with an `IngotError`, within
{memory} GiB of memory and {seconds} seconds; anything else is a finding. [SECURITY.md](../SECURITY.md) lists what is
guaranteed.

`make fuzz SECONDS=60` runs each target for so many seconds, adds to the counts of `tests/kit/fuzz/ledger.json`, from
which this page is written, and keeps a small corpus. `make fuzz TARGET=gguf` runs one. Each finding is kept in
`tests/kit/fuzz/findings`, and `tests/whole/test_fuzz.py` tries all of them in each run of the tests.

## Fuzz targets

{total:,} executions in {hours:.1f} hours. "Edges" counts the branches that the corpus takes, of Python code
that guides the fuzzer. "Ended" counts inputs that exceed a limit which in use ends a process of its own, "wrong" the
executions that were findings when they ran, many of them of one kind.

| target | reads | executions | accepted | refused | ended | wrong | edges | inputs kept | findings | open |
|---|---|---|---|---|---|---|---|---|---|---|
"""

FAULTS_HEAD = """
## Faults

`tests/kit/faults.py` lets the n-th allocation of the C core, of numpy or of a mapping fail, lets the n-th call of the
system fail, or kills the process there. A work must end well or in an `IngotError`; what it writes must be complete or
absent, and what it replaces as before or replaced; and the same work must succeed afterwards. The table has the number
of faults that each work survived.

| work | failed allocations | failed calls | kills |
|---|---|---|---|
"""


SERVING_HEAD = """
## Servers

Long runs against a server of tiny-lm in f32, none of which had a wrong, a lost or a cut answer. `tests/kit/` has their
programs: `drained_servers.py`, `fuzzed_server.py` and `soak_serve.py`; with `--keep` they add to these numbers.

| what was counted | number |
|---|---|
"""


def read() -> dict[str, Any]:
    """targets: counts by target; findings: by id, `{target, what, is_open}`."""
    return json.loads(PATH.read_text()) if PATH.exists() else {"targets": {}, "findings": {}}


def write(ledger: dict[str, Any]) -> None:
    PATH.write_text(json.dumps(ledger, indent=1, sort_keys=True) + "\n")


def add(target: str, counts: Sequence[int], seconds: float, edges: int, inputs: int) -> None:
    """Add a run of a target to its counts."""
    ledger = read()
    row = ledger["targets"].setdefault(target, {})
    for key, count in zip(KINDS, counts, strict=True):
        row[key] = row.get(key, 0) + count
    row["seconds"] = round(row.get("seconds", 0) + seconds)
    row |= {"edges": max(edges, row.get("edges", 0)), "inputs": inputs}
    write(ledger)


def found(target: str, id: str, what: str) -> None:
    """Add a finding."""
    ledger = read()
    ledger["findings"].setdefault(id, {"target": target, "what": what, "is_open": True})
    write(ledger)


def faulted(work: str, kind: str, faults: int) -> None:
    """Add faults of a kind that a work survived, see `faults.py`."""
    ledger = read()
    row = ledger.setdefault("faults", {}).setdefault(work, {})
    row[kind] = row.get(kind, 0) + faults
    write(ledger)


def served(run: str, count: int) -> None:
    """Add what a long run against a server did without an error, see SERVING_HEAD."""
    ledger = read()
    row = ledger.setdefault("serving", {})
    row[run] = row.get(run, 0) + count
    write(ledger)


def close(names: Iterable[str]) -> None:
    """Findings that are mended."""
    ledger = read()
    for name in names:
        if name in ledger["findings"]:
            ledger["findings"][name]["is_open"] = False
    write(ledger)


def page() -> str:
    """docs/reliability.md."""
    from forked import MEMORY_BYTES

    ledger = read()
    rows, found = ledger["targets"], ledger["findings"].values()
    totals, still = (
        Counter(each["target"] for each in found),
        Counter(each["target"] for each in found if each["is_open"]),
    )
    seconds = sum(row["seconds"] for row in rows.values())
    parts = [PAGE_HEAD.format(
        memory=MEMORY_BYTES >> 30, seconds=max(each.seconds for each in TARGETS.values()),
        total=sum(row["executions"] for row in rows.values()), hours=seconds / 3600,
    )]  # fmt: skip
    for name, target in TARGETS.items():
        row = rows.get(name, {})
        counts = [f"{row.get(key, 0):,}" for key in (*KINDS, "edges", "inputs")]
        parts.append(f"| `{name}` | {target.what} | {' | '.join(counts)} | {totals[name]} | {still[name]} |\n")
    parts += ["\n## Findings\n\n", *(_finding(each) for each in found)] if found else []
    return "".join([*parts, _faults(ledger.get("faults", {})), _serving(ledger), _catalogue()])


def _faults(counts: dict[str, dict[str, int]]) -> str:
    parts = [FAULTS_HEAD]
    for work, row in counts.items():
        cells = [f"{row.get(kind, 0):,}" for kind in ("allocation", "system", "kill")]
        parts.append(f"| {work} | {' | '.join(cells)} |\n")
    return "".join(parts)


def _serving(ledger: dict[str, Any]) -> str:
    return "".join([SERVING_HEAD, *(f"| {run} | {count:,} |\n" for run, count in ledger.get("serving", {}).items())])


def _finding(finding: dict[str, Any]) -> str:
    return f"- `{finding['target']}`: {finding['what']}{' (open)' if finding['is_open'] else ''}\n"


def _catalogue() -> str:
    """The rows of the catalogue of bad inputs, with what tries each."""
    from catalogue import ROWS
    from catalogue_others import NOT_COVERED, OTHERS

    rows = ROWS | OTHERS
    lines = [
        "\n## Catalogue of bad inputs\n\n",
        f"Of {len(rows) + len(NOT_COVERED)} kinds of input and events that break inference engines, {len(rows)} have"
        " tests. Attacks are files of `tests/kit/attacks`, each with its error; tests are files of `tests`.\n\n",
        "| row | input or event | attacks | tests |\n|---|---|---|---|\n",
    ]
    for name, row in rows.items():
        tests = ", ".join(sorted({f"`{test.split()[0]}`" for test in row.test_names}))
        lines.append(f"| {name} | {row.what} | {len(row.attack_names) or ''} | {tests} |\n")
    lines += [f"| {name} | {why} | | none |\n" for name, why in NOT_COVERED.items()]
    return "".join(lines)

"""The documents that a program writes: limits, how much of ONNX runs, the forms of its ops, the ATen overloads, and the
ledger of what was tried on parsers.

`python tests/kit/written_docs.py --write` writes them anew, all or those that are named (`--write limits`). That
runs every case of ONNX's backend tests (conformance), every form of its ops (onnx-forms), and every entry of torch's
`op_db` (aten).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs

import aten_table
import ingot
import onnx_backend_cases as backend
from fuzz import ledger
from ingot.ir.dtype import DTYPES, from_numpy
from ingot.load.onnx.registry import ML, REFUSED, RULES
from onnx_backend_native import Outcome, outcome
from onnx_cases import NODES
from onnx_forms import all_forms, document, results_of
from onnx_models import one_node

ROOT = Path(__file__).parents[2]
SOURCE = Path(*ingot.__path__)
DOCS = ROOT / "docs"
REWRITE = "`python tests/kit/written_docs.py --write` writes it anew"
_LIMIT = re.compile(r"^(MAX_[A-Z_0-9]+) = .*?(?:  # (.*))?$", re.MULTILINE)


HEAD = """\
# Conformance with ONNX

Of the {cases} cases of the backend tests of ONNX {version}, {passing} pass on the interpreter and {native} natively,
without a step on the reference. `tests/load/onnx_backend_failing.txt` lists failing cases with the reasons.

Of the native cases, {emitted} are also emitted as C and give the bits of native execution: {share:.1f} % of all
cases. ONNX's scoreboard lists emx-onnx-cgen, a generator of C, with 97.9 % of the cases of that time, within their
tolerances.

ONNX's own runner, `onnx.backend.test.BackendTest(ingot.integrations.onnx_backend, ...)`, uses sessions with kernels.
All cases except nine pass there; `tests/load/test_onnx_backend.py` names the nine: six draw random numbers of their
own, the runner cannot compare the result of one, and two in f16 are rounded once, but the expected numbers were
rounded after each step.

[foreign-models.md](foreign-models.md) has the results for models of other projects' test suites.

An op is loaded by a rule, or by the function body in ONNX's schema (column "loaded by"). Versions are the versions of
its domain at which ONNX changed the op. Dtypes are the dtypes of the first operand in tests against ONNX Runtime or
ONNX's reference. Cases include expansions.
"""


# -- limits ---------------------------------------------------------------------------------------------------------


def limits_of(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Name, value and meaning of each limit of a file; the meaning is the comment behind it, or that above."""
    content = path.read_text(encoding="utf-8")
    module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    lines = content.splitlines()
    for node in ast.parse(content).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            found = _LIMIT.match(lines[node.lineno - 1])
            if name.startswith("MAX_") and found:
                yield name, getattr(importlib.import_module(module), name), found[2] or _above(lines, node.lineno - 1)


def _above(lines: list[str], row: int) -> str:
    while row and lines[row - 1].startswith("MAX_"):
        row -= 1
    start = row
    while start and lines[start - 1].startswith("#"):
        start -= 1
    return " ".join(line.removeprefix("#").strip() for line in lines[start:row])


def spelled(value: Any) -> str:
    """A power of two where it is one of size, else digits in groups."""
    if isinstance(value, int) and value >= 4096:
        for exact, sign in ((value, ""), (value + 1, " - 1")):
            if exact & (exact - 1) == 0:
                return f"2^{exact.bit_length() - 1}{sign}"
        return f"{value:,}"
    return ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def limits() -> str:
    """docs/limits.md."""
    parts = [
        "# Limits\n",
        "A size above one of these limits is refused with an error that names it, before memory is allocated.\n",
    ]
    for path in sorted(SOURCE.rglob("*.py")):
        rows = [f"| `{name}` | {spelled(value)} | {meaning} |" for name, value, meaning in limits_of(path)]
        if rows:
            parts.append(
                f"\n## `{path.relative_to(SOURCE)}`\n\n| limit | value | of |\n|---|---|---|\n" + "\n".join(rows) + "\n"
            )
    return "".join(parts)


# -- conformance ----------------------------------------------------------------------------------------------------

Op = tuple[str, str]  # domain and name
SEVERAL: Op = ("", "several")
DEFAULT = "ai.onnx"


def op_of(case: Any, content: bytes, names: dict[str, Op]) -> Op:
    """The op that a case is about: that of its only node, or of the case that it is the expansion of."""
    nodes = onnx.load_from_string(content).graph.node
    domain = "" if nodes[0].domain == "ai.onnx" else nodes[0].domain
    own = (domain, nodes[0].op_type) if len(nodes) == 1 else SEVERAL
    return names.setdefault(case.name.partition("_expanded")[0], own)


def counted() -> tuple[dict[Op, list[int]], dict[Op, set[str]]]:
    """Of each op: how many cases there are, pass, run natively, and are emitted as C; and the dtypes of first operands
    that are tried.
    """
    failing, names = backend.listed(), {}
    counts: dict[Op, list[int]] = defaultdict(lambda: [0] * 4)
    dtypes: dict[Op, set[str]] = defaultdict(set)
    # Cases come before their expansions.
    for case, content, data in sorted(backend.cases(), key=lambda each: len(each[0].name)):
        op, passes = op_of(case, content, names), case.name not in failing
        found = outcome(case, content, data) if passes else Outcome(["fails"], [])
        known = 1, passes, not found.steps, found.part is not None
        counts[op] = [a + b for a, b in zip(counts[op], known, strict=True)]
        if passes and data and data[0][0]:
            dtypes[op].update(dtype_names(backend.as_array(data[0][0][0])))
    for case in NODES:
        feeds = [*one_node(case, np.random.default_rng(0))[1].values(), *case.constants.values()]
        dtypes[case.domain, case.op].update(*map(dtype_names, feeds[:1]))
    return counts, dtypes


def dtype_names(value: Any) -> set[str]:
    return {from_numpy(value.dtype).name} if isinstance(value, np.ndarray) else set()


def described() -> dict[Op, tuple[str, str]]:
    """What makes each op, and the versions of its domain at which ONNX changed it."""
    versions: dict[Op, set[int]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        versions[schema.domain, schema.name].add(schema.since_version)
    newest = {(s.domain, s.name): s for s in onnx.defs.get_all_schemas() if not s.deprecated or s.domain == ML}
    ops = sorted({*newest, *RULES, *REFUSED})
    return {op: (made_by(op, newest.get(op)), ", ".join(map(str, sorted(versions[op]))) or "-") for op in ops}


def made_by(op: Op, schema: Any) -> str:
    if op in RULES:
        return "rule"
    if schema is not None and (schema.has_function or schema.has_context_dependent_function):
        return "ONNX's body"
    return "refused" if op in REFUSED else "-"


def conformance() -> str:
    """docs/conformance.md."""
    (counts, dtypes), ops = counted(), described()
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    cases, passing, native, emitted = total
    share = 100 * emitted / cases
    parts = [
        HEAD.format(version=onnx.__version__, cases=cases, passing=passing, native=native, emitted=emitted, share=share)
    ]
    for domain in sorted({domain for domain, _ in ops}):
        parts.append(f"\n## {domain or DEFAULT}\n\n| op | loaded by | versions | dtypes | cases | pass | native |\n")
        parts.append("|---|---|---|---|---|---|---|\n")
        for op in (op for op in ops if op[0] == domain):
            tried = [name for name in DTYPES if name in dtypes.get(op, ())]
            cells = [op[1], *ops[op], " ".join(tried) or "-", *map(str, counts.get(op, [0] * 4)[:3])]
            parts.append(f"| {' | '.join(cells)} |\n")
    several = counts[SEVERAL]
    parts.append(f"\nModels of several nodes: {several[0]} cases, {several[1]} pass, {several[2]} natively.\n")
    return "".join(parts)


def described_in(document: str) -> dict[Op, tuple[str, str]]:
    """As `described`, for the content of a document."""
    found, domain = {}, ""
    for line in document.splitlines():
        if line.startswith("## "):
            domain = "" if line[3:] == DEFAULT else line[3:]
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 9 and cells[-2].isdigit():
            found[domain, cells[1]] = cells[2], cells[3]
    return found


PAGES: dict[str, Callable[[], str]] = {
    "limits": limits,
    "conformance": conformance,
    "onnx-forms": lambda: document(results_of(all_forms(), jobs=2)),
    "aten": lambda: aten_table.document(aten_table.everything()),
    "reliability": ledger.page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    help = f"write documents in docs: {', '.join(PAGES)}; all by default"
    parser.add_argument("--write", nargs="*", choices=PAGES, required=True, metavar="PAGE", help=help)
    for name in parser.parse_args().write or PAGES:
        (DOCS / f"{name}.md").write_text(PAGES[name](), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Every form of each ONNX op that its schema allows, one change at a time from calls that are known to be valid.

`python tests/kit/onnx_forms.py [--op NAME] [--jobs J] [--show]` runs them and prints what differs; the exit code is 1
when something does that `onnx_forms_listed.txt` does not name, or names without need. A form is a model of one node.
ONNX Runtime says what it computes, or ONNX's reference where ONNX Runtime refuses the form; a form that both refuse is
no form of the op. `python tests/kit/written_docs.py --write` writes docs/onnx-forms.md of the same results.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import checker, helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from forked import FAILURES, Say, batch, judge_seeds, limited
from ingot.errors import IngotError
from ingot.load.onnx import load_onnx
from ingot.load.onnx.registry import MICROSOFT, foreign_name
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from onnx_cases import NODES
from onnx_form_calls import DRAWN, FULL, NEAR, ONE_STEP, UNKNOWN
from onnx_form_changes import Form, forms_of
from onnx_form_schemas import contrib_without_rule
from onnx_models import Case
from places import KIT
from random_onnx import REFUSALS, WRONG_ON_EMPTY, session_of
from unsaturated import unsigned_weights

LISTED = KIT / "onnx_forms_listed.txt"
MOST_CALLS = 4  # of each op, from which forms are made, its own aside
SECONDS = 20
KINDS = ("equal", "refused", "different")

HEAD = """\
# Forms of ONNX ops

Each op of ai.onnx, ai.onnx.ml and com.microsoft is tested in every form that its schema allows. A form differs from a
valid call in one point: omitted inputs, requested outputs, values of attributes, types, versions, ranks, sizes of 0
and 1, inputs that are fed or stored, dims that only a run determines. ONNX Runtime {runtime}, or ONNX's reference for
forms that ONNX Runtime refuses, computes {forms} forms. Ingot computes {equal} of them with the same results, in the
interpreter and in a session; it refuses {refused}, and gives different results for {different}. The reasons are
listed below the table and in `tests/kit/onnx_forms_listed.txt`, which a test checks in both directions.

`python tests/kit/onnx_forms.py --op NAME` tests the forms of an op and prints the differences.

| op | forms | equal | refused | different |
|---|---|---|---|---|
"""


# -- what becomes of a form ------------------------------------------------------------------------------------------


def by_ort(form: Form) -> list[np.ndarray] | None:
    """The results by ONNX Runtime; None where it refuses the form."""
    proto, feeds = unsigned_weights(*form.model())
    try:
        results = session_of(proto).run(None, feeds)
    except (*FAILURES, *REFUSALS, ort.EPFail, ort.NotImplemented):
        return None
    return results if all(map(_is_tensor, results)) else None


def by_reference(form: Form, is_alone: bool = True) -> list[np.ndarray] | None:
    """The results by ONNX's reference. None where it refuses the form; and where it is alone, since it takes more than
    there is, where ONNX's checker refuses it, or results are of other types than ONNX's inference says.
    """
    proto, feeds = form.model()
    try:
        if is_alone:
            checker.check_model(proto, full_check=True)
        inferred = shape_inference.infer_shapes(proto, strict_mode=is_alone)
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(proto).run(None, feeds)
    except (*FAILURES, NotImplementedError, checker.ValidationError, shape_inference.InferenceError):
        return None
    if not all(map(_is_tensor, results)):
        return None
    for value, result in zip(inferred.graph.output, results, strict=True):
        number = value.type.tensor_type.elem_type
        is_known = number not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
        if is_alone and is_known and helper.tensor_dtype_to_np_dtype(number) != result.dtype:
            return None
    return results


def _is_tensor(value: object) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def difference(form: Form, got: Sequence[Any], expected: Sequence[Any]) -> str:
    """What is wrong with results, or nothing."""
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(ours, np.ndarray):
            return f"result {i} is a {type(ours).__name__}"
        wanted = np.asarray(theirs)
        wanted = wanted.astype(object) if wanted.dtype.kind in "SUT" else wanted
        if wanted.dtype == np.uint8 and ours.dtype.name.startswith("float8"):
            wanted = wanted.view(ours.dtype)  # ONNX Runtime has no other name for it in Python
        if ours.dtype != wanted.dtype or ours.shape != wanted.shape:
            return f"result {i} is {ours.dtype}{list(ours.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
        if form.op in DRAWN:
            continue
        if ours.dtype == object:
            if ours.tolist() != wanted.tolist():
                return f"result {i} has other texts"
            continue
        is_exact = wanted.dtype.kind in "iub" or "int" in wanted.dtype.name
        with np.errstate(all="ignore"):
            a, b = ours.astype(np.float64), wanted.astype(np.float64)
            if is_exact:
                is_near = bool((np.abs(a - b) <= (1 if form.case.op in ONE_STEP else 0)).all())
            else:
                step = max(NEAR.get(form.op, 2e-5), 8 * float(ml_dtypes.finfo(wanted.dtype).eps))
                largest = float(np.abs(b[np.isfinite(b)]).max(initial=1))
                is_near = np.allclose(a, b, rtol=step, atol=step * min(largest, 100), equal_nan=True)
        if not is_near:
            return f"result {i} has other numbers"
    return ""


def outcome(form: Form, say: Say) -> str:
    """`equal`, `invalid`, `refused: why` or `different: how`."""
    say("invalid")  # unless it ends: a form may end ONNX Runtime, or hold it for ever
    with limited(SECONDS):
        expected, is_by_reference = oracle(form)
    if expected is None:
        return "invalid"
    say("different: slow")
    with limited(SECONDS):
        return judged(form, expected, is_by_reference)


def oracle(form: Form) -> tuple[list[Any] | None, bool]:
    """The right results, or None for an invalid form; and whether they are of the reference."""
    is_empty = any(array is not None and not array.size for array in form.arrays)
    expected = None if is_empty and form.case.op in WRONG_ON_EMPTY else by_ort(form)
    is_by_reference = expected is None and (not form.is_shape or is_empty) and form.op not in UNKNOWN
    if is_by_reference:
        expected = by_reference(form)
    if expected is None or (is_empty and form.case.domain == MICROSOFT and any(np.size(x) for x in expected)):
        expected = None  # or a sum over no elements, for which ops of ONNX Runtime's own leave memory as it was
    return expected, is_by_reference


def judged(form: Form, expected: list[Any], is_by_reference: bool) -> str:
    """`equal`, `refused: why` or `different: how`."""
    proto, feeds = form.model()
    content = proto.SerializeToString()
    found = ""
    for name in ("interpreter", "session"):
        try:
            with np.errstate(all="ignore"):
                if name == "session":
                    got: Sequence[Any] = InferenceSession(content, threads=1).run(None, feeds)
                else:
                    graph = load_onnx(content)
                    results = interpret(graph, feeds)
                    got = [results[each] for each in graph.outputs]  # and not the state of a generator
        except IngotError as error:
            if name == "interpreter" and form.dims != "static":
                continue  # a session may load it for each size
            return f"refused: {str(error)[:160]}".replace("\n", " ")
        except FAILURES as error:
            return f"different: {name}: {type(error).__name__}: {str(error)[:120]}".replace("\n", " ")
        found = difference(form, got, expected)
        if found and not is_by_reference:
            other = by_reference(form, is_alone=False)
            found = "" if other is not None and not difference(form, got, other) else found
        if found:
            return f"different: {name}: {found}{' from the reference' * is_by_reference}"
    return "equal"


# -- all of them -----------------------------------------------------------------------------------------------------


def calls() -> dict[tuple[str, str], list[Case]]:
    """Of each op the calls that forms are made from: its own, and those of other tables that give something new."""
    of_op: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in NODES:
        of_op[case.domain, case.op].append(case)
    chosen: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in FULL:
        chosen[case.domain, case.op].append(case)
    for op, cases in of_op.items():
        left, picked = list(cases), chosen[op]
        known = {feature for case in picked for feature in _features(case)}
        while left and len(picked) < MOST_CALLS:
            best = max(left, key=lambda case: len(_features(case) - known))
            if picked and not _features(best) - known:
                break
            left.remove(best)
            picked.append(best)
            known |= _features(best)
    return dict(sorted(chosen.items()))


def _features(case: Case) -> set[str]:
    """What a call gives: inputs with their ranks, attributes, and outputs."""
    operands = case.operands.split()
    found = {f"attribute {name}" for name in case.attributes} | {f"outputs {case.outputs}", f"inputs {len(operands)}"}
    return found | {f"input {i} {part.count(',')}" for i, part in enumerate(operands) if part != "none"}


def all_forms(only: str = "") -> list[Form]:
    """Forms of every op, or of those whose names match a pattern, each once."""
    seen, forms = set(), []
    for (domain, name), cases in calls().items():
        if only and not fnmatchcase(foreign_name(domain, name), only):
            continue
        for case in cases:
            for form in forms_of(case):
                try:
                    proto, feeds = form.model()
                except (*FAILURES, NotImplementedError):
                    continue  # what onnx cannot say
                key = proto.SerializeToString(deterministic=True), *(a.tobytes() for a in feeds.values())
                if key not in seen:
                    seen.add(key)
                    forms.append(form)
    return forms


@dataclass(frozen=True)
class Result:
    """What became of a form. call: the operands and attributes of the call that it was made from."""

    op: str
    label: str
    found: str
    call: str

    @property
    def kind(self) -> str:
        return self.found.partition(":")[0].removeprefix("! ")

    def __str__(self) -> str:
        return f"{self.op} | {self.label}: {self.found} | {self.call}"


def results_of(forms: Sequence[Form], jobs: int = 1) -> list[Result]:
    """What becomes of each form that is one."""

    def judge(number: int, say: Say) -> str:
        return outcome(forms[number], say)

    outcomes = judge_seeds(0, len(forms), jobs, judge) if jobs > 1 else batch(range(len(forms)), judge)
    found = [Result(foreign_name(*form.op), form.label, outcomes[i], str(form.case)) for i, form in enumerate(forms)]
    found = [replace(r, found=f"different: {r.found[2:]}") if r.found.startswith("! ") else r for r in found]
    return [r for r in found if r.kind != "invalid" and "died while invalid" not in r.found]


@dataclass(frozen=True)
class Row:
    """A line of the list: of which op, which form with which outcome (patterns), and why."""

    op: str
    form: str
    reason: str

    def names(self, result: Result) -> bool:
        return fnmatchcase(result.op, self.op) and fnmatchcase(f"{result.label}: {result.found}", self.form)


def listed() -> list[Row]:
    """What is known to be refused or to differ."""
    lines = [line for line in LISTED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [Row(*(part.strip() for part in line.split(" | "))) for line in lines]


def unlisted(results: Sequence[Result], rows: Sequence[Row]) -> list[Result]:
    """What is refused or differs, and no row names."""
    return [r for r in results if r.kind != "equal" and not any(row.names(r) for row in rows)]


def needless(results: Sequence[Result], rows: Sequence[Row]) -> list[Row]:
    """Rows that name nothing."""
    return [row for row in rows if not any(r.kind != "equal" and row.names(r) for r in results)]


def document(results: Sequence[Result]) -> str:
    """docs/onnx-forms.md."""
    rows, by_op = listed(), defaultdict(lambda: dict.fromkeys(KINDS, 0))
    for result in results:
        by_op[result.op][result.kind] += 1
    total = {kind: sum(counts[kind] for counts in by_op.values()) for kind in KINDS}
    parts = [HEAD.format(forms=len(results), runtime=onnxruntime.__version__, **total)]
    for op, counts in sorted(by_op.items()):
        parts.append(f"| {op} | {sum(counts.values())} | {' | '.join(str(counts[kind]) for kind in KINDS)} |\n")
    parts.append("\n## What is refused or differs, and why\n\n| op | forms | why |\n|---|---|---|\n")
    for row in rows:
        count = sum(row.names(result) for result in results if result.kind != "equal")
        parts.append(f"| {'any' if row.op == '*' else row.op} | {count} | {row.reason} |\n")
    parts.append("\n## Ops of com.microsoft that ONNX Runtime has on a CPU, and Ingot has not\n\n")
    parts.append(", ".join(contrib_without_rule()) + ".\n")
    return "".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", default="", help="ops whose names match this pattern alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--show", action="store_true", help="print what the list names too")
    options = parser.parse_args()
    results, rows = results_of(all_forms(options.op), options.jobs), listed()
    bad = unlisted(results, rows)
    print(*(r for r in results if r.kind != "equal" and (options.show or r in bad)), sep="\n")
    stale = [] if options.op else needless(results, rows)
    print(*(f"names nothing: {row}" for row in stale), sep="\n")
    print(len(results), "forms,", sum(r.kind == "equal" for r in results), "equal,", len(bad), "not listed")
    return int(bool(bad or stale))


if __name__ == "__main__":
    sys.exit(main())

"""Every form of each ONNX op that its schema allows, one change at a time from calls that are known to be valid.

`python tests/kit/onnx_forms.py [--op NAME] [--jobs J] [--show]` runs them and prints what differs; the exit code is 1
when something does that `onnx_forms_listed.txt` does not name, or names without need. A form is a model of one node.
ONNX Runtime says what it computes, or ONNX's reference where ONNX Runtime refuses the form; a form that both refuse is
no form of the op. `python tests/kit/written_docs.py --write` writes docs/onnx-forms.md of the same results.
"""

from __future__ import annotations

import argparse
import signal
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import checker, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from forked import FAILURES, Say, batch, judge_seeds
from ingot.errors import IngotError
from ingot.load.onnx import load_onnx
from ingot.load.onnx.registry import foreign_name
from ingot.run.interpret import interpret
from ingot.session import InferenceSession
from onnx_cases import NODES
from onnx_form_calls import DRAWN, FULL, NEAR, ONE_STEP, UNKNOWN, VALUES
from onnx_form_schemas import Schema, schema_of, versions_of
from onnx_models import Case, model, one_node, value_info
from places import KIT
from random_onnx import REFUSALS, WRONG_ON_EMPTY, session_of
from unsaturated import unsigned_weights

LISTED = KIT / "onnx_forms_listed.txt"
MOST_CALLS = 4  # of each op, from which forms are made, its own aside
MOST_RANK = 6
SECONDS = 20
KINDS = ("equal", "refused", "different")


@dataclass(frozen=True)
class Form:
    """A node with its operands. arrays: None for an input that is left out; stored: which are initializers.

    dims: `static`, `symbolic` (a name for each size) or `unknown` shapes of inputs. outputs: names, "" for one that is
    not asked for. label: the change that made this form of its call.
    """

    case: Case
    arrays: tuple[np.ndarray | None, ...]
    stored: frozenset[int]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    dims: str = "static"
    label: str = "as it is"
    is_shape: bool = False  # whether shapes are what was changed

    @property
    def op(self) -> tuple[str, str]:
        return self.case.domain, self.case.op

    def changed(self, label: str, **values: Any) -> Form:
        return replace(self, label=label, **values)

    def with_arrays(self, label: str, arrays: dict[int, np.ndarray | None], **values: Any) -> Form:
        """The form with some of its operands replaced."""
        own = tuple(arrays.get(i, array) for i, array in enumerate(self.arrays))
        return self.changed(label, arrays=own, **values)

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model and its feeds."""
        names = ["" if array is None else f"in{i}" for i, array in enumerate(self.arrays)]
        node = helper.make_node(self.case.op, names, self.outputs, "tested", domain=self.case.domain, **self.attributes)
        inputs, constants, feeds = [], [], {}
        for i, array in enumerate(self.arrays):
            if array is not None and i in self.stored:
                constants.append(numpy_helper.from_array(array, names[i]))
            elif array is not None:
                feeds[names[i]] = array
                inputs.append(value_info(names[i], array))
        if self.dims != "static":
            for info in inputs:
                for dim in info.type.tensor_type.shape.dim:
                    size = dim.dim_value
                    dim.ClearField("dim_value")
                    if self.dims == "symbolic":
                        dim.dim_param = f"size{size}"
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs if name]
        domains = {} if self.case.domain in ("", "com.microsoft") else {self.case.domain: self.case.version}
        graph = helper.make_graph([node], self.case.op, inputs, outputs, constants)
        return model(graph, self.opset, **domains), feeds


# -- the forms of a call ---------------------------------------------------------------------------------------------


def form_of(case: Case) -> Form:
    """A case of the tables of the tests as a form; its numbers depend on its text alone."""
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    proto, feeds = one_node(case, rng)
    names = list(proto.graph.node[0].input)
    arrays = tuple((feeds | case.constants).get(name) for name in names)
    stored = frozenset(i for i, name in enumerate(names) if name in case.constants)
    return Form(case, arrays, stored, tuple(proto.graph.node[0].output), dict(case.attributes), case.opset)


def forms_of(case: Case) -> Iterator[Form]:
    """The call itself, and every change of it."""
    form = form_of(case)
    yield form
    schema = schema_of(*form.op, form.opset, case.version)
    if schema is not None:
        yield from _inputs(form, schema)
        yield from _outputs(form, schema)
        yield from _attributes(form, schema)
        yield from _types(form, schema)
    yield from _storage(form)
    for other in (*_ranks(form), *_sizes(form)):
        yield replace(other, is_shape=True)
    if not case.domain:
        for version in versions_of(case.op):
            if schema is None or version != schema.since_version:
                yield form.changed(f"opset {version}", opset=version)


def _inputs(form: Form, schema: Schema) -> Iterator[Form]:
    """Each optional input left out, and the list of inputs ended before it; and given as an empty name at the end."""
    given = len(form.arrays)
    for i, parameter in enumerate(schema.inputs[:given]):
        if parameter.is_optional and form.arrays[i] is not None:
            yield form.with_arrays(f"input {i} absent", {i: None})
            if i < given - 1:
                yield form.changed(f"{i} inputs", arrays=form.arrays[:i])
    for i, parameter in enumerate(schema.inputs[given:], given):
        if parameter.is_optional:
            yield form.changed(f'input {i} ""', arrays=form.arrays + (None,) * (i + 1 - given))


def _outputs(form: Form, schema: Schema) -> Iterator[Form]:
    """The first outputs, as many as there are; and the last of them alone."""
    for count in range(max(schema.least_outputs, 1), min(schema.most_outputs, 8) + 1):
        names = tuple(f"result{i}" for i in range(count))
        if names != form.outputs:
            yield form.changed(f"{count} outputs", outputs=names)
        if count > 1:
            yield form.changed(f"output {count - 1} alone", outputs=(*[""] * (count - 1), names[-1]))


def _attributes(form: Form, schema: Schema) -> Iterator[Form]:
    """Each attribute left out, with its default said, and with other values."""
    for name, attribute in schema.attributes.items():
        given = form.attributes.get(name)
        if given is not None and not attribute.is_required:
            rest = {key: value for key, value in form.attributes.items() if key != name}
            yield form.changed(f"without {name}", attributes=rest)
        for value in _values(form, name, attribute.kind, attribute.default, given):
            if value != given or type(value) is not type(given):
                text = str(value) if len(str(value)) < 40 else "..."
                yield form.changed(f"{name}={text}", attributes={**form.attributes, name: value})


def _values(form: Form, name: str, kind: str, default: Any, given: Any) -> Iterator[Any]:
    """Values to try of an attribute: those of a table, the default, and some by kind."""
    rank = form.arrays[0].ndim if form.arrays and form.arrays[0] is not None else 0
    listed = VALUES.get((form.case.op, name), VALUES.get(name))
    if default is not None:
        yield default
    if listed is not None:
        yield from listed
    elif kind == "INT":
        yield from range(-rank, rank) if name.endswith("axis") else (0, 1)
    elif kind == "FLOAT":
        yield from (0.0, 0.75, -0.5)
    elif kind == "INTS" and name == "perm":
        yield from (list(range(rank))[::-1], [*range(1, rank), 0])
    elif kind == "INTS" and name == "axes":
        yield from ([i] for i in range(-rank, rank))
        yield from (list(range(rank)), [])
    elif kind == "INTS" and given:
        yield from ([v + 1 for v in given], [1] * len(given), [*given[:-1], given[-1] + 1])


def _types(form: Form, schema: Schema) -> Iterator[Form]:
    """Each type that a variable of the schema can be, for all inputs of that type."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, array in enumerate(form.arrays):
        if array is not None and array.dtype != object:
            parameter = schema.inputs[min(i, len(schema.inputs) - 1)]
            groups[parameter.type].append(i)
    for variable, indices in groups.items():
        own = form.arrays[indices[0]]
        assert own is not None
        for dtype in schema.types.get(variable, ()):
            if dtype != own.dtype:
                arrays = {i: as_dtype(form.arrays[i], dtype) for i in indices}
                yield form.with_arrays(f"{variable}={dtype.name}", arrays)


def as_dtype(array: Any, dtype: np.dtype) -> np.ndarray:
    """An array in another dtype; unsigned numbers are without sign, and bools are positive numbers."""
    numbers = np.asarray(array).astype(np.float64)
    if dtype == np.bool_:
        return np.asarray(numbers > 0)
    if dtype.kind == "u" or dtype.name.startswith("u"):
        numbers = np.abs(numbers)
    with np.errstate(all="ignore"):
        return np.asarray(np.trunc(numbers) if "int" in dtype.name else numbers).astype(dtype)


def _storage(form: Form) -> Iterator[Form]:
    """Each input fed or stored, all of either kind, and inputs whose sizes only a run knows."""
    given = frozenset(i for i, array in enumerate(form.arrays) if array is not None)
    for i in sorted(given):
        kind = "fed" if i in form.stored else "stored"
        yield form.changed(f"input {i} {kind}", stored=form.stored ^ {i})
    yield form.changed("all stored", stored=given)
    yield form.changed("all fed", stored=frozenset())
    for dims in ("symbolic", "unknown"):
        if given - form.stored:
            yield form.changed(f"{dims} dims", dims=dims)


def _ranks(form: Form) -> Iterator[Form]:
    """Other ranks: dims before those of all inputs of the first one's rank, or of one input; dims of space behind."""
    first = form.arrays[0] if form.arrays else None
    if first is None:
        return
    alike = [i for i, array in enumerate(form.arrays) if array is not None and array.ndim == first.ndim]
    for rank in range(MOST_RANK + 1):
        if rank != first.ndim:
            for size in (1, 2) if rank > first.ndim else (1,):
                yield form.with_arrays(f"rank {rank} ({size})", {i: _ranked(form.arrays[i], rank, size) for i in alike})
    for i, array in enumerate(form.arrays):
        for rank in range(max(array.ndim - 2, 0), array.ndim + 2) if array is not None else ():
            assert array is not None
            if rank != array.ndim and len(alike) + len(form.arrays) > 2:
                yield form.with_arrays(f"input {i} of rank {rank}", {i: _ranked(array, rank, 1)})
        if array is not None and array.size == 1 and array.shape in ((), (1,)):
            shape = (1,) if array.ndim == 0 else ()
            yield form.with_arrays(f"input {i} of shape {list(shape)}", {i: array.reshape(shape)})
    if first.ndim > 2:
        yield from _spaces(form, alike)


def _ranked(array: Any, rank: int, size: int) -> np.ndarray:
    shape = (*[size] * (rank - array.ndim), *array.shape[max(array.ndim - rank, 0) :])
    return np.asarray(np.resize(array, shape))


def _spaces(form: Form, alike: Sequence[int]) -> Iterator[Form]:
    """One dim of space more or less, with the attributes that have an element for each."""
    for more in (1, -1):
        arrays = {}
        for i in alike:
            array = form.arrays[i]
            assert array is not None
            shape = (*array.shape, array.shape[-1]) if more > 0 else array.shape[:-1]
            arrays[i] = np.resize(array, shape)
        attributes = dict(form.attributes)
        for name, value in form.attributes.items():
            if name in ("kernel_shape", "strides", "dilations", "output_padding", "output_shape"):
                attributes[name] = [*value, value[-1]] if more > 0 else value[:-1]
            elif name == "pads":
                half = len(value) // 2
                begins, ends = value[:half], value[half:]
                attributes[name] = [*begins, 0, *ends, 0] if more > 0 else [*begins[:-1], *ends[:-1]]
        yield form.with_arrays(f"{'one more' if more > 0 else 'one less'} dim of space", arrays, attributes=attributes)


def _sizes(form: Form) -> Iterator[Form]:
    """Each size 0 or 1 wherever it stands, and each dim of each input 1, as broadcasting has it."""
    sizes = {size for array in form.arrays if array is not None for size in array.shape}
    for size in sorted(sizes):
        for other in (0, 1):
            if size == other:
                continue
            arrays = {}
            for i, array in enumerate(form.arrays):
                if array is not None and size in array.shape:
                    shape = tuple(other if d == size else d for d in array.shape)
                    arrays[i] = np.resize(array, shape)
            yield form.with_arrays(f"size {size} as {other}", arrays)
    for i, array in enumerate(form.arrays):
        for axis in range(array.ndim if array is not None else 0):
            assert array is not None
            if array.shape[axis] > 1:
                shape = tuple(1 if d == axis else size for d, size in enumerate(array.shape))
                yield form.with_arrays(f"input {i} with 1 at {axis}", {i: np.resize(array, shape)})


# -- what becomes of a form ------------------------------------------------------------------------------------------


def by_runtime(form: Form) -> list[np.ndarray] | None:
    """The results by ONNX Runtime; None where it refuses the form."""
    proto, feeds = unsigned_weights(*form.model())
    try:
        results = session_of(proto).run(None, feeds)
    except (*FAILURES, *REFUSALS, runtime.EPFail, runtime.NotImplemented):
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
        if (
            is_alone
            and number
            and number != onnx.TensorProto.STRING
            and helper.tensor_dtype_to_np_dtype(number) != result.dtype
        ):
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
    signal.alarm(SECONDS)
    is_empty = any(array is not None and not array.size for array in form.arrays)
    expected = None if is_empty and form.case.op in WRONG_ON_EMPTY else by_runtime(form)
    is_by_reference = expected is None and (not form.is_shape or is_empty) and form.op not in UNKNOWN
    if is_by_reference:
        expected = by_reference(form)
    if expected is None:
        return "invalid"
    say("different: slow")
    signal.alarm(SECONDS)
    proto, feeds = form.model()
    content = proto.SerializeToString()
    found = ""
    for name in ("interpreter", "session"):
        try:
            with np.errstate(all="ignore"):
                if name == "session":
                    got: Sequence[Any] = InferenceSession(content, threads=1).run(None, feeds)
                else:
                    got = list(interpret(load_onnx(content), feeds).values())
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

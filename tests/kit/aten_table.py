"""docs/aten.md: every core ATen overload, and every other one that `torch.export` leaves, with what Ingot makes of it.

torch's own samples of its ops (`op_db`) and the cases of `aten_cases` are exported, decomposed as torch does it by
default, run by the interpreter and on the native executor, and compared with torch.
"""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import built_by_rules  # noqa: F401  # declares cases
import ingot
from aten_cases import CASES, export, exported
from aten_random_cases import COUNT, exported_draws
from ingot import InferenceSession
from ingot.errors import ReferenceWarning, UnsupportedError
from ingot.load.aten import load_exported
from ingot.run.interpret import interpret

TOLERANCE = 1e-4  # of max(1, |expected|): samples are of f32, and several ops of them
SAMPLES = 2  # of each entry of op_db, in one program
RUNS, DRAWN = 100, 1000  # of a program with random ops: at most as many runs, for as many numbers of each result
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)  # the first that an entry has
WIDE = {"matrix_exp"}  # entries that torch computes in float32 with errors above the tolerance
# Compared as their samples say.
UP_TO_SIGNS = {"linalg.eig", "linalg.eigh", "linalg.svd", "pca_lowrank", "svd", "svd_lowrank"}
KERNEL, REFERENCE, REFUSED, UNTRIED, WRONG = "kernel", "reference", "refused", "untried", "wrong"

# Overloads that no program of numbers can show, each with what becomes of it and why.
AS_WRITTEN = {"core_alone", "ways_back"}  # cases of core overloads that decompositions replace
_SIZE = "a number that torch knows when it exports"
_ANY = "memory of any content, which is 0"
NAMED = {
    "aten.atan2.out": (REFUSED, "writes into a given tensor; decompositions replace it by aten.atan2.default"),
    "aten._native_batch_norm_legit.default": (
        REFUSED, "writes into statistics; decompositions replace it by aten._native_batch_norm_legit_functional.default"
    ),
    **dict.fromkeys(("aten.sym_numel.default", "aten.sym_size.int"), (KERNEL, _SIZE)),
    "aten.sym_is_contiguous.default": (KERNEL, "an answer that torch knows when it exports"),
    "aten.resize_.default": (KERNEL, "a write; decompositions replace it by aten.as_strided.default"),
    **dict.fromkeys(("aten.sym_storage_offset.default", "aten.sym_stride.int"), (KERNEL, _SIZE)),
    **dict.fromkeys(("aten.empty.memory_format", "aten.empty_permuted.default"), (KERNEL, _ANY)),
    **dict.fromkeys(("aten.empty_strided.default", "aten.new_empty_strided.default"), (KERNEL, _ANY)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one program. overloads: those that it calls. kind: one of the words above. why: of a refusal."""

    overloads: tuple[str, ...]
    kind: str
    why: str = ""


class Calls(torch.nn.Module):
    """Calls of an op on some samples, as a function of their tensors; complex ones come and go as pairs."""

    def __init__(self, op: Any, samples: Sequence[Any], *, is_up_to_signs: bool = False):
        super().__init__()
        self.op = op
        self.read = [s.output_process_fn_grad if is_up_to_signs else _whole for s in samples]
        self.leaves, self.tree = tree_flatten([((s.input, *s.args), s.kwargs) for s in samples])
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(_real(self.leaves[i].detach().clone()) for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = torch.view_as_complex(tensor) if leaves[place].is_complex() else tensor
        given = zip(self.read, tree_unflatten(leaves, self.tree), strict=True)
        results = [read(self.op(*args, **kwargs)) for read, (args, kwargs) in given]
        return [_real(leaf) for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _whole(result: Any) -> Any:
    return result


def _real(x: torch.Tensor) -> torch.Tensor:
    """What numpy has the numbers of."""
    x = x.float() if x.dtype is torch.bfloat16 else x
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


@functools.cache
def entries() -> dict[str, Any]:
    """op_db, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {info.full_name: info for info in op_db if info.supported_dtypes("cpu") & set(DTYPES)}


def core() -> list[str]:
    """The overloads with the tag `core`, of all that are registered: `dir` names only those that a process has used."""
    registered = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if "aten::" in name)
    packets = [getattr(torch.ops.aten, name, None) for name in {name.partition(".")[0] for name in registered}]
    packets = [packet for packet in packets if isinstance(packet, torch._ops.OpOverloadPacket)]
    every = (getattr(packet, name) for packet in packets for name in packet.overloads())
    return sorted(str(op) for op in every if torch.Tag.core in op.tags)


def called(program: ExportedProgram) -> tuple[str, ...]:
    """The overloads that a program calls."""
    return tuple(sorted({str(each) for each in _overloads(program)}))


def _overloads(program: ExportedProgram) -> list[torch._ops.OpOverload]:
    return [node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def outcomes(name: str) -> Iterator[Outcome]:
    """What becomes of an entry of op_db: its samples together, or each alone where they do not run together."""
    info = entries()[name]
    types = (torch.float64,) if name in WIDE else DTYPES
    dtype = next(each for each in types if each in info.supported_dtypes("cpu"))
    for seed in (torch.manual_seed, random.seed, np.random.seed):  # torch's samples draw from all of them
        seed(0)
    samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES))
    signs = name in UP_TO_SIGNS
    together = _outcome(Calls(info.op, samples, is_up_to_signs=signs))
    yield together
    if together.kind in (REFUSED, UNTRIED) and len(samples) > 1:
        yield from (_outcome(Calls(info.op, [each], is_up_to_signs=signs)) for each in samples)


def _outcome(calls: Calls) -> Outcome:
    try:
        program = export(calls, calls.inputs).run_decompositions()
    except (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError) as error:
        return Outcome((), UNTRIED, f"torch cannot export it: {type(error).__name__}")
    with torch.no_grad():
        expected = calls(*calls.inputs)
    return run(program, calls.inputs, expected)


def run(program: ExportedProgram, inputs: Sequence[torch.Tensor], expected: Iterable[torch.Tensor]) -> Outcome:
    """What becomes of a program. expected: what torch gives; where it draws numbers, the program itself is asked."""
    names = called(program)
    draws = any(torch.Tag.nondeterministic_seeded in each.tags for each in _overloads(program))
    wanted = drawn(program, inputs) if draws else [list(expected)]
    judge = is_drawn_alike if draws else agrees
    try:
        graph = load_exported(program)
        arrays = [x.numpy() for x in inputs]
        ingot.set_seed(0)
        found = [[interpret(graph, dict(zip(graph.inputs, arrays, strict=True)))]]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session = InferenceSession(program, threads=1)
            feeds = {each.name: x for each, x in zip(session.get_inputs(), arrays, strict=True)}
            runs = [session.run(None, feeds) for _ in wanted]
            found.append([dict(zip(graph.outputs, results, strict=True)) for results in runs])
    except UnsupportedError as error:
        return Outcome(names, REFUSED, str(error))
    for results in found:  # behind the results come inputs that the program writes into
        for i, name in enumerate(list(graph.outputs)[: len(wanted[0])]):
            got, want = np.stack([run[name] for run in results]), np.stack([run[i].numpy() for run in wanted])
            if not judge(got, want):
                return Outcome(names, WRONG, f"{name}: got {got.ravel()[:4]}, expected {want.ravel()[:4]}")
    is_reference = any(issubclass(each.category, ReferenceWarning) for each in caught)
    return Outcome(names, REFERENCE if is_reference else KERNEL)


def drawn(program: ExportedProgram, inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """What several runs of a program give in torch. The ops of `op_db` would seed each run alike."""
    module, runs = program.module(), []
    torch.manual_seed(0)
    with torch.no_grad():
        while len(runs) < RUNS and (not runs or len(runs) * min(x.numel() for x in runs[0]) < DRAWN):
            runs.append(tree_leaves(module(*(x.clone() for x in inputs))))
    return runs


def is_drawn_alike(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether runs have the type and shape of others, and their numbers the distribution.

    By the test of Kolmogorov and Smirnov, at a level of 5e-5. Numbers within the tolerance are alike: what a program
    computes of random numbers may be the same in each run but for rounding.
    """
    if got.dtype != want.dtype or got.shape[1:] != want.shape[1:]:
        return False
    if not want.size:
        return True
    every = np.concatenate([got.ravel(), want.ravel()])
    near = every + np.where(np.isfinite(every), TOLERANCE * np.maximum(1, np.abs(every)), 0)
    ahead = max((_share(x, every) - _share(y, near)).max() for x, y in ((got, want), (want, got)))
    return bool(ahead <= 2.3 * (1 / got.size + 1 / want.size) ** 0.5)


def _share(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The share of numbers that are at most as large as each end."""
    return np.searchsorted(np.sort(x.ravel()), ends, side="right") / x.size


def agrees(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether a result has the type of another, and its numbers within the tolerance."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.dtype.kind != "f":
        return np.array_equal(got, want)
    return bool(np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))


def case_outcomes() -> Iterator[Outcome]:
    """What becomes of the cases of `aten_cases`, which call the overloads that torch's own front avoids."""
    for name, (function, inputs) in CASES.items():
        for decomposed in (True, False) if name in AS_WRITTEN else (True,):
            yield run(exported(name, decomposed), inputs, tree_leaves(function(*inputs)))
    yield run(exported_draws(False).run_decompositions(), (torch.full((COUNT,), 0.5),), ())


def table(found: Iterable[Outcome]) -> dict[str, tuple[str, str]]:
    """Of each overload what becomes of it, and why where that is a refusal.

    An overload is supported where a program that calls it runs, and no other is wrong. It is refused where each program
    that calls it is, for a reason that names it, or it alone.
    """
    rows: dict[str, tuple[str, str]] = {}
    by_name: dict[str, list[Outcome]] = {name: [] for name in core()}
    for outcome in found:
        for name in outcome.overloads:
            by_name.setdefault(name, []).append(outcome)
    for name, each in sorted(by_name.items()):
        kinds = {outcome.kind for outcome in each}
        if name in NAMED:
            rows[name] = NAMED[name]
        elif WRONG in kinds:
            rows[name] = WRONG, next(outcome.why for outcome in each if outcome.kind == WRONG)
        elif kinds & {KERNEL, REFERENCE}:
            rows[name] = (KERNEL if KERNEL in kinds else REFERENCE), ""
        else:
            whys = sorted((outcome.why for outcome in each), key=lambda why: (name not in why, len(why), why))
            rows[name] = (REFUSED, whys[0]) if whys else (UNTRIED, "no sample of torch's calls it")
    return rows


# -- the document

HEAD = """\
# ATen overloads of PyTorch

{core_count} overloads have PyTorch's tag `core`; {core_supported} of them are supported, {core_share:.1f} %.
After its default decompositions, `torch.export` of PyTorch's own op samples (`op_db`) contains {more_count} other
overloads: {more_supported} of these are supported, {more_share:.1f} %. PyTorch {version}.

An overload is supported if a program that calls it gives the results of PyTorch, on the interpreter and on the native
executor, or random numbers of the same distribution. The column "by" is *kernel* if no step runs on the reference, else
*reference*. A *refused* overload is an `UnsupportedError` that names it, with the reason.
`python tests/kit/written_docs.py --write` writes this page.

| overload | core | by | why |
|---|---|---|---|
"""
FORMS = """
## Forms that are refused

Samples of `op_db` that are refused although each overload is supported in another form.

| sample of | why |
|---|---|
"""


def everything() -> dict[str, list[Outcome]]:
    """What becomes of every entry of op_db and of every case, by their names."""
    found = {name: list(outcomes(name)) for name in sorted(entries())}
    return found | {"cases": list(case_outcomes())}


def document(found: dict[str, list[Outcome]]) -> str:
    """docs/aten.md."""
    rows, tagged = table(outcome for each in found.values() for outcome in each), set(core())
    supported = {name for name, (kind, _) in rows.items() if kind in (KERNEL, REFERENCE)}
    more = rows.keys() - tagged
    parts = [
        HEAD.format(
            core_count=len(tagged), core_supported=len(supported & tagged),
            core_share=100 * len(supported & tagged) / len(tagged), more_count=len(more),
            more_supported=len(supported & more), more_share=100 * len(supported & more) / len(more),
            version=torch.__version__.partition("+")[0],
        )
    ]  # fmt: skip
    for name, (kind, why) in rows.items():
        parts.append(f"| {name} | {'core' if name in tagged else '-'} | {kind} | {_cell(why)} |\n")
    parts.append(FORMS)
    for name, each in found.items():
        whys = [o.why for o in each if o.kind == REFUSED and supported.issuperset(o.overloads)]
        if whys:
            parts.append(f"| {name} | {_cell(min(whys, key=len))} |\n")
    return "".join(parts)


def _cell(why: str) -> str:
    return " ".join(why.replace("|", "/").split())[:160]


def written(text: str) -> tuple[dict[str, str], set[str]]:
    """Of a document the overloads with what they are by, and the entries of op_db with forms that are refused."""
    rows: dict[str, str] = {}
    forms = set()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[1].startswith(("aten.", "prims.", "quantized_decomposed.")):
            rows[cells[1]] = cells[3]
        elif len(cells) == 4 and cells[1] not in ("sample of", "---"):
            forms.add(cells[1])
    return rows, forms

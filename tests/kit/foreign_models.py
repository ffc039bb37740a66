"""ONNX models of other projects' test suites, by ONNX Runtime and by every executor, with random inputs.

`python tests/kit/foreign_models.py FOLDER [--write] [--show WORD]`: FOLDER holds a folder for each project, which is
called `owner+name` and holds a file REVISION beside the project's .onnx files at their paths. Each file is judged in
a process of limited time and memory; one whose content was judged already counts once. Prints a row for each file, or
for those whose outcome has a word in it; `--write` writes docs/foreign-models.md. No model is part of this repository.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from forked import Say, batch, limited
from ingot.errors import IngotError, UnsupportedError
from ingot.session.inference import InferenceSession
from ingot.session.seeds import set_seed
from places import ROOT
from random_onnx import REFUSALS
from unsaturated import unsigned_weights

PAGE = ROOT / "docs" / "foreign-models.md"
SECONDS = 60  # for a model
SIZES = (2, 1, 3, 4, 8, 16, 28, 32, 224)  # of dims without a number, tried in turn until ONNX Runtime runs
BLOCK = 1 << 20  # elements that are compared at once
TOLERANCE = 1e-3  # of a result, of its largest element
ORT_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(bool)": np.bool_,
    **{f"tensor({kind}{bits})": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "tensor(string)": object,
}  # fmt: skip
EQUAL, BOTH, ALONE, REFUSED, DIFFERS, SLOW = (
    "equal", "both refuse", "Ingot alone runs", "Ingot alone refuses", "differs", "not in time",
)  # fmt: skip
OUTCOMES = {
    EQUAL: "every executor gives the results of ONNX Runtime",
    BOTH: "ONNX Runtime and Ingot refuse it, or no valid inputs are known",
    ALONE: "ONNX Runtime refuses it, Ingot runs it",
    REFUSED: "Ingot refuses it, ONNX Runtime runs it",
    DIFFERS: "an executor gives another result",
    SLOW: f"one of them does not end in {SECONDS} seconds",
}


# Why a file is neither equal nor refused by both, where that is as it should be: by the end of its path.
REASONS = {
    "layer-zoo/dropout_training_mode_true.onnx": "draws random numbers",
    "12/test_pow_types_float/model.onnx": "an infinity as an integer, which Ingot makes the largest on every CPU",
    "datasets/logreg_iris.onnx": "12 coefficients for 3 classes of 2 features: ONNX Runtime reads the first 6 of them",
    "test_data/example_big_compute.onnx": "a long chain of divisions of 52 million elements",
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file of a project."""

    project: str
    path: Path


def found(folder: Path) -> tuple[list[Foreign], Counter[str]]:
    """Every different file, and how many each project has in all, those that are files of another project too."""
    files, seen = [], set()
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*/**/*.onnx")):
        content = path.read_bytes()
        if content.startswith(b"version "):  # a pointer of Git LFS
            continue
        project = path.relative_to(folder).parts[0].replace("+", "/")
        counts[project] += 1
        digest = hashlib.sha256(content).digest()
        if digest not in seen:
            seen.add(digest)
            files.append(Foreign(project, path))
    return files, counts


def source_of(path: Path) -> Any:
    """What ONNX Runtime loads: the model with sums that it makes exactly, or the path if the data is in other files."""
    proto = onnx.load(path, load_external_data=False)
    if any(tensor.external_data for tensor in proto.graph.initializer):
        return str(path)
    return unsigned_weights(proto, {})[0].SerializeToString()


def array_of(kind: str, shape: list[Any], size: int, rng: np.random.Generator) -> np.ndarray:
    """Random elements of an input. Raises KeyError for one that is no tensor."""
    dtype = ORT_TYPES[kind]
    dims = [dim if isinstance(dim, int) and dim >= 0 else size for dim in shape]
    if dtype is object:
        return np.full(dims, "a b", object)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(dims).astype(dtype)
    return rng.integers(0, 2, dims).astype(dtype)


def by_ort(path: Path) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Inputs that ONNX Runtime runs a model with, and its results. Raises what it raises, KeyError for other inputs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(source_of(path), options)
    last: Exception | None = None
    for size in SIZES:
        rng = np.random.default_rng(size)
        feeds = {arg.name: array_of(arg.type, arg.shape, size, rng) for arg in session.get_inputs()}
        try:
            return feeds, session.run(None, feeds)
        except (*REFUSALS, RuntimeError, ValueError) as error:  # of a result that numpy has no dtype for, too
            last = error
    assert last is not None
    raise last


def difference(got: Any, wanted: Any) -> str:
    """What of two results differs, nothing where they agree. Of integers of 8 bits, one may be rounded otherwise."""
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or list(got) != list(wanted):
            return "other keys"
        return difference(list(got.values()), list(wanted.values()))
    if isinstance(wanted, list):
        if len(got) != len(wanted):
            return f"{len(got)} elements, expected {len(wanted)}"
        return next(filter(None, map(difference, got, wanted)), "")
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape or (got.dtype != wanted.dtype and wanted.dtype.kind not in "OSU"):
        return f"{got.dtype}{list(got.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind in "OSU":
        return "" if got.astype(str).tolist() == wanted.astype(str).tolist() else "other text"
    if wanted.dtype.kind in "iub":
        steps = 1 if wanted.dtype.itemsize == 1 and wanted.dtype.kind != "b" else 0
        far = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) > steps
        return f"{int(far.sum())} of {far.size} integers" if far.any() else ""
    got, wanted = got.ravel(), wanted.ravel()
    scale = float(np.abs(wanted).max(initial=0.0, where=np.isfinite(wanted)))
    slack, far = TOLERANCE * min(scale, 1e30) + 1e-6, 0
    for start in range(0, wanted.size, BLOCK):
        x, y = (each[start : start + BLOCK].astype(np.float64) for each in (got, wanted))
        far += int((~np.isclose(x, y, rtol=TOLERANCE, atol=slack, equal_nan=True)).sum())
    return f"{far} of {wanted.size} floats" if far else ""


def judged(path: Path, say: Say) -> str:
    """The outcome of a model, and why; random ops draw the same numbers each time."""
    onnxruntime.set_seed(0)
    set_seed(0)
    say(f"{SLOW}: ONNX Runtime")
    try:
        feeds, expected = by_ort(path)
        refusal = ""
    except (*REFUSALS, KeyError, RuntimeError, ValueError, TypeError) as error:
        refusal = f"{type(error).__name__} {' '.join(str(error).split())[:120]}"
        feeds, expected = {}, []
    for executor in ("native", "interpret"):
        say(f"{SLOW}: Ingot, {executor}")
        try:
            session = InferenceSession(str(path), threads=1, executor=executor)
            if refusal:
                rng = np.random.default_rng(0)
                feeds = {arg.name: array_of(arg.type, arg.shape, 2, rng) for arg in session.get_inputs()}
            results = session.run(None, feeds)
        except IngotError as error:
            kind = "" if isinstance(error, UnsupportedError) else f"{type(error).__name__} "
            why = " ".join(str(error).replace(f"onnx file {str(path)!r}: ", "").split())[:200]
            return f"{BOTH}: {refusal} | {why}" if refusal else f"{REFUSED}: {kind}{why}"
        except KeyError as error:
            return f"{BOTH}: inputs of {error}"
        if refusal:
            return f"{ALONE}: {refusal}"
        if other := difference(results, expected):
            return f"{DIFFERS}: {executor}, {other}"
    return EQUAL


def judge_files(files: list[Foreign]) -> dict[int, str]:
    """The outcome of each file."""

    def judge(index: int, say: Say) -> str:
        with limited(SECONDS):
            return judged(files[index].path, say)

    return batch(range(len(files)), judge)


def page(folder: Path, files: list[Foreign], counts: Counter[str], outcomes: dict[int, str]) -> str:
    """The counts by project, and each file that is neither equal nor refused by both."""
    kinds = [*OUTCOMES, "found wrong"]
    table = {project: Counter[str]() for project in counts}
    told: dict[str, list[str]] = {kind: [] for kind in kinds}
    for index, outcome in outcomes.items():
        kind = next((each for each in OUTCOMES if outcome.startswith(each)), "found wrong")
        table[files[index].project][kind] += 1
        path = files[index].path.relative_to(folder).as_posix()
        why = next((reason for end, reason in REASONS.items() if path.endswith(end)), "")
        said = outcome.removeprefix(kind).removeprefix(": ")
        told[kind].append(f"- `{path}`: {said}{f'; {why}' if why else ''}")
    lines = [
        "# Models of other projects' test suites\n",
        "Written by `python tests/kit/foreign_models.py FOLDER --write`, on files of public repositories, which",
        "are not part of this one. ONNX Runtime, the native executor and the interpreter run each file with the same",
        f"random inputs. Floats must agree to {TOLERANCE} of the largest element of their result, integers of 8 bits",
        "to one unit; other results must be equal. Duplicate files count once. Pointers of Git LFS, and files of 4",
        "MiB and more, are omitted. Most files that both refuse have custom ops of the project.\n",
        *(f"- *{kind}*: {what}" for kind, what in OUTCOMES.items()),
        "",
        f"| project | revision | files | different | {' | '.join(OUTCOMES)} |",
        "|---" * (4 + len(OUTCOMES)) + "|",
    ]  # fmt: skip
    for project, row in table.items():
        revision = (folder / project.replace("/", "+") / "REVISION").read_text(encoding="utf-8").strip()[:12]
        numbers = [counts[project], row.total(), *(row[kind] for kind in OUTCOMES)]
        lines.append(f"| {project} | {revision} | {' | '.join(map(str, numbers))} |")
    whole = sum(table.values(), Counter[str]())
    numbers = [counts.total(), whole.total(), *(whole[kind] for kind in OUTCOMES)]
    lines.append(f"| all | | {' | '.join(map(str, numbers))} |")
    for kind in (REFUSED, DIFFERS, SLOW, "found wrong"):
        if told[kind]:
            lines += [f"\n## {kind.capitalize()}\n", *told[kind]]
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--write", action="store_true")
    arguments.add_argument("--show", default="")
    options = arguments.parse_args()
    files, counts = found(options.folder)
    outcomes = judge_files(files)
    for index, outcome in outcomes.items():
        if options.show in outcome:
            print(f"{files[index].path.relative_to(options.folder)}: {outcome}")
    if options.write:
        PAGE.write_text(page(options.folder, files, counts, outcomes), encoding="utf-8")
    return int(any(outcome.startswith(("!", DIFFERS)) for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())

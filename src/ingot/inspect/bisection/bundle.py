"""A folder with everything that a report of a failing comparison needs: the part, its arrays, and ways to run it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from ingot.compile import Mode
from ingot.emit.c import Vector, emit
from ingot.emit.project import filled
from ingot.errors import IngotError, InputError, UnsupportedError, some
from ingot.inspect.bisection.parts import Part
from ingot.inspect.bisection.result import VERSION, Bisection
from ingot.inspect.bisection.search import Search, problem_of, stored_names
from ingot.inspect.comparison import compare
from ingot.inspect.comparison.compared import Compare
from ingot.inspect.comparison.prepared import COMPILED, executed_side, exported, exported_side, planned_side
from ingot.inspect.comparison.result import Comparison
from ingot.inspect.comparison.sides import Arrays, Recorded, Side, as_declared
from ingot.ir.graph import Graph
from ingot.ir.text import dump, parse
from ingot.passes import optimize
from ingot.passes.precision import F32, Precision, precision_of
from ingot.run.library import load
from ingot.run.store import WeightStore
from ingot.support.config import KNOBS
from ingot.support.files import make_folder, written
from ingot.support.folders import filled_folder
from ingot.support.machine import cpu_name, memory_bytes, usable_threads

_OWNER = "bisect"
_GRAPH, _DOCUMENT, _ONNX, _C = "graph.txt", "bundle.json", "part.onnx", "c"
_INPUTS, _WEIGHTS, _A, _B = "inputs.npz", "weights.npz", "a.npz", "b.npz"
_PACKAGES = ("numpy", "ml_dtypes", "onnx", "onnxruntime", "torch", "transformers")
_MOST_ONNX = 1 << 30  # bytes of weights in the ONNX file
_SCRIPT = '''\
"""Run the part of a model in this folder in two ways again; needs Ingot. Exit code 0: the failure is still there."""

import sys
from pathlib import Path

from ingot.inspect.bisection.bundle import reproduce

sys.exit(reproduce(Path(__file__).parent))
'''


def write_bundle(
    found: Bisection, folder: str | os.PathLike[str], *, command: str = "", force: bool = False
) -> list[str]:
    """Write the smallest failing part into a folder, with its inputs and the outputs of both sides; return the paths.

    Float weights are replaced by random ones where the failure remains. command: by which it was found. force: replace
    existing files that this function did not write. Raises UnsupportedError if no part fails alone, or if an input is
    no array, and OutputError for a folder that cannot be written or has such files.
    """
    search, part = found.search, found.part
    if search is None or part is None:
        raise UnsupportedError(f"bisect: nothing to write, got {'no failure' if found.agrees else 'no failing part'}")
    part, random = search.with_random_weights(part)
    a, b = _shown(search.pair.part_a(part.graph, part.feeds)), _shown(search.expected(part))
    contents = {
        _GRAPH: dump(part.graph).encode(), _INPUTS: _archive(part.feeds), _WEIGHTS: _archive(_stored(part.graph)),
        _A: _archive(a), _B: _archive(b), "reproduce.py": _SCRIPT.encode(),
    }  # fmt: skip
    run = _options(found, search)
    program = _Program.of(search, part)
    contents |= program.files(search, part, b)
    onnx = _exported(part, run, contents)
    document = {
        "version": VERSION, "command": command, "run": run,
        "reproduced": problem_of(_compared(run, part, a, b)) == found.problem,
        "onnx": onnx, "c": {"folder": _C if program.names else None, "reason": program.reason},
        "weights": {"random": list(random), "of": stored_names(part.graph)},
        "versions": _versions(), "machine": _machine(), "bisection": found.to_json(),
    }  # fmt: skip
    contents[_DOCUMENT] = (json.dumps(document, indent=1) + "\n").encode()
    contents["README.txt"] = "\n".join([str(found), "", *_readme(document), ""]).encode()
    with filled_folder(folder, _OWNER, list(contents), force=force):
        paths = program.emit(Path(folder), part, force=force)
        for name, content in contents.items():
            path = Path(folder, name)
            make_folder(path.parent)
            with written(path) as file:
                file.write(content)
    return [*(os.path.join(folder, name) for name in contents), *paths]


def reproduce(folder: str | os.PathLike[str]) -> int:
    """Compare the part in a bundle again, and print the result; return 0 if it fails as it did, else 1.

    Raises InputError for a folder that is no bundle, and the errors of a comparison.
    """
    root = Path(folder)
    try:
        run = json.loads((root / _DOCUMENT).read_text())["run"]
        text = (root / _GRAPH).read_text()
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: no bundle of ingot bisect, {error!r}") from error
    graph = parse(text)
    graph = parse(text, _read(root / _WEIGHTS, graph))
    a, b = (_read(root / name, graph) for name in (_A, _B))
    found = _compared(run, Part(graph, _read(root / _INPUTS, graph)), a, b)
    is_same = problem_of(found) == run["problem"]
    print(found)
    print(f"reproduced: {run['problem']}" if is_same else f"not reproduced: expected problem {run['problem']!r}")
    return 0 if is_same else 1


def _options(found: Bisection, search: Search) -> dict[str, Any]:
    """Return how the part is run: the sides, `recorded` for B if b.npz has its values, and the options of A."""
    pair = search.pair
    b = "recorded" if pair.part_b is None else found.b
    return {
        "a": pair.executor, "b": b, "problem": found.problem, "precision": pair.precision.name, "rounds": pair.rounds,
        "threads": pair.threads,
    }  # fmt: skip


def _compared(run: Mapping[str, Any], part: Part, a: Arrays, b: Arrays) -> Comparison:
    """Compare a part as a new process does."""
    graph, feeds, precision = part.graph, part.feeds, precision_of(run["precision"])
    first: Side
    if run["a"] == "torch":  # whose program is not in the bundle
        first = Recorded(graph, feeds, a)
    elif run["a"] == "onnxruntime":
        first = exported_side(graph, feeds)
    elif run["rounds"] or run["a"] not in COMPILED:
        first = executed_side(run["a"], graph, feeds, precision=precision, threads=run["threads"])
    else:
        optimized = graph.copy()
        optimize(optimized)
        everything = [node.outputs[0] for node in optimized.nodes]
        first = planned_side(run["a"], optimized, feeds, Mode(precision=precision), run["threads"], kept=everything)
    second = Recorded(graph, feeds, b) if run["b"] == "recorded" else executed_side(run["b"], graph, feeds)
    return Compare("the part", first, second, graph, feeds).result()


def _exported(part: Part, run: Mapping[str, Any], contents: dict[str, bytes]) -> dict[str, Any]:
    """Add the ONNX file; return its name or the reason why there is none, and whether a comparison of it fails."""
    graph, problem = part.graph, run["problem"]
    if sum(array.nbytes for array in _stored(graph).values()) > _MOST_ONNX:
        return {"file": None, "reason": "its weights are too large for one file", "fails": False}
    try:
        model = exported(graph)
    except IngotError as error:
        return {"file": None, "reason": str(error), "fails": False}
    contents[_ONNX] = model
    fails = False
    if not graph.states and run["rounds"] and run["a"] != "torch" and run["b"] != "recorded":
        options = {"a": run["a"], "b": run["b"], "precision": run["precision"], "threads": run["threads"]}
        try:
            fails = problem_of(compare(model, inputs=part.feeds, **options)) == problem
        except IngotError:
            fails = False
    return {"file": _ONNX, "reason": "", "fails": fails}


@dataclass(frozen=True, slots=True)
class _Program:
    """The emitted C of a part: the C identifiers of its inputs and outputs, by their names; a reason if it has none."""

    precision: Precision
    names: Mapping[str, Mapping[str, str]]
    reason: str = ""

    @staticmethod
    def of(search: Search, part: Part) -> _Program:
        """Emit the part into a temporary folder, to learn whether that is possible and what C calls its values."""
        pair = search.pair
        if not pair.rounds and pair.precision is not F32:
            return _Program(pair.precision, {}, f"a part of a language model in {pair.precision.name}")
        program = _Program(pair.precision, {})
        with tempfile.TemporaryDirectory(prefix="ingot-bisect-") as folder:
            try:
                program._emit(Path(folder), part)
            except IngotError as error:
                return replace(program, reason=str(error))
            layout = json.loads(Path(folder, _C, "layout.json").read_text())
        return replace(program, names={kind: layout[kind] for kind in ("inputs", "outputs")})

    def emit(self, folder: Path, part: Part, *, force: bool) -> list[str]:
        """Write the C, if there is one; return its paths."""
        return self._emit(folder, part, force=force) if self.names else []

    def _emit(self, folder: Path, part: Part, *, force: bool = False) -> list[str]:
        optimized = part.graph.copy()
        optimize(optimized)
        side = executed_side("native", part.graph, part.feeds, precision=self.precision)
        vector = Vector({name: part.feeds[name] for name in part.graph.inputs}, side.run())
        return emit(optimized, WeightStore(1), folder / _C, precision=self.precision, vector=vector, force=force)

    def files(self, search: Search, part: Part, b: Arrays) -> dict[str, bytes]:
        """Return the Makefile that runs the C and prints the difference, with what it needs."""
        if not self.names:
            return {}
        found = search.compared(part)
        tolerances = {row.name: row.tolerance for row in found.values} if found is not None else {}
        inputs = list(self.names["inputs"])
        results = [(identifier, name) for identifier, name in self.names["outputs"].items() if name in b]
        outputs = [(identifier, f"{tolerances.get(name, 0.0):.9g}") for identifier, name in results]
        flags = os.environ.get("CFLAGS", "-O1") if search.pair.executor == "emit-c" else ""
        files = {
            "Makefile": filled("difference.mk", "model", flags=flags, inputs=inputs, outputs=outputs),
            "difference.c": filled("difference.c", "model"),
        }  # fmt: skip
        expected = {
            f"expected/{identifier}.npy": np.asarray(b[name]).astype(np.float64) for identifier, name in results
        }
        return {name: text.encode() for name, text in files.items()} | {n: _npy(array) for n, array in expected.items()}


def _shown(side: Side) -> dict[str, np.ndarray]:
    """Return the values that a side shows, and its outputs, which have the names of their values."""
    found: dict[str, np.ndarray] = {}

    def keep(arrays: Arrays) -> Arrays:
        found.update({name: np.array(array) for name, array in arrays.items() if isinstance(array, np.ndarray)})
        return {}

    side.run_watched(keep)
    outputs = {name: array for name, array in side.run().items() if name in side.graph.values}
    return found | {name: array for name, array in outputs.items() if isinstance(array, np.ndarray)}


def _stored(graph: Graph) -> dict[str, np.ndarray]:
    """Return the arrays that the text of a graph leaves out."""
    data = {name: value.data for name, value in graph.values.items() if value.kind == "weight"} | graph.initial
    return {name: np.asarray(array) for name, array in data.items() if array is not None}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
    return file.getvalue()


def _archive(arrays: Mapping[str, Any]) -> bytes:
    """Return an .npz file. numpy's own function takes no array named `file`, and writes the time."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise UnsupportedError(f"bisect: input {name!r} is no array, got {type(array).__name__}, expected one")
            plain = array.astype(str) if array.dtype.kind == "O" else array
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), _npy(plain))
    return file.getvalue()


def _read(path: Path, graph: Graph) -> dict[str, np.ndarray]:
    """Read the values of a graph from an .npz file."""
    with np.load(path, allow_pickle=False) as archive:
        return {n: as_declared(array, graph.values[n].type) for n, array in archive.items() if n in graph.values}


def _versions() -> dict[str, str]:
    found = {"ingot": ingot.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(), "cpu": cpu_name(), "isa": load().isa(), "threads": usable_threads(),
        "memory_bytes": memory_bytes(), "compiler": {name: os.environ.get(name, "") for name in ("CC", "CFLAGS")},
        "variables": {name: value for name in KNOBS if (value := os.environ.get(name))},
    }  # fmt: skip


def _readme(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that explain the files."""
    run, weights = document["run"], document["weights"]
    yield "The part that fails, its inputs, and how to run it:"
    yield f"  {_GRAPH}  the graph in Ingot's text form; {_WEIGHTS}: its weights; {_INPUTS}: its inputs"
    yield f"  {_A}, {_B}  what the sides compute; {_DOCUMENT}: versions, machine, command"
    yield "  python reproduce.py  compares the part again; the exit code is 0 if it fails as it did"
    if not document["reproduced"]:
        yield "    It did not fail in a run without the code that the program of the command had added or changed."
    onnx, c = document["onnx"], document["c"]
    if onnx["file"] is None:
        yield f"  There is no ONNX file: {onnx['reason']}"
    else:
        yield f"  {onnx['file']}  the part as ONNX" + (
            "" if onnx["fails"] else "; `ingot compare` was not tried, or agrees"
        )
    if onnx["fails"]:
        sides = f"--a {run['a']} --b {run['b']} --precision {run['precision']}"
        yield f"  ingot compare {onnx['file']} --input {_INPUTS} {sides}"
    if c["folder"] is None:
        yield f"  There is no C: {c['reason']}"
    else:
        yield f"  make  builds the C in {c['folder']}/ with CC, runs it, and prints how far it is from {_B}"
        yield "    The C has the plain kernels: where it agrees, those of an instruction set are at fault."
    rest = [name for name in weights["of"] if name not in weights["random"]]
    yield f"Weights: {len(weights['random'])} random, {len(rest)} of the model{f': {some(rest)}' if rest else ''}."
    yield "Inputs are those of the model's run. Constants of several elements count as weights."
    if run["a"] == "torch":
        yield f"Side A ran torch's own nodes, which are not here: {_A} has its values of this part."
    if run["b"] == "recorded":
        yield f"Side B cannot run a part: {_B} has its values of the whole model's run."

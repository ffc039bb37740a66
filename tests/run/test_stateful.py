"""Programs that keep states, in several runs that follow each other, by every executor."""

import ctypes
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from adapters import adapter
from ingot.emit.c import emit
from ingot.inspect.check import validate_document
from ingot.ir.dtype import DTYPES
from ingot.run.store import WeightStore
from ingot.session.io_binding import IOBinding
from stateful_cases import CASES, Arrays, Case, expected_of, feeds_of, torch_cases

assert adapter
NAMES = [*CASES, "torch: a sum", "torch: a cache"]
Run = Callable[[Arrays], list[np.ndarray]]

pytestmark = pytest.mark.filterwarnings("ignore::ingot.errors.ReferenceWarning")


def case_of(name: str) -> Case:
    return (CASES | torch_cases())[name] if name.startswith("torch") else CASES[name]


def expect_runs(case: Case, run: Run) -> None:
    for feeds, expected in zip(feeds_of(case), expected_of(case), strict=True):
        for got, wanted in zip(run(feeds), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def runs_of(session: Any) -> Run:
    return lambda feeds: session.run(None, feeds)


@pytest.mark.parametrize("executor", ["interpret", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_runs_find_what_the_runs_before_them_left(name: str, executor: str, tmp_path: Path) -> None:
    case = case_of(name)
    session = ingot.InferenceSession(case.graph, executor=executor, threads=1)
    expect_runs(case, runs_of(session))
    expect_runs(case, runs_of(session.context()))  # which has states of its own
    if executor == "interpret":
        return
    bound = IOBinding(session.context())

    def run_bound(feeds: Arrays) -> list[np.ndarray]:
        for key, array in feeds.items():
            bound.bind_input(key, array)
        bound.run()
        return [array.copy() for array in bound.get_outputs()]

    expect_runs(case, run_bound)
    session.save(tmp_path / "program")  # states begin anew: what runs have left is no part of a program
    for each in ("native", "interpret"):
        expect_runs(case, runs_of(ingot.InferenceSession(tmp_path / "program", executor=each)))


@pytest.mark.parametrize("name", NAMES)
def test_on_webgpu(name: str, adapter: str) -> None:
    case = case_of(name)
    session = ingot.InferenceSession(case.graph, executor="webgpu")
    expect_runs(case, runs_of(session))
    expect_runs(case, runs_of(session.context()))


@pytest.mark.parametrize("name", NAMES)
def test_validate_reports_what_executors_do(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    ingot.InferenceSession(case.graph).save(tmp_path / "program")
    document = validate_document(str(tmp_path / "program"), "planned", dims={}, precision=None, threads=1, mode=None)
    runs = {row["name"]: row["runs"] for row in document["executors"]}
    assert runs["native"] and runs["interpret"] and runs["webgpu"]
    assert runs["strict"] == runs["emit-c"] == case.is_whole
    if not case.is_whole:
        with pytest.raises(ingot.UnsupportedError, match="pairwise_coupling 'c'"):
            ingot.InferenceSession(case.graph, strict=True)
        with pytest.raises(ingot.UnsupportedError, match="pairwise_coupling 'c'"):
            emit(case.graph.copy(), WeightStore(), tmp_path / "c")


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ctypes.CDLL, dict[str, Path]]]:
    """All programs as C, each in a folder and with a prefix of its own, compiled into one library."""
    root = tmp_path_factory.mktemp("stateful")
    whole = {name: case for name, case in (CASES | torch_cases()).items() if case.is_whole}
    folders = {name: root / f"p{number}" for number, name in enumerate(whole)}
    for name, case in whole.items():
        emit(case.graph.copy(), WeightStore(), folders[name], prefix=folders[name].name)
    files = [str(folder / f"{folder.name}.c") for folder in folders.values()]
    command = ["cc", "-O0", "-Wall", "-Werror", "-shared", "-fPIC", *files, "-lm", "-o", "all.so"]
    subprocess.run(command, cwd=root, check=True)
    yield ctypes.CDLL(str(root / "all.so")), folders


def aligned(nbytes: int) -> np.ndarray:
    room = np.full(nbytes + 64, 0xFF, np.uint8)  # NaN, where it is read before it is written
    return room[-room.ctypes.data % 64 :][:nbytes]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CASES or CASES[name].is_whole])
def test_emitted(name: str, emitted: tuple[ctypes.CDLL, dict[str, Path]]) -> None:
    library, folders = emitted
    case, folder = case_of(name), folders[name]
    c, layout = folder.name, json.loads((folder / f"{folder.name}-layout.json").read_text())
    weights = aligned(getattr(library, f"{c}_weights_bytes")())
    weights[:] = np.fromfile(folder / f"{c}-weights.bin", np.uint8)
    memory = aligned(getattr(library, f"{c}_state_bytes")())
    init = getattr(library, f"{c}_init")
    init.restype = ctypes.c_void_p
    rows = {(row["kind"], row["name"]): row for row in layout["tensors"]}
    for _ in range(2):  # init begins anew
        state = ctypes.c_void_p(init(*(ctypes.c_void_p(each.ctypes.data) for each in (memory, weights)), 1))

        def run(feeds: Arrays, state: ctypes.c_void_p = state) -> list[np.ndarray]:
            found = [rows["output", key] for key in layout["outputs"].values()]
            made = [np.empty(row["shape"], DTYPES[row["dtype"]].numpy) for row in found]
            inputs = [feeds[key] for key in layout["inputs"].values()]
            structs = [(ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in (inputs, made)]
            assert getattr(library, f"{c}_run")(state, *structs) == 0
            return made

        expect_runs(case, run)

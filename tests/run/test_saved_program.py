"""Saved programs as input that is distrusted, and as output that is whole or not there."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.errors import InputError, LimitError, LoadError, OutputError
from ingot.ir.dim import symbol
from ingot.ir.dtype import i64
from ingot.ir.graph import Graph, TensorType
from ingot.run.library import content_hash
from ingot.session.saved_program import row_hash
from places import KIT

ROWS, WIDTH = 40, 8


def table(seed: int = 0) -> Graph:
    """y = (a[ids] + b[ids]) @ w, of two tables [ROWS, WIDTH] and w [WIDTH, 3]."""
    rng = np.random.default_rng(seed)
    graph = Graph("tables")
    graph.add_input("ids", TensorType(i64, (symbol("N"),)))
    for name, shape in (("a", (ROWS, WIDTH)), ("b", (ROWS, WIDTH)), ("w", (WIDTH, 3))):
        graph.add_weight(name, rng.standard_normal(shape).astype(np.float32))
    parts = [graph.add("gather", [name, "ids"], axis=0).output for name in "ab"]
    graph.set_output("y", graph.add("matmul", [graph.add("add", parts).output, "w"]).output)
    return graph


IDS = {"ids": np.arange(ROWS)}


def saved(folder: Path, seed: int = 0) -> np.ndarray:
    session = ingot.InferenceSession(table(seed), threads=1)
    (y,) = session.run(None, IDS)
    session.save(folder)
    return y


def result(folder: Path) -> np.ndarray:
    (y,) = ingot.InferenceSession(folder, threads=1).run(None, IDS)
    return y


# -- what is read -----------------------------------------------------------------------------------------------------


def change(folder: Path, rows: Callable[[dict[str, Any]], None], text: Callable[[str], str] = str) -> None:
    """Changes a program, and makes every hash that can be made fit again."""
    content = text((folder / "graph.ingot").read_text())
    (folder / "graph.ingot").write_text(content)
    manifest, blob = json.loads((folder / "weights.json").read_text()), (folder / "weights.bin").read_bytes()
    manifest |= {"graph_sha256": hashlib.sha256(content.encode()).hexdigest(), "bytes": len(blob)}
    rows(manifest["arrays"])
    for key, row in manifest["arrays"].items():
        size = {"f32": 4, "i64": 8, "bool": 1}[row["dtype"]] * int(np.prod(row["shape"], dtype=object))
        row["hash"] = row_hash(key, row, content_hash(np.frombuffer(blob, np.uint8)[row["offset"] :][:size]))
    (folder / "weights.json").write_text(json.dumps(manifest))


def tables_of(rows: dict[str, Any]) -> list[str]:
    return [key for key in rows if key.split()[-1] in "ab"]


def shorter(rows: dict[str, Any]) -> None:
    for key in tables_of(rows):
        rows[key]["shape"] = [1, WIDTH]


def other_dtype(rows: dict[str, Any]) -> None:
    for key in tables_of(rows):
        rows[key] |= {"dtype": "i64", "shape": [ROWS, WIDTH // 2]}


def packed_weights_shorter(rows: dict[str, Any]) -> None:
    for key, row in rows.items():
        if key.startswith("packed_weight"):
            row["shape"] = [1]


def packed_weights_alone(rows: dict[str, Any]) -> None:
    packed_weights_shorter(rows)
    for name in "ab":
        rows.pop(f"weight {name}", None)


def unaligned(rows: dict[str, Any]) -> None:
    rows[tables_of(rows)[0]]["offset"] += 4


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], None], Callable[[str], str]]] = {
    "tables of one row": (shorter, str),
    "packed_weights of one element": (packed_weights_shorter, str),
    "tables of another dtype": (other_dtype, str),
    "a table that does not begin at a multiple of 64": (unaligned, str),
    "a larger table in the text": (lambda rows: None, lambda text: text.replace(f"[{ROWS},", "[50000,")),
    "packed_weights of one element, of weights that are not there": (packed_weights_alone, str),
    "no weights": (lambda rows: rows.clear(), str),
}


@pytest.mark.parametrize(("rows", "text"), TAMPERED.values(), ids=TAMPERED)
def test_rows_that_are_not_what_the_graph_needs(tmp_path: Path, rows, text) -> None:
    saved(tmp_path)
    change(tmp_path, rows, text)
    with pytest.raises(LoadError):
        result(tmp_path)


def test_swapped_rows_are_found(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "weights.json"
    manifest = json.loads(path.read_text())
    rows = manifest["arrays"]
    one, other = (next(key for key in rows if key.split()[-1] == name) for name in "ab")
    rows[one], rows[other] = rows[other], rows[one]
    path.write_text(json.dumps(manifest))
    with pytest.raises(LoadError, match="is damaged"):
        result(tmp_path)


def program_of(folder: Path, text: str) -> Path:
    """A program without weights."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder.mkdir()
    manifest = {"format": "ingot program", "version": 3, "panel": 32, "graph_sha256": digest, "bytes": 0, "arrays": {}}
    (folder / "graph.ingot").write_text(text)
    (folder / "weights.bin").write_bytes(b"")
    (folder / "weights.json").write_text(json.dumps(manifest))
    return folder


def chain(count: int, op: str) -> str:
    names = ["c", *(f"s{i}" for i in range(count))]
    lines = [f"{b} = {op.replace('_', a)}" for a, b in itertools.pairwise(names)]
    return "\n".join(
        ["input x: f32[2]", "constant c: f32[2] = [1.0, 2.0]", *lines, f"y = add(x, {names[-1]})", "output y = y"]
    )


HOSTILE = {
    "a sum of sums of sums": chain(60, "add(_, _)"),
    "a long chain": chain(20_000, "neg(_)"),
    "deep attributes": f"input x: f32[2]\ny = dims(values={'[' * 9000}{']' * 9000})\noutput y = y",
    "deep types": f"input x: {'sequence<' * 9000}f32[2]{'>' * 9000}",
    "a large polynomial": f"input x: f32[{'*'.join(['(a+b+c+d+e+f)'] * 60)}]\noutput y = x",
    "a dim of no input": "input x: f32[2]\ny = reshape(x, shape=[n])\noutput y = y",
    "an unknown input": "input x: f32[?]\noutput y = x",
    "an input that is no tensor": "input x: sequence<f32[2]>\noutput y = x",
    "more than can be had": "input x: f32[2]\ny = iota(length=9999999999, start=0, step=1, dtype=@i64)\noutput y = y",
    "a word for an int": 'input x: f32[2]\ny = softmax(x, axis="0")\noutput y = y',
    "a bool for an int": "input x: f32[2]\ny = softmax(x, axis=false)\noutput y = y",
    "a fraction for an int": "input x: f32[2]\ny = softmax(x, axis=0.0)\noutput y = y",
    "another word": 'input x: f32[2]\ny = gelu(x, approximate="none")\noutput y = y',
    "a huge int": f"input x: f32[2]\ny = trilu(x, k={10**30}, upper=true)\noutput y = y",
    "a pad below 0 of what has no sign": "input x: u32[2]\ny = pad(x, low=[1], high=[0], value=-1)\noutput y = y",
    "a largest integer that is infinite": "input x: i32[2]\ny = clip(x, minimum=0, maximum=-inf)\noutput y = y",
    "counting from too far": f"input x: f32[2]\ny = iota(length=0, start={2**31}, step=1, dtype=@i32)\noutput y = y",
    "a state of a list": "input x: sequence<f32[2]>\nstate s: f32[2] -> x\noutput y = s",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts(tmp_path: Path, text: str) -> None:
    with pytest.raises((LoadError, LimitError, ingot.ResourceError)):
        folder = program_of(tmp_path / "program", f"graph g\n{text}\n")
        ingot.InferenceSession(folder, threads=1).run(None, {"x": np.zeros(2, np.float32)})


def test_mutants_end_well_or_in_a_typed_error() -> None:
    """`make soak` runs more of them."""
    script = KIT / "saved_fuzz.py"
    environment = os.environ | {"INGOT_CHECK": "0"}
    done = subprocess.run(
        [sys.executable, "-O", str(script), "--count", "300"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


# -- what is written --------------------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where it costs nothing to wait until what is written is safe."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


# Calls of `os` and of files that change nothing which another process sees: to die there is to die at the next call.
READING = frozenset("fileno fspath fstat is_dir is_file lstat scandir stat urandom _path_normpath".split())


class DyingAt:
    """A profiler that kills its process, without a last word, at the n-th call that may change files."""

    def __init__(self, number: int):
        self.left = number

    def __call__(self, frame: object, event: str, called: object) -> None:
        modules = getattr(called, "__module__", None), type(getattr(called, "__self__", None)).__module__
        name = getattr(called, "__name__", "")
        if event == "c_call" and not {"posix", "fcntl", "_io"}.isdisjoint(modules) and name not in READING:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(session: ingot.InferenceSession, folder: Path, number: int) -> bool:
    """True when a child process was killed at the n-th call, False when it saved before."""
    child = os.fork()
    if child == 0:
        try:
            sys.setprofile(DyingAt(number))
            session.save(folder)
            sys.setprofile(None)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_later_saves(memory: Path) -> None:
    """Every save that is killed leaves the old program or the new one."""
    folder, other = memory / "program", memory / "other"
    saved(folder)
    expected = saved(other, seed=1)
    session = ingot.InferenceSession(other, threads=1)
    session.run(None, IDS)
    old, new, seen, number = content_of(folder), content_of(other), [], 1
    while save_and_die(session, folder, number):
        found = content_of(folder)
        assert found in (old, new), number
        seen.append(found == new)
        if found == new:
            for name, content in old.items():
                (folder / name).write_bytes(content)
        number += 1
    assert seen.count(False) > 20 and seen.count(True) > 2, seen
    assert len(os.listdir(memory)) <= 3  # of all that died, the last may have left something
    session.save(folder)
    assert sorted(os.listdir(memory)) == ["other", "program"] and content_of(folder) == new
    assert np.array_equal(result(folder), expected)


def kill_first_saves(memory: Path) -> None:
    """No save that is killed leaves a part of a program."""
    session = ingot.InferenceSession(table(), threads=1)
    session.run(None, IDS)
    folder, number = memory / "program", 1
    while save_and_die(session, folder, number) and not folder.exists():
        number += 1
    assert number > 20 and result(folder).shape == (ROWS, 3), number


def run_in_a_small_process(function: Callable[[Path], None], memory: Path) -> None:
    """Run a function of this file in a process without torch: a fork copies the page tables of its whole process."""
    path = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:] = {path}; from {__name__} import *; {function.__name__}(Path({str(memory)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_killed_at_any_call_the_old_program_or_the_new_one_is_whole(memory: Path) -> None:
    run_in_a_small_process(kill_later_saves, memory)


def test_first_saves_that_are_killed_leave_all_or_nothing(memory: Path) -> None:
    run_in_a_small_process(kill_first_saves, memory)


def test_leftovers_of_any_process_do_not_block(tmp_path: Path) -> None:
    left = tmp_path / f".program.{'0' * 16}.new"
    left.mkdir()
    (left / "weights.bin").write_bytes(b"half")
    (tmp_path / f".program.{os.getpid()}").write_bytes(b"of an older release")
    saved(tmp_path / "program")
    assert not left.exists() and (tmp_path / "program").exists()


def test_nobody_elses_files_are_lost(tmp_path: Path) -> None:
    session = ingot.InferenceSession(table(), threads=1)
    session.run(None, IDS)
    for name in ("notes.txt", "graph.ingot.old"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=r"contains other files, got \['graph.ingot.old', 'notes.txt'\]"):
        session.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["graph.ingot.old", "notes.txt"]
    with pytest.raises(OutputError, match="not a folder"):
        session.save(tmp_path / "notes.txt")
    with pytest.raises(OutputError, match="an empty name"):  # no word for the folder that one is in
        session.save("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    session.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700
    assert result(tmp_path / "elsewhere").shape == (ROWS, 3)
    session.save(tmp_path / ("n" * 255))
    assert result(tmp_path / ("n" * 255)).shape == (ROWS, 3)


# -- what lies in files while it is used ------------------------------------------------------------------------------


def large(folder: Path) -> tuple[ingot.InferenceSession, Path]:
    """A session whose weights lie in the file, and the file: a table of 8 MB."""
    graph = Graph("large")
    graph.add_input("ids", TensorType(i64, (symbol("N"),)))
    graph.add_weight("a", np.ones((1 << 15, 64), np.float32))
    graph.set_output("y", graph.add("gather", ["a", "ids"], axis=0).output)
    session = ingot.InferenceSession(graph, threads=1)
    session.run(None, {"ids": np.array([1])})
    session.save(folder)
    return ingot.InferenceSession(folder, threads=1), folder / "weights.bin"


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"\xff" * 4096)


DAMAGE = {
    "cut": lambda path: os.truncate(path, 100),
    "overwritten": overwrite,
    "grown": lambda p: os.truncate(p, 1 << 24),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("bound", [False, True])
def test_a_large_file_that_changes_is_an_error(tmp_path: Path, damage: Callable[[Path], None], bound: bool) -> None:
    session, path = large(tmp_path / "program")
    feeds = {"ids": np.array([1, 2])}
    if bound:
        session.run(None, feeds)
    damage(path)
    with pytest.raises(LoadError, match=f"{path}: changed after it was loaded"):
        session.run(None, feeds)


def test_a_program_that_is_replaced_or_removed_runs_on(tmp_path: Path) -> None:
    session, path = large(tmp_path / "program")
    feeds = {"ids": np.array([1, 2])}
    for _ in range(2):
        session.run(None, feeds)
        session.save(tmp_path / "program")
    path.unlink()
    assert np.array_equal(session.run(None, feeds)[0], np.ones((2, 64), np.float32))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_small_file_may_change(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    expected = saved(tmp_path)
    session = ingot.InferenceSession(tmp_path, threads=1)
    damage(tmp_path / "weights.bin")
    (got,) = session.run(None, IDS)
    assert np.array_equal(got, expected)


# -- what the system lacks --------------------------------------------------------------------------------------------

LACKING = """
import resource, sys
import numpy as np
import ingot
from ingot.errors import IngotError
folder, output, what = sys.argv[1:]
session = ingot.InferenceSession(folder, threads=1)
feeds = {"ids": np.arange(40)}
session.run(None, feeds)
try:
    match what:
        case "a limit of file sizes":
            import signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            session.save(output)
        case "descriptors to save":
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
            session.save(output)
        case "descriptors to load":
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
            ingot.InferenceSession(folder)
        case "memory to run":
            used = 4096 * int(open("/proc/self/statm").read().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), used + (1 << 24)))
            session.run(None, {"ids": np.zeros(1 << 20, np.int64)})
except IngotError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("what", "error", "fragment"),
    [
        ("a limit of file sizes", "OutputError", "weights.bin: cannot be written (File too large)"),
        ("descriptors to save", "OutputError", "program: cannot be written"),
        ("descriptors to load", "ResourceError", "graph.ingot"),
        ("memory to run", "ResourceError", "no memory"),
    ],
)
def test_what_the_system_lacks_has_a_type(tmp_path: Path, what: str, error: str, fragment: str) -> None:
    saved(tmp_path / "good")
    command = [sys.executable, "-c", LACKING, str(tmp_path / "good"), str(tmp_path / "out" / "program"), what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith(error) and fragment in done.stdout, done
    assert not (tmp_path / "out" / "program").exists()


def test_bad_feeds_are_still_input_errors(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(InputError):
        ingot.InferenceSession(tmp_path).run(None, {"ids": np.zeros(3, np.float32)})

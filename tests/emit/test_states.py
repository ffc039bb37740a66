"""Emitted C of models that keep states, and of several functions over the same weights and states."""

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.compile import Compiler, Mode
from ingot.emit.c import emit, emit_entries
from ingot.ir import text
from ingot.ir.dtype import DTYPES
from ingot.ir.graph import Graph
from ingot.lower import Target
from ingot.run.store import WeightStore
from op_cases import same_bits

Arrays = dict[str, np.ndarray]

# A step of gradient descent on the squared distance of x @ w.T to t.
TRAINED = """graph trained
input x: f32[{rows}, 24]
input t: f32[{rows}, 40]
weight rate: f32[]
{kind}
d = cast(w, dtype=@f32): f32[40, 24]
y = matmul(x, d, transpose_a=false, transpose_b=true, scale=1.0): f32[{rows}, 40]
e = sub(y, t): f32[{rows}, 40]
g = matmul(e, x, transpose_a=true, transpose_b=false, scale=1.0): f32[40, 24]
c = mul(g, rate): f32[40, 24]
u = sub(d, c): f32[40, 24]
next = cast(u, dtype=@bf16): bf16[40, 24]
output y = y
output next = next
"""
RATE = {"rate": np.array(0.02, np.float32)}


def trained(rows: int | str) -> Graph:
    return text.parse(TRAINED.format(rows=rows, kind="state w: bf16[40, 24] -> next"), RATE)


def expected(held: np.ndarray, feeds: Arrays) -> Arrays:
    """What native makes of inputs where the state is a weight."""
    source = TRAINED.format(rows=len(feeds["x"]), kind="weight w: bf16[40, 24]")
    session = ingot.InferenceSession(text.parse(source, RATE | {"w": held}), threads=1, strict=True)
    return dict(zip(("y", "next"), session.run(None, feeds), strict=True))


def fed(rows: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((rows, n)).astype(np.float32) for name, n in (("x", 24), ("t", 40))}


def aligned(nbytes: int) -> np.ndarray:
    room = np.full(nbytes + 64, 0xFF, np.uint8)  # NaN, where it is read before it is written
    begin = -room.ctypes.data % 64
    return room[begin : begin + nbytes]


class Library:
    """An emitted model as a shared library, and memory that it runs in."""

    def __init__(self, folder: Path):
        files = [path.name for path in folder.glob("model*.c")]
        words = ["cc", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC", "-pthread", *files]
        subprocess.run([*words, "-lm", "-o", "model.so"], cwd=folder, check=True)
        self._c = ctypes.CDLL(str(folder / "model.so"))
        self._c.model_init.restype = ctypes.c_void_p
        self._layout = json.loads((folder / "layout.json").read_text())
        self._weights = aligned(self._c.model_weights_bytes())
        self._weights[:] = np.fromfile(folder / "weights.bin", np.uint8)
        self._memory = aligned(self._c.model_state_bytes())
        self.reset(1)

    def reset(self, threads: int) -> None:
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (self._memory, self._weights))
        self._state = ctypes.c_void_p(self._c.model_init(*pointers, threads))

    def run(self, entry: str, feeds: Arrays) -> Arrays:
        layout = self._layout if entry == "run" else self._layout[entry]
        rows = {(row["kind"], row["name"]): row for row in layout["tensors"]}
        outputs = {name: rows["output", name] for name in layout["outputs"].values()}
        made = {name: np.empty(row["shape"], DTYPES[row["dtype"]].numpy) for name, row in outputs.items()}
        inputs = [feeds[name] for name in layout["inputs"].values()]
        structs = [(ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in (inputs, list(made.values()))]
        assert getattr(self._c, f"model_{entry}")(self._state, *structs) == 0
        return made


def test_a_run_finds_what_the_one_before_it_left(tmp_path: Path) -> None:
    emit(trained(4), WeightStore(), tmp_path)
    library = Library(tmp_path)
    for _ in range(2):  # init begins anew
        library.reset(1)
        held = np.zeros((40, 24), DTYPES["bf16"].numpy)
        for run in range(3):
            feeds = fed(4, run)
            got, wanted = library.run("run", feeds), expected(held, feeds)
            assert all(same_bits(got[name], wanted[name]) for name in wanted)
            held = wanted["next"]


def test_a_state_begins_with_its_data(tmp_path: Path) -> None:
    source = """graph counter
input x: f32[3]
state total: f32[3] = given -> next
state count: i64[] = given -> more
weight bias: f32[3]
one = add(total, x): f32[3]
next = add(one, bias): f32[3]
more = add(count, count): i64[]
output y = next
output n = more
"""
    x, bias = np.array([1, 2, 3], np.float32), np.array([0.5, 0.25, 0], np.float32)
    total = np.array([3, -0.0, 5], np.float32)
    emit(text.parse(source, {"total": total, "count": np.array(3), "bias": bias}), WeightStore(), tmp_path)
    library = Library(tmp_path)
    for _ in range(2):
        library.reset(1)
        for run in range(1, 3):
            got = library.run("run", {"x": x})
            assert got["n"] == 3 * 2**run and same_bits(got["y"], total + run * (x + bias))


@pytest.mark.parametrize("threads", [1, 3])
def test_functions_share_weights_and_states(tmp_path: Path, threads: int) -> None:
    target = Target("scalar", threads=threads, task_nanoseconds=100, run_nanoseconds=0)
    compiler = Compiler(trained("rows"), target)
    entries = {name: compiler.compile(Mode(name, {"rows": rows})) for name, rows in (("prefill", 5), ("decode", 1))}
    paths = emit_entries(entries, WeightStore(), tmp_path)
    assert {Path(path).name for path in paths} >= {"model.c", "model.h", "weights.bin", "layout.json"}
    library = Library(tmp_path)
    library.reset(threads)
    held = np.zeros((40, 24), DTYPES["bf16"].numpy)
    for run, (entry, rows) in enumerate([("prefill", 5), ("decode", 1), ("decode", 1), ("prefill", 5)]):
        feeds = fed(rows, run)
        got, wanted = library.run(entry, feeds), expected(held, feeds)
        assert all(same_bits(got[name], wanted[name]) for name in wanted)
        held = wanted["next"]
    header = (tmp_path / "model.h").read_text()
    assert f"#define MODEL_THREADS {threads} " in header
    assert "int model_decode(model_state *state, const model_decode_inputs *inputs, const model_decode" in header

"""A session, or the C that it was emitted as, in a process of its own: `python -m benchmarks.emitted_worker
native|emitted FOLDER THREADS PRECISION`. Requests and answers are those of `benchmarks.worker`.

The session is built first: it leaves inputs, outputs and C in the folder. What it times is a run on bound arrays; of C,
a call of the model's function through ctypes.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import serve

COMPILED = ("cc", "-O2", "-fPIC", "-shared")


def aligned(nbytes: int) -> np.ndarray:
    """Bytes of memory that begin where a model wants them."""
    room = np.zeros(nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    return room[begin : begin + nbytes]


def library(folder: Path) -> ctypes.CDLL:
    """The model of a folder, compiled. Raises CalledProcessError."""
    files = sorted(path.name for path in folder.glob("model*.c"))
    subprocess.run([*COMPILED, *files, "-lm", "-pthread", "-o", "libmodel.so"], cwd=folder, check=True)
    found = ctypes.CDLL(str(folder / "libmodel.so"))
    found.model_init.restype = ctypes.c_void_p
    found.model_weights_bytes.restype = found.model_state_bytes.restype = ctypes.c_size_t
    return found


def begun(model: ctypes.CDLL, folder: Path, threads: int) -> tuple[ctypes.c_void_p, list[np.ndarray]]:
    """A state of a model, and what it points to."""
    weights, memory = aligned(model.model_weights_bytes()), aligned(model.model_state_bytes())
    with open(folder / "weights.bin", "rb") as file:
        file.readinto(weights.data)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (memory, weights))
    return ctypes.c_void_p(model.model_init(*pointers, threads)), [weights, memory]


def native(name: str, folder: Path, threads: int, precision: str) -> Callable[[], object]:
    """A run of the session on bound arrays."""
    from benchmarks.engines import session_of
    from benchmarks.workloads import find
    from ingot.emit.c import emit

    session, feeds = session_of(find(name), folder, threads, precision)
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    np.savez(folder / "arrays.npz", **{f"input {n}": x for n, x in feeds.items()}, **outputs)
    emit(session.graph, session.weights, folder / "c", precision=session.precision, threads=threads)
    binding = session.io_binding()
    for each, array in feeds.items():
        binding.bind_input(each, np.ascontiguousarray(array))
    for each in outputs:
        binding.bind_output(each)
    return binding.run


def emitted(folder: Path, threads: int) -> tuple[Callable[[], object], bool]:
    """A call of the model's function, and whether it gives the session's bits."""
    layout, arrays = json.loads((folder / "c" / "layout.json").read_text()), np.load(folder / "arrays.npz")
    inputs = [np.ascontiguousarray(arrays[f"input {name}"]) for name in layout["inputs"].values()]
    expected = [arrays[name] for name in layout["outputs"].values()]
    outputs = [np.zeros_like(array) for array in expected]
    model = library(folder / "c")
    state, held = begun(model, folder / "c", threads)
    rows = [(ctypes.c_void_p * len(each))(*(array.ctypes.data for array in each)) for each in (inputs, outputs)]

    def call() -> None:
        if model.model_run(state, *rows):
            sys.exit("the model's function does not return 0")

    call()
    same = all(got.tobytes() == wanted.tobytes() for got, wanted in zip(outputs, expected, strict=True))
    call.held = (inputs, outputs, held)  # type: ignore[attr-defined]
    return call, same


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """What is timed, and whether the bits are those of the session."""
    if engine == "native":
        return native(name, folder, threads, precision), {"same": True}
    call, same = emitted(folder, threads)
    return call, {"same": same}


if __name__ == "__main__":
    serve(build)

"""A session, or the C that it was emitted as, in a process of its own: engines `native` and `emitted`.

It follows the protocol of `benchmarks.harness.serve`.

The session is built first: it leaves inputs, outputs and C in the folder. What it times is a run on bound arrays; of C,
a call of the model's function through ctypes.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.emitted.library import begun, library
from benchmarks.harness.serve import serve


def native(name: str, folder: Path, threads: int, precision: str) -> Callable[[], object]:
    """A run of the session on bound arrays."""
    from benchmarks.models.engines import session_of
    from benchmarks.models.networks import find
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
    state, buffers = begun(model, folder / "c", threads)
    rows = [(ctypes.c_void_p * len(each))(*(array.ctypes.data for array in each)) for each in (inputs, outputs)]

    def call() -> None:
        if model.model_run(state, *rows):
            sys.exit("the model's function does not return 0")

    call()
    same = all(got.tobytes() == wanted.tobytes() for got, wanted in zip(outputs, expected, strict=True))
    call.keeps_alive = (inputs, outputs, buffers)  # type: ignore[attr-defined]
    return call, same


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """What is timed, and whether the bits are those of the session."""
    if engine == "native":
        return native(name, folder, threads, precision), {"same": True}
    call, same = emitted(folder, threads)
    return call, {"same": same}


if __name__ == "__main__":
    serve(build)

"""A side that runs the emitted C: built by the machine's C compiler in a temporary folder, and loaded."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ingot.compile import Compiled
from ingot.emit.c import emit_entries, refusals
from ingot.errors import InputError, ResourceError, UnsupportedError
from ingot.inspect.comparison.sides import Arrays, Maker, Watch, completed_values, makers_of, rounding_of
from ingot.lower.view import View
from ingot.run.arena import memory_view
from ingot.run.store import WeightStore, allocate

_ARENA = """\
#include "{prefix}.c"
#include <stddef.h>
size_t arena_offset(void) {{ return {offset}; }}
"""
_PREFIX = "model"


class Emitted:
    """The emitted C of a model without states.

    A watched run is one of C that is emitted from a plan without reuse of memory, in which every value remains until
    the end of the run; the kernels and their order are the same.
    """

    can_replace, is_foreign = False, False
    title = "emit-c"

    def __init__(self, compiled: Compiled, unshared: Compiled, feeds: Arrays):
        """compiled: for the target of emission; unshared: the same without reuse of memory and in-place results.

        The compiler is CC with CFLAGS, by default `cc -O1`. Raises UnsupportedError for a model that cannot be emitted
        or has states, ResourceError without a C compiler, InputError if the C does not compile.
        """
        for each in (compiled, unshared):
            if reasons := refusals(each):
                raise UnsupportedError(reasons[0])
        if compiled.graph.states:
            raise UnsupportedError("compare: emitted C of a model with states, got some, expected none")
        self.graph = compiled.graph
        self.rounding = rounding_of(compiled)
        (segment,) = unshared.segments
        completed = completed_values(segment)
        self.makers: dict[str, Maker] = {
            name: maker for name, maker in makers_of(segment, completed) if name in self.graph.values
        }
        self._plain, self._unshared = _Built(compiled, feeds), _Built(unshared, feeds)
        self._views = {name: segment.lowered.views[name] for name in self.makers}

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        return self._plain.run()

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""
        outputs = self._unshared.run()
        for name, view in self._views.items():
            watch({name: self._unshared.memory(view)})
        return outputs


class _Built:
    """One emission, compiled and loaded, with the memory of its runs."""

    def __init__(self, compiled: Compiled, feeds: Arrays):
        self._lowered, self._plan = compiled.native
        with tempfile.TemporaryDirectory(prefix="ingot-compare-") as folder:
            emit_entries({"run": compiled}, WeightStore(1), folder, prefix=_PREFIX)
            self._library = _load(Path(folder), has_arena=bool(self._plan.arena_bytes))
            layout = json.loads(next(Path(folder).glob("*layout.json")).read_text())
            stored = np.fromfile(next(Path(folder).glob("*weights.bin")), np.uint8)
        self._weights = _aligned(stored)
        self._state = _aligned(np.zeros(self._function("state_bytes", ctypes.c_size_t)(), np.uint8))
        self._run = self._function("run", ctypes.c_int)
        init = self._function("init", ctypes.c_void_p)
        self._handle = ctypes.c_void_p(init(_pointer(self._state), _pointer(self._weights), 1))
        offset = self._library.arena_offset
        offset.restype = ctypes.c_size_t
        self._arena = self._state[offset() :]
        tensors = self._lowered.tensors
        self._arrays = {
            tensors[view.tensor].name: np.ascontiguousarray(feeds[name]) for name, view in self._lowered.inputs.items()
        }
        self._outputs = {
            tensors[view.tensor].name: np.zeros(view.shape, view.dtype.numpy) for view in self._lowered.outputs.values()
        }
        self._inputs = _pointers([self._arrays[name] for name in layout["inputs"].values()])
        self._results = _pointers([self._outputs[name] for name in layout["outputs"].values()])

    def _function(self, name: str, result: Any) -> Any:
        found = getattr(self._library, f"{_PREFIX}_{name}")
        found.restype = result
        return found

    def run(self) -> dict[str, Any]:
        """Run once. Raises InputError for an index outside of a table."""
        if code := self._run(self._handle, self._inputs, self._results):
            raise InputError(f"compare: the emitted C refused the inputs, got code {code}, expected 0")
        tensors = self._lowered.tensors
        return {name: self._outputs[tensors[v.tensor].name].copy() for name, v in self._lowered.outputs.items()}

    def memory(self, view: View) -> np.ndarray:
        """Return the memory of a view after a run."""
        tensor, address = self._lowered.tensors[view.tensor], self._plan.addresses[view.tensor]
        if address.region.startswith(("input:", "output:")):
            array = {**self._arrays, **self._outputs}[tensor.name]
            return memory_view(array.reshape(-1).view(np.uint8), 0, view)
        return memory_view(self._arena, address.offset, view)


def _load(folder: Path, *, has_arena: bool) -> ctypes.CDLL:
    """Compile the emitted C to a library, and load it."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise ResourceError("compare: no C compiler, got none, expected cc, or its name in CC")
    offset = f"offsetof(struct {_PREFIX}_state, arena)" if has_arena else "0"
    (folder / "arena.c").write_text(_ARENA.format(prefix=_PREFIX, offset=offset))
    library = folder / "libmodel.so"
    flags = shlex.split(os.environ.get("CFLAGS", "-O1"))
    words = [*compiler, "-std=gnu11", *flags, "-fPIC", "-shared", "-o", str(library), "arena.c", "-lm"]
    built = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if built.returncode:
        raise InputError(f"compare: the emitted C does not compile, got {built.stderr.strip()[:500]}")
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise ResourceError(f"compare: the emitted C is not of this machine, got CFLAGS {flags}: {error}") from error


def _aligned(array: np.ndarray) -> np.ndarray:
    found = allocate(max(64, array.nbytes))
    found[: array.nbytes] = array
    return found


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _pointers(arrays: list[np.ndarray]) -> Any:
    """Return a struct of pointers."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))

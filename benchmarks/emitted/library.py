"""Emitted C as a library of this process."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np

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

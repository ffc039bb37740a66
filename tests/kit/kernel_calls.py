"""Calling one kernel in every way, on each instruction set and cut into each number of parts, its output guarded."""

import ctypes
import itertools
import mmap
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ingot.lower.view import contiguous_strides
from ingot.ops.blocks import BLOCKS
from ingot.run.library import load
from ingot.support import abi

GUARD = 64  # elements before each output that no kernel may touch; behind it nothing can be
PARTS = (1, 2, 3, 7)
LIBRARY = load()
ISAS = LIBRARY.isas()
# avx512's dot products exist on some CPUs only; the other sets follow them one float at a time.
DOT_ISAS = ISAS if LIBRARY.has_bf16_dots else ISAS[:2]
SPLIT_ISAS = ISAS if LIBRARY.has_bf16_tiles else ISAS[:2]
GUARD_BYTE = 0xA5
# What avx512 does by AMX where this CPU has it and the system allows it, as one set more.
AMX = "avx512 with AMX"
HAS_AMX = "avx512" in ISAS and LIBRARY.use_amx(True) == "used"
AMX_KERNELS = re.compile(rf"(gemm|expert_matmul)_(i24_)?(int\d|{'|'.join(BLOCKS)}).*|integer_(packed|matmul)")
LIBRARY.use_amx(LIBRARY.amx == "used")


def ways(isas: Sequence[str] = ISAS) -> Iterator[tuple[str, int]]:
    """(instruction set, number of parts), for a call that gives the same bits in each."""
    return itertools.product(isas, PARTS)


def at_page_end(array: Any, row_pad: int = 0) -> np.ndarray:
    """A copy that ends where an unreadable page begins, rows `row_pad` NaN apart: reading past it kills the test."""
    array = np.asarray(array)
    if row_pad and array.size:
        rows = array.reshape(-1, array.shape[-1])
        padded = np.full((len(rows), rows.shape[1] + row_pad), np.nan, array.dtype)
        padded[:, : rows.shape[1]] = rows
        flat = padded.reshape(-1)[: padded.size - row_pad]
    else:
        flat = array.reshape(-1)
    page = mmap.PAGESIZE
    size = -(-max(flat.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address + size), page, 0) == 0
    placed = np.frombuffer(memory, np.uint8)[size - flat.nbytes : size].view(array.dtype)
    placed[:] = flat
    if not (row_pad and array.size):
        return placed.reshape(array.shape)
    pitch = (array.shape[-1] + row_pad) * array.itemsize
    strides = [pitch]
    for dim in array.shape[-2:0:-1]:
        strides.insert(0, strides[0] * dim)
    return np.lib.stride_tricks.as_strided(placed, array.shape, (*strides, array.itemsize))


class Output:
    """An output of NaN at the end of a page, behind a guard zone; strides count elements and may leave holes."""

    def __init__(self, dtype: Any, shape: Sequence[int], strides: Sequence[int]):
        dtype = np.dtype(np.uint8 if dtype is np.bool_ else dtype)
        size = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) if np.prod(shape) else 0
        self.bytes = at_page_end(np.full((GUARD + size) * dtype.itemsize, GUARD_BYTE, np.uint8))
        flat = self.bytes.view(dtype)[GUARD:]
        self.array = np.lib.stride_tricks.as_strided(flat, shape, [s * dtype.itemsize for s in strides])
        self.array[...] = np.nan if dtype.kind == "f" else 0x5A

    def untouched(self) -> bool:
        """Whether everything but the array's own elements still holds the guard byte."""
        copy = self.bytes.copy()
        own = np.lib.stride_tricks.as_strided(copy.view(self.array.dtype)[GUARD:], self.array.shape, self.array.strides)
        own[...] = np.frombuffer(bytes([GUARD_BYTE]) * self.array.itemsize, self.array.dtype)[0]
        return bool((copy == GUARD_BYTE).all())


def blank(shape: Sequence[int], row_pad: int = 0) -> np.ndarray:
    return at_page_end(np.full(shape, np.nan, np.float32), row_pad)


def element_strides(array: np.ndarray) -> list[int]:
    return [s // array.itemsize for s in array.strides]


def run(kernel: str, isa: str, parts: int, fields: dict[str, Any], iterations: int = 1) -> None:
    """Runs the parts of a kernel, in each iteration the last first; on avx512 by AMX only if `isa` has it. Two parts
    are done in three chunks, where the kernel can. fields: its arguments; arrays stand for their addresses.
    """
    row, ffi = LIBRARY.kernels[kernel], LIBRARY.ffi
    values = {
        name: ffi.cast("void *", value.ctypes.data) if isinstance(value, np.ndarray) else value
        for name, value in fields.items()
    }
    if parts == 2 and any(field.name == "chunks" for field in abi.structs()[row.args_type]):
        values["chunks"] = iterations = 3
    args = ffi.new(row.args_type + " *", values)
    LIBRARY.use_amx(isa == AMX)
    for turn in range(iterations):
        for part in reversed(range(parts)):
            row.functions["avx512" if isa == AMX else isa](args, turn * parts + part, parts)
    LIBRARY.use_amx(LIBRARY.amx == "used")


def every(
    kernel: str,
    fields: dict[str, Any],
    out: str,
    shape: Sequence[int],
    row_pad: int = 0,
    scratch: int = 0,
    isas: Sequence[str] = ISAS,
    dtype: Any = np.float32,
    strides: Sequence[int] | None = None,
) -> np.ndarray:
    """Calls a kernel in every way; returns the one result that all give, bit for bit.

    out: the field of its output. row_pad: elements between the output's rows, where it has no strides of its own.
    scratch: floats for each part.
    """
    if isas is ISAS and HAS_AMX and AMX_KERNELS.fullmatch(kernel):
        isas = (*isas, AMX)
    functions = LIBRARY.kernels[kernel].functions
    isas = [isa for isa in isas if isa != "avx2vnni" or functions[isa] != functions["avx2"]]
    if strides is None:
        strides = contiguous_strides((*shape[:-1], shape[-1] + row_pad) if shape else ())
    results = []
    for isa, parts in ways(isas):
        output = Output(dtype, shape, strides)
        extra: dict[str, Any] = {out: output.array}
        if scratch:
            extra |= {"scratch": at_page_end(np.full(parts * scratch, np.nan, np.float32)), "scratch_stride": scratch}
        run(kernel, isa, parts, fields | extra)
        assert output.untouched(), f"{kernel} on {isa} in {parts} parts wrote outside its output"
        results.append(output.array.copy())
        differs = f"{kernel}: {isa} in {parts} parts differs"
        np.testing.assert_array_equal(bits(results[-1]), bits(results[0]), err_msg=differs)
    return results[0]


def bits(array: np.ndarray) -> np.ndarray:
    """The bytes of each element, all NaN made equal: their payloads are no promise."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.view(f"u{array.itemsize}")


def close(result: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Relative to max(1, |expected|); infinities and NaN must match."""
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite].astype(result.dtype))
    error = np.abs(result[finite].astype(np.float64) - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    assert error.max(initial=0) <= tolerance, f"error {error.max()}, tolerance {tolerance}"


def floats(seed: int, shape: Sequence[int], low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)

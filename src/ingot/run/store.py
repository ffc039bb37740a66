"""Where the bytes of weights are packed, mapped and shared: one array for each packed weight, by key."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import u8
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.weight_expr import WeightExpr
from ingot.run.library import content_hash
from ingot.run.packing import COPY_BYTES, Packing, Scales, pack_panels, quantized
from ingot.run.slices import Slices, indices, is_divisible, pieces_of
from ingot.support.files import mapped_files, release
from ingot.support.locks import OwnedLock

_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_SERIAL_BYTES = 1 << 20  # below this, threads do not pay off
_SMALL_BYTES = 64 << 10  # Linux maps this much around a read of a file, or 2 MiB of contiguous pages

# Bytes of the result, and the work.
_Job = tuple[int, Callable[[], None]]


class WeightStore:
    """Materialised packed weights by key, each 64-byte aligned; never two copies.

    An array lives as long as a program that was prepared with it: weights that only an evicted binding read are freed
    with the binding. Panels that are packed together are in one block of pages, which is freed with the last of them.

    A raw packed weight of a mapped parameter that is row-major, or of a row-major part of one, is used in the file's
    mapping, unless it is so small that the file pages mapped around it exceed its size. Every other weight is packed
    directly from the mapped file, over `threads` threads, and the pages read are released at once, so that source and
    copy are never in memory together. If the file has a matrix in its packable form, packing needs no interpreter lock:
    other threads may compile at the same time.
    """

    def __init__(self, threads: int = 1):
        self.threads = threads
        self._arrays: weakref.WeakValueDictionary[str, np.ndarray] = weakref.WeakValueDictionary()
        self._saved: dict[str, np.ndarray] = {}
        self.elsewhere: weakref.WeakSet[Any] = weakref.WeakSet()  # copies on devices, each with its bytes
        self._lock = OwnedLock("weights")  # contexts of one session compile at the same time

    def array(self, packed_weight: PackedWeight) -> np.ndarray:
        """Return the bytes of a packed weight as a flat array; packed unless a program has it."""
        return self.prepare([packed_weight])[packed_weight.key]

    def hash(self, array: np.ndarray) -> int:
        """Return a hash that detects damage in an array's bytes, for storing it in a file."""
        return int(content_hash(array), 16)

    def prepare(self, packed_weights: Iterable[PackedWeight]) -> dict[str, np.ndarray]:
        """Return the flat arrays of packed weights by key; pack those that no program has yet.

        The caller keeps them alive.

        Raises LoadError for given bytes of another size or dtype than their packed weight.
        """
        with self._lock.once():
            wanted = {packed_weight.key: packed_weight for packed_weight in packed_weights}
            arrays_by_key = {key: array for key in wanted if (array := self._arrays.get(key)) is not None}
            for key in arrays_by_key:
                if key in self._saved:
                    _expect_fit(wanted[key], arrays_by_key[key])
            missing = [packed_weight for key, packed_weight in wanted.items() if key not in arrays_by_key]
            if not missing:
                return arrays_by_key
            data = (source.data for packed_weight in missing for source in packed_weight.sources())
            sources = mapped_files(array for array in data if array is not None)
            for file in sources:
                file.expect_unchanged()
            panels = [packed_weight for packed_weight in missing if packed_weight.layout != "raw"]
            sizes = [-(-packed_weight.nbytes // _ALIGNMENT) * _ALIGNMENT for packed_weight in panels]
            whole, offset = allocate(sum(sizes)), 0
            jobs: list[_Job] = []
            packing = Packing()
            for packed_weight, size in zip(panels, sizes, strict=True):
                packed = whole[offset : offset + packed_weight.nbytes]
                arrays_by_key[packed_weight.key] = packed.view(packed_weight.dtype.numpy)
                jobs += _pack_jobs(packed_weight, packed, packing) if packed.size else []
                offset += size
            for packed_weight in missing:
                if packed_weight.layout == "raw":
                    jobs.append((packed_weight.nbytes, partial(_make_raw, packed_weight, arrays_by_key)))
            jobs += packing.jobs(self.threads)
            self._do(jobs)
            for file in sources:
                file.expect_unchanged()
            self._arrays.update(arrays_by_key)
        return arrays_by_key

    def put(self, key: str, array: np.ndarray) -> None:
        """Add a packed weight's bytes from a saved program; they are mapped and stay forever."""
        self._saved[key] = array
        self._arrays[key] = array

    def items(self) -> list[tuple[str, np.ndarray]]:
        """Return every live (key, flat array)."""
        with self._lock.once():
            return list(self._arrays.items())

    @property
    def nbytes(self) -> int:
        """Bytes of all live packed weights, here and on devices; bytes that several share count once."""
        spans = sorted(np.lib.array_utils.byte_bounds(array) for _, array in self.items() if array.size)
        total = end = 0
        for low, high in spans:
            total += max(high, end) - max(low, end)
            end = max(high, end)
        return total + sum(each.nbytes for each in list(self.elsewhere))

    def _do(self, jobs: list[_Job]) -> None:
        """Run the jobs, largest first; on the threads if there is enough work."""
        jobs.sort(key=lambda job: -job[0])
        if self.threads == 1 or sum(nbytes for nbytes, _ in jobs) < _SERIAL_BYTES:
            for _, work in jobs:
                work()
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.threads) as executor:
            for future in [executor.submit(work) for _, work in jobs]:
                future.result()


# The values, scales and zero points of a matrix or of half of one, each with its first column in a larger matrix.
_Arrays = tuple[tuple[WeightExpr, int], ...]


def _pack_jobs(packed_weight: PackedWeight, packed: np.ndarray, packing: Packing) -> Iterator[_Job]:
    """Yield jobs that pack a matrix, by ranges of columns that can be evaluated without the others.

    packing: gets the matrices that need no evaluation.
    """
    if len(packed_weight.shape) > 2:
        yield packed.nbytes, partial(_pack_several, packed_weight, packed)
        return
    format, axis = packed_weight.panels, packed_weight.axis
    k = packed_weight.shape[1 - axis]
    column_bytes, begin = format.column_bytes(k), 0
    for matrices, width in _matrices(packed_weight):
        whole = packed[begin * column_bytes :]
        begin += width * len(matrices)
        if (arrays := _in_memory(matrices, width, axis)) is not None:
            scales = Scales(arrays[1:], packed_weight.group) if packed_weight.qparams else None
            packing.add(format, arrays[0], whole, packed_weight.transposed, scales)
            continue
        # 4-bit values are unpacked to bytes before packing, so the number of elements counts.
        panels = max(1, COPY_BYTES // (max(column_bytes, k) * format.panel))
        is_whole = not all(is_divisible(part, axis) for parts in matrices for part, _ in parts)
        step = width if is_whole else panels * format.panel // len(matrices)
        for column in range(0, width, step):
            count = min(step, width - column)
            nbytes = count * column_bytes * len(matrices)
            here = whole[column * column_bytes * len(matrices) :]
            yield nbytes, partial(_pack_columns, packed_weight, matrices, column, column + count, here)


def _matrices(packed_weight: PackedWeight) -> Iterator[tuple[list[_Arrays], int]]:
    """Yield the matrices whose panels follow each other, each with its columns: one matrix, or the halves of a gated.

    They are the operands of a concat of columns if each but the last fills its panels.
    """
    axis, parts = packed_weight.axis, packed_weight.parts
    if packed_weight.layout == "gate_panels":
        yield list(zip(*(_halves(part, axis) for part in parts), strict=True)), packed_weight.shape[axis] // 2
        return
    panel = packed_weight.panels.panel
    for several in zip(*(_side_by_side(part, axis, panel) for part in parts), strict=True):
        yield [tuple((part, 0) for part in several)], several[0].dims[axis]


def _side_by_side(value: WeightExpr, axis: int, panel: int) -> list[WeightExpr]:
    """Return the operands of a concat of columns if each but the last fills panels of this width; else [value]."""
    if value.node is None or value.op != "concat" or value.node.axis != axis:
        return [value]
    is_whole = all(operand.dims[axis] % panel == 0 for operand in value.inputs[:-1])
    return [each for o in value.inputs for each in _side_by_side(o, axis, panel)] if is_whole else [value]


def _halves(value: WeightExpr, axis: int) -> list[tuple[WeightExpr, int]]:
    """Return the matrix of each half of the columns, and the half's first column in that matrix."""
    half = value.dims[axis] // 2
    is_pair = value.node is not None and value.op == "concat" and value.node.axis == axis
    if is_pair and [operand.dims[axis] for operand in value.inputs] == [half, half]:
        return [(operand, 0) for operand in value.inputs]
    return [(value, 0), (value, half)]


def _in_memory(matrices: Sequence[_Arrays], count: int, axis: int) -> list[list[np.ndarray]] | None:
    """Return `count` columns of the values, scales and zero points of each matrix, if all are in memory.

    4-bit values may be two in a byte. None if any of them must be evaluated.
    """
    found: list[list[np.ndarray]] = []
    for slot, parts in enumerate(zip(*matrices, strict=True)):
        sources = [part.source if slot == 0 and axis == 0 and _is_of_pairs(part) else part for part, _ in parts]
        if any(source.node is not None for source in sources):
            return None
        ranges = (indices(start, start + count, axis) for _, start in parts)
        found.append([source.evaluate()[each] for source, each in zip(sources, ranges, strict=True)])
    return found


def _is_of_pairs(values: WeightExpr) -> bool:
    """Return whether 4-bit values are unpacked from bytes along rows."""
    node = values.node
    if node is None or values.op != "unpack":
        return False
    return node.axis == 1 and node.dtype.bits == 4 and values.source.type.dtype is u8


def _pack_columns(
    packed_weight: PackedWeight, matrices: Sequence[_Arrays], begin: int, end: int, packed: np.ndarray
) -> None:
    """Pack a range of columns of each matrix; evaluates only these columns, where possible."""
    axis, slices = packed_weight.axis, Slices()
    arrays: list[Sequence[np.ndarray]] = []
    for parts in matrices:
        (values, start), *_ = parts
        if axis == 0 and values.op == "quantize_groups":
            arrays.append(quantized(values, start + begin, start + end, slices))
        else:
            arrays.append([slices.take(part, start + begin, start + end, axis) for part, start in parts])
    values_of_each, *qparams = zip(*arrays, strict=True)
    scales = Scales(qparams, packed_weight.group) if qparams else None
    pack_panels(packed_weight.panels, values_of_each, packed, packed_weight.transposed, scales)
    slices.release()


def _pack_several(packed_weight: PackedWeight, packed: np.ndarray) -> None:
    """Pack matrices one after another, each evaluated only while it is packed."""
    panels = iter(packed.reshape(math.prod(packed_weight.shape[:-2]), -1))
    for piece in pieces_of(packed_weight.value):
        for matrix in piece.reshape(math.prod(piece.shape[:-2]), *piece.shape[-2:]):
            pack_panels(packed_weight.panels, [matrix], next(panels), packed_weight.transposed)
        release(piece)


def _make_raw(packed_weight: PackedWeight, arrays_by_key: dict[str, np.ndarray]) -> None:
    """Add the bytes of a raw value: the array itself if it is row-major, aligned and not small, else a copy."""
    value = packed_weight.value
    if value.node is not None and len(packed_weight.shape) == 2 and packed_weight.nbytes and is_divisible(value, 0):
        data = allocate(packed_weight.nbytes).view(packed_weight.dtype.numpy).reshape(packed_weight.shape)
        step = max(1, COPY_BYTES * len(data) // packed_weight.nbytes)
        # The source and the result of a cast table are never both materialised completely.
        for row in range(0, len(data), step):
            slices, stop = Slices(), min(row + step, len(data))
            data[row:stop] = slices.take(value, row, stop, 0)
            slices.release()
        arrays_by_key[packed_weight.key] = data.reshape(-1)
        return
    data = value.evaluate()
    is_small = data.nbytes <= _SMALL_BYTES and bool(mapped_files([data]))
    if is_small or not (data.flags.c_contiguous and data.flags.aligned):
        source, data = data, allocate(packed_weight.nbytes).view(data.dtype).reshape(data.shape)
        _copy(source, data)
    arrays_by_key[packed_weight.key] = data.reshape(-1)


def _expect_fit(packed_weight: PackedWeight, given: np.ndarray) -> None:
    if given.dtype != packed_weight.dtype.numpy or given.nbytes != packed_weight.nbytes:
        raise LoadError(
            f"packed weight {packed_weight.key!r}: its bytes do not fit, got {given.nbytes} of {given.dtype},"
            f" expected {packed_weight.nbytes} of {packed_weight.dtype}"
        )


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy in ranges of rows and release each: source and target are never both in memory completely."""
    source, target = np.atleast_1d(source), np.atleast_1d(target)
    rows = max(1, COPY_BYTES * len(source) // max(source.nbytes, 1))
    for row in range(0, len(source), rows):
        np.copyto(target[row : row + rows], source[row : row + rows])
        release(source[row : row + rows])


def allocate(nbytes: int) -> np.ndarray:
    """Return zeroed bytes at 64-byte alignment or better; large ones are anonymous huge pages."""
    if nbytes < _HUGE_PAGE:
        block = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        return block[start : start + nbytes]
    # Private: shared anonymous memory gets no huge pages, and a child process would write into it.
    pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(pages, np.uint8)
    start = -block.ctypes.data % _HUGE_PAGE
    return block[start : start + nbytes]

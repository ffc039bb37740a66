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
from ingot.lower.formats import Format
from ingot.lower.packed_weight import PackedWeight, WeightExpr
from ingot.run.library import content_hash
from ingot.run.packing import COPY_BYTES, Packing, Scales, pack_panels, quantized
from ingot.support.files import mapped_files, release
from ingot.support.locks import OwnedLock

_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_LARGE_BYTES = 16 << 20  # of a matrix that several threads pack together
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
                jobs += self._pack_jobs(packed_weight, packed, packing) if packed.size else []
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

    def _pack_jobs(self, packed_weight: PackedWeight, packed: np.ndarray, packing: Packing) -> Iterator[_Job]:
        """Yield jobs that pack a matrix: complete panels of its column matrices, and ranges of columns of a large one.

        packing: gets the matrices that need no evaluation.
        """
        if packed_weight.beside:
            yield from self._quantize_jobs(packed_weight, packed, packing)
            return
        if packed_weight.layout == "gate_panels":
            yield from self._gate_jobs(packed_weight, packed, packing)
            return
        if len(packed_weight.shape) > 2:
            yield packed.nbytes, partial(_pack_several, packed_weight, packed)
            return
        format = packed_weight.panels
        axis, start = 0 if packed_weight.transposed else 1, 0
        k = packed_weight.shape[1 - axis]
        for value in packed_weight.value.side_by_side(axis, format.panel):
            n = value.dims[axis]
            if value.node is None:
                packing.add(format, [value.evaluate()], packed[start * format.column_bytes(k) :], axis == 0)
                start += n
                continue
            is_large = value.is_divisible and n * format.column_bytes(k) > _LARGE_BYTES
            step = _round_up(-(-n // self.threads), format.panel) if is_large else max(n, 1)
            for column in range(0, n, step):
                width = min(step, n - column)
                begin = (start + column) * format.column_bytes(k)
                here = packed[begin : begin + format.panel_bytes(k, width)]
                work = partial(_pack_columns, format, value, column, column + width, here, axis)
                yield here.nbytes, work
            start += n

    def _gate_jobs(self, packed_weight: PackedWeight, packed: np.ndarray, packing: Packing) -> Iterator[_Job]:
        """Yield jobs that pack columns of both halves side by side; ranges of columns of large ones."""
        axis = 0 if packed_weight.transposed else 1
        format, half = packed_weight.panels, packed_weight.shape[axis] // 2
        column_bytes = format.column_bytes(packed_weight.shape[1 - axis])
        halves = packed_weight.value.halves(axis)
        if all(value.node is None for value, _ in halves):
            matrices = [value.evaluate()[_range(start, start + half, axis)] for value, start in halves]
            packing.add(format, matrices, packed, axis == 0)
            return
        is_large = packed.nbytes > _LARGE_BYTES and all(value.is_divisible for value, _ in halves)
        step = _round_up(-(-half // self.threads), format.panel // 2) if is_large else half
        for column in range(0, half, step):
            width = min(step, half - column)
            here = packed[2 * column * column_bytes : 2 * (column + width) * column_bytes]
            ranges = [(value, start + column) for value, start in halves]
            yield here.nbytes, partial(_pack_halves, format, ranges, width, here, axis)

    def _quantize_jobs(self, packed_weight: PackedWeight, packed: np.ndarray, packing: Packing) -> Iterator[_Job]:
        """Yield jobs that pack quantized values with scales and zero points, by ranges of columns or of both halves.

        packing: gets the matrices that need no evaluation.
        """
        axis = 0 if packed_weight.transposed else 1
        format, n = packed_weight.panels, packed_weight.shape[axis]
        k = packed_weight.shape[1 - axis]
        column_bytes = format.column_bytes(k)
        if packed_weight.layout == "gate_panels":
            halves = list(zip(*(part.halves(axis) for part in packed_weight.parts), strict=True))
            matrices, widths, beside = [halves], [n // 2], 2
        else:
            several = zip(*(part.side_by_side(axis, format.panel) for part in packed_weight.parts), strict=True)
            matrices = [[tuple((part, 0) for part in parts)] for parts in several]
            widths, beside = [parts[0][0][0].dims[axis] for parts in matrices], 1
        begin = 0
        for sources, width in zip(matrices, widths, strict=True):
            whole = packed[begin:]
            begin += width * column_bytes
            if axis == 0 and (packable := _packable_quant(sources, width)) is not None:
                packing.add(format, packable[0], whole, True, Scales(packable[1:], packed_weight.group))
                continue
            is_by_rows = axis == 0 and all(part.is_by_rows for parts in sources for part, _ in parts)
            # 4-bit values are unpacked to bytes before packing, so the number of elements counts.
            panels = max(1, COPY_BYTES // (max(column_bytes, k) * format.panel))
            step = panels * format.panel if is_by_rows else max(width, 1)
            for column in range(0, width, step):
                count = min(step, width - column)
                work = partial(
                    _pack_quant, packed_weight, sources, column, count, whole[beside * column * column_bytes :]
                )
                yield beside * count * column_bytes, work


# The values, scales and zero points of a quantized matrix or half, each with its first column in a larger matrix.
_Quantized = tuple[tuple[WeightExpr, int], ...]


def _packable_quant(matrices: Sequence[_Quantized], count: int) -> list[list[np.ndarray]] | None:
    """Return `count` rows of the values, scales and zero points of each matrix, if all are in memory in packable form.

    4-bit values are two in a byte. None if any of them must be evaluated.
    """
    found: list[list[np.ndarray]] = []
    for slot, parts in enumerate(zip(*matrices, strict=True)):
        sources = [part.source if slot == 0 and _is_of_pairs(part) else part for part, _ in parts]
        if any(source.node is not None for source in sources):
            return None
        rows = (slice(start, start + count) for _, start in parts)
        found.append([source.evaluate()[each] for source, each in zip(sources, rows, strict=True)])
    return found


def _is_of_pairs(codes: WeightExpr) -> bool:
    """Return whether 4-bit values are unpacked from bytes along rows."""
    node = codes.node
    if node is None or codes.op != "unpack":
        return False
    return node.axis == 1 and node.dtype.bits == 4 and codes.source.type.dtype is u8


def _pack_quant(
    packed_weight: PackedWeight, matrices: Sequence[_Quantized], column: int, count: int, packed: np.ndarray
) -> None:
    """Pack `count` columns of quantized values from `column` on; evaluates only the rows needed, where possible."""
    axis, read = 0 if packed_weight.transposed else 1, []
    collected: list[list[np.ndarray]] = [[] for _ in packed_weight.parts]
    for parts in matrices:
        if axis == 0 and parts[0][0].op == "quantize_groups":
            first = parts[0][1] + column
            for arrays, array in zip(collected, quantized(parts[0][0], slice(first, first + count)), strict=True):
                arrays.append(array)
            continue
        known: dict[WeightExpr, np.ndarray] = {}
        for (part, start), arrays in zip(parts, collected, strict=True):
            if axis == 0 and part.is_by_rows:
                arrays.append(part.rows(slice(start + column, start + column + count), known))
            else:
                arrays.append(part.evaluate()[_range(start + column, start + column + count, axis)])
        read += [array for value, array in known.items() if value.node is None]
    pack_panels(packed_weight.panels, collected[0], packed, axis == 0, Scales(collected[1:], packed_weight.group))
    for array in read:
        release(array)


def _round_up(count: int, unit: int) -> int:
    """Round a count up to a multiple of a unit."""
    return -(-count // unit) * unit


def _range(begin: int, end: int, axis: int) -> tuple[slice, ...]:
    """Return the index of the columns `begin` to `end` of a matrix, which are along `axis`."""
    return (slice(begin, end), slice(None))[:: 1 if axis == 0 else -1]


def _pack_columns(format: Format, value: WeightExpr, begin: int, end: int, packed: np.ndarray, axis: int) -> None:
    """Pack a range of columns, in slices where possible, so that casts are never materialised completely."""
    k = format.columns(value.dims[1]) if axis == 0 else value.dims[0]
    column_bytes = format.column_bytes(k)
    step = max(1, COPY_BYTES // (column_bytes * format.panel)) * format.panel if k else max(1, end - begin)
    if not value.is_divisible:
        step = max(1, end - begin)
    for column in range(begin, end, step):
        stop = min(column + step, end)
        data = value.part(_range(column, stop, axis))
        here = packed[(column - begin) * column_bytes :][: format.panel_bytes(k, stop - column)]
        pack_panels(format, [data], here, axis == 0)
        release(data)
    if not value.is_divisible:
        for source in value.sources():  # it was evaluated completely
            release(source.evaluate())


def _pack_halves(
    format: Format, halves: list[tuple[WeightExpr, int]], width: int, packed: np.ndarray, axis: int
) -> None:
    """Pack `width` columns (along `axis`) of each (matrix, first column), in slices."""
    evaluated = {value: value.evaluate() for value, _ in halves if not value.is_divisible}
    dims, half = halves[0][0].dims, format.panel // 2
    k = format.columns(dims[1]) if axis == 0 else dims[0]
    column_bytes = format.column_bytes(k)
    step = max(1, COPY_BYTES // (2 * column_bytes * half)) * half if k else width
    for column in range(0, width, step):
        count = min(step, width - column)
        pieces = []
        for value, start in halves:
            columns = _range(start + column, start + column + count, axis)
            pieces.append(evaluated[value][columns] if value in evaluated else value.part(columns))
        here = packed[2 * column * column_bytes : 2 * (column + count) * column_bytes]
        pack_panels(format, pieces, here, axis == 0)
        for piece in pieces:
            release(piece)


def _pack_several(packed_weight: PackedWeight, packed: np.ndarray) -> None:
    """Pack matrices one after another, each evaluated only while it is packed."""
    panels = iter(packed.reshape(math.prod(packed_weight.shape[:-2]), -1))
    for piece in packed_weight.value.pieces():
        for matrix in piece.reshape(math.prod(piece.shape[:-2]), *piece.shape[-2:]):
            pack_panels(packed_weight.panels, [matrix], next(panels), packed_weight.transposed)
        release(piece)


def _make_raw(packed_weight: PackedWeight, arrays_by_key: dict[str, np.ndarray]) -> None:
    """Add the bytes of a raw value: the array itself if it is row-major, aligned and not small, else a copy."""
    value = packed_weight.value
    if value.node is not None and len(packed_weight.shape) == 2 and packed_weight.nbytes and value.is_divisible:
        data = allocate(packed_weight.nbytes).view(packed_weight.dtype.numpy).reshape(packed_weight.shape)
        step = max(1, COPY_BYTES * len(data) // packed_weight.nbytes)
        # The source and the result of a cast table are never both materialised completely.
        for row in range(0, len(data), step):
            rows = slice(row, row + step)
            data[rows] = value.part((rows, slice(None)))
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

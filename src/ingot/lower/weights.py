"""Packed weights are recipes; the store makes each recipe once and shares it by key.

A recipe names a static value of the graph (a weight, or what reshapes, permutes, concats and scales make of weights)
and the layout a kernel wants. Its key is the text of that computation, so two lowerings of one graph agree on it, and
no two bindings of one graph on constants that have the same name there and other elements.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ingot import abi
from ingot.dtype import DType, bf16, f32
from ingot.errors import LimitError, LoadError, ResourceError
from ingot.files import mapped_files, release
from ingot.ir import Graph
from ingot.locks import OwnedLock
from ingot.text import dump_node

PANEL = abi.constant("INGOT_PANEL")  # columns of a packed panel
_HALF_PANEL = PANEL // 2
_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_LARGE_BYTES = 16 << 20  # a matrix that several threads pack together
_COPY_BYTES = 4 << 20
_MAX_TEXT = 1 << 20  # of a recipe: a value that each of many nodes reads twice would take all memory
_SERIAL_BYTES = 1 << 20  # so little that threads do not pay

# Bytes that it makes, and the work.
_Job = tuple[int, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the bytes of a packed weight come about.

    layout: "raw" (as it is, row-major), "panels" (a [k, n] matrix as [n/32][k][32], zero-padded; transposed: the
    value is [n, k]; one after another where there are several of them) or "gate_panels" (one [k, 2f] matrix, f a
    multiple of 16, as [f/16][k][32]: panel p holds columns 16p.. of the first half, then 16p.. of the second). Of bf16,
    a panel is [ceil(k/2)][32][2], zero-padded: two elements of a column side by side, as dot products take them.
    key: the text of the whole computation.
    """

    key: str
    value: str
    layout: str
    transposed: bool
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        if self.layout != "raw":
            *several, k, n = self.shape
            n, k = (k, n) if self.transposed else (n, k)
            return math.prod(several) * -(-n // PANEL) * PANEL * _panel_rows(k, self.dtype) * size
        for dim in self.shape:
            size *= dim
        return size


def _panel_rows(k: int, dtype: DType) -> int:
    """The elements of a column of a panel."""
    return k + k % 2 if dtype is bf16 else k


def make_recipe(graph: Graph, value: str, layout: str = "raw", transposed: bool = False) -> Recipe:
    """The recipe of a static value in a layout."""
    type = graph.type(value)
    prefix = f"{layout}{'.transposed' if transposed else ''}"
    return Recipe(f"{prefix} {static_text(graph, value)}", value, layout, transposed, type.dtype, type.dims)


def static_text(graph: Graph, value: str) -> str:
    """The text of the computation of a static value, down to the names of weights and the contents of constants.

    Raises LimitError.
    """
    node = graph.producer(value)
    if node is None:
        edge = graph.values[value]
        return value if edge.kind == "weight" else f"{value} of {edge.type} {_digest(edge.data)}"
    inner = " ".join(f"({static_text(graph, o)})" for o in node.operands if o is not None)
    if len(inner) > _MAX_TEXT:
        raise LimitError(f"value {value!r}: computed from too much, expected at most {_MAX_TEXT} characters of text")
    which = f"output {node.outputs.index(value)} of " if len(node.outputs) > 1 else ""
    return f"{which}{dump_node(graph, node).partition(' = ')[2]} of {inner}"


def _digest(constant: np.ndarray | None) -> str:
    assert constant is not None
    return hashlib.sha256(constant.tobytes()).hexdigest()[:32]


def static_values(graph: Graph) -> set[str]:
    """Values that depend on weights, constants and sources (iota, dims) alone."""
    static = {name for name, value in graph.values.items() if value.kind in ("weight", "constant")}
    for node in graph.nodes:
        if all(o is None or o in static for o in node.operands):
            static.update(node.outputs)
    return static


def evaluate(graph: Graph, value: str) -> np.ndarray:
    """A static value, computed by the ops' references. Raises ResourceError when it finds no memory."""
    node = graph.producer(value)
    if node is None:
        data = graph.data(value)
        if data is None:
            raise LoadError(f"weight {value!r}: has no data, got only its type {graph.type(value)}")
        return data
    operands = [None if o is None else evaluate(graph, o) for o in node.operands]
    try:
        with np.errstate(all="ignore"):
            result = node.op.function(*operands, **node.attributes)
    except MemoryError as error:
        raise ResourceError(f"constant {value!r}: no memory, {error}") from error
    return result[node.outputs.index(value)] if isinstance(result, tuple) else result


# Ops that move elements and leave them as they are.
_MOVES = frozenset("concat permute reshape slice".split())


def is_stored_bf16(graph: Graph, value: str) -> bool:
    """True for a static matrix of floats each of which is a bf16 number of a file, perhaps moved about."""
    node = graph.producer(value)
    if node is None:
        return False
    if node.op.name == "cast":
        return node.dtype is f32 and graph.type(str(node.operands[0])).dtype is bf16
    return node.op.name in _MOVES and all(is_stored_bf16(graph, str(operand)) for operand in node.operands)


def add_stored_bf16(graph: Graph, value: str) -> tuple[str, list[str]]:
    """The name of such a matrix as bf16, and the names that were added for it: nodes that move bf16 numbers."""
    node = graph.producer(value)
    assert node is not None
    if node.op.name == "cast":
        return str(node.operands[0]), []
    moved = [add_stored_bf16(graph, str(operand)) for operand in node.operands]
    name = graph.fresh(f"{value}.bf16")
    graph.add(node.op.name, [operand for operand, _ in moved], name, **node.attributes)
    return name, [*(added for _, names in moved for added in names), name]


def _evaluate_columns(graph: Graph, value: str, columns: tuple[slice, ...]) -> np.ndarray:
    """Part of a static matrix. Of a cast one, only so much is cast, and the pages of the file behind it are let go."""
    node = graph.producer(value)
    if node is None or node.op.name != "cast":
        return evaluate(graph, value)[columns]
    source = _evaluate_columns(graph, str(node.operands[0]), columns)
    result = node.op.function(source, **node.attributes)
    release(source)
    return result


def _parts(graph: Graph, value: str) -> Iterator[np.ndarray]:
    """A static value piece by piece along its first axis: as the weights that a concat puts there come one by one."""
    node = graph.producer(value)
    source = None if node is None else str(node.operands[0])
    if node is None or source is None or node.op.name not in ("cast", "permute", "reshape", "concat"):
        yield evaluate(graph, value)
    elif node.op.name == "cast":
        for part in _parts(graph, source):
            result = node.op.function(part, **node.attributes)
            release(part)
            yield result
    elif node.op.name == "permute" and node.axes[0] == 0:
        yield from (part.transpose(node.axes) for part in _parts(graph, source))
    elif node.op.name == "concat" and node.axis == 0:
        for operand in node.operands:
            yield from _parts(graph, str(operand))
    elif node.op.name == "reshape" and graph.type(source).dims[1:] == graph.type(value).dims[2:] != ():
        rows, held = graph.type(value).dims[1], 0
        waiting: list[np.ndarray] = []
        for part in _parts(graph, source):
            waiting.append(part)
            held += len(part)
            if rows and held % rows == 0:
                whole = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
                yield whole.reshape(-1, *graph.type(value).dims[1:])
                waiting, held = [], 0
    else:
        yield evaluate(graph, value)


class WeightStore:
    """Materialised recipes by key, each 64-byte aligned; never two copies.

    An array lives as long as a program that was prepared with it: what only an evicted binding read leaves with it.
    Panels that are made together lie in one block of pages, which leaves with the last of them.

    A raw recipe of a mapped parameter that is already row-major, or of a row-major part of one, is used where it lies.
    Everything else is packed straight from the mapped file, over `threads` threads, and what was read of the file is
    let go at once, so that source and copy are never in memory together. `pack` is the native packer.
    """

    def __init__(self, pack: Callable[[np.ndarray, np.ndarray, bool], None], threads: int = 1):
        self._pack = pack
        self.threads = threads
        self._arrays: weakref.WeakValueDictionary[str, np.ndarray] = weakref.WeakValueDictionary()
        self._saved: list[np.ndarray] = []
        self._lock = OwnedLock("weights")  # contexts of one session compile at the same time

    def array(self, graph: Graph, recipe: Recipe) -> np.ndarray:
        """The bytes of a recipe as a flat array; made unless a program holds it."""
        return self.prepare(graph, [recipe])[recipe.key]

    def prepare(self, graph: Graph, recipes: Iterable[Recipe]) -> dict[str, np.ndarray]:
        """The flat arrays of recipes by key, for the caller to hold; makes those that nobody holds yet.

        Raises LoadError for given bytes that cannot be their recipe's.
        """
        with self._lock.once():
            wanted = {recipe.key: recipe for recipe in recipes}
            made = {key: array for key in wanted if (array := self._arrays.get(key)) is not None}
            for key, given in made.items():
                _expect_fit(wanted[key], given)
            missing = [recipe for key, recipe in wanted.items() if key not in made]
            data = (value.data for value in graph.values.values() if missing)
            sources = mapped_files(array for array in data if array is not None)
            for file in sources:
                file.expect_unchanged()
            panels = [recipe for recipe in missing if recipe.layout != "raw"]
            sizes = [-(-recipe.nbytes // _ALIGNMENT) * _ALIGNMENT for recipe in panels]
            whole, offset = allocate(sum(sizes)), 0
            jobs: list[_Job] = []
            for recipe, size in zip(panels, sizes, strict=True):
                packed = whole[offset : offset + recipe.nbytes].view(recipe.dtype.numpy)
                made[recipe.key] = packed
                jobs += self._pack_jobs(graph, recipe, packed) if packed.size else []
                offset += size
            for recipe in missing:
                if recipe.layout == "raw":
                    jobs.append((recipe.nbytes, partial(self._make_raw, graph, recipe, made)))
            self._do(jobs)
            for file in sources:
                file.expect_unchanged()
            self._arrays.update(made)
        return made

    def put(self, key: str, array: np.ndarray) -> None:
        """Adds a recipe's bytes, as a saved program holds them: mapped, for good."""
        self._saved.append(array)
        self._arrays[key] = array

    def items(self) -> list[tuple[str, np.ndarray]]:
        """Every (key, flat array) that is held."""
        with self._lock.once():
            return list(self._arrays.items())

    @property
    def nbytes(self) -> int:
        """Bytes of all recipes that are held; those that several share, as parts of one table do, count once."""
        spans = sorted(np.lib.array_utils.byte_bounds(array) for _, array in self.items() if array.size)
        total = end = 0
        for low, high in spans:
            total += max(high, end) - max(low, end)
            end = max(high, end)
        return total

    def _do(self, jobs: list[_Job]) -> None:
        """Does the jobs, largest first; over the threads where there is enough to do."""
        jobs.sort(key=lambda job: -job[0])
        if self.threads == 1 or sum(nbytes for nbytes, _ in jobs) < _SERIAL_BYTES:
            for _, work in jobs:
                work()
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self.threads) as executor:
            for future in [executor.submit(work) for _, work in jobs]:
                future.result()

    def _pack_jobs(self, graph: Graph, recipe: Recipe, packed: np.ndarray) -> Iterator[_Job]:
        """Packs a matrix: whole panels of the matrices that are its columns, and parts of a large one, on their own."""
        if recipe.layout == "gate_panels":
            yield from self._gate_jobs(graph, recipe, packed)
            return
        if len(recipe.shape) > 2:
            yield packed.nbytes, partial(self._pack_several, graph, recipe, packed)
            return
        axis = 0 if recipe.transposed else 1
        k, start = _panel_rows(recipe.shape[1 - axis], recipe.dtype), 0
        for value in _columns(graph, recipe.value, axis):
            n = graph.type(value).dims[axis]
            is_large = _is_stored(graph, value) and n * k * recipe.dtype.itemsize > _LARGE_BYTES
            step = -(-n // self.threads // PANEL) * PANEL if is_large else max(n, 1)
            for column in range(0, n, step):
                width = min(step, n - column)
                here = packed[(start + column) * k : (start + column + -(-width // PANEL) * PANEL) * k]
                columns = (slice(column, column + width), slice(None))[:: 1 if axis == 0 else -1]
                yield here.nbytes, partial(self._pack_columns, graph, value, columns, here, recipe.transposed)
            start += n

    def _pack_columns(
        self, graph: Graph, value: str, columns: tuple[slice, ...], packed: np.ndarray, transposed: bool
    ) -> None:
        """Packs a range of columns; where parts of it can be had, some at a time, so that casts are never whole."""
        axis = 0 if transposed else 1
        begin, end = columns[axis].start, columns[axis].stop
        k = packed.size // (-(-(end - begin) // PANEL) * PANEL) if packed.size else 0
        step = max(1, _COPY_BYTES // (k * packed.itemsize * PANEL)) * PANEL if k else max(1, end - begin)
        if not _is_stored(graph, value):
            step = max(1, end - begin)
        for column in range(begin, end, step):
            stop = min(column + step, end)
            data = _evaluate_columns(graph, value, (slice(column, stop), slice(None))[:: 1 if axis == 0 else -1])
            self._pack(data, packed[(column - begin) * k :][: -(-(stop - column) // PANEL) * PANEL * k], transposed)
            release(data)

    def _gate_jobs(self, graph: Graph, recipe: Recipe, packed: np.ndarray) -> Iterator[_Job]:
        """Packs columns of both halves side by side; parts of large ones on their own."""
        axis = 0 if recipe.transposed else 1
        k, half = _panel_rows(recipe.shape[1 - axis], recipe.dtype), recipe.shape[axis] // 2
        halves = _half_columns(graph, recipe.value, axis)
        is_large = packed.nbytes > _LARGE_BYTES and all(_is_stored(graph, value) for value, _ in halves)
        step = -(-half // self.threads // _HALF_PANEL) * _HALF_PANEL if is_large else half
        for column in range(0, half, step):
            width = min(step, half - column)
            here = packed[2 * column * k : 2 * (column + width) * k]
            ranges = [(value, start + column) for value, start in halves]
            yield here.nbytes, partial(self._pack_halves, graph, ranges, width, here, axis)

    def _pack_halves(
        self, graph: Graph, halves: list[tuple[str, int]], width: int, packed: np.ndarray, axis: int
    ) -> None:
        """Packs `width` columns (along `axis`) of each (matrix, first column), some at a time."""
        made = {value: evaluate(graph, value) for value, _ in halves if not _is_stored(graph, value)}
        k, packed_k = graph.type(halves[0][0]).dims[1 - axis], packed.size // (2 * width)
        step = max(1, _COPY_BYTES // (2 * k * packed.itemsize * _HALF_PANEL)) * _HALF_PANEL if k else width
        for column in range(0, width, step):
            count = min(step, width - column)
            pieces = []
            for value, start in halves:
                columns = (slice(start + column, start + column + count), slice(None))[:: 1 if axis == 0 else -1]
                piece = made[value][columns] if value in made else _evaluate_columns(graph, value, columns)
                pieces.append(piece.view(f"u{piece.itemsize}"))  # numpy moves bf16, which it does not know, slowly
            panels = count // _HALF_PANEL
            split = (panels, _HALF_PANEL, k) if axis == 0 else (k, panels, _HALF_PANEL)
            together = np.stack([piece.reshape(split) for piece in pieces], axis + 1)
            matrix = together.reshape((2 * count, k) if axis == 0 else (k, 2 * count))
            self._pack(matrix, packed[2 * column * packed_k : 2 * (column + count) * packed_k], axis == 0)
            for piece in pieces:
                release(piece)

    def _pack_several(self, graph: Graph, recipe: Recipe, packed: np.ndarray) -> None:
        """Packs matrices one after another, and has each only as long."""
        panels = iter(packed.reshape(math.prod(recipe.shape[:-2]), -1))
        for part in _parts(graph, recipe.value):
            for matrix in part.reshape(math.prod(part.shape[:-2]), *part.shape[-2:]):
                self._pack(matrix, next(panels), recipe.transposed)
            release(part)

    def _make_raw(self, graph: Graph, recipe: Recipe, made: dict[str, np.ndarray]) -> None:
        node = graph.producer(recipe.value)
        if node is not None and len(recipe.shape) == 2 and recipe.nbytes and _is_stored(graph, recipe.value):
            data = allocate(recipe.nbytes).view(recipe.dtype.numpy).reshape(recipe.shape)
            step = max(1, _COPY_BYTES * len(data) // recipe.nbytes)
            for row in range(0, len(data), step):  # a table that is cast: source and result are never both whole
                rows = slice(row, row + step)
                data[rows] = _evaluate_columns(graph, recipe.value, (rows, slice(None)))
            made[recipe.key] = data.reshape(-1)
            return
        data = evaluate(graph, recipe.value)
        if not (data.flags.c_contiguous and data.flags.aligned):
            source, data = data, allocate(recipe.nbytes).view(data.dtype).reshape(data.shape)
            _copy(source, data)
        made[recipe.key] = data.reshape(-1)


def _expect_fit(recipe: Recipe, given: np.ndarray) -> None:
    if given.dtype != recipe.dtype.numpy or given.nbytes != recipe.nbytes:
        raise LoadError(
            f"recipe {recipe.key!r}: its bytes do not fit, got {given.nbytes} of {given.dtype},"
            f" expected {recipe.nbytes} of {recipe.dtype}"
        )


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies some rows at a time and lets them go: source and target are never in memory together, whole."""
    source, target = np.atleast_1d(source), np.atleast_1d(target)
    rows = max(1, _COPY_BYTES * len(source) // max(source.nbytes, 1))
    for row in range(0, len(source), rows):
        np.copyto(target[row : row + rows], source[row : row + rows])
        release(source[row : row + rows])


def _is_stored(graph: Graph, value: str) -> bool:
    """Whether parts of a matrix can be had without making it whole: it is a file's, or the cast of one."""
    node = graph.producer(value)
    return node is None or (node.op.name == "cast" and _is_stored(graph, str(node.operands[0])))


def _columns(graph: Graph, value: str, axis: int) -> list[str]:
    """The matrices that lie side by side in one, where each fills its panels; else the matrix itself."""
    node = graph.producer(value)
    if node is None or node.op.name != "concat" or node.axis != axis:
        return [value]
    parts = [str(operand) for operand in node.operands]
    whole = all(graph.type(part).dims[axis] % PANEL == 0 for part in parts[:-1])
    return [piece for part in parts for piece in _columns(graph, part, axis)] if whole else [value]


def _half_columns(graph: Graph, value: str, axis: int) -> list[tuple[str, int]]:
    """The matrix of each half of the columns, and the half's first column there."""
    node = graph.producer(value)
    half = graph.type(value).dims[axis] // 2
    if node is not None and node.op.name == "concat" and node.axis == axis:
        parts = [str(operand) for operand in node.operands]
        if [graph.type(part).dims[axis] for part in parts] == [half, half]:
            return [(part, 0) for part in parts]
    return [(value, 0), (value, half)]


def allocate(nbytes: int) -> np.ndarray:
    """Zeroed bytes at 64-byte alignment or better; large ones come from anonymous huge pages."""
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

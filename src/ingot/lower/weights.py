"""Packed weights are recipes; the store makes each recipe once and shares it by key.

A recipe names a static value of the graph (a weight, or what reshapes, permutes, concats and scales make of weights)
and the layout a kernel wants. Its key is the text of that computation, so two lowerings of one graph agree on it.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ingot.dtype import DType
from ingot.ir import Graph
from ingot.text import dump_node

PANEL = 32  # columns of a packed panel: INGOT_PANEL of abi.h
_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the bytes of a packed weight come about.

    layout: "raw" (as it is, row-major) or "panels" (a [k, n] matrix as [n/32][k][32], zero-padded; transposed: the
    value is [n, k]). key: the text of the whole computation.
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
        if self.layout == "panels":
            k, n = reversed(self.shape) if self.transposed else self.shape
            return -(-n // PANEL) * PANEL * k * size
        for dim in self.shape:
            size *= dim
        return size


def make_recipe(graph: Graph, value: str, layout: str = "raw", transposed: bool = False) -> Recipe:
    """The recipe of a static value in a layout."""
    type = graph.type(value)
    prefix = f"{layout}{'.transposed' if transposed else ''}"
    return Recipe(f"{prefix} {static_text(graph, value)}", value, layout, transposed, type.dtype, type.dims)


def static_text(graph: Graph, value: str) -> str:
    """The text of the computation of a static value, down to its weights and constants."""
    node = graph.producer(value)
    if node is None:
        return value
    inner = " ".join(f"({static_text(graph, o)})" for o in node.operands if o is not None)
    which = f"output {node.outputs.index(value)} of " if len(node.outputs) > 1 else ""
    return f"{which}{dump_node(graph, node).partition(' = ')[2]} of {inner}"


def static_values(graph: Graph) -> set[str]:
    """Values that depend on weights, constants and sources (iota, dims) alone."""
    static = {name for name, value in graph.values.items() if value.kind in ("weight", "constant")}
    for node in graph.nodes:
        if all(o is None or o in static for o in node.operands):
            static.update(node.outputs)
    return static


def evaluate(graph: Graph, value: str) -> np.ndarray:
    """A static value, computed by the ops' references."""
    node = graph.producer(value)
    if node is None:
        data = graph.data(value)
        assert data is not None, f"weight {value} has no data"
        return data
    operands = [None if o is None else evaluate(graph, o) for o in node.operands]
    with np.errstate(all="ignore"):
        result = node.op.function(*operands, **node.attributes)
    return result[node.outputs.index(value)] if isinstance(result, tuple) else result


class WeightStore:
    """Materialised recipes by key, each 64-byte aligned; never two copies.

    A raw recipe of a mapped parameter that is already row-major is used where it lies. `pack` is the native packer.
    """

    def __init__(self, pack: Callable[[np.ndarray, np.ndarray, bool], None]):
        self._pack = pack
        self._arrays: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()  # contexts of one session compile at the same time

    def array(self, graph: Graph, recipe: Recipe) -> np.ndarray:
        """The bytes of a recipe as a flat array; made on first use."""
        with self._lock:
            if recipe.key not in self._arrays:
                self._arrays[recipe.key] = self._materialize(graph, recipe)
            return self._arrays[recipe.key]

    def put(self, key: str, array: np.ndarray) -> None:
        """Adds a recipe's bytes, as a saved program holds them."""
        self._arrays[key] = array

    def items(self) -> list[tuple[str, np.ndarray]]:
        """Every (key, flat array) made so far."""
        return list(self._arrays.items())

    @property
    def nbytes(self) -> int:
        """Bytes of all materialised recipes."""
        return sum(array.nbytes for array in self._arrays.values())

    def _materialize(self, graph: Graph, recipe: Recipe) -> np.ndarray:
        data = np.require(evaluate(graph, recipe.value), requirements="A")
        if recipe.layout == "raw":
            return np.ascontiguousarray(data).reshape(-1)
        packed = allocate(recipe.nbytes).view(data.dtype)
        self._pack(data, packed, recipe.transposed)
        return packed


def allocate(nbytes: int) -> np.ndarray:
    """Zeroed bytes at 64-byte alignment or better; large ones come from anonymous huge pages."""
    if nbytes < _HUGE_PAGE:
        block = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        return block[start : start + nbytes]
    pages = mmap.mmap(-1, nbytes + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(pages, np.uint8)
    start = -block.ctypes.data % _HUGE_PAGE
    return block[start : start + nbytes]

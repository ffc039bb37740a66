"""Pack matrices into panels for kernels; see `lower.packed_weight.PackedWeight` for the layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.ir.dtype import bf16
from ingot.lower.cpu.formats import pack_fields
from ingot.lower.formats import Format
from ingot.lower.weight_expr import WeightExpr
from ingot.run.library import load
from ingot.run.slices import Slices
from ingot.support.files import is_mapped, pages

COPY_BYTES = 4 << 20  # packed or copied before the pages of their source are released


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of quantized matrices and optionally their zero points.

    They are [n, groups] for matrices [n, k]: one for each `group` elements of k.
    """

    qparams: Sequence[Sequence[np.ndarray]]
    group: int


def pack_panels(
    format: Format, matrices: Sequence[np.ndarray], packed: np.ndarray, transposed: bool, scales: Scales | None = None
) -> None:
    """Pack a matrix [k, n] ([n, k] when transposed) of a format into panels, or the two halves of a gated matrix.

    The two halves have one shape, whose n is a multiple of 16. packed: the bytes of the panels, possibly with more
    bytes after them. 4-bit values may be stored as bytes with two values each, along rows.
    """
    library = load()
    regular = _with_equal_strides(matrices)
    arguments = _arguments(format, regular, packed, transposed)
    if scales is not None:
        qparams = [[np.ascontiguousarray(array) for array in arrays] for arrays in scales.qparams]
        _set_scales(arguments, qparams, transposed, scales.group)
    library.kernel(format.pack, library.isa())(arguments, 0, 1)


class Packing:
    """Matrices in memory that can be packed directly, by several threads without the interpreter's lock."""

    def __init__(self) -> None:
        self._nbytes = 0  # of panels
        self._parts: list[dict[str, Any]] = []
        self._arrays: list[np.ndarray] = []  # arrays that parts point to

    def add(
        self,
        format: Format,
        matrices: Sequence[np.ndarray],
        packed: np.ndarray,
        transposed: bool,
        scales: Scales | None = None,
    ) -> None:
        """Add the arguments of `pack_panels`, split into ranges of columns; pages are released after each range."""
        library = load()
        kernel = library.kernel(format.pack, library.isa())
        matrices = _with_equal_strides(matrices)
        axis, width = 0 if transposed else 1, format.panel // len(matrices)
        n, k = matrices[0].shape[axis], _elements(format, matrices[0], transposed)[1 - axis]
        qparams = [] if scales is None else [list(map(np.ascontiguousarray, arrays)) for arrays in scales.qparams]
        column_bytes = format.column_bytes(k) * len(matrices)
        step = max(1, COPY_BYTES // (column_bytes * width)) * width
        for column in range(0, n, step):
            columns = slice(column, column + step)
            parts = [_columns(matrix, columns, transposed) for matrix in matrices]
            args = _arguments(format, parts, packed[column * column_bytes :], transposed)
            if scales is not None:
                shared = [[_columns(array, columns, transposed) for array in arrays] for arrays in qparams]
                _set_scales(args, shared, transposed, scales.group)
                parts += shared[0]
            spans = [pages(part) for part in parts if is_mapped(part)]
            self._parts.append(
                {
                    "kernel": kernel,
                    "args": args,
                    "pages": [library.cast("void*", begin) for begin, _ in spans],
                    "page_bytes": [nbytes for _, nbytes in spans],
                }
            )
        self._arrays += [*matrices, *(array for arrays in qparams for array in arrays), packed]
        self._nbytes += n * column_bytes

    def jobs(self, threads: int) -> list[tuple[int, Callable[[], None]]]:
        """Return bytes and a function for each thread; the threads take parts until none is left."""
        if not self._parts:
            return []
        library = load()
        parts, next_part = library.new("ingot_packing[]", self._parts), library.new("int64_t*")

        def work() -> None:
            library.entry.ingot_pack(parts, len(self._parts), next_part)

        return [(self._nbytes // threads, work)] * min(threads, len(self._parts))


def quantized(value: WeightExpr, begin: int, end: int, slices: Slices) -> tuple[np.ndarray, np.ndarray]:
    """Quantize rows like the op `quantize_groups`, bit by bit; return values and scales."""
    node, source = value.node, value.source
    assert node is not None and node.op.name == "quantize_groups"
    if source.op == "cast" and source.source.type.dtype is bf16:
        source = source.source
    x = np.ascontiguousarray(slices.take(source, begin, end, 0))
    values = np.empty(x.shape, node.dtype.numpy)
    scales = np.empty((len(x), -(-x.shape[1] // node.group)), np.float16)
    library = load()
    pointers = (library.cast("void*", array.ctypes.data) for array in (x, values, scales))
    fields = dict(zip(("x", "values", "scales"), pointers, strict=True))
    sizes = {"rows": len(x), "cols": x.shape[1], "x_stride": x.shape[1], "group": node.group}
    kind = {"bits": node.dtype.bits, "is_bf16": int(source.type.dtype is bf16)}
    library.kernel("quantize_rows", library.isa())(library.new("quantize_args", fields | sizes | kind), 0, 1)
    return values, scales


def _with_equal_strides(matrices: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return the matrices unchanged if their strides agree, else contiguous copies."""
    return matrices if len({matrix.strides for matrix in matrices}) == 1 else list(map(np.ascontiguousarray, matrices))


def _arguments(format: Format, matrices: Sequence[np.ndarray], packed: np.ndarray, transposed: bool) -> Any:
    """Return the argument struct, which keeps no array alive."""
    library = load()
    cast = library.cast
    src, *second = (cast("void*", matrix.ctypes.data) for matrix in matrices)
    strides = [stride // matrices[0].itemsize for stride in matrices[0].strides]
    fields = (
        {"src": src, "dst": cast("void*", packed.ctypes.data)}
        | pack_fields(_elements(format, matrices[0], transposed), strides, transposed)
        | {"flip": format.flip, "pairs": int(_has_pairs(format, matrices[0]))}
    )
    return library.new("pack_args", fields | ({"second": second[0]} if second else {}))


def _columns(array: np.ndarray, columns: slice, transposed: bool) -> np.ndarray:
    return array[columns] if transposed else array[:, columns]


def _has_pairs(format: Format, array: np.ndarray) -> bool:
    """Return whether each byte of an array has two 4-bit values, as in files."""
    return format.scales is not None and format.dtype.bits == 4 and array.dtype == np.uint8


def _elements(format: Format, array: np.ndarray, transposed: bool) -> tuple[int, int]:
    """Return the shape of the matrix that is stored in an array of a format."""
    rows, columns = array.shape
    if _has_pairs(format, array):
        return rows, 2 * columns
    return (rows, format.columns(columns)) if transposed else (rows, columns)


def _set_scales(arguments: Any, qparams: Sequence[Sequence[np.ndarray]], transposed: bool, group: int) -> None:
    """Set the fields of quantized weights.

    qparams: row-major arrays, or ranges of their columns; they must outlive the struct.
    """
    arguments.group = group
    for name, arrays in zip(("scales", "zeros"), qparams, strict=False):
        for field, array in zip((name, f"second_{name}"), arrays, strict=False):
            setattr(arguments, field, load().cast("void*", array.ctypes.data))
    along_n, along_k = (stride // qparams[0][0].itemsize for stride in qparams[0][0].strides)
    arguments.scale_n_stride, arguments.scale_k_stride = (along_n, along_k) if transposed else (along_k, along_n)

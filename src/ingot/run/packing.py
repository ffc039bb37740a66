"""Matrices into panels, as kernels read them; see `lower.packed_weight.PackedWeight` for how they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.ir.dtype import bf16
from ingot.lower.cpu.formats import pack_fields
from ingot.lower.formats import Format
from ingot.lower.packed_weight import WeightExpr
from ingot.run.library import load
from ingot.support.files import is_mapped, pages, release

COPY_BYTES = 4 << 20  # that are packed, or copied, before the pages that they came from are let go


@dataclass(frozen=True, slots=True)
class Scales:
    """What lies beside matrices of codes: the scales of each, and perhaps the zero points, [n, groups] where they are
    [n, k], one for so many elements of k."""

    beside: Sequence[Sequence[np.ndarray]]
    group: int


def pack_panels(
    format: Format, matrices: Sequence[np.ndarray], packed: np.ndarray, transposed: bool, scales: Scales | None = None
) -> None:
    """Packs a matrix [k, n] ([n, k] when transposed) of a format into panels, or the halves of one for gates.

    Two halves have one shape, whose n is a multiple of 16. packed: the bytes of the panels, and perhaps more. Codes of
    four bits may be bytes with two of them, along rows.
    """
    library = load()
    alike = _alike(matrices)
    arguments = _arguments(format, alike, packed, transposed)
    if scales is not None:
        beside = [[np.ascontiguousarray(array) for array in arrays] for arrays in scales.beside]
        _set_scales(arguments, beside, transposed, scales.group)
    library.kernel(format.pack, library.isa())(arguments, 0, 1)


class Packing:
    """Matrices that lie in memory as they are to be packed, for several threads at once that need no interpreter."""

    def __init__(self) -> None:
        self._nbytes = 0  # of panels
        self._parts: list[dict[str, Any]] = []
        self._held: list[np.ndarray] = []  # what parts point to

    def add(
        self,
        format: Format,
        matrices: Sequence[np.ndarray],
        packed: np.ndarray,
        transposed: bool,
        scales: Scales | None = None,
    ) -> None:
        """Adds what `pack_panels` takes, some columns at a time, after which the pages of a mapped file are let go."""
        library = load()
        kernel = library.kernel(format.pack, library.isa())
        matrices = _alike(matrices)
        axis, width = 0 if transposed else 1, format.panel // len(matrices)
        n, k = matrices[0].shape[axis], _elements(format, matrices[0], transposed)[1 - axis]
        beside = [] if scales is None else [_alike(arrays) for arrays in scales.beside]
        column_bytes = format.column_bytes(k) * len(matrices)
        step = max(1, COPY_BYTES // (column_bytes * width)) * width
        for column in range(0, n, step):
            columns = slice(column, column + step)
            parts = [_columns(matrix, columns, transposed) for matrix in matrices]
            args = _arguments(format, parts, packed[column * column_bytes :], transposed)
            if scales is not None:
                shared = [[_columns(array, columns, transposed) for array in arrays] for arrays in beside]
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
        self._held += [*matrices, *(array for arrays in beside for array in arrays), packed]
        self._nbytes += n * column_bytes

    def jobs(self, threads: int) -> list[tuple[int, Callable[[], None]]]:
        """Bytes and work for each of so many threads, who take parts until none is left."""
        if not self._parts:
            return []
        library = load()
        parts, taken = library.new("ingot_packing[]", self._parts), library.new("int64_t*")

        def work() -> None:
            library.entry.ingot_pack(parts, len(self._parts), taken)

        return [(self._nbytes // threads, work)] * min(threads, len(self._parts))


def quantized(value: WeightExpr, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the codes and the scales that `quantize_groups` makes, the op's bits; pages of a file are let go."""
    node, source = value.node, value.source
    assert node is not None and node.op.name == "quantize_groups"
    if source.op == "cast" and source.source.type.dtype is bf16:
        source = source.source
    x = source.part((rows, slice(None)))
    held = np.ascontiguousarray(x)
    codes = np.empty(x.shape, node.dtype.numpy)
    scales = np.empty((len(x), -(-x.shape[1] // node.group)), np.float16)
    library = load()
    pointers = (library.cast("void*", array.ctypes.data) for array in (held, codes, scales))
    fields = dict(zip(("x", "values", "scales"), pointers, strict=True))
    sizes = {"rows": len(x), "cols": x.shape[1], "x_stride": x.shape[1], "group": node.group}
    kind = {"bits": node.dtype.bits, "is_bf16": int(source.type.dtype is bf16)}
    library.kernel("quantize_rows", library.isa())(library.new("quantize_args", fields | sizes | kind), 0, 1)
    release(x)
    if not source.is_divisible:
        for each in source.sources():  # what it was made of whole
            release(each.evaluate())
    return codes, scales


def _alike(matrices: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Matrices whose elements lie at the same distances."""
    return matrices if len({matrix.strides for matrix in matrices}) == 1 else list(map(np.ascontiguousarray, matrices))


def _arguments(format: Format, matrices: Sequence[np.ndarray], packed: np.ndarray, transposed: bool) -> Any:
    """The argument struct, which keeps no array alive."""
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
    """Whether the bytes of an array hold two codes of four bits each, as files have them."""
    return format.scales is not None and format.dtype.bits == 4 and array.dtype == np.uint8


def _elements(format: Format, array: np.ndarray, transposed: bool) -> tuple[int, int]:
    """The shape of the matrix that an array of a format holds."""
    rows, columns = array.shape
    if _has_pairs(format, array):
        return rows, 2 * columns
    return (rows, format.columns(columns)) if transposed else (rows, columns)


def _set_scales(arguments: Any, beside: Sequence[Sequence[np.ndarray]], transposed: bool, group: int) -> None:
    """The fields of codes. beside: row-major, and must live as long; some columns of them, where they have rows."""
    arguments.group = group
    for name, arrays in zip(("scales", "zeros"), beside, strict=False):
        for field, array in zip((name, f"second_{name}"), arrays, strict=False):
            setattr(arguments, field, load().cast("void*", array.ctypes.data))
    along_n, along_k = (stride // beside[0][0].itemsize for stride in beside[0][0].strides)
    arguments.scale_n_stride, arguments.scale_k_stride = (along_n, along_k) if transposed else (along_k, along_n)

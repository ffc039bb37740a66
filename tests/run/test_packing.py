"""Matrices into panels, of every format and layout, by one call each and by threads that share a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingot.ir.dtype import bf16, f32, from_numpy
from ingot.ir.graph import TensorType
from ingot.lower.cpu.formats import BF16, F32, PANEL
from ingot.lower.formats import Format
from ingot.lower.packed_weight import make_packed_weight
from ingot.lower.weight_expr import WeightExpr
from ingot.run import packing, store
from ingot.run.packing import Packing, pack_panels
from ingot.run.store import WeightStore
from ingot.support.files import MappedFile

pytestmark = pytest.mark.native

DTYPES = {F32: np.dtype(np.float32), BF16: np.dtype(ml_dtypes.bfloat16)}
SHAPES = [(1, 1), (5, 33), (64, 32), (9, 100), (7, 31), (40, 160)]  # k, n
HALF_SHAPES = [(1, 16), (8, 32), (9, 48), (40, 160)]


def panels_of(format: Format, matrices: list[np.ndarray]) -> np.ndarray:
    """The panels of one [k, n] matrix, or of two side by side, by their definition."""
    width = PANEL // len(matrices)
    k, n = matrices[0].shape
    elements = format.packed.elements
    panels = np.zeros((-(-n // width), -(-k // elements) * elements, PANEL), matrices[0].dtype)
    for (i, matrix), column in itertools.product(enumerate(matrices), range(n)):
        panels[column // width, :k, i * width + column % width] = matrix[:, column]
    blocks = panels.reshape(len(panels), -1, elements, PANEL).swapaxes(2, 3)
    return np.ascontiguousarray(blocks).reshape(-1)


def placed(matrix: np.ndarray, layout: str) -> np.ndarray:
    """A [k, n] matrix whose columns, or rows, or neither, lie side by side."""
    if layout == "strided":
        return np.repeat(np.repeat(matrix, 2, 0), 2, 1)[::2, ::2]
    return np.asfortranarray(matrix) if layout == "columns" else np.ascontiguousarray(matrix)


def cases() -> Iterator[tuple[Format, list[tuple[int, int]], str]]:
    for format, layout in itertools.product(DTYPES, ("rows", "columns", "strided")):
        yield from ((format, [shape], layout) for shape in SHAPES)
        yield from ((format, [shape, shape], layout) for shape in HALF_SHAPES)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("format, shapes, layout", list(cases()))
def test_panels(
    format: Format, shapes: list[tuple[int, int]], layout: str, transposed: bool, rng: np.random.Generator
) -> None:
    matrices = [placed(rng.standard_normal(shape).astype(DTYPES[format]), layout) for shape in shapes]
    expected = panels_of(format, matrices)
    packed = np.full(expected.size + PANEL, np.nan, DTYPES[format])
    pack_panels(format, [m.T for m in matrices] if transposed else matrices, packed, transposed)
    assert packed[: expected.size].tobytes() == expected.tobytes()
    assert np.isnan(packed[expected.size :].astype(np.float32)).all()


def test_halves_with_different_layouts(rng: np.random.Generator) -> None:
    halves = [placed(rng.standard_normal((9, 48)).astype(np.float32), layout) for layout in ("rows", "columns")]
    expected = panels_of(F32, halves)
    packed = np.empty_like(expected)
    pack_panels(F32, halves, packed, False)
    assert packed.tobytes() == expected.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("format", DTYPES)
def test_threads_share_a_list(
    format: Format, threads: int, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices of a mapped file and of memory, in parts of a panel each; the memory is not let go of."""
    monkeypatch.setattr(packing, "COPY_BYTES", 1)
    dtype, path = DTYPES[format], tmp_path / "weights"
    rows = [rng.standard_normal((n, 40)).astype(dtype) for n in (1, 33, 160, 160, 400, 64)]  # [n, k]
    path.write_bytes(b"".join(matrix.tobytes() for matrix in rows) * 300)
    with path.open("rb") as file:
        mapped = np.frombuffer(MappedFile(file.fileno(), str(path)), np.uint8)
    in_file, begin = [], 0
    for matrix in rows:
        in_file.append(mapped[begin : begin + matrix.nbytes].view(dtype).reshape(matrix.shape))
        begin += matrix.nbytes
    todo = Packing()
    expected, made = [], []
    groups = [*([m] for m in in_file), [in_file[2], rows[3]], *([m] for m in rows), [in_file[2], in_file[3]]]
    for matrices in groups:
        expected.append(panels_of(format, [m.T for m in matrices]))
        made.append(np.empty_like(expected[-1]))
        todo.add(format, matrices, made[-1].view(np.uint8), True)
    with ThreadPoolExecutor(threads) as executor:
        for future in [executor.submit(work) for _, work in todo.jobs(threads)]:
            future.result()
    assert [panels.tobytes() for panels in made] == [panels.tobytes() for panels in expected]
    assert [m.tobytes() for m in in_file] == [m.tobytes() for m in rows]


def weight(data: np.ndarray) -> WeightExpr:
    return WeightExpr("w", (TensorType(from_numpy(data.dtype), data.shape),), data=data, is_weight=True)


EXPRESSIONS = {
    "in memory": lambda x, axis: weight(x),
    "cast": lambda x, axis: weight(x.astype(ml_dtypes.bfloat16)).derive("cast", dtype=f32),
    "by rows": lambda x, axis: weight(x).derive("abs").derive("neg"),
    "as a whole": lambda x, axis: weight(x).derive("sin"),
    "permuted": lambda x, axis: weight(np.ascontiguousarray(x.T)).derive("permute", axes=(1, 0)),
    "permuted as a whole": lambda x, axis: (
        weight(np.ascontiguousarray(x.T)).derive("sin").derive("permute", axes=(1, 0))
    ),
    "joined": lambda x, axis: weight(x).derive(
        "concat", weight(x).derive("cast", dtype=bf16).derive("cast", dtype=f32), axis=axis
    ),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", ["panels", "gate_panels"])
def test_ranges_of_columns_make_the_panels_of_the_whole(
    layout: str, transposed: bool, name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However an expression is evaluated: by a panel at a time and at once, by one thread and by several."""
    axis = 0 if transposed else 1
    x = rng.standard_normal((160, 40) if transposed else (40, 160)).astype(np.float32)
    value = EXPRESSIONS[name](x, axis)
    matrix = value.evaluate().T if transposed else value.evaluate()
    expected = panels_of(F32, np.split(matrix, 2, axis=1) if layout == "gate_panels" else [matrix])
    packed_weight = make_packed_weight(value, layout, transposed, F32)
    for copy_bytes, threads in itertools.product((1, packing.COPY_BYTES), (1, 3)):
        for module in (packing, store):
            monkeypatch.setattr(module, "COPY_BYTES", copy_bytes)
        monkeypatch.setattr(store, "_SERIAL_BYTES", 0)
        assert WeightStore(threads).array(packed_weight).tobytes() == expected.tobytes()

"""Matrices into panels, of every format and layout, by one call each and by threads that share a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingot.lower.cpu.formats import BF16, F32, PANEL
from ingot.lower.formats import Format
from ingot.run import packing
from ingot.run.packing import Packing, pack_panels
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

"""Kernels on weights where a file has them: at any byte, and at the very end of a mapping."""

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from attacks.hostile_folders import packed
from ingot.ir.dtype import i32
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.folder import read_folder
from ingot.lower.cpu.formats import F32
from ingot.run.packing import pack_panels
from ingot.session.inference import InferenceSession

pytestmark = pytest.mark.native

IDS = TensorType(i32, (3,))


@pytest.mark.parametrize("spaces", range(8))
def test_unaligned_weights(spaces: int, tmp_path: Path, rng: np.random.Generator) -> None:
    """S11: a header of any length gives the same results, through packed matrices, tables and raw vectors."""
    arrays = {
        "table": rng.standard_normal((50, 40)).astype(np.float32),
        "matrix": rng.standard_normal((40, 70)).astype(np.float32),
        "bias": rng.standard_normal(70).astype(np.float32),
    }
    content = save(arrays)
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length] + b" " * spaces
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(packed(header, content[8 + length :]))
    stored = {name: tensor.array() for name, tensor in read_folder(tmp_path).tensors.items()}
    assert all(array.flags.aligned == (spaces % 4 == 0) for array in stored.values())
    ids = np.array([49, 0, 7], np.int32)
    results = []
    for weights in (arrays, stored):
        graph = Graph()
        rows = graph.add("gather", [graph.add_weight("table", weights["table"]), graph.add_input("ids", IDS)], axis=0)
        product = graph.add("matmul", [rows.output, graph.add_weight("matrix", weights["matrix"])])
        graph.outputs["y"] = graph.add("add", [product.output, graph.add_weight("bias", weights["bias"])]).output
        results += InferenceSession(graph, strict=True).run(None, {"ids": ids})
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (64, 32), (9, 100), (100, 9)])
@pytest.mark.parametrize("shift", [0, 1])
def test_packing_reads_no_byte_beyond(
    transposed: bool, shape: tuple[int, int], shift: int, rng: np.random.Generator
) -> None:
    """S12: a matrix that ends where the mapping ends is packed without touching the page behind."""
    matrix = rng.standard_normal(shape).astype(np.float32)
    n, k = shape if transposed else shape[::-1]
    panels = [np.zeros(-(-n // 32) * 32 * k, np.float32) for _ in range(2)]
    with before_unmapped_page(matrix.nbytes + shift) as room:
        at_end = room[: matrix.nbytes] if shift else room
        at_end[:] = matrix.reshape(-1).view(np.uint8)
        pack_panels(F32, [at_end.view(np.float32).reshape(shape)], panels[0], transposed)
    pack_panels(F32, [matrix], panels[1], transposed)
    assert panels[0].tobytes() == panels[1].tobytes()


@contextlib.contextmanager
def before_unmapped_page(nbytes: int) -> Iterator[np.ndarray]:
    """Bytes whose last one is the last of a page, with an unreadable page behind it."""
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = mmap.mmap(-1, pages + mmap.PAGESIZE)
    block = np.frombuffer(whole, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    behind = ctypes.c_void_p(block.ctypes.data + pages)
    assert protect(behind, mmap.PAGESIZE, 0) == 0
    try:
        yield block[pages - nbytes : pages]
    finally:
        assert protect(behind, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0

"""Products and tables with f16 weights: bits of f32 panels with the same numbers, packing, casts, a model of f16."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot import InferenceSession
from ingot.ir.dtype import f16, f32
from ingot.ir.graph import Graph, TensorType
from kernel_calls import ISAS, at_page_end, element_strides, every, run, ways
from products import gate_packed, packed, product_fields, random
from stored_products import compiled, expect_emitted, products_of

pytestmark = pytest.mark.native

SHAPES = [
    (1, 1, 1), (1, 200, 33), (1, 257, 513), (2, 33, 5), (3, 64, 257), (4, 31, 601), (5, 32, 16), (7, 17, 3),
    (12, 96, 256), (13, 65, 300), (25, 3, 1024), (5, 40, 0), (0, 8, 4), (26, 16, 301),
]  # fmt: skip


def narrow(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of f16, some of them denormal and some large."""
    numbers = random(*shape, seed=seed).astype(np.float16)
    numbers.ravel()[::7] *= np.float16(2**-13)
    numbers.ravel()[::11] *= np.float16(2**7)
    return numbers


def evened(panels: np.ndarray) -> np.ndarray:
    """Panels [n / 32][k][32], with a row of zeros behind an odd k."""
    odd = panels.shape[1] % 2
    return np.concatenate([panels, np.zeros_like(panels[:, :odd])], axis=1).astype(np.float16)


@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_the_bits_of_f32_panels(index: int, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    b, fields = narrow(k, n, seed=1), product_fields(index, shape)
    wide = packed(b.astype(np.float32))
    expected = every("gemm_f32_packed", fields | {"b": at_page_end(wide)}, "c", (m, n), row_pad=5)
    stored = fields | {"b": at_page_end(evened(wide).view(np.uint16))}
    for kernel in ["gemm_f32_f16_packed"] + ["gemv_f32_f16_packed"] * (m <= 4):
        assert every(kernel, stored, "c", (m, n), row_pad=5).tobytes() == expected.tobytes()


@pytest.mark.parametrize("m, n, k", [(1, 16, 41), (4, 160, 300), (13, 32, 258), (25, 80, 515), (6, 48, 0)])
@pytest.mark.parametrize("gate", [1, 2])
def test_the_bits_of_f32_gate_panels(m: int, n: int, k: int, gate: int) -> None:
    a, b = random(m, k), narrow(k, 2 * n, seed=1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": at_page_end(a, 1), "a_stride": k + 1, "c_stride": n + 5}
    fields |= {"activation": 4, "gate": gate, "bias": at_page_end(random(2 * n, seed=2))}
    whole = gate_packed(b.astype(np.float32))
    expected = every("gemm_f32_gated", fields | {"b": whole}, "c", (m, n), row_pad=5)
    stored = fields | {"b": at_page_end(evened(whole.reshape(len(whole), k, 32)).view(np.uint16))}
    assert every("gemm_f32_f16_gated", stored, "c", (m, n), row_pad=5).tobytes() == expected.tobytes()


@pytest.mark.parametrize("n, k", [(1, 1), (31, 9), (32, 16), (33, 17), (64, 0), (0, 5), (40, 83)])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_pack(n: int, k: int, layout: str) -> None:
    b = np.random.default_rng(7).integers(0, 1 << 16, (k, n), np.uint16)  # every pattern: packing moves, and no more
    if layout == "columns":
        placed = at_page_end(np.ascontiguousarray(b.T)).T
    else:
        placed = at_page_end(b) if layout == "rows" else at_page_end(np.repeat(b, 2, axis=1))[:, ::2]
    expected = np.zeros((-(-n // 32), -(-k // 2) * 2, 32), np.uint16)
    for i, j in np.ndindex(k, n):
        expected[j // 32, i, j % 32] = b[i, j]
    k_stride, n_stride = element_strides(placed)
    for isa, parts in ways():
        target = at_page_end(np.full(expected.shape, 0xA5A5, np.uint16))
        fields = {"src": placed, "n": n, "k": k, "k_stride": k_stride, "n_stride": n_stride, "dst": target}
        run("pack_f16", isa, parts, fields)
        np.testing.assert_array_equal(target, expected)


def test_casts_of_every_number() -> None:
    """All f16 there are, and floats at, below and above the middle between neighbours; each NaN becomes one."""
    every_f16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = every_f16[np.isfinite(every_f16)].astype(np.float32)
    middle = (numbers + np.roll(numbers, 1)) / 2
    floats = np.concatenate([numbers, middle, *(np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf))])
    special = np.float32([np.nan, -np.nan, np.inf, -np.inf, 65519.9, 65520, 1e-8, -1e-30, 1e38])
    floats = np.concatenate([floats, special])
    for source, target, given in ((f16, f32, every_f16), (f32, f16, floats)):
        graph = Graph("cast")
        graph.add_input("x", TensorType(source, given.shape))
        graph.set_output("y", graph.add("cast", ["x"], dtype=target).output)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = given.astype(target.numpy)
        results = []
        for isa in ISAS:
            program, (kernel,) = compiled(graph, isa=isa)
            results.append(program.run([given])[0].copy())
            assert kernel == f"cast_{source}_{target}"
            assert results[-1].tobytes() == results[0].tobytes()
        np.testing.assert_array_equal(np.isnan(results[0]), np.isnan(expected))
        kept = ~np.isnan(expected)
        assert results[0][kept].tobytes() == expected[kept].tobytes()


def model(rows: int, k: int, half: int, stored: object = np.float16) -> Graph:
    """stored: the dtype of the file; f32 weights hold the same numbers."""

    def weight(graph: Graph, name: str, *shape: int) -> str:
        data = (np.random.default_rng([*name.encode()]).standard_normal(shape) / 4).astype(np.float16)
        added = graph.add_weight(name, data.astype(stored))
        return added if stored is np.float32 else graph.add("cast", [added], dtype=f32).output

    return products_of(weight, rows, k, half)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("k, half", [(64, 80), (33, 48)])
def test_f16_files_have_the_bits_of_f32_files(rows: int, k: int, half: int) -> None:
    ids = np.random.default_rng(1).integers(-100, 100, rows).astype(np.int32)
    expected = compiled(model(rows, k, half, np.float32))[0].run([ids])
    for isa, threads in itertools.product(ISAS, (1, 3)):
        stored, kernels = compiled(model(rows, k, half), isa=isa, threads=threads)
        products = [kernel for kernel in kernels if kernel.startswith("gem")]
        assert len(products) == 4 and all("f32_f16" in kernel for kernel in products)
        assert sorted(kernels[:2]) == ["gather_f16", "gather_f16_panels"]
        for got, wanted in zip(stored.run([ids]), expected, strict=True):
            assert got.tobytes() == wanted.tobytes(), (isa, threads)


def test_no_weight_is_stored_in_f32() -> None:
    program, _ = compiled(model(3, 64, 96))
    assert program.single is not None
    packed_weights = [t.packed_weight for t in program.single.lowered.tensors.values() if t.packed_weight is not None]
    assert {packed_weight.dtype for packed_weight in packed_weights} == {f16}
    elements = 128 * 64 + 100 * 64 + 96 * 64 + 192 * 64 + 64 * 96
    assert sum(packed_weight.nbytes for packed_weight in packed_weights) == 2 * elements


def test_emitted(tmp_path) -> None:
    """Panels and tables of f16 in plain C."""
    expect_emitted(model(3, 33, 48), tmp_path)


def test_a_model_of_f16_is_half_of_one_of_f32(tmp_path) -> None:
    """A layer gives the rounded sums of the same layer of f32, and a session keeps no wider copy of its matrix."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((9, 301)).astype(np.float16), (rng.standard_normal((301, 640)) / 16).astype(np.float16)
    sessions = {}
    for kind, dtype in ((TensorProto.FLOAT16, np.float16), (TensorProto.FLOAT, np.float32)):
        ports = [helper.make_tensor_value_info(name, kind, (9, n)) for name, n in (("x", 301), ("y", 640))]
        weights = [numpy_helper.from_array(w.astype(dtype), "w")]
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], weights)
        path = tmp_path / f"{np.dtype(dtype)}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        sessions[dtype] = InferenceSession(path)
    (narrow,), (wide,) = (session.run(None, {"x": x.astype(dtype)}) for dtype, session in sessions.items())
    assert narrow.tobytes() == wide.astype(np.float16).tobytes()
    assert 2 * sessions[np.float16].weight_bytes <= 1.01 * sessions[np.float32].weight_bytes

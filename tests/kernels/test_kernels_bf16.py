"""Products with bf16 weights: bits of f32 panels with the same numbers, dot products against their definition, packing,
and what lowering makes of weights that are stored as bf16.
"""

import itertools

import numpy as np
import pytest
from ml_dtypes import bfloat16

from ingot.ir.dtype import bf16, f32, i64
from ingot.ir.graph import Graph, TensorType
from ingot.lower.cpu.formats import BF16
from ingot.lower.packed_weight import make_packed_weight
from ingot.lower.weight_expr import weight_expr
from ingot.run.interpret import interpret
from ingot.run.store import WeightStore
from ingot.support import abi
from kernel_calls import DOT_ISAS, ISAS, SPLIT_ISAS, at_page_end, blank, element_strides, every, run, ways
from products import gamma, gate_packed, packed, product_fields, random, summed
from stored_products import compiled, expect_emitted, products_of

pytestmark = pytest.mark.native

PLAIN_ROWS = 16  # lowering keeps f32 arithmetic for so many


def narrow(*shape: int, seed: int = 0) -> np.ndarray:
    return random(*shape, seed=seed).astype(bfloat16)


def pairs(b: np.ndarray) -> np.ndarray:
    """Panels [n / 32][k / 2][32][2] of b[k, n], or of gate panels [panels, k, 2, 16]."""
    panels = packed(b.astype(np.float32)) if b.ndim == 2 else b.astype(np.float32).reshape(len(b), b.shape[1], 32)
    if panels.shape[1] % 2:
        panels = np.concatenate([panels, np.zeros_like(panels[:, :1])], axis=1)
    split = panels.reshape(len(panels), panels.shape[1] // 2, 2, 32).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(split).astype(bfloat16)


SHAPES = [
    (1, 1, 1), (1, 200, 33), (1, 257, 513), (2, 33, 5), (3, 64, 257), (4, 100, 40), (4, 31, 601), (5, 32, 16),
    (7, 17, 3), (12, 96, 256), (13, 65, 300), (13, 40, 255), (25, 3, 1024), (5, 40, 0), (0, 8, 4), (26, 16, 301),
]  # fmt: skip


@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_the_bits_of_f32_panels(index: int, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, fields = random(m, k), narrow(k, n, seed=1), product_fields(index, shape)
    wide, stored = at_page_end(packed(b.astype(np.float32))), at_page_end(pairs(b).view(np.uint16))
    expected = every("gemm_f32_packed", fields | {"b": wide}, "c", (m, n), row_pad=5)
    for kernel in ["gemm_f32_bf16_packed"] + ["gemv_f32_bf16_packed"] * (m <= 4):
        assert every(kernel, fields | {"b": stored}, "c", (m, n), row_pad=5).tobytes() == expected.tobytes()
    exact = a.astype(float) @ b.astype(float)
    plain = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": a, "a_stride": k, "c_stride": n, "b": stored}
    bound = 1.2 * gamma(k) * (abs(a).astype(float) @ abs(b.astype(float))) + 5e-7
    assert (abs(every("gemm_f32_bf16_packed", plain, "c", (m, n)) - exact) <= bound).all()


@pytest.mark.parametrize("m, n, k", [(1, 16, 41), (4, 160, 300), (5, 48, 1), (13, 32, 258), (25, 80, 515), (6, 48, 0)])
@pytest.mark.parametrize("gate", [1, 2])
def test_the_bits_of_f32_gate_panels(m: int, n: int, k: int, gate: int) -> None:
    a, b = random(m, k), narrow(k, 2 * n, seed=1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": at_page_end(a, 1), "a_stride": k + 1, "c_stride": n + 5}
    fields |= {"activation": 4, "gate": gate, "bias": at_page_end(random(2 * n, seed=2))}
    whole = gate_packed(b.astype(np.float32))
    expected = every("gemm_f32_gated", fields | {"b": whole}, "c", (m, n), row_pad=5)
    stored = fields | {"b": at_page_end(pairs(whole).view(np.uint16))}
    assert every("gemm_f32_bf16_gated", stored, "c", (m, n), row_pad=5).tobytes() == expected.tobytes()


DOTS = [(1, 33, 2), (4, 40, 600), (5, 64, 1024), (13, 300, 514), (25, 16, 64), (30, 96, 1026), (3, 8, 0)]


@pytest.mark.parametrize("m, n, k", DOTS)
def test_split_sums(m: int, n: int, k: int) -> None:
    """The definition on every instruction set; a row does not depend on the other rows."""
    a, b = narrow(m, k), narrow(k, n, seed=1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a_stride": k, "c_stride": n, "split_sums": 1}
    fields |= {"a": at_page_end(a.view(np.uint16)), "b": at_page_end(pairs(b).view(np.uint16))}
    result = every("gemm_bf16_packed", fields, "c", (m, n), isas=SPLIT_ISAS)
    assert (result == summed(a, b)).all()
    for i in range(m):
        alone = blank((1, n))
        row = fields | {"m": 1, "a": at_page_end(a[i].view(np.uint16)), "c": alone}
        run("gemv_bf16_packed", SPLIT_ISAS[-1], 1, row)
        assert alone.tobytes() == result[i].tobytes()


@pytest.mark.parametrize("kept", [0xFFFF, 0x9FFF], ids=["any", "products near the least"])
def test_split_sums_of_all_patterns(kept: int) -> None:
    """One definition on every instruction set; which NaN is nobody's business."""
    a, b = np.random.default_rng(5).integers(0, 1 << 16, (2, 64, 64), np.uint16) & np.uint16(kept)
    fields = {"m": 64, "n": 64, "k": 64, "alpha": 1.0, "a": a, "a_stride": 64, "c_stride": 64, "split_sums": 1}
    fields["b"] = pairs(b.view(bfloat16)).view(np.uint16)
    results = set()
    for isa in SPLIT_ISAS:
        c = blank((64, 64))
        run("gemm_bf16_packed", isa, 1, fields | {"c": c})
        results.add(np.where(np.isnan(c), np.float32(0), c).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("m, n, k", DOTS)
def test_dots(m: int, n: int, k: int) -> None:
    """The definition on every set; a row does not depend on the other rows; near float64 on rounded numbers."""
    a, b, bias = narrow(m, k), narrow(k, n, seed=1), random(n, seed=2)
    if k:
        a[0, 0], b[0, 0] = 1e-39, 3e-39  # denormals count as zeros
    x = at_page_end(a.view(np.uint16))
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": x, "a_stride": k, "c_stride": n, "activation": 4}
    fields |= {"b": at_page_end(pairs(b).view(np.uint16)), "bias": at_page_end(bias)}
    result = every("gemm_bf16_packed", fields, "c", (m, n), isas=DOT_ISAS)
    linear = a.astype(float) @ b.astype(float) + bias
    bound = 2.4 * gamma(k) * (abs(a.astype(float)) @ abs(b.astype(float)) + abs(bias)) + 1e-6
    assert (abs(result - linear / (1 + np.exp(-linear))) <= bound).all()
    for i in range(m):
        alone = blank((1, n))
        run("gemm_bf16_packed", DOT_ISAS[-1], 1, fields | {"m": 1, "a": at_page_end(a[i].view(np.uint16)), "c": alone})
        assert alone.tobytes() == result[i].tobytes()


def test_gated_dots() -> None:
    m, n, k = 29, 48, 130
    a, b = narrow(m, k), narrow(k, 2 * n, seed=1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": a, "a_stride": k, "c_stride": n}
    gated = fields | {"b": pairs(gate_packed(b.astype(np.float32))), "activation": 4, "gate": 1}
    halves = []
    for half, activation in ((b[:, :n], 4), (b[:, n:], 0)):
        halves.append(
            every("gemm_bf16_packed", fields | {"b": pairs(half), "activation": activation}, "c", (m, n), isas=DOT_ISAS)
        )
    assert every("gemm_bf16_gated", gated, "c", (m, n), isas=DOT_ISAS).tobytes() == (halves[0] * halves[1]).tobytes()


@pytest.mark.parametrize("n, k", [(1, 1), (31, 9), (32, 16), (33, 17), (100, 40), (64, 0), (0, 5), (40, 83)])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_pack(n: int, k: int, layout: str) -> None:
    b = np.random.default_rng(7).integers(0, 1 << 16, (k, n), np.uint16)  # every pattern: packing moves, and no more
    if layout == "columns":
        placed = at_page_end(np.ascontiguousarray(b.T)).T
    elif layout == "rows":
        placed = at_page_end(b)
    else:
        placed = at_page_end(np.repeat(b, 2, axis=1))[:, ::2]
    expected = np.zeros((-(-n // 32), -(-k // 2), 32, 2), np.uint16)
    for i, j in np.ndindex(k, n):
        expected[j // 32, i // 2, j % 32, i % 2] = b[i, j]
    k_stride, n_stride = element_strides(placed)
    for isa, parts in ways():
        target = at_page_end(np.full(expected.shape, 0xA5A5, np.uint16))
        fields = {"src": placed, "n": n, "k": k, "k_stride": k_stride, "n_stride": n_stride, "dst": target}
        run("pack_bf16", isa, parts, fields)
        np.testing.assert_array_equal(target, expected)


# -- whole models -----------------------------------------------------------------------------------------------


def model(rows: int, k: int, half: int, stored: object = bfloat16, seed: int = 0) -> Graph:
    """stored: the dtype of the file; f32 weights hold the same bf16 numbers."""

    def weight(graph: Graph, name: str, *shape: int) -> str:
        data = (np.random.default_rng([seed, *name.encode()]).standard_normal(shape) / 4).astype(bfloat16)
        added = graph.add_weight(name, data.astype(stored))
        return added if stored is np.float32 else graph.add("cast", [added], dtype=f32).output

    return products_of(weight, rows, k, half)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("k, half", [(64, 80), (33, 48)])
def test_bf16_files_have_the_bits_of_f32_files(rows: int, k: int, half: int) -> None:
    ids = np.random.default_rng(1).integers(-100, 100, rows).astype(np.int32)
    wide, _ = compiled(model(rows, k, half, np.float32))
    expected = wide.run([ids])
    for isa, threads in itertools.product(ISAS, (1, 2, 3)):
        stored, kernels = compiled(model(rows, k, half), isa=isa, threads=threads)
        products = [kernel for kernel in kernels if kernel.startswith("gem")]
        assert len(products) == 4 and all("f32_bf16" in kernel for kernel in products)
        assert kernels[:2] == ["gather_bf16_panels", "gather_bf16"] or kernels[:2] == [
            "gather_bf16",
            "gather_bf16_panels",
        ]
        for got, wanted in zip(stored.run([ids]), expected, strict=True):
            assert got.tobytes() == wanted.tobytes(), (isa, threads)


def test_dots_are_for_many_rows_and_wanted_ones() -> None:
    ids = np.random.default_rng(1).integers(0, 100, 40).astype(np.int32)
    exact = interpret(model(40, 64, 80), {"ids": ids}, float64=True)
    first = None
    for isa, threads in itertools.product(DOT_ISAS, (1, 2, 3)):
        program, kernels = compiled(model(40, 64, 80), isa=isa, threads=threads, rounded=(bf16,))
        assert sum(kernel.startswith("gemm_bf16") for kernel in kernels) == 4
        results = program.run([ids])
        for got, wanted in zip(results, exact.values(), strict=True):
            assert abs(got - wanted).max() <= 0.02 * abs(wanted).max()
        first = first or results
        assert [r.tobytes() for r in results] == [r.tobytes() for r in first]
    for rows, wanted in ((PLAIN_ROWS, (bf16,)), (40, ())):
        _, kernels = compiled(model(rows, 64, 80), rounded=wanted)
        assert not any(kernel.startswith("gemm_bf16") for kernel in kernels)
    _, kernels = compiled(model(40, 33, 48), rounded=(bf16,))  # 33 elements are no pairs
    assert [kernel for kernel in kernels if kernel.startswith("gemm_bf16")] == ["gemm_bf16_packed"]
    (few,) = compiled(model(8, 64, 80), rounded=(bf16,))[0].native
    choices = {kernel: why for choice in few.lowered.choices for kernel, why in choice.candidates}
    assert choices["gemm_bf16_packed"] == "8 rows, expected more than 16"


def test_no_weight_is_stored_in_f32() -> None:
    """The panels take two bytes an element, and the untied table stays in its file."""
    program, _ = compiled(model(3, 64, 96))
    assert program.single is not None
    packed_weights = [t.packed_weight for t in program.single.lowered.tensors.values() if t.packed_weight is not None]
    assert {packed_weight.dtype for packed_weight in packed_weights} == {bf16}
    elements = 128 * 64 + 100 * 64 + 96 * 64 + 192 * 64 + 64 * 96
    assert sum(packed_weight.nbytes for packed_weight in packed_weights) == 2 * elements


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("layout", ["panels", "gate_panels"])
def test_f32_files_are_rounded_as_they_are_packed(transposed: bool, layout: str) -> None:
    data = random(64, 40) if transposed else random(40, 64)
    graph = Graph("rounded")
    graph.add("cast", [graph.add_weight("w", data)], "rounded", dtype=bf16)
    made = WeightStore(2).array(make_packed_weight(weight_expr(graph, "rounded"), layout, transposed, BF16))
    b = data.T if transposed else data
    whole = b if layout == "panels" else gate_packed(b)
    assert made.tobytes() == pairs(whole.astype(bfloat16)).tobytes()


def test_emitted(tmp_path) -> None:
    """Panels and tables of bf16 in plain C."""
    expect_emitted(model(3, 33, 48), tmp_path)


def test_a_table_that_is_fed_is_no_stored_one() -> None:
    graph = Graph("fed")
    graph.add_input("table", TensorType(bf16, (8, 4)))
    graph.add_input("ids", TensorType(i64, (3,)))
    graph.add("cast", ["table"], "rows", dtype=f32)
    graph.set_output("y", graph.add("gather", ["rows", "ids"], "y", axis=0).output)
    table, ids = random(8, 4).astype(bfloat16), np.array([7, 0, 2])
    program, kernels = compiled(graph)
    assert "gather_i64" in kernels
    assert program.run([table, ids])[0].tobytes() == table.astype(np.float32)[ids].tobytes()


@pytest.mark.parametrize("m, n, k", [(1, 33, 2), (13, 65, 300), (40, 96, 515), (30, 7, 1), (5, 40, 0)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_products_that_pack_a_stored_matrix(m: int, n: int, k: int, is_transposed: bool) -> None:
    """The bits of the same numbers as floats, in either layout."""
    a, stored = at_page_end(random(m, k)), narrow(*((n, k) if is_transposed else (k, n)), seed=1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": a, "a_stride": k, "c_stride": n + 3, "bias": random(n, seed=2)}
    fields |= {"b_k_stride": 1 if is_transposed else n, "b_n_stride": k if is_transposed else 1, "batch_rank": 0}
    size = {"row_pad": 3, "scratch": abi.scratch_floats("matmul_f32", {"k": k + 2, "n": n})}
    expected = every("matmul_f32", fields | {"b": stored.astype(np.float32)}, "c", (m, n), **size)
    found = every("matmul_f32_bf16", fields | {"b": at_page_end(stored.view(np.uint16))}, "c", (m, n), **size)
    assert found.tobytes() == expected.tobytes()

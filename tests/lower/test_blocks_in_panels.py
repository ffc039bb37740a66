"""Matrices of blocks of GGUF files: what lowering makes of them, and that bits are one."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.ir.dim import symbol
from ingot.ir.dtype import f32, i4, i8, i32, i64, u4, u8
from ingot.ir.graph import Graph, TensorType
from ingot.ops.blocks import BLOCKS
from ingot.run.interpret import interpret
from kernel_calls import ISAS
from stored_products import compiled, products_of, stored_blocks

pytestmark = pytest.mark.native

K = 512


def model(rows: int, type: str, half: int = 48) -> Graph:
    return products_of(lambda graph, name, n, k: stored_blocks(graph, name, n, k, type), rows, K, half)


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("dtype, rounds, tolerance", [(i8, "", 0.05), (i32, "i24_", 2e-6)])
def test_models_of_blocks(dtype: object, rounds: str, tolerance: float, type: str) -> None:
    """Every product and table takes them as they are; the same bits on every set, for any threads and rows."""
    ids = np.random.default_rng(1).integers(-100, 100, 40).astype(np.int32)
    graph = model(40, type, 256)
    exact = interpret(graph, {"ids": ids}, float64=True)
    name, first = {"q4_0": "int4", "q8_0": "int8"}.get(type, type), None
    for isa, threads in itertools.product(ISAS, (1, 3)):
        program, kernels = compiled(graph, rounded=(dtype,), isa=isa, threads=threads)
        products = {f"gemm_{rounds}{name}_packed", f"gemm_{rounds}{name}_gated"}
        assert {k for k in kernels if k.startswith("gem")} <= products
        assert {k for k in kernels if k.startswith("gather")} == {f"gather_{name}_panels"}
        results = program.run([ids])
        first = first or results
        assert [r.tobytes() for r in results] == [r.tobytes() for r in first], (isa, threads)
    assert first is not None
    for got, wanted in zip(first, exact.values(), strict=True):
        assert abs(got - wanted).max() <= tolerance * abs(wanted).max()
    for rows in (1, 7):
        program, _ = compiled(model(rows, type, 256), rounded=(dtype,))
        for few, many in zip(program.run([ids[:rows]]), first, strict=True):
            assert few.tobytes() == many[:rows].tobytes()


def experts_and_each(rows: int, type: str, count: int = 3, n: int = 64) -> tuple[Graph, Graph]:
    """Products of rows with experts of blocks, f32[rows, 2, n], and with each expert alone."""
    both, each = Graph("experts"), Graph("each")
    x = both.add_input("x", TensorType(f32, (rows, 1, K)))
    chosen = both.add_input("chosen", TensorType(i64, (rows, 2)))
    experts = both.add("reshape", [stored_blocks(both, "w", count * n, K, type)], shape=(count, n, K)).output
    both.set_output("y", both.add("expert_matmul", [x, chosen, experts], "y").output)
    alone, weight = each.add_input("x", TensorType(f32, (rows, K))), stored_blocks(each, "w", count * n, K, type)
    for expert in range(count):
        stops = ((expert + 1) * n, K)
        part = each.add("slice", [weight], starts=(expert * n, 0), stops=stops, steps=(1, 1)).output
        each.set_output(f"y{expert}", each.add("matmul", [alone, part], transpose_b=True).output)
    return both, each


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("dtype, rounds", [(i8, ""), (i32, "i24_")])
def test_experts_of_blocks(dtype: object, rounds: str, type: str) -> None:
    """The bits of products with each expert, on every set and for any threads."""
    name, random = {"q4_0": "int4", "q8_0": "int8"}.get(type, type), np.random.default_rng(4)
    x, chosen = random.standard_normal((40, 1, K), np.float32), random.integers(0, 3, (40, 2))
    both, each = experts_and_each(40, type)
    products = np.stack(compiled(each, rounded=(dtype,))[0].run([x[:, 0]]), 1)
    expected = np.take_along_axis(products, chosen[:, :, None], 1)
    for isa, threads in itertools.product(ISAS, (1, 3)):
        program, kernels = compiled(both, rounded=(dtype,), isa=isa, threads=threads)
        assert f"expert_matmul_{rounds}{name}_packed" in kernels
        np.testing.assert_array_equal(program.run([x, chosen])[0], expected)


@pytest.mark.parametrize(
    "type, starts, kernel",
    [
        ("q4_k", (32, 0), "gemm_q4_k_packed"),
        ("q8_0", (32, 0), "gemm_int8_packed"),  # a row has more bytes than elements
        ("q4_k", (0, 256), "gemm_f32_packed"),
    ],
)
def test_rows_are_gathered_whole(type: str, starts: tuple[int, int], kernel: str) -> None:
    """Some rows of a matrix of blocks are one; some columns are decoded."""
    graph = Graph("part")
    x = graph.add_input("x", TensorType(f32, (9, K - starts[1])))
    weight = stored_blocks(graph, "w", 96, K, type)
    part = graph.add("slice", [weight], "part", starts=starts, stops=(96, K), steps=(1, 1)).output
    graph.set_output("y", graph.add("matmul", [x, part], "y", transpose_b=True).output)
    program, kernels = compiled(graph, rounded=(i8,))
    rows = np.random.default_rng(2).standard_normal((9, K - starts[1]), np.float32)
    assert kernels[-1] == kernel
    (exact,) = interpret(graph, {"x": rows}, float64=True).values()
    assert abs(program.run([rows])[0] - exact).max() <= 0.02 * abs(exact).max()


def coded(graph: Graph, how: str) -> str:
    """A matrix [64, 512], decoded from something that takes less than a byte for an element."""
    generator = np.random.default_rng(3)
    if how == "blocks":
        return stored_blocks(graph, "w", 64, K, "q4_k")
    scales = graph.add_weight("s", generator.random((64, K // 32), np.float32))
    if how == "codes":
        codes = graph.add_weight("w", generator.integers(-8, 8, (64, K)).astype(i4.numpy))
    else:
        packed = graph.add_weight("w", generator.integers(0, 255, (64, K // 2)).astype(u8.numpy))
        codes = graph.add("unpack", [packed], "codes", dtype=u4, axis=1).output
    return graph.add("dequantize", [codes, scales], "decoded", axis=1, block=32, dtype=f32).output


@pytest.mark.parametrize("how", ["blocks", "codes", "packed codes"])
def test_a_saved_program_of_any_rows_keeps_panels_alone(how: str, tmp_path: Path) -> None:
    graph = Graph("saved")
    x = graph.add_input("x", TensorType(f32, (symbol("N"), K)))
    graph.set_output("y", graph.add("matmul", [x, coded(graph, how)], "y", transpose_b=True).output)
    first, feeds = ingot.InferenceSession(graph.copy()), {"x": np.ones((3, K), np.float32)}
    expected = first.run(None, feeds)[0]
    first.save(tmp_path / "program")
    assert (tmp_path / "program" / "weights.bin").stat().st_size < 64 * K * 4 + 4096
    np.testing.assert_array_equal(ingot.InferenceSession(tmp_path / "program").run(None, feeds)[0], expected)

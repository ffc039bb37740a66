"""A mixture of experts: its product and its choice, against float64 and bit for bit among ISAs, parts and batches."""

import itertools
from typing import Any

import numpy as np
import pytest

from ingot import InferenceSession, InputError
from ingot.ir.dtype import bf16, f32, i64
from ingot.ir.graph import Graph, TensorType
from ingot.ops.linear import expert_matmul
from ingot.run.interpret import interpret
from kernel_calls import ISAS, LIBRARY, bits, close, element_strides, every, run, ways
from stored_products import compiled

pytestmark = pytest.mark.native

PANEL = 32


def packed(experts: np.ndarray) -> np.ndarray:
    """[count, n, k] as panels [count][n / 32][k][32]."""
    count, n, k = experts.shape
    padded = np.zeros((count, -(-n // PANEL) * PANEL, k), np.float32)
    padded[:, :n] = experts
    return np.ascontiguousarray(padded.reshape(count, -1, PANEL, k).transpose(0, 1, 3, 2))


def multiplied(x: np.ndarray, chosen: np.ndarray, experts: np.ndarray, expected_fault: int = 0) -> np.ndarray:
    (count, n, k), (rows, slots) = experts.shape, chosen.shape
    panels, fault = packed(experts), LIBRARY.ffi.new("ingot_fault *")
    stride = 48 * (k + 16)
    strides = element_strides(np.broadcast_to(x, (rows, slots, k)))[:2]
    fields: dict[str, Any] = {
        "x": x, "chosen": chosen, "experts": panels,
        "fault": fault, "step": 5, "rows": rows,
        "slots": slots, "n": n, "k": k, "count": count, "x_strides": strides,
    }  # fmt: skip
    result = every("expert_matmul_f32_packed", fields, "out", (rows, slots, n), scratch=stride)
    assert fault.code == expected_fault
    return result


@pytest.mark.parametrize(
    "rows, slots, n, k, count", [(1, 3, 33, 300, 4), (5, 2, 64, 7, 3), (70, 2, 16, 40, 3), (200, 1, 70, 9, 2)]
)
@pytest.mark.parametrize("is_shared", [True, False])
def test_expert_matmul(rows: int, slots: int, n: int, k: int, count: int, is_shared: bool):
    rng = np.random.default_rng(rows)
    x = rng.uniform(-1, 1, (rows, 1 if is_shared else slots, k)).astype(np.float32)
    experts = rng.uniform(-1, 1, (count, n, k)).astype(np.float32)
    chosen = rng.integers(0, count, (rows, slots))
    result = multiplied(x, chosen, experts)
    close(result, expert_matmul(x.astype(np.float64), chosen, experts.astype(np.float64)), 1e-5)
    alone = multiplied(x[-1:], chosen[-1:], experts)
    np.testing.assert_array_equal(bits(alone[0]), bits(result[-1]))


@pytest.mark.parametrize("rows, kernel", [(17, "expert_matmul_bf16_packed"), (16, "expert_matmul_f32_bf16_packed")])
def test_experts_in_bf16(rows: int, kernel: str):
    """Many rows are rounded to bf16, as those of a product are, and their bits are a product's."""
    rng = np.random.default_rng(rows)
    both, each = Graph(), Graph()
    stored = rng.standard_normal((3, 40, 66)).astype(bf16.numpy)
    both.add_input("x", TensorType(f32, (rows, 1, 66)))
    both.add_input("chosen", TensorType(i64, (rows, 2)))
    experts = both.add("cast", [both.add_weight("w", stored)], dtype=f32).output
    both.set_output("y", both.add("expert_matmul", ["x", "chosen", experts]).output)
    each.add_input("x", TensorType(f32, (rows, 66)))
    for i in range(3):
        matrix = each.add("cast", [each.add_weight(f"w{i}", stored[i])], dtype=f32).output
        each.set_output(f"y{i}", each.add("matmul", ["x", matrix], transpose_b=True).output)
    x, chosen = rng.standard_normal((rows, 1, 66)).astype(np.float32), rng.integers(0, 3, (rows, 2))
    products = np.stack(compiled(each, rounded=(bf16,), split_sums=False)[0].run([x[:, 0]]), 1)
    expected = np.take_along_axis(products, chosen[:, :, None], 1)
    for isa, threads in itertools.product(ISAS, (1, 3)):
        program, kernels = compiled(both, rounded=(bf16,), isa=isa, threads=threads, split_sums=False)
        assert kernel in kernels
        np.testing.assert_array_equal(bits(program.run([x, chosen])[0]), bits(expected))


@pytest.mark.parametrize("wrong", [-1, 3, 1 << 40])
def test_an_expert_that_is_not_there(wrong: int):
    """It is reported, and its result is zeros; the others are as they are."""
    rng = np.random.default_rng(0)
    x, experts = rng.random((2, 1, 5), np.float32), rng.random((3, 40, 5), np.float32)
    result = multiplied(x, np.array([[0, wrong], [2, 1]]), experts, expected_fault=2)
    assert not result[0, 1].any()
    close(result[1], expert_matmul(x, np.array([[0, 0], [2, 1]]), experts)[1], 1e-5)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("cols, k", [(17, 5), (128, 8), (9, 9), (1, 1), (40, 1), (700, 700), (3000, 64)])
def test_topk(cols: int, k: int, largest: bool):
    """Ties, zeros of both signs, infinities and NaN come in the reference's order."""
    from ingot.ops.index import topk

    rng = np.random.default_rng(cols)
    x = rng.integers(-4, 5, (23, cols)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.1] = np.inf
    x[rng.random(x.shape) < 0.1] = -0.0
    values, indices = topk(x, k=k, axis=1, largest=largest)
    for isa, parts in ways():
        out, found = np.full((23, k), 7, np.float32), np.full((23, k), -7)
        sizes = {"rows": 23, "cols": cols, "k": k, "x_stride": cols, "largest": int(largest)}
        run("topk_f32", isa, parts, {"x": x, "out": out, "indices": found, **sizes})
        np.testing.assert_array_equal(found, indices)
        np.testing.assert_array_equal(out, values)


def test_lowered_and_emitted_where_experts_are_constant():
    """The whole choice runs natively: scores, the best two, their products, a weighted sum; bits are those of a row."""
    rng = np.random.default_rng(3)
    graph = Graph()
    graph.add_input("x", TensorType(f32, (6, 20)))
    router = graph.add_weight("router", rng.standard_normal((4, 20)).astype(np.float32))
    names = [graph.add_weight(f"e{i}", rng.standard_normal((36, 20)).astype(np.float32)) for i in range(4)]
    shares = graph.add("softmax", [graph.add("matmul", ["x", router], transpose_b=True).output], axis=1).output
    weights, chosen = graph.add("topk", [shares], ["w", "i"], k=2, axis=1, largest=True).outputs
    each = [graph.add("reshape", [name], shape=(1, 36, 20)).output for name in names]
    experts = graph.add("concat", each, axis=0).output
    slots = graph.add("reshape", ["x"], shape=(6, 1, 20)).output
    results = graph.add("expert_matmul", [slots, chosen, experts]).output
    weights = graph.add("reshape", [weights], shape=(6, 2, 1)).output
    weighted = graph.add("mul", [results, weights]).output
    graph.set_output("y", graph.add("reduce_sum", [weighted], axes=(1,), keepdims=False).output)
    session = InferenceSession(graph, strict=True)
    x = rng.standard_normal((6, 20)).astype(np.float32)
    (got,) = session.run(None, {"x": x})
    close(got, interpret(graph, {"x": x}, float64=True)["y"], 1e-5)
    (repeated,) = InferenceSession(graph, strict=True, threads=1).run(None, {"x": np.repeat(x[2:3], 6, 0)})
    np.testing.assert_array_equal(bits(repeated), bits(np.repeat(got[2:3], 6, 0)))


def test_a_session_refuses_a_wrong_expert():
    graph = Graph()
    graph.add_input("x", TensorType(f32, (2, 1, 5)))
    graph.add_input("chosen", TensorType(i64, (2, 1)))
    experts = graph.add_weight("experts", np.ones((3, 8, 5), np.float32))
    graph.set_output("y", graph.add("expert_matmul", ["x", "chosen", experts]).output)
    session = InferenceSession(graph, strict=True)
    with pytest.raises(InputError, match=r"got 3, expected 0\.\.2"):
        session.run(None, {"x": np.ones((2, 1, 5), np.float32), "chosen": np.array([[0], [3]])})

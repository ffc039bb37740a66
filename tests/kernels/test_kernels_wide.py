"""Kernels of types of 64 bits, tables over kernel and dtype: numbers against the reference, bits with each other."""

import itertools
from typing import Any

import numpy as np
import pytest
from test_row_kernels import reduced

import ingot.ops
from differential import check_states, expect_same, native
from ingot.errors import InputError
from ingot.ir.dtype import DTYPES, f32, i64
from ingot.ir.graph import OPS, Graph, TensorType
from ingot.lower.view import contiguous_strides
from ingot.run.interpret import interpret
from ingot.support import abi
from ingot.support.abi import Elementwise
from kernel_calls import ISAS, close, element_strides, every

assert ingot.ops
pytestmark = pytest.mark.native

WIDE = ("f64", "i64", "u64")
SPECIAL: dict[str, list[Any]] = {
    "f64": [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e300, -1e300, 0.5, 2.5, -7.25, 3.0, 2.0**53],
    "i64": [0, 1, -1, 2, -3, 7, 63, 64, -(2**63), 2**63 - 1, 2**62],
    "u64": [0, 1, 2, 3, 7, 63, 64, 2**64 - 1, 2**63, 2**62 + 1],
}


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "f64":
        return rng.uniform(0.5, 1.5, shape)
    return rng.integers(0 if dtype == "u64" else -9, 2**40, shape).astype(DTYPES[dtype].numpy)


ELEMENTWISE = [kernel for kernel in abi.elementwise().values() if kernel.dtype in WIDE]


@pytest.mark.parametrize("kernel", ELEMENTWISE, ids=lambda kernel: kernel.kernel)
def test_elements(kernel: Elementwise) -> None:
    """Every special number with every other."""
    x = np.array(SPECIAL[kernel.dtype], DTYPES[kernel.dtype].numpy)
    operands = [x] if kernel.operands == 1 else [x[:, None], x]
    with np.errstate(all="ignore"):
        expected = OPS[kernel.op].function(*operands)
    shape = expected.shape
    fields: dict[str, Any] = {"rank": len(shape), "shape": shape, "out_strides": element_strides(np.empty(shape))}
    for name, operand in zip("ab", operands, strict=False):
        strides = [s // x.itemsize for s in np.broadcast_to(operand, shape).strides]
        fields |= {name: operand, f"{name}_strides": strides}
    expected = expected.view(np.uint8) if expected.dtype == np.bool_ else expected
    result = every(kernel.kernel, fields, "out", shape, dtype=expected.dtype)
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(result, expected)
        return
    finite = np.isfinite(expected) & np.isfinite(result)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    near = np.abs(result[finite] - expected[finite]) <= 1e-14 * np.abs(expected[finite])
    assert near.all(), (result[finite][~near], expected[finite][~near])


SHAPES = [((3, 17), (1,)), ((5, 33), (0,)), ((2, 3, 4), (0, 2)), ((4, 7), ()), ((0, 3), (1,)), ((3, 0), (1,))]
REDUCTIONS = [name for name in abi.kernels() if name.startswith("reduce_") and name[-3:] in WIDE]


@pytest.mark.parametrize("shape, axes", SHAPES)
@pytest.mark.parametrize("kernel", REDUCTIONS)
def test_reductions(kernel: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    op, _, dtype = kernel.rpartition("_")
    x = numbers(dtype, shape)
    with np.errstate(all="ignore"):
        expected = OPS[op].function(x, axes=axes, keepdims=False)
    result = reduced(kernel, x, axes, x.dtype)
    if dtype == "f64":
        close(result, expected, 1e-14)
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_positions(op: str, dtype: str) -> None:
    x = np.array(SPECIAL[dtype], DTYPES[dtype].numpy)
    for seed in range(8):
        shuffled = np.random.default_rng(seed).permutation(np.concatenate([x, x]))[: 3 + seed].reshape(1, -1)
        expected = OPS[op].function(shuffled, axis=1, keepdims=False)
        np.testing.assert_array_equal(reduced(f"{op}_{dtype}", shuffled, (1,), np.int64), expected)


@pytest.mark.parametrize("dtype", ("f32", "f64", "i64"))
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_running(op: str, dtype: str) -> None:
    for outer, count, inner in ((1, 40, 1), (3, 5, 7), (4, 1, 3), (2, 9, 1), (2, 3, 300)):
        x = numbers("f64" if dtype == "f32" else dtype, (outer, count, inner)).astype(DTYPES[dtype].numpy)
        fields = {"x": x, "outer": outer, "count": count, "inner": inner}
        result = every(f"{op}_{dtype}", fields, "out", x.shape, dtype=x.dtype)
        np.testing.assert_array_equal(result, OPS[op].function(x, axis=1))


@pytest.mark.parametrize("b_is_transposed", [False, True])
@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_products(dtype: str, b_is_transposed: bool) -> None:
    """Whole panels and less, read once and often: each sum in order."""
    for rows, k, columns in ((3, 37, 35), (1, 300, 64), (19, 8, 1), (21, 520, 33), (2, 0, 17), (1, 1, 1)):
        a = numbers(dtype, (rows, k))
        b = numbers(dtype, (columns, k), 5).T if b_is_transposed else numbers(dtype, (k, columns), 5)
        with np.errstate(over="ignore"):
            terms = a[:, :, None] * b[None]
            expected = terms.cumsum(1)[:, -1] if k else np.zeros((rows, columns), a.dtype)
        (a_row, a_k), (b_k, b_column) = element_strides(a), (s // b.itemsize for s in b.strides)
        fields = {
            "a": a, "b": b, "rank": 2, "shape": (rows, columns), "a_strides": (a_row, 0), "b_strides": (0, b_column),
            "out_strides": (columns, 1), "k": k, "a_k_stride": a_k, "b_k_stride": b_k,
        }  # fmt: skip
        kernel = f"product_{dtype}"
        np.testing.assert_array_equal(every(kernel, fields, "out", (rows, columns), dtype=a.dtype), expected)


@pytest.mark.parametrize("dtype", ["f64", "i64"])
def test_products_of_batches(dtype: str) -> None:
    """Matrices one by one, with vectors, and rows with rows."""
    a, b = numbers(dtype, (2, 9, 300)), numbers(dtype, (2, 18, 300), 5)
    kernel, each = f"product_{dtype}", {"k": 300, "a_k_stride": 1, "b_k_stride": 1}
    with np.errstate(over="ignore"):
        terms = (a[:, :, None] * b[:, None]).cumsum(-1)[..., -1]
    for shape, a_strides, b_strides, expected in (
        ((2, 9, 18), (2700, 300, 0), (5400, 0, 300), terms),
        ((2, 9), (2700, 300), (5400, 0), terms[:, :, 0]),
        ((9,), (300,), (300,), np.diagonal(terms[0])),
        ((), (), (), terms[0, 0, 0]),
    ):
        fields = {"a": a, "b": b, "rank": len(shape), "shape": shape, "a_strides": a_strides, "b_strides": b_strides}
        fields |= each | {"out_strides": contiguous_strides(shape)}
        np.testing.assert_array_equal(every(kernel, fields, "out", shape, dtype=a.dtype), expected)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype: str, largest: bool) -> None:
    x = np.tile(np.array(SPECIAL[dtype], DTYPES[dtype].numpy), (3, 2))
    fields = {"x": x, "rows": 3, "cols": x.shape[1], "k": 9, "x_stride": x.shape[1], "largest": int(largest)}
    values, indices = OPS["topk"].function(x, k=9, axis=1, largest=largest)
    scratch = np.empty((3, 9), np.int64)
    result = every(f"topk_{dtype}", fields | {"indices": scratch}, "out", (3, 9), dtype=x.dtype)
    np.testing.assert_array_equal(result, values)
    np.testing.assert_array_equal(scratch, indices)


@pytest.mark.parametrize("kernel", ["max_pool_f64", "avg_pool_f64", "max_pool_i64"])
def test_pools(kernel: str) -> None:
    op, _, dtype = kernel.rpartition("_")
    x = numbers(dtype, (2, 3, 7, 5))
    settings = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}
    graph = Graph(op)
    graph.add_input("x", TensorType(DTYPES[dtype], x.shape))
    graph.set_output("y", graph.add(op, ["x"], **settings).output)
    expected = OPS[op].function(x, **settings)
    for isa in ("scalar", "avx2"):
        result = native(graph, {"x": x}, isa=isa, threads=2, task_nanoseconds=1, run_nanoseconds=0)["y"]
        close(result.astype(np.float64), expected.astype(np.float64), 1e-14)


REDUCED_BY = ("none", "add", "mul", "max", "min")


def scatters(dtype: str, reduction: str, indices: np.ndarray) -> tuple[Graph, dict[str, np.ndarray]]:
    rng, graph = np.random.default_rng(9), Graph("scatter")
    feeds = {"x": rng.integers(-5, 6, (4, 6, 3)), "i": indices, "u": rng.integers(-5, 6, indices.shape)}
    feeds = {name: np.abs(array) if dtype[0] == "u" and name != "i" else array for name, array in feeds.items()}
    feeds = {name: array if name == "i" else array.astype(DTYPES[dtype].numpy) for name, array in feeds.items()}
    for name, array in feeds.items():
        kind = i64 if name == "i" and array.dtype == np.int64 else DTYPES["i32"] if name == "i" else DTYPES[dtype]
        graph.add_input(name, TensorType(kind, array.shape))
    graph.set_output("y", graph.add("scatter_elements", ["x", "i", "u"], axis=1, reduction=reduction).output)
    return graph, feeds


@pytest.mark.parametrize("dtype", ("f32", "f64", "f16", "i64", "i32", "u64", "u8"))
@pytest.mark.parametrize("reduction", REDUCED_BY)
def test_scatter(dtype: str, reduction: str) -> None:
    """Indices that meet, backwards ones, and those of 4 bytes; lines are parts' work."""
    for index_dtype, lines in ((np.int64, 2), (np.int32, 3)):
        indices = np.random.default_rng(3).integers(-6, 6, (3, 9, lines)).astype(index_dtype)
        graph, feeds = scatters(dtype, reduction, indices)
        expected = interpret(graph, feeds)
        for isa, threads in (("scalar", 3), ("avx2", 1), ("avx2", 2)):
            got = native(graph, feeds, isa=isa, threads=threads, task_nanoseconds=1, run_nanoseconds=0)
            expect_same(f"{isa}, {threads} threads", got, expected)


@pytest.mark.parametrize("reduction", REDUCED_BY)
@pytest.mark.parametrize("shape", [(9, 1), (1, 70), (1, 1), (9, 70)])
def test_scatter_by_strided_indices(shape: tuple[int, int], reduction: str) -> None:
    """Repeated along the lines, along an axis of them, and turned about; floats, integers, and what is only moved."""
    rng = np.random.default_rng(5)
    for dtype in ("f32", "f64", "i64"):
        graph = Graph("scatter")
        feeds = {
            "x": rng.integers(-5, 6, (8, 70)),
            "i": rng.integers(-8, 8, shape[::-1]),
            "u": rng.integers(-5, 6, (9, 70)),
        }
        feeds = {name: array.astype(np.int64 if name == "i" else DTYPES[dtype].numpy) for name, array in feeds.items()}
        for name, array in feeds.items():
            graph.add_input(name, TensorType(i64 if name == "i" else DTYPES[dtype], array.shape))
        transposed = graph.add("permute", ["i"], axes=(1, 0)).output
        whole = graph.add("expand", [transposed], shape=(9, 70)).output
        graph.set_output("y", graph.add("scatter_elements", ["x", whole, "u"], axis=0, reduction=reduction).output)
        expected = interpret(graph, feeds)
        for isa, threads in (("scalar", 1), ("avx2", 3)):
            got = native(graph, feeds, isa=isa, threads=threads, task_nanoseconds=1, run_nanoseconds=0)
            expect_same(f"{dtype}, {isa}, {threads} threads", got, expected)


@pytest.mark.parametrize("reduction", REDUCED_BY[1:])
@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("axis, shared", [(0, True), (0, False), (1, False)])
def test_floats_that_are_scattered_meet_as_doubles(axis: int, shared: bool, length: int, reduction: str) -> None:
    """Rounded once, in the order of the updates, however lines are cut; of lines that get few updates and many."""
    rng, graph = np.random.default_rng(11), Graph("scatter")
    dims = (length, 300) if axis == 0 else (5, length)
    feeds = {"x": rng.standard_normal((8, 300) if axis == 0 else (6, 17)), "u": rng.standard_normal(dims)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    feeds["x"][1, 2] = feeds["u"][2, 1] = np.nan
    feeds["i"] = rng.integers(-8, 8, (length, 1) if shared else dims)
    for name, array in feeds.items():
        graph.add_input(name, TensorType(i64 if name == "i" else f32, array.shape))
    indices = graph.add("expand", ["i"], shape=dims).output
    graph.set_output("y", graph.add("scatter_elements", ["x", indices, "u"], axis=axis, reduction=reduction).output)
    expected = interpret(graph, feeds)
    for isa, threads in itertools.product(ISAS, (1, 3)):
        got = native(graph, feeds, isa=isa, threads=threads, task_nanoseconds=1, run_nanoseconds=0)
        np.testing.assert_array_equal(got["y"], expected["y"], err_msg=f"{isa}, {threads} threads")


@pytest.mark.parametrize("bad", [6, -7, 2**40])
def test_scatter_reports_a_bad_index(bad: int) -> None:
    indices = np.zeros((3, 9, 2), np.int64)
    indices[2, 5, 1] = bad
    with pytest.raises(InputError, match=rf"index out of range, got {bad}, expected -6\.\.5"):
        native(*scatters("f32", "add", indices))


def test_a_state_that_is_scattered_into_is_read_whole_before() -> None:
    """Updates that are a view of the state are what it was."""
    graph = Graph("state")
    graph.add_input("i", TensorType(i64, (6,)))
    graph.add_state("s", TensorType(f32, (6,)))
    transposed = graph.add("slice", ["s"], starts=(5,), stops=(-1,), steps=(-1,)).output
    made = graph.add("scatter_elements", ["s", "i", transposed], axis=0, reduction="none").output
    graph.set_state("s", made)
    graph.set_output("y", made)
    check_states(graph, {"i": np.arange(6), "s": np.arange(6.0, dtype=np.float32)})

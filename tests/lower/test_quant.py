"""Quantized matrices: their lowering, after any permutes and slices, and equal bits."""

import itertools

import numpy as np
import pytest

import ingot
from ingot.ir.dtype import f16, f32, i4, i8, i32, i64
from ingot.ir.graph import Graph, TensorType
from ingot.load.quantized import GROUPS, quantized
from ingot.ops.quantize import dequantize
from ingot.run.interpret import interpret
from ingot.run.program import Program
from kernel_calls import ISAS
from stored_products import CODES, compiled, products_of, random, stored

pytestmark = pytest.mark.native


def model(rows: int, k: int, half: int, dtype: object, group: int = 32, scale: object = np.float16) -> Graph:
    return products_of(lambda graph, name, n, k: stored(graph, name, n, k, dtype, group, scale), rows, k, half)


def rounding(graph: Graph, **target: object) -> tuple[Program, list[str]]:
    return compiled(graph, **({"rounded": (i8,)} | target))


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("k, half, group", [(64, 96, 32), (128, 192, 64), (40, 48, 0), (320, 544, 32), (320, 416, 128)])
def test_quantized_models(name: str, k: int, half: int, group: int) -> None:
    """One rounding for all that reads the same rows; the same bits on every set, for any threads and rows."""
    ids = np.random.default_rng(1).integers(-100, 100, 40).astype(np.int32)
    graph = model(40, k, half, CODES[name], group)
    exact = interpret(graph, {"ids": ids}, float64=True)
    beside = "" if group in (32, 64) else "_row" if name == "int8" and group == 0 else "_128"
    form = name.replace("_zp", f"{beside}_zp") if "_zp" in name else f"{name}{beside}"
    first = None
    for isa, threads in itertools.product(ISAS, (1, 2, 3)):
        program, kernels = rounding(graph, isa=isa, threads=threads)
        assert [kernel for kernel in kernels if kernel.startswith("gather")] == [f"gather_{form}_panels"] * 2
        products = [f"gemm_{form}_{kind}" for kind in ("packed", "gated", "packed", "packed")]
        assert [kernel for kernel in kernels if kernel.startswith("gemm")] == products
        assert kernels.count("round_rows_i8") == 4
        results = program.run([ids])
        first = first or results
        assert [r.tobytes() for r in results] == [r.tobytes() for r in first], (isa, threads)
    assert first is not None
    for got, wanted in zip(first, exact.values(), strict=True):
        assert abs(got - wanted).max() <= 0.04 * abs(wanted).max()  # four roundings, each of up to 1 in 254
    for rows in (1, 3, 7):
        program, _ = rounding(model(rows, k, half, CODES[name], group))
        for few, many in zip(program.run([ids[:rows]]), first, strict=True):
            assert few.tobytes() == many[:rows].tobytes()


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("k, half, group", [(64, 96, 32), (128, 192, 64), (40, 48, 0), (320, 416, 128), (512, 64, 256)])
def test_scales_of_f32_stay_so(name: str, k: int, half: int, group: int) -> None:
    """With quantized weights whose products have the bits of f32 panels; no target rounds rows."""
    ids = np.random.default_rng(1).integers(-100, 100, 40).astype(np.int32)
    graph = model(40, k, half, CODES[name], group, np.float32)
    form = f"{name.replace('_zp', '')}{'' if group in (32, 64) else '_128'}{'_zp' * ('_zp' in name)}_f32"

    def decoded(graph: Graph, name: str, n: int, k: int) -> str:
        own = Graph("one")
        own.set_output("w", stored(own, name, n, k, dtype, group, np.float32))
        return graph.add_weight(name, interpret(own, {})["w"])

    dtype = CODES[name]
    wide, _ = compiled(products_of(decoded, 40, k, half))
    expected = [result.tobytes() for result in wide.run([ids])]
    for isa, threads in itertools.product(ISAS, (1, 3)):
        program, kernels = rounding(graph, isa=isa, threads=threads)
        assert [kernel for kernel in kernels if kernel.startswith("gather")] == [f"gather_{form}_panels"] * 2
        products = [f"gemm_f32_{form}_{kind}" for kind in ("packed", "gated", "packed", "packed")]
        assert [kernel for kernel in kernels if "gemm" in kernel or "round" in kernel] == products
        assert [result.tobytes() for result in program.run([ids])] == expected, (isa, threads)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("scale", [np.float16, np.float32])
@pytest.mark.parametrize("name", CODES)
def test_no_weight_is_stored_wide(name: str, scale: type, group: int) -> None:
    """Groups at the end of a row may be shorter, and are stored so."""
    k, half, beside = 2 * group, 5 * group + 32, np.dtype(scale).itemsize + ("_zp" in name)
    program, _ = rounding(model(3, k, half, CODES[name], group, scale))
    assert program.single is not None
    packed_weights = [t.packed_weight for t in program.single.lowered.tensors.values() if t.packed_weight is not None]
    assert {packed_weight.dtype for packed_weight in packed_weights} == {CODES[name]}
    elements = (2 * 128 + 32 + k + 2 * half) * k + k * half
    shared = (2 * 128 + 32 + k + 2 * half) * 2 + k * -(-half // group)
    assert (
        sum(packed_weight.nbytes for packed_weight in packed_weights)
        == elements * CODES[name].bits // 8 + shared * beside
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("axis, group", [(0, 32), (1, 0)])
def test_columns_of_quantized_weights(axis: int, group: int) -> None:
    """Codes [k, n], as ONNX has them, with scales for groups of a column, or for columns."""
    graph = Graph("columns")
    x = graph.add_input("x", TensorType(f32, (5, 96)))
    codes = np.random.default_rng(0).integers(-128, 128, (96, 40)).astype(np.int8)
    scales = np.random.default_rng(1).uniform(0.001, 0.002, (3, 40) if group else (40,)).astype(np.float16)
    operands = [graph.add_weight("w", codes), graph.add_weight("s", scales)]
    weight = graph.add("dequantize", operands, axis=axis, block=group, dtype=f32).output
    graph.set_output("y", graph.add("matmul", [x, weight]).output)
    program, kernels = rounding(graph)
    assert kernels == ["round_rows_i8", "gemm_int8_packed" if group else "gemm_int8_row_packed"]
    rows = random("x", 5, 96)
    wide = dequantize(codes, scales, axis=axis, block=group, dtype=f32).astype(float)
    assert abs(program.run([rows])[0] - rows @ wide).max() <= 0.01 * abs(rows @ wide).max()


@pytest.mark.parametrize(
    "axis, group, scale, rounded",
    [(1, 16, np.float32, (i8,)), (1, 48, np.float16, (i8,)), (1, 16, np.float32, ()), (0, 32, np.float16, (i8,))],
)
def test_values_beyond_a_panel_are_widened(axis: int, group: int, scale: object, rounded: tuple[object, ...]) -> None:
    """Other groups, groups across rows: f32, to the last bit, whether rows are rounded or not."""
    graph = Graph("wide")
    x = graph.add_input("x", TensorType(f32, (5, 96)))
    codes = np.random.default_rng(0).integers(-128, 128, (64, 96)).astype(np.int8)
    shape = (64,) if not group else (64, 96 // group) if axis == 1 else (64 // group, 96)
    scales = np.random.default_rng(1).uniform(0.001, 0.002, shape).astype(scale)
    operands = [graph.add_weight("w", codes), graph.add_weight("s", scales)]
    weight = graph.add("dequantize", operands, axis=axis, block=group, dtype=f32).output
    graph.set_output("y", graph.add("matmul", [x, weight], transpose_b=True).output)
    program, kernels = rounding(graph, rounded=rounded)
    assert len(kernels) == 1 and "f32_packed" in kernels[0]
    wide = Graph("plain")
    x = wide.add_input("x", TensorType(f32, (5, 96)))
    held = wide.add_weight("w", dequantize(codes, scales, axis=axis, block=group, dtype=f32))
    wide.set_output("y", wide.add("matmul", [x, held], transpose_b=True).output)
    rows = random("x", 5, 96)
    assert program.run([rows])[0].tobytes() == rounding(wide)[0].run([rows])[0].tobytes()


@pytest.mark.parametrize("dtype, error", [(i8, 1 / 254), (i4, 1 - 7 / 8.7)])
def test_matrices_are_quantised(dtype: object, error: float) -> None:
    """Each element within half a step of its group, or of 4 bits what the largest code leaves of the opposite of the
    largest element; squares of errors are not larger than by a step of an eighth of that; scales are f16."""
    graph, width = Graph("quantized"), 96
    group = GROUPS[dtype] or width  # type: ignore[index]
    data, cuts = random("w", 70, width), range(group, width, group)
    data[3, :group] = 0
    name = quantized(graph, graph.add_weight("w", data), dtype)  # type: ignore[arg-type]
    graph.set_output("y", name)
    (made,) = interpret(graph, {}).values()
    largest = np.hstack([abs(each).max(1, keepdims=True) + 0 * each for each in np.split(data, cuts, 1)])
    assert (abs(made - data) <= largest * error * 1.02).all()
    if dtype is i4:
        for part, near in zip(np.split(data, cuts, 1), np.split(made, cuts, 1), strict=True):
            step = np.maximum(abs(part).max(1, keepdims=True), 1e-30) / 8
            below, above = (np.clip(np.rint(part / sign), -8, 7) * sign for sign in (step, -step))
            plain = np.where((part == -8 * step).any(1, keepdims=True), below, above)
            assert (((near - part) ** 2).sum(1) <= 1.01 * ((plain - part) ** 2).sum(1) + 1e-12).all()
    node = graph.producer(name)
    assert node is not None and graph.type(str(node.operands[1])).dtype is f16
    odd = Graph("odd")
    weight = odd.add_weight("w", data[:, :33])
    assert quantized(odd, weight, dtype) == weight  # type: ignore[arg-type]


def experts(rows: int, slots: int, dtype: object, count: int = 3, n: int = 64, k: int = 96) -> tuple[Graph, str]:
    """Stacked experts, as several weights that are quantized together."""
    graph = Graph("experts")
    x = graph.add_input("x", TensorType(f32, (rows, slots, k)))
    chosen = graph.add_input("chosen", TensorType(i64, (rows, 2)))
    parts = [graph.add_weight(f"w{i}", random(f"w{i}", n, k)) for i in range(count)]
    below = quantized(graph, graph.add("concat", parts, axis=0).output, dtype)  # type: ignore[arg-type]
    matrices = graph.add("reshape", [below], shape=(count, n, k)).output
    graph.set_output("y", graph.add("expert_matmul", [x, chosen, matrices]).output)
    return graph, below


@pytest.mark.parametrize("rows, tolerance", [(i8, 0.01), (i32, 2e-6)])
@pytest.mark.parametrize("dtype, form", [(i8, "int8_row"), (i4, "int4")])
@pytest.mark.parametrize("slots", [1, 2])
def test_quantized_experts(slots: int, dtype: object, form: str, rows: object, tolerance: float) -> None:
    """Each row as with the expert's matrix alone, on every set, for any number of threads and any other rows; a bad
    expert is an error.
    """
    count, family = 70, form if rows is i8 else f"i24_{form}"
    graph, _ = experts(count, slots, dtype)
    x = random("x", count, slots, 96)
    chosen = np.random.default_rng(2).integers(0, 3, (count, 2))
    feeds = {"x": x, "chosen": chosen}
    (exact,) = interpret(graph, feeds, float64=True).values()
    first = None
    for isa, threads in itertools.product(ISAS, (1, 3)):
        program, kernels = rounding(graph, isa=isa, threads=threads, rounded=(rows,))
        assert kernels == ["round_rows_i8" if rows is i8 else "round_rows_i24", f"expert_matmul_{family}_packed"]
        (result,) = program.run([x, chosen])
        first = result if first is None else first
        assert result.tobytes() == first.tobytes(), (isa, threads)
    assert first is not None
    assert abs(first - exact).max() <= tolerance * abs(exact).max()
    few, _ = rounding(experts(3, slots, dtype)[0], rounded=(rows,))
    assert few.run([x[:3], chosen[:3]])[0].tobytes() == first[:3].tobytes()
    with pytest.raises(ingot.InputError):
        few.run([x[:3], chosen[:3] + 3])


def test_experts_that_no_panels_hold() -> None:
    """Those of an odd number of columns are decoded as they are packed."""
    graph = Graph("odd")
    x = graph.add_input("x", TensorType(f32, (5, 1, 64)))
    chosen = graph.add_input("chosen", TensorType(i64, (5, 2)))
    below = quantized(graph, graph.add_weight("w", random("w", 80, 64)), i8)
    matrices = graph.add("reshape", [below], shape=(2, 40, 64)).output
    graph.set_output("y", graph.add("expert_matmul", [x, chosen, matrices]).output)
    program, kernels = rounding(graph)
    assert kernels == ["expert_matmul_f32_packed"]
    feeds = {"x": random("x", 5, 1, 64), "chosen": np.arange(10).reshape(5, 2) % 2}
    (exact,) = interpret(graph, feeds, float64=True).values()
    np.testing.assert_allclose(program.run([*feeds.values()])[0], exact, atol=1e-5)

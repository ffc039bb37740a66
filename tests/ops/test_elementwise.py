"""elementwise.def on every path: own kernels, fused programs, epilogues, emitted C and passes; and what is missing."""

import numpy as np
import pytest

import ingot.ops
import special_oracles
from differential import Arrays, check_emitted, expect_same, native
from ingot.emit.kernels import kernel_source
from ingot.ir.dtype import boolean, f32, i64
from ingot.ir.graph import OPS, Graph, Node, Op, Sample, TensorType
from ingot.lower import Target, lower
from ingot.lower.cpu import KERNEL_RULES
from ingot.lower.cpu.elementwise import vector_kernel
from ingot.lower.elementwise import kernel_op
from ingot.ops.define import draw
from ingot.passes import optimize
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.support import abi
from ingot.support.abi import Elementwise

# These act on elements of any type, by kernels of their own in elementwise.c or gather.c, or by none.
MOVES = {"bitcast", "cast", "checked_index", "detach", "where"}
# No kernel takes strings: these run on the reference alone.
OF_STRINGS = {op.name for op in OPS.values() if any(":string" in sample.operands for sample in op.samples)}
# Special functions and gcd run on the reference alone, too; tests/test_completeness.py lists why.
ON_REFERENCE = {*OF_STRINGS, *special_oracles.ORACLE, "gcd"}
VECTOR = {kernel.op: kernel for kernel in abi.elementwise().values() if kernel.is_vector}
UNARY = {name: kernel for name, kernel in VECTOR.items() if kernel.operands == 1}
DTYPE_OF = {"f": f32, "i": i64, "b": boolean}
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 88.8, -104, 0.5, 2.5], np.float32)


def op_of(kernel: Elementwise) -> Op:
    """The op behind a kernel: gelu of gelu_erf."""
    return OPS[kernel.op if kernel.op in OPS else kernel.op.rpartition("_")[0]]


def sample_of(kernel: Elementwise) -> Sample:
    """A sample of the op that this kernel runs."""
    op = op_of(kernel)
    word = kernel.op.removeprefix(op.name).removeprefix("_")
    return next(s for s in op.samples if not word or word in s.attributes.values())


def numbers(kernel: Elementwise, shape: tuple[int, ...], seed: int = 3, special: bool = True) -> np.ndarray:
    """Floats of the op's domain, among them what is special."""
    low, high = op_of(kernel).domain
    values = np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)
    if special:
        values.reshape(-1)[: 7 * SPECIAL.size : 7] = SPECIAL
    return values


def add(graph: Graph, kernel: Elementwise, *operands: str) -> Node:
    return graph.add(op_of(kernel).name, operands, f"{operands[0]}.{kernel.op}", **sample_of(kernel).attributes)


def inputs(graph: Graph, arrays: Arrays) -> None:
    for name, array in arrays.items():
        graph.add_input(name, TensorType(f32, array.shape))


def steps_of(graph: Graph) -> list[str]:
    return [step.kernel for step in lower(graph.copy(), Target("scalar")).steps]


# -- paths ------------------------------------------------------------------------------------------------------


def alone(kernel: Elementwise, *arrays: np.ndarray) -> np.ndarray:
    """What the op's own kernel makes of arrays."""
    graph, feeds = Graph("alone"), {f"x{i}": array for i, array in enumerate(arrays)}
    inputs(graph, feeds)
    graph.set_output("y", add(graph, kernel, *feeds).output)
    assert steps_of(graph) == [kernel.kernel]
    return native(graph, feeds)["y"]


@pytest.mark.parametrize("name", VECTOR)
def test_a_kernel_of_its_own_computes_the_reference(name: str) -> None:
    kernel = VECTOR[name]
    shapes = ((5, 37), (37,)) if kernel.operands == 2 else ((5, 37),)
    arrays = [numbers(kernel, shape, seed, special=False) for seed, shape in enumerate(shapes)]
    graph, feeds = Graph("alone"), {f"x{i}": array for i, array in enumerate(arrays)}
    inputs(graph, feeds)
    graph.set_output("y", add(graph, kernel, *feeds).output)
    exact = interpret(graph, feeds, float64=True)["y"]
    error = np.abs(alone(kernel, *arrays) - exact) / np.maximum(1, np.abs(exact))
    assert error.max() <= op_of(kernel).tolerance[f32]


@pytest.mark.parametrize("name", VECTOR)
def test_a_fused_program_has_the_bits_of_the_kernel(name: str) -> None:
    kernel = VECTOR[name]
    x = numbers(kernel, (9, 37))
    arrays = [x, x[::-1, ::-1].copy()][: kernel.operands]
    graph, feeds = Graph("strip"), {f"x{i}": array for i, array in enumerate(arrays)}
    inputs(graph, feeds)
    made = add(graph, kernel, *feeds).output
    graph.set_output("y", made)
    graph.set_output("z", graph.add("maximum", [made, "x0"], "z").output)
    assert steps_of(graph) == ["fused_f32"]
    expected = {"y": alone(kernel, *arrays)}
    expected["z"] = alone(VECTOR["maximum"], expected["y"], x)
    for isa in load().isas():
        expect_same(f"{name} on {isa}", native(graph, feeds, isa=isa), expected)


def product(root: str, activation: Elementwise | None) -> tuple[Graph, Arrays]:
    """A matmul, a gated one or a convolution, and what is applied to it; of a gated one without it, both halves."""
    rng, graph = np.random.default_rng(5), Graph(root)
    feeds = {"x": rng.standard_normal((2, 8, 9, 11) if root == "conv" else (13, 70)).astype(np.float32)}
    inputs(graph, feeds)
    if root == "conv":
        w = graph.add_weight("w", rng.standard_normal((20, 8, 3, 3)).astype(np.float32))
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        value = graph.add("conv", ("x", w, None), "sums", **window).output
    else:
        w = graph.add_weight("w", rng.standard_normal((70, 64)).astype(np.float32))
        value = graph.add("matmul", ("x", w), "sums", transpose_a=False, transpose_b=False, scale=1.0).output
    if root != "gated":
        graph.set_output("y", value if activation is None else add(graph, activation, value).output)
        return graph, feeds
    ends = {"stops": (13, 32), "starts": (0, 0)}, {"stops": (13, 64), "starts": (0, 32)}
    gate, up = (graph.add("slice", [value], "half", steps=(1, 1), **end).output for end in ends)
    if activation is None:
        graph.set_output("y", gate)
        graph.set_output("z", up)
    else:
        graph.set_output("y", graph.add("mul", [add(graph, activation, gate).output, up], "y").output)
    return graph, feeds


@pytest.mark.parametrize("root", ["matmul", "gated", "conv"])
def test_epilogues_have_the_bits_of_the_kernels(root: str) -> None:
    plain = native(*product(root, None))
    for name, kernel in UNARY.items():
        graph, feeds = product(root, kernel)
        applied = [kernel for kernel in steps_of(graph) if not kernel.startswith("copy_")]
        assert (len(applied) == 1) == kernel.is_activation, (name, applied)
        expected = alone(kernel, plain["y"])
        if root == "gated":
            expected = alone(VECTOR["mul"], expected, plain["z"])
        for isa in load().isas():
            expect_same(f"{name} on {isa}", native(graph, feeds, isa=isa), {"y": expected})


SLOPED = {  # the image or matrix, the filter, and the kernel that takes both
    "packed": ((2, 8, 9, 11), (20, 8, 3, 3), "conv2d_f32_packed"),
    "planes": ((1, 3, 9, 11), (40, 3, 5, 5), "conv2d_f32_planes"),
    "winograd": ((1, 16, 9, 11), (35, 16, 3, 3), "conv2d_f32_winograd"),
    "depthwise": ((1, 50, 9, 11), (50, 1, 3, 3), "conv2d_f32_depthwise"),
    "pixels": ((2, 8, 9, 11), (40, 8, 1, 1), "gemm_f32_packed"),
    "pixel": ((1, 8, 1, 2), (33, 8, 1, 1), "gemv_f32_packed"),
    "sequence": ((2, 8, 11), (20, 8, 3), "conv2d_f32_packed"),
    "halved": ((2, 16, 11), (20, 16, 3), "conv2d_f32_lines"),
    "matrix": ((13, 70), (70, 40), "gemm_f32_packed"),
}


def sloped(place: str, slope: np.ndarray, fixed: bool) -> tuple[Graph, Arrays]:
    """A product, prelu of its result, and a sum with another image."""
    x, weight, _ = SLOPED[place]
    rng, graph = np.random.default_rng(6), Graph(place)
    feeds = {"x": rng.standard_normal(x).astype(np.float32)}
    w = graph.add_weight("w", rng.standard_normal(weight).astype(np.float32))
    inputs(graph, feeds)
    if place == "matrix":
        sums = graph.add("matmul", ("x", w), "sums", transpose_a=False, transpose_b=False, scale=1.0).output
    else:
        rank, groups = len(x) - 2, 1 if weight[1] > 1 else weight[0]
        window = {
            "strides": (1 + (place == "halved"),) * rank,
            "pads": (weight[2] // 2,) * 2 * rank,
            "dilations": (1,) * rank,
        }
        sums = graph.add("conv", ("x", w, None), "sums", groups=groups, **window).output
    other = {"rest": rng.standard_normal(graph.type(sums).dims).astype(np.float32)}
    inputs(graph, other if fixed else other | {"slope": slope})
    feeds |= other if fixed else other | {"slope": slope}
    if fixed:
        graph.add_weight("slope", slope)
    made = graph.add("prelu", [sums, "slope"], "made").output
    graph.set_output("y", graph.add("add", [made, "rest"], "y").output)
    return graph, feeds


@pytest.mark.parametrize("place", SLOPED)
def test_slopes_in_an_epilogue_have_the_bits_of_their_kernel(place: str) -> None:
    """One for each channel, or one for all."""
    _, weight, kernel = SLOPED[place]
    channels = weight[1] if place == "matrix" else weight[0]
    each = np.random.default_rng(7).uniform(-1, 1, (channels, *[1] * (len(weight) - 2))).astype(np.float32)
    for slope in (each, each[None], each.reshape(-1)[:1].copy()):
        graph, feeds = sloped(place, slope, fixed=True)
        assert [step for step in steps_of(graph) if not step.startswith("copy_")] == [kernel]
        expected = native(*sloped(place, slope, fixed=False))
        for isa in load().isas():
            expect_same(f"{place} on {isa}", native(graph, feeds, isa=isa), expected)


def test_slopes_along_another_axis_stay_behind_a_product() -> None:
    slope = np.full((9, 1), 0.5, np.float32)
    graph, feeds = sloped("packed", slope, fixed=True)
    assert {"conv2d_f32_packed", "fused_f32"} <= set(steps_of(graph))
    expect_same("native", native(graph, feeds), native(*sloped("packed", slope, fixed=False)))


def test_emitted_c_has_the_bits_of_the_kernels() -> None:
    """Every op in a fused program, and every activation in an epilogue, in one model."""
    graph = Graph("all")
    w = graph.add_weight("w", np.random.default_rng(1).standard_normal((37, 32)).astype(np.float32))
    inputs(graph, feeds := {"x": numbers(VECTOR["exp"], (9, 37)), "a": numbers(VECTOR["tanh"], (5, 37), special=False)})
    for name, kernel in VECTOR.items():
        made = add(graph, kernel, *(["x"] * kernel.operands)).output
        graph.set_output(f"t.{name}", graph.add("minimum", [made, "x"], "t").output)
        if kernel.is_activation:
            sums = graph.add("matmul", ("a", w), "sums", transpose_a=False, transpose_b=False, scale=1.0).output
            graph.set_output(f"e.{name}", add(graph, kernel, sums).output)
    slopes = graph.add_weight("slopes", np.linspace(-1, 1, 32, dtype=np.float32))
    sums = graph.add("matmul", ("a", w), "sums", transpose_a=False, transpose_b=False, scale=1.0).output
    graph.set_output("e.prelu", graph.add("prelu", [sums, slopes], "e").output)
    check_emitted(graph, feeds, native(graph, feeds), "-O1")


def test_emitted_c_brings_the_activations_that_it_uses() -> None:
    text = kernel_source({"gemm_f32_packed"}, {"gemm_args"}, {"INGOT_ACT_silu"}).kernels
    assert "case INGOT_ACT_silu: return v_silu(x);" in text
    assert "v_gelu" not in text and "v_tanh" not in text and "v_expm1" not in text


# -- completeness -----------------------------------------------------------------------------------------------


def test_every_element_wise_op_is_in_the_table() -> None:
    """And every row of the table names an op with so many operands, at most two numbers, and a row of the CPU."""
    found = {op.name for op in OPS.values() if op.acts_on == "element"} - MOVES - ON_REFERENCE
    listed = {op_of(kernel).name for kernel in abi.elementwise().values()}
    assert found <= listed, f"no line in csrc/elementwise.def, got {sorted(found - listed)}, and not in ON_REFERENCE"
    assert listed <= found
    for kernel in abi.elementwise().values():
        op = op_of(kernel)
        assert len(op.operand_names) == kernel.operands and len(op.attributes) <= 2, kernel
        assert [row.kernel for row in KERNEL_RULES[op.name]].count(kernel.kernel) == 1, kernel


def test_every_variant_is_in_the_table() -> None:
    """Each sample of f32 finds a kernel of its own name, and those of 16 elements are found for fused programs too."""
    for op in OPS.values():
        if op.acts_on != "element" or op.name in MOVES | ON_REFERENCE:
            continue
        for sample in op.samples:
            graph = Graph("one")
            for i, array in enumerate(draw(sample.operands, np.random.default_rng(1), op.domain)):
                assert array is not None
                graph.add_input(f"x{i}", TensorType(DTYPE_OF[array.dtype.kind], array.shape))
            node = graph.add(op.name, graph.inputs, "y", **sample.attributes)
            if graph.type("x0").dtype is f32:
                kernel = abi.elementwise().get(f"{kernel_op(node)}_f32")
                assert kernel is not None, f"no line in csrc/elementwise.def, got {kernel_op(node)} of f32"
                assert vector_kernel(node) is (kernel if kernel.is_vector else None)


# -- what ops act on --------------------------------------------------------------------------------------------


def acts_on(op: Op, sample: Sample, what: str, rng: np.random.Generator) -> bool:
    """Whether elements, or rows, of a sample's operands in another order give its result in that order."""
    arrays = draw(sample.operands, rng, op.domain)
    arrays = [None if a is None else a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    try:
        with np.errstate(all="ignore"):
            result = op.function(*arrays, **sample.attributes)
            if result.shape != np.broadcast_shapes(*(a.shape for a in arrays if a is not None)) or not arrays:
                return False
            width = 1 if what == "element" else result.shape[-1]
            rows = result.reshape(-1, width)
            order = rng.permutation(len(rows))
            moved = [a if is_shared(a, result, what) else spread(a, result, width)[order] for a in arrays]
            got = op.function(*moved, **sample.attributes)
        return bool(np.allclose(got, rows[order], rtol=1e-12, atol=1e-12, equal_nan=True))
    except (ValueError, IndexError, TypeError, AssertionError):
        return False


def is_shared(array: np.ndarray | None, result: np.ndarray, what: str) -> bool:
    return array is None or (what == "row" and array.ndim == 1 < result.ndim)


def spread(array: np.ndarray, result: np.ndarray, width: int) -> np.ndarray:
    return np.broadcast_to(array, result.shape).reshape(-1, width)


SINGLE = [
    op.name for op in OPS.values() if op.outputs == 1 and not op.variadic and op.samples and op.name not in OF_STRINGS
]


@pytest.mark.parametrize("name", SINGLE)
def test_an_op_acts_on_its_declared_axes(name: str) -> None:
    """By its reference on its samples: its declaration holds for all of them, and no narrower one does."""
    op, rng = OPS[name], np.random.default_rng(4)
    holds = {what: all(acts_on(op, s, what, rng) for s in op.samples) for what in ("element", "row")}
    narrowest = "element" if holds["element"] else "row" if holds["row"] else "tensor"
    assert op.acts_on == narrowest


ROW_WISE = [op.name for op in OPS.values() if op.acts_on != "tensor" and op.name not in OF_STRINGS]


def beside_shared(name: str, x: str, dims: tuple[int, ...]) -> tuple[Graph, Node, Arrays]:
    """A graph with an op on a value that `dims` leads to by `x`, and operands that all its rows share."""
    op = OPS[name]
    arrays = draw(op.samples[0].operands, np.random.default_rng(2), op.domain)
    graph = Graph(name)
    feeds: dict[str, np.ndarray] = {}
    for i, (operand, array) in enumerate(zip(op.operand_names, arrays, strict=False)):
        assert array is not None
        shape = dims if i == 0 else dims[-1:]
        data = np.resize(array.reshape(-1), shape)
        feeds[operand] = data
        graph.add_input(operand, TensorType(DTYPE_OF[data.dtype.kind], data.shape))
    first, *rest = graph.inputs
    if x == "reshape":
        first = graph.add("reshape", [first], "merged", shape=(dims[0] * dims[1], dims[2])).output
    node = graph.add(name, [first, *rest], "made", **op.samples[0].attributes)
    return graph, node, feeds


@pytest.mark.parametrize("name", ROW_WISE)
def test_reshapes_sink_below_it(name: str) -> None:
    graph, node, feeds = beside_shared(name, "reshape", (2, 3, 8))
    graph.set_output("y", node.output)
    expected = interpret(graph, feeds)["y"]
    optimize(graph, ("sink_reshape",))
    last = graph.producer(graph.outputs["y"])
    assert last is not None and last.op.name == "reshape" and graph.producer(last.operands[0]).op.name == name
    np.testing.assert_array_equal(interpret(graph, feeds)["y"], expected)


@pytest.mark.parametrize("name", [name for name in ROW_WISE if len(OPS[name].operand_names) == 1])
def test_expands_move_behind_it(name: str) -> None:
    """What is expanded is computed before."""
    op = OPS[name]
    (array,) = draw(op.samples[0].operands, np.random.default_rng(2), op.domain)
    assert array is not None
    graph, feeds = Graph(name), {"x": array.reshape(-1)[:1]}
    graph.add_input("x", TensorType(DTYPE_OF[array.dtype.kind], (1,)))
    wide = graph.add("expand", ["x"], "wide", shape=(4, 3)).output
    graph.set_output("y", graph.add(name, [wide], "made", **op.samples[0].attributes).output)
    expected = interpret(graph, feeds)["y"]
    optimize(graph, ("identity",))
    last = graph.producer(graph.outputs["y"])
    assert last is not None and last.op.name == "expand" and graph.producer(last.operands[0]).op.name == name
    np.testing.assert_allclose(interpret(graph, feeds)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("name", ROW_WISE)
def test_rows_are_gathered_above_it(name: str) -> None:
    graph, node, feeds = beside_shared(name, "", (6, 8))
    graph.add_input("few", TensorType(i64, (2,)))
    feeds = {**feeds, "few": np.array([4, 1])}
    graph.set_output("y", graph.add("gather", [node.output, "few"], "y", axis=0).output)
    expected = interpret(graph, feeds)["y"]
    optimize(graph, ("take_rows",))
    last = graph.producer(graph.outputs["y"])
    assert last is not None and last.op.name == name and graph.producer(last.operands[0]).op.name == "gather"
    np.testing.assert_allclose(interpret(graph, feeds)["y"], expected, rtol=1e-6)


assert ingot.ops

"""Formats of weights and precisions as emitted C: the bits of native, on every set of instructions."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from emitted_together import LACKS, Part, built, differing
from ingot.compile import Mode, compile_mode
from ingot.ir.dtype import DType, f32, i8, i64, u8
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Target
from ingot.ops.blocks import BLOCKS
from ingot.passes import optimize
from ingot.passes.precision import PRECISIONS
from ingot.run.arena import Arena
from ingot.run.program import Program
from ingot.run.store import WeightStore
from rounded_graphs import MODELS, random
from stored_products import CODES, products_of, stored, stored_blocks

Fed = tuple[Graph, dict[str, np.ndarray]]


def products(weight: Callable[[Graph, str, int, int], str], k: int, half: int, rows: int) -> Fed:
    ids = np.random.default_rng(1).integers(-100, 100, rows).astype(np.int32)
    return products_of(weight, rows, k, half), {"ids": ids}


def rounded(name: str) -> Fed:
    make, shape = MODELS[name]
    graph = make()
    return graph.bind(dict(zip(graph.symbols, shape, strict=False))), {"x": random(*shape, seed=9)}


def experts(dtype: object, group: int, scale: object) -> Fed:
    """Rows times matrices that are chosen for them, below each other in one of codes."""
    graph = Graph("experts")
    x = graph.add_input("x", TensorType(f32, (9, 2, 256)))
    chosen = graph.add_input("chosen", TensorType(i64, (9, 2)))
    matrices = graph.add("reshape", [stored(graph, "w", 3 * 64, 256, dtype, group, scale)], shape=(3, 64, 256)).output
    graph.set_output("y", graph.add("expert_matmul", [x, chosen, matrices]).output)
    return graph, {"x": random(9, 2, 256, seed=3), "chosen": np.random.default_rng(2).integers(0, 3, (9, 2))}


def of_quant() -> Iterator[Fed]:
    """Every format of quantized weights, for many rows and for few, and quantized experts."""
    for given in itertools.product(CODES.values(), (32, 128), (np.float16, np.float32)):
        for rows in (3, 27):
            yield products(lambda g, name, n, k: stored(g, name, n, k, *given), 320, 416, rows)  # noqa: B023
        yield experts(*given)


def of_blocks() -> Iterator[Fed]:
    for type, rows in itertools.product(BLOCKS, (3, 27)):
        yield products(lambda g, name, n, k: stored_blocks(g, name, n, k, type), 512, 256, rows)  # noqa: B023


def integers(rows: int, k: int, columns: int, is_fixed: bool) -> Fed:
    """Rows of u8 times a matrix of i8, with zero points, and an image of the same channels."""
    draw, graph = np.random.default_rng(rows), Graph("integers")
    x = graph.add_input("x", TensorType(u8, (rows, k)))
    w = graph.add_input("w", TensorType(i8, (k, columns)))
    feeds = {"x": draw.integers(0, 256, (rows, k), np.uint8), "w": draw.integers(-128, 128, (k, columns), np.int8)}
    if is_fixed:
        w = graph.add_weight("filter", feeds["w"])
    zero = graph.add_constant("zero", np.array(131, np.uint8))
    graph.set_output("y", graph.add("matmul_integer", [x, w, None, zero, None], transpose_b=False).output)
    image = graph.add_input("image", TensorType(u8, (1, k, 9, rows)))
    feeds["image"] = draw.integers(0, 256, (1, k, 9, rows), np.uint8)
    taps = graph.add_weight("taps", draw.integers(-128, 128, (columns, k, 3, 2), np.int8))
    window = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1), "groups": 1}
    graph.set_output("z", graph.add("conv_integer", [image, taps, None, zero, None], **window).output)
    return graph, feeds


def quant_of_images(channels: int, height: int, dtype: DType) -> Fed:
    """Convolutions that write quantized values, with a quantized residual too, and floats with both residuals."""
    draw, graph = np.random.default_rng(height), Graph("codes")
    step, zero = graph.add_constant("step", np.array(0.07, np.float32)), None
    if dtype is u8:
        zero = graph.add_constant("zero", np.array(101, np.uint8))
    fixed = {"axis": 0, "block": 0}

    def rounded(x: str) -> str:
        codes = graph.add("quantize", [x, step, zero], **fixed, dtype=dtype, precision=f32).output
        return graph.add("dequantize", [codes, step, zero], **fixed, dtype=f32).output

    def conv(x: str, name: str, filter: tuple[int, ...], **given: object) -> str:
        bias, scales = draw.standard_normal(filter[0], np.float32), draw.uniform(0.001, 0.003, filter[0])
        taps = graph.add_weight(name, draw.integers(-128, 128, filter, np.int8))
        operands = [taps, graph.add_constant(f"{name} scales", scales.astype(np.float32))]
        weight = graph.add("dequantize", operands, **fixed, dtype=f32).output
        window = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (filter[2] // 2,) * 4} | given
        return graph.add("conv", [x, weight, graph.add_constant(f"{name} bias", bias)], **window).output

    image = TensorType(f32, (2, channels, height, 9))
    x = rounded(graph.add_input("x", image))
    a = rounded(graph.add("relu", [conv(x, "a", (40, channels, 3, 3), strides=(2, 1))]).output)
    b = rounded(graph.add("add", [conv(a, "b", (40, 40, 1, 1)), a]).output)
    c = conv(b, "c", (64, 20, 3, 3), groups=2)
    graph.set_output("c", rounded(c))
    graph.set_output("y", graph.add("add", [conv(rounded(c), "d", (64, 64, 1, 1)), c]).output)
    return graph, {"x": 5 * draw.standard_normal(image.shape, np.float32)}


def of_integers() -> Iterator[Fed]:
    for channels, height, dtype in ((3, 13, u8), (24, 7, i8)):
        yield quant_of_images(channels, height, dtype)
    for rows, k, columns in ((7, 12, 40), (16, 64, 32), (37, 67, 9), (130, 20, 33)):
        for is_fixed in (False, True):
            yield integers(rows, k, columns, is_fixed)


def of_floats() -> Iterator[Fed]:
    yield from map(rounded, MODELS)


# What is computed in a precision.
PARTS: dict[str, Callable[[], Iterator[Fed]]] = {
    "f32 of integers": of_integers,
    "f32 of codes": of_quant, "int8 of codes": of_quant, "int8w of codes": of_quant, "int8 of blocks": of_blocks,
    "int8w of blocks": of_blocks,
    **{f"{name} of floats": of_floats for name, each in PRECISIONS.items() if name != "f32" and not each.split_sums},
}  # fmt: skip
# What `make test` does, at the level that compilers are quickest at: of these every so manieth.
QUICK = {"f32 of integers": 3, "int8 of codes": 7, "int8 of blocks": 9, "bf16 of floats": 5}
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
# Debian's clang comes without a library for its sanitizers.
SANITIZING = (
    "gcc -fsanitize=address,undefined -fno-sanitize-recover=all",
    "clang -fsanitize=undefined -fsanitize-trap=undefined",
)


def parts(name: str, step: int) -> list[Part]:
    """Every step-th of them, and what native makes of it."""
    precision, made = PRECISIONS[name.split()[0]], []
    target = Target("scalar", rounded=() if precision.rows is None else (precision.rows,))
    for graph, feeds in itertools.islice(PARTS[name](), 0, None, step):
        optimize(graph)
        program = Program(compile_mode(graph, target, Mode(precision=precision)), WeightStore(1), Arena())
        results = program.run([feeds[each] for each in graph.inputs])
        made.append(Part(graph, feeds, dict(zip(graph.outputs, results, strict=True))))
    return made


@pytest.mark.parametrize(
    "name, compiler, flags, step",
    [
        *(pytest.param(name, "gcc", ("-O0",), step, id=f"{name}, some") for name, step in QUICK.items()),
        *(
            pytest.param(name, compiler, ("-O2", *STRICT), 1, id=f"{name}, {compiler}", marks=pytest.mark.slow)
            for name in PARTS
            for compiler in ("gcc", "clang")
        ),
        *(
            pytest.param(name, sanitizing, ("-O0",), step, id=f"{name}, {sanitizing}", marks=pytest.mark.slow)
            for sanitizing in SANITIZING
            for name, step in QUICK.items()
        ),
    ],
)
def test_bits_of_native(name: str, compiler: str, flags: tuple[str, ...], step: int, tmp_path: Path) -> None:
    precision = PRECISIONS[name.split()[0]]
    built(parts(name, step), tmp_path, compiler, *flags, dispatch="told", precision=precision)
    assert {isa: differing(tmp_path, isa) for isa in LACKS} == {isa: set() for isa in LACKS}

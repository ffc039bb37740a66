"""Formats of weights and precisions as emitted C: the bits of native, on every set of instructions."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from emitted_together import LACKS, Part, built, differing
from ingot.compile import Mode, compile_mode
from ingot.dtype import f32, i64
from ingot.ir import Graph, TensorType
from ingot.lower import Target
from ingot.ops.blocks import BLOCKS
from ingot.passes import optimize
from ingot.precision import PRECISIONS
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


def experts(dtype: object, group: int) -> Fed:
    """Rows times matrices that are chosen for them, below each other in one of codes."""
    graph = Graph("experts")
    x = graph.add_input("x", TensorType(f32, (9, 2, 256)))
    chosen = graph.add_input("chosen", TensorType(i64, (9, 2)))
    matrices = graph.add("reshape", [stored(graph, "w", 3 * 64, 256, dtype, group)], shape=(3, 64, 256)).output
    graph.set_output("y", graph.add("expert_matmul", [x, chosen, matrices]).output)
    return graph, {"x": random(9, 2, 256, seed=3), "chosen": np.random.default_rng(2).integers(0, 3, (9, 2))}


def of_codes() -> Iterator[Fed]:
    """Every format of codes, for many rows and for few, and experts of them."""
    for dtype, group in itertools.product(CODES.values(), (32, 128)):
        for rows in (3, 27):
            yield products(lambda g, name, n, k: stored(g, name, n, k, dtype, group), 320, 416, rows)  # noqa: B023
        yield experts(dtype, group)


def of_blocks() -> Iterator[Fed]:
    for type, rows in itertools.product(BLOCKS, (3, 27)):
        yield products(lambda g, name, n, k: stored_blocks(g, name, n, k, type), 512, 256, rows)  # noqa: B023


def of_floats() -> Iterator[Fed]:
    yield from map(rounded, MODELS)


# What is computed in a precision.
PARTS: dict[str, Callable[[], Iterator[Fed]]] = {
    "f32 of codes": of_codes, "int8 of codes": of_codes, "int8w of codes": of_codes, "int8 of blocks": of_blocks,
    **{f"{name} of floats": of_floats for name, each in PRECISIONS.items() if name != "f32" and not each.apart},
}  # fmt: skip
# What `make test` does, at the level that compilers are quickest at: of these every so manieth.
QUICK = {"int8 of codes": 7, "int8 of blocks": 9, "bf16 of floats": 5}
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

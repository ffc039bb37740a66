"""A graph of products with matrices as some file stores them, and a static graph compiled as far as its program."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gguf_models import random_blocks
from ingot.compile import compile_mode
from ingot.emit.c import emit
from ingot.ir.dtype import f32, i4, i8, i32, u4, u8
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Target
from ingot.passes import optimize
from ingot.run.arena import Arena
from ingot.run.library import load
from ingot.run.program import Program
from ingot.run.store import WeightStore

CODES = {"int8": i8, "int4": i4, "int8_zp": u8, "int4_zp": u4}


def random(name: str, *shape: int) -> np.ndarray:
    return (np.random.default_rng([*name.encode()]).standard_normal(shape) / 4).astype(np.float32)


def stored(graph: Graph, name: str, n: int, k: int, dtype: object, group: int = 32, scale: object = np.float16) -> str:
    """A weight of codes with scales for groups of a row, or, where these are 0, for rows; unsigned with zero points."""
    low, high = dtype.limits  # type: ignore[attr-defined]
    generator = np.random.default_rng([*name.encode()])
    codes = graph.add_weight(name, generator.integers(low, high + 1, (n, k)).astype(dtype.numpy))  # type: ignore[attr-defined]
    shape = (n, -(-k // group)) if group else (n,)
    scales = graph.add_weight(f"{name}.scale", (generator.uniform(0.5, 1, shape) / (4 * high)).astype(scale))
    operands = [codes, scales]
    if low == 0:
        zeros = generator.integers(high // 3, high // 2, shape).astype(dtype.numpy)  # type: ignore[attr-defined]
        operands.append(graph.add_weight(f"{name}.zero", zeros))
    return graph.add("dequantize", operands, axis=1 if group else 0, block=group, dtype=f32).output


def stored_blocks(graph: Graph, name: str, n: int, k: int, type: str) -> str:
    """A weight of blocks, decoded."""
    numbers = np.random.default_rng([*name.encode()]).standard_normal((n, k), np.float32) / 32
    blocks = graph.add_weight(name, random_blocks(type, numbers))
    return graph.add("decode_blocks", [blocks], f"{name}.decoded", type=type, dtype=f32).output


def products_of(weight: Callable[[Graph, str, int, int], str], rows: int, k: int, half: int) -> Graph:
    """A tied and an untied table, parallel products that merge, a gated pair.

    weight: adds the matrix of a name, f32[n, k], to a graph.
    """
    graph = Graph("model")
    ids = graph.add_input("ids", TensorType(i32, (rows,)))

    def product(x: str, name: str, n: int, inputs: int = k) -> str:
        return graph.add("matmul", [x, weight(graph, name, n, inputs)], transpose_b=True).output

    table, other = weight(graph, "table", 100, k), weight(graph, "other", 100, k)
    x = graph.add("add", [graph.add("gather", [t, ids], axis=0).output for t in (table, other)]).output
    key, query = product(x, "key", 32), product(x, "query", k)
    graph.set_output("k", graph.add("concat", [query, key], axis=1).output)  # where the two meet
    x = graph.add("add", [x, query]).output
    gate, up = product(x, "gate", half), product(x, "up", half)
    x = graph.add("mul", [graph.add("silu", [gate]).output, up]).output
    graph.set_output("y", graph.add("matmul", [product(x, "down", k, half), table], transpose_b=True).output)
    return graph


def compiled(graph: Graph, **target: object) -> tuple[Program, list[str]]:
    """The program of a graph, in parts as small as can be, and the kernels of its steps."""
    graph = graph.copy()
    optimize(graph)
    options = {"isa": load().isa(), "threads": 2, "run_nanoseconds": 0, "task_nanoseconds": 1} | target
    program = Program(compile_mode(graph, Target(**options)), WeightStore(2), Arena())
    assert program.single is not None
    return program, [step.kernel for step in program.single.lowered.steps]


def expect_emitted(graph: Graph, folder: Path) -> None:
    """Expects native's bits of a graph from ids to k and y, written as C."""
    ids = np.array([3, -1, 99], np.int32)
    program, _ = compiled(graph)
    optimize(graph)
    emit(graph, WeightStore(), folder)
    files = ["model.c", "main.c", "-lm", "-o", "model"]
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", *files], cwd=folder, check=True)
    ids.tofile(folder / "ids.raw")
    subprocess.run(["./model", *(f"{name}={name}.raw" for name in ("ids", "k", "y"))], cwd=folder, check=True)
    for name, expected in zip("ky", program.run([ids]), strict=True):
        assert (folder / f"{name}.raw").read_bytes() == expected.tobytes()

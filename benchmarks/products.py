"""Products of a language model beside the machine: `python -m benchmarks.products [ROWS ...]`.

Weights come from memory, as they do in a model that fits no cache: each product is measured over enough matrices.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.report import table
from ingot.compile import compile_mode
from ingot.ir.dtype import DType, bf16, f32
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Target
from ingot.run.arena import Arena
from ingot.run.library import load
from ingot.run.native import NativeProgram
from ingot.run.probe import Probe
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.support.machine import threads

SHAPES = {"qkv": (896, 1152), "gate and up": (896, 9728), "down": (4864, 896), "head": (896, 32000)}
COLD_BYTES = 96 << 20  # of weights in a run, so that no cache keeps them
ROUNDS = 9
FMA_COUNT = 20_000_000  # many enough that the call does not count
STREAMED_ROWS = 4  # up to so many, reading the weights is the limit


@dataclass(frozen=True)
class Arithmetic:
    """What weights are stored as, and whether rows are rounded too. peak: multiply-adds per one of f32's."""

    dtype: DType
    dots: bool
    peak: int


ARITHMETICS = {
    "f32": Arithmetic(f32, False, 1),
    "bf16 weights": Arithmetic(bf16, False, 1),
    "bf16 dots": Arithmetic(bf16, True, 2),
}


def compiled(rows: int, shape: str, arithmetic: Arithmetic) -> NativeProgram:
    """A program of several products of one shape."""
    k, n = SHAPES[shape]
    graph = Graph("products")
    x = graph.add_input("x", TensorType(f32, (rows, k)))
    noise = np.random.default_rng(0).standard_normal((n, k), np.float32).astype(arithmetic.dtype.numpy)
    for i in range(-(-COLD_BYTES // noise.nbytes)):
        weight = graph.add_weight(f"w{i}", noise)
        stored = weight if arithmetic.dtype is f32 else graph.add("cast", [weight], dtype=f32).output
        y = graph.add("matmul", [x, stored], transpose_b=True).output
        if shape == "gate and up":
            starts = ((0, 0), (0, n // 2))
            halves = [
                graph.add("slice", [y], starts=s, stops=(rows, s[1] + n // 2), steps=(1, 1)).output for s in starts
            ]
            y = graph.add("mul", [graph.add("silu", halves[:1]).output, halves[1]]).output
        graph.set_output(f"y{i}", y)
    native = load()
    rounded = (arithmetic.dtype,) if arithmetic.dots and native.has_bf16_dots else ()
    target = Target(native.isa(), threads(), rounded=rounded)
    program = Program(compile_mode(graph, target), WeightStore(threads()), Arena()).single
    assert program is not None
    return program


def measure(rows: int, shape: str, name: str) -> list[str]:
    """Microseconds of a product, and the share of the machine's limit, medians over rounds with a probe in each."""
    arithmetic, isa = ARITHMETICS[name], load().isa()
    k, n = SHAPES[shape]
    program = compiled(rows, shape, arithmetic)
    x = np.random.default_rng(1).standard_normal((rows, k), np.float32)
    steps = program.lowered.steps
    products = [i for i, step in enumerate(steps) if step.args_type == "gemm_args"]
    used = products if not arithmetic.dots else range(len(steps))
    if rows <= STREAMED_ROWS:
        probe, work = Probe("probe_read_f32", isa, threads(), nbytes=COLD_BYTES), k * n * arithmetic.dtype.itemsize
        full = float(probe.nbytes)
    else:
        probe, work = Probe("probe_fma_f32", isa, threads(), count=FMA_COUNT), rows * k * n
        full = float(FMA_COUNT * threads() * arithmetic.peak)
    program.profile([x], 1)
    probe.seconds()
    times, shares = [], []
    for _ in range(ROUNDS):
        limit = full / probe.seconds(2)
        nanoseconds = program.profile([x], 1)[0]
        seconds = 1e-9 * float(nanoseconds[list(used)].sum()) / len(products)
        times.append(seconds)
        shares.append(work / seconds / limit)
    middle = statistics.median(shares)
    rate = 1e-9 * work / statistics.median(times)
    unit = "GB/s" if rows <= STREAMED_ROWS else "GFMA/s"
    cells = [str(rows), shape, name, steps[products[0]].kernel, f"{1e6 * statistics.median(times):.0f}"]
    print(" ".join([*cells, f"{rate:.1f} {unit} {middle:.0%}"]), file=sys.stderr, flush=True)
    return [*cells, f"{rate:.1f} {unit}", f"{middle:.0%}"]


def products(counts: list[int]) -> str:
    """The table."""
    rows = [
        measure(count, shape, name)
        for count in counts
        for shape in SHAPES
        for name, arithmetic in ARITHMETICS.items()
        if count > STREAMED_ROWS or not arithmetic.dots
    ]
    return table(["rows", "product", "arithmetic", "kernel", "us", "rate", "of the machine"], rows)


if __name__ == "__main__":
    print(products([int(count) for count in sys.argv[1:]] or [1, 8, 128, 512]))

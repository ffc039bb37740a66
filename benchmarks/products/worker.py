"""A product of an engine, in a process of its own; follows the protocol of `benchmarks.harness.serve`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.serve import serve

Operands = tuple[np.ndarray, np.ndarray]
Call = Callable[[], np.ndarray]


def openblas(operands: Operands, threads: int) -> Call:
    """numpy, whose OpenBLAS packs both operands in each call."""
    x, w = operands
    out = np.empty((len(x), w.shape[1]), np.float32)
    return lambda: np.matmul(x, w, out=out)


def torch_linear(operands: Operands, threads: int) -> Call:
    """A linear layer of torch in eager mode."""
    import torch

    torch.set_num_threads(threads)
    x, w = torch.from_numpy(operands[0]), torch.from_numpy(operands[1].T.copy())

    def call() -> np.ndarray:
        with torch.inference_mode():
            return torch.nn.functional.linear(x, w).numpy()

    return call


def ingot(operands: Operands, threads: int) -> Call:
    """A session of one op."""
    from ingot import InferenceSession
    from ingot.ir.dtype import f32
    from ingot.ir.graph import Graph, TensorType

    x, w = operands
    graph = Graph("product")
    node = graph.add("matmul", [graph.add_input("x", TensorType(f32, x.shape)), graph.add_weight("w", w)])
    graph.set_output("y", node.outputs[0])
    session = InferenceSession(graph, threads=threads)
    return lambda: session.run(None, {"x": x})[0]


ENGINES = {"openblas": openblas, "torch": torch_linear, "ingot": ingot}


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """The call of a product `MxKxN`, and its largest difference from float64, relative to the largest result."""
    m, k, n = map(int, name.split("x"))
    generator = np.random.default_rng(7)
    x, w = (generator.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
    call = ENGINES[engine]((x, w), threads)
    expected = x.astype(np.float64) @ w
    return call, {"difference": float(np.abs(call() - expected).max() / np.abs(expected).max())}


if __name__ == "__main__":
    serve(build)

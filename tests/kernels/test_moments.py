"""Variances and what divides by them, far from zero, against float64: from torch and ONNX, by every engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from differential import every_engine
from ingot.ir.graph import Graph
from ingot.load.aten import load_exported
from ingot.load.onnx import load_onnx
from onnx_models import text_model

SHAPE = (2, 4, 3, 131)
TOLERANCE = 5e-6  # of max(1, |expected|)
MEANS = (0.0, 1e4, -1e6, 1e7)
EPS = 1e-5
Function = Callable[[Tensor], Any]


def centred(x: Tensor, *axes: int) -> Tensor:
    return x - x.mean(axes, keepdim=True)


def variance(x: Tensor, *axes: int) -> Tensor:
    return x.var(axes, keepdim=True, unbiased=False)


TORCH: dict[str, Function] = {
    "var of rows": lambda x: x.var(-1),
    "var of columns": lambda x: x.var(1),
    "biased var of planes": lambda x: x.var((2, 3), keepdim=True, unbiased=False),
    "var of all": lambda x: x.var(),
    "var with a correction of 3": lambda x: x.var(-1, correction=3),
    "std": lambda x: x.std(-1),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "var_mean": lambda x: torch.var_mean(x, (0, 2, 3)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": F.instance_norm,
    "layer_norm over two axes": lambda x: F.layer_norm(x, x.shape[2:]),
}

# Spelled out: the differences from a mean that was rounded lose digits in torch too, and the passes find them again.
SPELLED: dict[str, Function] = {
    "var": lambda x: centred(x, -1) / (variance(x, -1) + EPS).sqrt(),
    "var and rsqrt": lambda x: centred(x, -1) * (variance(x, -1) + EPS).rsqrt(),
    "mean of squares": lambda x: centred(x, -1) / (centred(x, -1).pow(2).mean(-1, keepdim=True) + EPS).sqrt(),
}

VECTORS = "float[4] w = {1,1,1,1}, float[4] b = {0,0,0,0}"
ROW = f"float[131] w = {{{','.join('1' * 131)}}}"
NODES: dict[str, tuple[str, str, str, Function]] = {  # initializers, outputs, node, the same in torch
    "GroupNormalization": (
        VECTORS,
        "float[2,4,3,131] y",
        "y = GroupNormalization<num_groups=2>(x, w, b)",
        lambda x: F.group_norm(x, 2),
    ),
    "InstanceNormalization": (VECTORS, "float[2,4,3,131] y", "y = InstanceNormalization(x, w, b)", F.instance_norm),
    "MeanVarianceNormalization": (
        VECTORS,
        "float[2,4,3,131] y",
        "y = MeanVarianceNormalization(x)",
        lambda x: centred(x, 0, 2, 3) / (variance(x, 0, 2, 3).sqrt() + 1e-9),
    ),
    "LayerNormalization and its statistics": (
        ROW,
        "float[2,4,3,131] y, float[2,4,3,1] m, float[2,4,3,1] s",
        "y, m, s = LayerNormalization(x, w)",
        lambda x: (F.layer_norm(x, x.shape[3:]), x.mean(-1, keepdim=True), (variance(x, -1) + EPS).rsqrt()),
    ),
}


class _Module(nn.Module):
    def __init__(self, function: Function):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def from_torch(function: Function) -> Graph:
    return load_exported(torch.export.export(_Module(function), (torch.zeros(SHAPE),), strict=False))


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    results = {f"mean {m:g}": (m + rng.standard_normal(SHAPE)).astype(np.float32) for m in MEANS}
    results["constant"] = np.full(SHAPE, 1e6 + 0.1, np.float32)
    results["no row like the next"] = np.concatenate([results[n][:, :, :1] for n in list(results)[1:4]], 2)
    return results


def check(graph: Graph, function: Function, prefix: str = "") -> None:
    """Every engine whose name starts with `prefix` is near the function in float64."""
    for name, x in inputs().items():
        exact = function(torch.from_numpy(x.astype(np.float64)))
        exact = exact if isinstance(exact, tuple) else (exact,)
        for engine, got in every_engine(graph, {next(iter(graph.inputs)): x}).items():
            for array, expected in zip(got.values(), exact, strict=True) if engine.startswith(prefix) else ():
                at = f"{name}, {engine}"
                np.testing.assert_allclose(array, expected.numpy(), TOLERANCE, TOLERANCE, err_msg=at)


@pytest.mark.parametrize("name", TORCH)
def test_torch(name: str) -> None:
    check(from_torch(TORCH[name]), TORCH[name])


@pytest.mark.parametrize("name", SPELLED)
def test_norms_that_are_spelled_out(name: str) -> None:
    check(from_torch(SPELLED[name]), SPELLED[name], "optimized")


@pytest.mark.parametrize("name", NODES)
def test_onnx(name: str) -> None:
    initializers, outputs, node, function = NODES[name]
    graph = load_onnx(text_model(f"g (float[2,4,3,131] x) => ({outputs}) <{initializers}> {{ {node} }}", opset=21))
    check(graph, function)


def test_rows_without_a_variance() -> None:
    """NaN as in torch: rows of one element or none, and of infinite numbers."""
    for shape in ((3, 1), (3, 0), (3, 4)):
        x = torch.full(shape, torch.inf)
        graph = load_exported(torch.export.export(_Module(lambda x: x.var(-1)), (x,), strict=False))
        assert x.var(-1).isnan().all()
        for engine, got in every_engine(graph, {"x": x.numpy()}).items():
            assert all(np.isnan(array).all() for array in got.values()), engine

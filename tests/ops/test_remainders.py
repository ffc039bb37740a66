"""Remainders at the ends of the number range: from ONNX and torch, by every engine, against numpy's and torch's."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from differential import every_engine
from ingot.load.aten import load_exported
from ingot.load.onnx import load_onnx
from onnx_cases import EXTREMES
from onnx_models import model, value_info

TINY = np.array([1e-45, -7e-45, 5e-44, 1.1754942e-38, -1.1754944e-38, 3e-30, 0.1, -3, 16777217, -2.5e30], np.float32)
NUMBERS = np.concatenate([EXTREMES, TINY])
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of a dividend and a divisor, the lowest and the highest integer among them."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = {low, low + 1, 0, 1, 2, 3, 7, high - 1, high} | ({-1, -2, -7} if low < 0 else set())
    values, divisors = (torch.tensor(sorted(some), dtype=dtype) for some in (numbers, numbers - {0}))
    return values.repeat_interleave(len(divisors)), divisors.repeat(len(values))


def onnx_remainders(a: np.ndarray, b: np.ndarray, fmod: int) -> dict[str, np.ndarray]:
    """The remainder by each engine."""
    feeds = {"a": a, "b": b}
    node = helper.make_node("Mod", ["a", "b"], ["y"], fmod=fmod)
    declared = [value_info(name, array) for name, array in feeds.items()]
    proto = model(helper.make_graph([node], "g", declared, [onnx.ValueInfoProto(name="y")]))
    results = every_engine(load_onnx(proto.SerializeToString()), feeds)
    return {engine: got["y"] for engine, got in results.items()}


def test_onnx_fmod_of_floats() -> None:
    """Tiny, denormal and infinite numbers; zeros have the sign of a dividend other than zero."""
    a, b = np.repeat(NUMBERS, len(NUMBERS)), np.tile(NUMBERS, len(NUMBERS))
    with np.errstate(all="ignore"):
        expected = np.fmod(a, b)
    sure = ~np.isnan(expected) & (a != 0)
    for engine, got in onnx_remainders(a, b, 1).items():
        np.testing.assert_array_equal(got, expected, err_msg=engine)
        np.testing.assert_array_equal(np.signbit(got)[sure], np.signbit(expected)[sure], err_msg=engine)


@pytest.mark.parametrize("fmod", (0, 1))
@pytest.mark.parametrize("dtype", INTEGERS)
def test_onnx_integers(dtype: torch.dtype, fmod: int) -> None:
    a, b = pairs(dtype)
    expected = (torch.fmod if fmod else torch.remainder)(a, b).numpy()
    for engine, got in onnx_remainders(a.numpy(), b.numpy(), fmod).items():
        np.testing.assert_array_equal(got, expected, err_msg=engine)


class _Remainders(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fmod(a, b), torch.remainder(a, b), torch.fmod(a, 3), torch.remainder(a, 3)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_torch_integers(dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    module = _Remainders()
    graph = load_exported(torch.export.export(module, (a, b), strict=False))
    for engine, got in every_engine(graph, {"a": a.numpy(), "b": b.numpy()}).items():
        for array, expected in zip(got.values(), module(a, b), strict=True):
            np.testing.assert_array_equal(array, expected.numpy(), err_msg=engine)

"""Fourier transforms of lengths of every kind: numpy's numbers, and one result on every set, alone or with others."""

import numpy as np
import pytest

import ingot.ops
from differential import native
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import Graph, TensorType
from ingot.lower.cpu.fourier import is_large, radices
from ingot.run.library import load
from ingot.session.inference import InferenceSession

assert ingot.ops
pytestmark = pytest.mark.native

# Of one factor, of each that passes know, of several whose strides fill lanes or not, of a prime that is too large.
LENGTHS = (1, 2, 3, 4, 9, 25, 30, 64, 67, 77, 122, 134, 400, 1000, 1024)
EXACT = {np.float32: 2e-6, np.float64: 5e-14}  # of the largest number of a result


def graph_of(op: str, shape: tuple[int, ...], dtype: type, **attributes) -> Graph:
    graph = Graph(op)
    names = ["x"] if op == "rfft" else ["x", "y"]
    for name in names:
        graph.add_input(name, TensorType(from_numpy(np.dtype(dtype)), shape))
    for i, output in enumerate(graph.add(op, names, **attributes).outputs):
        graph.set_output(f"out{i}", output)
    return graph


def transforms(length: int):
    """Op, attributes, how many numbers of a line it reads, and numpy's function of complex numbers."""
    half = length // 2 + 1
    yield "fft", {"inverse": False}, length, np.fft.fft
    yield "fft", {"inverse": True}, length, np.fft.ifft
    yield "rfft", {}, length, lambda z, axis: np.fft.rfft(z.real, axis=axis)
    yield "irfft", {"length": length}, half, lambda z, axis: np.fft.irfft(z, length, axis)


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("length", LENGTHS)
def test_lines(length, dtype):
    rng = np.random.default_rng(length)
    for op, attributes, read, function in transforms(length):
        for axis, shape in ((1, (19, read)), (0, (read, 5))):
            parts = {name: rng.normal(size=shape).astype(dtype) for name in "xy"}
            expected = function(parts["x"].astype(np.float64) + 1j * parts["y"], axis=axis)
            graph = graph_of(op, shape, dtype, axis=axis, **attributes)
            feeds = {name: parts[name] for name in graph.inputs}
            results = {isa: native(graph, feeds, isa=isa) for isa in load().isas()}
            first = results["scalar"]
            made = first["out0"] + (1j * first["out1"] if "out1" in first else 0)
            assert np.abs(made - expected).max() <= EXACT[dtype] * np.abs(expected).max()
            alone = native(
                graph_of(op, (1, read) if axis else (read, 1), dtype, axis=axis, **attributes),
                {name: part[:1] if axis else part[:, :1] for name, part in feeds.items()},
            )
            for name, value in first.items():
                assert all(result[name].tobytes() == value.tobytes() for result in results.values())
                np.testing.assert_array_equal(alone[name], value[:1] if axis else value[:, :1])


def test_passes_make_up_a_length():
    primes = [p for p in range(2, 1000) if all(p % d for d in range(2, p))]
    for length in range(1, 1000):
        assert np.prod(radices(length), dtype=int) == length
        assert is_large(length) == any(length % p == 0 for p in primes if p > 61)


def test_ends_of_a_half_are_real():
    """The result of numpy, for any content."""
    for length in (8, 9):
        graph = graph_of("irfft", (1, length // 2 + 1), np.float32, axis=1, length=length)
        x, y = np.ones((2, 1, length // 2 + 1), np.float32)
        y[0, 0] = np.nan
        y[0, -1] = 1.0 if length % 2 else np.nan
        z = x + 1j * np.nan_to_num(y)
        z.imag[0, 0], z.imag[0, -1] = 0, 1.0 if length % 2 else 0
        np.testing.assert_allclose(native(graph, {"x": x, "y": y})["out0"], np.fft.irfft(z, length), atol=1e-6)


@pytest.mark.parametrize("length", [2**20, 44100, 65537])
def test_long_lines(length):
    x = np.random.default_rng(1).normal(size=(1, length)).astype(np.float32)
    graph = graph_of("rfft", x.shape, np.float32, axis=1)
    real, imaginary = InferenceSession(graph, strict=True, threads=1).run(None, {"x": x})
    expected = np.fft.rfft(x.astype(np.float64))
    assert np.abs(real + 1j * imaginary - expected).max() <= 2e-6 * np.abs(expected).max()

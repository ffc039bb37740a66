"""Saved programs on WebGPU, and memory that its device does not have."""

from pathlib import Path

import numpy as np
import pytest

import ingot
import ingot.ops
from adapters import adapter
from ingot.errors import LoadError, ResourceError, UnsupportedError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.device import open_device

assert ingot.ops and adapter
pytestmark = pytest.mark.usefixtures("adapter")


@pytest.mark.parametrize("precision", ["f32", "int8w"])
def test_a_program_that_native_saved_runs(precision: str, tmp_path: Path) -> None:
    native = ingot.InferenceSession("digits", precision=precision)
    feeds = {"image": np.random.default_rng(3).random((2, 1, 8, 8), np.float32)}
    (expected,) = native.run(None, feeds)
    native.save(tmp_path / "saved")
    session = ingot.InferenceSession(tmp_path / "saved", executor="webgpu", strict=True)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UnsupportedError, match="save: no native program, got executor 'webgpu', expected 'native'"):
        session.save(tmp_path / "again")


def test_what_native_alone_packs_so_is_not_there(tmp_path: Path) -> None:
    graph = Graph("conv")
    graph.add_input("x", TensorType(f32, (1, 64, 32, 32)))
    weight = graph.add_weight("w", np.ones((64, 64, 3, 3), np.float32))
    attributes = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    graph.set_output("y", graph.add("conv", ["x", weight], **attributes).output)
    native = ingot.InferenceSession(graph)
    assert native.explain().choices[0].candidates[-1][0] == "conv2d_f32_winograd"
    native.save(tmp_path / "saved")
    with pytest.raises(LoadError, match=r"weight 'w': has no data, .* may contain it only as packed for native"):
        ingot.InferenceSession(tmp_path / "saved", executor="webgpu")


def test_a_buffer_that_there_is_no_memory_for() -> None:
    device = open_device()
    most = device.adapter.limits["buffer_bytes"]
    with pytest.raises(ResourceError, match=rf"webgpu: no buffer, got {1 << 40} bytes, expected at most {most}: "):
        device.buffer(1 << 40, "STORAGE")

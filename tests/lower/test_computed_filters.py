"""Convolutions whose filter the run computes, as trained ones are: the kernels and the bits of fixed filters."""

import numpy as np
import pytest

from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.library import load
from products import random
from stored_products import compiled

pytestmark = pytest.mark.native


def convolution(x, filter, is_fixed: bool, **settings) -> Graph:
    graph = Graph("convolution")
    graph.add_input("x", TensorType(f32, x.shape))
    if is_fixed:
        graph.add_weight("w", filter)
    else:
        graph.add_input("w", TensorType(f32, filter.shape))
    graph.set_output("y", graph.add("conv", ["x", "w"], "y", groups=1, **settings).output)
    return graph


@pytest.mark.parametrize(
    "channels, out, size, strides, kernels",
    [
        (20, 40, 3, (1, 1), {"conv2d_filter_points_f32", "conv2d_f32_winograd"}),
        (20, 33, 3, (2, 2), {"pack_f32", "conv2d_f32_packed"}),
        (57, 40, 1, (1, 1), {"pack_f32", "gemm_f32_packed"}),  # with few channels, windows are faster on AVX2
        (3, 24, 5, (2, 1), {"pack_f32", "conv2d_f32_planes"}),
    ],
)
def test_a_computed_filter_has_the_bits_of_a_fixed_one(channels, out, size, strides, kernels):
    x, filter = random(2, channels, 21, 18), random(out, channels, size, size, seed=1)
    pad = size // 2
    settings = {"strides": strides, "pads": (pad,) * 4, "dilations": (1, 1)}
    expected = compiled(convolution(x, filter, True, **settings), threads=1)[0].run([x])[0]
    for isa in load().isas():
        program, found = compiled(convolution(x, filter, False, **settings), isa=isa)
        assert kernels <= set(found)
        np.testing.assert_array_equal(program.run([x, filter])[0].view(np.int32), expected.view(np.int32))

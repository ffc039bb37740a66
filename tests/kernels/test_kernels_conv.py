"""Convolution kernels over images with adjacent channels, against torch in float64, and bit for bit among instruction
sets, parts and batches."""

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

from ingot.support import abi
from kernel_calls import DOT_ISAS, ISAS, SPLIT_ISAS, at_page_end, element_strides, every
from products import ACTIVATIONS, gamma, packed, random

pytestmark = pytest.mark.native

CASES = [  # batch, channels, height, width, out_channels, groups, kernel, stride, pad, dilation
    (1, 1, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 3, 9, 11, 20, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 3, 17, 15, 8, 1, (7, 7), (2, 2), (3, 3), (1, 1)),
    (1, 3, 32, 48, 70, 1, (16, 16), (16, 16), (0, 0), (1, 1)),
    (1, 8, 7, 7, 12, 4, (3, 2), (2, 1), (1, 0), (1, 2)),
    (1, 6, 8, 40, 6, 6, (3, 3), (1, 1), (2, 2), (2, 2)),
    (2, 40, 5, 5, 33, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 16, 14, 14, 64, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 64, 7, 7, 40, 1, (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, 320, 3, 4, 32, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 64, 10, 9, 33, 1, (5, 5), (1, 1), (2, 2), (1, 1)),
    (1, 80, 6, 5, 68, 2, (3, 3), (1, 1), (3, 4), (3, 3)),
    (1, 40, 6, 25, 20, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 96, 5, 15, 15, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 128, 5, 14, 80, 2, (3, 3), (2, 1), (1, 2), (1, 2)),
    (1, 2, 1, 50, 3, 1, (1, 5), (1, 3), (0, 4), (1, 1)),
    (1, 4, 3, 3, 5, 1, (2, 2), (1, 1), (4, 4), (1, 1)),
    (0, 2, 4, 4, 3, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
]
FAR = (1, 4, 31, 40, 33, 1, (29, 33), (2, 3), (2, 4), (1, 1))  # whose windows are gathered in pieces
DEPTHWISE = [  # batch, channels, height, width, kernel, stride, pad, dilation
    (1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 32, 9, 11, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 40, 9, 12, (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, 24, 12, 9, (5, 5), (1, 1), (2, 2), (1, 1)),
    (1, 17, 7, 30, (5, 5), (2, 2), (2, 2), (1, 1)),
    (1, 33, 16, 23, (7, 7), (1, 1), (3, 3), (1, 1)),
    (1, 19, 13, 14, (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, 50, 8, 8, (3, 2), (1, 2), (0, 1), (1, 1)),
    (1, 16, 2, 2, (3, 3), (1, 1), (3, 3), (1, 1)),
    (0, 16, 2, 2, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 144, 7, 15, (3, 3), (1, 2), (1, 1), (1, 1)),
    (1, 32, 9, 16, (5, 5), (3, 1), (0, 2), (1, 1)),
    (1, 16, 11, 20, (3, 3), (4, 1), (1, 1), (1, 1)),
]
TRANSFORMED = [  # batch, channels, height, width, out_channels, groups, pad
    (1, 1, 1, 1, 1, 1, (1, 1)),
    (2, 20, 7, 9, 33, 1, (1, 1)),
    (1, 16, 4, 4, 16, 1, (0, 0)),
    (3, 32, 6, 27, 48, 1, (1, 2)),
    (1, 300, 5, 6, 40, 1, (3, 0)),
    (1, 24, 20, 17, 64, 1, (1, 1)),
    (0, 16, 4, 4, 16, 1, (1, 1)),
    (2, 96, 7, 10, 144, 3, (1, 1)),
    (1, 40, 21, 30, 34, 2, (1, 0)),
    (1, 528, 3, 3, 80, 2, (1, 1)),
]
HALVED = [  # batch, channels, height, width, out_channels, stride of lines, pad
    (1, 1, 1, 3, 1, 1, (0, 0)),
    (1, 16, 1, 50, 33, 1, (0, 1)),
    (2, 20, 3, 9, 48, 1, (0, 0)),
    (2, 17, 4, 8, 16, 2, (1, 2)),
    (1, 140, 1, 163, 40, 1, (0, 1)),
    (1, 300, 1, 2, 256, 1, (0, 1)),
    (0, 16, 1, 4, 16, 1, (0, 1)),
]
WAYS = [("none", 0), ("relu", 0), ("silu", 5)]  # activation (with bias and residual when there is one), holes


def double(x, weight, bias, groups, stride, pad, dilation):
    """The convolution of NCHW x in float64, as NHWC."""
    tensors = [torch.from_numpy(np.asarray(v, np.float64)) for v in (x, weight, bias)]
    result = torch.nn.functional.conv2d(*tensors, stride=stride, padding=pad, dilation=dilation, groups=groups)
    return result.permute(0, 2, 3, 1).numpy()


def sizes(x, weight, out, groups, stride, pad, dilation):
    """The fields of conv_args that are numbers; x is NCHW, out NHWC."""
    fields = {"batch": x.shape[0], "channels": x.shape[1], "height": x.shape[2], "width": x.shape[3]}
    fields |= {"out_channels": weight.shape[0], "out_height": out.shape[1], "out_width": out.shape[2]}
    pairs = {"kernel": weight.shape[2:], "stride": stride, "dilation": dilation}
    for name, pair in pairs.items():
        fields |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    return fields | {"pad_top": pad[0], "pad_left": pad[1], "groups": groups}


def panels(weight, groups, order):
    """[out_channels, channels / groups, kernel_h, kernel_w] in panels per group, k in `order` of the last three."""
    split = weight.reshape(groups, -1, *weight.shape[1:])
    return np.stack([packed(w.transpose(0, *order).reshape(len(w), -1).T) for w in split])


def check(kernel, x, weight, image, image_strides, stored, case, way, isas=ISAS, slack=1.2, sums=double):
    """Runs a kernel on every instruction set and number of parts, and compares it with what `sums` makes in float64:
    within `slack` times the bound of a sum in one chain.
    """
    (activation, holes), (groups, stride, pad, dilation) = way, case
    code, function = ACTIVATIONS[activation]
    bias = random(weight.shape[0], seed=2) * (activation != "none")
    linear = sums(x, weight, bias, *case)
    fields = sizes(x, weight, linear, groups, stride, pad, dilation)
    fields |= {"x": image, "x_strides": image_strides, "weight": at_page_end(stored), "activation": code}
    expected = function(linear)
    if activation != "none":
        residual = at_page_end(random(*linear.shape, seed=3), holes)
        fields |= {"bias": at_page_end(bias), "residual": residual, "residual_strides": element_strides(residual)[:3]}
        expected = expected + residual
    shape = linear.shape
    pitch = shape[3] + holes
    fields["out_strides"] = [shape[1] * shape[2] * pitch, shape[2] * pitch, pitch]
    scratch = abi.scratch_floats(kernel, fields)
    result = every(kernel, fields, "out", shape, row_pad=holes, scratch=scratch, isas=isas)
    size = double(abs(x), abs(weight), abs(bias), *case)
    bound = slack * gamma(int(np.prod(weight.shape[1:]))) * size + 5e-7 * (1 + abs(expected))
    assert (abs(result - expected) <= bound).all()
    return result


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_and_planes(case, way):
    """conv2d_f32_packed reads adjacent channels, conv2d_f32_planes the graph's own layout; one image at a time gives
    the bits of the batch."""
    batch, channels, height, width, out_channels, groups, kernel, *window = case
    x = random(batch, channels, height, width)
    weight = random(out_channels, channels // groups, *kernel, seed=1)
    for name, axes, order in [("packed", (0, 2, 3, 1), (2, 3, 1)), ("planes", (0, 1, 2, 3), (1, 2, 3))]:
        stored = panels(weight, groups, order)
        results = []
        for images in [x, *x[:, None]] if way[0] == "none" else [x]:
            image = at_page_end(images.transpose(axes), way[1])
            n, *rest = element_strides(image)
            strides = [n, rest[0], rest[1], rest[2]] if name == "packed" else [n, rest[1], rest[2], rest[0]]
            results.append(check(f"conv2d_f32_{name}", images, weight, image, strides, stored, (groups, *window), way))
        for one, all in zip(results[1:], results[0], strict=False):
            assert one[0].tobytes() == all.tobytes()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case[1] // case[5] % 2 == 0], ids=str)
@pytest.mark.parametrize("kernel, isas", [("packed", DOT_ISAS), ("tiles", SPLIT_ISAS)], ids=["packed", "tiles"])
def test_packed_pairs(kernel, isas, case, way):
    """conv2d_bf16_packed, and _tiles, are near float64 on the rounded numbers, with one definition on every instruction
    set."""
    batch, channels, height, width, out_channels, groups, size, *window = case
    x = random(batch, channels, height, width).astype(bfloat16)
    weight = random(out_channels, channels // groups, *size, seed=1).astype(bfloat16)
    floats = panels(weight.astype(np.float32), groups, (2, 3, 1))
    stored = np.ascontiguousarray(floats.reshape(*floats.shape[:2], -1, 2, 32).swapaxes(3, 4)).astype(bfloat16)
    image = at_page_end(x.transpose(0, 2, 3, 1), 2 * way[1])
    wide = [array.astype(np.float32) for array in (x, weight)]
    strides = element_strides(image)
    check(f"conv2d_bf16_{kernel}", *wide, image, strides, stored, (groups, *window), way, isas=isas, slack=2.4)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", [*CASES, FAR], ids=str)
def test_planes_of_pairs(case, way):
    """conv2d_bf16_planes reads window samples in pairs, for any odd size: channels, width of a filter, its dilation."""
    batch, channels, height, width, out_channels, groups, kernel, *window = case
    x = random(batch, channels, height, width).astype(bfloat16)
    weight = random(out_channels, channels // groups, *kernel, seed=1).astype(bfloat16)
    floats = panels(weight.astype(np.float32), groups, (1, 2, 3))
    floats = np.pad(floats, [(0, 0), (0, 0), (0, floats.shape[2] % 2), (0, 0)])
    stored = np.ascontiguousarray(floats.reshape(*floats.shape[:2], -1, 2, 32).swapaxes(3, 4)).astype(bfloat16)
    image = at_page_end(x, way[1])
    n, *rest = element_strides(image)
    wide = [array.astype(np.float32) for array in (x, weight)]
    strides = [n, rest[1], rest[2], rest[0]]
    check("conv2d_bf16_planes", *wide, image, strides, stored, (groups, *window), way, isas=DOT_ISAS, slack=2.4)


def transformed(weight, groups):
    """[out_channels, channels, 3, 3] as the 16 matrices of F(2 x 2, 3 x 3) for each group, in float64 and rounded once:
    [16, groups, out_channels / groups, channels]."""
    factors = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    points = np.einsum("pi,qj,ocij->pqoc", factors, factors, weight.astype(np.float64))
    return points.reshape(16, groups, -1, weight.shape[1]).astype(np.float32)


def transformed_panels(weight, groups):
    """The same in panels."""
    return np.stack([packed(matrix.T) for matrix in np.concatenate(transformed(weight, groups))])


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", TRANSFORMED, ids=str)
def test_transformed(case, way):
    """conv2d_f32_winograd is as near to float64 as sums of its 16 products for each channel; a batch changes no bit."""
    batch, channels, height, width, out_channels, groups, pad = case
    x = random(batch, channels, height, width)
    weight = random(out_channels, channels // groups, 3, 3, seed=1)
    stored = transformed_panels(weight, groups)
    results = []
    for images in [x, *x[:, None]] if way[0] == "none" else [x]:
        image = at_page_end(images.transpose(0, 2, 3, 1), way[1])
        rest = (groups, (1, 1), pad, (1, 1)), way
        results.append(
            check("conv2d_f32_winograd", images, weight, image, element_strides(image), stored, *rest, slack=4)
        )
    for one, all in zip(results[1:], results[0], strict=False):
        assert one[0].tobytes() == all.tobytes()


def forward(x, axis):
    """Four rows or columns as four points, in the order of additions that the kernels have."""
    a, b, c, d = np.moveaxis(x, axis, 0)
    return np.stack([a - c, b + c, c - b, b - d], axis)


def rounded_sums(x, weight, bias, groups, stride, pad, dilation):
    """F(2 x 2, 3 x 3) whose factors are rounded to bf16 after their transforms in f32; all else is float64."""
    height, width = x.shape[2] + 2 * pad[0] - 2, x.shape[3] + 2 * pad[1] - 2
    ends = [(p, p + size % 2) for p, size in zip(pad, (height, width), strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *ends])
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (4, 4), axis=(2, 3))[:, :, ::2, ::2]
    points = forward(forward(tiles, 4), 5).reshape(*tiles.shape[:4], 16).astype(bfloat16)
    n, channels, down, across = points.shape[:4]
    split = points.astype(float).reshape(n, groups, channels // groups, down, across, 16)
    products = np.einsum("ngcyxp,pgoc->ngoyxp", split, transformed(weight, groups).astype(bfloat16).astype(float))
    products = products.reshape(n, len(weight), down, across, 16)
    back = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    pixels = np.einsum("ip,jq,noyxpq->nyixjo", back, back, products.reshape(*products.shape[:4], 4, 4))
    n, down, _, across, _, out = pixels.shape
    return pixels.reshape(n, 2 * down, 2 * across, out)[:, :height, :width] + bias


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", [case for case in TRANSFORMED if case[1] // case[5] % 2 == 0], ids=str)
def test_transformed_pairs(case, way):
    """conv2d_bf16_winograd rounds what is multiplied, and nothing else, with one definition everywhere."""
    batch, channels, height, width, out_channels, groups, pad = case
    x = random(batch, channels, height, width).astype(bfloat16)
    weight = random(out_channels, channels // groups, 3, 3, seed=1)
    floats = transformed_panels(weight, groups)
    stored = np.ascontiguousarray(floats.reshape(*floats.shape[:2], -1, 2, 32).swapaxes(3, 4)).astype(bfloat16)
    wide, rest = x.astype(np.float32), (stored, (groups, (1, 1), pad, (1, 1)), way)
    results = []
    for images in [x, *x[:, None]] if way[0] == "none" else [x]:
        image = at_page_end(images.transpose(0, 2, 3, 1), 2 * way[1])
        some = (wide if images is x else images.astype(np.float32)), weight, image, element_strides(image)
        results.append(check("conv2d_bf16_winograd", *some, *rest, isas=DOT_ISAS, slack=8, sums=rounded_sums))
    for one, all in zip(results[1:], results[0], strict=False):
        assert one[0].tobytes() == all.tobytes()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", HALVED, ids=str)
def test_lines(case, way):
    """conv2d_f32_lines is as near to float64 as sums of its 5 products for two pixels; a batch changes no bit."""
    batch, channels, height, width, out_channels, down, pad = case
    x = random(batch, channels, height, width)
    weight = random(out_channels, channels, 1, 3, seed=1)
    taps = np.moveaxis(weight[:, :, 0], 2, 0)
    stored = packed(np.concatenate([*taps, taps[0] + taps[2]], 1).T)
    results = []
    for images in [x, *x[:, None]] if way[0] == "none" else [x]:
        image = at_page_end(images.transpose(0, 2, 3, 1), way[1])
        rest = (1, (down, 2), pad, (1, 1)), way
        results.append(check("conv2d_f32_lines", images, weight, image, element_strides(image), stored, *rest, slack=3))
    for one, all in zip(results[1:], results[0], strict=False):
        assert one[0].tobytes() == all.tobytes()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise(case, way):
    batch, channels, height, width, kernel, *window = case
    x = random(batch, channels, height, width)
    weight = random(channels, 1, *kernel, seed=1)
    stored = np.ascontiguousarray(weight.reshape(channels, -1).T)
    image = at_page_end(x.transpose(0, 2, 3, 1), way[1])
    check("conv2d_f32_depthwise", x, weight, image, element_strides(image), stored, (channels, *window), way)


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_activated_and_averaged(case):
    """An activation alone, and the means of its rows."""
    batch, channels, height, width, kernel, *window = case
    x, weight = random(batch, channels, height, width), random(channels, 1, *kernel, seed=1)
    code, function = ACTIVATIONS["silu"]
    expected = function(double(x, weight, random(channels, seed=2), channels, *window))
    image, out = at_page_end(x.transpose(0, 2, 3, 1)), np.zeros(expected.shape, np.float32)
    fields = sizes(x, weight, out, channels, *window) | {"x": image, "x_strides": element_strides(image)}
    fields |= {"weight": at_page_end(np.ascontiguousarray(weight.reshape(channels, -1).T)), "activation": code}
    fields |= {"bias": at_page_end(random(channels, seed=2)), "out": out, "out_strides": element_strides(out)[:3]}
    means = every("conv2d_f32_depthwise", fields, "means", (batch, out.shape[1], channels))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(means, expected.mean(2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_of_bf16(case, way):
    """The bits are those of the same numbers as floats."""
    batch, channels, height, width, kernel, *window = case
    x = random(batch, channels, height, width).astype(bfloat16)
    weight = random(channels, 1, *kernel, seed=1)
    stored = np.ascontiguousarray(weight.reshape(channels, -1).T)
    results = []
    for name, elements in (("bf16", x), ("f32", x.astype(np.float32))):
        image = at_page_end(elements.transpose(0, 2, 3, 1), way[1])
        rest = x.astype(np.float32), weight, image, element_strides(image), stored, (channels, *window), way
        results.append(check(f"conv2d_{name}_depthwise", *rest))
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("kernel", ["packed", "depthwise"])
def test_padding_is_zero_times_weight(kernel):
    """An infinite weight meets the zeros of the padding, as in torch."""
    x, weight = np.ones((1, 1, 2, 2), np.float32), np.zeros((1, 1, 3, 3), np.float32)
    weight[0, 0, 0, 0] = np.inf
    stored = panels(weight, 1, (2, 3, 1)) if kernel == "packed" else weight.reshape(9, 1)
    fields = sizes(x, weight, np.empty((1, 2, 2, 1)), 1, (1, 1), (1, 1), (1, 1))
    fields |= {"x": x, "x_strides": [4, 2, 1, 1], "weight": at_page_end(stored), "out_strides": [4, 2, 1]}
    scratch = abi.scratch_floats(f"conv2d_f32_{kernel}", fields)
    result = every(f"conv2d_f32_{kernel}", fields, "out", (1, 2, 2, 1), scratch=scratch)
    np.testing.assert_array_equal(result.ravel(), [np.nan, np.nan, np.nan, np.inf])

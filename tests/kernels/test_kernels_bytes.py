"""Images as bytes and convolutions of them, against their definitions: sums are integers, and floats have one order."""

from typing import Any

import numpy as np
import pytest
import torch

from ingot import abi
from kernel_calls import LIBRARY, Output, at_page_end, bits, element_strides, every, ways
from products import ACTIVATIONS, random

pytestmark = pytest.mark.native

LIMIT = np.float32(2.0**-120)
CASES = [  # batch, channels, height, width, out_channels, groups, kernel, stride, pad, dilation
    (1, 4, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 4, 17, 15, 8, 1, (7, 7), (2, 2), (3, 3), (1, 1)),
    (2, 40, 5, 7, 33, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 64, 9, 8, 70, 1, (1, 1), (2, 2), (0, 0), (1, 1)),
    (1, 16, 14, 14, 64, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 64, 7, 7, 40, 1, (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, 80, 6, 5, 68, 2, (3, 3), (1, 1), (3, 4), (3, 3)),
    (2, 128, 5, 14, 80, 2, (3, 3), (2, 1), (1, 2), (1, 2)),
    (1, 8, 1, 50, 3, 1, (1, 5), (1, 3), (0, 4), (1, 1)),
    (1, 4, 3, 3, 5, 1, (2, 2), (1, 1), (4, 4), (1, 1)),
    (1, 2048, 3, 5, 33, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (0, 4, 4, 4, 3, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
]
SHAPES = [(1, 1, 1, 1), (2, 5, 3, 3), (3, 4, 7, 16), (1, 2, 5, 37), (2, 3, 3, 64), (0, 2, 2, 4)]


def exact(x: np.ndarray, weight: np.ndarray, groups: int, stride, pad, dilation) -> np.ndarray:
    """The convolution of integers NCHW, as NHWC: float64 holds all sums."""
    tensors = [torch.from_numpy(np.asarray(v, np.float64)) for v in (x, weight)]
    sums = torch.nn.functional.conv2d(*tensors, stride=stride, padding=pad, dilation=dilation, groups=groups)
    return sums.permute(0, 2, 3, 1).numpy()


def sizes(x: np.ndarray, weight: np.ndarray, out: np.ndarray, groups: int, stride, pad, dilation) -> dict[str, Any]:
    """The fields that are numbers; x is NCHW, out NHWC."""
    names = ("batch", "channels", "height", "width", "out_channels", "out_height", "out_width", "kernel_h", "kernel_w")
    fields = dict(zip(names, (*x.shape, len(weight), *out.shape[1:3], *weight.shape[2:]), strict=True))
    for name, pair in {"stride": stride, "dilation": dilation}.items():
        fields |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    return fields | {"pad_top": pad[0], "pad_left": pad[1], "groups": groups}


def levels(x: np.ndarray) -> np.ndarray:
    """Factor, step and zero point of each image [N, H, W, C], in f32, one step after the other."""
    found = []
    for image in x:
        least, most = (np.float32(reduce(image, initial=0)) for reduce in (np.min, np.max))
        with np.errstate(all="ignore"):
            width = most - least
            if not np.isfinite(image).all() or not np.isfinite(width):
                found.append((0, np.nan, 0))
            elif width < LIMIT:
                found.append((0, 0, 0))
            else:
                factor = np.float32(255) / width
                found.append((factor, width / np.float32(255), np.rint(-least * factor)))
    return np.array(found, np.float32).reshape(-1, 3)


def codes(x: np.ndarray) -> np.ndarray:
    """The codes of images, channels filled up to fours."""
    factor, _, zero = (each.reshape(-1, 1, 1, 1) for each in levels(x).T)
    with np.errstate(all="ignore"):
        rounded = np.where(factor == 0, 0, np.minimum(np.rint(x * factor) + zero, 255))
    return np.pad(rounded.astype(np.uint8), ((0, 0), (0, 0), (0, 0), (0, -x.shape[3] % 4)))


def rounded_by(isa: str, parts: int, fields: dict[str, Any], filled: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Runs both turns, each over all parts; gives codes and levels."""
    batch, height, width, channels = filled
    out = Output(np.uint8, filled, (height * width * channels, width * channels, channels, 1))
    ranges = at_page_end(np.full((batch, height, 2), np.nan, np.float32))
    made = at_page_end(np.full((batch, 2), np.nan, np.float32))
    row, ffi = LIBRARY.kernels["round_image_u8"], LIBRARY.ffi
    arrays = {"out": out.array, "ranges": ranges, "levels": made}
    pointers = {name: ffi.cast("void *", array.ctypes.data) for name, array in arrays.items()}
    args = ffi.new(f"{row.args_type} *", fields | pointers)
    for part in range(2 * parts):
        row.functions[isa](args, part, parts)
    assert out.untouched()
    return out.array.copy(), made.copy()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("holes", [0, 5])
@pytest.mark.parametrize("kind", ["any", "positive", "odd", "tiny", "infinite", "huge", "zeros"])
def test_images_as_bytes(shape: tuple[int, ...], holes: int, kind: str) -> None:
    x = random(*shape) * 3
    if kind == "positive":
        x = abs(x)
    elif kind == "odd" and x.size:
        x.reshape(-1)[:2] = [-101.5, 153.5][: x.size]  # both ends lie in the middle between codes
    elif kind == "tiny":
        x *= np.float32(2.0**-123)
    elif kind == "infinite" and x.size:
        x[-1, 0, 0, 0] = -np.inf
    elif kind == "huge" and x.size > 1:
        x.reshape(-1)[:2] = [3e38, -3e38]
    elif kind == "zeros":
        x[...] = -0.0
    image = at_page_end(x, holes)
    batch, height, width, channels = shape
    fields = {"x": LIBRARY.ffi.cast("void *", image.ctypes.data), "x_strides": element_strides(image)[:3]}
    fields |= {"batch": batch, "height": height, "width": width, "channels": channels, "filled": -(-channels // 4) * 4}
    expected, expected_levels = codes(x), levels(x)[:, 1:]
    for isa, parts in ways():
        found, made = rounded_by(isa, parts, fields, expected.shape)
        np.testing.assert_array_equal(found, expected, err_msg=f"{isa}, {parts} parts")
        np.testing.assert_array_equal(made, expected_levels)
    sound = levels(x)[:, 0] > 0
    decoded = (expected[..., :channels] - expected_levels[:, 1].reshape(-1, 1, 1, 1)) * expected_levels[:, 0].reshape(
        -1, 1, 1, 1
    )
    assert (abs(decoded - x)[sound] <= 1.001 * expected_levels[sound, 0].reshape(-1, 1, 1, 1)).all()


def filter_panels(weight: np.ndarray, groups: int) -> np.ndarray:
    """[O, C / groups, kh, kw] as [groups][panels][k / 4][32][4]."""
    rows = weight.transpose(0, 2, 3, 1).reshape(groups, len(weight) // groups, -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32), (0, 0)))
    fours = rows.reshape(groups, rows.shape[1] // 32, 32, rows.shape[2] // 4, 4)
    return np.ascontiguousarray(fours.transpose(0, 1, 3, 2, 4))


def columns(values: np.ndarray, groups: int) -> np.ndarray:
    """A number for each output channel, a panel's after the other."""
    rows = values.reshape(groups, -1)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))


@pytest.mark.parametrize("way", [("none", 0), ("relu", 0), ("clip", 5)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions_of_bytes(case, way) -> None:
    """Every element is the exact sum, scaled; one image at a time gives the bits of the batch."""
    (activation, holes), (batch, channels, height, width, out_channels, groups, kernel, *window) = way, case
    random_bytes = np.random.default_rng([channels, out_channels, height])
    x = random_bytes.integers(0, 256, (batch, channels, height, width), np.uint8)
    weight = random_bytes.integers(-128, 128, (out_channels, channels // groups, *kernel), np.int8)
    zeros = random_bytes.integers(0, 256, batch).astype(np.float32)
    steps = random_bytes.uniform(0.01, 0.02, batch).astype(np.float32)
    scales = random_bytes.uniform(0.001, 0.002, out_channels).astype(np.float32)
    bias = random(out_channels, seed=2)
    sums = exact(x - zeros.reshape(-1, 1, 1, 1), weight, groups, *window)
    size = sizes(x, weight, sums, groups, *window) | {"activation": ACTIVATIONS[activation][0]}
    size |= {"act_alpha": -0.5, "act_beta": 0.5} if activation == "clip" else {}
    codes = weight.astype(np.int32).reshape(out_channels, -1).sum(1)
    shared = {
        "weight": at_page_end(filter_panels(weight, groups)), "scales": at_page_end(columns(scales, groups)),
        "sums": at_page_end(columns(codes, groups).astype(np.int32)), "bias": at_page_end(bias),
    }  # fmt: skip
    expected = sums.astype(np.float32) * scales * steps.reshape(-1, 1, 1, 1) + bias
    if activation == "relu":
        expected = np.maximum(expected, np.float32(0))
    elif activation == "clip":
        expected = np.clip(expected, np.float32(-0.5), np.float32(0.5))
    pitch = out_channels + holes
    strides = [sums.shape[1] * sums.shape[2] * pitch, sums.shape[2] * pitch, pitch]
    for images in [slice(None), *(slice(i, i + 1) for i in range(batch))]:
        image = at_page_end(x[images].transpose(0, 2, 3, 1))
        fields = size | shared | {"x": image, "batch": len(image), "x_strides": element_strides(image)}
        fields |= {"levels": at_page_end(np.stack([steps, zeros], 1)[images]), "levels_stride": 2}
        fields |= {"out_strides": strides}
        shape = (len(image), *sums.shape[1:])
        wanted = expected[images]
        if holes:
            residual = at_page_end(random(*shape, seed=3), holes)
            fields |= {"residual": residual, "residual_strides": element_strides(residual)[:3]}
            wanted = wanted + residual
        scratch = abi.scratch_floats("conv2d_u8_packed", fields)
        result = every("conv2d_u8_packed", fields, "out", shape, row_pad=holes, scratch=scratch)
        np.testing.assert_array_equal(bits(result + 0), bits(wanted + 0))


def test_one_level_for_all_images() -> None:
    """As models have them whose activations were given scales before."""
    x = np.arange(2 * 3 * 3 * 4, dtype=np.uint8).reshape(2, 3, 3, 4)
    weight = np.full((8, 4, 1, 1), -3, np.int8)
    fields = sizes(x.transpose(0, 3, 1, 2), weight, np.zeros((2, 3, 3, 8)), 1, (1, 1), (0, 0), (1, 1))
    fields |= {"x": at_page_end(x), "x_strides": [36, 12, 4, 1], "weight": at_page_end(filter_panels(weight, 1))}
    fields |= {"scales": at_page_end(np.full(32, 0.5, np.float32)), "sums": at_page_end(np.full(32, -12, np.int32))}
    fields |= {"levels": at_page_end(np.array([0.25, 7], np.float32)), "out_strides": [72, 24, 8]}
    scratch = abi.scratch_floats("conv2d_u8_packed", fields)
    result = every("conv2d_u8_packed", fields, "out", (2, 3, 3, 8), scratch=scratch)
    expected = (x.astype(int) - 7).sum(3, keepdims=True) * -3 * 0.125
    np.testing.assert_array_equal(result, np.broadcast_to(expected, result.shape))

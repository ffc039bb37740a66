"""Images as bytes and quantized convolutions, against their definitions: sums are integers, floats have one order."""

from typing import Any

import numpy as np
import pytest
import torch

from ingot.support import abi
from kernel_calls import LIBRARY, Output, at_page_end, element_strides, every, ways
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
    (2, 3, 19, 23, 32, 1, (7, 7), (2, 2), (3, 3), (1, 1)),
    (1, 3, 6, 700, 24, 1, (3, 5), (2, 1), (1, 0), (1, 1)),
    (1, 1200, 3, 90, 64, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
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
    """The quantized values of images."""
    factor, _, zero = (each.reshape(-1, 1, 1, 1) for each in levels(x).T)
    with np.errstate(all="ignore"):
        return np.where(factor == 0, 0, np.minimum(np.rint(x * factor) + zero, 255)).astype(np.uint8)


def rounded_by(isa: str, parts: int, fields: dict[str, Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Run both iterations, each over all tasks; return quantized values, and scales with zero points."""
    batch, height, width, channels = shape
    out = Output(np.uint8, shape, (height * width * channels, width * channels, channels, 1))
    ranges = at_page_end(np.full((batch, height, 2), np.nan, np.float32))
    steps, zeros = at_page_end(np.full(batch, np.nan, np.float32)), at_page_end(np.full(batch, 9, np.uint8))
    row, ffi = LIBRARY.kernels["round_image_u8"], LIBRARY.ffi
    arrays = {"out": out.array, "ranges": ranges, "steps": steps, "zeros": zeros}
    pointers = {name: ffi.cast("void *", array.ctypes.data) for name, array in arrays.items()}
    args = ffi.new(f"{row.args_type} *", fields | pointers)
    for part in range(2 * parts):
        row.functions[isa](args, part, parts)
    assert out.untouched()
    return out.array.copy(), np.stack([steps, zeros.astype(np.float32)], 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("holes", [0, 5, "planes"])
@pytest.mark.parametrize("kind", ["any", "positive", "odd", "tiny", "infinite", "huge", "zeros"])
def test_images_as_bytes(shape: tuple[int, ...], holes: int | str, kind: str) -> None:
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
    is_planes = holes == "planes"
    image = at_page_end(np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if is_planes else x, 0 if is_planes else holes)
    batch, height, width, channels = shape
    strides = element_strides(image)
    fields = {"x": LIBRARY.ffi.cast("void *", image.ctypes.data)}
    fields |= {"x_strides": [strides[i] for i in (0, 2, 3, 1)] if is_planes else strides}
    fields |= {"batch": batch, "height": height, "width": width, "channels": channels}
    expected, expected_levels = codes(x), levels(x)[:, 1:]
    for isa, parts in ways():
        found, made = rounded_by(isa, parts, fields, expected.shape)
        np.testing.assert_array_equal(found, expected, err_msg=f"{isa}, {parts} parts")
        np.testing.assert_array_equal(made, expected_levels)
    sound = levels(x)[:, 0] > 0
    decoded = (expected - expected_levels[:, 1].reshape(-1, 1, 1, 1)) * expected_levels[:, 0].reshape(-1, 1, 1, 1)
    assert (abs(decoded - x)[sound] <= 1.001 * expected_levels[sound, 0].reshape(-1, 1, 1, 1)).all()


def filter_panels(weight: np.ndarray, groups: int) -> np.ndarray:
    """[O, C / groups, kh, kw] as [groups][panels][k / 4][32][4], each row of a window filled up to quads."""
    lines = weight.transpose(0, 2, 3, 1).reshape(len(weight), weight.shape[2], -1)
    lines = np.pad(lines, ((0, 0), (0, 0), (0, -lines.shape[2] % 4)))
    rows = lines.reshape(groups, len(weight) // groups, -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32), (0, 0)))
    quads = rows.reshape(groups, rows.shape[1] // 32, 32, rows.shape[2] // 4, 4)
    return np.ascontiguousarray(quads.transpose(0, 1, 3, 2, 4))


def interleaved(weight: np.ndarray) -> np.ndarray:
    """[C, 1, kh, kw] as [ceil(kh / 4)][kw][C][4], channels filled up to vectors."""
    channels, _, lines, columns = weight.shape
    padded = np.pad(weight[:, 0], ((0, -channels % 16), (0, -lines % 4), (0, 0)))
    return np.ascontiguousarray(padded.reshape(len(padded), -1, 4, columns).transpose(1, 3, 0, 2))


DEPTHWISE = [  # batch, channels, height, width, kernel, stride, pad, dilation
    (2, 3, 7, 9, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 70, 9, 40, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 144, 8, 61, (3, 3), (2, 2), (1, 1), (1, 1)),
    (2, 80, 6, 5, (5, 5), (1, 2), (2, 2), (1, 1)),
    (1, 16, 9, 9, (2, 4), (1, 1), (0, 3), (3, 2)),
    (1, 33, 12, 7, (9, 1), (1, 1), (4, 0), (1, 1)),
    (0, 16, 4, 4, (3, 3), (1, 1), (1, 1), (1, 1)),
]
LAYERS = [*((case, False) for case in CASES), *(((*c[:4], c[1], c[1], *c[4:]), True) for c in DEPTHWISE)]
RESULTS = {"f32": np.float32, "u8": np.uint8, "i8": np.int8, "i32": np.int32}


@pytest.mark.parametrize("result", [*RESULTS, "dynamic", "clipped", "added"])
@pytest.mark.parametrize(("case", "depthwise"), LAYERS, ids=str)
def test_convolutions_of_quantized_filters(case, depthwise: bool, result: str) -> None:
    """Every sum is exact, what follows has one order; parts, instruction sets and batches do not matter."""
    batch, channels, height, width, out_channels, groups, kernel, *window = case
    seeded = np.random.default_rng([channels, out_channels, height, len(result)])
    is_signed, has_zeros = result in ("i8", "i32"), result in ("u8", "i32")
    x = seeded.integers(0, 256, (batch, channels, height, width), np.uint8)
    weight = seeded.integers(-128, 128, (out_channels, channels // groups, *kernel), np.int8)
    is_dynamic = result == "dynamic"
    zeros = seeded.integers(0, 256, batch if is_dynamic else 1).astype(np.uint8)
    weight_zeros = seeded.integers(-128, 128, out_channels).astype(np.int8) if has_zeros else np.zeros(1, np.int8)
    centred = weight.astype(np.float64) - weight_zeros.astype(np.float64).reshape(-1, 1, 1, 1)
    bias = seeded.integers(-999, 999, out_channels).astype(np.int32)
    sums = exact(x - zeros.astype(np.float64).reshape(-1, 1, 1, 1), centred, groups, *window) + bias
    sums = sums.astype(np.int64).astype(np.int32)
    steps = seeded.uniform(0.01, 0.02, batch).astype(np.float32)
    scales = (60 / max(1, abs(sums).max(initial=1)) * seeded.uniform(0.5, 2, out_channels)).astype(np.float32)
    shift = random(out_channels, seed=2) * np.float32(20)
    fields = sizes(x, weight, sums, groups, *window) | {"activation": ACTIVATIONS["none"][0], "out_scale": 1.0}
    kind = {"dynamic": "f32", "clipped": "u8", "added": "u8"}.get(result, result)
    fields |= {"result": abi.constant(f"INGOT_INTEGER_{kind.upper()}"), "scale_step": 1, "x_flip": 128 * is_signed}
    given = (x ^ 128 if is_signed else x).transpose(0, 2, 3, 1)
    fields |= {"x_zero": at_page_end(zeros ^ 128 if is_signed else zeros), "bias": at_page_end(bias)}
    fields |= {"weight": at_page_end(interleaved(weight) if depthwise else filter_panels(weight, groups))}
    fields |= {"column_sums": at_page_end(weight.astype(np.int32).reshape(out_channels, -1).sum(1).astype(np.int32))}
    fields |= {"scale": at_page_end(scales), "shift": at_page_end(shift)} if kind != "i32" else {}
    fields |= {"weight_zero": at_page_end(weight_zeros), "weight_zero_step": 1} if has_zeros else {}
    wanted, beside = expected_quant(sums, scales, steps if is_dynamic else None, shift, result, seeded)
    fields |= {name: at_page_end(value) if isinstance(value, np.ndarray) else value for name, value in beside.items()}
    pitch = out_channels + (5 if kind in ("f32", "u8") else 0)
    fields |= {"out_strides": [sums.shape[1] * sums.shape[2] * pitch, sums.shape[2] * pitch, pitch]}
    each = [slice(None), *(slice(i, i + 1) for i in range(batch))] if is_dynamic else [slice(None)]
    for images in each:
        image = at_page_end(np.ascontiguousarray(given[images]))
        call = fields | {"x": image, "batch": len(image), "x_strides": element_strides(image)[:3]}
        if is_dynamic:
            call |= {"steps": at_page_end(steps[images]), "x_zero": at_page_end(zeros[images]), "x_zero_step": 1}
        if "residual" in call:
            residual = at_page_end(np.ascontiguousarray(beside["residual"][images]))
            call |= {"residual": residual, "residual_strides": element_strides(residual)[:3]}
        name, shape = "integer_depthwise" if depthwise else "integer_packed", wanted[images].shape
        scratch = abi.scratch_floats(name, call)
        found = every(name, call, "out", shape, dtype=RESULTS[kind], row_pad=pitch - out_channels, scratch=scratch)
        np.testing.assert_array_equal(found, wanted[images])


def factors(kind: str, rows: int, k: int, columns: int, seeded) -> tuple[np.ndarray, np.ndarray]:
    """x u8[rows, k] and weights i8[columns, k], of which no, few, most or all pairs of products pass 16 bits."""
    x, weight = seeded.integers(0, 256, (rows, k), np.uint8), seeded.integers(-128, 128, (columns, k), np.int8)
    if kind == "bounds":  # sums of two products of 255 around the limits of int16, also with -128
        pairs = np.array([[1, 127], [2, 127], [-1, -127], [-2, -127], [-128, 0], [-128, -1], [-128, 127]], np.int8)
        return np.full_like(x, 255), pairs[seeded.integers(0, len(pairs), (columns, k // 2))].reshape(columns, k)
    if kind in ("few", "none"):
        x //= 2
    if kind == "few":
        x[:, seeded.choice(k, 3)], weight[:, ::7] = 255, -128
    return x, weight


@pytest.mark.parametrize("kind", ["none", "few", "most", "bounds"])
@pytest.mark.parametrize(("rows", "k"), [(16, 16), (61, 20), (49, 128), (130, 300)])
def test_pairs_of_products_beyond_16_bits(rows: int, k: int, kind: str) -> None:
    """Sums are exact on sets that add pairs of products in 16 bits, too."""
    x, weight = factors(kind, rows, k, 40, np.random.default_rng([rows, k]))
    image = at_page_end(x.reshape(1, 1, rows, k))
    sums = (x.astype(np.int64) @ weight.astype(np.int64).T).astype(np.int32).reshape(1, 1, rows, 40)
    filters = weight.reshape(40, k, 1, 1)
    fields = sizes(image.transpose(0, 3, 1, 2), filters, sums, 1, (1, 1), (0, 0), (1, 1))
    fields |= {"x": image, "x_strides": element_strides(image)[:3], "out_strides": [rows * 40, rows * 40, 40]}
    fields |= {"weight": at_page_end(filter_panels(filters, 1)), "result": abi.constant("INGOT_INTEGER_I32")}
    fields |= {"column_sums": at_page_end(weight.sum(1, dtype=np.int32)), "out_scale": 1.0}
    scratch = abi.scratch_floats("integer_packed", fields)
    np.testing.assert_array_equal(
        every("integer_packed", fields, "out", sums.shape, dtype=np.int32, scratch=scratch), sums
    )


def expected_quant(sums, scales, steps, shift, kind: str, seeded) -> tuple[np.ndarray, dict[str, Any]]:
    """What becomes of sums [N, H, W, C], and the fields that say so: each kind of result has another epilogue."""
    f = np.float32
    if kind == "i32":
        return sums, {}
    v = sums.astype(f) * scales
    v = (v if steps is None else v * steps.reshape(-1, 1, 1, 1)) + shift
    if kind in ("f32", "dynamic"):
        residual = seeded.standard_normal(sums.shape, f)
        clip = {"activation": ACTIVATIONS["clip"][0], "act_alpha": -0.5, "act_beta": 0.5}
        return np.clip(v, f(-0.5), f(0.5)) + residual, clip | {"residual": residual, "residual_type": 1}
    low, high = (-128, 127) if kind == "i8" else (0, 255)
    if kind == "clipped":
        clip = {"activation": ACTIVATIONS["clip"][0], "act_alpha": -20.5, "act_beta": 30.25, "out_zero": 19}
        return np.clip(np.rint(np.clip(v, f(-20.5), f(30.25))) + 19, low, high).astype(np.uint8), clip
    if kind == "added":
        codes = seeded.integers(0, 256, sums.shape).astype(np.uint8)
        fields = {"residual": codes, "residual_type": 3, "residual_first": 1, "residual_scale": 0.3, "residual_zero": 7}
        v = np.clip(v + (codes.astype(f) - f(7)) * f(0.3), f(-20.5), f(30.25))
        fields |= {"activation": ACTIVATIONS["clip"][0], "act_alpha": -20.5, "act_beta": 30.25, "out_zero": 19}
        return np.clip(np.rint(v) + 19, low, high).astype(np.uint8), fields
    if kind == "u8":  # rounded once before a residual of codes
        codes = seeded.integers(-128, 128, sums.shape).astype(np.int8)
        residual = (codes.astype(f) - f(7)) * f(0.3)
        v = np.rint(np.clip(v, f(-100), f(90))) * f(0.7) + residual
        fields = {"residual": codes, "residual_type": 2, "residual_first": 1, "residual_scale": 0.3, "residual_zero": 7}
        fields |= {"middle_scale": 0.7, "middle_low": -100, "middle_high": 90, "activation": ACTIVATIONS["relu"][0]}
        return np.clip(np.rint(np.maximum(v, f(0))) + 3, low, high).astype(np.uint8), fields | {"out_zero": 3}
    v = np.rint(v / f(0.75))
    return np.clip(v - 5, low, high).astype(np.int8), {"out_zero": -5, "out_scale": 0.75}

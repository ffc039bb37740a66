"""Reductions, norms, softmax, gather, rotary and pooling kernels: against float64, and bits against each other."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from ingot.ir.dtype import from_numpy
from ingot.ir.graph import OPS
from ingot.ops import conv as conv_ops
from kernel_calls import LIBRARY, at_page_end, bits, close, element_strides, every, floats

pytestmark = pytest.mark.native

CHUNK = 4096  # reductions are cut into chunks of this many


def reduced(kernel: str, x: np.ndarray, axes: tuple[int, ...], dtype: Any) -> np.ndarray:
    kept = [a for a in range(x.ndim) if a not in axes]
    strides = element_strides(x)
    fields = {
        "x": x,
        "outer_rank": len(kept), "outer_shape": [x.shape[a] for a in kept], "outer_strides": [strides[a] for a in kept],
        "reduced_rank": len(axes), "reduced_shape": [x.shape[a] for a in axes],
        "reduced_strides": [strides[a] for a in axes],
    }  # fmt: skip
    return every(kernel, fields, "out", [x.shape[a] for a in kept], dtype=dtype)


REDUCED = [
    *[((3, n), (1,)) for n in range(1, 18)],
    ((2, CHUNK - 1), (1,)), ((2, CHUNK + 17), (1,)), ((3 * CHUNK + 5,), (0,)), ((5, 33), (0,)),
    ((CHUNK + 20, 19), (0,)),
    ((3, 4, 5, 6), (1, 2)), ((3, 4, 5, 6), (0, 3)), ((2, 5, 40), (0, 1)), ((2, 3, 4), (0, 1, 2)), ((4, 7), ()),
    ((0, 3), (1,)), ((3, 0), (1,)), ((50, 3), (0,)),
]  # fmt: skip
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


@pytest.mark.parametrize("shape, axes", REDUCED)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, shape, axes):
    x = floats(21, shape, 0.5, 1.5) if name == "prod" else floats(21, shape)
    if 0 in shape and name in ("max", "min", "mean"):
        neutral = {"max": -np.inf, "min": np.inf, "mean": np.nan}[name]
        expected = np.full([shape[a] for a in range(len(shape)) if a not in axes], neutral)
    else:
        expected = REDUCTIONS[name](x.astype(np.float64), axis=axes)
    result = reduced(f"reduce_{name}_f32", x, axes, np.float32)
    close(result, expected, 1e-3 if name == "prod" and x.size > 1000 else 4e-6)


@pytest.mark.parametrize("shape, axes", [((7, 100), (1,)), ((60, 20), (0,)), ((6, 5, 4), (0, 1))])
def test_reduction_bits_do_not_depend_on_the_layout(shape, axes):
    """Adjacent, transposed and spread-out elements meet in the same order."""
    x = floats(22, shape, -100, 100)
    spread = np.zeros((*shape, 3), np.float32)
    spread[..., 0] = x
    transposed = np.ascontiguousarray(x.T).T
    for name in REDUCTIONS:
        results = [reduced(f"reduce_{name}_f32", v, axes, np.float32) for v in (x, transposed, spread[..., 0])]
        np.testing.assert_array_equal(results[0].view(np.uint32), results[1].view(np.uint32))
        np.testing.assert_array_equal(results[0].view(np.uint32), results[2].view(np.uint32))


@pytest.mark.parametrize("count", [1, 7, 16, 17, 40, 48, 49, 100])
def test_reduction_bits_do_not_depend_on_the_batch(count):
    """Rows of few elements are read 16 at a time, where there are so many."""
    x = floats(22, (37, count), -100, 100)
    x[:, 0] = -0.0
    for name in REDUCTIONS:
        results = [reduced(f"reduce_{name}_f32", v, (1,), np.float32) for v in (x, *np.split(x, [3, 6, 9]))]
        np.testing.assert_array_equal(results[0].view(np.uint32), np.concatenate(results[1:]).view(np.uint32))


def test_reductions_keep_nan():
    for at, axis in itertools.product((0, 15, 16, 36), (0, 1)):
        x = floats(23, (37, 37))
        x[at, at] = np.nan
        for name in REDUCTIONS:
            result = reduced(f"reduce_{name}_f32", x, (axis,), np.float32)
            assert np.isnan(result).nonzero()[0].tolist() == [at]


def test_sum_i64():
    x = np.random.default_rng(24).integers(-(2**63), 2**63 - 1, (5, 70), np.int64)
    for axis in (0, 1):
        np.testing.assert_array_equal(reduced("reduce_sum_i64", x, (axis,), np.int64), x.sum(axis))


@pytest.mark.parametrize("name", ("argmax", "argmin"))
def test_positions(name):
    rng = np.random.default_rng(25)
    for shape in ((1, 1), (4, 33), (20, 5), (3, 5000)):
        x = rng.integers(-3, 4, shape).astype(np.float32)
        x[0, shape[1] // 2 :: 3] = np.nan
        x[-1, :] = -np.inf if name == "argmax" else np.inf
        for axis in (0, 1):
            expected = getattr(np, name)(x, axis)
            np.testing.assert_array_equal(reduced(f"{name}_f32", x, (axis,), np.int64), expected)


def in_rows(kernel: str, x: np.ndarray, out_stride: int, **fields: Any) -> np.ndarray:
    """Rows of x, whose own stride may exceed their length."""
    rows, cols = x.shape
    fields |= {"x": x, "rows": rows, "cols": cols, "x_stride": x.strides[0] // 4}
    return every(kernel, fields | {"out_stride": out_stride}, "out", (rows, cols), row_pad=out_stride - cols)


ROWS = [*[(5, n) for n in range(1, 18)], (1, 768), (2, 100), (3, 64), (4, 1000), (9, 33), (2, CHUNK + 3), (0, 8)]
MANY_ROWS = [(33, 20), (40, 256), (23, 257)]  # of norms: sixteen short ones go together, or four


@pytest.mark.parametrize("rows, cols", ROWS + MANY_ROWS)
def test_norms(rows, cols):
    x = floats(31, (rows, cols + 5))[:, :cols] + (3 if cols > 16 else 0)
    weight, bias = floats(32, (cols,)), floats(33, (cols,))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    rms = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    w, b = weight, bias
    null = LIBRARY.ffi.NULL
    eps = {"eps": 1e-5}
    for stride in (cols, cols + 3):
        close(in_rows("layer_norm_f32", x, stride, weight=w, bias=b, **eps), layer * weight + bias, 1e-5)
        close(in_rows("layer_norm_f32", x, stride, weight=w, bias=null, **eps), layer * weight, 1e-5)
        close(in_rows("layer_norm_f32", x, stride, weight=null, bias=null, **eps), layer, 1e-5)
        close(in_rows("rms_norm_f32", x, stride, weight=w, bias=null, **eps), rms * weight, 1e-6)
        close(in_rows("rms_norm_f32", x, stride, weight=null, bias=null, **eps), rms, 1e-6)


@pytest.mark.parametrize("items, rows, cols", [(1, 16, 1), (2, 40, 2), (3, 17, 50), (1, 300, 33), (2, 20, CHUNK + 3)])
def test_norms_of_rows_side_by_side(items, rows, cols):
    """The bits of rows that lie one after another."""
    x = floats(37, (items * rows, cols)) + 3
    expected = in_rows("layer_norm_f32", x, cols, eps=1e-5).reshape(items, rows, cols).transpose(0, 2, 1)
    for pad in (0, 3):
        image = at_page_end(x.reshape(items, rows, cols).transpose(0, 2, 1), pad)
        width = rows + pad
        fields = {"x": image, "outer": items, "rows": rows, "cols": cols, "eps": 1e-5}
        fields |= {"x_strides": [cols * width, width], "out_strides": [cols * width, width]}
        result = every("layer_norm_f32_columns", fields, "out", (items, cols, rows), row_pad=pad)
        np.testing.assert_array_equal(result.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


MEANS = (0.1, 1000.3, -(2.0**20), 1e6, -3e6, 1e7)


@pytest.mark.parametrize("cols", (1, 2, 3, 16, 67, 384, 2 * CHUNK + 5, 40000))
def test_layer_norm_far_from_zero(cols):
    """Against float64 of the same floats: noise of any size on means of any size, an outlier first, constant rows."""
    rng = np.random.default_rng(35)
    deviations = (0, 1e-3, 1, 30)
    x = np.array([m + s * rng.standard_normal(cols) for m in MEANS for s in deviations], np.float32)
    outliers = x.copy()
    outliers[:, 0] += 1e4
    for rows, tolerance in ((x, 5e-6), (outliers, 5e-6)):
        wide = rows.astype(np.float64)
        centred = wide - wide.mean(1, keepdims=True)
        exact = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        close(in_rows("layer_norm_f32", rows, cols, eps=1e-5), exact, tolerance)
    bias = floats(36, (cols,))
    flat = in_rows("layer_norm_f32", x[::4], cols, eps=1e-5, bias=bias)
    np.testing.assert_array_equal(flat, np.broadcast_to(bias, flat.shape))


@pytest.mark.parametrize("rows, length, size", [(5, 40, 1), (4, 60, 2), (9, 50, 4), (3, 4, 5), (2, 3, 9), (1, 0, 2)])
def test_repeated_ngrams(rows, length, size):
    tokens, vocab = np.random.default_rng(size).integers(0, 3, (rows, length + 2))[:, :length], 5
    expected = OPS["repeated_ngrams"].function(tokens, size=size, vocab=vocab)
    for stride in (length, length + 2):
        fault = LIBRARY.ffi.new("ingot_fault *")
        fields = {
            "tokens": at_page_end(tokens, stride - length), "fault": fault, "rows": rows, "length": length,
            "vocab": vocab, "size": size, "stride": stride,
        }  # fmt: skip
        result = every("repeated_ngrams", fields, "out", (rows, vocab), dtype=np.bool_)
        np.testing.assert_array_equal(result, expected)
        assert fault.code == 0


def test_repeated_ngrams_report_a_token_beyond_the_vocabulary():
    """Tokens that follow no repetition may have any value."""
    for tokens, code in (([1, 9, 1, 7, 1], 2), ([9, 1, 2, 1], 0), ([1, -1, 1], 2)):
        fault, row = LIBRARY.ffi.new("ingot_fault *"), np.array([tokens])
        fields = {"tokens": row, "fault": fault, "step": 3, "rows": 1, "length": row.size, "vocab": 4, "size": 2}
        every("repeated_ngrams", fields, "out", (1, 4), dtype=np.bool_)
        assert (fault.code, fault.step) == (code, 3 if code else 0)


@pytest.mark.parametrize("kernel", ("layer_norm_f32", "rms_norm_f32", "softmax_f32", "log_softmax_f32"))
def test_a_row_has_the_same_bits_alone(kernel):
    x = floats(34, (7, 531), -4, 4)
    extra = {"eps": 1e-5} if "norm" in kernel else {}
    together = in_rows(kernel, x, 531, **extra)
    for i in range(7):
        alone = in_rows(kernel, x[i : i + 1], 531, **extra)
        np.testing.assert_array_equal(alone.view(np.uint32)[0], together.view(np.uint32)[i])


@pytest.mark.parametrize("rows, cols", ROWS)
def test_softmax(rows, cols):
    x = floats(41, (rows, cols + 5), -20, 20)[:, :cols]
    wide = x.astype(np.float64)
    shifted = wide - wide.max(1, keepdims=True)
    total = np.exp(shifted).sum(1, keepdims=True)
    for stride in (cols, cols + 3):
        close(in_rows("softmax_f32", x, stride), np.exp(shifted) / total, 1e-6)
        close(in_rows("log_softmax_f32", x, stride), shifted - np.log(total), 2e-6)


def test_softmax_of_extremes():
    """As numpy gives: a masked entry 0, a wholly masked row and a row with NaN or inf NaN throughout."""
    inf = math.inf
    x = np.array([[0, -inf, 1], [-inf, -inf, -inf], [1, math.nan, 2], [1e38, -1e38, 1e38], [inf, 0, 0]], np.float32)
    x = np.repeat(x, 7, axis=1)
    with np.errstate(invalid="ignore"):
        shifted = x.astype(np.float64) - x.max(1, keepdims=True)
        expected = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    expected[4] = np.nan
    result = in_rows("softmax_f32", x, 21)
    assert np.isnan(result[4, ::3][:7]).all()
    close(result[:4], expected[:4], 1e-6)


def gathered(kernel, table, indices, outer, limit, inner, dtype):
    faults = LIBRARY.ffi.new("ingot_fault *")
    fields = {
        "table": table, "indices": indices, "fault": faults, "step": 12,
        "outer": outer, "limit": limit, "inner": inner, "count": indices.size, "item_bytes": np.dtype(dtype).itemsize,
        "index_bytes": indices.itemsize,
    }  # fmt: skip
    return every(kernel, fields, "out", (outer, indices.size, inner), dtype=dtype), faults


@pytest.mark.parametrize("dtype", (np.float32, np.int64, np.uint8))
@pytest.mark.parametrize("index_type", (np.int64, np.int32))
@pytest.mark.parametrize("inner", (5, 1))
def test_gather(dtype, index_type, inner):
    table = np.random.default_rng(51).integers(0, 200, (3, 9, inner)).astype(dtype)
    indices = np.array([0, 8, -1, -9, 3, 3], index_type)
    kernel = f"gather_i{indices.itemsize * 8}"
    result, fault = gathered(kernel, table, indices, 3, 9, inner, dtype)
    assert fault.code == 0
    np.testing.assert_array_equal(result, np.take(table, indices, axis=1))


@pytest.mark.parametrize("bad", (9, -10, 2**62, -(2**63)))
def test_gather_reports_a_bad_index_and_reads_nothing(bad):
    table = floats(52, (1, 9, 5))
    result, fault = gathered("gather_i64", table, np.array([1, bad, 2], np.int64), 1, 9, 5, np.float32)
    assert (fault.code, fault.step, fault.index, fault.limit) == (1, 12, bad, 9)
    np.testing.assert_array_equal(result[0], [table[0, 1], np.zeros(5), table[0, 2]])


def in_panels(table: np.ndarray, pair: int) -> np.ndarray:
    """[rows, inner] as [rows / 32][inner / pair][32][pair], zero-padded."""
    rows, inner = (-(-size // unit) * unit for size, unit in zip(table.shape, (32, pair), strict=True))
    padded = np.zeros((rows, inner), table.dtype)
    padded[: table.shape[0], : table.shape[1]] = table
    return np.ascontiguousarray(padded.reshape(rows // 32, 32, inner // pair, pair).transpose(0, 2, 1, 3))


TABLES = {
    "gather_bf16": lambda table: table.astype(bfloat16),
    "gather_f32_panels": lambda table: in_panels(table, 1),
    "gather_bf16_panels": lambda table: in_panels(table.astype(bfloat16), 2),
}


@pytest.mark.parametrize("kernel", TABLES)
@pytest.mark.parametrize("index_type", (np.int64, np.int32))
@pytest.mark.parametrize("rows, inner", ((70, 17), (32, 64), (5, 1)))
def test_gather_from_a_matrix(kernel, index_type, rows, inner):
    table = floats(53, (rows, inner)).astype(bfloat16).astype(np.float32)
    placed = TABLES[kernel](table)
    indices = np.array([0, rows - 1, -1, -rows, rows // 2], index_type)
    result, fault = gathered(kernel, placed, indices, 1, rows, inner, np.float32)
    assert fault.code == 0
    np.testing.assert_array_equal(result[0], table[indices])
    result, fault = gathered(kernel, placed, np.array([rows, 0], index_type), 1, rows, inner, np.float32)
    assert (fault.code, fault.index, fault.limit) == (1, rows, rows)
    np.testing.assert_array_equal(result[0], [np.zeros(inner), table[0]])


@pytest.mark.parametrize("axis", (0, 1, 2))
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_gather_elements(axis, dtype):
    rng = np.random.default_rng(54)
    x = floats(54, (5, 12, 4)).astype(dtype)[:, ::2]
    shape = [3, 2, 4]
    shape[axis] = 7
    indices = rng.integers(-x.shape[axis], x.shape[axis], shape)
    fault = LIBRARY.ffi.new("ingot_fault *")
    fields = {
        "x": x, "indices": indices, "fault": fault, "step": 3, "rank": 3,
        "axis": axis, "item_bytes": x.itemsize, "shape": shape, "x_strides": element_strides(x), "limit": x.shape[axis],
    }  # fmt: skip
    result = every("gather_elements_i64", fields, "out", shape, dtype=dtype)
    cut = tuple(slice(None) if d == axis else slice(n) for d, n in enumerate(shape))
    np.testing.assert_array_equal(result, np.take_along_axis(x[cut], indices % x.shape[axis], axis))
    assert fault.code == 0


@pytest.mark.parametrize("mode", ("linear", "nearest"))
@pytest.mark.parametrize("padding", ("zeros", "border"))
@pytest.mark.parametrize("align_corners", (False, True))
@pytest.mark.parametrize("channels, is_last", ((5, False), (5, True), (33, True)))
def test_grid_sample(mode, padding, align_corners, channels, is_last):
    """Points inside, on borders, far outside and nowhere; what is not read may be infinite."""
    x = floats(55, (2, channels, 4, 7))
    x[0, 0, 0, 0] = np.inf
    x = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if is_last else x
    grid = np.round(floats(56, (2, 9, 15, 2), -1.4, 1.4) * 4) / 4
    grid[:, ::2] += floats(57, (2, 5, 15, 2), -0.1, 0.1)
    grid[0, 0, :3] = [[np.nan, 0], [1e30, -np.inf], [-1, -1]]
    grid[1, 4:] *= 0.5
    points = grid.reshape(2, 135, 2)
    strides = (135 * channels, 1, channels) if is_last else (135 * channels, 135, 1)
    fields = {
        "x": x, "grid": points, "batch": 2, "channels": channels, "height": 4, "width": 7, "points": 135,
        "x_strides": element_strides(x), "out_strides": strides, "linear": int(mode == "linear"),
        "border": int(padding == "border"), "align_corners": int(align_corners),
    }  # fmt: skip
    result = every("grid_sample_f32", fields, "out", (2, channels, 135), strides=strides)
    with np.errstate(invalid="ignore"):
        expected = OPS["grid_sample"].function(
            x.astype(np.float64), grid.astype(np.float64), mode=mode, padding=padding, align_corners=align_corners
        )  # fmt: skip
    close(result, expected.reshape(2, channels, 135), 2e-5)


def resampled(x: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, Any]:
    fault = LIBRARY.ffi.new("ingot_fault *")
    (outer, limit, inner), (count, taps) = x.shape, indices.shape
    fields = {
        "x": x, "indices": indices, "weights": weights, "fault": fault, "step": 5,
        "outer": outer, "limit": limit, "inner": inner, "count": count, "taps": taps,
    }  # fmt: skip
    return every("resample_f32", fields, "out", (outer, count, inner)), fault


@pytest.mark.parametrize("taps", (1, 2, 5))
@pytest.mark.parametrize("outer, count, inner", ((5, 9, 1), (1, 4, 3), (2, 3, 16), (3, 7, 35), (2, 0, 3), (0, 4, 1)))
def test_resample(outer, count, inner, taps):
    """To the bit: products are rounded before they are added, tap by tap."""
    x, weights = floats(55, (outer, 6, inner)), floats(56, (count, taps))
    indices = np.random.default_rng(57).integers(0, 6, (count, taps))
    result, fault = resampled(x, indices, weights)
    expected = np.zeros((outer, count, inner), np.float32)
    for tap in range(taps):
        term = x[:, indices[:, tap]] * weights[:, tap, None]
        expected = term if tap == 0 else expected + term
    assert fault.code == 0
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("inner", (1, 4))
@pytest.mark.parametrize("bad", (6, -1, 2**62, -(2**63)))
def test_resample_reports_a_bad_index_and_reads_nothing(bad, inner):
    indices = np.array([[0, 5], [1, bad]])
    _, fault = resampled(floats(58, (1, 6, inner)), indices, floats(59, (2, 2)))
    assert (fault.code, fault.step, fault.index, fault.limit) == (2, 5, bad, 6)


@pytest.mark.parametrize("head_dim", (2, 10, 32, 64, 66))
def test_rotary(head_dim):
    x = floats(61, (2, 5, 3, head_dim)).transpose(0, 2, 1, 3)  # [B, S, H, D] in memory
    angles = floats(62, (5, head_dim), -3, 3)
    cos, sin = np.cos(angles), np.sin(angles)
    fields: dict[str, Any] = {"batch": 2, "heads": 3, "rows": 5, "head_dim": head_dim}
    for name, array in {"x": x, "cos": cos, "sin": sin}.items():
        fields[name] = array
        fields[f"{name}_strides"] = element_strides(np.broadcast_to(array, x.shape))[:3]
    strides = (15 * head_dim + 7, 5 * head_dim + 1, head_dim, 1)
    result = every("rotary_f32", fields | {"out_strides": strides[:3]}, "out", x.shape, strides=strides)
    wide = x.astype(np.float64)
    rotated = np.concatenate([-wide[..., head_dim // 2 :], wide[..., : head_dim // 2]], -1)
    close(result, wide * cos + rotated * sin, 1e-6)


@pytest.mark.parametrize(
    "size, kernel, strides, pads, dilations",
    [
        ((7, 8), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1)), ((7, 5), (3, 2), (1, 1), (1, 0, 1, 1), (1, 1)),
        ((9, 9), (2, 3), (1, 1), (0, 0, 0, 0), (2, 2)), ((9, 11), (3, 3), (2, 3), (1, 1, 1, 1), (2, 1)),
        ((4, 4), (4, 4), (1, 1), (0, 0, 0, 0), (1, 1)), ((5, 20), (1, 3), (1, 1), (0, 1, 0, 1), (1, 1)),
    ],
)  # fmt: skip
def test_pooling(size, kernel, strides, pads, dilations):
    x = floats(71, (2, 3, *size))
    x[0, 0, 1, 2] = np.nan
    attributes: dict[str, Any] = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for name, count_include_pad in (("max_pool", 0), ("avg_pool", 0), ("avg_pool", 1)):
        extra = {"count_include_pad": bool(count_include_pad)} if name == "avg_pool" else {}
        expected = getattr(conv_ops, name)(x.astype(np.float64), **attributes, **extra).transpose(0, 2, 3, 1)
        _, height, width, channels = expected.shape
        fields = {
            "x": last, "batch": 2, "channels": channels, "height": size[0], "width": size[1],
            "x_strides": [size[0] * size[1] * channels, size[1] * channels, channels],
            "out_strides": [height * width * channels, width * channels, channels],
            "out_height": height, "out_width": width, "kernel_h": kernel[0],
            "kernel_w": kernel[1], "stride_h": strides[0], "stride_w": strides[1], "pad_top": pads[0],
            "pad_left": pads[1], "dilation_h": dilations[0], "dilation_w": dilations[1],
            "count_include_pad": count_include_pad,
        }  # fmt: skip
        result = every(f"{name}_f32", fields, "out", expected.shape)
        close(result, expected, 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 40])
def test_determinants(dtype, n):
    """Some of whose first pivots are 0, some of which are 0."""
    x = np.random.default_rng(n).standard_normal((9, n, n)).astype(dtype)
    if n > 1:
        x[1, 0, 0] = x[2, :, 0] = 0
        x[3, 1] = 2 * x[3, 0]
        x[4], x[5, 1, 0] = np.eye(n)[::-1], np.nan
    result = every(f"det_{from_numpy(np.dtype(dtype))}", {"x": x, "count": 9, "n": n}, "out", (9,), scratch=2 * n * n,
                   dtype=dtype)  # fmt: skip
    assert np.isnan(result[5]) == (n > 1)
    sound = np.delete(np.arange(9), 5)
    expected = np.linalg.det(x[sound].astype(np.float64))
    tolerance = 1e-6 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(result[sound], expected, tolerance, tolerance * max(1, np.abs(expected).max()))


def rows_to_sort(count: int) -> np.ndarray:
    """Rows that are hard on one way or another to sort, and some whose elements are equal in ways of their own."""
    rng, up = np.random.default_rng(count), np.arange(count)
    rows = [
        up, -up, np.minimum(up, count - up), np.maximum(up, count - up), up % 2, up % 17, np.zeros(count),
        rng.normal(size=count), rng.permutation(count), np.where(rng.random(count) < 0.5, 0.0, -0.0),
        np.where(rng.random(count) < 0.1, np.nan, rng.integers(-3, 3, count)), np.full(count, np.nan),
        rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45], count),
    ]  # fmt: skip
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("count, k", [(1, 1), (17, 17), (40, 3), (400, 16), (400, 300), (400, 400), (3000, 3000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint64])
def test_topk_of_rows_that_are_hard_to_sort(dtype, count, k, largest):
    rows = rows_to_sort(count)
    x = rows.astype(dtype) if np.dtype(dtype).kind == "f" else np.nan_to_num(rows).clip(-9, 9999).astype(dtype)
    values, places = OPS["topk"].function(x, k=k, axis=1, largest=largest)
    fields = {"x": x, "rows": len(x), "cols": count, "k": k, "x_stride": count, "largest": int(largest)}
    name = f"topk_{from_numpy(np.dtype(dtype))}"
    blank = np.empty((len(x), k), dtype)
    np.testing.assert_array_equal(every(name, fields | {"out": blank}, "indices", places.shape, dtype=np.int64), places)
    made = every(name, fields | {"indices": np.empty_like(places)}, "out", values.shape, dtype=dtype)
    np.testing.assert_array_equal(bits(made), bits(values))

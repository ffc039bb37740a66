"""Blocks of GGUF files: every type compared with the `gguf` package, bit for bit."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from gguf_models import HALVES
from ingot.ir.dtype import f32
from ingot.ops.blocks import ALL_BLOCKS, affine_blocks, decode_blocks

ROWS, BLOCKS_OF_ROW = 61, 9


def random_rows(name: str, *, finite: bool = True) -> np.ndarray:
    """u8 [rows, bytes]: any bits at all, but that the scales of f16 are numbers where that is asked for."""
    random = np.random.default_rng(list(ALL_BLOCKS).index(name))
    blocks = random.integers(0, 256, (ROWS * BLOCKS_OF_ROW, ALL_BLOCKS[name].nbytes), np.uint8)
    if finite:
        for start in HALVES[name]:
            blocks[:, start + 1] &= 0xBB  # an exponent without its third bit: no infinity, no NaN
        if name == "iq1_m":
            blocks[:, 55] &= 0xBF
        if name == "mxfp4":
            blocks[:, 0] %= 250
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("name", ALL_BLOCKS)
def test_decodes_as_the_gguf_package_does(name: str) -> None:
    rows = random_rows(name)
    expected = dequantize(rows, gguf.GGMLQuantizationType[name.upper()])
    found = decode_blocks(rows, type=name, dtype=f32)
    assert found.dtype == np.float32 and np.isfinite(expected).all(), "random_rows gives a scale that is no number"
    assert len(np.unique(expected)) > 400, "random_rows gives few numbers"
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", [name for name in ALL_BLOCKS if HALVES[name] or name == "iq1_m"])
def test_scales_that_are_no_numbers(name: str) -> None:
    """Such a file has numbers that are none, at the same places."""
    rows = random_rows(name, finite=False)
    with np.errstate(all="ignore"):
        expected = dequantize(rows, gguf.GGMLQuantizationType[name.upper()])
    assert not np.isfinite(expected).all(), "the type has no f16: its entry of HALVES is ()"
    np.testing.assert_array_equal(decode_blocks(rows, type=name, dtype=f32), expected)


@pytest.mark.parametrize("name", ALL_BLOCKS)
def test_sizes_are_those_of_the_gguf_package(name: str) -> None:
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
    assert (ALL_BLOCKS[name].elements, ALL_BLOCKS[name].nbytes) == sizes


@pytest.mark.parametrize(("name", "bits"), [("q4_1", 4), ("q5_1", 5)])
def test_affine_blocks_are_read_by_the_gguf_package(name: str, bits: int) -> None:
    """Three groups of 64 columns, each of two blocks, with a scale and a minimum of their own."""
    random = np.random.default_rng(bits)
    x = random.integers(0, 1 << bits, (ROWS, 192), np.uint8)
    scale, minimum = random.uniform(-1, 1, (2, ROWS, 3)).astype(np.float16)
    found = dequantize(affine_blocks(x, scale, minimum, type=name), gguf.GGMLQuantizationType[name.upper()])
    columns = [np.repeat(each.astype(np.float32), 64, axis=1) for each in (scale, minimum)]
    np.testing.assert_array_equal(found, x.astype(np.float32) * columns[0] + columns[1])

"""Products of rows that are rounded to int8, or to 24 bits, with blocks of GGUF files: every kernel against its
definition, of numbers that the `gguf` package decodes; sums of integers are exact and floats have one order.
"""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from gguf_models import HALVES, packed_bytes
from ingot.ir.dtype import f32
from ingot.ops.blocks import BLOCKS, decode_blocks
from kernel_calls import ISAS, at_page_end, blank, every, run, ways
from products import ACTIVATIONS, ATTRIBUTES, EPILOGUES, random
from rounded_rows import GROUP, digit_image, digits, fused, rounded, row_bytes, row_image, up

pytestmark = pytest.mark.native

# Whose panels are those of codes.
KERNELS = {type: {"q4_0": "int4", "q8_0": "int8"}.get(type, type) for type in BLOCKS}
SHAPES = [
    (1, 1, 1), (1, 40, 2), (2, 33, 3), (3, 64, 1), (4, 100, 2), (5, 32, 1), (6, 31, 2), (7, 17, 3), (13, 65, 1),
    (50, 40, 2), (97, 3, 3), (0, 8, 1), (5, 40, 0),
]  # fmt: skip


def rows_of(type: str, n: int, blocks: int, seed: int = 0) -> np.ndarray:
    """u8 [n, bytes]: any bits, but that the numbers of f16 are ordinary ones."""
    generator = np.random.default_rng([seed, n, blocks, BLOCKS[type].nbytes])
    rows = generator.integers(0, 256, (n * blocks, BLOCKS[type].nbytes), np.uint8)
    for start in HALVES[type]:
        rows[:, start : start + 2] = generator.uniform(-0.02, 0.02, (n * blocks, 1)).astype(np.float16).view(np.uint8)
    if type == "mxfp4":
        rows[:, 0] = generator.integers(117, 122, n * blocks)
    return rows.reshape(n, -1)


def numbers(type: str, rows: np.ndarray) -> list[np.ndarray]:
    """The numbers of f16 of each block: [n, blocks], as floats; or its power of two."""
    blocks = rows.reshape(len(rows), -1, BLOCKS[type].nbytes)
    if type == "mxfp4":
        return [np.ldexp(np.float32(1), blocks[:, :, 0].astype(int) - 127)]
    return [np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[:, :, 0] for at in HALVES[type]]


def with_numbers(type: str, rows: np.ndarray, *values: float) -> np.ndarray:
    """What gguf decodes where the numbers of f16 are others, or powers of two are 1, in float64."""
    blocks = rows.reshape(-1, BLOCKS[type].nbytes).copy()
    if type == "mxfp4":
        blocks[:, 0] = 127
    for at, value in zip(HALVES[type], values, strict=False):
        blocks[:, at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return decoded(type, blocks.reshape(rows.shape)).astype(float)


def decoded(type: str, rows: np.ndarray) -> np.ndarray:
    if not rows.size:
        return np.zeros((len(rows), 0), np.float32)
    return dequantize(rows, gguf.GGMLQuantizationType[type.upper()])


def defined(x: np.ndarray, type: str, rows: np.ndarray) -> np.ndarray:
    """x[m, k] times the rows [n, k], as abi.h defines."""
    return times(*rounded(x), type, rows)


def defined_by_digits(x: np.ndarray, type: str, rows: np.ndarray) -> np.ndarray:
    """The same where x is rounded to 24 bits."""
    codes, steps = digits(x)
    high, middle, low = (times(codes[:, i], steps[:, i], type, rows) for i in range(3))
    return high + (middle + low)


def times(codes: np.ndarray, steps: np.ndarray, type: str, rows: np.ndarray) -> np.ndarray:
    """Rounded rows times blocks."""
    size, count = BLOCKS[type].elements, max(1, len(HALVES[type]))
    whole = [with_numbers(type, rows, *(float(i == j) for j in range(count))) for i in range(count)]
    total = np.zeros((len(codes), len(rows)), np.float32)
    for group in range(steps.shape[1]):
        inner = np.zeros_like(total)
        for block in range(group * GROUP // size, min((group + 1) * GROUP, codes.shape[1]) // size):
            part = slice(block * size, (block + 1) * size)
            for elements, scales in zip(whole, numbers(type, rows), strict=True):
                exact = (codes[:, part].astype(float) @ elements[:, part].T).astype(np.float32)
                inner = fused(exact, scales[:, block].astype(np.float32), inner)
        total = fused(inner, steps[:, group : group + 1], total)
    return total


def packed(type: str, n: int, k: int, rows: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
    """Panels, the same from every set and any number of parts; those of two halves where there is a second."""
    columns, found = up(n, 32) if second is None else 2 * n, set()
    fields = {"src": at_page_end(rows), "n": n, "k": k, "k_stride": 1, "n_stride": rows.shape[1]}
    if second is not None:
        fields["second"] = at_page_end(second)
    target = np.zeros(0, np.uint8)
    for isa, parts in ways():
        target = at_page_end(np.full(columns * k // BLOCKS[type].elements * packed_bytes(type), 0xA5, np.uint8))
        run(f"pack_{type}", isa, parts, fields | {"dst": target})
        found.add(target.tobytes())
    assert len(found) == 1
    return target


def image_for(kernel: str, x: np.ndarray) -> np.ndarray:
    """The bytes of rows as a kernel takes them."""
    return digit_image(x, up(row_bytes(x.shape[1]), 4)) if "_i24_" in kernel else row_image(x)


def product(kernel: str, x: np.ndarray, n: int, panels: np.ndarray, **fields: object) -> np.ndarray:
    (m, k), image = x.shape, image_for(kernel, x)
    given = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": at_page_end(image), "a_stride": image.shape[1], "b": panels}
    return every(kernel, given | {"c_stride": n + 3} | fields, "c", (m, n), row_pad=3)


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_products(index: int, type: str) -> None:
    m, n, blocks = SHAPES[index]
    k = blocks * BLOCKS[type].elements
    x, rows = random(m, k), rows_of(type, n, blocks)
    panels, kernel = packed(type, n, k, rows), f"gemm_{KERNELS[type]}_packed"
    plain = product(kernel, x, n, panels)
    np.testing.assert_array_equal(plain, defined(x, type, rows))
    exact = decoded(type, rows).astype(float)
    assert (abs(plain - x.astype(float) @ exact.T) <= 0.05 * abs(x).astype(float) @ abs(exact).T + 1e-6).all()
    activation, alpha, _, _ = EPILOGUES[index % len(EPILOGUES)]
    bias = random(n, seed=2)
    fields = {"bias": at_page_end(bias), "alpha": alpha, "activation": ACTIVATIONS[activation][0]} | ATTRIBUTES
    expected = ACTIVATIONS[activation][1](alpha * plain.astype(float) + bias)
    np.testing.assert_allclose(product(kernel, x, n, panels, **fields), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_products_of_digits(index: int, type: str) -> None:
    """As defined, and as near to float64 as sums of floats are."""
    m, n, blocks = SHAPES[index]
    k = blocks * BLOCKS[type].elements
    x, rows = random(m, k), rows_of(type, n, blocks)
    found = product(f"gemm_i24_{KERNELS[type]}_packed", x, n, packed(type, n, k, rows))
    np.testing.assert_array_equal(found, defined_by_digits(x, type, rows))
    exact, largest = decoded(type, rows).astype(float), abs(x).max(1, initial=0, keepdims=True)
    size = abs(x).astype(float) @ abs(exact).T + largest * abs(exact).sum(1)
    assert (abs(found - x.astype(float) @ exact.T) <= 2e-7 * size + 1e-12).all()


@pytest.mark.parametrize("type", ["q4_0", "q4_k", "q6_k"])
def test_more_rows_than_stay_near(type: str) -> None:
    m, n, k = 200, 40, 4096
    x, rows = random(m, k), rows_of(type, n, k // BLOCKS[type].elements)
    found = product(f"gemm_{KERNELS[type]}_packed", x, n, packed(type, n, k, rows))
    np.testing.assert_array_equal(found, defined(x, type, rows))


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("m", [4, 16])
def test_largest_sums(m: int, type: str) -> None:
    """Extreme quantized values, scales and mins, with extreme rows: no sum of integers overflows."""
    blocks = 2
    k = blocks * BLOCKS[type].elements
    x = np.ones((m, k), np.float32)
    x[1::4], x[2::4, ::2], x[3::4, : k // 2] = -1, -1, -1
    for byte in (0, 0x7F, 0x80, 0xFF):
        rows = np.full((2, k // BLOCKS[type].elements * BLOCKS[type].nbytes), byte, np.uint8)
        shaped = rows.reshape(-1, BLOCKS[type].nbytes)
        for start in HALVES[type]:
            shaped[:, start : start + 2] = np.array([0.5], np.float16).view(np.uint8)
        if type == "mxfp4":
            shaped[:, 0] = 126
        found = product(f"gemm_{KERNELS[type]}_packed", x, 2, packed(type, 2, k, rows))
        np.testing.assert_array_equal(found, defined(x, type, rows))


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("m, n", [(1, 16), (7, 48)])
@pytest.mark.parametrize("rounds", ["", "i24_"])
def test_gated_products(rounds: str, m: int, n: int, type: str) -> None:
    family, k = f"gemm_{rounds}{KERNELS[type]}", 2 * BLOCKS[type].elements
    x, gate, up_ = random(m, k), rows_of(type, n, 2), rows_of(type, n, 2, seed=1)
    found = product(f"{family}_gated", x, n, packed(type, n, k, gate, up_), gate=1, activation=4)
    plain = f"{family}_packed"
    activated = product(plain, x, n, packed(type, n, k, gate), activation=4)
    assert found.tobytes() == (activated * product(plain, x, n, packed(type, n, k, up_))).tobytes()


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("rounds", ["", "i24_"])
def test_a_row_is_alone(rounds: str, type: str) -> None:
    """A row's result does not depend on the other rows."""
    m, n, k = 61, 40, 3 * BLOCKS[type].elements
    x, panels = random(m, k), packed(type, n, k, rows_of(type, n, 3))
    kernel = f"gemm_{rounds}{KERNELS[type]}_packed"
    whole, image = product(kernel, x, n, panels), image_for(kernel, x)
    fields = {"m": 1, "n": n, "k": k, "alpha": 1.0, "a_stride": image.shape[1], "c_stride": n, "b": panels}
    for i in range(m):
        alone = blank((1, n))
        run(kernel, ISAS[-1], 1, fields | {"a": at_page_end(image[i]), "c": alone})
        assert alone.tobytes() == whole[i].tobytes()


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("rows, blocks", [(1, 1), (70, 2)])
def test_rows_of_a_table(rows: int, blocks: int, type: str) -> None:
    """The numbers that decode_blocks gives, bit for bit."""
    table, k = rows_of(type, rows, blocks), blocks * BLOCKS[type].elements
    indices = np.random.default_rng(0).integers(-rows, rows, 9)
    fields = {"table": packed(type, rows, k, table), "indices": indices, "limit": rows, "inner": k, "outer": 1}
    fields |= {"count": 9, "index_bytes": 8, "item_bytes": 4, "fault": np.zeros(8, np.int32)}
    found = every(f"gather_{KERNELS[type]}_panels", fields, "out", (9, k))
    np.testing.assert_array_equal(found, decode_blocks(table, type=type, dtype=f32)[indices])

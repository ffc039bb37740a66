"""Products of rows that are rounded to int8 with codes of 8 and 4 bits: every kernel against its definition, whose sums
of integers are exact and whose floats have one order.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

from ingot.ir.dtype import i4, i8
from ingot.ops.quantize import quantize_groups
from kernel_calls import ISAS, at_page_end, blank, element_strides, every, run, ways
from products import ACTIVATIONS, ATTRIBUTES, EPILOGUES, random
from rounded_rows import (
    BLOCK,
    GROUP,
    LONGEST,
    WIDE,
    digit_image,
    digits,
    fused,
    rounded,
    row_bytes,
    row_image,
    steps_begin,
    up,
)

pytestmark = pytest.mark.native

CENTRE = {8: 128, 4: 8}
# Bits of a code, and elements that share a scale.
ZEROS = [(8, BLOCK), (4, BLOCK), (8, WIDE), (4, WIDE)]  # those that have zero points, too
FORMATS = [*ZEROS, (8, LONGEST)]
WITH_ZEROS = [(*each, False) for each in FORMATS] + [(*each, True) for each in ZEROS]
F16, F32 = np.float16, np.float32
PLAIN = [(*each, F16) for each in FORMATS] + [(*each, F32) for each in ZEROS]  # those without zero points
WITH_SCALES = [(*each, F16) for each in WITH_ZEROS] + [(*each, has, F32) for each in ZEROS for has in (False, True)]


def named(bits: int, group: int, has_zeros: bool = False, scale: type = F16) -> str:
    shared = {BLOCK: "", LONGEST: "_row"}.get(group, f"_{group}")
    return f"int{bits}{shared}{'_zp' if has_zeros else ''}{'_f32' if scale is F32 else ''}"


def defined(x: np.ndarray, codes: np.ndarray, scales: np.ndarray, size: int) -> np.ndarray:
    """x[m, k] times (codes * scales)[k, n], as abi.h defines. codes: minus their zero points; scales: for `size`
    elements.
    """
    return product(*rounded(x), codes, scales, size)


def defined_by_digits(x: np.ndarray, codes: np.ndarray, scales: np.ndarray, size: int) -> np.ndarray:
    """The same where x is rounded to 24 bits."""
    rows, steps = digits(x)
    high, middle, low = (product(rows[:, i], steps[:, i], codes, scales, size) for i in range(3))
    return high + (middle + low)


def product(rows: np.ndarray, steps: np.ndarray, codes: np.ndarray, scales: np.ndarray, size: int) -> np.ndarray:
    """Rounded rows times a quantized matrix."""
    k, n = codes.shape
    padded = np.zeros((rows.shape[1], n))
    padded[:k] = codes
    total = np.zeros((len(rows), n), np.float32)
    for group in range(steps.shape[1]):
        inner = np.zeros_like(total)
        end = min((group + 1) * GROUP, rows.shape[1])
        for begin in range(group * GROUP, end, size):
            part = slice(begin, min(begin + size, end))
            exact = rows[:, part].astype(float) @ padded[part]
            inner = fused(exact.astype(np.float32), scales[begin // size].astype(np.float32), inner)
        total = fused(inner, steps[:, group : group + 1], total)
    return total


def weights(k: int, n: int, bits: int, group: int, scale: type = F16) -> tuple[np.ndarray, np.ndarray]:
    """Signed quantized values [k, n] and scales [groups, n]."""
    generator = np.random.default_rng([1, k, n, bits])
    codes = generator.integers(-CENTRE[bits], CENTRE[bits], (k, n)).astype(np.int8)
    return codes, generator.uniform(-0.02, 0.02, (up(k, group) // group, n)).astype(scale)


def spread(values: np.ndarray, group: int, k: int) -> np.ndarray:
    """What groups share, of each of k elements."""
    return np.repeat(values, min(group, k), axis=0)[:k]


def panels(codes: np.ndarray, scales: np.ndarray, bits: int, group: int, zeros: np.ndarray | None = None) -> np.ndarray:
    """Pack quantized values [k, n], signed, or unsigned with zero points [groups, n]; return [panels, bytes of one]."""
    k, n = codes.shape
    blocks, wide = up(k, BLOCK) // BLOCK, np.zeros((up(k, BLOCK), up(n, 32)), np.uint8)
    count, span = up(n, 32) // 32, group // BLOCK
    wide[:, :n] = CENTRE[bits]
    wide[:k, :n] = codes.astype(np.int16) + (CENTRE[bits] if zeros is None else 0)
    blocked = wide.reshape(blocks, 8, 4, count, 32).transpose(3, 0, 1, 4, 2)  # panel, block, four, column, of the four
    if bits == 4:
        blocked = blocked[:, :, :4] | blocked[:, :, 4:] << 4
    shared = [np.pad(scales, ((0, 0), (0, 32 * count - n)))]
    if zeros is not None:
        shared.append(np.pad(zeros * np.uint8(256 >> bits), ((0, 0), (0, 32 * count - n))))
    parts = []
    for i in range(len(scales)):
        parts.append(blocked[:, i * span : (i + 1) * span].reshape(count, -1))
        parts += [np.ascontiguousarray(each[i].reshape(count, 32)).view(np.uint8) for each in shared]
    return np.concatenate(parts, axis=1) if parts else np.zeros((count, 0), np.uint8)


@pytest.mark.parametrize("rows, k", [(1, 1), (3, 31), (2, 64), (5, GROUP), (4, GROUP + 1), (7, 3 * GROUP - 5), (0, 8)])
def test_rows_are_rounded(rows: int, k: int) -> None:
    x = random(rows, k) * 3
    stride = up(row_bytes(k), 16) + 16
    result = every(
        "round_rows_i8", {"x": at_page_end(x, 2), "rows": rows, "cols": k, "x_stride": k + 2, "out_stride": stride},
        "out", (rows, row_bytes(k)), row_pad=stride - row_bytes(k), dtype=np.uint8,
    )  # fmt: skip
    np.testing.assert_array_equal(result, row_image(x))


def test_rows_that_no_step_fits() -> None:
    x = random(8, GROUP + 40)
    x[0, 3], x[1, 5], x[2, -1], x[3], x[4, :GROUP], x[5, 0] = np.inf, np.nan, -np.inf, 0, 1e-38, 3e38
    x[6, :GROUP], x[6, 7] = 0, 2.0**-120
    fields = {"x": x, "rows": 8, "cols": x.shape[1], "x_stride": x.shape[1], "out_stride": row_bytes(x.shape[1])}
    result = every("round_rows_i8", fields, "out", (8, row_bytes(x.shape[1])), dtype=np.uint8)
    expected, begin = row_image(x), steps_begin(x.shape[1])
    steps = slice(begin, begin + 8)
    np.testing.assert_array_equal(np.delete(result, steps, 1), np.delete(expected, steps, 1))
    np.testing.assert_array_equal(
        np.ascontiguousarray(result[:, steps]).view(np.float32),
        np.ascontiguousarray(expected[:, steps]).view(np.float32),
    )


@pytest.mark.parametrize("rows, k", [(1, 1), (3, 31), (4, GROUP + 1), (7, 3 * GROUP - 5), (0, 8)])
def test_rows_are_rounded_to_digits(rows: int, k: int) -> None:
    """Groups without a step have zeros, or NaN; 2^-100 is the least that has one."""
    x = random(rows, k) * 3
    if rows > 3:
        x[0, 0], x[1], x[2, :GROUP], x[3, :GROUP] = np.inf, 0, np.float32(2.0**-100), np.float32(0.99 * 2.0**-100)
    stride = up(row_bytes(k), 16) + 16
    fields = {"x": at_page_end(x, 2), "rows": rows, "cols": k, "x_stride": k + 2, "out_stride": 3 * stride}
    result = every("round_rows_i24", fields, "out", (rows, 3 * stride), dtype=np.uint8).reshape(rows, 3, stride)
    expected = digit_image(x, stride).reshape(rows, 3, stride)
    begin = steps_begin(k)
    end = begin + 4 * (up(k, GROUP) // GROUP)
    for part in (slice(begin), slice(end, row_bytes(k))):
        np.testing.assert_array_equal(result[..., part], expected[..., part])
    both = (np.ascontiguousarray(each[..., begin:end]).view(np.float32) for each in (result, expected))
    np.testing.assert_array_equal(*both)


SHAPES = [
    (1, 1, 1), (1, 200, 33), (1, 257, 513), (2, 33, 5), (3, 64, 257), (4, 100, 40), (5, 32, 16), (6, 31, 601),
    (7, 17, 3), (12, 96, 256), (13, 65, 300), (50, 40, 255), (97, 3, 1024), (5, 40, 0), (0, 8, 4), (25, 16, 301),
]  # fmt: skip


@pytest.mark.parametrize("bits, group", FORMATS)
@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_products(index: int, shape: tuple[int, int, int], bits: int, group: int) -> None:
    m, n, k = shape
    x, (codes, scales) = random(m, k), weights(k, n, bits, group)
    stride = up(row_bytes(k), 4) + 4 * (index % 3)
    image = at_page_end(np.pad(row_image(x), ((0, 0), (0, stride - row_bytes(k)))))
    fields = {
        "m": m,
        "n": n,
        "k": k,
        "a": image,
        "a_stride": stride,
        "b": at_page_end(panels(codes, scales, bits, group)),
    }
    kernel = f"gemm_{named(bits, group)}_packed"
    plain = every(kernel, fields | {"alpha": 1.0, "c_stride": n + 5}, "c", (m, n), row_pad=5)
    np.testing.assert_array_equal(plain, defined(x, codes, scales, group))
    decoded = codes * spread(scales, group, k).astype(float)
    exact, size = x.astype(float) @ decoded, abs(x).astype(float) @ abs(decoded)
    assert (abs(plain - exact) <= 0.05 * size + 1e-6).all()
    activation, alpha, with_bias, with_residual = EPILOGUES[index % len(EPILOGUES)]
    fields |= {"alpha": alpha, "activation": ACTIVATIONS[activation][0], "c_stride": n + 1} | ATTRIBUTES
    bias, residual = random(n, seed=2), random(m, n, seed=3)
    if with_bias:
        fields["bias"] = at_page_end(bias)
    if with_residual:
        fields |= {"residual": at_page_end(residual, 3), "residual_stride": n + 3}
        fields["residual_first"] = int(with_residual == "first")
    result = every(kernel, fields, "c", (m, n), row_pad=1)
    total = alpha * plain.astype(float) + (bias if with_bias else 0)
    total = total + residual if with_residual == "first" else total
    total = ACTIVATIONS[activation][1](total)
    total = total + residual if with_residual == "last" else total
    np.testing.assert_allclose(result, total, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bits, group, has_zeros", WITH_ZEROS)
def test_largest_sums(bits: int, group: int, has_zeros: bool) -> None:
    """Codes, zero points and rows at either end: no sum of a few products saturates."""
    k, least, most = 2 * GROUP, -CENTRE[bits], CENTRE[bits] - 1
    x = np.ones((20, k), np.float32)
    x[1::4], x[2::4, ::2], x[3::4, : k // 2] = -1, -1, -1
    codes = np.full((k, 6), least, np.int16)
    codes[:, 1], codes[::2, 2], codes[: k // 2, 3], codes[1::4, 4], codes[:, 5] = most, most, most, most, 0
    scales = np.full((up(k, group) // group, 6), 0.5, np.float16)
    fields = {"m": 20, "n": 6, "k": k, "alpha": 1.0, "a": row_image(x), "a_stride": row_bytes(k), "c_stride": 6}
    if not has_zeros:
        given = fields | {"b": panels(codes.astype(np.int8), scales, bits, group)}
        result = every(f"gemm_{named(bits, group)}_packed", given, "c", (20, 6))
        np.testing.assert_array_equal(result, defined(x, codes, scales, group))
        return
    for zero in (0, 2 * CENTRE[bits] - 1):
        unsigned, zeros = (codes - least).astype(np.uint8), np.full(scales.shape, zero, np.uint8)
        given = fields | {"b": panels(unsigned, scales, bits, group, zeros)}
        result = every(f"gemm_{named(bits, group)}_zp_packed", given, "c", (20, 6))
        np.testing.assert_array_equal(result, defined(x, codes - least - zero, scales, group))


@pytest.mark.parametrize("bits, group", ZEROS)
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_products_with_zeros(m: int, n: int, k: int, bits: int, group: int) -> None:
    """Zero points inside the range and at its ends; gated equals two plain products; packed from values and zp."""
    generator = np.random.default_rng([m, n, k, bits])
    codes = generator.integers(0, 2 * CENTRE[bits], (k, n)).astype(np.uint8)
    _, scales = weights(k, n, bits, group)
    zeros = generator.choice([0, 1, CENTRE[bits], 2 * CENTRE[bits] - 1], scales.shape).astype(np.uint8)
    points = spread(zeros, group, k).astype(np.int16)
    x, expected = random(m, k), panels(codes, scales, bits, group, zeros)
    name = f"{named(bits, group)}_zp"
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": row_image(x), "a_stride": row_bytes(k), "c_stride": n + 1}
    result = every(f"gemm_{name}_packed", fields | {"b": at_page_end(expected)}, "c", (m, n), row_pad=1)
    np.testing.assert_array_equal(result, defined(x, codes.astype(np.int16) - points, scales, group))
    lying = {"src": codes, "scales": scales, "zeros": zeros, "n": n, "k": k, "group": group}
    lying |= {"k_stride": n, "n_stride": 1, "scale_k_stride": n, "scale_n_stride": 1}
    for isa, parts in ways():
        target = at_page_end(np.full(expected.shape, 0xA5, np.uint8))
        run(f"pack_{name}", isa, parts, lying | {"dst": target})
        both = (unpacked(each, k, n, bits, group, True) for each in (target, expected) if k)
        for mine, theirs in zip(*both, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    if n and k:
        table = {"table": expected, "indices": np.arange(n), "limit": n, "inner": k, "outer": 1, "count": n}
        table |= {"index_bytes": 8, "item_bytes": 4, "fault": np.zeros(8, np.int32)}
        wide = (codes.astype(np.float32) - points) * spread(scales, group, k).astype(np.float32)
        gathered = every(f"gather_{name}_panels", table, "out", (n, k))
        np.testing.assert_array_equal(gathered, wide.T)
    if n % 32 == 0 and n:
        half = n // 2
        columns = np.arange(n).reshape(2, half // 16, 16).transpose(1, 0, 2).reshape(-1)
        b = panels(codes[:, columns], scales[:, columns], bits, group, zeros[:, columns])
        gated = fields | {"n": half, "b": b, "gate": 1, "c_stride": half}
        product = every(f"gemm_{name}_gated", gated, "c", (m, half))
        np.testing.assert_array_equal(product, result[:, :half] * result[:, half:])


@pytest.mark.parametrize("bits, group", FORMATS)
@pytest.mark.parametrize("m, n, k", [(1, 16, 41), (4, 160, 300), (5, 48, 1), (13, 32, 258), (53, 80, 515), (6, 48, 0)])
@pytest.mark.parametrize("gate", [1, 2])
def test_gated_products(m: int, n: int, k: int, gate: int, bits: int, group: int) -> None:
    x, (codes, scales) = random(m, k), weights(k, 2 * n, bits, group)
    columns = np.arange(2 * n).reshape(2, n // 16, 16).transpose(1, 0, 2).reshape(-1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": row_image(x), "a_stride": row_bytes(k)}
    packed = at_page_end(panels(codes[:, columns], scales[:, columns], bits, group))
    gated = fields | {"b": packed, "c_stride": n + 5, "activation": 4, "gate": gate}
    halves = []
    for half, activation in ((slice(n), 4 if gate == 1 else 0), (slice(n, 2 * n), 0 if gate == 1 else 4)):
        b = panels(codes[:, half], scales[:, half], bits, group)
        plain = fields | {"b": b, "c_stride": n, "activation": activation}
        halves.append(every(f"gemm_{named(bits, group)}_packed", plain, "c", (m, n)))
    result = every(f"gemm_{named(bits, group)}_gated", gated, "c", (m, n), row_pad=5)
    assert result.tobytes() == (halves[0] * halves[1]).tobytes()


@pytest.mark.parametrize("bits, group", FORMATS)
def test_a_row_is_alone(bits: int, group: int) -> None:
    """A row's result does not depend on the other rows."""
    m, n, k = 61, 70, 700
    x, (codes, scales) = random(m, k), weights(k, n, bits, group)
    fields = {
        "n": n,
        "k": k,
        "alpha": 1.0,
        "a_stride": row_bytes(k),
        "c_stride": n,
        "b": panels(codes, scales, bits, group),
    }
    kernel, image = f"gemm_{named(bits, group)}_packed", row_image(x)
    whole = every(kernel, fields | {"m": m, "a": image}, "c", (m, n))
    for i in range(m):
        alone = blank((1, n))
        run(kernel, ISAS[-1], 1, fields | {"m": 1, "a": at_page_end(image[i]), "c": alone})
        assert alone.tobytes() == whole[i].tobytes()


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits, size, scale", PLAIN)
@pytest.mark.parametrize("n, k, group", [(1, 1, 32), (31, 40, 64), (33, 64, 32), (100, 300, 128), (64, 100, 100)])
@pytest.mark.parametrize("transposed", [True, False])
def test_pack(n: int, k: int, group: int, transposed: bool, bits: int, size: int, scale: type, signed: bool) -> None:
    group = group if group % size == 0 else max(size, k)
    codes, _ = weights(k, n, bits, size)
    scales = random(-(-k // group), n).astype(scale)
    held = codes.view(np.uint8) if signed else (codes.astype(np.int16) + CENTRE[bits]).astype(np.uint8)
    placed = at_page_end(np.ascontiguousarray(held.T)).T if transposed else at_page_end(held)
    lying = at_page_end(np.ascontiguousarray(scales.T)).T if transposed else at_page_end(scales)
    expected = panels(codes, spread(scales, group, k)[::size], bits, size)
    k_stride, n_stride = element_strides(placed)
    fields = {"src": placed, "n": n, "k": k, "k_stride": k_stride, "n_stride": n_stride, "group": group}
    scale_k, scale_n = element_strides(lying)
    fields |= {"scales": lying, "scale_k_stride": scale_k, "scale_n_stride": scale_n}
    fields["flip"] = CENTRE[bits] if signed else 0
    forms = [fields]
    if bits == 4 and transposed and k % 2 == 0:
        low, high = (held.T[:, first::2] & 15 for first in (0, 1))
        forms.append(fields | {"src": at_page_end(low | high << 4), "pairs": 1, "n_stride": k // 2})
    for (isa, parts), form in itertools.product(ways(), forms):
        target = at_page_end(np.full(expected.shape, 0xA5, np.uint8))
        run(f"pack_{named(bits, size, scale=scale)}", isa, parts, form | {"dst": target})
        both = (unpacked(each, k, n, bits, size, False, scale) for each in (target, expected))
        for mine, theirs in zip(*both, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def unpacked(
    b: np.ndarray, k: int, n: int, bits: int, group: int, has_zeros: bool, scale: type = F16
) -> tuple[np.ndarray, ...]:
    """Codes, scales and perhaps zero points of panels, without what fills them up."""
    codes, shared, at = [], [], 0
    scale_bytes = np.dtype(scale).itemsize
    bytes_of_shared = scale_bytes + has_zeros
    for first in range(0, k, group):
        for _ in range(first, min(first + group, k), BLOCK):
            block = b[:, at : at + 128 * bits].reshape(len(b), bits, 32, 4)
            codes.append(np.concatenate([block & 15, block >> 4], axis=1) if bits == 4 else block)
            at += 128 * bits
        shared.append(b[:, at : at + 32 * bytes_of_shared])
        at += 32 * bytes_of_shared
    assert at == b.shape[1]
    elements = np.stack(codes).transpose(0, 2, 4, 1, 3).reshape(-1, 32 * len(b))
    kinds = (slice(32 * scale_bytes), scale), (slice(32 * scale_bytes, None), np.uint8)
    beside = [np.stack(shared)[..., part].copy().view(dtype).reshape(len(shared), -1) for part, dtype in kinds]
    return tuple(each[:, :n] for each in (elements[:k], *beside))


@pytest.mark.parametrize("bits, group, scale", PLAIN)
@pytest.mark.parametrize("rows, k", [(1, 1), (70, 40), (33, 300)])
def test_rows_of_a_table(rows: int, k: int, bits: int, group: int, scale: type) -> None:
    codes, scales = weights(k, rows, bits, group, scale)
    indices = np.random.default_rng(0).integers(-rows, rows, 9)
    fields = {"table": at_page_end(panels(codes, scales, bits, group)), "indices": indices, "limit": rows, "inner": k}
    fields |= {"outer": 1, "count": 9, "index_bytes": 8, "item_bytes": 4, "fault": np.zeros(8, np.int32)}
    wide = codes.astype(np.float32) * spread(scales, group, k).astype(np.float32)
    result = every(f"gather_{named(bits, group, scale=scale)}_panels", fields, "out", (9, k))
    assert result.tobytes() == np.ascontiguousarray(wide.T[indices]).tobytes()


@pytest.mark.parametrize("bits, group", ZEROS)
@pytest.mark.parametrize("n, k", [(1, 1), (31, 40), (33, 257), (100, 300)])
def test_tables_with_zeros_and_scales_of_f32(n: int, k: int, bits: int, group: int) -> None:
    """Packed from values, scales and zero points; each element is (value - zp) * scale, rounded once."""
    generator = np.random.default_rng([n, k, bits])
    _, scales = weights(k, n, bits, group, F32)
    codes, zeros = (generator.integers(0, 2 * CENTRE[bits], of).astype(np.uint8) for of in ((k, n), scales.shape))
    name, expected = named(bits, group, True, F32), panels(codes, scales, bits, group, zeros)
    lying = {"src": codes, "scales": scales, "zeros": zeros, "n": n, "k": k, "group": group}
    lying |= {"k_stride": n, "n_stride": 1, "scale_k_stride": n, "scale_n_stride": 1}
    for isa, parts in ways():
        target = at_page_end(np.full(expected.shape, 0xA5, np.uint8))
        run(f"pack_{name}", isa, parts, lying | {"dst": target})
        both = (unpacked(each, k, n, bits, group, True, F32) for each in (target, expected))
        for mine, theirs in zip(*both, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    table = {"table": at_page_end(expected), "indices": np.arange(n), "limit": n, "inner": k, "outer": 1, "count": n}
    table |= {"index_bytes": 8, "item_bytes": 4, "fault": np.zeros(8, np.int32)}
    points = spread(zeros, group, k).astype(np.float32)
    wide = (codes.astype(np.float32) - points) * spread(scales, group, k)
    np.testing.assert_array_equal(every(f"gather_{name}_panels", table, "out", (n, k)), wide.T)


@pytest.mark.parametrize("bits, group, with_zeros, scale", WITH_SCALES)
@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_products_of_floats(
    index: int, shape: tuple[int, int, int], bits: int, group: int, with_zeros: bool, scale: type
) -> None:
    """The bits of f32 panels of the decoded weights, and close to float64; gated as well."""
    m, n, k = shape
    generator = np.random.default_rng([*shape, bits])
    x, (codes, scales) = random(m, k), weights(k, n, bits, group, scale)
    zeros = generator.integers(0, 2 * CENTRE[bits], scales.shape).astype(np.uint8) if with_zeros else None
    held = codes if zeros is None else (codes.astype(np.int16) + CENTRE[bits]).astype(np.uint8)
    points = 0 if zeros is None else spread(zeros, group, k).astype(np.float32)
    decoded = (held.astype(np.float32) - points) * spread(scales, group, k).astype(np.float32)
    name = f"f32_{named(bits, group, with_zeros, scale)}"
    placed = at_page_end(x, index % 3)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": placed, "a_stride": k + index % 3, "c_stride": n + 1}
    b = at_page_end(panels(held, scales, bits, group, zeros))
    result = every(f"gemm_{name}_packed", fields | {"b": b}, "c", (m, n), row_pad=1)
    wide = np.zeros((up(n, 32) // 32, k, 32), np.float32)
    run(
        "pack_f32",
        ISAS[-1],
        1,
        {"src": decoded, "dst": wide, "k": k, "n": n, "k_stride": n, "n_stride": 1, "scale": 1.0},
    )
    plain = every("gemm_f32_packed", fields | {"b": wide}, "c", (m, n), row_pad=1)
    assert result.tobytes() == plain.tobytes()
    exact = x.astype(float) @ decoded
    assert (abs(result - exact) <= 1e-5 * (abs(x).astype(float) @ abs(decoded)) + 1e-9).all()
    if n % 32 == 0 and n:
        half = n // 2
        columns = np.arange(n).reshape(2, half // 16, 16).transpose(1, 0, 2).reshape(-1)
        b = panels(held[:, columns], scales[:, columns], bits, group, None if zeros is None else zeros[:, columns])
        gated = fields | {"n": half, "b": b, "gate": 1, "c_stride": half}
        product = every(f"gemm_{name}_gated", gated, "c", (m, half))
        np.testing.assert_array_equal(product, result[:, :half] * result[:, half:])


@pytest.mark.parametrize("bits, group, with_zeros", WITH_ZEROS)
@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_products_of_digits(index: int, shape: tuple[int, int, int], bits: int, group: int, with_zeros: bool) -> None:
    """As defined, as near to float64 as sums of floats are, gated as well; no row depends on other rows."""
    m, n, k = shape
    generator = np.random.default_rng([*shape, bits])
    x, (codes, scales) = random(m, k), weights(k, n, bits, group)
    zeros = generator.integers(0, 2 * CENTRE[bits], scales.shape).astype(np.uint8) if with_zeros else None
    held = codes if zeros is None else (codes.astype(np.int16) + CENTRE[bits]).astype(np.uint8)
    points = 0 if zeros is None else spread(zeros, group, k).astype(np.int16)
    name, stride = f"i24_{named(bits, group)}{'_zp' if with_zeros else ''}", up(row_bytes(k), 4) + 4 * (index % 3)
    image = digit_image(x, stride)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": at_page_end(image), "a_stride": 3 * stride, "c_stride": n + 1}
    b = at_page_end(panels(held, scales, bits, group, zeros))
    result = every(f"gemm_{name}_packed", fields | {"b": b}, "c", (m, n), row_pad=1)
    np.testing.assert_array_equal(result, defined_by_digits(x, held.astype(np.int16) - points, scales, group))
    decoded = (held.astype(float) - points) * spread(scales, group, k).astype(float)
    exact, largest = x.astype(float) @ decoded, abs(x).max(1, initial=0, keepdims=True)
    size = abs(x).astype(float) @ abs(decoded) + largest * abs(decoded).sum(0, keepdims=True)
    assert (abs(result - exact) <= 2e-7 * size + 1e-12).all()
    for i in range(0, m, 7):
        alone = blank((1, n))
        run(f"gemm_{name}_packed", ISAS[-1], 1, fields | {"m": 1, "a": at_page_end(image[i]), "b": b, "c": alone,
                                                         "c_stride": n})  # fmt: skip
        assert alone.tobytes() == result[i].tobytes()
    if n % 32 == 0 and n:
        half = n // 2
        columns = np.arange(n).reshape(2, half // 16, 16).transpose(1, 0, 2).reshape(-1)
        b = panels(held[:, columns], scales[:, columns], bits, group, None if zeros is None else zeros[:, columns])
        gated = fields | {"n": half, "b": b, "gate": 1, "c_stride": half}
        product_of = every(f"gemm_{name}_gated", gated, "c", (m, half))
        np.testing.assert_array_equal(product_of, result[:, :half] * result[:, half:])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bits, group", FORMATS)
@pytest.mark.parametrize("rows, k", [(1, 1), (5, 70), (9, 320), (3, 0)])
def test_quantized_floats(rows: int, k: int, bits: int, group: int, dtype: type) -> None:
    """The op's bits, also where numbers are not finite or next to nothing."""
    x = random(rows, k).astype(dtype)
    if k > 70:
        x[0, 3], x[1, 5], x[2], x[3], x[4, :group], x[5, 0], x[6] = np.inf, np.nan, 0, 1e-9, -1, 6e7, 2.0**-20
    kind = {8: i8, 4: i4}[bits]
    expected = quantize_groups(x.astype(np.float32), group=group, dtype=kind)
    for isa, parts in ways():
        codes, scales = np.zeros((rows, k), np.int8), np.zeros((rows, -(-k // group)), np.float16)
        fields = {"x": at_page_end(x), "values": codes, "scales": scales, "rows": rows, "cols": k, "x_stride": k}
        fields |= {"group": group, "bits": bits, "is_bf16": int(dtype is not np.float32)}
        run("quantize_rows", isa, parts, fields)
        np.testing.assert_array_equal(codes, expected[0].astype(np.int8))
        np.testing.assert_array_equal(scales, expected[1])

"""Products of rows that are rounded to int8 with codes of 8 and 4 bits: every kernel against its definition, whose sums
of integers are exact and whose floats have one order.
"""

import itertools

import numpy as np
import pytest

from kernel_calls import ISAS, at_page_end, blank, element_strides, every, run, ways
from products import ACTIVATIONS, ATTRIBUTES, EPILOGUES, random
from rounded_rows import BLOCK, GROUP, fused, rounded, row_bytes, row_image, up

pytestmark = pytest.mark.native

CENTRE = {8: 128, 4: 8}


def defined(x: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """x[m, k] times (codes * scales)[k, n], as abi.h says. codes: less their zero points; scales [blocks, n]."""
    rows, steps = rounded(x)
    k, n = codes.shape
    padded = np.zeros((rows.shape[1], n))
    padded[:k] = codes
    total = np.zeros((len(x), n), np.float32)
    for group in range(steps.shape[1]):
        inner = np.zeros_like(total)
        for block in range(group * GROUP // BLOCK, min((group + 1) * GROUP, rows.shape[1]) // BLOCK):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            exact = rows[:, part].astype(float) @ padded[part]
            inner = fused(exact.astype(np.float32), scales[block].astype(np.float32), inner)
        total = fused(inner, steps[:, group : group + 1], total)
    return total


def weights(k: int, n: int, bits: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Signed codes [k, n] and scales f16 [blocks, n]."""
    generator = np.random.default_rng([seed, k, n, bits])
    codes = generator.integers(-CENTRE[bits], CENTRE[bits], (k, n)).astype(np.int8)
    return codes, generator.uniform(-0.02, 0.02, (up(k, BLOCK) // BLOCK, n)).astype(np.float16)


def panels(codes: np.ndarray, scales: np.ndarray, bits: int, zeros: np.ndarray | None = None) -> np.ndarray:
    """The bytes of panels of codes [k, n], signed, or unsigned with zeros [blocks, n]."""
    k, n = codes.shape
    blocks, wide = up(k, BLOCK) // BLOCK, np.zeros((up(k, BLOCK), up(n, 32)), np.uint8)
    count = up(n, 32) // 32
    wide[:, :n] = CENTRE[bits]
    wide[:k, :n] = codes.astype(np.int16) + (CENTRE[bits] if zeros is None else 0)
    spread = np.zeros((blocks, up(n, 32)), np.float16)
    spread[:, :n] = scales
    blocked = wide.reshape(blocks, 8, 4, count, 32).transpose(3, 0, 1, 4, 2)  # panel, block, four, column, of the four
    if bits == 4:
        blocked = blocked[:, :, :4] | blocked[:, :, 4:] << 4
    scaled = np.ascontiguousarray(spread.reshape(blocks, count, 32).transpose(1, 0, 2)).view(np.uint8)
    flat = blocked.reshape(len(scaled), blocks, 128 * bits)
    if zeros is None:
        return np.concatenate([flat, scaled], axis=2)
    points = np.zeros((blocks, up(n, 32)), np.uint8)
    points[:, :n] = zeros * (256 >> bits)
    return np.concatenate([flat, scaled, points.reshape(blocks, count, 32).transpose(1, 0, 2)], axis=2)


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
    expected, begin = row_image(x), up(x.shape[1], BLOCK) // BLOCK * (BLOCK + 4)
    steps = slice(begin, begin + 8)
    np.testing.assert_array_equal(np.delete(result, steps, 1), np.delete(expected, steps, 1))
    np.testing.assert_array_equal(
        np.ascontiguousarray(result[:, steps]).view(np.float32),
        np.ascontiguousarray(expected[:, steps]).view(np.float32),
    )


SHAPES = [
    (1, 1, 1), (1, 200, 33), (1, 257, 513), (2, 33, 5), (3, 64, 257), (4, 100, 40), (5, 32, 16), (6, 31, 601),
    (7, 17, 3), (12, 96, 256), (13, 65, 300), (50, 40, 255), (97, 3, 1024), (5, 40, 0), (0, 8, 4), (25, 16, 301),
]  # fmt: skip


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_products(index: int, shape: tuple[int, int, int], bits: int) -> None:
    m, n, k = shape
    x, (codes, scales) = random(m, k), weights(k, n, bits)
    stride = up(row_bytes(k), 4) + 4 * (index % 3)
    image = at_page_end(np.pad(row_image(x), ((0, 0), (0, stride - row_bytes(k)))))
    fields = {"m": m, "n": n, "k": k, "a": image, "a_stride": stride, "b": at_page_end(panels(codes, scales, bits))}
    kernel = f"gemm_int{bits}_packed"
    plain = every(kernel, fields | {"alpha": 1.0, "c_stride": n + 5}, "c", (m, n), row_pad=5)
    np.testing.assert_array_equal(plain, defined(x, codes, scales))
    exact = x.astype(float) @ (codes * np.repeat(scales, BLOCK, axis=0)[:k].astype(float))
    size = abs(x).astype(float) @ abs(codes * np.repeat(scales, BLOCK, axis=0)[:k].astype(float))
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


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_products_with_zeros(m: int, n: int, k: int, bits: int) -> None:
    """Zero points between the codes, and at their ends; gated, two of the plain ones; packed from codes and zeros."""
    generator = np.random.default_rng([m, n, k, bits])
    codes = generator.integers(0, 2 * CENTRE[bits], (k, n)).astype(np.uint8)
    _, scales = weights(k, n, bits)
    zeros = generator.choice([0, 1, CENTRE[bits], 2 * CENTRE[bits] - 1], scales.shape).astype(np.uint8)
    spread = np.repeat(zeros, BLOCK, axis=0)[:k].astype(np.int16)
    x, expected = random(m, k), panels(codes, scales, bits, zeros)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": row_image(x), "a_stride": row_bytes(k), "c_stride": n + 1}
    result = every(f"gemm_int{bits}_zeros_packed", fields | {"b": at_page_end(expected)}, "c", (m, n), row_pad=1)
    np.testing.assert_array_equal(result, defined(x, codes.astype(np.int16) - spread, scales))
    lying = {"src": codes, "scales": scales, "zeros": zeros, "n": n, "k": k, "group": BLOCK}
    lying |= {"k_stride": n, "n_stride": 1, "scale_k_stride": n, "scale_n_stride": 1}
    for isa, parts in ways():
        target = at_page_end(np.full(expected.shape, 0xA5, np.uint8))
        run(f"pack_int{bits}_zeros", isa, parts, lying | {"dst": target})
        cut = 128 * bits + 64
        assert same_numbers(target[:, :, :cut], expected[:, :, :cut], k, n, bits)
        rows = (len(zeros), 32 * len(target))
        points = [each[:, :, cut:].transpose(1, 0, 2).reshape(rows)[:, :n] for each in (target, expected)]
        np.testing.assert_array_equal(*points)
    if n and k:
        table = {"table": expected, "indices": np.arange(n), "limit": n, "inner": k, "outer": 1, "count": n}
        table |= {"index_bytes": 8, "item_bytes": 4, "fault": np.zeros(8, np.int32)}
        wide = (codes.astype(np.float32) - spread) * np.repeat(scales, BLOCK, axis=0)[:k].astype(np.float32)
        gathered = every(f"gather_int{bits}_zeros_panels", table, "out", (n, k))
        np.testing.assert_array_equal(gathered, wide.T)
    if n % 32 == 0 and n:
        half = n // 2
        columns = np.arange(n).reshape(2, half // 16, 16).transpose(1, 0, 2).reshape(-1)
        b = panels(codes[:, columns], scales[:, columns], bits, zeros[:, columns])
        gated = fields | {"n": half, "b": b, "gate": 1, "c_stride": half}
        product = every(f"gemm_int{bits}_zeros_gated", gated, "c", (m, half))
        np.testing.assert_array_equal(product, result[:, :half] * result[:, half:])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("m, n, k", [(1, 16, 41), (4, 160, 300), (5, 48, 1), (13, 32, 258), (53, 80, 515), (6, 48, 0)])
@pytest.mark.parametrize("gate", [1, 2])
def test_gated_products(m: int, n: int, k: int, gate: int, bits: int) -> None:
    x, (codes, scales) = random(m, k), weights(k, 2 * n, bits)
    columns = np.arange(2 * n).reshape(2, n // 16, 16).transpose(1, 0, 2).reshape(-1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": row_image(x), "a_stride": row_bytes(k)}
    packed = at_page_end(panels(codes[:, columns], scales[:, columns], bits))
    gated = fields | {"b": packed, "c_stride": n + 5, "activation": 4, "gate": gate}
    halves = []
    for half, activation in ((slice(n), 4 if gate == 1 else 0), (slice(n, 2 * n), 0 if gate == 1 else 4)):
        b = panels(codes[:, half], scales[:, half], bits)
        plain = fields | {"b": b, "c_stride": n, "activation": activation}
        halves.append(every(f"gemm_int{bits}_packed", plain, "c", (m, n)))
    result = every(f"gemm_int{bits}_gated", gated, "c", (m, n), row_pad=5)
    assert result.tobytes() == (halves[0] * halves[1]).tobytes()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_is_alone(bits: int) -> None:
    """A row's result does not depend on the rows beside it."""
    m, n, k = 61, 70, 700
    x, (codes, scales) = random(m, k), weights(k, n, bits)
    fields = {"n": n, "k": k, "alpha": 1.0, "a_stride": row_bytes(k), "c_stride": n, "b": panels(codes, scales, bits)}
    kernel, image = f"gemm_int{bits}_packed", row_image(x)
    whole = every(kernel, fields | {"m": m, "a": image}, "c", (m, n))
    for i in range(m):
        alone = blank((1, n))
        run(kernel, ISAS[-1], 1, fields | {"m": 1, "a": at_page_end(image[i]), "c": alone})
        assert alone.tobytes() == whole[i].tobytes()


@pytest.mark.parametrize("bits, signed", list(itertools.product([8, 4], [True, False])))
@pytest.mark.parametrize("n, k, group", [(1, 1, 32), (31, 40, 64), (33, 64, 32), (100, 300, 128), (64, 100, 100)])
@pytest.mark.parametrize("transposed", [True, False])
def test_pack(n: int, k: int, group: int, transposed: bool, bits: int, signed: bool) -> None:
    codes, _ = weights(k, n, bits)
    scales = random(-(-k // group), n).astype(np.float16)
    held = codes.view(np.uint8) if signed else (codes.astype(np.int16) + CENTRE[bits]).astype(np.uint8)
    placed = at_page_end(np.ascontiguousarray(held.T)).T if transposed else at_page_end(held)
    lying = at_page_end(np.ascontiguousarray(scales.T)).T if transposed else at_page_end(scales)
    spread = np.repeat(scales, group, axis=0)[:k:BLOCK]
    expected = panels(codes, spread, bits)
    k_stride, n_stride = element_strides(placed)
    fields = {"src": placed, "n": n, "k": k, "k_stride": k_stride, "n_stride": n_stride, "group": group}
    scale_k, scale_n = element_strides(lying)
    fields |= {"scales": lying, "scale_k_stride": scale_k, "scale_n_stride": scale_n}
    fields["flip"] = CENTRE[bits] if signed else 0
    for isa, parts in ways():
        target = at_page_end(np.full(expected.shape, 0xA5, np.uint8))
        run(f"pack_int{bits}", isa, parts, fields | {"dst": target})
        assert same_numbers(target, expected, k, n, bits)


def same_numbers(a: np.ndarray, b: np.ndarray, k: int, n: int, bits: int) -> bool:
    """Whether panels hold the same codes and scales; what fills them up does not count."""
    return all(np.array_equal(x, y) for x, y in zip(unpacked(a, k, n, bits), unpacked(b, k, n, bits), strict=True))


def unpacked(b: np.ndarray, k: int, n: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    codes = b[:, :, : 128 * bits].reshape(len(b), -1, bits, 32, 4)
    if bits == 4:
        codes = np.concatenate([codes & 15, codes >> 4], axis=2)
    scales = np.ascontiguousarray(b[:, :, 128 * bits :]).view(np.float16)
    codes = codes.transpose(1, 2, 4, 0, 3).reshape(-1, len(b) * 32)
    return codes[:k, :n], scales.transpose(1, 0, 2).reshape(-1, len(b) * 32)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows, k", [(1, 1), (70, 40), (33, 300)])
def test_rows_of_a_table(rows: int, k: int, bits: int) -> None:
    codes, scales = weights(k, rows, bits)
    indices = np.random.default_rng(0).integers(-rows, rows, 9)
    fields = {"table": at_page_end(panels(codes, scales, bits)), "indices": indices, "limit": rows, "inner": k}
    fields |= {"outer": 1, "count": 9, "index_bytes": 8, "item_bytes": 4, "fault": np.zeros(8, np.int32)}
    wide = codes.astype(np.float32) * np.repeat(scales, BLOCK, axis=0)[:k].astype(np.float32)
    result = every(f"gather_int{bits}_panels", fields, "out", (9, k))
    assert result.tobytes() == np.ascontiguousarray(wide.T[indices]).tobytes()

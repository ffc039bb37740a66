"""What `round_rows_i8` and `round_rows_i24` make of rows, and products of them, in numpy."""

from __future__ import annotations

import numpy as np

from ingot.support import abi

BLOCK, WIDE, LONGEST = (abi.constant(f"INGOT_QUANT_{name}") for name in ("BLOCK", "WIDE", "LONGEST"))
GROUP = abi.constant("INGOT_ROUND_GROUP")


def up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def row_bytes(k: int) -> int:
    blocks = up(k, BLOCK) // BLOCK
    return steps_begin(k) + 4 * (up(k, GROUP) // GROUP) + 4 * blocks + 2 * up(blocks, 2)


def steps_begin(k: int) -> int:
    """Where a row has its steps: behind its codes and the sums of these."""
    return up(k, BLOCK) + sum(4 * (up(k, unit) // unit) for unit in (BLOCK, WIDE, GROUP))


def rounded(x: np.ndarray, top: int = 127, least: float = 2.0**-120) -> tuple[np.ndarray, np.ndarray]:
    """Codes [rows, k up to a multiple of 32] of rows, and steps [rows, groups], in f32."""
    rows, k = x.shape
    codes, steps = np.zeros((rows, up(k, BLOCK)), np.float32), []
    for first in range(0, k, GROUP):
        group = x[:, first : first + GROUP]
        most = abs(group).max(1, keepdims=True)
        usable = np.isfinite(group).all(1, keepdims=True) & (most >= np.float32(least))
        with np.errstate(all="ignore"):
            factor = np.where(usable, np.float32(top) / most, np.float32(0))
            codes[:, first : first + group.shape[1]] = np.where(factor == 0, 0, np.rint(group * factor))
            steps.append(np.where(np.isfinite(group).all(1), most[:, 0] / np.float32(top), np.float32(np.nan)))
    return codes, np.stack(steps, 1).astype(np.float32) if steps else np.zeros((rows, 0), np.float32)


def digits(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The three digits of rows rounded to 24 bits, [rows, 3, k up to a multiple of 32], and steps [rows, 3, groups]."""
    whole, steps = rounded(x, 127 * 254**2, 2.0**-100)
    left, found = whole.astype(np.int64), []
    for _ in range(3):
        digit = np.rint(left / 254 ** (2 - len(found))).astype(np.int64)
        left = left - digit * 254 ** (2 - len(found))
        found.append(digit)
    assert not left.any() and abs(np.stack(found)).max(initial=0) <= 127
    base = np.float32(254)
    return np.stack(found, 1).astype(np.float32), np.stack([steps * base * base, steps * base, steps], 1)


def row_image(x: np.ndarray) -> np.ndarray:
    """The bytes of rows rounded to int8."""
    return image(*rounded(x))


def digit_image(x: np.ndarray, stride: int) -> np.ndarray:
    """The bytes of rows rounded to 24 bits, each three rows that are `stride` bytes apart."""
    codes, steps = digits(x)
    rows = image(codes.reshape(3 * len(x), codes.shape[2]), steps.reshape(3 * len(x), steps.shape[2]))
    return np.pad(rows, ((0, 0), (0, stride - rows.shape[1]))).reshape(len(x), 3 * stride)


def image(codes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The bytes of rows of codes and steps, with the sums that lie between."""
    x = codes
    sums, wide, groups = (sums_of(codes, unit) for unit in (BLOCK, WIDE, GROUP))
    wholes = np.zeros((len(x), up(codes.shape[1] // BLOCK, 2)), np.int16)
    wholes[:, : codes.shape[1] // BLOCK] = sums // -128
    halves = codes.reshape(len(x), codes.shape[1] // 16, 16).sum(2).astype(np.int16)
    parts = (codes.astype(np.int8), sums, wide, groups, steps, halves, wholes)
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)


def sums_of(codes: np.ndarray, unit: int) -> np.ndarray:
    """-128 times the sum of each `unit` codes of a row."""
    whole = np.pad(codes, ((0, 0), (0, -codes.shape[1] % unit)))
    return whole.reshape(len(codes), whole.shape[1] // unit, unit).sum(2).astype(np.int32) * -128


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of f32 rounded once: exact enough in long double, whose 64 bits hold the product."""
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)

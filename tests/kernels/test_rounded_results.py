"""Kernels that write bf16 results, instead of f32 or in addition to it: the bits of f32 results rounded once."""

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from ingot.support import abi
from kernel_calls import at_page_end, blank, element_strides, every
from products import ACTIVATIONS, ATTRIBUTES, gate_packed, packed, random

pytestmark = pytest.mark.native


def expect_rounded(
    kernel: str, fields: dict[str, Any], names: tuple[str, str], shape: tuple[int, ...], pad: int
) -> None:
    """names: of the fields of f32 and of rounded results. pad: elements between rows."""
    plain, rounded = names
    scratch = abi.scratch_floats(kernel, fields)
    exact = every(kernel, fields, plain, shape, row_pad=pad, scratch=scratch)
    for beside in (False, True):
        both = fields | ({plain: blank(shape, pad)} if beside else {})
        found = every(kernel, both, rounded, shape, row_pad=pad, scratch=scratch, dtype=bfloat16)
        assert found.tobytes() == exact.astype(bfloat16).tobytes()
        assert not beside or both[plain].tobytes() == exact.tobytes()


@pytest.mark.parametrize("m, n, k", [(1, 33, 20), (4, 64, 7), (13, 40, 300), (30, 5, 16)])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu_erf"])
def test_products(m: int, n: int, k: int, activation: str) -> None:
    b = random(k, n, seed=1)
    fields = {"m": m, "n": n, "k": k, "alpha": 1.0, "a": at_page_end(random(m, k)), "a_stride": k, "c_stride": n + 3}
    fields |= {"b": at_page_end(packed(b)), "bias": at_page_end(random(n, seed=2)), "rounded_stride": n + 3}
    fields |= {"activation": ACTIVATIONS[activation][0]} | ATTRIBUTES
    for kernel in ["gemm_f32_packed"] + ["gemv_f32_packed"] * (m <= 4):
        expect_rounded(kernel, fields, ("c", "rounded"), (m, n), 3)


@pytest.mark.parametrize("m", [2, 27])
def test_gated_products(m: int) -> None:
    b = gate_packed(random(24, 96, seed=1))
    fields = {"m": m, "n": 48, "k": 24, "alpha": 1.0, "a": at_page_end(random(m, 24)), "a_stride": 24, "gate": 1}
    fields |= {"b": at_page_end(b), "c_stride": 50, "rounded_stride": 50, "activation": ACTIVATIONS["silu"][0]}
    expect_rounded("gemm_f32_gated", fields, ("c", "rounded"), (m, 48), 2)


@pytest.mark.parametrize(
    "kernel, channels, out, groups",
    [
        ("packed", 20, 35, 1),
        ("packed", 20, 48, 1),
        ("packed", 40, 32, 2),
        ("planes", 3, 35, 1),
        ("depthwise", 20, 20, 20),
        ("depthwise", 48, 48, 48),
    ],
)
def test_convolutions(kernel: str, channels: int, out: int, groups: int) -> None:
    pad = 5
    weight = random(out, channels // groups, 3, 3, seed=1)
    if kernel == "depthwise":
        stored = np.ascontiguousarray(weight.reshape(out, 9).T)
    else:
        order = (0, 2, 3, 1) if kernel == "packed" else (0, 1, 2, 3)
        split = weight.transpose(order).reshape(groups, out // groups, -1)
        stored = np.stack([packed(group.T) for group in split])
    image = random(2, channels, 9, 11)
    x = at_page_end(image if kernel == "planes" else image.transpose(0, 2, 3, 1))
    n, *rest = element_strides(x)
    strides = [n, rest[1], rest[2], rest[0]] if kernel == "planes" else [n, *rest]
    pitch = out + pad
    fields = {"batch": 2, "channels": channels, "height": 9, "width": 11, "out_channels": out, "groups": groups}
    fields |= {"out_height": 9, "out_width": 11, "pad_top": 1, "pad_left": 1, "x": x, "x_strides": strides}
    fields |= {
        f"{name}_{axis}": size for name, size in (("kernel", 3), ("stride", 1), ("dilation", 1)) for axis in "hw"
    }
    fields |= {"weight": at_page_end(stored), "bias": at_page_end(random(out, seed=2)), "activation": 1}
    fields |= {name: [99 * pitch, 11 * pitch, pitch] for name in ("out_strides", "rounded_strides")}
    expect_rounded(f"conv2d_f32_{kernel}", fields, ("out", "rounded"), (2, 9, 11, out), pad)


@pytest.mark.parametrize("v_dim", [5, 32, 48])
def test_attention(v_dim: int) -> None:
    q, k, v = (at_page_end(random(2, 3, 30, width, seed=width)) for width in (8, 8, v_dim))
    shape = (2, 3, 30, v_dim)
    fields = {"q": q, "k": k, "v": v, "batch": 2, "heads": 3, "kv_heads": 3, "q_len": 30, "kv_len": 30, "scale": 0.4}
    fields |= {"head_dim": 8, "v_dim": v_dim, "out_strides": element_strides(blank(shape, 6))[:3]}
    fields |= {f"{name}_strides": element_strides(array)[:3] for name, array in (("q", q), ("k", k), ("v", v))}
    scratch = abi.scratch_floats("attention_f32", fields)
    exact = every("attention_f32", fields, "out", shape, row_pad=6, scratch=scratch)
    found = every("attention_f32", fields | {"rounds": 1}, "out", shape, row_pad=6, scratch=scratch, dtype=bfloat16)
    assert found.tobytes() == exact.astype(bfloat16).tobytes()

"""Product-sum kernels against float64, and bit for bit among instruction sets, parts, kernels and batches."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from ingot.support import abi
from kernel_calls import DOT_ISAS, ISAS, SPLIT_ISAS, at_page_end, blank, element_strides, every, run, ways
from products import ACTIVATIONS, ATTRIBUTES, EPILOGUES, PANEL, gamma, gate_packed, packed, random

pytestmark = pytest.mark.native

SHAPES = [
    (1, 1, 1), (1, 200, 33), (1, 256, 512), (2, 33, 5), (3, 64, 257), (4, 100, 40), (4, 31, 600), (3, 129, 8),
    (5, 32, 16), (6, 64, 256), (7, 17, 3), (12, 96, 256), (13, 65, 300), (16, 64, 64), (29, 130, 64), (25, 3, 1024),
    (64, 32, 20), (5, 40, 0), (0, 8, 4), (6, 0, 4), (2, 40, 0),
    (26, 16, 300), (9, 48, 33), (3, 16, 40), (2, 80, 260), (1, 144, 20),
]  # fmt: skip


@pytest.mark.parametrize("index, shape", list(enumerate(SHAPES)), ids=str)
def test_gemm(index, shape):
    m, n, k = shape
    a, b, bias, residual = random(m, k), random(k, n, seed=1), random(n, seed=2), random(m, n, seed=3)
    for activation, alpha, with_bias, with_residual in (EPILOGUES[0], EPILOGUES[index % len(EPILOGUES)]):
        code, function = ACTIVATIONS[activation]
        fields = {"m": m, "n": n, "k": k, "alpha": alpha, "activation": code, "b": at_page_end(packed(b))}
        x = at_page_end(a, row_pad=index % 3)
        fields |= {"a": x, "a_stride": k + index % 3, "c_stride": n + 5} | ATTRIBUTES
        linear = alpha * (a.astype(float) @ b.astype(float))
        if with_bias:
            fields["bias"] = at_page_end(bias)
            linear = linear + bias
        expected = function(linear)
        if with_residual:
            fields |= {"residual": at_page_end(residual, 3), "residual_stride": n + 3}
            fields["residual_first"] = int(with_residual == "first")
            expected = function(linear + residual) if with_residual == "first" else expected + residual
        kernels = ["gemm_f32_packed"] + ["gemv_f32_packed"] * (m <= 4)
        results = [every(name, fields, "c", (m, n), row_pad=5) for name in kernels]
        bound = gamma(k) * (abs(alpha) * (abs(a).astype(float) @ abs(b).astype(float)) + abs(bias))
        bound = 1.2 * bound + 5e-7 * np.maximum(1, abs(expected))
        assert (abs(results[0] - expected) <= bound).all()
        assert all(result.tobytes() == results[0].tobytes() for result in results)
        for i in range(m):  # a row alone has the bits of the row in its batch
            alone = blank((1, n))
            row = fields | {"m": 1, "a": at_page_end(a[i]), "c": alone}
            if with_residual:
                row["residual"] = at_page_end(residual[i])
            run("gemv_f32_packed", ISAS[-1], 1, row)
            assert alone.tobytes() == results[0][i].tobytes()


def test_gemm_in_place_of_its_residual():
    a, b, residual = random(30, 70), random(70, 45, seed=1), random(30, 45, seed=2)
    fields = {"a": a, "b": packed(b), "m": 30, "n": 45, "k": 70, "a_stride": 70, "c_stride": 45, "alpha": 1.0}
    expected = every("gemm_f32_packed", fields | {"residual": residual, "residual_stride": 45}, "c", (30, 45))
    for isa, parts in ways():
        c = residual.copy()
        run("gemm_f32_packed", isa, parts, fields | {"residual": c, "residual_stride": 45, "c": c})
        assert c.tobytes() == expected.tobytes()


GATED = [  # m, n, k; activation, alpha, with bias
    ((1, 16, 40), "silu", 1.0, False), ((1, 4864, 8), "silu", 1.0, True), ((3, 48, 300), "gelu_erf", 1.0, True),
    ((4, 160, 256), "gelu_tanh", 0.5, False), ((5, 16, 1), "relu", 1.0, True), ((12, 32, 64), "sigmoid", 2.0, True),
    ((17, 112, 257), "tanh", 1.0, False), ((25, 80, 3), "clip", 0.25, True), ((128, 64, 530), "leaky_relu", 1.0, True),
    ((6, 48, 0), "hard_sigmoid", 1.0, True), ((0, 16, 4), "silu", 1.0, False),
    ((13, 96, 1024), "hard_swish", 1.0, True), ((2, 32, 20), "none", 1.0, False),
]  # fmt: skip


@pytest.mark.parametrize("shape, activation, alpha, with_bias", GATED, ids=str)
@pytest.mark.parametrize("gate", [1, 2])
def test_gemm_gated(shape, activation, alpha, with_bias, gate):
    """Against float64, and to the bit what two products and their product give."""
    m, n, k = shape
    a, b, bias = random(m, k), random(k, 2 * n, seed=1), random(2 * n, seed=2)
    code, function = ACTIVATIONS[activation]
    fields = {"m": m, "n": n, "k": k, "alpha": alpha, "a": at_page_end(a, row_pad=1), "a_stride": k + 1} | ATTRIBUTES
    gated = fields | {"b": at_page_end(gate_packed(b)), "activation": code, "gate": gate, "c_stride": n + 5}
    if with_bias:
        gated["bias"] = at_page_end(bias)
    result = every("gemm_f32_gated", gated, "c", (m, n), row_pad=5)
    halves = [slice(0, n), slice(n, 2 * n)][:: 1 if gate == 1 else -1]
    exact = alpha * (a.astype(float) @ b.astype(float)) + (bias if with_bias else 0)
    error = gamma(k) * (abs(alpha) * (abs(a).astype(float) @ abs(b).astype(float)) + abs(bias)) + 5e-7
    left, right = function(exact[:, halves[0]]), exact[:, halves[1]]
    bound = 1.2 * error[:, halves[0]] * abs(right) + error[:, halves[1]] * (abs(left) + 1) + 1e-6 * abs(left * right)
    assert (abs(result - left * right) <= bound).all()
    factors = []
    for half, activated in zip(halves, (code, 0), strict=True):
        alone = np.empty((m, n), np.float32)
        product = fields | {"b": packed(b[:, half]), "activation": activated, "c": alone, "c_stride": n}
        run("gemm_f32_packed", ISAS[-1], 1, product | ({"bias": bias[half].copy()} if with_bias else {}))
        factors.append(alone)
    assert result.tobytes() == (factors[0] * factors[1]).tobytes()


@pytest.mark.parametrize("n, k", [(1, 1), (31, 9), (32, 8), (33, 17), (100, 40), (64, 0), (0, 5)])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_pack(n, k, layout):
    b = random(k, n)
    if layout == "columns":
        placed = at_page_end(np.ascontiguousarray(b.T), 3).T
    elif layout == "rows":
        placed = at_page_end(b, 2)
    else:
        placed = at_page_end(np.repeat(b, 2, axis=1))[:, ::2]
    expected = packed(b, 0.3)
    k_stride, n_stride = element_strides(placed)
    fields = {"src": placed, "n": n, "k": k, "k_stride": k_stride, "n_stride": n_stride, "scale": 0.3}
    assert every("pack_f32", fields, "dst", expected.shape).tobytes() == expected.tobytes()


MATMULS = [  # batch shapes of a, b and c; m, n, k; transpose of a b; activation
    ((), (), (), (5, 7, 3), False, "none"),
    ((3,), (3,), (3,), (4, 33, 20), False, "none"),
    ((2, 3), (2, 3), (2, 3), (1, 40, 300), True, "none"),
    ((2, 3), (3,), (2, 3), (33, 64, 16), False, "relu"),
    ((1, 3), (2, 1), (2, 3), (40, 32, 17), True, "none"),
    ((2,), (2,), (2,), (9, 32, 0), False, "none"),
    ((0,), (0,), (0,), (9, 32, 4), False, "none"),
    ((2,), (2,), (2,), (3, 0, 4), True, "silu"),
    ((2,), (), (2,), (30, 1100, 520), True, "silu"),  # more panels than go together, the last of them apart
    ((), (), (), (49, 112, 700), False, "relu"),
    ((), (), (), (1030, 33, 3), False, "none"),  # whose rows are cut first
]


@pytest.mark.parametrize("a_batch, b_batch, batch, sizes, transposed, activation", MATMULS)
def test_matmul(a_batch, b_batch, batch, sizes, transposed, activation):
    m, n, k = sizes
    a = at_page_end(random(*a_batch, m, k), 3)
    b = at_page_end(random(*b_batch, *((n, k) if transposed else (k, n)), seed=1), 2)
    b = b.swapaxes(-1, -2) if transposed else b
    residual, bias = at_page_end(random(*batch, m, n, seed=2), 1), at_page_end(random(n, seed=3))
    wide_a, wide_b = np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n))
    code, function = ACTIVATIONS[activation]
    fields = {"a": a, "b": b, "bias": bias, "residual": residual, "m": m, "n": n, "k": k, "alpha": 0.5}
    fields |= {"batch_rank": len(batch), "batch_shape": batch, "activation": code, "a_stride": element_strides(a)[-2]}
    fields |= {"a_batch_strides": element_strides(wide_a)[:-2], "b_batch_strides": element_strides(wide_b)[:-2]}
    fields |= {
        "residual_batch_strides": element_strides(residual)[:-2],
        "residual_stride": element_strides(residual)[-2],
    }
    fields |= {"b_k_stride": element_strides(b)[-2], "b_n_stride": element_strides(b)[-1], "c_stride": n + 4}
    c_batch_strides = element_strides(blank((*batch, m, n), 4))[:-2]
    fields["c_batch_strides"] = c_batch_strides
    scratch = abi.scratch_floats("matmul_f32", {"k": max(k, 1), "n": n})
    result = every("matmul_f32", fields, "c", (*batch, m, n), row_pad=4, scratch=scratch)
    expected = function(0.5 * (wide_a.astype(float) @ wide_b.astype(float)) + bias) + residual
    bound = gamma(k) * (abs(wide_a).astype(float) @ abs(wide_b).astype(float) + abs(bias)) + 5e-7 * (1 + abs(expected))
    assert (abs(result - expected) <= 1.2 * bound).all()


def attention_expected(q, k, v, mask, scale, causal_offset):
    """softmax(scale q k^T + mask) v in float64, zeros where all is masked; and an error bound for float32."""
    q, k, v = (x.astype(float) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    score = scale * (q @ k.swapaxes(-1, -2))
    size = abs(scale) * (abs(q) @ abs(k).swapaxes(-1, -2)).max(-1, initial=0, keepdims=True)
    if mask is not None and mask.dtype == bool:
        score = np.where(mask, score, -np.inf)
    elif mask is not None:
        score = score + mask
        size = size + abs(np.where(np.isfinite(mask), mask, 0)).max()
    if causal_offset is not None:
        rows, columns = np.indices(score.shape[-2:])
        score = np.where(columns - rows <= causal_offset, score, -np.inf)
    largest = score.max(-1, initial=-np.inf, keepdims=True)
    weight = np.exp(score - np.where(np.isfinite(largest), largest, 0))
    total = weight.sum(-1, keepdims=True)
    out = (weight / np.where(total == 0, 1, total)) @ v
    bound = 2 * (gamma(q.shape[-1]) * size + gamma(k.shape[-2]) + 4e-7) * abs(v).max(initial=0)
    return out, bound


ATTENTIONS = [  # batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim, mask, causal_offset
    (1, 1, 1, 1, 1, 1, 1, None, None),
    (2, 4, 2, 16, 16, 16, 16, None, 0),
    (1, 2, 2, 50, 37, 20, 33, "float", None),
    (2, 2, 1, 5, 70, 64, 64, "bool", None),
    (1, 3, 3, 60, 60, 8, 40, None, 0),
    (1, 2, 2, 30, 600, 32, 32, "bool", 570),
    (1, 1, 1, 110, 520, 16, 8, "float", 410),
    (1, 2, 1, 130, 300, 12, 16, None, -20),
    (2, 2, 2, 3, 5, 4, 4, "none_kept", None),
    (1, 2, 2, 7, 0, 8, 8, None, None),
    (1, 2, 2, 0, 7, 8, 8, None, None),
    (1, 1, 1, 2, 5000, 4, 4, None, None),
    (2, 8, 2, 1, 70, 16, 40, None, 69),  # the heads of a group together
    (1, 12, 2, 3, 1100, 40, 64, "float", 1097),
    (1, 10, 2, 5, 600, 20, 48, "bool", None),
    (1, 14, 1, 2, 33, 8, 16, "none_kept", 31),
    (1, 6, 3, 13, 140, 8, 32, None, 3),
    (1, 2, 1, 500, 1300, 16, 20, None, 800),  # several groups of blocks
    (1, 1, 1, 60, 9000, 8, 8, None, 8940),
    (1, 3, 3, 70, 64, 32, 32, None, -40),  # rows that see nothing
    (1, 2, 1, 70, 64, 8, 8, None, 2**63 - 1),
    (1, 2, 1, 70, 64, 8, 8, None, -(2**63)),
]


def attention_mask(kind, batch, q_len, kv_len):
    if kind is None:
        return None
    chance = np.random.default_rng(4).random((batch, 1, q_len, kv_len))
    if kind == "bool":
        return chance < 0.7
    if kind == "none_kept":
        return np.broadcast_to(np.arange(q_len)[:, None] != 1, chance.shape).copy()
    return np.where(chance < 0.2, -np.inf, chance).astype(np.float32)


def attention_fields(q, k, v, mask, causal_offset):
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _), v_dim = q.shape, k.shape, v.shape[-1]
    fields = {"q": q, "k": k, "v": v, "scale": 0.3, "batch": batch, "heads": heads, "kv_heads": kv_heads}
    fields |= {"q_len": q_len, "kv_len": kv_len, "head_dim": head_dim, "v_dim": v_dim}
    fields |= {
        "q_strides": element_strides(q)[:3],
        "k_strides": element_strides(k)[:3],
        "v_strides": element_strides(v)[:3],
    }
    fields |= {"causal": int(causal_offset is not None), "causal_offset": causal_offset or 0, "safe": 1}
    if mask is not None:
        wide = np.broadcast_to(mask, (batch, heads, q_len, kv_len))
        fields |= {"mask": mask, "mask_strides": element_strides(wide), "mask_kind": 1 if mask.dtype == bool else 2}
    return fields


@pytest.mark.parametrize("name", ["attention_f32", "attention_f32_online"])
@pytest.mark.parametrize("case", ATTENTIONS, ids=str)
def test_attention(name, case):
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim, kind, causal_offset = case
    q = at_page_end(random(batch, q_len, heads, head_dim), 2).swapaxes(1, 2)
    k = at_page_end(random(batch, kv_heads, kv_len, head_dim, seed=1), 3)
    v = at_page_end(random(batch, kv_len, kv_heads, v_dim, seed=2), 1).swapaxes(1, 2)
    mask = attention_mask(kind, batch, q_len, kv_len)
    mask = None if mask is None else at_page_end(mask)
    fields = attention_fields(q, k, v, mask, causal_offset)
    shape = (batch, heads, q_len, v_dim)
    fields["out_strides"] = element_strides(blank(shape, 6))[:3]
    scratch = abi.scratch_floats(name, fields)
    result = every(name, fields, "out", shape, row_pad=6, scratch=scratch)
    expected, bound = attention_expected(q, k, v, mask, 0.3, causal_offset)
    assert (abs(result - expected) <= bound).all()
    one = fields | {"batch": 1, "q": q[-1], "k": k[-1], "v": v[-1]}  # the last of the batch alone
    if mask is not None:
        one["mask"] = mask[-1]
    assert every(name, one, "out", shape[1:], row_pad=6, scratch=scratch).tobytes() == result[-1].tobytes()


@pytest.mark.parametrize(
    "name, isas",
    [("attention_bf16", DOT_ISAS), ("attention_bf16_online", DOT_ISAS), ("attention_bf16_tiles", SPLIT_ISAS)],
)
@pytest.mark.parametrize("case", ATTENTIONS, ids=str)
def test_attention_of_pairs(name, isas, case):
    """Near float64 on the rounded numbers, but for weights of 8 bits; one definition on every instruction set."""
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim, kind, causal_offset = case
    head_dim += head_dim % 2
    q, k, v = (
        random(batch, *shape, seed=seed).astype(bfloat16)
        for seed, shape in enumerate(
            [(q_len, heads, head_dim), (kv_heads, kv_len, head_dim), (kv_len, kv_heads, v_dim)]
        )
    )
    placed = at_page_end(q, 2).swapaxes(1, 2), at_page_end(k, 4), at_page_end(v, 1).swapaxes(1, 2)
    mask = attention_mask(kind, batch, q_len, kv_len)
    mask = None if mask is None else at_page_end(mask)
    fields = attention_fields(*placed, mask, causal_offset)
    shape = (batch, heads, q_len, v_dim)
    fields["out_strides"] = element_strides(blank(shape, 6))[:3]
    scratch = abi.scratch_floats(name, fields)
    result = every(name, fields, "out", shape, row_pad=6, scratch=scratch, isas=isas)
    wide = q.swapaxes(1, 2), k, v.swapaxes(1, 2)
    expected, bound = attention_expected(*(x.astype(float) for x in wide), mask, 0.3, causal_offset)
    assert (abs(result - expected) <= 2.4 * bound + 2**-8 * abs(wide[2].astype(float)).max(initial=0)).all()


CONVS = [  # batch, channels, height, width, out_channels, groups, kernel, stride, pad, dilation
    (1, 1, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 3, 9, 11, 20, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 3, 17, 15, 8, 1, (7, 7), (2, 2), (3, 3), (1, 1)),
    (1, 8, 7, 7, 12, 4, (3, 2), (2, 1), (1, 0), (1, 2)),
    (1, 6, 8, 40, 6, 6, (3, 3), (1, 1), (2, 2), (2, 2)),
    (2, 40, 5, 5, 33, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 2, 1, 50, 3, 1, (1, 5), (1, 3), (0, 4), (1, 1)),
    (0, 2, 4, 4, 3, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
]


def conv_expected(x, weight, groups, stride, pad, dilation):
    """The convolution in float64, tap by tap."""
    batch, _, height, width = x.shape
    out_channels, _, kernel_h, kernel_w = weight.shape
    x = np.pad(x.astype(float), ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    out_height = (height + 2 * pad[0] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_width = (width + 2 * pad[1] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    x = x.reshape(batch, groups, weight.shape[1], *x.shape[2:])
    w = weight.astype(float).reshape(groups, out_channels // groups, *weight.shape[1:])
    out = np.zeros((batch, groups, out_channels // groups, out_height, out_width))
    for i, j in np.ndindex(kernel_h, kernel_w):
        rows = slice(i * dilation[0], i * dilation[0] + (out_height - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (out_width - 1) * stride[1] + 1, stride[1])
        out += np.einsum("bgchw,goc->bgohw", x[..., rows, columns], w[..., i, j])
    return out.reshape(batch, out_channels, out_height, out_width)


@pytest.mark.parametrize("case", CONVS, ids=str)
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
def test_conv2d(case, activation):
    batch, channels, height, width, out_channels, groups, kernel, stride, pad, dilation = case
    x = random(batch, channels, height, width)
    weight, bias = random(out_channels, channels // groups, *kernel, seed=1), random(out_channels, seed=2)
    linear = conv_expected(x, weight, groups, stride, pad, dilation)
    residual = random(*linear.shape, seed=3)
    code, function = ACTIVATIONS[activation]
    fields = {"x": at_page_end(x), "weight": at_page_end(weight), "groups": groups, "activation": code}
    expected = linear
    if activation != "none":
        fields |= {"bias": at_page_end(bias), "residual": at_page_end(residual)}
        expected = function(linear + bias[:, None, None]) + residual
    fields |= {"batch": batch, "channels": channels, "height": height, "width": width, "out_channels": out_channels}
    fields |= {"out_height": linear.shape[2], "out_width": linear.shape[3]}
    for name, pair in {"kernel": kernel, "stride": stride, "dilation": dilation}.items():
        fields |= {f"{name}_h": pair[0], f"{name}_w": pair[1]}
    fields |= {"pad_top": pad[0], "pad_left": pad[1]}
    k = channels // groups * kernel[0] * kernel[1]
    result = every("conv2d_f32", fields, "out", linear.shape, scratch=k * PANEL)
    size = conv_expected(abs(x), abs(weight), groups, stride, pad, dilation)
    bound = 1.2 * gamma(k) * (size + abs(bias).max()) + 5e-7 * (1 + abs(expected))
    assert (abs(result - expected) <= bound).all()


def test_nan_and_infinity_reach_the_output():
    a = np.array([[1, np.nan, 0], [np.inf, 1, 1], [1, 2, 3], [0, 0, 0], [-np.inf, 1, 1]], np.float32)
    b = np.ones((3, 2), np.float32)
    fields = {"a": a, "b": packed(b), "m": 5, "n": 2, "k": 3, "a_stride": 3, "c_stride": 2, "alpha": 1.0}
    result = every("gemm_f32_packed", fields | {"activation": 1}, "c", (5, 2))
    np.testing.assert_array_equal(result[:, 0], [np.nan, np.inf, 6, 0, 0])

"""Kernels that trainers run, on every instruction set and in every number of parts: bits, and float64."""

import numpy as np
import pytest

from ingot.ops.conv_gradient import conv_filter_gradient
from ingot.support import abi
from kernel_calls import at_page_end, bits, element_strides, every, run, ways
from products import ACTIVATIONS, gamma, random

pytestmark = pytest.mark.native

BLOCK = 256
SIZES = [(1, 1, 1), (5, 33, 20), (13, 16, 256), (64, 40, 257), (40, 96, 700), (12, 31, 0), (0, 5, 3), (3, 7, 2000)]


def transposed(m, n, k, batch=(), **more):
    """The fields of matmul_tn_f32, and its operands as numpy has them."""
    a, b = at_page_end(random(*batch, k, m), 3), at_page_end(random(*batch, k, n, seed=1), 2)
    fields = {"a": a, "b": b, "m": m, "n": n, "k": k, "alpha": 1.0, "a_stride": element_strides(a)[-2]}
    fields |= {"b_k_stride": element_strides(b)[-2], "b_n_stride": 1, "batch_rank": len(batch), "batch_shape": batch}
    fields |= {"a_batch_strides": element_strides(a)[:-2], "b_batch_strides": element_strides(b)[:-2]}
    return fields | more, a, b


def scratch(m, n, k):
    return abi.scratch_floats("matmul_tn_f32", {"m": m, "n": n, "k": k})


@pytest.mark.parametrize("m, n, k", SIZES)
def test_matmul_tn_has_the_bits_of_a_product_of_a_copy(m, n, k):
    fields, a, b = transposed(m, n, k, c_stride=n + 3)
    result = every("matmul_tn_f32", fields, "c", (m, n), row_pad=3, scratch=scratch(m, n, k))
    copied = fields | {"a": at_page_end(np.ascontiguousarray(a.T)), "a_stride": k}
    other = every(
        "matmul_f32", copied, "c", (m, n), row_pad=3, scratch=abi.scratch_floats("matmul_f32", {"k": max(k, 1), "n": n})
    )
    assert other.tobytes() == result.tobytes()
    bound = gamma(k) * (abs(a.T).astype(float) @ abs(b).astype(float)) + 1e-9
    assert (abs(result - a.T.astype(float) @ b.astype(float)) <= 1.2 * bound).all()


@pytest.mark.parametrize("activation, alpha", [("none", 1.0), ("relu", 1.0), ("silu", 0.5)])
def test_matmul_tn_of_a_batch_has_every_epilogue(activation, alpha):
    batch, (m, n, k) = (2, 3), (20, 52, 300)
    code, function = ACTIVATIONS[activation]
    residual, bias = at_page_end(random(*batch, m, n, seed=2), 1), at_page_end(random(n, seed=3))
    fields, a, b = transposed(m, n, k, batch, activation=code, bias=bias, residual=residual, c_stride=n)
    fields |= {"residual_batch_strides": element_strides(residual)[:-2], "c_batch_strides": (3 * m * n, m * n)}
    fields |= {"alpha": alpha, "residual_stride": element_strides(residual)[-2]}
    result = every("matmul_tn_f32", fields, "c", (*batch, m, n), scratch=scratch(m, n, k))
    a_t = a.swapaxes(-1, -2).astype(float)
    expected = function(alpha * (a_t @ b.astype(float)) + bias) + residual
    bound = gamma(k) * (abs(a_t) @ abs(b).astype(float) + abs(bias)) + 5e-7 * (1 + abs(expected))
    assert (abs(result - expected) <= 1.2 * bound).all()


@pytest.mark.parametrize("m, n", [(29, 64), (7, 45), (16, 16)])
def test_batches_of_whole_blocks_that_continue_each_other_have_the_bits_of_one(m, n):
    k = 3 * BLOCK
    fields, a, b = transposed(m, n, k, c_stride=n)
    whole = every("matmul_tn_f32", fields, "c", (m, n), scratch=scratch(m, n, k))
    for isa, parts in ways():
        c = at_page_end(np.zeros((m, n), np.float32))
        for begin, end in ((0, BLOCK), (BLOCK, k)):
            one = fields | {"a": a[begin:end], "b": b[begin:end], "k": end - begin, "c": c}
            one |= {"residual": c, "residual_stride": n, "continues": 1}
            held = np.full(parts * scratch(m, n, k), np.nan, np.float32)
            run("matmul_tn_f32", isa, parts, one | {"scratch": held, "scratch_stride": scratch(m, n, k)})
        np.testing.assert_array_equal(bits(c), bits(whole))


@pytest.mark.parametrize("centred", [True, False])
def test_gradients_of_norms_have_the_same_bits_however_rows_are_shared(centred):
    """Sums over rows are of blocks, in order: a batch of whole blocks gives its blocks' shares."""
    rows, cols = 2 * BLOCK + 40, 37
    vectors = 2 if centred else 1
    kernel = "layer_norm_gradient_f32" if centred else "rms_norm_gradient_f32"
    x, d, weight = random(rows, cols), random(rows, cols, seed=1), random(cols, seed=2)

    def gradients(isa, parts, count):
        made = [np.full(shape, np.nan, np.float32) for shape in ((count, cols), (cols,), (cols,), (3, vectors, cols))]
        dx, dweight, dbias, partial = made
        fields = {"x": x, "weight": weight, "d": d, "dx": dx, "dweight": dweight, "partial": partial, "eps": 1e-5}
        fields |= {"rows": count, "cols": cols, "x_stride": cols, "d_stride": cols, "dx_stride": cols, "dbias": dbias}
        run(kernel, isa, parts, fields, iterations=2)
        return made

    first = gradients("scalar", 1, rows)
    for isa, parts in ways():
        for one, other in zip(gradients(isa, parts, rows), first, strict=True):
            np.testing.assert_array_equal(bits(one), bits(other))
    shares = gradients("scalar", 1, 2 * BLOCK)[3]
    assert shares[:2].tobytes() == first[3][:2].tobytes()
    total = (first[3][0] + first[3][1]) + first[3][2]
    assert total[0].tobytes() == first[1].tobytes()


# batch, channels, height, width, output channels, pad: half a tile is left over, blocks of channels and of tiles.
FILTERS = [(1, 16, 6, 5, 17, (1, 1)), (2, 67, 9, 8, 131, (1, 0)), (3, 20, 33, 19, 18, (0, 2)), (0, 16, 4, 4, 9, (1, 1))]
GATHERED, TRANSFORMED = "conv2d_filter_gradient_f32", "conv2d_filter_gradient_f32_winograd"


@pytest.mark.parametrize("kernel, slack", [(GATHERED, 1.2), (TRANSFORMED, 2)])
@pytest.mark.parametrize("case", FILTERS, ids=str)
def test_gradients_of_filters(case, kernel, slack):
    batch, channels, height, width, out_channels, (top, left) = case
    made = height + 2 * top - 2, width + 2 * left - 2
    x, d = random(batch, height, width, channels), random(batch, *made, out_channels, seed=1)
    image, rows = at_page_end(x, 5), at_page_end(d.reshape(-1, out_channels), 3)
    fields = {"x": image, "x_strides": element_strides(image)[:3], "d": rows, "d_stride": out_channels + 3}
    fields |= {"batch": batch, "channels": channels, "height": height, "width": width, "out_channels": out_channels}
    fields |= {"out_height": made[0], "out_width": made[1], "kernel_h": 3, "kernel_w": 3, "stride_h": 1, "stride_w": 1}
    fields |= {"pad_top": top, "pad_left": left, "dilation_h": 1, "dilation_w": 1}
    floats = abi.scratch_floats(kernel, fields)
    result = every(kernel, fields, "out", (out_channels, channels, 3, 3), scratch=floats)
    window = {"strides": (1, 1), "pads": (top, left, top, left), "dilations": (1, 1), "groups": 1, "kernel": (3, 3)}
    images = [array.transpose(0, 3, 1, 2).astype(float) for array in (x, d)]
    exact, sizes = conv_filter_gradient(*images, **window), conv_filter_gradient(*map(abs, images), **window)
    assert (abs(result - exact) <= slack * gamma(batch * made[0] * made[1]) * sizes + 1e-9).all()

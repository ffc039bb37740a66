"""What torch makes of quantised numbers: an oracle of the ops that quantise."""

import numpy as np
import torch


def spread_scales(values, x, axis, block):
    if values is None or values.dim() == 0:
        return values
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return values.reshape(-1, *[1] * (x.dim() - axis - 1))


def torch_quantize(x, scale, zero_point=None, *, axis, block, dtype, precision, saturate=True):
    scale, zero = spread_scales(scale, x, axis, block), spread_scales(zero_point, x, axis, block)
    limits = np.iinfo(dtype.numpy)
    return torch.clamp(torch.round(x.double() / scale) + (0 if zero is None else zero), limits.min, limits.max)


def torch_dequantize(x, scale, zero_point=None, *, axis, block, dtype):
    scale, zero = spread_scales(scale, x, axis, block), spread_scales(zero_point, x, axis, block)
    return (x.double() - (0 if zero is None else zero.double())) * scale


def torch_unpack(x, *, axis, dtype):
    bits, stored = dtype.bits, 8 * x.element_size()
    wide = x.long() % 2**stored
    fields = torch.stack([wide // 2 ** (place * bits) % 2**bits for place in range(stored // bits)], axis + 1)
    largest = dtype.limits[1]
    return torch.where(fields > largest, fields - 2**bits, fields).flatten(axis, axis + 1)


ORACLE = {"quantize": torch_quantize, "dequantize": torch_dequantize, "unpack": torch_unpack}
# Samples of types that torch does not have.
REFUSED = {
    ("quantize", "x[4,5] s>0.5<1[4]"),
    ("quantize", "x[4,5] s>0.5<1[]"),
    ("dequantize", "x:u4[4,5] s>0.5<1[4] z:u4[4]"),
    ("dequantize", "x:f8e5m2[4,5] s>0.5<1[]"),
}

"""What torch makes of quantized numbers: an oracle of the ops that quantize."""

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


def torch_unpack_bits(x, *, bits):
    stored = (x.long().unsqueeze(-1) >> torch.arange(8)) % 2
    return (stored.reshape(*x.shape[:-1], x.shape[-1] * 8 // bits, bits) << torch.arange(bits)).sum(-1).to(torch.uint8)


def torch_dynamic_quantize(x):
    """Codes, scale and zero point of floats of 32 bits."""
    given, x = x.dtype, x.float()
    reached = torch.cat([x.flatten(), torch.zeros(1)])
    step = (reached.max() - reached.min()) / 255
    scale = step if step > 0 else torch.tensor(1.0)
    zero = torch.round(-reached.min() / scale)
    codes = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return codes.to(torch.uint8), scale.to(given), zero.to(torch.uint8)


def centred(x, zero, behind=0):
    """Numbers less their zero points, of which one may count for each index of an axis with others behind it."""
    if zero is None:
        return x.double()
    return x.double() - (zero.double().reshape(-1, *[1] * behind) if zero.numel() > 1 else zero.double().reshape(()))


def torch_matmul_integer(x, weight, bias=None, x_zero=None, weight_zero=None, *, transpose_b=False):
    weight = centred(weight, weight_zero, int(transpose_b))
    sums = centred(x, x_zero) @ (weight.mT if transpose_b else weight)
    return (sums if bias is None else sums + bias).int()


def torch_conv_integer(x, weight, bias=None, x_zero=None, weight_zero=None, *, strides, pads, dilations, groups):
    rank = x.dim() - 2
    sides = [pads[i + at] for i in reversed(range(rank)) for at in (0, rank)]
    image, filters = torch.nn.functional.pad(centred(x, x_zero), sides), centred(weight, weight_zero, rank + 1)
    run = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    added = None if bias is None else bias.double()
    return torch.round(run(image, filters, added, strides, 0, dilations, groups)).int()


ORACLE = {
    "quantize": torch_quantize,
    "dequantize": torch_dequantize,
    "dynamic_quantize": torch_dynamic_quantize,
    "unpack": torch_unpack,
    "unpack_bits": torch_unpack_bits,
    "matmul_integer": torch_matmul_integer,
    "conv_integer": torch_conv_integer,
}
# Samples of types that torch does not have.
REFUSED = {
    ("quantize", "x[4,5] s>0.5<1[4]"),
    ("quantize", "x[4,5] s>0.5<1[]"),
    ("dequantize", "x:u4[4,5] s>0.5<1[4] z:u4[4]"),
    ("dequantize", "x:f8e5m2[4,5] s>0.5<1[]"),
}

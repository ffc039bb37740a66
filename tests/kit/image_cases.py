"""Ops over images against torch, and operands that they refuse."""

import torch
from torch.nn import functional as F


def _spread(values, rank):
    """Padding (before..., after...) as torch's (last before, last after, ...)."""
    return [values[i] for axis in reversed(range(rank)) for i in (axis, rank + axis)]


def conv_transpose(x, w, b=None, *, strides, pads, dilations, groups, output_padding):
    """torch takes no output padding beyond a stride and no uneven pads: zeros after the elements, and a cut."""
    rank = x.dim() - 2
    function = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[rank]
    y = function(x, w, None, strides, 0, 0, groups, dilations)
    y = F.pad(y, _spread([*[0] * rank, *output_padding], rank))
    y = F.pad(y, _spread([-n for n in pads], rank))
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def grid_sample(x, grid, *, mode, padding, align_corners):
    modes = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    return F.grid_sample(x, grid, modes[mode], padding, align_corners)


def resample(x, indices, weights, *, axis):
    read = x.index_select(axis, indices.flatten()).reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return (read * weights.reshape(*weights.shape, *[1] * (x.dim() - axis - 1))).sum(axis + 1)


def deform_conv(x, w, offset, b=None, mask=None, *, strides, pads, dilations, groups, offset_groups):
    """Every tap apart: what it reads of each group, by `grid_sample` over elements and the zeros around them."""
    (n, _, height, width), (rows, columns) = x.shape, offset.shape[2:]
    taps = w.shape[2] * w.shape[3]
    moved = offset.view(n, offset_groups, taps, 2, rows, columns)
    weigh = (
        torch.ones(n, offset_groups, taps, rows, columns)
        if mask is None
        else mask.view(n, offset_groups, taps, rows, columns)
    )
    y = torch.zeros(n, w.shape[0], rows, columns, dtype=x.dtype)
    for tap in range(taps):
        i, j = divmod(tap, w.shape[3])
        read = []
        for group, part in enumerate(x.chunk(offset_groups, 1)):
            down = torch.arange(rows)[:, None] * strides[0] - pads[0] + i * dilations[0] + moved[:, group, tap, 0]
            right = torch.arange(columns) * strides[1] - pads[1] + j * dilations[1] + moved[:, group, tap, 1]
            grid = torch.stack([right / (width - 1), down / (height - 1)], -1) * 2 - 1
            read.append(F.grid_sample(part, grid, align_corners=True) * weigh[:, group, tap][:, None])
        y = y + F.conv2d(torch.cat(read, 1), w[:, :, i : i + 1, j : j + 1], groups=groups)
    return y if b is None else y + b.view(-1, 1, 1)


ORACLE = {
    "conv_transpose": conv_transpose,
    "deform_conv": deform_conv,
    "grid_sample": grid_sample,
    "resample": resample,
}
REFUSED = [
    ("conv_transpose", "x[1,3,4] w[2,3,3]", {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 1,
     "output_padding": (0,)}, r"dims differ, got 3 and 2"),
    ("conv_transpose", "x[1,2,2] w[2,3,3]", {"strides": (1,), "pads": (3, 2), "dilations": (1,), "groups": 1,
     "output_padding": (0,)}, r"nothing is left"),
    ("resample", "x[2,4] i:i64[3,2] w[3,3]", {"axis": 1}, r"bad table"),
    ("grid_sample", "x[1,2,4,4] g[1,3,3,3]", {"mode": "linear", "padding": "zeros", "align_corners": False},
     r"bad grid, got f32\[1, 3, 3, 3\]"),
    ("deform_conv", "x[1,1,0,5] w[1,1,2,2] o[1,8,3,8]", {"strides": (1, 1), "pads": (2, 2, 2, 2), "dilations": (1, 1),
     "groups": 1, "offset_groups": 1}, r"an empty image, got f32\[1, 1, 0, 5\]"),
]  # fmt: skip

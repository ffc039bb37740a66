"""Rules for GridSample, and for AffineGrid, which computes sampling grids."""

from __future__ import annotations

from ingot.ir.dtype import DType, f32, f64
from ingot.load.eager import Value
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import Size, count, is_negative
from ingot.ops.define import Builder, unify


@onnx("GridSample")
def grid_sample(call: Call) -> str:
    """Points are computed in their own dtype, elements in theirs, and the interpolation in the wider of the two."""
    modes = {"linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic", "nearest": "nearest"}
    mode = call.word("mode", "linear" if call.opset >= 20 else "bilinear", tuple(modes))
    padding = call.word("padding_mode", "zeros", ("zeros", "border", "reflection"))
    call.expect_sizes(1, -1)
    dtype, grid = call.type(0).dtype, call.type(1).dtype
    wide = f64 if f64 in (dtype, grid) or dtype.kind != "f" else f32
    y = call.build.grid_sample(
        call.cast(call[0], wide), call.cast(call[1], wide), mode=modes[mode], padding=padding,
        align_corners=bool(call.attr_int("align_corners", 0)),
    )  # fmt: skip
    return call.cast(y, dtype)


@onnx("AffineGrid", since=20)
def affine_grid(call: Call) -> str:
    """Apply theta [N, d, d + 1] to the centers of a grid of elements: [N, sizes..., d], from -1 to 1.

    With align_corners, -1 and 1 are the centers of the outer elements, and a dim of one element is at -1.
    """
    build, dtype, (batch, rank, columns) = call.build, call.type(0).dtype, call.shape(0)
    call.expect_sizes(0)
    sizes = call.dims(1)
    if rank not in (2, 3) or columns != rank + 1 or len(sizes) != rank + 2 or any(is_negative(n) for n in sizes):
        raise call.malformed(f"operand {call.type(0)}, sizes {list(sizes)}, expected [N, d, d + 1] and d + 2 sizes")
    unify("AffineGrid: samples", batch, sizes[0])
    spatial = sizes[2:]
    wide = f64 if dtype is f64 else f32
    builder = call.builder_for(*spatial)
    lines = [_centers(call, builder, size, wide) for size in spatial]
    shapes = [(*[1] * i, size, *[1] * (rank - 1 - i)) for i, size in enumerate(spatial)]
    grid = [
        builder.reshape(builder.expand(builder.reshape(line, shape=shape), shape=spatial), shape=(1, count(spatial)))
        for line, shape in zip(lines, shapes, strict=True)
    ]
    ones = builder.expand(builder.scalar(1, wide), shape=(1, count(spatial)))
    table = build.table(builder.concat(*reversed(grid), ones, axis=0))
    moved = build.matmul(call.cast(call[0], wide), table)
    return call.cast(call.reshape(build.permute(moved, axes=(0, 2, 1)), (batch, *spatial, rank)), dtype)


def _centers(call: Call, builder: Builder, size: Size, dtype: DType) -> Value:
    positions = builder.iota(length=size, start=0, step=1, dtype=dtype)
    if call.attr_int("align_corners", 0):
        return builder.sub(
            builder.mul(positions, builder.div(2.0, builder.maximum(builder.scalar(size - 1, dtype), 1.0))), 1.0
        )
    step = builder.div(2.0, builder.scalar(size, dtype))
    return builder.add(builder.mul(positions, step), builder.sub(builder.div(step, 2.0), 1.0))

"""Rules for GridSample, and for AffineGrid and CropAndResize, which compute sampling grids."""

from __future__ import annotations

from ingot.ir.dtype import DType, f32, f64, i64
from ingot.load.eager import Value
from ingot.load.onnx.call import Call
from ingot.load.onnx.index import checked
from ingot.load.onnx.registry import MICROSOFT, onnx
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


@onnx("CropAndResize", domain=MICROSOFT)
def crop_and_resize(call: Call) -> str:
    """Sample regions [y1, x1, y2, x2] of images, from 0 to 1 between the centers of the outer elements.

    The last point of a region is computed from its end. A point outside of the image is `extrapolation_value`.
    """
    build, dtype = call.build, call.type(0).dtype
    is_nearest = call.word("mode", "bilinear", ("bilinear", "nearest")) == "nearest"
    sizes, regions, image = call.dims(3, least=1), call.shape(1)[0], call.shape(0)
    if len(sizes) != 2 or len(image) != 4:
        raise call.malformed(f"sizes {list(sizes)} for {call.type(0)}, expected a height and a width, and rank 4")
    wide = f64 if dtype is f64 else f32
    grid: list[str] = []
    inside: list[str] = []
    for axis, size in enumerate(sizes):
        length = build.scalar(image[axis + 2] - 1, wide)
        shape = (regions, size, 1) if axis == 0 else (regions, 1, size)
        line = call.reshape(_region_points(call, axis, size, length, wide), shape)
        inside.append(build.logical_and(build.less_equal(0.0, line), build.less_equal(line, length)))
        line = build.floor(build.add(line, 0.5)) if is_nearest else line
        line = build.sub(build.div(build.mul(line, 2.0), build.maximum(length, 1.0)), 1.0)
        grid.insert(0, call.reshape(build.expand(line, shape=(regions, *sizes)), (regions, *sizes, 1)))
    images = build.gather(call[0], checked(call, call[2], image[0], "batch_indices"), axis=0)
    sampled = build.grid_sample(
        call.cast(images, wide), build.concat(*grid, axis=3), mode="nearest" if is_nearest else "linear",
        padding="border", align_corners=True,
    )  # fmt: skip
    is_inside = call.reshape(build.logical_and(*inside), (regions, 1, *sizes))
    return call.cast(build.where(is_inside, sampled, call.attr_float("extrapolation_value", 0.0)), dtype)


def _region_points(call: Call, axis: int, size: Size, length: str, dtype: DType) -> str:
    """Return the positions [regions, size] of the points along an axis, in elements; one point is in the middle."""
    build, rois = call.build, call.cast(call[1], dtype)
    first, last = (build.mul(call.slice(rois, 1, i, i + 1), length) for i in (axis, axis + 2))
    is_single = build.equal(build.scalar(size, i64), 1)
    middle = build.mul(build.add(first, last), 0.5)
    first, last = (build.where(is_single, middle, end) for end in (first, last))
    steps = build.maximum(build.scalar(size - 1, dtype), 1.0)
    index = build.iota(length=size, start=0, step=1, dtype=dtype)
    points = build.add(first, build.mul(index, build.div(build.sub(last, first), steps)))
    return build.where(build.equal(index, build.scalar(size - 1, dtype)), last, points)


def _centers(call: Call, builder: Builder, size: Size, dtype: DType) -> Value:
    positions = builder.iota(length=size, start=0, step=1, dtype=dtype)
    if call.attr_int("align_corners", 0):
        return builder.sub(
            builder.mul(positions, builder.div(2.0, builder.maximum(builder.scalar(size - 1, dtype), 1.0))), 1.0
        )
    step = builder.div(2.0, builder.scalar(size, dtype))
    return builder.add(builder.mul(positions, step), builder.sub(builder.div(step, 2.0), 1.0))

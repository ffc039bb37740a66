"""Matrix products."""

import numpy as np

from ingot.dtype import f32
from ingot.errors import ShapeError
from ingot.ir import TensorType
from ingot.ops.define import broadcast_shapes, expect_kind, op, sample, unify


def _infer_matmul(a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool, scale: float) -> TensorType:
    if a.rank < 2 or b.rank < 2 or a.dtype is not b.dtype:
        raise ShapeError(f"matmul: bad operands, got {a} and {b}, expected one dtype and rank 2 or more")
    expect_kind("matmul", a, "fiu")
    if scale != 1.0:
        expect_kind("matmul with scale", a, "f")
    m, k = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
    n, other = (b.shape[-2], b.shape[-1]) if transpose_b else (b.shape[-1], b.shape[-2])
    flags = f"transpose_a={transpose_a}, transpose_b={transpose_b}"
    unify(f"matmul of {a} and {b}, {flags}", k, other)
    return TensorType(a.dtype, (*broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2]), m, n))


@op(
    infer=_infer_matmul,
    tolerance={f32: 1e-5},
    domain=(-1.0, 1.0),
    samples=[
        sample("a[5,7] b[7,3]"),
        sample("a[1,300] b[300,17]"),
        sample("a[13,37] b[41,37]", transpose_b=True),
        sample("a[37,13] b[37,33]", transpose_a=True),
        sample("a[9,6] b[5,9]", transpose_a=True, transpose_b=True, scale=0.25),
        sample("a[2,3,5,8] b[2,3,7,8]", transpose_b=True, scale=0.125),
        sample("a[2,3,5,8] b[8,4]"),
        sample("a[2,1,5,8] b[3,8,4]"),
        sample("a[2,2,1,3,4] b[2,2,1,4,1]"),
        sample("a[4,1] b[1,4]"),
        sample("a[3,0] b[0,4]"),
        sample("a[0,3] b[3,4]"),
        sample("a:i64[3,4] b:i64[4,2]"),
    ],
)
def matmul(a, b, *, transpose_a=False, transpose_b=False, scale=1.0):
    """scale * a @ b on the last two dims, each transposed first where asked; the rest broadcasts; k = 0 gives 0."""
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    result = np.matmul(a, b)
    return result if scale == 1.0 else result * scale

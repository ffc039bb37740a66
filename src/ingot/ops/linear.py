"""Matrix products."""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import broadcast_shapes, expect_kind, op, sample, unify


def _infer_matmul(a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool, scale: float) -> TensorType:
    if a.rank < 2 or b.rank < 2 or a.dtype is not b.dtype:
        raise ShapeError(f"matmul: bad operands, got {a} and {b}, expected one dtype and rank 2 or more")
    expect_kind("matmul", a, "fiu")
    if scale != 1.0:
        expect_kind("matmul with scale", a, "f")
    m, k = (a.shape[-1], a.shape[-2]) if transpose_a else (a.shape[-2], a.shape[-1])
    n, other = (b.shape[-2], b.shape[-1]) if transpose_b else (b.shape[-1], b.shape[-2])
    where = "matmul of {} and {}, transpose_a={}, transpose_b={}"
    unify(where, k, other, a, b, transpose_a, transpose_b)
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
def matmul(a, b, *, transpose_a: bool = False, transpose_b: bool = False, scale: float = 1.0):
    """scale * a @ b on the last two dims, each transposed first if requested; the other dims broadcast; k = 0
    gives 0.
    """
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    result = np.matmul(a, b)
    return result if scale == 1.0 else result * scale


def _infer_det(x: TensorType) -> TensorType:
    expect_kind("det", x, "f")
    if x.rank < 2:
        raise ShapeError(f"det: rank too low, got {x}, expected 2 or more")
    unify(f"det of {x}", x.shape[-2], x.shape[-1])
    return TensorType(x.dtype, x.shape[:-2])


@op(
    infer=_infer_det,
    samples=[
        sample("x[3,3]"), sample("x[2,5,4,4]"), sample("x[2,1,1]"), sample("x[0,2,2]"), sample("x[2,0,0]")
    ],
)  # fmt: skip
def det(x):
    """The determinants of the square matrices in the last two dims, in float64 and rounded once; 1 for an empty
    matrix.
    """
    return np.linalg.det(x.astype(np.float64)).astype(x.dtype)


def _infer_expert_matmul(x: TensorType, chosen: TensorType, experts: TensorType) -> TensorType:
    if x.rank != 3 or experts.rank != 3 or chosen.rank != 2 or x.dtype is not experts.dtype or chosen.dtype is not i64:
        got = f"{x}, {chosen} and {experts}"
        raise ShapeError(f"expert_matmul: bad operands, got {got}, expected rank 3, i64 of rank 2 and rank 3")
    expect_kind("expert_matmul", x, "f")
    where = f"expert_matmul of {x}, {chosen} and {experts}"
    rows, slots = unify(where, x.shape[0], chosen.shape[0]), chosen.shape[1]
    unify(where, x.shape[2], experts.shape[2])
    if x.shape[1] != 1:
        unify(where, x.shape[1], slots)
    return TensorType(x.dtype, (rows, slots, experts.shape[1]))


@op(
    infer=_infer_expert_matmul,
    addresses={"chosen": Index(lambda x, chosen, experts: range(len(experts)))},
    tolerance={f32: 1e-5},
    domain=(-1.0, 1.0),
    samples=[
        sample("x[5,1,7] c:i64<4[5,2] w[4,33,7]"),
        sample("x[5,2,7] c:i64<4[5,2] w[4,3,7]"),
        sample("x[1,1,300] c:i64<3[1,3] w[3,64,300]"),
        sample("x[61,1,9] c:i64<2[61,1] w[2,40,9]"),
        sample("x[1,1,1] c:i64<1[1,1] w[1,1,1]"),
        sample("x[0,1,4] c:i64<3[0,2] w[3,5,4]"),
    ],
)
def expert_matmul(x, chosen, experts):
    """Each row times the matrices selected for it: out[r, s] = experts[chosen[r, s]] @ x[r, s].

    x [rows, slots, in], or [rows, 1, in] shared by all slots; chosen i64 [rows, slots] of 0..count-1, any other is an
    error; experts [count, out, in]; the result is [rows, slots, out].
    """
    out = np.empty((*chosen.shape, experts.shape[1]), x.dtype)
    x = np.broadcast_to(x, (*chosen.shape, x.shape[2]))
    for expert, matrix in enumerate(experts):
        out[chosen == expert] = x[chosen == expert] @ matrix.T
    return out

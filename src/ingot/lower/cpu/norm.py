"""Kernel rules of norms, softmax and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable

from ingot.ir.dtype import DType, f32, f64, i64, u64
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import both, kernel_rule, last_axis, of, operand_type
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.selection import Selection
from ingot.lower.view import View, channels_last, collapse
from ingot.support.abi import constant, kernels

_BLOCK_ROWS = constant("INGOT_K_BLOCK")  # rows whose contributions to a vector's gradient are summed together
_SIDE_BY_SIDE = 16  # rows whose elements fill a vector


def _rows_result(lowering: Lowering, value: str) -> View:
    rows = lowering.result(value).rows()
    assert rows is not None
    return rows


def _has_vectors(selection: Selection, node: Node) -> str:
    return "a weight or a bias for each column" if any(node.operands[1:]) else ""


def _few_side_by_side(selection: Selection, node: Node) -> str:
    """Refuse adjacent rows that are too few to fill vectors."""
    dims = operand_type(selection, node).dims
    rank_and_rows = len(dims) == 3 and dims[1] >= _SIDE_BY_SIDE
    return "" if rank_and_rows else f"rows of {list(dims)}, expected {_SIDE_BY_SIDE} or more of each item"


def _not_adjacent(lowering: Lowering, node: Node) -> str:
    view = lowering.lowered.views.get(str(node.operands[0]))
    return "" if view is not None and view.strides[1] == 1 else "rows are not adjacent"


@kernel_rule(
    "layer_norm", "layer_norm_f32_columns", both(of(f32), _has_vectors, _few_side_by_side), misplaced=_not_adjacent
)
def _norm_columns(lowering: Lowering, node: Node) -> None:
    """Normalise interleaved rows, such as the channels of an image, each row separately."""
    x = lowering.view(node.operands[0])
    out = lowering.accepted_result(node.output, lambda view: view.strides[1] == 1, channels_last(3))
    fields: dict[str, Field] = {"x": pointer(x), "out": pointer(out), "eps": node.eps}
    fields |= dict(zip(("outer", "rows", "cols"), x.shape, strict=True))
    fields |= {f"{name}_strides": (view.strides[0], view.strides[2]) for name, view in (("x", x), ("out", out))}
    inplace = (0,) if x.strides == out.strides else ()
    work = x.size * NS.reduced
    lowering.step("layer_norm_f32_columns", "norm_columns_args", fields, [x], [out], work=work, inplace=inplace)


def _norm(op: str) -> None:
    @kernel_rule(op, f"{op}_f32", of(f32))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.rows(node.operands[0])
        out = _rows_result(lowering, node.output)
        reads = [x]
        fields: dict[str, Field] = {"x": pointer(x), "rows": x.shape[0], "cols": x.shape[1], "eps": node.eps}
        fields |= {"out": pointer(out), "x_stride": x.strides[0], "out_stride": out.strides[0]}
        for name, operand in zip(("weight", "bias"), node.operands[1:], strict=False):
            if operand is not None:
                view = lowering.contiguous(operand)
                reads.append(view)
                fields[name] = pointer(view)
        inplace = (0,) if x.strides == out.strides else ()
        lowering.step(f"{op}_f32", "norm_args", fields, reads, [out], work=x.size * NS.reduced, inplace=inplace)


_norm("layer_norm")
_norm("rms_norm")


def _norm_gradient(op: str) -> None:
    @kernel_rule(op, f"{op}_f32", of(f32, f32, f32))
    def lower(lowering: Lowering, node: Node) -> None:
        x, d = (lowering.rows(node.operands[i]) for i in (0, 2))
        weight = lowering.contiguous(node.operands[1])
        vectors = [lowering.result(value) for value in node.outputs[1:]]
        dx = _rows_result(lowering, node.outputs[0])
        blocks = -(-int(x.shape[0]) // _BLOCK_ROWS)
        partial = lowering.temporary(f"{node.outputs[1]}.partial", f32, (blocks, len(vectors), x.shape[1]))
        fields: dict[str, Field] = {"rows": x.shape[0], "cols": x.shape[1], "eps": node.eps, "weight": pointer(weight)}
        for name, view in (("x", x), ("d", d), ("dx", dx)):
            fields |= {name: pointer(view), f"{name}_stride": view.strides[0]}
        for name, view in zip(("dweight", "dbias"), vectors, strict=False):
            fields[name] = pointer(view)
        fields["partial"] = pointer(partial)
        inplace = tuple(i for i, view in ((0, x), (2, d)) if view.strides == dx.strides)
        writes, work = [dx, *vectors, partial], x.size * 3 * NS.reduced
        lowering.step(
            f"{op}_f32", "norm_gradient_args", fields, [x, weight, d], writes, work=work, inplace=inplace, iterations=2
        )


_norm_gradient("layer_norm_gradient")
_norm_gradient("rms_norm_gradient")


def _softmax(op: str) -> None:
    @kernel_rule(op, f"{op}_f32", both(of(f32), last_axis))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.rows(node.operands[0])
        out = _rows_result(lowering, node.output)
        fields: dict[str, Field] = {"x": pointer(x), "out": pointer(out), "rows": x.shape[0], "cols": x.shape[1]}
        fields |= {"x_stride": x.strides[0], "out_stride": out.strides[0]}
        inplace = (0,) if x.strides == out.strides else ()
        lowering.step(f"{op}_f32", "softmax_args", fields, [x], [out], work=x.size * 2 * NS.reduced, inplace=inplace)


_softmax("softmax")
_softmax("log_softmax")


def _cross_entropy(lowering: Lowering, node: Node, out: View) -> None:
    """Compute the losses of rows of logits, or, given the gradients of losses, the gradient of the logits."""
    x, labels, *d = (lowering.rows(node.operands[0]), *map(lowering.contiguous, node.operands[1:]))
    fields: dict[str, Field] = {
        "x": pointer(x), "labels": pointer(labels), "out": pointer(out), "fault": Pointer(FAULT),
        "rows": x.shape[0], "cols": x.shape[1], "x_stride": x.strides[0], "out_stride": out.strides[0],
        "ignored": node.ignored, "smoothing": node.smoothing,
    }  # fmt: skip
    if d:
        fields["d"] = pointer(d[0])
    inplace = (0,) if d and x.strides == out.strides else ()
    work, reads = x.size * 2 * NS.reduced, [x, labels, *d]
    lowering.step(f"{node.op.name}_f32", "cross_entropy_args", fields, reads, [out], work=work, inplace=inplace)


@kernel_rule("cross_entropy", "cross_entropy_f32", of(f32))
def _losses(lowering: Lowering, node: Node) -> None:
    out = lowering.result(node.output).reshape((math.prod(lowering.graph.type(node.output).dims),))
    assert out is not None
    _cross_entropy(lowering, node, out)


@kernel_rule("cross_entropy_gradient", "cross_entropy_gradient_f32", of(f32))
def _logits(lowering: Lowering, node: Node) -> None:
    _cross_entropy(lowering, node, _rows_result(lowering, node.output))


def averages_images(node: Node) -> bool:
    """Return whether a node computes the mean of each channel of images [N, C, H, W]."""
    return node.op.name == "reduce_mean" and node.axes == (2, 3)


def _reduce(op: str, kernel: str, dtype: DType, axes_of: Callable[[Node], tuple[int, ...]]) -> None:
    @kernel_rule(op, kernel, of(dtype))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.view(node.operands[0])
        axes = axes_of(node)
        if averages_images(node) and node.operands[0] in lowering.row_means:
            x, axes = lowering.row_means[str(node.operands[0])], (1,)
        out = lowering.result(node.output)
        outer = x.permute([a for a in range(len(x.shape)) if a not in axes])
        reduced = x.permute(list(axes))
        outer_shape, (outer_strides,) = collapse([outer])
        reduced_shape, (reduced_strides,) = collapse([reduced])
        fields: dict[str, Field] = {
            "x": pointer(x), "out": pointer(out),
            "outer_rank": len(outer_shape), "outer_shape": outer_shape, "outer_strides": outer_strides,
            "reduced_rank": len(reduced_shape), "reduced_shape": reduced_shape, "reduced_strides": reduced_strides,
        }  # fmt: skip
        lowering.step(kernel, "reduce_args", fields, [x], [out], work=x.size * NS.reduced)


_REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")
for _dtype in (f32, f64, i64, u64):
    for _op in _REDUCTIONS:
        if (_kernel := f"{_op}_{_dtype}") in kernels():
            _reduce(_op, _kernel, _dtype, lambda node: node.axes)
    for _op in ("argmax", "argmin"):
        _reduce(_op, f"{_op}_{_dtype}", _dtype, lambda node: (node.axis,))
for _op in ("reduce_sum", "reduce_prod"):
    _reduce(_op, f"{_op}_i64", u64, lambda node: node.axes)  # sums wrap in the same way


def _running(op: str, kernel: str, dtype: DType) -> None:
    @kernel_rule(op, kernel, of(dtype))
    def lower(lowering: Lowering, node: Node) -> None:
        x, out = lowering.contiguous(node.operands[0]), lowering.result(node.output)
        fields: dict[str, Field] = {
            "x": pointer(x), "out": pointer(out), "outer": math.prod(x.shape[: node.axis]),
            "count": x.shape[node.axis], "inner": math.prod(x.shape[node.axis + 1 :]),
        }  # fmt: skip
        lowering.step(kernel, "running_args", fields, [x], [out], work=x.size * NS.reduced, inplace=(0,))


for _op in ("cumsum", "cumprod"):
    for _dtype in (f32, f64, i64):
        _running(_op, f"{_op}_{_dtype}", _dtype)
    _running(_op, f"{_op}_i64", u64)


def _det(kernel: str, dtype: DType) -> None:
    @kernel_rule("det", kernel, of(dtype))
    def lower(lowering: Lowering, node: Node) -> None:
        x, out = lowering.contiguous(node.operands[0]), lowering.result(node.output)
        n = x.shape[-1]
        fields: dict[str, Field] = {"x": pointer(x), "out": pointer(out), "count": math.prod(x.shape[:-2]), "n": n}
        lowering.step(kernel, "det_args", fields, [x], [out], work=x.size * int(n) * NS.reduced)


for _dtype in (f32, f64):
    _det(f"det_{_dtype}", _dtype)

"""Rows of matmul and convolution: the packed kernels, with their epilogues and scratch."""

from __future__ import annotations

import math

from ingot.dtype import f32
from ingot.ir import Node
from ingot.lower.build import Builder, broadcast_view, pointer
from ingot.lower.cpu.rows import both, of, row
from ingot.lower.epilogue import Group
from ingot.lower.lowered import Field
from ingot.lower.view import View
from ingot.lower.weights import PANEL

# Nanoseconds per multiply-add on one thread in a packed kernel, and per weight byte when weights are streamed.
_FMA, _BYTE = 0.018, 0.02
_GEMV_ROWS = 4


def _static_matrix(builder: Builder, node: Node) -> str:
    root = builder.group(node).root
    if root.operands[1] not in builder.static:
        return "the right operand is not constant"
    if builder.graph.type(str(root.operands[1])).rank != 2:
        return "the right operand is not a matrix"
    return "the left operand is transposed" if root.transpose_a else ""


def _few_rows(builder: Builder, node: Node) -> str:
    rows = builder.graph.type(builder.group(node).root.output)
    count = math.prod(rows.dims[:-1])
    return "" if count <= _GEMV_ROWS else f"{count} rows, expected at most {_GEMV_ROWS}"


@row("matmul", "gemv_f32_packed", both(of(f32, f32), _static_matrix, _few_rows))
def _gemv(builder: Builder, node: Node) -> None:
    _emit_packed(builder, builder.group(node), "gemv_f32_packed")


@row("matmul", "gemm_f32_packed", both(of(f32, f32), _static_matrix))
def _gemm(builder: Builder, node: Node) -> None:
    _emit_packed(builder, builder.group(node), "gemm_f32_packed")


def _emit_packed(builder: Builder, group: Group, kernel: str) -> None:
    root = group.root
    a = builder.rows(root.operands[0])
    b = builder.weight(str(root.operands[1]), "panels", root.transpose_b)
    k, n = reversed(b.shape) if root.transpose_b else b.shape
    reads = [a, b]
    fields: dict[str, Field] = {"m": a.shape[0], "n": n, "k": k, "alpha": root.scale}
    fields |= epilogue_fields(builder, group, group.bias, reads)
    if group.residual is not None:
        residual = builder.rows(group.residual)
        reads.append(residual)
        fields |= {"residual": pointer(residual), "residual_stride": residual.strides[0]}
    out = builder.result(group.output)
    c = out.rows()
    assert c is not None
    fields |= {"a": pointer(a), "a_stride": a.strides[0], "b": pointer(b), "c": pointer(c), "c_stride": c.strides[0]}
    work = max(a.shape[0] * n * k * _FMA, n * k * 4 * _BYTE)
    # The residual of an element is read before that element is written, so the sum may take its place.
    inplace = (len(reads) - 1,) if group.residual is not None and reads[-1].strides == c.strides else ()
    builder.step(kernel, "gemm_args", fields, reads, [c], work=work, inplace=inplace)


def epilogue_fields(builder: Builder, group: Group, bias: str | None, reads: list[View]) -> dict[str, Field]:
    """The fields of bias and activation; a bias is added to the reads."""
    fields: dict[str, Field] = {
        "activation": group.activation, "act_alpha": group.act_alpha, "act_beta": group.act_beta,
        "residual_first": int(group.residual_first),
    }  # fmt: skip
    if bias is not None:
        view = builder.contiguous(bias)
        reads.append(view)
        fields["bias"] = pointer(view)
    return fields


@row("matmul", "matmul_f32", of(f32, f32), strided=True)
def _matmul(builder: Builder, node: Node) -> None:
    group = builder.group(node)
    root = group.root
    a, b = builder.view(root.operands[0]), builder.view(root.operands[1])
    a = _swap(a) if root.transpose_a else a
    b = _swap(b) if root.transpose_b else b
    if a.shape[-1] != 1 and a.strides[-1] != 1:
        a = builder.copy(a)
    out = builder.result(group.output, strided=True)
    if out.shape[-1] != 1 and out.strides[-1] != 1:
        target, out = out, builder.temporary(node, out)
    else:
        target = out
    batch = out.shape[:-2]
    (m, k), n = a.shape[-2:], b.shape[-1]
    a = broadcast_view(a, (*batch, m, k))
    b = broadcast_view(b, (*batch, k, n))
    reads = [a, b]
    fields: dict[str, Field] = {"m": m, "n": n, "k": k, "alpha": root.scale}
    fields |= epilogue_fields(builder, group, group.bias, reads)
    if group.residual is not None:
        residual = builder.adjacent(group.residual)
        reads.append(residual)
        fields |= {"residual": pointer(residual), "residual_stride": residual.strides[-2]}
        fields |= {"residual_batch_strides": residual.strides[:-2]}
    fields |= {"a": pointer(a), "b": pointer(b), "c": pointer(out), "batch_rank": len(batch), "batch_shape": batch}
    fields |= {
        "a_batch_strides": a.strides[:-2],
        "b_batch_strides": b.strides[:-2],
        "c_batch_strides": out.strides[:-2],
    }
    fields |= {"a_stride": a.strides[-2], "b_k_stride": b.strides[-2], "b_n_stride": b.strides[-1]}
    fields |= {"c_stride": out.strides[-2]}
    work = out.size * k * _FMA
    builder.step("matmul_f32", "matmul_args", fields, reads, [out], work=work, scratch_floats=k * PANEL)
    if target is not out:
        builder.emit_copy(out, target)


def _swap(view: View) -> View:
    rank = len(view.shape)
    return view.permute((*range(rank - 2), rank - 1, rank - 2))


def _two_dimensional(builder: Builder, node: Node) -> str:
    rank = builder.graph.type(str(builder.group(node).root.operands[0])).rank
    return "" if rank == 4 else f"rank is {rank}, expected 4"


@row("conv", "conv2d_f32", both(of(f32, f32), _two_dimensional))
def _conv(builder: Builder, node: Node) -> None:
    group = builder.group(node)
    root = group.root
    x, weight = builder.contiguous(root.operands[0]), builder.contiguous(root.operands[1])
    reads = [x, weight]
    fields: dict[str, Field] = {"x": pointer(x), "weight": pointer(weight)}
    fields |= epilogue_fields(builder, group, root.operands[2] if len(root.operands) > 2 else None, reads)
    if group.residual is not None:
        residual = builder.contiguous(group.residual)
        reads.append(residual)
        fields["residual"] = pointer(residual)
    out = builder.result(group.output)
    fields |= {"out": pointer(out), "groups": root.groups} | _image_fields(x, out, root)
    fields |= {"out_channels": out.shape[1], "batch": x.shape[0], "channels": x.shape[1]}
    fields |= {"kernel_h": weight.shape[2], "kernel_w": weight.shape[3]}
    k = weight.shape[1] * weight.shape[2] * weight.shape[3]
    work = out.size * k * _FMA * 1.3
    builder.step("conv2d_f32", "conv_nchw_args", fields, reads, [out], work=work, scratch_floats=k * PANEL)


def _image_fields(x: View, out: View, node: Node) -> dict[str, Field]:
    return {
        "height": x.shape[2], "width": x.shape[3], "out_height": out.shape[2], "out_width": out.shape[3],
        "stride_h": node.strides[0], "stride_w": node.strides[1], "pad_top": node.pads[0], "pad_left": node.pads[1],
        "dilation_h": node.dilations[0], "dilation_w": node.dilations[1],
    }  # fmt: skip


def _pool(op: str) -> None:
    @row(op, f"{op}_f32", both(of(f32), _image))
    def emit(builder: Builder, node: Node) -> None:
        x = builder.contiguous(node.operands[0])
        out = builder.result(node.output)
        fields = _image_fields(x, out, node) | {"x": pointer(x), "out": pointer(out)}
        fields |= {"planes": x.shape[0] * x.shape[1]}
        fields |= {"kernel_h": node.kernel[0], "kernel_w": node.kernel[1]}
        if op == "avg_pool":
            fields["count_include_pad"] = int(node.count_include_pad)
        work = out.size * node.kernel[0] * node.kernel[1] * 0.5
        builder.step(f"{op}_f32", "pool_args", fields, [x], [out], work=work)


def _image(builder: Builder, node: Node) -> str:
    rank = builder.graph.type(str(node.operands[0])).rank
    return "" if rank == 4 else f"rank is {rank}, expected 4"


_pool("max_pool")
_pool("avg_pool")

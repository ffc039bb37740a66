"""Kernel rules of gather, scatter, topk, resampling and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ingot.ir.dtype import DType, f32, f64, i32, i64, u64
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.formats import F32, FORMATS
from ingot.lower.cpu.kernel_rules import Condition, both, kernel_rule, last_axis, of, operand_type, stored
from ingot.lower.formats import Format
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.matrix import column_runs, matrix
from ingot.lower.selection import Selection
from ingot.lower.view import View, broadcast_view, image_order, ordered_strides
from ingot.support import abi

_MAX_COLS = 1 << 32
_SCRATCH_DOUBLES = 1 << 15  # doubles that a scatter holds in scratch
_SHARED_DOUBLES = 1 << 21  # the same, if lines share their indices
_LINES = 16  # at least this many lines, so that a complete cache line is used


def _rows_of_a_matrix(selection: Selection, node: Node) -> str:
    if operand_type(selection, node, 0).rank != 2:
        return f"the table has {operand_type(selection, node, 0).rank} axes, expected 2"
    return "" if node.axis == 0 else f"axis is {node.axis}, expected 0"


def _from_panels(selection: Selection, node: Node) -> str:
    return "" if selection.is_panel_table(node.operands[0]) else "the table is not packed for a matmul"


def _gather_rows(kernel: str, format: Format, layout: str, *conditions: Condition | tuple[Condition, ...]) -> None:
    """Declare a kernel that gathers rows of a constant matrix in a format and layout."""

    @kernel_rule("gather", kernel, both(of(f32), _rows_of_a_matrix, *conditions))
    def lower(lowering: Lowering, node: Node) -> None:
        operand = str(node.operands[0]), format, layout, layout == "panels"
        indices = lowering.contiguous(node.operands[1])
        out = lowering.result(node.output)
        limit, inner = lowering.graph.type(str(node.operands[0])).dims
        fields = _gather_fields(4) | {
            "indices": pointer(indices), "out": pointer(out),
            "outer": 1, "limit": limit, "inner": inner, "count": math.prod(indices.shape),
            "index_bytes": indices.dtype.itemsize,
        }  # fmt: skip
        work = out.size * 4 * NS.gathered_byte
        for table, own in _tables(lowering, *operand):
            lowering.step(kernel, "gather_args", fields | own, [table, indices], [out], work=work)


def _tables(
    lowering: Lowering, value: str, format: Format, layout: str, transposed: bool
) -> Iterator[tuple[View, dict[str, Field]]]:
    """Yield a table, or the parts of one larger than a memory region, and the fields with the rows of each part.

    The step of each part writes the rows that the part contains.
    """
    runs = column_runs(lowering, value, format, layout, True)
    if len(runs) == 1:
        is_plain = layout == "raw" and format.decoder is None
        table = lowering.contiguous(value) if is_plain else matrix(lowering, value, format, layout, transposed)
        yield table, {"table": pointer(table)}
        return
    for run in runs:
        table = matrix(lowering, value, format, layout, True, columns=run)
        yield table, {"table": pointer(table), "begin": run.start, "end": run.stop}


for _format in reversed(FORMATS):
    if _format.is_quantized:
        _gather_rows(f"gather_{_format.tables}_panels", _format, "panels", stored(0, _format))
        continue
    _gather_rows(f"gather_{_format.tables}_panels", _format, "panels", stored(0, _format), _from_panels)
    if _format.decoder:  # any table is accepted otherwise
        _gather_rows(f"gather_{_format.tables}", _format, "raw", stored(0, _format))


def _indices(dtype):  # type: ignore[no-untyped-def]
    def refuse(selection: Selection, node: Node) -> str:
        found = operand_type(selection, node, 1).dtype
        return "" if found is dtype else f"indices are {found}, expected {dtype}"

    return refuse


def _gather(dtype) -> None:  # type: ignore[no-untyped-def]
    kernel = f"gather_{dtype}"

    @kernel_rule("gather", kernel, _indices(dtype))
    def lower(lowering: Lowering, node: Node) -> None:
        value, indices = str(node.operands[0]), lowering.contiguous(node.operands[1])
        out, type = lowering.result(node.output), lowering.graph.type(value)
        outer = inner = 1
        for dim in type.dims[: node.axis]:
            outer *= dim
        for dim in type.dims[node.axis + 1 :]:
            inner *= dim
        fields = _gather_fields(out.dtype.itemsize) | {
            "indices": pointer(indices), "out": pointer(out),
            "outer": outer, "limit": type.dims[node.axis], "inner": inner, "count": math.prod(indices.shape),
        }  # fmt: skip
        work = out.size * out.dtype.itemsize * NS.gathered_byte
        if type.rank == 2 and node.axis == 0:
            tables = _tables(lowering, value, F32, "raw", False)
        else:
            table = lowering.contiguous(value)
            tables = iter([(table, {"table": pointer(table)})])
        for table, own in tables:
            lowering.step(kernel, "gather_args", fields | own, [table, indices], [out], work=work)


_gather(i64)
_gather(i32)


def _gather_fields(itemsize: int) -> dict[str, Field]:
    return {"fault": Pointer(FAULT), "item_bytes": itemsize}


@kernel_rule("gather_elements", "gather_elements_i64")
def _gather_elements(lowering: Lowering, node: Node) -> None:
    x, indices = lowering.view(node.operands[0]), lowering.contiguous(node.operands[1])
    indices = indices if indices.dtype is i64 else lowering.cast(indices, i64)
    out = lowering.result(node.output)
    fields = _gather_fields(x.dtype.itemsize) | {
        "x": pointer(x), "indices": pointer(indices), "out": pointer(out),
        "rank": len(out.shape), "axis": node.axis, "shape": out.shape, "x_strides": x.strides,
        "limit": x.shape[node.axis],
    }  # fmt: skip
    work = out.size * NS.gathered_element
    lowering.step("gather_elements_i64", "gather_elements_args", fields, [x, indices], [out], work=work)


@kernel_rule("checked_index", "checked_index")
def _checked_index(lowering: Lowering, node: Node) -> None:
    x, out = lowering.contiguous(node.operands[0]), lowering.result(node.output)
    fields: dict[str, Field] = {
        "x": pointer(x), "out": pointer(out), "fault": Pointer(FAULT), "count": math.prod(out.shape),
        "limit": node.limit, "index_bytes": x.dtype.itemsize, "wraps": int(node.wraps),
    }  # fmt: skip
    lowering.step(
        "checked_index", "checked_index_args", fields, [x], [out], work=out.size * NS.checked_index, inplace=(0,)
    )


@kernel_rule("repeated_ngrams", "repeated_ngrams")
def _repeated_ngrams(lowering: Lowering, node: Node) -> None:
    tokens = lowering.rows(node.operands[0])
    tokens = tokens if tokens.dtype is i64 else lowering.cast(tokens, i64)
    out, (rows, length) = lowering.result(node.output), tokens.shape
    fields: dict[str, Field] = {
        "tokens": pointer(tokens), "out": pointer(out), "fault": Pointer(FAULT), "rows": rows, "length": length,
        "vocab": out.shape[1], "size": node.size, "stride": tokens.strides[0],
    }  # fmt: skip
    work = tokens.size * NS.compared + out.size * NS.gathered_byte
    lowering.step("repeated_ngrams", "repeated_ngrams_args", fields, [tokens], [out], work=work)


@kernel_rule("resample", "resample_f32", of(f32))
def _resample(lowering: Lowering, node: Node) -> None:
    """Resample an image; channels-last images stay channels last."""
    x, indices, weights = lowering.view(node.operands[0]), *map(lowering.contiguous, node.operands[1:])
    order = image_order([x], len(x.shape)) or tuple(range(len(x.shape)))
    x = x if x.strides == ordered_strides(x.shape, order) else lowering.copy(x, order)
    out = lowering.accepted_result(node.output, lambda v: v.strides == ordered_strides(v.shape, order), order)
    (count, num_samples), position = indices.shape, order.index(node.axis)
    fields: dict[str, Field] = {
        "x": pointer(x), "indices": pointer(indices), "weights": pointer(weights), "out": pointer(out),
        "fault": Pointer(FAULT), "outer": math.prod(x.shape[axis] for axis in order[:position]),
        "limit": x.shape[node.axis], "inner": math.prod(x.shape[axis] for axis in order[position + 1 :]),
        "count": count, "taps": num_samples,
    }  # fmt: skip
    lowering.step(
        "resample_f32",
        "resample_args",
        fields,
        [x, indices, weights],
        [out],
        work=out.size * num_samples * NS.resampled,
    )


def _between_elements(selection: Selection, node: Node) -> str:
    if operand_type(selection, node).rank != 4:
        return f"x is {operand_type(selection, node)}, expected an image"
    if node.mode == "cubic" or node.padding == "reflection":
        return f"mode and padding are {node.mode} and {node.padding}, expected linear or nearest, zeros or border"
    return ""


@kernel_rule("grid_sample", "grid_sample_f32", both(of(f32), _between_elements))
def _grid_sample(lowering: Lowering, node: Node) -> None:
    """Sample an image; channels-last images stay channels last."""
    x, grid = lowering.view(node.operands[0]), lowering.contiguous(node.operands[1])
    order = image_order([x], 4) or (0, 1, 2, 3)
    out = lowering.accepted_result(node.output, lambda v: v.strides == ordered_strides(v.shape, order), order)
    batch, channels, height, width = x.shape
    fields: dict[str, Field] = {
        "x": pointer(x), "grid": pointer(grid), "out": pointer(out), "batch": batch, "channels": channels,
        "height": height, "width": width, "points": out.shape[2] * out.shape[3], "x_strides": x.strides,
        "out_strides": (out.strides[0], out.strides[1], out.strides[3]), "linear": int(node.mode == "linear"),
        "border": int(node.padding == "border"), "align_corners": int(node.align_corners),
    }  # fmt: skip
    lowering.step("grid_sample_f32", "grid_args", fields, [x, grid], [out], work=out.size * NS.grid_sampled)


def _scatter(kernel: str, accepts: Condition) -> None:
    """Declare a kernel that overwrites its operand x, or a copy of x in the dtype of the sums."""

    @kernel_rule("scatter_elements", kernel, accepts)
    def lower(lowering: Lowering, node: Node) -> None:
        x, indices, updates = (lowering.view(operand) for operand in node.operands)
        if _is_last_reader(lowering, node, x):
            lowering.alias(node.output, x)
        out = lowering.result(node.output, strided=True)
        # A state that is overwritten by several steps must share its memory with nothing else.
        is_own = lowering.lowered.tensors[out.tensor].kind != "update"
        destination = out if is_own else lowering.temporary(f"{node.output}.aside", out.dtype, out.shape)
        updates = lowering.contiguous(updates)
        if destination != x:
            lowering.move(x, destination)
        fields = _gather_fields(destination.dtype.itemsize) | {
            "indices": pointer(indices), "updates": pointer(updates), "out": pointer(destination),
            "rank": len(indices.shape), "axis": node.axis, "index_bytes": indices.dtype.itemsize,
            "merge": abi.constant(f"INGOT_MERGE_{node.reduction}"), "shape": indices.shape,
            "index_strides": indices.strides, "out_strides": destination.strides, "limit": destination.shape[node.axis],
        }  # fmt: skip
        fields["together"] = _together(indices, node.axis, destination.shape[node.axis], lowering.target.threads)
        reads = [indices, updates, destination]
        lowering.step(kernel, "scatter_args", fields, reads, [destination], work=indices.size * NS.scattered, keeps=1)
        if destination is not out:
            lowering.move(destination, out)


def _is_last_reader(lowering: Lowering, node: Node, x: View) -> bool:
    """Return whether only this node reads the memory of a value, so that the node may overwrite it."""
    name, graph = str(node.operands[0]), lowering.graph
    if graph.only_user(name) is not node or graph.is_output(node.output) or node.operands.count(name) > 1:
        return False
    shared = any(view.tensor == x.tensor for other, view in lowering.lowered.views.items() if other != name)
    return lowering.lowered.tensors[x.tensor].kind == "activation" and not shared


def _together(indices: View, axis: int, limit: int, threads: int) -> int:
    """Return how many adjacent lines along an axis scratch holds at once.

    That is as many as fit in a cache. If lines share their indices, it is a thread's share of the lines: the kernel
    then reads their updates one after the other.
    """
    adjacent_lines = 1 if axis == len(indices.shape) - 1 else indices.shape[-1]
    most = _SCRATCH_DOUBLES // max(limit, 1)
    if indices.strides[-1] == 0:
        most = min(-(-adjacent_lines // threads), _SHARED_DOUBLES // max(limit, 1))
    return min(adjacent_lines, max(_LINES, most))


def _merges(*dtypes: DType) -> Condition:
    def refuse(selection: Selection, node: Node) -> str:
        if node.reduction == "none":
            return "updates replace elements"
        found = operand_type(selection, node).dtype
        return "" if found in dtypes else f"elements are {found}, expected one of {', '.join(map(str, dtypes))}"

    return refuse


def _replaces(selection: Selection, node: Node) -> str:
    return "" if node.reduction == "none" else "updates are merged with elements"


_scatter("scatter_b", _replaces)
_scatter("scatter_f32", _merges(f32))
_scatter("scatter_f64", _merges(f64))
_scatter("scatter_i64", _merges(i64))
_scatter("scatter_u64", _merges(u64))


def _countable(selection: Selection, node: Node) -> str:
    """Refuse rows whose index does not fit with an f32 element into 64 bits."""
    cols = operand_type(selection, node).dims[-1]
    return "" if cols <= _MAX_COLS else f"rows of {int(cols)} elements, expected at most {_MAX_COLS}"


def _topk(kernel: str, dtype: DType) -> None:
    @kernel_rule("topk", kernel, both(of(dtype), last_axis, _countable))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.rows(node.operands[0])
        out, indices = (lowering.result(name) for name in node.outputs)
        fields: dict[str, Field] = {
            "x": pointer(x), "out": pointer(out), "indices": pointer(indices), "rows": x.shape[0], "cols": x.shape[1],
            "k": node.k, "x_stride": x.strides[0], "largest": int(node.largest),
        }  # fmt: skip
        lowering.step(kernel, "topk_args", fields, [x], [out, indices], work=x.size * NS.ranked)


for _dtype in (f32, f64, i64, u64):
    _topk(f"topk_{_dtype}", _dtype)


def _few_axes(selection: Selection, node: Node) -> str:
    rank = operand_type(selection, node).rank
    return "" if rank <= 4 else f"x has rank {rank}, expected at most 4"


@kernel_rule("rotary", "rotary_f32", both(of(f32), _few_axes))
def _rotary(lowering: Lowering, node: Node) -> None:
    x = lowering.adjacent(node.operands[0])
    out = lowering.accepted_result(node.output, lambda view: view.strides[-1] == 1)
    cos, sin = (broadcast_view(lowering.adjacent(o), x.shape) for o in node.operands[1:])
    missing = 4 - len(x.shape)
    batch, heads, rows, head_dim = (1,) * missing + x.shape
    fields: dict[str, Field] = {
        "x": pointer(x), "cos": pointer(cos), "sin": pointer(sin), "out": pointer(out),
        "batch": batch, "heads": heads, "rows": rows, "head_dim": head_dim,
    }  # fmt: skip
    for name, view in (("x", x), ("cos", cos), ("sin", sin), ("out", out)):
        fields[f"{name}_strides"] = ((0,) * missing + view.strides)[:3]
    lowering.step("rotary_f32", "rotary_args", fields, [x, cos, sin], [out], work=x.size * NS.rotated)

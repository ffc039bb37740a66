"""Kernel rules of matmul: packed kernels, with their epilogues and scratch."""

from __future__ import annotations

import math
from dataclasses import replace

from ingot.ir.dtype import DType, bf16, f32, f64, i8, i32, i64, u64
from ingot.ir.graph import Graph, Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.formats import BF16, F32, FORMATS, PANEL, pack_fields, rounded_bytes
from ingot.lower.cpu.kernel_rules import Condition, both, kernel_rule, of, stored
from ingot.lower.cpu.limits import DOT_ROWS, GEMV_ROWS, MANY_ROWS
from ingot.lower.epilogue import EpilogueLimits, Group, column_axis
from ingot.lower.formats import Dots, Format
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.matrix import column_runs, matrix
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.selection import Selection
from ingot.lower.states import replacing, undecoded
from ingot.lower.step_builder import StepBuilder
from ingot.lower.stored import groups_of, is_stored_as, stored_arrays
from ingot.lower.view import View, broadcast_view, collapse
from ingot.lower.weight_expr import WeightExpr
from ingot.support import abi

EPILOGUES = EpilogueLimits(
    activations=frozenset(kernel.op for kernel in abi.elementwise().values() if kernel.is_activation),
    gate_columns=PANEL // 2,  # a panel of a gated matmul holds this many columns of each half
    rounded=frozenset((bf16,)),
    slopes=True,
)
_ROUNDED = {i8: "i8", i32: "i24"}  # the suffix in kernel names of rows that a separate step has rounded


def _state_invariant_matrix(selection: Selection, node: Node) -> str:
    root = selection.group(node).root
    if root.operands[1] not in selection.state_invariant:
        return "the right operand is not constant"
    if selection.graph.type(str(root.operands[1])).rank != 2:
        return "the right operand is not a matrix"
    if replacing(selection.graph, str(root.operands[1])) is not None:
        return "the right operand is trained: a run would read its packed form only once"
    return "the left operand is transposed" if root.transpose_a else ""


def _read_both_ways(selection: Selection, node: Node) -> str:
    """Refuse a constant matrix that products of many rows read in both orientations, here or in another program.

    Gradients read weights transposed, for example.
    """
    root, graph = selection.group(node).root, selection.graph
    matrix = str(root.operands[1])
    if selection.group(node).gate or matrix not in selection.static or _rows_of(graph, root) < MANY_ROWS:
        return ""
    if any(_rows_of(graph, other) >= MANY_ROWS for other in _readers_transposed(graph, root)):
        return "the right operand is also read transposed: it is stored once, and packed by each product"
    if selection.target.unpacked and _stored_name(selection.weight_expr(matrix)) in selection.target.unpacked:
        return "another program stores the right operand unpacked: it is stored once, and packed by each product"
    return ""


def _stored_name(value: WeightExpr) -> str:
    """Return the name of the weight that a matrix is, ignoring casts, permutes and reshapes."""
    while value.op in ("cast", "permute", "reshape"):
        value = value.source
    return value.name


def _read_one_way(selection: Selection, node: Node) -> str:
    """Refuse a matrix that a product reads in one orientation only: separate panels are then faster."""
    root, graph = selection.group(node).root, selection.graph
    if selection.group(node).gate:
        return "the product has a gate"
    return "" if _readers_transposed(graph, root) else "the right operand is read in one orientation only"


def _readers_transposed(graph: Graph, product: Node) -> list[Node]:
    """Return the products that read the right operand of `product` in the other orientation."""
    matrix = str(product.operands[1])
    readers = (user for user in graph.users(matrix) if user.op is product.op and user.operands[1] == matrix)
    return [user for user in readers if user.transpose_b != product.transpose_b and not user.transpose_a]


def _rows_of(graph: Graph, product: Node) -> int:
    dims = graph.type(product.output).dims
    return dims[0] if product.op.name == "expert_matmul" else math.prod(dims[:-1])


def _row_count(selection: Selection, node: Node) -> int:
    return _rows_of(selection.graph, selection.group(node).root)


def _few_rows(selection: Selection, node: Node) -> str:
    count = _row_count(selection, node)
    return "" if count <= GEMV_ROWS else f"{count} rows, expected at most {GEMV_ROWS}"


def _is_gated(selection: Selection, node: Node) -> str:
    return "" if selection.group(node).gate else "the product has no gate"


def accepts_dots(format: Format, dots: Dots) -> Condition:
    """Refuse rows that must not or cannot be rounded for dot products."""

    def refuse(selection: Selection, node: Node) -> str:
        if dots.rows not in selection.target.rounded:
            return f"the target has no dot products of {dots.rows}, or they are disabled"
        if dots.few:
            return ""
        root = selection.groups[node].root if node in selection.groups else node
        x = str(root.operands[0])
        count, k = _rows_of(selection.graph, root), selection.graph.type(x).dims[-1]
        if count <= DOT_ROWS and undecoded(selection.graph, x, dots.rows) is None:
            return f"{count} rows, expected more than {DOT_ROWS}"
        block = format.packed.elements
        return f"rows have {k} elements, expected a multiple of {block}" if k % block else ""

    return refuse


def _packed(
    kernel: str, format: Format, *conditions: Condition, dots: Dots | None = None, transposed: bool = False
) -> None:
    """Declare a kernel for products with constant weights of a format.

    dots: the dtype family that the kernel rounds rows for, or None. transposed: the kernel sums over the columns of
    panels.
    """

    @kernel_rule("matmul", kernel, both(of(f32, f32), *conditions))
    def lower(lowering: Lowering, node: Node) -> None:
        _lower_packed(lowering, lowering.group(node), kernel, format, dots, transposed)


def _products(format: Format, suffix: str, *conditions: Condition, few: bool) -> None:
    """Declare a format's product kernels, the most specific first. few: one of them is for few rows."""
    if format in (F32, BF16):  # their products can pack the matrix while they read it
        conditions = (*conditions, _read_both_ways)
    conditions = both(*conditions, _state_invariant_matrix, stored(1, format))
    for dots in format.dots:
        takes = accepts_dots(format, dots)
        if few and not dots.few:
            _packed(f"gemv_{dots.family}_{suffix}", format, *conditions, takes, _few_rows, dots=dots)
        _packed(f"gemm_{dots.family}_{suffix}", format, *conditions, takes, dots=dots)
    if format.products is None:
        return
    if few and format.scales is None:  # kernels that decode quantized weights also cover few rows
        _packed(f"gemv_{format.products}_{suffix}", format, *conditions, _few_rows)
    _packed(f"gemm_{format.products}_{suffix}", format, *conditions)


for _format in reversed(FORMATS):
    _products(_format, "gated", _is_gated, few=False)
for _format in reversed(FORMATS):
    _products(_format, "packed", few=True)
    if _format.products is not None and _format.scales is not None:
        _transposed = stored(1, _format, transposed=True)
        _packed(
            f"gemm_{_format.products}_transposed",
            _format,
            _state_invariant_matrix,
            *_transposed,
            _read_one_way,
            transposed=True,
        )


def _lower_packed(
    lowering: Lowering, group: Group, kernel: str, format: Format, dots: Dots | None, transposed: bool
) -> None:
    root = group.root
    narrow = None
    if dots and dots.rows in lowering.narrow:
        narrow = undecoded(lowering.graph, root.operands[0], dots.rows)
    a = lowering.rows(narrow or root.operands[0])
    if dots and not narrow:
        a = round_rows(lowering, a, dots.rows) if dots.rows in _ROUNDED else lowering.cast(a, dots.rows)
    layout = "gate_panels" if group.gate else "panels"
    operand = str(root.operands[1]), format, layout, root.transpose_b ^ transposed
    runs = column_runs(lowering, *operand)
    residual = None if group.residual is None else lowering.rows(group.residual)
    c = None if lowering.is_only_rounded(group) else lowering.result(group.output).rows()
    rounded = None if group.rounding is None else lowering.result(group.rounding.output).rows()
    if len(runs) == 1 or (group.gate and group.bias):  # the two halves of a bias cannot be sliced at once
        b = matrix(lowering, *operand)
        packed_step(lowering, kernel, format, group, a, b, group.bias, residual, c, rounded)
        return
    for run in runs:
        b = matrix(lowering, *operand, columns=run)
        other, sums, halves = (None if view is None else _columns(view, run) for view in (residual, c, rounded))
        packed_step(lowering, kernel, format, group, a, b, group.bias, other, sums, halves, run.start)


def _columns(view: View, run: range) -> View:
    """Return a range of columns of rows."""
    return view.slice((0, run.start), (view.shape[0], run.stop), (1, 1))


def packed_step(
    lowering: Lowering,
    kernel: str,
    format: Format,
    group: Group,
    a: View,
    b: View,
    bias: str | None,
    residual: View | None,
    c: View | None,
    rounded: View | None,
    column: int = 0,
) -> None:
    """Add a product of rows a[m, k] and a packed b into rows c[m, n], with the group's epilogue.

    b of a gated product has 2n columns. rounded: the view for c as bf16; either c or rounded may be None. column: the
    first column of this step within the product.
    """
    writes = [view for view in (c, rounded) if view is not None]
    (m, k), n = a.shape, writes[0].shape[1]
    reads = [a, b]
    scale = group.root.scale if group.root.op.name == "matmul" else 1.0
    fields: dict[str, Field] = {"m": m, "n": n, "k": k, "alpha": scale, "split_sums": int(lowering.target.split_sums)}
    fields |= epilogue_fields(lowering, group, bias, reads) | {"chunks": 0}
    for name in ("bias", "slopes") if column else ():
        if isinstance(first := fields.get(name), Pointer):
            fields[name] = replace(first, byte_offset=first.byte_offset + column * f32.itemsize)
    if group.gate:
        fields["gate"] = abi.constant(f"INGOT_GATE_{group.gate.upper()}")
    if residual is not None:
        reads.append(residual)
        fields |= {"residual": pointer(residual), "residual_stride": residual.strides[0]}
    fields |= {"a": pointer(a), "a_stride": a.strides[0], "b": pointer(b)}
    for name, view in (("c", c), ("rounded", rounded)):
        if view is not None:
            fields |= {name: pointer(view), f"{name}_stride": view.strides[0]}
    columns = 2 * n if group.gate else n
    fma = NS.multiply_add if a.dtype is f32 else NS.multiply_add_dots
    work = max(m * columns * k * fma, columns * k * format.element_bytes * NS.weight_byte)
    # The kernel reads the residual of an element before it writes the element, so the result may overwrite the
    # residual.
    inplace = (len(reads) - 1,) if residual is not None and c is not None and residual.strides == c.strides else ()
    lowering.step(kernel, "gemm_args", fields, reads, writes, work=work, inplace=inplace)


def round_rows(lowering: Lowering, rows: View, dtype: DType) -> View:
    """Round rows [m, k] to int8, or to 24-bit integers if the dtype is i32, once for all readers.

    The sums and scales of each row are stored after its integers.
    """
    if rows not in lowering.rounded:
        m, k = rows.shape
        name = f"{lowering.lowered.tensors[rows.tensor].name}.{_ROUNDED[dtype]}"
        out = lowering.temporary(name, i8, (m, rounded_bytes(k, dtype)))
        fields: dict[str, Field] = {"x": pointer(rows), "out": pointer(out), "rows": m, "cols": k}
        fields |= {"x_stride": rows.strides[0], "out_stride": out.strides[0]}
        kernel = f"round_rows_{_ROUNDED[dtype]}"
        lowering.step(kernel, "round_rows_args", fields, [rows], [out], work=rows.size * NS.rounded)
        lowering.rounded[rows] = out.slice((0, 0), (m, k), (1, 1))
    return lowering.rounded[rows]


def add_pack(builder: StepBuilder, packed_weight: PackedWeight, source: View, panels: View) -> None:
    """Add a step that packs a matrix of any strides into the panels of a packed weight."""
    fields: dict[str, Field] = {"src": pointer(source), "dst": pointer(panels)}
    fields |= pack_fields(source.shape, source.strides, packed_weight.transposed)
    builder.step(packed_weight.panels.pack, "pack_args", fields, [source], [panels], work=panels.size * NS.packed)


def epilogue_fields(lowering: Lowering, group: Group, bias: str | None, reads: list[View]) -> dict[str, Field]:
    """Return the fields of bias and activation; bias and slopes are appended to the reads."""
    activation = "" if group.slopes else group.activation
    fields: dict[str, Field] = {
        "activation": abi.constant(f"INGOT_ACT_{activation or 'none'}"),
        "act_alpha": group.act_alpha, "act_beta": group.act_beta, "residual_first": int(group.residual_first),
    }  # fmt: skip
    if group.slopes is not None:
        sums, slopes = lowering.graph.type(group.root.output).dims, lowering.weight_expr(group.slopes)
        columns = sums[column_axis(group.root, len(sums))]
        slopes = slopes.derive("reshape", shape=(math.prod(slopes.dims),)).derive("expand", shape=(columns,))
        reads.append(lowering.weight(slopes))
        fields["slopes"] = pointer(reads[-1])
    if bias is not None:
        view = lowering.contiguous(bias)
        reads.append(view)
        fields["bias"] = pointer(view)
    return fields


def _left_transposed(selection: Selection, node: Node) -> str:
    return "" if selection.group(node).root.transpose_a else "the left operand is not transposed"


def _columns_not_adjacent(lowering: Lowering, node: Node) -> str:
    view = lowering.view(lowering.group(node).root.operands[0])
    return "" if view.has_adjacent_columns else "the left operand's columns are not adjacent"


def _both_rounded(selection: Selection, node: Node) -> str:
    """Refuse operands that are not both rounded for dot products of pairs."""
    root = selection.group(node).root
    if bf16 not in selection.target.rounded:
        return "the target has no dot products of bf16, or they are disabled"
    if any(undecoded(selection.graph, operand, bf16) is None for operand in root.operands):
        return "the operands are not rounded to bf16"
    if selection.graph.type(str(root.operands[1])).rank != 2:
        return "the right operand is not a matrix"
    k = selection.graph.type(str(root.operands[0])).dims[-2 if root.transpose_a else -1]
    return f"rows have {k} elements, expected an even number" if k % 2 else ""


@kernel_rule("matmul", "gemm_bf16_packed", both(of(f32, f32), _both_rounded))
def _matmul_bf16(lowering: Lowering, node: Node) -> None:
    """Lower a GEMM of two activations; a separate step packs the right operand at run time."""
    group = lowering.group(node)
    root = group.root
    a, b = (lowering.view(undecoded(lowering.graph, operand, bf16)) for operand in root.operands)
    a, b = _swap(a) if root.transpose_a else a, _swap(b) if root.transpose_b else b
    rows = a.rows() if a.has_adjacent_columns else None
    if rows is None or rows.offset % 2 or rows.strides[0] % 2:  # each row begins with a pair
        rows = lowering.copy(a).rows()
    assert rows is not None
    panels = lowering.temporary(f"{root.output}.panels", bf16, (BF16.panel_bytes(*b.shape) // bf16.itemsize,))
    fields: dict[str, Field] = {"src": pointer(b), "dst": pointer(panels)}
    fields |= pack_fields(b.shape, b.strides, False)
    lowering.step(BF16.pack, "pack_args", fields, [b], [panels], work=panels.size * NS.packed)
    residual = None if group.residual is None else lowering.rows(group.residual)
    c = lowering.result(group.output).rows()
    packed_step(lowering, "gemm_bf16_packed", BF16, group, rows, panels, group.bias, residual, c, None)


def _fixed_matrix(selection: Selection, node: Node) -> str:
    root = selection.group(node).root
    if root.transpose_a:
        return "the left operand is transposed"
    return "" if root.operands[1] in selection.static else "the right operand is not constant"


@kernel_rule("matmul", "matmul_f32_bf16", both(of(f32, f32), stored(1, BF16), _fixed_matrix))
def _matmul_f32_bf16(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    a = lowering.adjacent(group.root.operands[0])
    b = lowering.weight(stored_arrays(lowering.weight_expr(str(group.root.operands[1])), BF16)[0])
    _lower_matmul(lowering, group, "matmul_f32_bf16", a, b, {})


@kernel_rule("matmul", "matmul_tn_f32", both(of(f32, f32), _left_transposed), misplaced=_columns_not_adjacent)
def _matmul_tn(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    a = _swap(lowering.view(group.root.operands[0]))
    is_sum = group.residual is not None and group.root.scale == 1.0 and not group.bias and not group.activation
    b = lowering.view(group.root.operands[1])
    _lower_matmul(lowering, group, "matmul_tn_f32", a, b, {"continues": int(is_sum)})


@kernel_rule("matmul", "matmul_f32", of(f32, f32))
def _matmul(lowering: Lowering, node: Node) -> None:
    group = lowering.group(node)
    a = lowering.view(group.root.operands[0])
    a = _swap(a) if group.root.transpose_a else a
    if not a.has_adjacent_columns:
        a = lowering.copy(a)
    _lower_matmul(lowering, group, "matmul_f32", a, lowering.view(group.root.operands[1]), {})


def _lower_matmul(lowering: Lowering, group: Group, kernel: str, a: View, b: View, fields: dict[str, Field]) -> None:
    """Add a product of a [..., m, k] with a right operand that is packed while it is read."""
    root = group.root
    b = _swap(b) if root.transpose_b else b
    out = lowering.accepted_result(group.output, lambda view: view.has_adjacent_columns)
    residual = None if group.residual is None else lowering.adjacent(group.residual)
    if kernel != "matmul_tn_f32" and len(b.shape) == 2:
        a, out, residual = _rows_together(a, out, residual)
    batch = out.shape[:-2]
    (m, k), n = a.shape[-2:], b.shape[-1]
    a = broadcast_view(a, (*batch, m, k))
    b = broadcast_view(b, (*batch, k, n))
    reads = [a, b]
    fields |= {"m": m, "n": n, "k": k, "alpha": root.scale}
    fields |= epilogue_fields(lowering, group, group.bias, reads)
    inplace: tuple[int, ...] = ()
    if residual is not None:
        inplace = (len(reads),) if _may_be_sums(kernel, fields, k) and residual.strides == out.strides else ()
        reads.append(residual)
        fields |= {"residual": pointer(residual), "residual_stride": residual.strides[-2]}
        fields |= {"residual_batch_strides": residual.strides[:-2]}
    fields |= {"a": pointer(a), "b": pointer(b), "c": pointer(out), "batch_rank": len(batch), "batch_shape": batch}
    fields |= {
        "a_batch_strides": a.strides[:-2],
        "b_batch_strides": b.strides[:-2],
        "c_batch_strides": out.strides[:-2],
    }
    fields |= {"a_stride": a.strides[-1 if kernel == "matmul_tn_f32" else -2], "c_stride": out.strides[-2]}
    fields |= {"b_k_stride": b.strides[-2], "b_n_stride": b.strides[-1]}
    lowering.step(kernel, "matmul_args", fields, reads, [out], work=out.size * k * NS.multiply_add, inplace=inplace)
    if group.rounding is not None:
        lowering.backend.cast(lowering, out, lowering.result(group.rounding.output))


def _may_be_sums(kernel: str, fields: dict[str, Field], k: int) -> bool:
    """Return whether the result may overwrite the residual: not if partial sums are stored there before it is read."""
    if kernel == "matmul_tn_f32":
        return bool(fields["continues"])
    return kernel != "matmul_f32" or k <= abi.constant("INGOT_MATMUL_DEPTH")


def _rows_together(a: View, out: View, residual: View | None) -> tuple[View, View, View | None]:
    """Flatten the batches of a product that share one right matrix into rows of one batch, if all views allow it."""
    rows, out_rows = a.rows(), out.rows()
    flat_residual = None if residual is None else residual.rows()
    if (
        rows is None
        or out_rows is None
        or (residual is not None and flat_residual is None)
        or a.shape[:-1] != out.shape[:-1]
    ):
        return a, out, residual
    return rows, out_rows, flat_residual


def _unscaled(selection: Selection, node: Node) -> str:
    scale = selection.group(node).root.scale
    return "" if scale == 1.0 else f"scale is {scale}, expected 1"


def _product(kernel: str, dtype: DType) -> None:
    """Declare the product of a 64-bit type, which has no epilogue."""

    @kernel_rule("matmul", kernel, both(of(dtype, dtype), _unscaled))
    def lower(lowering: Lowering, node: Node) -> None:
        a, b = lowering.view(node.operands[0]), lowering.view(node.operands[1])
        a = _swap(a) if node.transpose_a else a
        b = _swap(b) if node.transpose_b else b
        out = lowering.result(node.output, strided=True)
        n = out.shape[-1]
        k = a.shape[-1]
        rows = replace(a, shape=(*a.shape[:-1], 1), strides=(*a.strides[:-1], 0)).expand(out.shape)
        columns = replace(b, shape=(*b.shape[:-2], 1, n), strides=(*b.strides[:-2], 0, b.strides[-1])).expand(out.shape)
        shape, strides = collapse([rows, columns, out])
        fields: dict[str, Field] = {
            "a": pointer(a), "b": pointer(b), "out": pointer(out), "rank": len(shape), "shape": shape,
            "a_strides": strides[0], "b_strides": strides[1], "out_strides": strides[2],
            "k": k, "a_k_stride": a.strides[-1], "b_k_stride": b.strides[-2],
        }  # fmt: skip
        lowering.step(kernel, "product_args", fields, [a, b], [out], work=out.size * k * NS.multiply_add_64)


_product("product_f64", f64)
_product("product_i64", i64)
_product("product_i64", u64)  # wraps in the same way


def _swap(view: View) -> View:
    rank = len(view.shape)
    return view.permute((*range(rank - 2), rank - 1, rank - 2))


def _static_experts(selection: Selection, node: Node) -> str:
    return "" if node.operands[2] in selection.static else "the experts are not constant"


def _experts(format: Format) -> None:
    kernel = f"expert_matmul_{format.products}_packed"

    @kernel_rule("expert_matmul", kernel, both(of(f32), _static_experts, stored(2, format)))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.adjacent(node.operands[0])
        _lower_experts(lowering, node, kernel, format, x, str(node.operands[2]))


def _experts_of_dots(format: Format, dots: Dots) -> None:
    kernel = f"expert_matmul_{dots.family}_packed"

    @kernel_rule("expert_matmul", kernel, both(of(f32), _static_experts, accepts_dots(format, dots), stored(2, format)))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.cast(lowering.adjacent(node.operands[0]), dots.rows)
        rows, slots, _ = (stride // format.packed.elements for stride in x.strides)
        _lower_experts(lowering, node, kernel, format, replace(x, strides=(rows, slots, 1)), str(node.operands[2]))


def _quantized_experts(format: Format, dots: Dots) -> None:
    kernel = f"expert_matmul_{dots.family}_packed"

    @kernel_rule("expert_matmul", kernel, both(of(f32), _static_experts, accepts_dots(format, dots), _stacked(format)))
    def lower(lowering: Lowering, node: Node) -> None:
        x = lowering.adjacent(node.operands[0])
        rounded = round_rows(lowering, lowering.rows(node.operands[0]), dots.rows)
        x = replace(rounded, shape=x.shape, strides=(x.shape[1] * rounded.strides[0], *rounded.strides))
        _lower_experts(lowering, node, kernel, format, x, _below(lowering, node).name)


def _below(selection: Selection, node: Node) -> WeightExpr:
    """Return the experts of a product stacked as [count * n, k], or as they are."""
    value = selection.weight_expr(str(node.operands[2]))
    is_stacked = value.op == "reshape" and value.source.type.rank == 2 and value.source.dims[1] == value.dims[2]
    return value.source if is_stacked else value


def _stacked(format: Format) -> Condition:
    """Refuse experts that are not quantized and stacked with each expert in separate panels."""

    def refuse(selection: Selection, node: Node) -> str:
        below = _below(selection, node)
        if below.type.rank != 2 or not is_stored_as(below, format):
            return "the experts are stored in another format"
        groups = groups_of(below, format) if format.scales else None
        if groups is not None and groups.axis != 0:
            return "the experts share scales along another axis"
        n = selection.graph.type(str(node.operands[2])).dims[1]
        return f"experts have {n} columns, expected a multiple of {format.panel}" if n % format.panel else ""

    return refuse


for _format in reversed(FORMATS):
    for _dots in _format.dots if _format.is_quantized else ():
        _quantized_experts(_format, _dots)
for _format in reversed(FORMATS):
    for _dots in () if _format.is_quantized else _format.dots:
        _experts_of_dots(_format, _dots)
    if _format.products is not None and _format.scales is None:
        _experts(_format)


def _lower_experts(lowering: Lowering, node: Node, kernel: str, format: Format, x: View, experts: str) -> None:
    """Add a product of x [rows, slots, k], possibly rounded, with experts; quantized experts are stacked."""
    chosen, matrices = lowering.contiguous(node.operands[1]), matrix(lowering, experts, format, "panels", True)
    out = lowering.result(node.output)
    (rows, slots), (count, n, k) = chosen.shape, lowering.graph.type(str(node.operands[2])).dims
    spread = broadcast_view(x, (rows, slots, k))
    fields: dict[str, Field] = {
        "x": pointer(x), "chosen": pointer(chosen), "experts": pointer(matrices), "out": pointer(out),
        "fault": Pointer(FAULT), "rows": rows, "slots": slots, "n": n, "k": k, "count": count,
        "x_strides": spread.strides[:2], "chunks": 0,
    }  # fmt: skip
    work = max(
        rows * slots * n * k * NS.multiply_add, min(rows * slots, count) * n * k * format.element_bytes * NS.weight_byte
    )
    reads = [x, chosen, matrices]
    lowering.step(kernel, "expert_args", fields, reads, [out], work=work)

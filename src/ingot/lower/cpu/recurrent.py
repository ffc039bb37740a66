"""Kernel rules of recurrent layers and linear attention: one kernel call each. A layer has an iteration per time step,
and its weights are packed unit by unit.
"""

from __future__ import annotations

from ingot.ir.dtype import bf16, f32, f64
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.formats import FORMATS, PANEL
from ingot.lower.cpu.kernel_rules import Condition, both, kernel_rule, of, stored
from ingot.lower.cpu.linear import EPILOGUES
from ingot.lower.formats import Dots, Format
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.matrix import matrix
from ingot.lower.selection import Selection
from ingot.lower.view import View
from ingot.lower.weight_expr import WeightExpr
from ingot.support import abi

_MAX_STEPS = 1 << 22  # iterations and tasks share one 32-bit counter


def _activations(selection: Selection, node: Node) -> str:
    unknown = [name for name in node.activations if name not in EPILOGUES.activations]
    return f"no kernel applies {unknown[0]}" if unknown else ""


def _countable(selection: Selection, node: Node) -> str:
    steps = selection.graph.type(str(node.operands[0])).dims[0]
    return "" if steps <= _MAX_STEPS else f"{steps} steps, expected at most {_MAX_STEPS}"


def _accepts_state(dots: Dots | None) -> Condition:
    """Refuse unless the state is rounded for these dot products, or unrounded for None."""

    def refuse(selection: Selection, node: Node) -> str:
        if dots is None:
            return "the node rounds the state" if node.rounded else ""
        if not node.rounded:
            return "the node does not round the state"
        if dots.rows not in selection.target.rounded:
            return f"the target has no dot products of {dots.rows}"
        hidden = selection.graph.type(str(node.operands[1])).dims[1]
        return f"{hidden} units, expected an even number" if hidden % 2 else ""

    return refuse


def _in_tiles(selection: Selection, node: Node) -> str:
    return "" if selection.target.split_sums else "the target has no split sums"


def _recurrent(kernel: str, format: Format, dots: Dots | None, *conditions: Condition) -> None:
    op, _, _ = kernel.partition("_")

    @kernel_rule(
        op, kernel, both(of(f32, f32), stored(1, format), _accepts_state(dots), *conditions, _activations, _countable)
    )
    def lower(lowering: Lowering, node: Node) -> None:
        _lower_recurrent(lowering, node, kernel, format)


for _op in ("lstm", "gru", "rnn"):
    for _format in reversed(FORMATS):
        if _format.products is not None and _format.scales is None:
            for _dots in _format.dots:
                _recurrent(f"{_op}_{_dots.family}_tiles", _format, _dots, _in_tiles)
                _recurrent(f"{_op}_{_dots.family}_packed", _format, _dots)
            _recurrent(f"{_op}_{_format.products}_packed", _format, None)


_REAL_ACTIVATIONS = ("sigmoid", "tanh", "relu")  # the activations of recurrent_f64.c


def _real(selection: Selection, node: Node) -> str:
    unknown = [name for name in node.activations if name not in _REAL_ACTIVATIONS]
    if unknown:
        return f"no kernel of f64 applies {unknown[0]}"
    return "the node rounds the state" if node.rounded else ""


def _recurrent_f64(op: str) -> None:
    @kernel_rule(op, f"{op}_f64", both(of(f64, f64), _real, _countable))
    def lower(lowering: Lowering, node: Node) -> None:
        _lower_recurrent(lowering, node, f"{op}_f64", None)


for _op in ("lstm", "gru", "rnn"):
    _recurrent_f64(_op)


def _by_units(r: WeightExpr) -> WeightExpr:
    """Reorder [gates * hidden, hidden] into blocks of 32 units; each block has its rows gate by gate."""
    rows, hidden = r.dims
    if not hidden:
        return r
    gates, whole = rows // hidden, hidden - hidden % PANEL
    cube = r.derive("reshape", shape=(gates, hidden, hidden))

    def units(start: int, stop: int) -> WeightExpr:
        return cube.derive("slice", starts=(0, start, 0), stops=(gates, stop, hidden), steps=(1, 1, 1))

    rest = units(whole, hidden).derive("reshape", shape=(gates * (hidden - whole), hidden))
    if not whole:
        return rest
    tiles = units(0, whole).derive("reshape", shape=(gates, whole // PANEL, PANEL, hidden))
    tiles = tiles.derive("permute", axes=(1, 0, 2, 3)).derive("reshape", shape=(gates * whole, hidden))
    return tiles if whole == hidden else tiles.derive("concat", rest, axis=0)


def _lower_recurrent(lowering: Lowering, node: Node, kernel: str, format: Format | None) -> None:
    """Add the step of a recurrent layer; the results are out, last_h and, for LSTM, last_c.

    format: None for f64, whose weights are not packed.
    """
    given = dict(zip(node.op.operand_names, node.operands, strict=False))
    gates, r = lowering.adjacent(given.pop("gates")), str(given.pop("r"))
    weights = matrix(lowering, r, format, "panels", True, _by_units) if format else lowering.contiguous(r)
    dense = {name: lowering.contiguous(value) for name, value in given.items() if value is not None}
    out = lowering.accepted_result(node.outputs[0], lambda view: view.has_adjacent_columns)
    last = {f"last_{name}": lowering.result(value) for name, value in zip("hc", node.outputs[1:], strict=False)}
    steps, batch, hidden = out.shape
    halves = node.op.name == "gru" and not node.linear_before_reset
    state = lowering.temporary(f"{node.outputs[0]}.state", gates.dtype, (4 if halves else 2, batch, hidden))
    fields: dict[str, Field] = {
        "gates": pointer(gates), "weights": pointer(weights), "out": pointer(out), "state": pointer(state),
        "steps": steps, "batch": batch, "hidden": hidden, "columns": gates.shape[2],
        "gates_strides": gates.strides[:2], "out_strides": out.strides[:2], "clip": node.clip,
        "activation": tuple(abi.constant(f"INGOT_ACT_{name}") for name in node.activations),
    }  # fmt: skip
    if format is not None:
        fields |= {"act_alpha": node.alphas, "act_beta": node.betas}
    fields |= {name: pointer(view) for name, view in (dense | last).items()}
    fields |= {name: int(node.attributes.get(name, False)) for name in ("reverse", "input_forget")}
    fields["linear_before_reset"] = int(not halves)
    reads, writes = [gates, weights, *dense.values()], [out, *last.values(), state]
    if node.rounded:
        reads.append(lowering.cast(dense["h"], bf16))
        writes.append(lowering.temporary(f"{node.outputs[0]}.rounded", bf16, (3 if halves else 2, batch, hidden)))
        fields |= {"rounded_h": pointer(reads[-1]), "rounded": pointer(writes[-1])}
    if "lengths" in dense:
        fields["fault"] = Pointer(FAULT)
    work = _nanoseconds_f64(gates, hidden) if format is None else _nanoseconds(gates, hidden, format, node.rounded)
    iterations = max(1, int(steps)) * (2 if halves else 1)
    arguments = "recurrent_args" if format else "recurrent_f64_args"
    lowering.step(kernel, arguments, fields, reads, writes, work=work, iterations=iterations)


def _nanoseconds(gates: View, hidden: int, format: Format, dots: bool) -> float:
    """Estimate the time on one thread. dots: the products are dot products of pairs."""
    steps, batch, columns = map(int, gates.shape)
    fma = NS.multiply_add_dots if dots else NS.multiply_add
    product = max(batch * columns * hidden * fma, columns * hidden * format.element_bytes * NS.weight_byte)
    return steps * (product + batch * columns * NS.activation)


def _nanoseconds_f64(gates: View, hidden: int) -> float:
    """Estimate the time on one thread in f64, where libm computes activations."""
    steps, batch, columns = map(int, gates.shape)
    return steps * batch * columns * (hidden * NS.multiply_add_recurrent_f64 + NS.activation_f64)


@kernel_rule("linear_attention", "linear_attention_f32", of(f32))
def _linear_attention(lowering: Lowering, node: Node) -> None:
    given = zip(node.op.operand_names, node.operands, strict=False)
    reads = {name: lowering.contiguous(value) for name, value in given if value is not None}
    out, last = (lowering.result(value) for value in node.outputs)
    batch, steps, heads, v_dim = out.shape
    k_dim = last.shape[2]
    fields: dict[str, Field] = {name: pointer(view) for name, view in reads.items()}
    fields |= {
        "out": pointer(out), "last": pointer(last), "batch": batch, "steps": steps, "heads": heads, "k_dim": k_dim,
        "v_dim": v_dim, "decay_dim": reads["decay"].shape[3] if "decay" in reads else 1, "scale": node.scale,
    }  # fmt: skip
    work = out.size * k_dim * NS.state
    lowering.step("linear_attention_f32", "linear_attention_args", fields, [*reads.values()], [out, last], work=work)

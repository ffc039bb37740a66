"""Kernel rules of the recurrent ops whose states have a slot for each sequence: one kernel call each."""

from __future__ import annotations

from math import prod

from ingot.ir.dtype import f32
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import kernel_rule, of, overwritten
from ingot.lower.lowered import FAULT, Field, Pointer
from ingot.lower.lowering import Lowering, pointer
from ingot.lower.view import View


def _declare(op: str, strided: tuple[str, ...], names: dict[str, str], sizes: dict[str, tuple[str, int]]) -> None:
    """Declare the kernel of an op. strided: operands with a stride of rows, as the result has then; the others
    are dense.

    names: the fields of operands that are called otherwise; sizes: the operand and the axis of each dim.
    """
    kernel = f"{op}_f32"

    @kernel_rule(op, kernel, of(f32, f32))
    def lower(lowering: Lowering, node: Node) -> None:
        before, state = overwritten(lowering, node, 0)
        given = dict(zip(node.op.operand_names[1:], node.operands[1:], strict=False))
        views: dict[str, View] = {
            name: lowering.adjacent(value) if name in strided else lowering.contiguous(value)
            for name, value in given.items()
            if value is not None
        }
        if strided:
            out = lowering.accepted_result(node.outputs[1], lambda view: view.has_adjacent_columns)
        else:
            out = lowering.result(node.outputs[1])
        all_views = views | {"state": state, "out": out}
        fields: dict[str, Field] = {names.get(name, name): pointer(view) for name, view in all_views.items()}
        fields |= {name: all_views[operand].shape[axis] for name, (operand, axis) in sizes.items()}
        for name in (*strided, "out") if strided else ():
            fields[f"{names.get(name, name)}_stride"] = all_views[name].strides[0]
        fields |= {
            "fault": Pointer(FAULT), "rows": out.shape[0], "total_slots": state.shape[0],
            "sequences": views["slots"].shape[0],
        }  # fmt: skip
        if op == "linear_attention_of_rows":
            fields |= {"scale": node.scale, "decay_dim": _decay_dim(views.get("decay"))}
        each = prod(state.shape[1:])
        work = out.shape[0] * each * (NS.scanned if op in ("selective_scan", "wkv") else NS.state)
        lowering.step(kernel, f"{op}_args", fields, [*views.values(), before], [state, out], work=work, keeps=1)


def _decay_dim(decay: View | None) -> int:
    return decay.shape[2] if decay is not None and len(decay.shape) == 3 else 1


_declare("causal_conv", ("x",), {}, {"channels": ("weight", 1), "taps": ("weight", 0)})
_declare("selective_scan", ("x", "step", "b", "c"), {"step": "steps"}, {"channels": ("decay", 1), "size": ("decay", 0)})
_declare(
    "linear_attention_of_rows", (), {},
    {"heads": ("v", 1), "v_dim": ("v", 2), "groups": ("k", 1), "k_dim": ("k", 2)},
)  # fmt: skip
_declare("linear_recurrence", ("x", "decay"), {}, {"channels": ("x", 1)})
_declare("wkv", ("k", "v"), {}, {"channels": ("k", 1)})

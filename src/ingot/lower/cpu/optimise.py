"""Kernel rules of training ops: dropout, and optimiser steps, which overwrite parameters and optimiser states."""

from __future__ import annotations

import math

from ingot.ir.dtype import f32
from ingot.ir.graph import Node
from ingot.lower.cpu.durations import NS
from ingot.lower.cpu.kernel_rules import kernel_rule, of, overwritten
from ingot.lower.lowered import Field
from ingot.lower.lowering import Lowering, pointer
from ingot.ops.dropout import threshold


def _lower_step(
    lowering: Lowering,
    node: Node,
    held: tuple[str, ...],
    given: tuple[str, ...],
    numbers: dict[str, Field],
    work: float,
) -> None:
    """Add one step of an optimiser.

    held: the fields of the overwritten operands, which come first; given: the fields of the others.
    """
    pairs = [overwritten(lowering, node, i) for i in range(len(held))]
    others = [lowering.contiguous(operand) for operand in node.operands[len(held) :]]
    before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    fields: dict[str, Field] = {
        name: pointer(view) for name, view in zip((*held, *given), (*after, *others), strict=True)
    }
    fields |= numbers | {"count": after[0].size}
    kernel, reads, work = f"{node.op.name}_f32", [*others, *before], after[0].size * work
    lowering.step(kernel, f"{node.op.name}_args", fields, reads, after, work=work, keeps=len(held))


@kernel_rule("adamw", "adamw_f32", of(f32))
def _adamw(lowering: Lowering, node: Node) -> None:
    held, given = ("parameter", "mean", "square"), ("gradient", "kept", "size", "root")
    numbers: dict[str, Field] = {
        "mean_rate": 1 - node.beta1, "square_decay": node.beta2, "square_rate": 1 - node.beta2, "eps": node.eps
    }  # fmt: skip
    _lower_step(lowering, node, held, given, numbers, NS.adamw)


@kernel_rule("sgd", "sgd_f32", of(f32))
def _sgd(lowering: Lowering, node: Node) -> None:
    numbers: dict[str, Field] = {"momentum": node.momentum, "decay": node.decay}
    _lower_step(lowering, node, ("parameter", "velocity"), ("gradient", "rate"), numbers, NS.sgd)


def drawing_fields(node: Node) -> dict[str, Field]:
    """Return the fields that select dropped elements, except the step; kept: the factor of the other elements."""
    return {
        "seed": node.seed, "stream": node.stream, "threshold": threshold(node.rate), "kept": 1 / (1 - node.rate)
    }  # fmt: skip


@kernel_rule("draw_uniform", "draw_uniform_f64")
def _draw_uniform(lowering: Lowering, node: Node) -> None:
    draws, out = lowering.contiguous(node.operands[0]), lowering.result(node.output)
    fields: dict[str, Field] = {"draws": pointer(draws), "out": pointer(out)}
    fields |= {"count": math.prod(out.shape), "stream": node.stream}
    lowering.step("draw_uniform_f64", "draw_args", fields, [draws], [out], work=out.size * NS.drawn)


@kernel_rule("dropout", "dropout_f32", of(f32))
def _dropout(lowering: Lowering, node: Node) -> None:
    if node.operands[1] is None:
        lowering.alias(node.output, lowering.view(node.operands[0]))
        return
    x, *numbers = (lowering.contiguous(operand) for operand in node.operands if operand is not None)
    out = lowering.result(node.output)
    fields: dict[str, Field] = {"x": pointer(x), "out": pointer(out), "step": pointer(numbers[0])}
    fields["count"] = math.prod(x.shape)
    fields |= {"part": pointer(numbers[1])} if len(numbers) > 1 else {}
    fields |= drawing_fields(node)
    lowering.step("dropout_f32", "dropout_args", fields, [x, *numbers], [out], work=x.size * NS.drawn, inplace=(0,))

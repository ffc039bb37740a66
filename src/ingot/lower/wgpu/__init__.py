"""The backend of WebGPU devices: the CPU's kernel rules for which WGSL kernels exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.errors import InputError
from ingot.ir.dtype import boolean, f32, i8, i32, i64, u8
from ingot.ir.graph import Node
from ingot.lower.cpu.cost import cost
from ingot.lower.cpu.elementwise import add_cast, add_copy
from ingot.lower.cpu.fused import FUSED_LIMITS, add_fused
from ingot.lower.cpu.kernel_rules import KERNEL_RULES
from ingot.lower.cpu.linear import EPILOGUES, add_pack
from ingot.lower.cpu.shape import VIEW
from ingot.lower.selection import Backend, KernelRule, Selection
from ingot.lower.step_builder import StepBuilder
from ingot.lower.target import Target
from ingot.lower.view import View
from ingot.lower.wgpu.attention import ATTENTION, attention_floats
from ingot.lower.wgpu.kernels import KERNELS, PANEL_FORMATS, scratch_floats
from ingot.lower.wgpu.wgsl import FEATURES, functions
from ingot.passes.precision import Precision
from ingot.support.config import knob

# What every device of WebGPU guarantees: the bytes of a binding, and the largest alignment of an offset into one.
REGION_BYTES, ALIGNMENT = 128 << 20, 256
PRECISIONS = ("f32", "bf16w", "int8w", "int4w")  # their rows stay f32
WEBGPU = Target("wgsl", 1, alignment=ALIGNMENT, region_bytes=REGION_BYTES, device="webgpu")


def webgpu_target(precision: Precision) -> Target:
    """Return the target of the executor webgpu.

    Raises InputError for a precision that it does not have, for regions smaller than the alignment of tensors, and as
    `wanted_features` does.
    """
    if precision.name not in PRECISIONS:
        expected = f"one of {', '.join(PRECISIONS)}"
        raise InputError(f"option precision: webgpu rounds no rows, got {precision.name!r}, expected {expected}")
    region_bytes = int(knob("INGOT_WGPU_BINDING_BYTES"))
    if region_bytes < ALIGNMENT:
        raise InputError(f"INGOT_WGPU_BINDING_BYTES: too small, got {region_bytes}, expected at least {ALIGNMENT}")
    return replace(WEBGPU, isa="+".join((WEBGPU.isa, *wanted_features())), region_bytes=region_bytes)


def wanted_features() -> tuple[str, ...]:
    """Return the features of INGOT_WGPU_FEATURES, in the order of FEATURES. Raises InputError for an unknown name."""
    wanted = {name.strip() for name in str(knob("INGOT_WGPU_FEATURES")).split(",")} - {""}
    if unknown := sorted(wanted - FEATURES.keys()):
        expected = f"some of {', '.join(FEATURES)}"
        raise InputError(f"INGOT_WGPU_FEATURES: no such feature, got {unknown[0]!r}, expected {expected}")
    return tuple(name for name in FEATURES if name in wanted)


_KERNELS = {*KERNELS, *ATTENTION, VIEW, "copy_b"}


def _four_bytes(selection: Selection, node: Node) -> str:
    sizes = {selection.graph.type(str(name)).dtype.held.itemsize for name in (node.operands[0], node.output)}
    return "" if sizes == {4} else "elements have another size in memory"


def _rules() -> Mapping[str, Sequence[KernelRule]]:
    """Return the CPU rules with a WGSL kernel, reduced to the supported dtypes for kernels that move bits."""
    found = {op: [rule for rule in rules if rule.kernel in _KERNELS] for op, rules in KERNEL_RULES.items()}
    found["bitcast"] = [replace(rule, conditions=(*rule.conditions, _four_bytes)) for rule in KERNEL_RULES["bitcast"]]
    return found


def _cast(builder: StepBuilder, source: View, target: View) -> None:
    (add_copy if source.dtype is target.dtype else add_cast)(builder, source, target)


WGPU = Backend(
    rules=_rules(),
    held={f32: f32, **dict.fromkeys((i32, i64, boolean, u8, i8), i32)},
    epilogues=replace(
        EPILOGUES,
        activations=frozenset(op for op in EPILOGUES.activations if f"{op}_f32" in functions()),
        rounded=frozenset(),
        slopes=False,
    ),
    fused_limits=replace(
        FUSED_LIMITS,
        costs={op: count for op, count in FUSED_LIMITS.costs.items() if f"{op}_f32" in KERNELS},
        recomputes=True,
    ),
    add_fused=add_fused,
    formats=PANEL_FORMATS,
    pack=add_pack,
    copy=add_copy,
    cast=_cast,
    divide=lambda builder: None,
    scratch_floats=lambda kernel, fields: attention_floats(kernel, fields) or scratch_floats(kernel, fields),
    cost=cost,
)

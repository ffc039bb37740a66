"""Emit plan.json: the plan that model.js runs, from the dispatches that `run/webgpu.py` submits.

docs/webgpu.md specifies the format, for other runners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from ingot.compile import Compiled
from ingot.errors import UnsupportedError
from ingot.ir.dim import AtMost, Atom, Expr, Known, dim_of
from ingot.ir.graph import Graph
from ingot.ir.text import index_location
from ingot.lower.lowered import Tensor
from ingot.lower.wgpu.wgsl import F16, PARAMETER_WORDS, SUBGROUPS, enabled, is_read_only
from ingot.plan.gpu_dispatch import Allocation, Dispatches, dispatches
from ingot.plan.memory import Plan

FORMAT, VERSION = "ingot-web", 1

T = TypeVar("T")


Layout = tuple[str, ...]  # the types of the buffers after the parameters


@dataclass(frozen=True, slots=True)
class WebProgram:
    """A compiled mode of a model, its dispatches, and for each step of its plan the node and its index operands."""

    compiled: Compiled
    schedule: Dispatches
    nodes: tuple[str, ...]


@dataclass(slots=True)
class WebPlan:
    """Programs by name over the same memory.

    features: that the device must have. regions: bytes of each, the most that a program needs. groups: regions that are
    bound together. layouts: of groups. shaders: file names by shader text. pipelines: shader texts and their layouts.
    weights: the tensor and address of each packed weight, by its key.
    """

    programs: dict[str, WebProgram] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    regions: dict[str, int] = field(default_factory=dict)
    layouts: list[Layout] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    shaders: dict[str, str] = field(default_factory=dict)
    pipelines: list[tuple[str, Layout]] = field(default_factory=list)
    weights: dict[str, tuple[Tensor, Allocation]] = field(default_factory=dict)


def _locations(compiled: Compiled, planned: Plan) -> tuple[str, ...]:
    """Return the description of each step for errors of invalid indices."""
    (segment,) = compiled.segments
    return tuple(index_location(segment.graph, step.node) for step in planned.steps)


def web_plan(entries: Mapping[str, Compiled]) -> WebPlan:
    """Return the plan of modes of one graph, by name, which were compiled with one placement.

    Raises UnsupportedError for an op without a WGSL kernel, for states with initial data and for f16 arithmetic,
    LimitError for a tensor that exceeds WebGPU's binding size.
    """
    plan = WebPlan()
    for name, compiled in entries.items():
        _expect_known(compiled)
        lowered, planned = compiled.native
        schedule, plan.features = dispatches(lowered, planned), lowered.target.features
        schedule.shaders = [enabled(text, plan.features) for text in schedule.shaders]
        plan.programs[name] = WebProgram(compiled, schedule, _locations(compiled, planned))
        for region, nbytes in schedule.regions.items():
            plan.regions[region] = max(nbytes, plan.regions.get(region, 0))
        for step in schedule.steps:
            text = schedule.shaders[step.shader]
            plan.shaders.setdefault(text, f"shaders/{len(plan.shaders):03d}-{step.kernels[0]}.wgsl")
            _add(plan.layouts, _layout(step.bindings))
            _add(plan.groups, step.bindings)
            _add(plan.pipelines, (text, _layout(step.bindings)))
        for tensor in lowered.tensors.values():
            if tensor.packed_weight is not None:
                plan.weights[tensor.packed_weight.key] = tensor, schedule.weights[tensor.id]
    for region in chain.from_iterable(plan.groups):
        plan.regions.setdefault(region, 0)
    return plan


def _layout(bindings: Sequence[str]) -> Layout:
    return tuple("read-only-storage" if is_read_only(region) else "storage" for region in bindings)


def _add(items: list[T], item: T) -> None:
    """Append an item unless it is present."""
    if item not in items:
        items.append(item)


def _expect_known(compiled: Compiled) -> None:
    if missing := [*compiled.fallback, *compiled.choosing]:
        expected = "expected one for each node; InferenceSession(executor='webgpu') runs these on the CPU"
        raise UnsupportedError(f"emit: no kernel of webgpu, got {', '.join(missing)}, {expected}")
    if compiled.graph.initial:
        raise UnsupportedError(f"emit: states begin with data, got {', '.join(compiled.graph.initial)}, expected zeros")
    if (
        F16 in compiled.native[0].target.features
    ):  # no CPU implementation of WebGPU has it, so these shaders are untested
        raise UnsupportedError(f"emit: INGOT_WGPU_FEATURES has what pages do not, got {F16!r}, expected {SUBGROUPS}")


def document(plan: WebPlan, name: str, parts: list[dict[str, Any]], page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of plan.json. name: of the model. parts: the weight files. page: facts for index.html."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "features": plan.features,
        "parameter_bytes": 4 * PARAMETER_WORDS,
        "regions": [{"name": region, "bytes": nbytes} for region, nbytes in plan.regions.items()],
        "layouts": plan.layouts,
        "groups": [{"layout": plan.layouts.index(_layout(each)), "regions": each} for each in plan.groups],
        "pipelines": [
            {"shader": plan.shaders[text], "layout": plan.layouts.index(layout)} for text, layout in plan.pipelines
        ],
        "weights": {"bytes": sum(part["bytes"] for part in parts), "parts": parts},
        "programs": {key: _program(program, plan) for key, program in plan.programs.items()},
        "page": dict(page),
    }


def _program(program: WebProgram, plan: WebPlan) -> dict[str, Any]:
    compiled, schedule = program.compiled, program.schedule
    graph, steps = compiled.graph, []
    for step in schedule.steps:
        steps.append(
            {
                "pipeline": plan.pipelines.index((schedule.shaders[step.shader], _layout(step.bindings))),
                "group": plan.groups.index(step.bindings),
                "workgroups": form(dim_of(step.workgroups)),
                "words": step.words,
                "resizes": [[word, form(dim)] for word, dim in step.resizes],
            }
        )
    return {
        "sizes": {
            symbol: {"least": compiled.least.get(symbol, 1), "most": int(size)}
            for symbol, size in compiled.mode.sizes.items()
            if isinstance(size, AtMost)
        },
        "inputs": {name: _port(graph, name, allocation) for name, allocation in schedule.inputs.items()},
        "outputs": {
            name: _port(graph, graph.outputs[name], allocation) for name, allocation in schedule.outputs.items()
        },
        "nodes": program.nodes,
        "steps": steps,
    }


def _port(graph: Graph, value: str, allocation: Allocation) -> dict[str, Any]:
    type = graph.type(value)
    shape = [form(dim_of(dim)) for dim in type.dims]
    return {"dtype": type.dtype.name, "shape": shape, "offset": allocation.offset, "bytes": allocation.nbytes}


def form(dim: Known) -> Any:
    """Return a dim as JSON: a number, the name of a symbol, or a list of an operation and its operands."""
    if not isinstance(dim, Expr):
        return int(dim)
    return _joined("+", [_joined("*", _factors(coefficient, monomial)) for monomial, coefficient in dim.terms])


def _factors(coefficient: int, monomial: tuple[Atom, ...]) -> list[Any]:
    factors = [_atom(atom) for atom in monomial]
    return factors if coefficient == 1 and factors else [coefficient, *factors]


def _atom(atom: Atom) -> Any:
    return [atom.name, *map(form, atom.args)] if atom.args else atom.name


def _joined(operation: str, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else [operation, *parts]

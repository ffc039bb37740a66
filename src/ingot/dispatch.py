"""What a run on a device of WebGPU submits: shaders, the parameters of each step, and where everything lies. Pure data.

A binding is a region of memory and not a tensor: views are places in the parameters. So one bind group serves every
step, and in place or beside makes no difference to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ingot.errors import LimitError, UnsupportedError
from ingot.lower.lowered import Lowered, Pointer, Step
from ingot.lower.wgpu.kernels import KERNELS
from ingot.lower.wgpu.wgsl import REGIONS, Argument, pointers, shader, words
from ingot.plan import Plan

FAULT_BYTES = 256  # before the outputs: code, step, index and limit, and nothing up to where an output may begin
GRID_SIDE = 65535  # along each dim of a grid
_ELEMENT_BYTES = 4


class Place(NamedTuple):
    """Where a tensor of the border lies: bytes into its region, and how many."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A step: the number of its shader, its parameters as 32 bits each, and workgroups along x and y."""

    shader: int
    words: tuple[int, ...]
    groups: tuple[int, int]
    kernel: str
    node: str


@dataclass(slots=True)
class Dispatches:
    """A plan as a device runs it. regions: bytes of each. inputs, outputs, weights: where what crosses the border lies,
    by the names of the graph, or by the tensors' ids.
    """

    shaders: list[str] = field(default_factory=list)
    steps: list[Dispatch] = field(default_factory=list)
    regions: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Place] = field(default_factory=dict)
    outputs: dict[str, Place] = field(default_factory=dict)
    weights: dict[str, Place] = field(default_factory=dict)


def dispatches(lowered: Lowered, plan: Plan) -> Dispatches:
    """The dispatches of a plan. Raises LimitError where inputs, outputs or activations need more than a binding holds
    or than there are bindings, UnsupportedError for states.
    """
    made = Dispatches()
    _place(lowered, plan, made)
    numbers: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        kernel = KERNELS[step.kernel]
        groups = kernel.groups(step.fields)
        if groups == 0:
            continue
        arguments = [_numbered(argument, index) for argument in kernel.arguments(step)]
        found = {name: _address(lowered, plan, made, pointer) for name, pointer in pointers(arguments).items()}
        regions = {name: region for name, (region, _) in found.items()}
        text = shader(kernel.body, kernel.text(step.fields), arguments, regions, kernel.element)
        parameters = words(arguments, {name: place for name, (_, place) in found.items()})
        number = numbers.setdefault(text, len(numbers))
        made.steps.append(Dispatch(number, tuple(parameters), _grid(step, groups), step.kernel, step.node))
    made.shaders = list(numbers)
    return made


def _numbered(argument: Argument, index: int) -> Argument:
    """The number of the step, for what it may leave in the fault slot."""
    return Argument(argument.name, index) if argument.name == "step" else argument


def _place(lowered: Lowered, plan: Plan, made: Dispatches) -> None:
    """Inputs side by side in one region, outputs in another, and the rest where the plan has it."""
    target = lowered.target
    if lowered.states:
        raise UnsupportedError(f"webgpu: states, got {', '.join(lowered.states)}, expected none")
    made.regions = {name: size for name, size in plan.regions.items() if name in REGIONS}
    arenas = [name for name in plan.regions if name.startswith("arena")]
    most = sum(name.startswith("arena") for name in REGIONS)
    if len(arenas) > most:
        raise LimitError(f"arena: too large, got {len(arenas)} regions, expected at most {most}")
    for region, views, places, begin in (
        ("inputs", lowered.inputs, made.inputs, 0),
        ("outputs", lowered.outputs, made.outputs, FAULT_BYTES),
    ):
        for name, view in views.items():
            nbytes = lowered.tensors[view.tensor].nbytes
            places[name] = Place(begin, nbytes)
            begin += -(-nbytes // target.alignment) * target.alignment
        if begin > target.region_bytes:
            raise LimitError(f"{region}: too large, got {begin} bytes, expected at most {target.region_bytes}")
        made.regions[region] = begin
    for tensor in lowered.tensors.values():
        if tensor.kind == "weight":
            made.weights[tensor.id] = Place(plan.addresses[tensor.id].offset, tensor.nbytes)


def _address(lowered: Lowered, plan: Plan, made: Dispatches, pointer: Pointer) -> tuple[str, int]:
    """The region that a pointer points into, and its element there."""
    tensor = lowered.tensors[pointer.tensor]
    region, offset = plan.addresses[tensor.id].region, plan.addresses[tensor.id].offset
    for kind, views, places in (("input", lowered.inputs, made.inputs), ("output", lowered.outputs, made.outputs)):
        if tensor.kind == kind:
            name = next(name for name, view in views.items() if view.tensor == tensor.id)
            region, offset = f"{kind}s", places[name].offset
    return region, (offset + int(pointer.byte_offset)) // _ELEMENT_BYTES


def _grid(step: Step, groups: int) -> tuple[int, int]:
    width = min(groups, GRID_SIDE)
    height = -(-groups // width)
    if height > GRID_SIDE:
        raise LimitError(f"node {step.node!r}: too large, got {groups} workgroups, expected at most {GRID_SIDE**2}")
    return width, height

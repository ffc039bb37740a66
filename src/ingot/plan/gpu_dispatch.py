"""The submission of a run on a WebGPU device, as pure data: shaders, dispatch parameters, and the location of tensors.

Consecutive steps of which none touches memory that another writes become one dispatch: its first workgroups are those
of the first step, and so on. A device waits between dispatches, and language models consist of many small ones. A step
whose workgroups must exchange results becomes several dispatches.

A binding is a memory region, not a tensor: views are offsets in the parameters, whether they are in place or not. So
one bind group serves every step, unless a program has more regions than a device binds at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ingot.errors import IngotError, LimitError
from ingot.ir.dim import AtMost, Expr
from ingot.ir.dtype import DType, i32, i64
from ingot.lower.lowered import Lowered, Pointer, Step
from ingot.lower.wgpu.attention import kernels_of
from ingot.lower.wgpu.kernels import Kernel
from ingot.lower.wgpu.wgsl import PARAMETER_WORDS, REGIONS, Argument, Part, pointers, shader, words
from ingot.plan.memory import Plan, Touched

FAULT_REGION = frozenset(("outputs",))
FAULT_BYTES = 256  # before the outputs: code, step, index and limit, then padding to the alignment of an output
GRID_SIDE = 65535  # along each dim of a grid
_ELEMENT_BYTES = 4
_TOGETHER = 4  # steps of a dispatch, at most


class Allocation(NamedTuple):
    """The location of a tensor: byte offset in its region, size, and the region."""

    offset: int
    nbytes: int
    region: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One or several steps: the index of their shader, their parameters as 32 bits each, and the number of workgroups.

    Values that depend on AtMost symbols are planned for the largest sizes. resizes: words that each run sets, with
    their expressions; `workgroups` may be an AtMost, too. kernels, nodes, numbers: of the steps in the plan. bindings:
    the regions that it binds, in order.
    """

    shader: int
    words: tuple[int, ...]
    resizes: tuple[tuple[int, Expr], ...]
    workgroups: int
    kernels: tuple[str, ...]
    nodes: tuple[str, ...]
    numbers: tuple[int, ...]
    bindings: tuple[str, ...]

    @property
    def groups(self) -> tuple[int, int]:
        """Workgroups along x and y at the largest sizes."""
        return grid(self.workgroups)


@dataclass(slots=True)
class Dispatches:
    """A plan for a device.

    regions: bytes of each. inputs, outputs, weights: their locations, by the names of the graph, or for weights by the
    tensors' ids.
    """

    shaders: list[str] = field(default_factory=list)
    steps: list[Dispatch] = field(default_factory=list)
    regions: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Allocation] = field(default_factory=dict)
    outputs: dict[str, Allocation] = field(default_factory=dict)
    weights: dict[str, Allocation] = field(default_factory=dict)


@dataclass(slots=True)
class _Ready:
    """A kernel of a step: its shader, parameters, workgroups, and the memory and regions that the step touches."""

    index: int
    step: Step
    part: Part
    words: list[int]
    workgroups: int
    touched: Touched
    regions: frozenset[str]
    is_alone: bool


def dispatches(lowered: Lowered, plan: Plan) -> Dispatches:
    """Return the dispatches of a plan.

    Raises LimitError if inputs or outputs need more than a binding provides, or a step more regions or workgroups than
    the limits.
    """
    built = Dispatches()
    _allocate(lowered, plan, built)
    found = [
        _ready(lowered, plan, built, step, index, kernel)
        for index, step in enumerate(plan.steps)
        for kernel in kernels_of(step)
    ]
    is_one = frozenset[str]().union(*(ready.regions for ready in found)) <= frozenset(REGIONS)
    together: list[list[_Ready]] = []
    for ready in found:
        if ready.workgroups == 0:
            continue
        if together and _may_join(together[-1], ready, is_one):
            together[-1].append(ready)
        else:
            together.append([ready])
    numbers: dict[str, int] = {}
    for group in together:
        regions = frozenset[str]().union(*(ready.regions for ready in group))
        bindings = REGIONS if is_one else tuple(sorted(regions))
        built.steps.append(_dispatch(group, bindings, numbers, lowered.target.features))
    built.shaders = list(numbers)
    return built


def _ready(lowered: Lowered, plan: Plan, built: Dispatches, step: Step, index: int, kernel: Kernel) -> _Ready:
    arguments = [_numbered(argument, index) for argument in kernel.arguments(step)]
    found = {name: _address(lowered, plan, built, pointer) for name, pointer in pointers(arguments).items()}
    regions = {name: region for name, (region, _) in found.items()}
    part = Part(kernel.bodies, kernel.text(step.fields), arguments, regions, kernel.element)
    parameters = words(arguments, {name: offset for name, (_, offset) in found.items()})
    workgroups = kernel.groups(step.fields)
    if workgroups > GRID_SIDE**2:
        raise LimitError(f"node {step.node!r}: too large, got {workgroups} workgroups, expected at most {GRID_SIDE**2}")
    reached = frozenset(regions.values()) | (FAULT_REGION if "fault" in step.fields else frozenset())
    if len(reached) > len(REGIONS):
        raise LimitError(f"node {step.node!r}: too many regions, got {len(reached)}, expected at most {len(REGIONS)}")
    touched = Touched.by(step, lowered, plan)
    return _Ready(index, step, part, parameters, workgroups, touched, reached, kernel.is_alone)


def _may_join(together: list[_Ready], ready: _Ready, is_one: bool) -> bool:
    """Return whether a step may join a dispatch: it fits the limits, and no step waits for another."""
    if ready.is_alone or together[0].is_alone:
        return False
    count = len(together) + sum(len(each.words) for each in (*together, ready))
    groups = sum(each.workgroups for each in (*together, ready))
    regions = ready.regions.union(*(each.regions for each in together))
    is_small = len(together) < _TOGETHER and count <= PARAMETER_WORDS and groups <= GRID_SIDE**2
    is_bound = is_one or len(regions) <= len(REGIONS)
    return is_small and is_bound and not any(ready.touched.waits_for(each.touched) for each in together)


def _dispatch(
    together: list[_Ready], bindings: tuple[str, ...], numbers: dict[str, int], features: tuple[str, ...]
) -> Dispatch:
    ends = list(accumulate(each.workgroups for each in together))
    found = [*ends[:-1], *(word for each in together for word in each.words)]
    assert len(found) <= PARAMETER_WORDS, f"{len(found)} parameters of a step, expected at most {PARAMETER_WORDS}"
    names = dict(zip(bindings, bindings, strict=True)) if bindings == REGIONS else _names(bindings)
    parts = [
        replace(each.part, regions={pointer: names[region] for pointer, region in each.part.regions.items()})
        for each in together
    ]
    return Dispatch(
        numbers.setdefault(shader(parts, tuple(names.values()), features), len(numbers)),
        tuple(int(word) for word in found),
        tuple((index, word.dim) for index, word in enumerate(found) if isinstance(word, AtMost)),
        ends[-1],
        tuple(each.step.kernel for each in together),
        tuple(each.step.node for each in together),
        tuple(each.index for each in together),
        bindings,
    )


def _names(bindings: Sequence[str]) -> dict[str, str]:
    """Return region names for a shader: their kinds, renumbered, so that layers in other regions share the text."""
    names: dict[str, str] = {}
    kinds: Counter[str] = Counter()
    for region in bindings:
        kind = region.rstrip("0123456789")
        names[region] = f"{kind}{kinds[kind] or ''}"
        kinds[kind] += 1
    return names


def grid(workgroups: int) -> tuple[int, int]:
    """Return a number of workgroups along x and y with at least this product."""
    width = min(int(workgroups), GRID_SIDE)
    return width, -(-int(workgroups) // width)


def _numbered(argument: Argument, index: int) -> Argument:
    """Return the argument; the argument `step` gets the step's number, which a kernel may write to the fault slot."""
    return Argument(argument.name, index) if argument.name == "step" else argument


def _allocate(lowered: Lowered, plan: Plan, built: Dispatches) -> None:
    """Allocate inputs in one region and outputs in another; all other tensors have the addresses of the plan."""
    target = lowered.target
    built.regions = {name: size for name, size in plan.regions.items() if ":" not in name}
    for region, views, allocations, begin in (
        ("inputs", lowered.inputs, built.inputs, 0),
        ("outputs", lowered.outputs, built.outputs, FAULT_BYTES),
    ):
        for name, view in views.items():
            nbytes = lowered.tensors[view.tensor].nbytes
            allocations[name] = Allocation(begin, nbytes, region)
            begin += -(-nbytes // target.alignment) * target.alignment
        if begin > target.region_bytes:
            raise LimitError(f"{region}: too large, got {begin} bytes, expected at most {target.region_bytes}")
        built.regions[region] = begin
    for tensor in lowered.tensors.values():
        if tensor.kind == "weight":
            address = plan.addresses[tensor.id]
            built.weights[tensor.id] = Allocation(address.offset, tensor.nbytes, address.region)


def _address(lowered: Lowered, plan: Plan, built: Dispatches, pointer: Pointer) -> tuple[str, int]:
    """Return the region that a pointer points into, and its element offset there."""
    tensor = lowered.tensors[pointer.tensor]
    region, offset = plan.addresses[tensor.id].region, plan.addresses[tensor.id].offset
    for kind, views, allocations in (
        ("input", lowered.inputs, built.inputs),
        ("output", lowered.outputs, built.outputs),
    ):
        if tensor.kind == kind:
            name = next(name for name, view in views.items() if view.tensor == tensor.id)
            region, offset = f"{kind}s", allocations[name].offset
    return region, (offset + pointer.byte_offset) // _ELEMENT_BYTES


def device_array(array: np.ndarray, dtype: DType, what: str, error: type[IngotError]) -> np.ndarray:
    """Convert an array to the device's dtype.

    dtype: of the tensor on the device: i32 for all integers, except quantized weights in panels, which stay unchanged.
    Raises `error` for integers that do not fit in 32 bits.
    """
    if dtype is not i32:
        return array
    if array.dtype == i64.numpy and array.size:
        low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        for value in (int(array.min()), int(array.max())):
            if not low <= value <= high:
                raise error(f"{what}: webgpu has 32-bit integers, got {value}, expected {low}..{high}")
    return np.ascontiguousarray(array, np.int32)

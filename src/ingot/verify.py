"""The independent plan verifier: it shares no code with the planner and runs on every plan.

It walks the steps with a map of which tensor owns which bytes, and asserts; a failure is a bug of Ingot.
"""

from __future__ import annotations

from itertools import product as cartesian

from ingot.lower.lowered import Lowered, Step
from ingot.lower.view import View
from ingot.plan import Plan


class PlanError(AssertionError):
    """A plan that would compute nonsense or touch foreign memory."""


def verify(lowered: Lowered, plan: Plan) -> None:
    """Checks a plan against the steps it is for. Raises PlanError saying which step or tensor is wrong."""
    _verify_places(lowered, plan)
    _verify_views(lowered)
    _verify_lifetimes(lowered, plan)
    _verify_outputs(lowered, plan)
    _verify_barriers(lowered, plan)


def _fail(what: str) -> None:
    raise PlanError(what)


def _verify_places(lowered: Lowered, plan: Plan) -> None:
    used = {v.tensor for s in lowered.steps for v in (*s.reads, *s.writes)} | {
        s.scratch for s in lowered.steps if s.scratch
    }
    for tensor_id in used:
        tensor = lowered.tensors[tensor_id]
        if tensor_id not in plan.addresses:
            _fail(f"{tensor_id} has no address")
        address = plan.addresses[tensor_id]
        if address.offset % lowered.target.alignment:
            _fail(f"{tensor_id} lies at {address.offset}, not a multiple of {lowered.target.alignment}")
        if address.offset < 0 or address.offset + tensor.nbytes > plan.regions[address.region]:
            _fail(f"{tensor_id} does not fit in {address.region}")
        wanted = {"activation": "arena", "scratch": "arena", "weight": "weights", "state": "state"}.get(tensor.kind)
        if wanted is not None and not address.region.startswith(wanted):
            _fail(f"{tensor_id} is a {tensor.kind} in {address.region}")
        if tensor.kind in ("input", "output") and address.region != f"{tensor.kind}:{tensor.name}":
            _fail(f"{tensor_id} is a {tensor.kind} in {address.region}")
    for region, size in plan.regions.items():
        if region.startswith("arena") and size > lowered.target.region_bytes:
            _fail(f"{region} has {size} bytes, more than the target's {lowered.target.region_bytes}")


def _verify_views(lowered: Lowered) -> None:
    """Every view lies inside its root (packed weights are bounded by their bytes); writes hit no input or weight."""
    for index, step in enumerate(lowered.steps):
        for view in (*step.reads, *step.writes):
            tensor = lowered.tensors[view.tensor]
            low = view.offset + sum(min(0, (d - 1) * s) for d, s in zip(view.shape, view.strides, strict=True))
            high = view.offset + sum(max(0, (d - 1) * s) for d, s in zip(view.shape, view.strides, strict=True))
            if 0 not in view.shape and (low < 0 or (high + 1) * view.dtype.itemsize > tensor.nbytes):
                _fail(f"step {index} {step.kernel}: {view} leaves its tensor of {tensor.nbytes} bytes")
        for view in step.writes:
            if lowered.tensors[view.tensor].kind in ("input", "weight"):
                _fail(f"step {index} {step.kernel} writes {lowered.tensors[view.tensor].kind} {view.tensor}")
            if any(s == 0 and d > 1 for d, s in zip(view.shape, view.strides, strict=True)):
                _fail(f"step {index} {step.kernel} writes through a broadcast view")
        if not step.writes:
            _fail(f"step {index} {step.kernel} writes nothing")


def _verify_lifetimes(lowered: Lowered, plan: Plan) -> None:
    """Replays the steps: a read must find the bytes of its own tensor, as its own writer left them."""
    last_use: dict[str, int] = {}
    for index, step in enumerate(lowered.steps):
        for tensor in _touched(step):
            last_use[tensor] = index
    alive: dict[str, tuple[str, int, int]] = {}
    for index, step in enumerate(lowered.steps):
        for view in step.reads:
            kind = lowered.tensors[view.tensor].kind
            if kind in ("activation", "output") and view.tensor not in alive and view.size:
                _fail(f"step {index} {step.kernel} reads {view.tensor}, not written or overwritten")
        for tensor in dict.fromkeys([v.tensor for v in step.writes] + ([step.scratch] if step.scratch else [])):
            address = plan.addresses[tensor]
            mine = (address.region, address.offset, address.offset + lowered.tensors[tensor].nbytes)
            for other, theirs in list(alive.items()):
                if other == tensor or mine[0] != theirs[0] or mine[2] <= theirs[1] or theirs[2] <= mine[1]:
                    continue
                if last_use[other] > index or (last_use[other] == index and not _legal_inplace(step, other, tensor)):
                    _fail(f"step {index} {step.kernel} writes {tensor} over {other}, which is still in use")
                del alive[other]
            alive[tensor] = mine


def _touched(step: Step) -> set[str]:
    return {v.tensor for v in (*step.reads, *step.writes)} | ({step.scratch} if step.scratch else set())


def _legal_inplace(step: Step, source: str, target: str) -> bool:
    """The first result may lie on an operand if the kernel permits it, element on element, and it is read only so."""
    write = step.writes[0]
    if [view for view in step.writes if view.tensor == target] != [write]:
        return False
    readers = [i for i, view in enumerate(step.reads) if view.tensor == source]
    if len(readers) != 1 or readers[0] not in step.inplace:
        return False
    read = step.reads[readers[0]]
    return (read.offset, read.shape, read.strides) == (write.offset, write.shape, write.strides)


def _verify_outputs(lowered: Lowered, plan: Plan) -> None:
    """Each output owns its memory, whole and row-major, and every element of it is written."""
    roots = [view.tensor for view in lowered.outputs.values()]
    if len(set(roots)) != len(roots):
        _fail("two outputs share a tensor")
    for name, view in lowered.outputs.items():
        tensor = lowered.tensors[view.tensor]
        if tensor.kind != "output" or not view.is_contiguous or view.offset:
            _fail(f"output {name} is not a root tensor of its own")
        written = sum(w.size for s in lowered.steps for w in s.writes if w.tensor == view.tensor)
        if written < view.size:
            _fail(f"output {name} has {view.size} elements, {written} are written")


def _verify_barriers(lowered: Lowered, plan: Plan) -> None:
    """Between two steps that touch the same bytes, one writing, there is a barrier or only one thread."""
    barriers = [i for i, barrier in enumerate(plan.barriers) if barrier]
    if len(plan.barriers) != len(lowered.steps):
        _fail("barriers and steps differ in number")
    window: dict[bool, list[int]] = {True: [], False: []}  # steps since the last barrier: of one part, of several
    for index, step in enumerate(lowered.steps):
        if plan.barriers[index]:
            window = {True: [], False: []}
        serial = step.parts == 1
        others = window[False] if serial else window[False] + window[True]
        window[serial].append(index)
        for earlier in others:
            if _collide(lowered, plan, lowered.steps[earlier], step):
                _fail(f"steps {earlier} and {index} touch the same bytes without a barrier ({barriers[:5]}...)")


def _collide(lowered: Lowered, plan: Plan, a: Step, b: Step) -> bool:
    def spans(step: Step, views: tuple[View, ...], scratch: bool) -> list[tuple[str, int, int]]:
        found = []
        for view in views:
            start = plan.addresses[view.tensor]
            reach = [(d - 1) * s for d, s in zip(view.shape, view.strides, strict=True)]
            if 0 in view.shape:
                continue
            low = start.offset + (view.offset + sum(r for r in reach if r < 0)) * view.dtype.itemsize
            high = start.offset + (view.offset + sum(r for r in reach if r > 0) + 1) * view.dtype.itemsize
            found.append((start.region, low, high))
        if scratch and step.scratch:
            start = plan.addresses[step.scratch]
            found.append((start.region, start.offset, start.offset + lowered.tensors[step.scratch].nbytes))
        return found

    a_writes, b_writes = spans(a, a.writes, True), spans(b, b.writes, True)
    pairs = [
        *cartesian(a_writes, b_writes),
        *cartesian(a_writes, spans(b, b.reads, False)),
        *cartesian(spans(a, a.reads, False), b_writes),
    ]
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x, y in pairs)

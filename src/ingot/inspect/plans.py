"""Documents on plans: the memory of one tensor over a run, the difference of two plans, and measured steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.compile import CompiledSegment
from ingot.errors import IngotError, InputError
from ingot.inspect.document import VERSION, head
from ingot.inspect.model import InspectedModel
from ingot.inspect.view import Item, View, close_names
from ingot.ir.dim import Limit
from ingot.lower.lowered import Tensor
from ingot.plan.memory import Plan
from ingot.run.probe import Roofline
from ingot.session.inference import InferenceSession
from ingot.session.inputs import random_inputs
from ingot.session.reports import StepTime

_WARM_RUNS = 5  # before the run of a timeline, and this run


def memory_document(model: InspectedModel, name: str) -> dict[str, Any]:
    """Return a tensor of the plan: its address and life, the values in it, and who had its bytes.

    name: of a value of the graph after the passes, or of a tensor of the plan. Raises InputError for an unknown name
    and for a value that is never in memory, and the errors of compilation.
    """
    segments = [segment for segment in model.compiled.segments if segment.native is not None]
    for segment in segments:
        lowered, plan = segment.lowered, segment.plan
        view = lowered.views.get(name)
        ids = [tensor.id for tensor in lowered.tensors.values() if tensor.name == name]
        if view is None and not ids:
            continue
        tensor = lowered.tensors[view.tensor if view is not None else ids[0]]
        return head(model, "plan") | _placed(segment, plan, tensor, name)
    known = [*dict.fromkeys(each for s in segments for each in (*s.lowered.views, *_names(s.lowered.tensors)))]
    if name in model.optimized.values:
        why = "is computed inside of a fused step"
    else:
        why = "is not computed after the passes" if name in model.loaded.values else "no such tensor"
    expected = close_names(name, known) or "a tensor of `ingot list-nodes --stage plan`"
    raise InputError(f"explain-tensor: {why}, got {name!r}, expected {expected}")


def arena_by_size(model: InspectedModel, name: str, first: int, last: int) -> dict[str, Any]:
    """Return the memory of a run for sizes of a dim: `first`, its doubles below `last`, and `last`.

    Each row has the size, the bytes of the largest arena, its lower bound, and the bytes of all its activations without
    reuse; or the error of a size that the model does not accept. model: no language model.

    Raises InputError for a dim that the model lacks or that has a value.
    """
    if name not in model.assumed:
        expected = " or ".join(model.assumed) or "a model with a dim that has no value"
        raise InputError(f"--sizes: no dim without a value, got {name!r}, expected {expected}")
    sizes = [first]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    rows: list[dict[str, Any]] = []
    for size in dict.fromkeys([*sizes, last]):
        try:
            plans = [segment.plan for segment in model.with_sizes({name: size}).compiled.segments if segment.native]
        except IngotError as error:
            rows.append({"size": size, "error": str(error)})
            continue
        plan = max(plans, key=lambda plan: plan.arena_bytes, default=None)
        rows.append({"size": size} | {
            key: 0 if plan is None else int(getattr(plan, key))
            for key in ("arena_bytes", "lower_bound_bytes", "activation_bytes")
        })  # fmt: skip
    return {"dim": name, "rows": rows}


def _names(tensors: Mapping[str, Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors.values()]


def _placed(segment: CompiledSegment, plan: Plan, tensor: Tensor, name: str) -> dict[str, Any]:
    lowered, address = segment.lowered, plan.addresses[tensor.id]
    life = plan.live.get(tensor.id)
    same = [
        other
        for other in lowered.tensors.values()
        if other.id != tensor.id and _overlaps(plan, tensor, other) and other.id in plan.live
    ]
    views = [
        {"name": each, "offset": int(view.byte_offset), "shape": list(map(int, view.shape)),
         "strides": list(map(int, view.strides)), "is_row_major": view.is_contiguous}
        for each, view in lowered.views.items()
        if view.tensor == tensor.id
    ]  # fmt: skip
    writers = [n for n, step in enumerate(plan.steps) if any(view.tensor == tensor.id for view in step.writes)]
    readers = [n for n, step in enumerate(plan.steps) if any(view.tensor == tensor.id for view in step.reads)]
    peak, peak_bytes = peak_of(plan, lowered.tensors)
    return {
        "name": name, "id": tensor.id, "kind": tensor.kind, "dtype": tensor.dtype.name,
        "shape": list(map(int, tensor.shape)), "bytes": int(tensor.nbytes), "region": address.region,
        "offset": address.offset,
        "birth": None if life is None else life[0], "death": None if life is None else life[1],
        "values": views, "written_by": [_step_name(plan, n) for n in writers],
        "read_by": [_step_name(plan, n) for n in readers],
        "before": [other.name for other in same if life is not None and plan.live[other.id][1] <= life[0]],
        "after": [other.name for other in same if life is not None and plan.live[other.id][0] >= life[1]],
        "peak_step": peak, "peak_bytes": peak_bytes,
        "is_live_at_peak": life is not None and life[0] <= peak <= life[1],
        "packed_weight": None if tensor.packed_weight is None else tensor.packed_weight.key,
    }  # fmt: skip


def _overlaps(plan: Plan, tensor: Tensor, other: Tensor) -> bool:
    a, b = plan.addresses[tensor.id], plan.addresses.get(other.id)
    if b is None or a.region != b.region:
        return False
    return a.offset < b.offset + other.nbytes and b.offset < a.offset + tensor.nbytes


def _step_name(plan: Plan, number: int) -> str:
    step = plan.steps[number]
    return f"{number}: {step.kernel} {step.node}"


def peak_of(plan: Plan, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the step with the most live bytes of the arena, and these bytes."""
    changes: Counter[int] = Counter()
    for id, (birth, death) in plan.live.items():
        changes[birth] += int(tensors[id].nbytes)
        changes[death + 1] -= int(tensors[id].nbytes)
    live, best = 0, (0, 0)
    for step in sorted(changes):
        live += changes[step]
        best = max(best, (live, -step))
    return -best[1], best[0]


def difference_document(a: InspectedModel, b: InspectedModel) -> dict[str, Any]:
    """Return what differs between two plans: totals, kernels, and the steps of nodes of the same name.

    Raises the errors of compilation.
    """
    sides = {"a": _totals(a), "b": _totals(b)}
    steps = {key: _by_node(model.view("plan")) for key, model in (("a", a), ("b", b))}
    both = [name for name in steps["a"] if name in steps["b"]]
    changed = [
        {"name": name, "a": steps["a"][name], "b": steps["b"][name]}
        for name in both
        if steps["a"][name] != steps["b"][name]
    ]
    kernels = {key: Counter(kernel for each in rows.values() for kernel in each) for key, rows in steps.items()}
    names = sorted(kernels["a"] | kernels["b"])
    counts = {name: [kernels["a"][name], kernels["b"][name]] for name in names}
    return {
        "version": VERSION, **sides,
        "kernels": {name: pair for name, pair in counts.items() if pair[0] != pair[1]},
        "changed": changed,
        "only_a": [name for name in steps["a"] if name not in steps["b"]],
        "only_b": [name for name in steps["b"] if name not in steps["a"]],
    }  # fmt: skip


def _totals(model: InspectedModel) -> dict[str, Any]:
    view, plans = model.view("plan"), [s.plan for s in model.compiled.segments if s.native is not None]
    items = list(view.items.values())
    return {
        "model": model.path, "isa": model.target.isa, "threads": model.target.threads,
        "precision": model.precision.name if model.language is None else model.options.precision, "steps": len(items),
        "barriers": sum(bool(item.facts.get("barrier")) for item in items),
        "flops": sum(int(item.facts.get("flops", 0)) for item in items),
        "bytes": sum(int(item.facts.get("bytes", 0)) for item in items),
        "arena_bytes": max((plan.arena_bytes for plan in plans), default=0),
        "weight_bytes": sum(plan.regions.get("weights", 0) for plan in plans),
        "reference": len(model.compiled.fallback),
    }  # fmt: skip


def _by_node(view: View) -> dict[str, list[str]]:
    """Return the kernels of each node's steps, with their numbers of tasks."""
    found: dict[str, list[str]] = {}
    for item in view.items.values():
        found.setdefault(item.name.partition("#")[0], []).append(_kernel(item))
    return found


def _kernel(item: Item) -> str:
    return f"{item.op} x{item.facts['parts']}" if "parts" in item.facts else f"{item.op} on the reference"


def measured_steps(
    path: str, dims: Mapping[str, int | Limit], precision: str | None, threads: int, runs: int = 20
) -> tuple[list[dict[str, Any]], Roofline]:
    """Run a model on random inputs; return each step's time and rates with its limit, and the machine's roofline.

    of_limit: the least time that the roofline allows, relative to the measured time. Raises the errors of a session's
    `profile`.
    """
    return _measured_steps(*_opened(path, dims, precision, threads), runs)


def measured_run(
    path: str, dims: Mapping[str, int | Limit], precision: str | None, threads: int, runs: int = 20
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """As `measured_steps`; return with the steps also the peak rates, and when each thread computes each step of a run.

    The second has `limits`, as in `ingot explain --measure`, and `timeline`: names of the steps, and spans of thread,
    step, begin and end in nanoseconds.
    """
    session, feeds = _opened(path, dims, precision, threads)
    rows, roofline = _measured_steps(session, feeds, runs)
    trace = session.trace(feeds, _WARM_RUNS)
    last, begins = trace.times[-1], trace.times[-1, ..., 0]
    first = int(begins[begins > 0].min(initial=np.iinfo(np.int64).max))
    spans = [
        [thread, step, begin - first, end - first]
        for step, threads_ in enumerate(last.tolist())
        for thread, (begin, end) in enumerate(threads_)
        if end
    ]
    timeline = {
        "threads": trace.threads, "waiting": list(trace.waiting), "spans": spans,
        "steps": [f"{step.kernel} {step.node}" for step in trace.steps],
    }  # fmt: skip
    return rows, {"limits": rates_of(roofline), "timeline": timeline}


def rates_of(roofline: Roofline) -> dict[str, float]:
    """Return the peak rates as plain data."""
    return {"gflops": roofline.flops / 1e9, "gigabytes_per_second": roofline.arena_bytes / 1e9}


def _opened(
    path: str, dims: Mapping[str, int | Limit], precision: str | None, threads: int
) -> tuple[InferenceSession, dict[str, Any]]:
    """Return a session that has run once, and its inputs."""
    session = InferenceSession(path, dims=dims, precision=precision, threads=threads, cache=False)
    feeds = random_inputs(session.interface, dims)
    session.run(None, feeds)
    return session, feeds


def _measured_steps(
    session: InferenceSession, feeds: dict[str, Any], runs: int
) -> tuple[list[dict[str, Any]], Roofline]:
    profile = session.profile(feeds, runs)
    weight_bytes = sum(step.cost.weight_bytes for step in profile.steps)
    roofline = Roofline.measure(session.isa, session.threads, weight_bytes, session.plan.arena_bytes)
    return [_measured(step, roofline) for step in profile.steps], roofline


def _measured(step: StepTime, roofline: Roofline) -> dict[str, Any]:
    least = roofline.seconds(step.cost.flops, step.cost.weight_bytes, step.cost.other_bytes)
    return {
        "node": step.node, "kernel": step.kernel, "parts": step.parts, "product": step.product,
        "nanoseconds": step.nanoseconds, "flops": step.cost.flops,
        "bytes": step.cost.weight_bytes + step.cost.other_bytes, "gflops": step.gflops,
        "gigabytes_per_second": step.gigabytes_per_second, "of_limit": 1e9 * least / max(step.nanoseconds, 1),
    }  # fmt: skip

"""Order steps: the source's order, or an order with a smaller peak of live bytes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ingot.ir.liveness import greedy, peak
from ingot.lower.lowered import Lowered, Step
from ingot.lower.view import View


def order_steps(lowered: Lowered) -> list[Step]:
    """Return the steps in the better of two orders: the source's, and greedily the step that frees the most.

    If no order can have a smaller peak than the source's, no second order is computed.
    """
    steps = lowered.steps
    touched = [_arena_tensors(lowered, step) for step in steps]
    nbytes = {tensor: lowered.tensors[tensor].nbytes for tensors in touched for tensor in tensors}
    least, peak_index, others = peak(nbytes, touched)
    if not least or _outlive(steps, touched, peak_index, others):
        return list(steps)
    replaced = {t.id: t.replaces for t in lowered.tensors.values() if t.replaces is not None}
    other = greedy(nbytes, touched, _dependencies(steps, replaced))
    is_better = peak(nbytes, [touched[index] for index in other])[0] < least
    return [steps[index] for index in other] if is_better else list(steps)


def _outlive(steps: list[Step], touched: list[set[str]], peak_index: int, tensors: set[str]) -> bool:
    """Return whether tensors are alive at a step in every order: a step before it and one after it must touch each."""
    before, after = set(tensors), set(tensors)
    needed = defaultdict(list, {view.tensor: [view] for view in steps[peak_index].reads})
    for index in range(peak_index - 1, -1, -1):
        if not before:
            break
        if _meets(steps[index].writes, needed):
            before -= touched[index]
            for view in steps[index].reads:
                needed[view.tensor].append(view)
    known_writes = defaultdict(list, {view.tensor: [view] for view in steps[peak_index].writes})
    for index in range(peak_index + 1, len(steps)):
        if not after:
            break
        if _meets(steps[index].reads, known_writes):
            after -= touched[index]
            for view in steps[index].writes:
                known_writes[view.tensor].append(view)
    return not before and not after


def _meets(views: Sequence[View], others: Mapping[str, list[View]]) -> bool:
    """Return whether a view overlaps another view of its tensor."""
    for view in views:
        for other in others.get(view.tensor, ()):
            (low, high), (begin, end) = view.extent, other.extent
            if low < end and begin < high:
                return True
    return False


class _Touched:
    """Accesses of one kind to one tensor, sorted by first element for a fast search of overlaps."""

    def __init__(self) -> None:
        self.accesses: list[tuple[int, int, int]] = []  # first element, one past the last, step
        self.longest = 0

    def add(self, low: int, high: int, step: int) -> None:
        insort(self.accesses, (low, high, step))
        self.longest = max(self.longest, high - low)

    def overlapping(self, low: int, high: int) -> Iterator[int]:
        begin, end = bisect_left(self.accesses, (low - self.longest,)), bisect_left(self.accesses, (high,))
        return (step for _, other, step in self.accesses[begin:end] if low < other)


def _dependencies(steps: list[Step], replaced: Mapping[str, str]) -> list[set[int]]:
    """Return, for each step, the earlier steps that must come first.

    A step depends on an earlier step if it touches memory that the earlier step wrote, or writes memory that it read.
    replaced: tensors at the address of other tensors, which count as the same tensor.
    """
    read: defaultdict[str, _Touched] = defaultdict(_Touched)
    written: defaultdict[str, _Touched] = defaultdict(_Touched)
    result: list[set[int]] = []
    for index, step in enumerate(steps):
        needs: set[int] = set()
        reads, writes = (
            [(replaced.get(view.tensor, view.tensor), *view.extent) for view in views]
            for views in (step.reads, step.writes)
        )
        for tensor, low, high in (*reads, *writes):
            needs.update(written[tensor].overlapping(low, high))
        for tensor, low, high in writes:
            needs.update(read[tensor].overlapping(low, high))
        for touched, accesses in ((read, reads), (written, writes)):
            for tensor, low, high in accesses:
                touched[tensor].add(low, high, index)
        result.append(needs)
    return result


def _arena_tensors(lowered: Lowered, step: Step) -> set[str]:
    touched = {v.tensor for v in (*step.reads, *step.writes)} | ({step.scratch} if step.scratch else set())
    return {t for t in touched if lowered.tensors[t].kind in ("activation", "scratch")}

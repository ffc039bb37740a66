"""The order of steps: the source's, or one that keeps fewer bytes alive at once where there is one."""

from __future__ import annotations

from ingot.lower.lowered import Lowered, Step
from ingot.lower.view import View


def order_steps(lowered: Lowered) -> None:
    """Puts the steps in the better of two orders: the source's, and greedily the step that frees the most."""
    after = _dependencies(lowered.steps)
    greedy = _greedy(lowered, after)
    if _peak(lowered, greedy) < _peak(lowered, lowered.steps):
        lowered.steps = greedy


def _dependencies(steps: list[Step]) -> list[set[int]]:
    """For each step, the earlier steps that must come first: it touches what they wrote, or writes what they read."""
    touched: dict[str, list[tuple[int, View, bool]]] = {}
    result: list[set[int]] = []
    for index, step in enumerate(steps):
        needs: set[int] = set()
        accesses = [(view, False) for view in step.reads] + [(view, True) for view in step.writes]
        for view, writes in accesses:
            for earlier, other, wrote in touched.get(view.tensor, []):
                if (writes or wrote) and _overlap(view, other):
                    needs.add(earlier)
        for view, writes in accesses:
            touched.setdefault(view.tensor, []).append((index, view, writes))
        result.append(needs)
    return result


def _overlap(a: View, b: View) -> bool:
    (a_low, a_high), (b_low, b_high) = a.extent, b.extent
    return a_low < b_high and b_low < a_high


def _arena_tensors(lowered: Lowered, step: Step) -> set[str]:
    touched = {v.tensor for v in (*step.reads, *step.writes)} | ({step.scratch} if step.scratch else set())
    return {t for t in touched if lowered.tensors[t].kind in ("activation", "scratch")}


def _peak(lowered: Lowered, steps: list[Step]) -> int:
    """The largest sum of bytes alive at once in an order, in-place merging aside."""
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        last.update(dict.fromkeys(_arena_tensors(lowered, step), index))
    alive: set[str] = set()
    total = peak = 0
    for index, step in enumerate(steps):
        for tensor in _arena_tensors(lowered, step) - alive:
            total += lowered.tensors[tensor].nbytes
            alive.add(tensor)
        peak = max(peak, total)
        for tensor in _arena_tensors(lowered, step):
            if last[tensor] == index:
                total -= lowered.tensors[tensor].nbytes
                alive.discard(tensor)
    return peak


def _greedy(lowered: Lowered, after: list[set[int]]) -> list[Step]:
    """List scheduling: of the steps that may come next, the one that grows live memory least; ties in source order."""
    steps = lowered.steps
    uses: dict[str, int] = {}
    for step in steps:
        for tensor in _arena_tensors(lowered, step):
            uses[tensor] = uses.get(tensor, 0) + 1
    waiting = [len(needs) for needs in after]
    followers: list[list[int]] = [[] for _ in steps]
    for index, needs in enumerate(after):
        for need in needs:
            followers[need].append(index)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    alive: set[str] = set()
    order: list[Step] = []

    def growth(index: int) -> tuple[int, int]:
        change = 0
        for tensor in _arena_tensors(lowered, steps[index]):
            size = lowered.tensors[tensor].nbytes
            change += (tensor not in alive) * size - (uses[tensor] == 1) * size
        return change, index

    while ready:
        chosen = min(ready, key=growth)
        ready.remove(chosen)
        for tensor in _arena_tensors(lowered, steps[chosen]):
            uses[tensor] -= 1
            (alive.add if uses[tensor] else alive.discard)(tensor)
        order.append(steps[chosen])
        for follower in followers[chosen]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return order

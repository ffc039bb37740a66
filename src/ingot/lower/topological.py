"""An order of what waits for one another, as near to a given one as it may be."""

from __future__ import annotations

import heapq
from typing import TypeVar

Unit = TypeVar("Unit")


def topological(needs: dict[Unit, set[Unit]], position: dict[Unit, int]) -> list[Unit]:
    """Units in an order in which each comes after those it needs; of those that may come next the first by position."""
    readers: dict[Unit, list[Unit]] = {unit: [] for unit in needs}
    for unit, before in needs.items():
        for other in before:
            readers[other].append(unit)
    waiting = {unit: len(before) for unit, before in needs.items()}
    by_position = {position[unit]: unit for unit in needs}
    ready = [position[unit] for unit, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[Unit] = []
    while ready:
        unit = by_position[heapq.heappop(ready)]
        order.append(unit)
        for reader in readers[unit]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, position[reader])
    assert len(order) == len(needs), "groups wait for each other"
    return order

"""A topological order that stays as close as possible to a given order."""

from __future__ import annotations

import heapq
from typing import TypeVar

Unit = TypeVar("Unit")


def topological(needs: dict[Unit, set[Unit]], position: dict[Unit, int]) -> list[Unit]:
    """Return units in an order in which each follows the units it needs; among ready units, the first by position."""
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

"""Which rows of a table are refused together: neighbours begin with the same conditions, as those of formats do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def beyond(conditions: Sequence[tuple[Any, ...]]) -> list[list[int]]:
    """For each row of a table and each of its conditions, the place of the next row that does not begin with the same
    ones up to that: whatever it refuses, it refuses to the rows in between.
    """
    found: list[list[int]] = [[] for _ in conditions]
    for place in reversed(range(len(conditions))):
        own, following = conditions[place], conditions[place + 1 : place + 2]
        for depth in range(len(own)):
            is_alike = any(other[: depth + 1] == own[: depth + 1] for other in following)
            found[place].append(found[place + 1][depth] if is_alike else place + 1)
    return found

"""Skip kernel rules that must be refused together: neighbouring rules often begin with the same conditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def beyond(conditions: Sequence[tuple[Any, ...]]) -> list[list[int]]:
    """Return, for each rule and each of its conditions, the index of the next rule that begins differently.

    Two rules begin alike up to a condition if they have the same conditions up to and including it. If that condition
    refuses a node, it also refuses the node for every rule in between.
    """
    found: list[list[int]] = [[] for _ in conditions]
    for place in reversed(range(len(conditions))):
        own, following = conditions[place], conditions[place + 1 : place + 2]
        for depth in range(len(own)):
            is_alike = any(other[: depth + 1] == own[: depth + 1] for other in following)
            found[place].append(found[place + 1][depth] if is_alike else place + 1)
    return found

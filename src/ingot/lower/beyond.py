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
    for index in reversed(range(len(conditions))):
        own, following = conditions[index], conditions[index + 1 : index + 2]
        for depth in range(len(own)):
            begins_alike = any(other[: depth + 1] == own[: depth + 1] for other in following)
            found[index].append(found[index + 1][depth] if begins_alike else index + 1)
    return found

"""Node data of Model Explorer: a number for each node of a graph that it shows, and the colours of these numbers.

The format is described in Model Explorer's API guide, "Create custom node data". Numbers are found by the names of
nodes or of the tensors that these compute; those of other names are ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

_GRADIENT = ((0, "#ffffff"), (0.5, "#ffd180"), (1, "#e64a19"))


def node_data(rows: Iterable[tuple[str, Sequence[str], float]]) -> dict[str, Any]:
    """Return the document. rows: a name of Ingot, the names of the nodes of the model's file, and a number of these.

    The number counts for the last node of the file, and the others get 0, so that the sum over a group of nodes is
    right. Names of Ingot are those of nodes in an ONNX file that Ingot wrote.
    """
    own: Counter[str] = Counter()
    foreign: Counter[str] = Counter()
    for name, names, value in rows:
        own[name] += value  # type: ignore[assignment]
        for each in names:
            foreign[each] += value if each == names[-1] else 0  # type: ignore[assignment]
    found = {name: {"value": value} for name, value in {**own, **foreign}.items() if math.isfinite(value)}
    return {"results": found, "gradient": [{"stop": stop, "bgColor": colour} for stop, colour in _GRADIENT]}

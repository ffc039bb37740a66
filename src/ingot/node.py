"""What a graph is made of: nodes, each a use of an op, and the values between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.op import Op
from ingot.types import Type


class Node:
    """One use of an op. Attributes are read by name: `node.eps`. Mutated only by `Graph`."""

    __slots__ = ("__dict__", "_removed_after", "attributes", "op", "operands", "outputs")

    def __init__(self, op: Op, operands: tuple[str | None, ...], outputs: tuple[str, ...], attributes: dict[str, Any]):
        self.op = op
        self.operands = operands
        self.outputs = outputs
        self.attributes = self.__dict__ = attributes  # which are read often
        self._removed_after: Node | None = None  # where an iteration that stands on a removed node finds back

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"op {self.op.name} has no attribute {name!r}")

    @property
    def output(self) -> str:
        """The only output."""
        (output,) = self.outputs
        return output

    def __repr__(self) -> str:
        return f"<{', '.join(self.outputs)} = {self.op.name}({', '.join(str(o) for o in self.operands)})>"


@dataclass(slots=True, eq=False)
class Value:
    """A named edge. `kind` is input, weight, constant, state or activation; `data` belongs to weight and constant.

    A weight without data (headers only) can be typed, lowered and planned, but not run.
    """

    name: str
    type: Type
    kind: str
    data: np.ndarray | None = None
    producer: Node | None = None
    users: dict[Node, int] = field(default_factory=dict)  # node -> number of operand slots; ordered

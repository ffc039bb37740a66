"""The elements of a graph: nodes, each a use of an op, and the values between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ingot.ir.op import Op
from ingot.ir.types import Type
from ingot.support.columns import in_one_line


class Source(NamedTuple):
    """A node of the loaded model. It names nodes for people; no computation depends on it.

    position: in the model; sources are sorted by it. name: as in the model, "" for none. op: ONNX's op_type, or torch's
    operator. domain: of an ONNX operator, "" for ONNX's own. module: the path of torch's module.
    """

    position: int
    name: str
    op: str
    domain: str = ""
    module: str = ""


_SHOWN = 4  # sources in a line


def shown_sources(sources: Sequence[Source], known: str = "") -> str:
    """Return sources for errors and reports, such as " (from Conv '/stem/Conv')"; "" if there is only `known`."""
    named = [f"{source.op} {source.name!r}" for source in sources if source.name not in ("", known)]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f" (from {', '.join(named[:_SHOWN])}{more})" if named else ""


def merged_sources(first: tuple[Source, ...], *others: Sequence[Source]) -> tuple[Source, ...]:
    """The sources of several nodes in the order of the model, each once. first: in this order already."""
    added = [source for each in others if each is not first for source in each]
    if not added or added == [*first]:
        return first
    found = list(first)
    for source in added:
        index = bisect_left(found, source)
        if index == len(found) or found[index] != source:
            found.insert(index, source)
    return tuple(found)


class Node:
    """One use of an op. Attributes are read by name: `node.eps`. Mutated only by `Graph`.

    sources: the nodes of the loaded model that it was built from, in order; () if there are none.
    """

    __slots__ = ("__dict__", "_removed_after", "attributes", "op", "operands", "outputs", "sources")

    def __init__(
        self,
        op: Op,
        operands: tuple[str | None, ...],
        outputs: tuple[str, ...],
        attributes: dict[str, Any],
        sources: tuple[Source, ...] = (),
    ):
        self.op = op
        self.operands = operands
        self.outputs = outputs
        self.attributes = self.__dict__ = attributes  # which are read often
        self.sources = sources
        self._removed_after: Node | None = None  # the resume point of an iteration that is at a removed node

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"op {self.op.name} has no attribute {name!r}")

    @property
    def output(self) -> str:
        """The only output."""
        (output,) = self.outputs
        return output

    @property
    def title(self) -> str:
        """The name of the node in errors: its op, its first value, and its sources."""
        return f"{self.op.name} {self.outputs[0]!r}{shown_sources(self.sources, self.outputs[0])}"

    @property
    def call(self) -> str:
        """Its op and operands, "none" for one that is absent."""
        return f"{self.op.name}({', '.join('none' if o is None else in_one_line(o) for o in self.operands)})"

    def __repr__(self) -> str:
        return f"<{', '.join(map(in_one_line, self.outputs))} = {self.call}>"


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

    def __repr__(self) -> str:
        return f"<Value {self}>"

    def __str__(self) -> str:
        return f"{in_one_line(self.name)}: {self.type}, {self.kind if self.producer is None else self.producer.call}"


def unread_sources(
    values: Mapping[str, Value], is_output: Callable[[str], bool], node: Node, remaining: Sequence[str | None]
) -> list[tuple[Source, ...]]:
    """Return the sources of an unread node, and of the nodes that only unread nodes read; [] if the node is read.

    values: of its graph; is_output: whether a value is read outside. remaining: the values that are read instead. If
    the node is computed from them, only the nodes in between count.
    """
    dead: dict[Node, None] = {}
    nearest: dict[Node, None] = {}
    waiting = [node]
    for each in waiting:
        if each in dead or not _is_unread(values, is_output, each, dead):
            continue
        dead[each] = None
        for name in each.operands:
            if name is not None and name in remaining:
                nearest[each] = None
            elif name is not None and (maker := values[name].producer) is not None:
                waiting.append(maker)
    between = list(nearest)
    for each in between:
        users = [user for name in each.outputs for user in values[name].users if user not in nearest]
        nearest |= dict.fromkeys(users)
        between += users
    return [each.sources for each in between or dead]


def _is_unread(
    values: Mapping[str, Value], is_output: Callable[[str], bool], node: Node, dead: Mapping[Node, None]
) -> bool:
    """Whether only such nodes read what a node makes."""
    for name in node.outputs:
        users = values[name].users
        if (users and not users.keys() <= dead.keys()) or is_output(name):
            return False
    return True


def added_with(values: Mapping[str, Value], node: Node) -> list[Node]:
    """Return a node and those before it that were added to replace the same node: they share its sources."""
    found = [node]
    for each in found if node.sources else ():
        producers = (values[name].producer for name in each.operands if name is not None)
        found += [m for m in dict.fromkeys(producers) if m is not None and m.sources is node.sources and m not in found]
    return found

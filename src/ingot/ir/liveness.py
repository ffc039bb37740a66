"""Live bytes: for steps in an order, and for a graph whose nodes run one by one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ingot.ir.dim import bind
from ingot.ir.graph import Graph, Node, TensorType

_ALIGNMENT = 64  # of a tensor in an arena


def peak(nbytes: Mapping[str, int], touched: Sequence[set[str]]) -> tuple[int, int, set[str]]:
    """Return the peak of live bytes, the step at the peak with the fewest other live tensors, and these tensors.

    nbytes: of each tensor. touched: the tensors of each step of the order.
    """
    last = {tensor: index for index, tensors in enumerate(touched) for tensor in tensors}
    alive: set[str] = set()
    total = most = at_peak = 0
    others: set[str] = set()
    for index, tensors in enumerate(touched):
        for tensor in tensors - alive:
            total += nbytes[tensor]
            alive.add(tensor)
        if total > most or (total == most and len(alive) - len(tensors) < len(others)):
            most, at_peak, others = total, index, alive - tensors
        for tensor in tensors:
            if last[tensor] == index:
                total -= nbytes[tensor]
                alive.discard(tensor)
    return most, at_peak, others


def greedy(nbytes: Mapping[str, int], tensors: Sequence[set[str]], after: Sequence[set[int]]) -> list[int]:
    """List scheduling: among ready steps, choose the one that grows live memory least; ties in source order.

    nbytes: of each tensor. tensors: the tensors that each step touches. after: the earlier steps that each step waits
    for. Returns the steps as indices of the source's order.
    """
    users: defaultdict[str, set[int]] = defaultdict(set)  # steps that are not scheduled yet
    for index, touched in enumerate(tensors):
        for tensor in touched:
            users[tensor].add(index)
    waiting = [len(needs) for needs in after]
    followers: list[list[int]] = [[] for _ in after]
    for index, needs in enumerate(after):
        for need in needs:
            followers[need].append(index)
    alive: set[str] = set()

    def growth(index: int) -> tuple[int, int]:
        change = 0
        for tensor in tensors[index]:
            change += ((tensor not in alive) - (len(users[tensor]) == 1)) * nbytes[tensor]
        return change, index

    ready = [growth(i) for i, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order: list[int] = []
    done: set[int] = set()
    while ready:
        entry = heappop(ready)
        chosen = entry[1]
        if chosen in done or entry != growth(chosen):  # the entry is out of date; a later entry has the current growth
            continue
        done.add(chosen)
        order.append(chosen)
        changed: set[int] = set()
        for tensor in tensors[chosen]:
            born = tensor not in alive
            alive.add(tensor)
            users[tensor].discard(chosen)
            if born or len(users[tensor]) == 1:
                changed |= users[tensor]
        for follower in followers[chosen]:
            waiting[follower] -= 1
            changed.add(follower)
        for index in changed:
            if waiting[index] == 0:
                heappush(ready, growth(index))
    return order


@dataclass(frozen=True, slots=True)
class Liveness:
    """The memory of a graph in which each node is one step: no kernel computes two of them.

    types: of each tensor of the arena, by its first value. A view shares its operand's tensor, and so does a result
    that may overwrite its operand. Inputs, outputs, weights and values that depend only on weights are not in the
    arena. touched: the tensors that each step reads and writes. after: the earlier steps that each step waits for.
    """

    types: Mapping[str, TensorType]
    touched: Sequence[set[str]]
    after: Sequence[set[int]]

    @staticmethod
    def of(graph: Graph) -> Liveness | None:
        """Return the liveness of a graph; None if a value is no tensor, has an unknown dim, or is measured in a run."""
        if graph.measured or not all(isinstance(t, TensorType) and None not in t.shape for t in graph.types):
            return None
        home: dict[str, str | None] = {name: None for name, value in graph.values.items() if value.producer is None}
        static = {name for name, value in graph.values.items() if value.kind in ("weight", "constant")}
        permanent = {*graph.outputs.values(), *graph.states.values()}
        touched: list[set[str]] = []
        after: list[set[int]] = []
        step_of: dict[str, int] = {}
        for node in graph.nodes:
            operands = [operand for operand in node.operands if operand is not None]
            if static.issuperset(operands) and not graph.states.keys() & set(operands):
                static.update(node.outputs)
                home |= dict.fromkeys(node.outputs, None)
                continue
            for name in node.outputs:
                home[name] = None if name in permanent else _home(graph, node, name, home)
            after.append({step_of[operand] for operand in operands if operand in step_of})
            step_of |= dict.fromkeys(node.outputs, len(touched))
            touched.append({tensor for name in (*operands, *node.outputs) if (tensor := home[name]) is not None})
        return Liveness({tensor: graph.type(tensor) for tensor in home.values() if tensor}, touched, after)

    def least(self, sizes: Mapping[str, int]) -> int:
        """Return the peak of live bytes, in the better of the graph's order and a greedy one."""
        nbytes = {name: _rounded_bytes(type, sizes) for name, type in self.types.items()}
        source = peak(nbytes, self.touched)[0]
        order = greedy(nbytes, self.touched, self.after)
        return min(source, peak(nbytes, [self.touched[index] for index in order])[0])


def _home(graph: Graph, node: Node, name: str, home: Mapping[str, str | None]) -> str | None:
    """Return the tensor of a result: a new one, or an operand's."""
    if node.op.view:
        return home[str(node.operands[0])]
    for index in node.op.inplace if len(node.outputs) == 1 else ():
        operand = node.operands[index] if index < len(node.operands) else None
        producer = graph.producer(operand)
        if operand is None or producer is None or producer.op.view or graph.only_user(operand) is not node:
            continue
        if home[operand] is not None and graph.type(operand) == graph.type(name):
            return home[operand]
    return name


def _rounded_bytes(type: TensorType, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a tensor in an arena for these sizes of symbols."""
    dims = (bind(dim, sizes) for dim in type.shape)
    count = math.prod(int(dim) for dim in dims if isinstance(dim, int))
    return -(-type.dtype.nbytes(count) // _ALIGNMENT) * _ALIGNMENT

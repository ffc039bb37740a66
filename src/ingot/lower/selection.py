"""The selection of kernels: what a backend offers, the facts about a graph, and the kernel rule of each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ingot.ir.dtype import DType
from ingot.ir.graph import Graph, Node, TensorType
from ingot.ir.sized import is_sized
from ingot.lower.beyond import beyond
from ingot.lower.cost import Cost
from ingot.lower.epilogue import EpilogueLimits, Group, find_groups
from ingot.lower.formats import Format
from ingot.lower.fused import FusedGroup, FusedLimits
from ingot.lower.lowered import Choice, Field, Lowered, Step
from ingot.lower.packed_weight import PackedWeight, panel_tables
from ingot.lower.target import Target
from ingot.lower.view import View
from ingot.lower.weight_expr import WeightExpr, weight_expr, weight_exprs
from ingot.lower.widen import foreign_values

# Functions that take a `StepBuilder` or a `Lowering`, which extend `Selection`, have Any: their files import this one.
Condition: TypeAlias = "Callable[[Selection, Node], str]"


@dataclass(frozen=True, slots=True, eq=False)
class KernelRule:
    """A kernel of an op: when it applies and how to add its step.

    conditions: each returns the reason of a refusal, or "". lower: adds the step of a node to a `Lowering`. avoid: the
    reason to prefer a later rule, or "". by_size: whether `avoid` depends on sizes that are set per run. misplaced: as
    `avoid`, but for the memory layout of operands, which it asks a `Lowering` for.
    """

    op: str
    kernel: str
    conditions: tuple[Condition, ...]
    lower: Callable[[Any, Node], None]
    avoid: Condition
    by_size: bool
    misplaced: Callable[[Any, Node], str]


@dataclass(frozen=True, slots=True)
class Backend:
    """The kernels and limits of one kind of device; lowering itself knows no device.

    rules: the kernel rules of each op; first match wins. held: the dtypes that kernels accept, with the storage dtype
    of each. epilogues: the ops that products can apply to their sums. fused_limits: the limits of fused programs;
    add_fused adds their step to a `Lowering`. formats: the weight formats of products. pack, copy, cast: add a step to
    a `StepBuilder`; pack packs a matrix into panels, a view of one axis, copy and cast copy elements between two views
    of one shape, of the same or of different dtypes. divide: replaces steps of a `StepBuilder` by steps for parts of
    their results. scratch_floats: the scratch of one task of a kernel, if the step
    does not set it. cost: the minimum cost of a step.
    """

    rules: Mapping[str, Sequence[KernelRule]]
    held: Mapping[DType, DType]
    epilogues: EpilogueLimits
    fused_limits: FusedLimits
    add_fused: Callable[[Any, FusedGroup], None]
    formats: Sequence[Format]
    pack: Callable[[Any, PackedWeight, View, View], None]
    copy: Callable[[Any, View, View], None]
    cast: Callable[[Any, View, View], None]
    divide: Callable[[Any], None]
    scratch_floats: Callable[[str, Mapping[str, Field]], int]
    cost: Callable[[Lowered, Step], Cost]
    _beyond: dict[str, list[list[int]]] = field(default_factory=dict, init=False, repr=False)

    def beyond(self, op: str) -> list[list[int]]:
        """Return where the next rule that begins differently is, per rule and condition; see `beyond.beyond`."""
        if op not in self._beyond:
            self._beyond[op] = beyond([rule.conditions for rule in self.rules.get(op, ())])
        return self._beyond[op]


class Asked(NamedTuple):
    """The first rule that accepts a node, all reasons, and the kernels that only `avoid` refused by sizes of a run."""

    row: KernelRule | None
    choice: Choice
    avoided: list[str]


class Selection:
    """The kernel rule of each node of a graph, and the facts about the graph that conditions of rules read.

    static: the values that depend on no input and no state. state_invariant: the values that depend on no input; the
    steps of a run read the same state, so such a value is packed once per run. narrow: the dtypes of results for dot
    products. groups: products with their epilogues, by their last nodes; grouped: their other nodes. decodes: whether
    the graph decodes a weight format.
    """

    def __init__(self, graph: Graph, target: Target, backend: Backend):
        self.graph = graph
        self.target = target
        self.backend = backend
        self.static = weight_exprs(graph)
        self.state_invariant = weight_exprs(graph, ("state",), self.static) if graph.states else self.static
        self.narrow = backend.epilogues.rounded.intersection(target.rounded)
        limits = backend.epilogues if target.epilogues else None
        self.groups, self.grouped = find_groups(graph, self.static, limits, self.state_invariant, self.narrow)
        self.decodes = not graph.ops.isdisjoint(format.decoder for format in backend.formats)
        self._asked: dict[Node, Asked] = {}
        self._reasons: defaultdict[Node, dict[Condition, str]] = defaultdict(dict)
        self._candidates: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, str], ...]] = {}  # by op and reasons
        self._foreign = foreign_values(graph, backend.held)
        self._statics: dict[str, WeightExpr] = {}
        self._scalars: dict[tuple[float, DType], str] = {}
        self._panel_tables = panel_tables(graph, self.static)

    def ask(self, node: Node, misplaced: Mapping[KernelRule, str] = {}) -> Asked:
        """Return the first rule that accepts the node in any layout, and each candidate's reason; cached.

        misplaced: rules that do not accept the layouts of the operands, with the reasons.
        """
        if misplaced:
            return self._ask(node, misplaced)
        if node not in self._asked:
            self._asked[node] = self._ask(node, misplaced)
        return self._asked[node]

    def _ask(self, node: Node, misplaced: Mapping[KernelRule, str]) -> Asked:
        reasons: list[str] = []
        avoided: list[str] = []
        op = self.groups[node].root.op.name if node in self.groups else node.op.name
        rules, beyond, chosen = self.backend.rules.get(op, ()), self.backend.beyond(op), None
        foreign = self._foreign_reason(node) if self._foreign else ""
        while chosen is None and (tried := len(reasons)) < len(rules):
            rule = rules[tried]
            if foreign:
                reasons += [foreign] * len(rules)
            elif (depth := self._refused(rule, node)) is not None:
                reason = self._reasons[node][rule.conditions[depth]]
                reasons += [reason] * (beyond[tried][depth] - tried)
            else:
                reason = misplaced.get(rule, "")
                if not reason and (reason := rule.avoid(self, node)) and rule.by_size and is_sized(self.graph, node):
                    avoided.append(f"{rule.kernel} for {node.outputs[0]!r}: {reason}")
                reasons.append(reason)
                chosen = None if reason else rule
        key = op, tuple(reasons)
        if key not in self._candidates:
            self._candidates[key] = tuple(zip([rule.kernel for rule in rules], reasons, strict=False))
        return Asked(chosen, Choice(node.outputs[0], op, self._candidates[key]), avoided)

    def refusal(self, rule: KernelRule, node: Node) -> str:
        """Return the first reason against a rule; each condition is evaluated once per node."""
        depth = self._refused(rule, node)
        return "" if depth is None else self._reasons[node][rule.conditions[depth]]

    def _refused(self, rule: KernelRule, node: Node) -> int | None:
        """Return the index of the first condition of a rule that refuses the node; None if the rule accepts it."""
        known = self._reasons[node]
        for depth, condition in enumerate(rule.conditions):
            if (reason := known.get(condition)) is None:
                reason = known[condition] = condition(self, node)
            if reason:
                return depth
        return None

    def _foreign_reason(self, node: Node) -> str:
        """Return why no kernel may read or write a node's values, such as their dtype; or ""."""
        names = (*node.operands, *node.outputs)
        return next((self._foreign[name] for name in names if name in self._foreign), "")

    def group(self, node: Node) -> Group:
        """Return the group with this last node: the matmul, convolution or attention with its epilogue."""
        return self.groups[node]

    def is_only_rounded(self, group: Group) -> bool:
        """Return whether only the group's rounding reads its output."""
        return group.rounding is not None and self.graph.only_user(group.output) is group.rounding

    def weight_expr(self, name: str) -> WeightExpr:
        """Return the expression of a static value of the graph, or of an added constant, for a packed weight."""
        return weight_expr(self.graph, name, self._statics)

    def constant(self, value: float, dtype: DType) -> str:
        """Return the name of a constant of one element, shape [], that the graph does not have."""
        if (value, dtype) not in self._scalars:
            name = f"scalar.{value}.{dtype}"
            while name in self.graph.values or name in self._statics:
                name += ".1"
            data = np.array(value, dtype.numpy)
            self._statics[name] = WeightExpr(name, (TensorType(dtype, ()),), data=data)
            self.static.add(name)
            self._scalars[value, dtype] = name
        return self._scalars[value, dtype]

    def is_panel_table(self, value: str | None) -> bool:
        """Return whether a matmul also reads a table, with its rows as columns; it is then packed once for both."""
        return value in self._panel_tables

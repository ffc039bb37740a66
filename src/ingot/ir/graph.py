"""The Graph: the computation, for no target. Edges are names, and its text reads back as the same graph.

Only methods of `Graph` mutate. Iterating over `graph.nodes` stays correct while nodes are added and removed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError
from ingot.ir.dim import Expr, Values, bind, check_shape, symbols_of
from ingot.ir.display import Display
from ingot.ir.dtype import DType, from_numpy
from ingot.ir.node import Node, Source, Value, added_with, merged_sources, unread_sources
from ingot.ir.op import OPS, REQUIRED, Index, Op, Sample
from ingot.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    bind_type,
    compatible,
    forget,
    join,
    narrowed,
    type_symbols,
)
from ingot.support import abi
from ingot.support.collector import uncollected

__all__ = [
    "KINDS", "MAX_NODES", "MAX_RANK", "OPS", "REQUIRED", "Graph", "Index", "MapType", "Node", "Op", "OptionalType",
    "Sample", "SequenceType", "Source", "TensorType", "Type", "UnrankedType", "Value", "bind_attribute", "bind_type",
    "compatible", "forget", "join", "type_symbols",
]  # fmt: skip

MAX_RANK = abi.constant("INGOT_MAX_RANK")  # of a tensor
MAX_NODES = 1_000_000  # of a graph
KINDS = ("input", "weight", "constant", "state", "activation")


class Graph(Display):
    """Inputs, weights, constants, states, nodes in a valid order, and outputs (external name -> value name).

    `states` pairs a state with the value that replaces it after the run. `initial` has the initial data of states that
    do not start as zeros; None if only headers are known. `measured` are symbols that no input gives a value: a node
    whose result has a shape that depends on data, and the dims of that result, which a run measures before any reader.
    """

    def __init__(self, name: str = "graph"):
        self.name = name
        self.values: dict[str, Value] = {}
        self.inputs: list[str] = []
        self.outputs: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.initial: dict[str, np.ndarray | None] = {}
        self.measured: dict[str, str] = {}  # symbol -> the value that has it as a dim
        self.trades: dict[tuple[str, ...], str] = {}  # values -> a pass's decision, memory for time; no text
        self.origin: tuple[Source, ...] = ()  # the sources of nodes added at the end
        # The order, as a ring through None. Nodes know no graph and no neighbours, so there is no reference cycle:
        # arrays are freed with their last holder.
        self._next: dict[Node | None, Node | None] = {None: None}
        self._previous: dict[Node | None, Node | None] = {None: None}
        self._uses: Counter[str] = Counter()  # nodes of each op
        self._types: dict[Type, Type] = {}  # equal types of its values are one object
        self._fresh = 0

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Iterator[Node]:
        """Nodes in order. Nodes inserted after the current one are visited; removed ones are not."""
        following = self._next
        node = following[None]
        while node is not None:
            yield node
            try:
                node = following[node]
            except KeyError:  # it was removed meanwhile
                while node not in following:
                    assert node is not None
                    node = node._removed_after
                node = following[node]

    def __len__(self) -> int:
        return len(self._next) - 1

    @property
    def ops(self) -> set[str]:
        """The names of the ops that it uses."""
        return {op for op, count in self._uses.items() if count}

    @property
    def bodies(self) -> list[Graph]:
        """The subgraphs of its nodes."""
        if not any(OPS[name].takes_bodies for name in self.ops):  # the common case
            return []
        return [value for node in self.nodes for value in node.attributes.values() if isinstance(value, Graph)]

    @property
    def types(self) -> list[Type]:
        """The types of its values: few, since equal types mostly share an object."""
        return list({id(value.type): value.type for value in self.values.values()}.values())

    def type(self, name: str) -> TensorType:
        """Return the type of a tensor value."""
        kind = self.values[name].type
        assert isinstance(kind, TensorType), f"{name} is {kind}"
        return kind

    def producer(self, name: str | None) -> Node | None:
        """Return the node that computes a value; None for inputs, weights, constants and states."""
        return None if name is None else self.values[name].producer

    def users(self, name: str) -> list[Node]:
        """Return the nodes that read a value, each once."""
        return list(self.values[name].users)

    def is_output(self, name: str) -> bool:
        """Return whether a value is a graph output or a state update."""
        return name in self.outputs.values() or name in self.states.values()

    def only_user(self, name: str) -> Node | None:
        """Return the only reader of `name`, if it reads the value once and the value is no output."""
        users = self.values[name].users
        if len(users) != 1 or self.is_output(name):
            return None
        ((node, count),) = users.items()
        return node if count == 1 else None

    def data(self, name: str | None) -> np.ndarray | None:
        """Return the array of a weight or constant, else None."""
        return None if name is None else self.values[name].data

    @property
    def symbols(self) -> list[str]:
        """Names of the symbols in the types of inputs and states, in order of appearance."""
        types = [self.values[name].type for name in [*self.inputs, *self.states]]
        return list(dict.fromkeys(symbol for type in types for symbol in type_symbols(type)))

    def mentioned(self, node: Node) -> set[str]:
        """Return the measured symbols that a node uses, in its attributes or in results that do not define them."""
        found = set().union(*map(symbols_in, node.attributes.values()))
        for name in node.outputs:
            found.update(type_symbols(self.values[name].type))
        return {s for s in found if s in self.measured and self.measured[s] not in node.outputs}

    def fresh(self, hint: str = "t") -> str:
        """An unused value name; `hint` itself where possible."""
        name = hint
        while name in self.values:
            self._fresh += 1
            name = f"{hint}.{self._fresh}"
        return name

    # -- building -----------------------------------------------------------------------------------------------

    def add_input(self, name: str, type: Type) -> str:
        """Declare a graph input. Raises LoadError when the name is in use."""
        self._declare(Value(name, type, "input"))
        self.inputs.append(name)
        return name

    def add_weight(self, name: str, data: np.ndarray | None, type: TensorType | None = None) -> str:
        """Declare a parameter, mapped and not copied; without data its `type` must be given."""
        if type is None:
            assert data is not None
            type = TensorType(from_numpy(data.dtype), tuple(data.shape))
        self._declare(Value(name, type, "weight", data))
        return name

    def add_constant(self, name: str, data: np.ndarray) -> str:
        """Declare a small folded value."""
        self._declare(Value(name, TensorType(from_numpy(data.dtype), tuple(data.shape)), "constant", data))
        return name

    def add_state(self, name: str, type: TensorType) -> str:
        """Declare a value that lives across runs; `set_state` names its update."""
        self._declare(Value(name, type, "state"))
        self.states[name] = name
        return name

    def begin_state(self, name: str, data: np.ndarray | None) -> None:
        """Set the initial value of a state: data of its type, or None if only headers are known."""
        assert name in self.states, f"{name} is no state"
        self.initial[name] = data

    def keep(self, weight: str) -> None:
        """Convert a weight to a state with the weight's data as initial value; it is constant until `set_state`."""
        value = self.values[weight]
        assert value.kind == "weight", f"{weight} is a {value.kind}"
        data, value.kind, value.data = value.data, "state", None
        self.states[weight] = weight
        self.begin_state(weight, data)

    def set_state(self, name: str, update: str) -> None:
        """Set the value that replaces a state after each run."""
        assert name in self.states and update in self.values
        self.states[name] = update

    def set_output(self, external: str, value: str) -> None:
        """Make a value a graph output under an external name."""
        assert value in self.values, value
        self.outputs[external] = value

    def add(
        self,
        op: str,
        operands: Sequence[str | None],
        outputs: Sequence[str] | str | None = None,
        *,
        before: Node | None = None,
        sources: tuple[Source, ...] | None = None,
        **attributes: Any,
    ) -> Node:
        """Add a node, inferring its output types. It goes before `before`, or last.

        `outputs` are hints: a name in use gets a suffix. sources: the loaded nodes that it was built from; by default
        those of `before`, or the graph's origin. Raises ShapeError from the op's inference.
        """
        definition = OPS[op]
        values = {k: v for k, v in definition.attributes.items() if v is not REQUIRED} | attributes
        assert not (wrong := definition.misuse(operands, attributes)), wrong
        inherited = self.origin if before is None else before.sources
        node = Node(definition, tuple(operands), (), values, inherited if sources is None else sources)
        result_types = self._inferred(definition, node.operands, values)
        if outputs is None or isinstance(outputs, str):
            hint = outputs or "t"
            outputs = [hint if i == 0 else f"{hint}.{i}" for i in range(len(result_types))]
        assert len(outputs) == len(result_types), f"{op} makes {len(result_types)} values, not {len(outputs)}"
        built = []
        for hint, type in zip(outputs, result_types, strict=True):
            built.append(self.fresh(hint))
            self._declare(Value(built[-1], type, "activation", None, node))
        node.outputs = tuple(built)
        self._link(node, before)
        return node

    def remove_output(self, external: str) -> None:
        """Remove a graph output; its value stays."""
        del self.outputs[external]

    # -- mutating -----------------------------------------------------------------------------------------------

    def remove(self, node: Node) -> None:
        """Remove a node with unused outputs, and those values."""
        for name in node.outputs:
            assert not self.values[name].users and not self.is_output(name), f"{name} is still used"
        for name in node.outputs:
            del self.values[name]
        self.measured = {symbol: name for symbol, name in self.measured.items() if name not in node.outputs}
        for operand in node.operands:
            self._use(operand, node, -1)
        previous, following = self._previous.pop(node), self._next.pop(node)
        self._next[previous], self._previous[following] = following, previous
        self._uses[node.op.name] -= 1
        node._removed_after = previous

    def remove_value(self, name: str) -> None:
        """Remove an unused weight or constant."""
        value = self.values[name]
        assert value.kind in ("weight", "constant") and not value.users and not self.is_output(name)
        del self.values[name]

    def replace_uses(self, old: str, new: str) -> None:
        """Make every reader of `old`, graph outputs and state updates included, read `new` instead."""
        assert old != new
        replaced, readers, heir = self.values[old].producer, self.users(old), self.values[new].producer
        if heir is None and len(readers) == 1 and not self.is_output(old):
            heir = readers[0]  # only one of several readers gets the sources
        for node in readers:
            self._read(node, [new if o == old else o for o in node.operands])
        for table in (self.outputs, self.states):
            for key, value in table.items():
                if value == old:
                    table[key] = new
        if replaced is not None and heir is not None:
            unread = unread_sources(self.values, self.is_output, replaced, (new,))
            for node in added_with(self.values, heir) if heir.sources is replaced.sources else [heir]:
                self.name_after(node, replaced.sources, *unread)

    def replace(self, node: Node, value: str) -> None:
        """Replace a one-output node by a value and remove the node."""
        self.replace_uses(node.output, value)
        self.remove(node)

    def set_operands(self, node: Node, operands: Sequence[str | None]) -> None:
        """Set a node's operands; its output types must not change. It inherits sources that nothing else reads."""
        dropped = [self.producer(name) for name in dict.fromkeys(node.operands) if name not in operands]
        self._read(node, operands)
        for maker in dropped:
            if maker is not None and maker is not node:
                self.name_after(node, *unread_sources(self.values, self.is_output, maker, operands))

    def name_after(self, node: Node, *sources: Sequence[Source]) -> None:
        """Add sources of the loaded model to a node."""
        node.sources = merged_sources(node.sources, *sources)

    def rename(self, old: str, new: str) -> None:
        """Rename a value everywhere. Raises LoadError when the name is in use."""
        if old == new:
            return
        value = self.values[old]
        if new in self.values:
            raise self._name_error(new)
        value.name, self.values[new] = new, value
        if value.producer is not None:
            value.producer.outputs = tuple([new if o == old else o for o in value.producer.outputs])
        for node in value.users:
            node.operands = tuple([new if o == old else o for o in node.operands])
        if value.kind == "input":
            self.inputs = [new if name == old else name for name in self.inputs]
        if value.kind == "state":
            self.states = {new if k == old else k: v for k, v in self.states.items()}
            self.initial = {new if k == old else k: data for k, data in self.initial.items()}
        for table in (self.outputs, self.states, self.measured):
            for key, name in table.items():
                if name == old:
                    table[key] = new
        del self.values[old]

    def fix_input(self, name: str, source: Value) -> None:
        """Replace an input by the weight or constant of another graph, under the name that it has there."""
        if name != source.name and source.name in self.values:
            self.rename(source.name, self.fresh(f"{source.name}.inner"))
        self.rename(name, source.name)
        self.inputs.remove(source.name)
        value = self.values[source.name]
        value.kind, value.type, value.data = source.kind, source.type, source.data

    def sort(self) -> None:
        """Sort nodes topologically, as stable as possible. Raises LoadError naming a cycle.

        A node comes after the nodes that compute its operands, and after those that measure a dim it uses.
        """
        ready: list[Node] = []
        order, waiting = list(self.nodes), dict[Node, int]()
        readers: dict[str, dict[Node, int]] = {name: value.users for name, value in self.values.items()}
        for node in order:
            waiting[node] = sum(self.producer(o) is not None for o in node.operands)
            for name in {self.measured[s] for s in self.mentioned(node)} if self.measured else ():
                readers[name] = {**readers[name], node: readers[name].get(node, 0) + 1}
                waiting[node] += 1
        position = {node: i for i, node in enumerate(order)}
        heap = [position[node] for node in order if waiting[node] == 0]  # sorted, so it is a heap
        while heap:
            node = order[heapq.heappop(heap)]
            ready.append(node)
            for output in node.outputs:
                for user, count in readers[output].items():
                    waiting[user] -= count
                    if waiting[user] == 0:
                        heapq.heappush(heap, position[user])
        if len(ready) != len(order):
            stuck = next(node for node in order if waiting[node] > 0)
            raise LoadError(f"graph {self.name!r}: nodes form a cycle through {stuck.outputs[0]!r}")
        self._order(ready)

    @uncollected()
    def copy(self) -> Graph:
        """Return an equal graph that shares only arrays."""
        twin = Graph(self.name)
        twin._types = dict(self._types)
        for name, value in self.values.items():
            if value.producer is None:
                twin.values[name] = Value(name, value.type, value.kind, value.data)
        built = []
        for node in self.nodes:
            attributes = {key: v.copy() if isinstance(v, Graph) else v for key, v in node.attributes.items()}
            built.append(Node(node.op, node.operands, node.outputs, attributes, node.sources))
            for name in node.outputs:
                twin.values[name] = Value(name, self.values[name].type, "activation", None, built[-1])
        twin._link_all(built)
        twin._copy_interface(self)
        return twin

    @uncollected()
    def bind(self, symbols: Mapping[str, int]) -> Graph:
        """Return a copy with values for symbols, in types and attributes, and types inferred again; arrays are shared.

        Raises ShapeError when the values contradict an op or a declared type.
        """
        bound = Graph(self.name)
        known = Values(symbols)  # and of measured symbols whose values follow
        bound._types = dict(self._types)
        declared: dict[int, Type] = {}  # by the id of a type here
        settled: dict[tuple[Any, ...], list[Type]] = {}  # shared by identical layers
        for name, value in self.values.items():
            if value.producer is None:
                type = bind_type(value.type, known)
                type = type if type is value.type else bound._once(name, type)
                bound.values[name] = Value(name, type, value.kind, value.data)
        built = []
        for node in self.nodes:
            attributes = {
                key: value if value.__class__ in PLAIN else bind_attribute(value, known)
                for key, value in node.attributes.items()
            }
            twin = Node(node.op, node.operands, node.outputs, attributes, node.sources)
            built.append(twin)
            ids = [None if operand is None else id(bound.values[operand].type) for operand in node.operands]
            alike = (node.op, *ids, *[id(self.values[name].type) for name in node.outputs], *attributes.items())
            if (types := settled.get(alike)) is not None:
                for name, type in zip(node.outputs, types, strict=True):
                    bound.values[name] = Value(name, type, "activation", None, twin)
                continue
            for name, type in zip(node.outputs, bound._inferred(node.op, node.operands, attributes), strict=True):
                own = self.values[name].type
                if (wanted := declared.get(id(own))) is None:
                    wanted = declared[id(own)] = bound._once(name, bind_type(own, known))
                bound.values[name] = Value(name, bound._once(name, type), "activation", None, twin)
                bound.narrow(name, wanted)
                if self.measured and (sizes := self._determined(wanted, bound.values[name].type)):
                    known, declared = Values(known | sizes), {}
            if not self.measured and not bound.measured:
                settled[alike] = [bound.values[name].type for name in node.outputs]
        bound._link_all(built)
        bound._copy_interface(self)
        bound.measured = {symbol: name for symbol, name in bound.measured.items() if symbol not in known}
        return bound

    def _determined(self, declared: Type, type: Type) -> dict[str, int]:
        """Return the measured symbols that are dims of their own where another type of the value has a size."""
        if not isinstance(declared, TensorType) or not isinstance(type, TensorType):
            return {}
        pairs = zip(declared.shape, type.shape, strict=True)
        return {str(a): b for a, b in pairs if isinstance(b, int) and str(a) in self.measured}

    # -- inside -------------------------------------------------------------------------------------------------

    def narrow(self, name: str, declared: Type) -> None:
        """Refine unknown and symbolic dims of an inferred type by a declared one. Raises ShapeError."""
        value = self.values[name]
        if value.type is declared or value.type == declared:
            return
        value.type = narrowed(name, inferred := value.type, declared)
        if isinstance(inferred, TensorType) and isinstance(value.type, TensorType) and value.producer is not None:
            for before, dim in zip(inferred.shape, value.type.shape, strict=True):
                if before is None and isinstance(dim, Expr) and len(names := symbols_of(dim)) == 1:
                    self.measured.setdefault(names.pop(), name)
        value.type = self._once(name, value.type)

    def _inferred(self, op: Op, operands: Sequence[str | None], attributes: dict[str, Any]) -> tuple[Type, ...]:
        types = op.infer(*[None if o is None else self.values[o].type for o in operands], **attributes)
        return types if isinstance(types, tuple) else (types,)

    def _copy_interface(self, source: Graph) -> None:
        self.inputs, self.outputs, self.states = list(source.inputs), dict(source.outputs), dict(source.states)
        self.initial, self.measured = dict(source.initial), dict(source.measured)
        self._fresh, self.trades = source._fresh, dict(source.trades)

    def _declare(self, value: Value) -> None:
        if value.name in self.values:
            raise self._name_error(value.name)
        value.type = self._once(value.name, value.type)
        if len(self) > MAX_NODES:
            raise LimitError(f"graph {self.name!r}: too many nodes, expected at most {MAX_NODES}")
        self.values[value.name] = value

    def _name_error(self, name: str) -> LoadError:
        return LoadError(f"graph {self.name!r}: value {name!r} is defined twice")

    def _once(self, name: str, type: Type) -> Type:
        """Return the shared object for a type, which is checked when a first value has it."""
        known = self._types.get(type)
        if known is None:
            if isinstance(type, TensorType):
                check_shape(name, type.shape, type.dtype, MAX_RANK)
            known = self._types[type] = type
        return known

    def _read(self, node: Node, operands: Sequence[str | None]) -> None:
        """Set a node's operands, and update their uses."""
        for operand in node.operands:
            self._use(operand, node, -1)
        node.operands = tuple(operands)
        for operand in node.operands:
            self._use(operand, node, 1)

    def _use(self, name: str | None, node: Node, change: int) -> None:
        if name is None:
            return
        users = self.values[name].users
        users[node] = users.get(node, 0) + change
        if users[node] == 0:
            del users[node]

    def _link(self, node: Node, before: Node | None = None) -> None:
        """Insert a node into the order, and record its uses."""
        for operand in node.operands:
            self._use(operand, node, 1)
        assert before in self._next, f"{before} was removed"
        previous = self._previous[before]
        self._next[previous] = self._previous[before] = node
        self._next[node], self._previous[node] = before, previous
        self._uses[node.op.name] += 1

    def _link_all(self, nodes: Sequence[Node]) -> None:
        """Set the order of all nodes, and record their uses."""
        for node in nodes:
            for operand in node.operands:
                self._use(operand, node, 1)
        self._uses = Counter([node.op.name for node in nodes])
        self._order(nodes)

    def _order(self, nodes: Sequence[Node]) -> None:
        ring = list(pairwise([None, *nodes, None]))
        self._next, self._previous = dict(ring), {node: previous for previous, node in ring}

    # -- checking -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; a failure is a bug of Ingot, so it asserts."""
        seen = {name for name, value in self.values.items() if value.producer is None}
        users: dict[str, dict[Node, int]] = {name: {} for name in self.values}
        last = None
        for node in self.nodes:
            assert self._previous[node] is last, f"{node} is linked wrongly"
            last = node
            for operand in node.operands:
                if operand is not None:
                    assert operand in seen, f"{node} reads {operand} before it is computed"
                    users[operand][node] = users[operand].get(node, 0) + 1
            for symbol in self.mentioned(node) if self.measured else ():
                assert self.measured[symbol] in seen, f"{node} uses {symbol} before it is measured"
            inferred = self._inferred(node.op, node.operands, node.attributes)
            for output, type in zip(node.outputs, inferred, strict=True):
                declared = self.values[output].type
                assert self.values[output].producer is node, f"{output} has a wrong producer"
                assert output not in seen, f"{output} is computed twice"
                assert compatible(declared, type), f"{output} is {declared}, {node.op.name} makes {type}"
                seen.add(output)
        is_ring = self._previous[None] is last and self._previous.keys() == self._next.keys()
        is_counted = +self._uses == Counter(node.op.name for node in self.nodes)
        assert is_ring and is_counted, "the ring of nodes is broken, or miscounted"
        assert seen == set(self.values), f"values without a producer: {sorted(set(self.values) - seen)}"
        for name, value in self.values.items():
            assert users[name] == value.users, f"{name} has a wrong use list"
            assert value.name == name, f"{name} is stored as {value.name}"
            self._validate_value(value)
        for kind, names in (("input", self.inputs), ("state", self.states)):
            registered = sorted(name for name, value in self.values.items() if value.kind == kind)
            assert registered == sorted(names), f"{kind}s are listed as {list(names)}, registered as {registered}"
        for name in self.outputs.values():
            assert name in seen, f"output {name} is no value"
        for name, update in self.states.items():
            assert update in seen, f"state {name} becomes {update}, which is no value"
            types = self.values[name].type, self.values[update].type
            assert compatible(*types), f"state {name} is {types[0]}, its update {types[1]}"
        assert self.initial.keys() <= self.states.keys(), f"{list(self.initial)} begin with data, not all states"

    def _validate_value(self, value: Value) -> None:
        assert value.kind in KINDS, f"{value.name} is a {value.kind}"
        assert (value.kind == "activation") == (value.producer is not None), f"{value.name} is a {value.kind}"
        assert value.data is None or value.kind in ("weight", "constant"), f"{value.kind} {value.name} has data"
        assert value.kind != "constant" or value.data is not None, f"constant {value.name} has no data"
        if (data := self.initial.get(value.name, value.data)) is not None:
            actual = TensorType(from_numpy(data.dtype), data.shape)
            assert actual == value.type, f"{value.name} is {value.type}, its data {actual}"


def symbols_in(attribute: Any) -> set[str]:
    """Return the names of the symbols in an attribute, including the types and attributes of a subgraph."""
    if isinstance(attribute, tuple):
        return set().union(*map(symbols_in, attribute))
    if not isinstance(attribute, Graph):
        return symbols_of(attribute)
    found = {name for value in attribute.values.values() for name in type_symbols(value.type)}
    return found.union(*(symbols_in(each) for node in attribute.nodes for each in node.attributes.values()))


PLAIN = frozenset((int, float, bool, str, type(None), DType))  # classes of attributes that have no dims


def bind_attribute(value: Any, symbols: Mapping[str, int]) -> Any:
    """Return an attribute with the given symbols replaced in dims, at any depth."""
    if value.__class__ in PLAIN:
        return value
    if isinstance(value, tuple):
        return tuple([item if item.__class__ in PLAIN else bind_attribute(item, symbols) for item in value])
    if isinstance(value, Graph):
        return value.bind(symbols)
    return bind(value, symbols)

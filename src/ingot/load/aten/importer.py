"""Translate every live ATen call of fx graphs by its rule.

An op without a rule is decomposed by torch itself, on fake tensors, and the resulting simpler calls are translated
instead; all calls that cannot be resolved are reported in one error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ingot.errors import LoadError, ShapeError, UnsupportedError
from ingot.ir.dim import Expr
from ingot.ir.dtype import i64
from ingot.ir.graph import Graph, Source, TensorType, symbols_in
from ingot.load.aten.builder import FROM_COMPLEX, AtenBuilder, Complex, from_torch, is_complex
from ingot.load.aten.control import CONTROL
from ingot.load.aten.custom import registered
from ingot.load.aten.data import READS_A_NUMBER, NumberOfData, read_number
from ingot.load.aten.failures import typed
from ingot.load.aten.flexible import flex_attention
from ingot.load.aten.names import module_path, value_name
from ingot.load.aten.quantized import definition
from ingot.load.aten.registry import REFUSED, RULES, rule_key
from ingot.load.aten.symbolic import Symbols
from ingot.load.aten.training import is_without_gradients
from ingot.load.aten.writes import writes
from ingot.load.built_ops import note
from ingot.ops.custom import find_torch

CONSTANT_BYTES_MAX = 64 * 1024

Fakes = Callable[[], tuple[Any, Any, dict[int, str]]]  # arguments as fake tensors, and names by their identity


def live_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that the results need, in order, and those that define a size that depends on data; sources of a
    known size are not needed.
    """
    wanted: set[Node] = set()
    live = []
    for node in reversed(list(nodes)):
        decides = bool(node.meta.get("unbacked_bindings"))
        if node.op == "output" or node in wanted or decides:
            live.append(node)
            if decides or not isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat)):
                wanted.update(node.all_input_nodes)
    return live[::-1]


class Importer:
    """The translation of fx graphs; `env` maps each fx node to a value name, a dim, a tuple, or a plain value."""

    def __init__(self, symbols: Symbols):
        self.graph = Graph("torch")
        self.builder = AtenBuilder(self.graph)
        self.symbols = symbols
        self.builder.of_data = symbols.of_data
        self.env: dict[Node, Any] = {}
        self.drops: Callable[[Node], bool] | None = None
        self._names: dict[tuple, str] = {}  # storage of a tensor -> its weight
        self._missing: dict[str, list[str]] = {}
        self._refused: list[str] = []
        self._called = ""  # the op whose decomposition is being translated
        self._sources = 0  # calls that nodes were named after
        self._depth = 0  # decompositions within decompositions; the outermost makes all of them functional

    # -- the border

    def input(self, node: Node) -> Any:
        """Declare a graph input; a size or constant argument needs none."""
        value = node.meta.get("val")
        if is_complex(value):
            raise UnsupportedError(f"torch input {node.name!r}: complex numbers, expected their torch.view_as_real")
        if isinstance(value, torch.Tensor):
            return self.graph.add_input(self.graph.fresh(node.name), self.type_of(value))
        return self.value(value)

    def weight(self, name: str, tensor: torch.Tensor, may_be_constant: bool = False) -> Any:
        """Declare a parameter; tensors over the same memory are one weight. Complex numbers are parts of one."""
        if is_complex(tensor):
            pair = self.weight(name, torch.view_as_real(tensor.resolve_conj()), may_be_constant)
            b, shape = self.builder, tuple(tensor.shape)
            b.hint = pair
            return Complex(*(b.reshape(b.slice(pair, len(shape), i, i + 1), shape) for i in (0, 1)))
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in self._names or tensor.numel() == 0:
            array, name = to_numpy(tensor), self.graph.fresh(name)
            small = may_be_constant and array.nbytes <= CONSTANT_BYTES_MAX
            self._names[key] = (self.graph.add_constant if small else self.graph.add_weight)(name, array)
        return self._names[key]

    def state(self, name: str, tensor: torch.Tensor) -> str:
        """Declare a buffer that persists across runs."""
        if is_complex(tensor):
            raise UnsupportedError(f"torch buffer {name!r}: is written to and complex, expected real numbers")
        self.graph.add_state(name, self.type_of(tensor))
        if tensor.any():
            self.graph.begin_state(name, to_numpy(tensor).copy())
        return name

    def output(self, name: str, result: Any) -> None:
        """Declare a graph output; numbers and sizes become data, None is omitted. Complex numbers are rejected."""
        if is_complex(result):
            self._refused.append(f"torch output {name!r}: complex numbers, expected their torch.view_as_real")
            return
        if isinstance(result, Expr):
            result = self.builder.scalar(result, i64)
        elif isinstance(result, (bool, int, float)):
            result = self.builder.constant(np.array(result))
        if result is not None:
            self.graph.set_output(name, result)

    def inner(self) -> Importer:
        """Return an importer for a subgraph of this graph."""
        built = Importer(self.symbols)
        built.drops, built.builder.moving, built.builder.trains = self.drops, self.builder.moving, self.builder.trains
        return built

    def report(self) -> None:
        """Raise UnsupportedError with all calls that could not be translated."""
        whys = {target: f", which {why}" for target, why in REFUSED.items()}
        missing = [f"{target} ({', '.join(nodes)}){whys.get(target, '')}" for target, nodes in self._missing.items()]
        if missing:
            self._refused.insert(0, f"torch program: ops without a rule, got {', '.join(missing)}; see 'ingot ops'")
        if self._refused:
            raise UnsupportedError("; ".join(self._refused))
        found = set(self.graph.measured).union(*(body.measured for body in self.graph.bodies))
        if unmeasured := self.symbols.of_data & symbols_in(self.graph) - found:
            raise UnsupportedError(f"torch size: depends on data, got {sorted(unmeasured)}, expected sizes of results")

    # -- walking

    def run(self, module: GraphModule, graph: torch.fx.Graph) -> list[Any]:
        """Translate the live nodes of a module's graph, whose placeholders are in `env`; return its results."""
        returned: Any = ()
        for node in live_nodes(graph.nodes):
            if node.op == "output":
                returned = self.values(node.args[0])
            elif node.op == "get_attr":
                self.env[node] = self._attribute(module, str(node.target))
            elif node.op == "call_function":
                self.env[node] = self._call(module, node)
            elif node not in self.env:
                raise LoadError(f"torch node {node.name!r}: kind {node.op!r}, expected a call of an ATen op")
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    def values(self, tree: Any) -> Any:
        """Apply `value` to every leaf of nested arguments."""
        if isinstance(tree, (list, tuple)):
            return [self.values(leaf) for leaf in tree]
        return {k: self.values(v) for k, v in tree.items()} if isinstance(tree, dict) else self.value(tree)

    def value(self, argument: Any) -> Any:
        """Return the translation of an fx argument: nodes by `env`, sizes as dims."""
        if isinstance(argument, Node):
            return self.env[argument]
        if isinstance(argument, torch.SymInt):
            return self.symbols.dim(argument)
        if isinstance(argument, (torch.SymFloat, torch.SymBool)):
            if not argument.node.expr.is_number:
                raise UnsupportedError(f"torch size: number computed from sizes, got {argument}, expected integers")
            return float(argument.node.expr)
        return argument

    def _attribute(self, module: GraphModule, target: str) -> Any:
        attribute: Any = functools.reduce(getattr, target.split("."), module)
        if isinstance(attribute, torch.Tensor):
            return self.weight(target, attribute, may_be_constant=True)
        return attribute

    def _call(self, module: GraphModule, node: Node) -> Any:
        produced = node.meta.get("val")
        try:
            if str(node.target) in READS_A_NUMBER:
                return read_number(self.builder, node, self.value(node.args[0]), self.symbols)
            if isinstance(produced, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
                return self.value(produced)
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                return self._region(node, produced)
            args, kwargs = self.values(node.args), self.values(node.kwargs)
        except UnsupportedError as error:
            return self._refuse(f"torch node {node.name!r}: {error}", produced)
        if not isinstance(node.target, torch._ops.OpOverload):
            assert node.target.__name__ == "getitem", node.target  # type: ignore[union-attr]
            return self._item(node, args)
        self.builder.hint = self.graph.fresh(value_name(node))
        self.builder.drops = self.drops is not None and self.drops(node)
        self.graph.origin = (Source(self._sources, node.name, str(node.target), module=module_path(node)),)
        self._sources += 1
        result = self.translate(node.target, args, kwargs, produced, lambda: self._fakes(node), node.name)
        if isinstance(result, str) and (maker := self.graph.producer(result)) is not None:
            self.graph.name_after(maker, self.graph.origin)  # it may have been there before
        self.graph.origin = ()
        if node.meta.get("unbacked_bindings"):
            self._sized(produced, result)
        return self._named(result)

    def _sized(self, produced: Any, result: Any) -> None:
        """Record the dim of a size that torch considers dependent on data, but the rule computes from others."""
        if isinstance(produced, torch.Tensor) and isinstance(result, str):
            for size, found in zip(produced.shape, self.builder.shape(result), strict=True):
                self.symbols.learn(size, found)

    def _item(self, node: Node, args: list) -> Any:
        item = computed(args[0][args[1]])
        if item is None:
            message = f"torch node {node.name!r}: result {args[1]} of {node.args[0]} is not computed"
            return self._refuse(message, node.meta["val"])
        return item

    def _named(self, result: Any) -> Any:
        """Rename the value of a call to the call's plain name, if that is free."""
        hint = self.builder.hint
        if isinstance(result, Complex):
            return Complex(self._renamed(result.real, hint), self._renamed(result.imaginary, f"{hint}.imaginary"))
        return self._renamed(result, hint)

    def _renamed(self, result: Any, hint: str) -> Any:
        made_here = isinstance(result, str) and result.startswith(f"{self.builder.hint}.")
        if not made_here or hint in self.graph.values:
            return result
        self.graph.rename(result, hint)
        return hint

    def _fakes(self, node: Node) -> tuple[Any, Any, dict[int, str]]:
        names: dict[int, str] = {}

        def fake(argument: Any) -> Any:
            if not isinstance(argument, Node):
                return argument
            if argument.meta.get("val") is None:
                return self.env[argument]
            names[id(argument.meta["val"])] = self.env[argument]
            return argument.meta["val"]

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), fake)  # type: ignore[misc]
        return args, kwargs, names

    def _region(self, node: Node, produced: Any) -> Any:
        """Translate a higher-order call: as a part of this graph, as an op that runs subgraphs, or by torch's
        decomposition.
        """
        kind = str(node.target)
        if kind == "flex_attention":
            return self._decomposed(flex_attention, kind, lambda: self._fakes(node), produced, node.name)
        if kind in CONTROL:
            self.builder.hint = self.graph.fresh(value_name(node))
            return CONTROL[kind](self, node)
        if kind == "wrap_with_set_grad_enabled":
            region, arguments = node.args[1], node.args[2:]
        elif kind == "wrap_with_autocast" and not node.args[2]:
            region, arguments = node.args[4], node.args[5:]
        else:
            raise UnsupportedError(f"control flow, got {kind!r}, expected one of {', '.join(sorted(CONTROL))}")
        results = self.inlined(self.env[region], [self.value(each) for each in arguments])  # type: ignore[index]
        if self.builder.trains and is_without_gradients(node):
            results = [self._detached(result) for result in results]
        return tuple(results)

    def inlined(self, region: GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """Translate a graph on given arguments, as a part of this graph."""
        placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
        self.env.update(zip(placeholders, arguments, strict=True))
        return self.run(region, region.graph)

    def _detached(self, result: Any) -> Any:
        if not isinstance(result, str) or self.graph.type(result).dtype.kind != "f":
            return result
        return self.graph.add("detach", [result], f"{result}.detached").output

    # -- one call

    def translate(self, target: Any, args: list, kwargs: dict, produced: Any, fakes: Fakes, name: str) -> Any:
        """Translate a call of an op; `produced` is its fake result, `name` its fx node."""
        key = rule_key(str(target), _has_complex((args, kwargs, produced)))
        rule = RULES.get(key)
        try:
            self.builder.target = str(target)
            self.builder.result = self._types(produced)
            self.builder.makes_complex = is_complex(produced)
            self.builder.fakes = fakes
            self.builder.ops = set()
            keywords = {k: v for k, v in kwargs.items() if k not in IGNORED}
            own = find_torch(str(target))
            if own is not None:
                return registered(self.builder, own, target, args, kwargs)
            result = NotImplemented if rule is None else rule(self.builder, *args, **keywords)
            if result is NotImplemented:
                return self._decomposed(target, key, fakes, produced, name)
            note(key, self.builder.ops)
            return result
        except UnsupportedError as error:
            return self._refuse(str(error), produced)
        except GuardOnDataDependentSymNode:  # the substitute of a refused number was read
            return self._refuse(f"torch node {name!r}: a number that depends on data, expected a constant", produced)
        except (TypeError, ValueError) as error:
            if not any(isinstance(leaf, NumberOfData) for leaf in tree_leaves((args, kwargs))):
                raise
            refused = f"torch node {name!r} ({target}): a number that depends on data, expected a constant, for {error}"
            return self._refuse(refused, produced)
        except ShapeError as error:
            raise ShapeError(f"torch node {name!r} ({target}): {error}") from error

    def _decomposed(self, target: Any, key: str, fakes: Fakes, produced: Any, name: str) -> Any:
        """Run torch's own decomposition on fake tensors and translate the resulting calls."""
        decomposition = _decomposition(target)
        if decomposition is None:
            nodes = self._missing.setdefault(self._called if self._depth else key, [])
            nodes.extend([name] if name not in nodes else [])
            return self._stand_in(produced)
        args, kwargs, names = fakes()
        mode = detect_fake_mode(tree_leaves((args, kwargs, produced)))
        assert mode is not None, f"{name} has no fake tensors"
        calls = _Calls(self, names, name)
        if not self._depth:
            self._called = key
        is_op = isinstance(target, torch._ops.OpOverload)  # a function of ours writes into nothing
        functional = torch.func.functionalize(decomposition) if is_op and not self._depth else decomposition
        self._depth += 1
        try:
            where = f"torch node {name!r} ({key}): torch's decomposition fails"
            with typed(where, "an op with a rule; see 'ingot ops'"), _unrecorded_sizes(mode), mode, calls:
                result = functional(*args, **kwargs)
        finally:
            self._depth -= 1
        return tree_map(calls.value, list(result) if isinstance(result, tuple) else result)

    def _refuse(self, message: str, produced: Any) -> Any:
        """Record a call that cannot be translated and continue, so that all of them are reported at once."""
        if message not in self._refused:
            self._refused.append(message)
        return self._stand_in(produced)

    def _stand_in(self, produced: Any) -> Any:
        if isinstance(produced, (list, tuple)):
            return [self._stand_in(part) for part in produced]
        if not isinstance(produced, torch.Tensor):
            return produced
        try:
            names = [self.graph.add_input(self.graph.fresh("missing"), self.type_of(produced)) for _ in "ri"]
            return Complex(*names) if is_complex(produced) else names[0]
        except UnsupportedError:  # a dtype or size of its own that Ingot does not have; noted already
            return self.builder.constant(np.zeros(produced.ndim * (1,), np.float32))

    def _types(self, produced: Any) -> Any:
        if isinstance(produced, (list, tuple)):
            return [self._types(part) for part in produced]
        return self.type_of(produced) if isinstance(produced, torch.Tensor) else None

    def type_of(self, fake: torch.Tensor) -> TensorType:
        dtype = FROM_COMPLEX[fake.dtype] if is_complex(fake) else from_torch(fake.dtype)
        return TensorType(dtype, self.symbols.shape(fake.shape))


def computed(result: Any) -> Any:
    """Evaluate a result of a rule that is a function: it is only computed where it is used."""
    return result() if callable(result) else result


IGNORED = {
    "layout",
    "device",
    "pin_memory",
    "memory_format",
    "requires_grad",
}  # they select the storage, not the values


def _decomposition(target: Any) -> Callable[..., Any] | None:
    """Return torch's decomposition of an op, or of a higher-order call, into simpler ops; None without one."""
    if not isinstance(target, torch._ops.OpOverload):
        return target
    if writes(target):
        return None
    if (defined := definition(target)) is not None:
        return defined
    return target.decompose if target._can_decompose() else decomposition_table.get(target)


def _unrecorded_sizes(mode: FakeTensorMode) -> contextlib.AbstractContextManager[None]:
    """Return a context in which sizes that depend on data are not recorded in the program: torch creates them when it
    traces the program again.
    """
    env = mode.shape_env
    return contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()


def _has_complex(tree: Any) -> bool:
    """Return whether nested arguments contain a complex number, or a translated complex tensor."""
    if isinstance(tree, (list, tuple)):
        return any(map(_has_complex, tree))
    return any(map(_has_complex, tree.values())) if isinstance(tree, dict) else is_complex(tree)


class _Calls(TorchDispatchMode):
    """Translate each op call while it is active; `names` maps a fake tensor to its value."""

    def __init__(self, importer: Importer, names: dict[int, str], name: str):
        super().__init__()
        self.importer = importer
        self.names = names
        self.name = name
        self.alive: list[Any] = []  # identities stay unique while the tensors live

    def value(self, argument: Any) -> Any:
        """Return the value of a fake tensor, or the argument itself with sizes as dims."""
        return (
            computed(self.names[id(argument)]) if isinstance(argument, torch.Tensor) else self.importer.value(argument)
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        produced = func(*args, **kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(produced)):
            return produced  # a size or a property
        mapped_args, mapped_kwargs = self._mapped(args), {k: self._mapped(v) for k, v in kwargs.items()}
        result = self.importer.translate(
            func, mapped_args, mapped_kwargs, produced, lambda: (args, kwargs, self.names), self.name
        )
        self._bind(produced, result)
        return produced

    def _mapped(self, tree: Any) -> Any:
        return [self._mapped(leaf) for leaf in tree] if isinstance(tree, (list, tuple)) else self.value(tree)

    def _bind(self, produced: Any, result: Any) -> None:
        if isinstance(produced, (list, tuple)):
            for part, value in zip(produced, result, strict=True):
                self._bind(part, value)
        elif isinstance(produced, torch.Tensor):
            self.alive.append(produced)
            self.names[id(produced)] = result


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's memory as an array, without a copy if it is contiguous and on the CPU."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    from_torch(plain.dtype)
    if plain.dtype is torch.bfloat16:
        import ml_dtypes

        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()

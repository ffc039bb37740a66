"""ExportedProgram -> Graph.

Every live ATen call is translated by its rule. An op without one is decomposed by torch itself, on fake tensors, and
the simpler calls it makes are translated instead; what even that does not resolve is reported in one error.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.fx import config as fx_config
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import ingot.ops  # noqa: F401  # declares the ops that rules make
from ingot.collector import uncollected
from ingot.dim import Expr, symbols_of
from ingot.dtype import i64
from ingot.errors import KindError, LoadError, ShapeError, UnsupportedError
from ingot.ir import Graph, TensorType
from ingot.load.aten import (  # noqa: F401  # rules
    attention,
    backward,
    complex,
    conv,
    elementwise,
    fourier,
    index,
    linear,
    norm,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    shape,
)  # fmt: skip
from ingot.load.aten.archive import CONTRADICTION, read_archive
from ingot.load.aten.builder import FROM_COMPLEX, AtenBuilder, Complex, from_torch, is_complex
from ingot.load.aten.calls import expect_called
from ingot.load.aten.custom import registered
from ingot.load.aten.names import declared_dims, dim_names, output_names, value_name
from ingot.load.aten.registry import RULES, rule_key
from ingot.load.aten.symbolic import Symbols
from ingot.load.aten.training import (
    attending,
    ends_marked,
    is_training,
    is_without_gradients,
    moving_means,
    nodes_of,
    part_of,
)
from ingot.load.aten.writes import without_writes, writes
from ingot.load.made import note
from ingot.ops.custom import find_torch

CONSTANT_BYTES_MAX = 64 * 1024

Fakes = Callable[[], tuple[Any, Any, dict[int, str]]]  # arguments as fake tensors, and names by their identity


@uncollected()
def load_any(source: Any, example_inputs: tuple | dict[str, Any] | None, *, is_trained: bool = False) -> Graph | None:
    """The graph of an ExportedProgram, or of a module with its example inputs; None for anything else. is_trained: what
    is in training mode stays so: dropout, and batch norm of a module.

    Raises KindError for a module without example inputs, and what `load_exported` and `load_module` raise.
    """
    if isinstance(source, torch.export.ExportedProgram):
        return load_exported(source, drops=is_training if is_trained else None)
    if not isinstance(source, torch.nn.Module):
        return None
    if example_inputs is None:
        raise KindError(
            f"module {type(source).__name__}: example_inputs missing, got none, expected a tuple of"
            " tensors: InferenceSession(module, example_inputs=(x,))"
        )
    return load_module(source, _arguments(source, example_inputs), is_trained=is_trained)


def _arguments(module: torch.nn.Module, example_inputs: Any) -> tuple | dict[str, Any]:
    """What a module is exported with; a tensor alone is its only argument. Raises KindError for what is none of both,
    and for arrays of numpy.
    """
    where = f"module {type(module).__name__}: example_inputs"
    if isinstance(example_inputs, (torch.Tensor, np.ndarray)):
        example_inputs = (example_inputs,)
    if not isinstance(example_inputs, (tuple, list, dict)):
        expected = "a tensor, a tuple of the arguments of forward, or a dict of them by name"
        raise KindError(f"{where}: got {type(example_inputs).__name__}, expected {expected}")
    given = example_inputs.values() if isinstance(example_inputs, dict) else example_inputs
    if any(isinstance(each, np.ndarray) for each in given):
        raise KindError(f"{where}: got an array of numpy, expected torch.from_numpy(array)")
    return example_inputs if isinstance(example_inputs, dict) else tuple(example_inputs)


def load_module(
    module: torch.nn.Module,
    example_inputs: tuple | dict[str, Any],
    dynamic_shapes: Any = None,
    *,
    is_trained: bool = False,
) -> Graph:
    """The graph of a module in eval mode, exported with `example_inputs`: a tuple, or a dict of keyword arguments.

    `dynamic_shapes` is torch.export's; the names of its Dims become the graph's symbols. Parameters are views of the
    module's storage. is_trained: see `load_any`. Raises what `expect_called` does, and UnsupportedError, listing every
    op without a rule or a decomposition.
    """
    args, kwargs = ((), example_inputs) if isinstance(example_inputs, dict) else (tuple(example_inputs), {})
    expect_called(module, args, kwargs, " and a target" if is_trained else "")
    moving = moving_means(module) if is_trained else {}
    program = _exported(module, args, kwargs, dynamic_shapes, is_trained)
    if is_trained and (parts := attending(module, program)):
        program = _exported(module, args, kwargs, dynamic_shapes, is_trained, parts)
    submodule = functools.cache(module.get_submodule)
    drops = (lambda node: part_of(submodule, node).training) if is_trained else None
    names = dim_names(program, (*args, *kwargs.values()), dynamic_shapes)
    return load_exported(program, names, drops=drops, moving=moving)


def _exported(
    module: torch.nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    is_trained: bool,
    attending: Iterable[torch.nn.Module] = (),
) -> torch.export.ExportedProgram:
    """A module's program in eval mode, but for parts that are in training mode as they are called. is_trained: it says
    where the module has gradients off.
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    for part in attending:
        part.training = True
    try:
        with torch.set_grad_enabled(is_trained), _lean():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextlib.contextmanager
def _lean() -> Iterator[None]:
    """While it is open, torch notes of no node where in Python it was made, and writes no Python for graphs that nobody
    calls: each is about a quarter of what exporting takes.
    """
    before = getattr(fx_config, "do_not_emit_stack_traces", False)
    fx_config.do_not_emit_stack_traces = True
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        fx_config.do_not_emit_stack_traces = before


@uncollected()
def load_pt2(path: str | os.PathLike, *, is_mapped: bool = False) -> Graph:
    """The graph of a saved ExportedProgram; nothing in the file is run. is_mapped: see `read_archive`.

    Raises what `read_archive` raises, LoadError for a graph that contradicts itself too, and OSError when the file
    cannot be opened.
    """
    with open(path, "rb") as file:
        program = read_archive(file, os.fspath(path), is_mapped=is_mapped)
    try:
        return load_exported(program)
    except CONTRADICTION as error:
        raise LoadError(f"{os.fspath(path)}: contradicts itself, got {str(error)[:200]!r}") from error


def load_exported(
    program: torch.export.ExportedProgram,
    symbol_names: dict[str, str] | None = None,
    *,
    drops: Callable[[Node], bool] | None = None,
    moving: Mapping[str, float] = MappingProxyType({}),
) -> Graph:
    """The graph of an ExportedProgram, in training IR or in core ATen.

    Parameters and buffers are weights under their qualified names, views of the program's storage; mutated buffers
    are states. `symbol_names` renames the program's symbols; others have the names of their `torch.export.Dim`. drops:
    whether the dropout of a call stays; None for none. moving: see `AtenBuilder`. Raises UnsupportedError like
    `load_module`, also for a program that writes into its inputs.
    """
    symbol_names = declared_dims(program) | (symbol_names or {})
    graph: torch.fx.Graph | None = program.graph
    if any(writes(node.target) for node in nodes_of(program)):
        graph = without_writes(program.graph_module)
    if graph is None:
        with _lean(), ends_marked(program) if drops is not None else contextlib.nullcontext():
            program = program.run_decompositions({})  # makes it functional and decomposes nothing
        graph = program.graph
    importer = Importer(Symbols(symbol_names))
    importer.drops, importer.builder.moving, importer.builder.trains = drops, moving, drops is not None
    _declare_inputs(importer, program, graph)
    results = importer.run(program.graph_module, graph)
    _declare_outputs(importer, program, results)
    importer.report()
    return importer.graph


def load_traced(module: GraphModule, parameters: dict[int, tuple[str, torch.Tensor]]) -> Graph:
    """The graph of a functional ATen graph whose nodes carry fake tensors, as AOT Autograd makes it.

    parameters: placeholder position -> (name, tensor), to be weights; the other tensors are inputs, in order. Outputs
    are `output_0`, `output_1` ...; None results are left out. Raises UnsupportedError like `load_module`.
    """
    importer = Importer(Symbols())
    importer.builder.draws = False
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for i, node in enumerate(placeholders):
        importer.env[node] = importer.weight(*parameters[i]) if i in parameters else importer.input(node)
    unbound = set().union(*(symbols_of(importer.env[node]) for node in placeholders)) - set(importer.graph.symbols)
    if unbound:
        raise UnsupportedError(f"torch graph: sizes {sorted(unbound)} belong to no input, expected sizes of tensors")
    for i, result in enumerate(importer.run(module, module.graph)):
        importer.output(f"output_{i}", result)
    importer.report()
    return importer.graph


def _declare_inputs(importer: Importer, program: torch.export.ExportedProgram, graph: torch.fx.Graph) -> None:
    signature, live = program.graph_signature, set(live_nodes(graph.nodes))
    mutated = set(signature.buffers_to_mutate.values())
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            importer.env[node] = importer.input(node)
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT or (node not in live and spec.target not in mutated):
            continue
        if spec.kind is InputKind.CONSTANT_TENSOR:
            importer.env[node] = importer.weight(spec.target, program.constants[spec.target], may_be_constant=True)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            stored = program.state_dict if spec.target in program.state_dict else program.constants
            declare = importer.state if spec.target in mutated else importer.weight
            importer.env[node] = declare(spec.target, stored[spec.target])
        else:
            raise UnsupportedError(f"torch program: input {node.name!r} is a {spec.kind.name}, expected tensors")


def _declare_outputs(importer: Importer, program: torch.export.ExportedProgram, results: list[Any]) -> None:
    specs = program.graph_signature.output_specs
    users = [spec for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    names = iter(output_names(program.call_spec.out_spec, len(users)))
    for spec, result in zip(specs, results, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            importer.output(next(names), result)
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            importer.graph.set_state(spec.target, result)
        else:
            raise UnsupportedError(f"torch program: writes into {spec.target!r}, expected no change of inputs")


def live_nodes(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that the results need, in order; what a known size was taken from is not needed."""
    wanted: set[Node] = set()
    live = []
    for node in reversed(list(nodes)):
        if node.op == "output" or node in wanted:
            live.append(node)
            if not isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat)):
                wanted.update(node.all_input_nodes)
    return live[::-1]


class Importer:
    """Walks fx graphs; `env` holds what each fx node became: a value name, a dim, a tuple, or a plain value."""

    def __init__(self, symbols: Symbols):
        self.graph = Graph("torch")
        self.builder = AtenBuilder(self.graph)
        self.symbols = symbols
        self.env: dict[Node, Any] = {}
        self.drops: Callable[[Node], bool] | None = None
        self._names: dict[tuple, str] = {}  # storage of a tensor -> its weight
        self._missing: dict[str, list[str]] = {}
        self._refused: list[str] = []
        self._called = ""  # the op whose decomposition is being translated
        self._depth = 0  # decompositions within decompositions; the outermost makes all of them functional

    # -- the border

    def input(self, node: Node) -> Any:
        """Declares a graph input; a size or constant argument needs none."""
        value = node.meta.get("val")
        if is_complex(value):
            raise UnsupportedError(f"torch input {node.name!r}: complex numbers, expected their torch.view_as_real")
        if isinstance(value, torch.Tensor):
            return self.graph.add_input(self.graph.fresh(node.name), self._type(value))
        return self.value(value)

    def weight(self, name: str, tensor: torch.Tensor, may_be_constant: bool = False) -> Any:
        """Declares a parameter; tensors over the same memory are one weight. Complex numbers are parts of one."""
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
        """Declares a buffer that lives across runs."""
        if is_complex(tensor):
            raise UnsupportedError(f"torch buffer {name!r}: is written to and complex, expected real numbers")
        self.graph.add_state(name, self._type(tensor))
        if tensor.any():
            self.graph.begin_state(name, to_numpy(tensor).copy())
        return name

    def output(self, name: str, result: Any) -> None:
        """Declares a graph output; numbers and sizes become data, None is left out. Complex numbers are refused."""
        if is_complex(result):
            self._refused.append(f"torch output {name!r}: complex numbers, expected their torch.view_as_real")
            return
        if isinstance(result, Expr):
            result = self.builder.scalar(result, i64)
        elif isinstance(result, (bool, int, float)):
            result = self.builder.constant(np.array(result))
        if result is not None:
            self.graph.set_output(name, result)

    def report(self) -> None:
        """Raises UnsupportedError with everything that could not be translated."""
        missing = [f"{target} ({', '.join(nodes)})" for target, nodes in self._missing.items()]
        if missing:
            self._refused.insert(0, f"torch program: ops without a rule, got {', '.join(missing)}; see 'ingot ops'")
        if self._refused:
            raise UnsupportedError("; ".join(self._refused))

    # -- walking

    def run(self, module: GraphModule, graph: torch.fx.Graph) -> list[Any]:
        """Translates the live nodes of a module's graph, whose placeholders are in `env`; gives what it returns."""
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
        """`value` of every leaf of nested arguments."""
        if isinstance(tree, (list, tuple)):
            return [self.values(leaf) for leaf in tree]
        return {k: self.values(v) for k, v in tree.items()} if isinstance(tree, dict) else self.value(tree)

    def value(self, argument: Any) -> Any:
        """What an fx argument became: nodes by `env`, sizes as dims."""
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
            if isinstance(produced, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
                return self.value(produced)
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                return self._inlined(module, node)
            args, kwargs = self.values(node.args), self.values(node.kwargs)
        except UnsupportedError as error:
            return self._refuse(f"torch node {node.name!r}: {error}", produced)
        if not isinstance(node.target, torch._ops.OpOverload):
            assert node.target.__name__ == "getitem", node.target  # type: ignore[union-attr]
            return self._item(node, args)
        self.builder.hint = self.graph.fresh(value_name(node))
        self.builder.drops = self.drops is not None and self.drops(node)
        return self._named(self.translate(node.target, args, kwargs, produced, lambda: self._fakes(node), node.name))

    def _item(self, node: Node, args: list) -> Any:
        item = args[0][args[1]]
        if item is None:
            message = f"torch node {node.name!r}: result {args[1]} of {node.args[0]} is not computed"
            return self._refuse(message, node.meta["val"])
        return item

    def _named(self, result: Any) -> Any:
        """Gives the value that a call ends with the call's plain name, where that is free."""
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
            names[id(argument.meta["val"])] = self.env[argument]
            return argument.meta["val"]

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), fake)  # type: ignore[misc]
        return args, kwargs, names

    def _inlined(self, module: GraphModule, node: Node) -> tuple:
        """A region wrapped only to switch gradients or autocast off is part of the graph around it."""
        kind = str(node.target)
        if kind == "wrap_with_set_grad_enabled":
            region, arguments = node.args[1], node.args[2:]
        elif kind == "wrap_with_autocast" and not node.args[2]:
            region, arguments = node.args[4], node.args[5:]
        else:
            raise UnsupportedError(f"control flow, got {kind!r}, expected straight-line code")
        inner = self.env[region]  # type: ignore[index]
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self.env[placeholder] = self.value(argument)
        results = self.run(inner, inner.graph)
        if self.builder.trains and is_without_gradients(node):
            results = [self._detached(result) for result in results]
        return tuple(results)

    def _detached(self, result: Any) -> Any:
        if not isinstance(result, str) or self.graph.type(result).dtype.kind != "f":
            return result
        return self.graph.add("detach", [result], f"{result}.detached").output

    # -- one call

    def translate(self, target: Any, args: list, kwargs: dict, produced: Any, fakes: Fakes, name: str) -> Any:
        """What a call of an op becomes; `produced` is its fake result, `name` its fx node."""
        key = rule_key(str(target), _has_complex((args, kwargs, produced)))
        rule = RULES.get(key)
        try:
            self.builder.target = str(target)
            self.builder.result = self._types(produced)
            self.builder.makes_complex = is_complex(produced)
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
        except GuardOnDataDependentSymNode:  # what stands in for a number that is refused was looked at
            return self._refuse(f"torch node {name!r}: a number that depends on data, expected a constant", produced)
        except ShapeError as error:
            raise ShapeError(f"torch node {name!r} ({target}): {error}") from error

    def _decomposed(self, target: Any, key: str, fakes: Fakes, produced: Any, name: str) -> Any:
        """Runs torch's own decomposition on fake tensors and translates the calls that it makes."""
        decomposition = target.decompose if target._can_decompose() else decomposition_table.get(target)
        if decomposition is None or writes(target):
            nodes = self._missing.setdefault(self._called if self._depth else key, [])
            nodes.extend([name] if name not in nodes else [])
            return self._stand_in(produced)
        args, kwargs, names = fakes()
        mode = detect_fake_mode(tree_leaves((args, kwargs, produced)))
        assert mode is not None, f"{name} has no fake tensors"
        calls = _Calls(self, names, name)
        if not self._depth:
            self._called = key
        functional = decomposition if self._depth else torch.func.functionalize(decomposition)
        self._depth += 1
        with mode, calls:
            result = functional(*args, **kwargs)
        self._depth -= 1
        return tree_map(calls.value, list(result) if isinstance(result, tuple) else result)

    def _refuse(self, message: str, produced: Any) -> Any:
        """Notes what cannot be translated and goes on, so that everything is found at once."""
        if message not in self._refused:
            self._refused.append(message)
        return self._stand_in(produced)

    def _stand_in(self, produced: Any) -> Any:
        if isinstance(produced, (list, tuple)):
            return [self._stand_in(part) for part in produced]
        if not isinstance(produced, torch.Tensor):
            return produced
        try:
            names = [self.graph.add_input(self.graph.fresh("missing"), self._type(produced)) for _ in "ri"]
            return Complex(*names) if is_complex(produced) else names[0]
        except UnsupportedError:  # a dtype or size of its own that Ingot does not have; noted already
            return self.builder.constant(np.zeros(produced.ndim * (1,), np.float32))

    def _types(self, produced: Any) -> Any:
        if isinstance(produced, (list, tuple)):
            return [self._types(part) for part in produced]
        return self._type(produced) if isinstance(produced, torch.Tensor) else None

    def _type(self, fake: torch.Tensor) -> TensorType:
        dtype = FROM_COMPLEX[fake.dtype] if is_complex(fake) else from_torch(fake.dtype)
        return TensorType(dtype, self.symbols.shape(fake.shape))


IGNORED = {"layout", "device", "pin_memory", "memory_format", "requires_grad"}  # say where, not what


def _has_complex(tree: Any) -> bool:
    """Whether nested arguments hold a complex number, or what stands for one."""
    if isinstance(tree, (list, tuple)):
        return any(map(_has_complex, tree))
    return any(map(_has_complex, tree.values())) if isinstance(tree, dict) else is_complex(tree)


class _Calls(TorchDispatchMode):
    """Translates each op call made while it is active; `names` says which value a fake tensor is."""

    def __init__(self, importer: Importer, names: dict[int, str], name: str):
        super().__init__()
        self.importer = importer
        self.names = names
        self.name = name
        self.kept: list[Any] = []  # identities stay unique while the tensors live

    def value(self, argument: Any) -> Any:
        """The value of a fake tensor, or the argument itself with sizes as dims."""
        return self.names[id(argument)] if isinstance(argument, torch.Tensor) else self.importer.value(argument)

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
            self.kept.append(produced)
            self.names[id(produced)] = result


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's memory as an array, without a copy where it is contiguous and on the CPU."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    from_torch(plain.dtype)
    if plain.dtype is torch.bfloat16:
        import ml_dtypes

        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()

"""Load an ExportedProgram as a Graph: export, inputs, weights, states and outputs; `importer` translates the calls."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.fx import config as fx_config
from torch.fx._lazy_graph_module import _use_lazy_graph_module

import ingot.ops  # noqa: F401  # declares the ops that rules make
from ingot.errors import KindError, LoadError, UnsupportedError
from ingot.ir.dim import symbols_of
from ingot.ir.graph import Graph
from ingot.load.aten import (  # noqa: F401  # rules
    attention,
    backward,
    bags,
    bits,
    complex,
    conv,
    data,
    decompose,
    elementwise,
    fourier,
    fractional,
    histogram,
    index,
    linear,
    loss,
    norm,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    search,
    shape,
    special,
)  # fmt: skip
from ingot.load.aten.archive import read_archive
from ingot.load.aten.calls import expect_called
from ingot.load.aten.failures import TORCH_ERRORS, typed
from ingot.load.aten.importer import Importer, live_nodes
from ingot.load.aten.names import declared_dims, dim_names, output_names
from ingot.load.aten.symbolic import Symbols
from ingot.load.aten.training import (
    attending,
    ends_marked,
    is_training,
    moving_means,
    nodes_of,
    part_of,
)
from ingot.load.aten.writes import without_writes, writes
from ingot.support.collector import uncollected

if TYPE_CHECKING:
    from ingot.load import Examples


@uncollected()
def load_any(source: Any, example_inputs: Examples | None, *, is_trained: bool = False) -> Graph | None:
    """Load an ExportedProgram, or a module with its example inputs; None for anything else. is_trained: parts in
    training mode keep it: dropout, and batch norm of a module.

    Raises KindError for a module without example inputs, and the errors of `load_exported` and `load_module`.
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
    """Return the arguments for the export of a module; a single tensor is its only argument. Raises KindError for other
    types, and for numpy arrays.
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
    """Load a module in eval mode, exported with `example_inputs`: a tuple, or a dict of keyword arguments.

    `dynamic_shapes` is torch.export's; the names of its Dims become the graph's symbols. Parameters are views of the
    module's storage. is_trained: see `load_any`. Raises the errors of `expect_called`, and UnsupportedError: with
    torch's message if torch cannot export the module, else listing every op without a rule or a decomposition.
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
    """Export a module in eval mode, except for parts that are called in training mode. is_trained: mark where the
    module disables gradients.
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    for part in attending:
        part.training = True
    where = f"module {type(module).__name__}: torch.export fails"
    try:
        with typed(where, "a module that torch can export"), torch.set_grad_enabled(is_trained), _lean():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextlib.contextmanager
def _lean() -> Iterator[None]:
    """Disable, within the context, torch's recording of the Python location of each node, and its code generation for
    graphs that are never called: each takes about a quarter of the export time.
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
    """Load a saved ExportedProgram; nothing in the file is run. is_mapped: see `read_archive`.

    Raises the errors of `read_archive`, LoadError also for a graph that contradicts itself, and OSError when the file
    cannot be opened.
    """
    with open(path, "rb") as file:
        program = read_archive(file, os.fspath(path), is_mapped=is_mapped)
    try:
        return load_exported(program)
    except TORCH_ERRORS as error:
        raise LoadError(f"{os.fspath(path)}: contradicts itself, got {str(error)[:200]!r}") from error


def load_exported(
    program: torch.export.ExportedProgram,
    symbol_names: dict[str, str] | None = None,
    *,
    drops: Callable[[Node], bool] | None = None,
    moving: Mapping[str, float] = MappingProxyType({}),
) -> Graph:
    """Load an ExportedProgram, in training IR or in core ATen.

    Parameters and buffers are weights under their qualified names, views of the program's storage; mutated buffers are
    states. An input that the program mutates stays unchanged; its new value is an additional last output,
    `<input>_mutated`. `symbol_names` renames the program's symbols; others have the names of their `torch.export.Dim`.
    drops: whether the dropout of a call stays; None for never. moving: see `AtenBuilder`. Raises UnsupportedError
    like `load_module`.
    """
    symbol_names = declared_dims(program) | (symbol_names or {})
    graph: torch.fx.Graph | None = program.graph
    if any(writes(node.target) for node in nodes_of(program)):
        graph = without_writes(program.graph_module)
    if graph is None:
        where = "torch program: run_decompositions fails"
        marked = ends_marked(program) if drops is not None else contextlib.nullcontext()
        with typed(where, "a program that torch can make functional"), _lean(), marked:
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
    """Load a functional ATen graph whose nodes carry fake tensors, as built by AOT Autograd.

    parameters: placeholder position -> (name, tensor), which become weights; the other tensors are inputs, in order.
    Outputs are `output_0`, `output_1` ...; None results are omitted. Raises UnsupportedError like `load_module`.
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
        if spec.kind is InputKind.TOKEN:
            importer.env[node] = importer.builder.constant(np.zeros(0, np.float32), node.name)  # orders calls alone
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            importer.env[node] = importer.weight(spec.target, program.constants[spec.target], may_be_constant=True)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            stored = program.state_dict if spec.target in program.state_dict else program.constants
            declare = importer.state if spec.target in mutated else importer.weight
            importer.env[node] = declare(spec.target, stored[spec.target])
        else:
            raise UnsupportedError(f"torch program: input {node.name!r} is a {spec.kind.name}, expected tensors")


def _declare_outputs(importer: Importer, program: torch.export.ExportedProgram, results: list[Any]) -> None:
    """Declare the user's outputs, the states, and last the new values of mutated inputs."""
    specs = program.graph_signature.output_specs
    users = [spec for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    names = iter(output_names(program.call_spec.out_spec, len(users)))
    written: list[tuple[str, Any]] = []
    for spec, result in zip(specs, results, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            importer.output(next(names), result)
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            importer.graph.set_state(spec.target, result)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            written.append((f"{spec.target}_mutated", result))
        elif spec.kind is not OutputKind.TOKEN:
            raise UnsupportedError(f"torch program: output {spec.arg} is a {spec.kind.name}, expected tensors")
    for name, result in written:
        while name in importer.graph.outputs:
            name += "_"
        importer.output(name, result)

"""Higher-order calls as ops whose attributes are graphs: `cond`, `while_loop`, `scan` and `map`.

torch passes every value that a subgraph reads as an argument, so a graph reads nothing but its placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from ingot.errors import UnsupportedError
from ingot.ir.dtype import boolean, i64
from ingot.ir.graph import Graph, TensorType
from ingot.load.aten.builder import Complex
from ingot.load.built_ops import note

Importer = Any  # `importer.Importer`, which imports this table


def _operands(importer: Importer, arguments: Any) -> list[Any]:
    """Return the arguments of a graph. Raises UnsupportedError for complex numbers, which are two tensors each."""
    values = list(importer.values(arguments))
    if any(isinstance(each, Complex) for each in values):
        raise UnsupportedError("control flow over complex numbers, expected their torch.view_as_real")
    return values


def _tensors(importer: Importer, arguments: Any) -> list[str]:
    """Return arguments that are carried or scanned. Raises UnsupportedError for numbers, which a graph cannot carry."""
    values = _operands(importer, arguments)
    if not all(isinstance(each, str) for each in values):
        raise UnsupportedError(f"control flow that hands on numbers, got {values}, expected tensors")
    return values


def _inner_operands(inner: Importer, importer: Importer, values: Sequence[Any]) -> list[Any]:
    """Add the inputs of a subgraph for its arguments; a number or a size is returned unchanged."""
    types = [importer.graph.type(value) if isinstance(value, str) else None for value in values]
    pairs = enumerate(zip(values, types, strict=True))
    return [value if type is None else inner.graph.add_input(f"i{i}", type) for i, (value, type) in pairs]


def _give(graph: Graph, results: Sequence[str]) -> None:
    for i, result in enumerate(results):
        graph.set_output(f"output_{i}", result)


def _given(inner: Importer, results: Sequence[Any]) -> list[str]:
    """Return the results of a graph, which are tensors. Raises UnsupportedError where one is not."""
    inner.report()
    if not all(isinstance(each, str) for each in results):
        raise UnsupportedError(f"control flow that gives {list(results)}, expected tensors")
    return list(results)


def _added(importer: Importer, node: Node, op: str, operands: Sequence[str], **attributes: Any) -> tuple[str, ...]:
    """Add an op, and return its results, with the types from torch."""
    builder = importer.builder
    output = importer.graph.add(op, operands, builder.hint, **attributes).outputs
    for name, fake in zip(output, node.meta["val"], strict=True):
        importer.graph.narrow(name, importer.type_of(fake))
    note(f"higher_order.{node.target}", {op})
    return output


def _cond(importer: Importer, node: Node) -> tuple[str, ...]:
    condition, *regions = importer.values(node.args[:3])
    values = _operands(importer, node.args[3] if len(node.args) > 3 else ())
    if isinstance(condition, bool):
        return tuple(importer.inlined(regions[0 if condition else 1], values))
    if not isinstance(condition, str):
        raise UnsupportedError(f"condition computed from sizes, got {condition}, expected a tensor or a constant")
    given = [value for value in values if isinstance(value, str)]
    branches = []
    for region in regions:
        inner = importer.inner()
        _give(inner.graph, _given(inner, inner.inlined(region, _inner_operands(inner, importer, values))))
        branches.append(inner.graph)
    condition = importer.builder.reshape(importer.builder.cast(condition, boolean), ())
    chosen, other = branches
    return _added(importer, node, "if", [condition, *given, *given], then_branch=chosen, else_branch=other)


def _while_loop(importer: Importer, node: Node) -> tuple[str, ...]:
    """The condition is evaluated on the initial values here, and after each step in the body."""
    condition, body = importer.values(node.args[:2])
    carried, others = _tensors(importer, node.args[2]), _operands(importer, node.args[3])
    (first,) = importer.inlined(condition, [*carried, *others])
    inner = importer.inner()
    inner.graph.add_input("iteration", TensorType(i64, ()))
    inner.graph.add_input("condition", TensorType(boolean, ()))
    captured = _inner_operands(inner, importer, [*carried, *others])
    results = _given(inner, inner.inlined(body, captured))
    (again,) = inner.inlined(condition, [*results, *captured[len(carried) :]])
    _give(inner.graph, _given(inner, [_flag(inner, again), *results]))
    operands = [None, _flag(importer, first), *carried, *(value for value in others if isinstance(value, str))]
    return _added(importer, node, "loop", operands, body=inner.graph, carried=len(carried))  # type: ignore[arg-type]


def _flag(importer: Importer, value: Any) -> str:
    b = importer.builder
    return b.reshape(b.tensor(value, boolean), ())


def _scanned(
    importer: Importer, node: Node, region: GraphModule, carried: list[str], rows: list[str], others: list[Any]
) -> tuple[str, ...]:
    """Apply a graph to the slices of rows along axis 0."""
    inner = importer.inner()
    values = [*carried, *rows, *others]
    operands = _inner_operands(inner, importer, values[: len(carried)])
    for name in rows:
        type = importer.graph.type(name)
        operands.append(inner.graph.add_input(f"r{len(operands)}", TensorType(type.dtype, type.shape[1:])))
    start = len(operands)
    for i, value in enumerate(others):
        is_tensor = isinstance(value, str)
        operands.append(inner.graph.add_input(f"c{start + i}", importer.graph.type(value)) if is_tensor else value)
    results = _given(inner, inner.inlined(region, operands))
    _give(inner.graph, results)
    output = len(results) - len(carried)
    return _added(
        importer, node, "scan", [*carried, *rows, *(value for value in others if isinstance(value, str))],
        body=inner.graph, carried=len(carried), input_axes=(0,) * len(rows), input_backward=(False,) * len(rows),
        output_axes=(0,) * output, output_backward=(False,) * output,
    )  # fmt: skip


def _scan(importer: Importer, node: Node) -> tuple[str, ...]:
    carried, rows = _tensors(importer, node.args[1]), _tensors(importer, node.args[2])
    return _scanned(importer, node, importer.value(node.args[0]), carried, rows, _operands(importer, node.args[3]))


def _map(importer: Importer, node: Node) -> tuple[str, ...]:
    rows, others = _tensors(importer, node.args[1]), _operands(importer, node.args[2])
    return _scanned(importer, node, importer.value(node.args[0]), [], rows, others)


CHECK = "aten._linalg_check_errors.default"  # raises if a factorisation reports a failure


def _with_effects(importer: Importer, node: Node) -> tuple[Any, ...]:
    """Drop the token of a check, like other assertions. Raises UnsupportedError for any other call."""
    token, called = (*node.args, None, None)[:2]
    if str(called) != CHECK or not isinstance(token, Node):
        raise UnsupportedError(f"a call with effects, got {called}, expected {CHECK}")
    return (importer.value(token),)


CONTROL: dict[str, Callable[[Any, Node], tuple[Any, ...]]] = {
    "cond": _cond,
    "map_impl": _map,
    "scan": _scan,
    "while_loop": _while_loop,
    "with_effects": _with_effects,
}

"""Readable names from an ExportedProgram, for values, symbols and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils._pytree import TreeSpec


def value_name(node: Node) -> str:
    """Return the path of the module that a node was traced in, with its op, such as `h.0.attn.matmul`."""
    target = node.target
    op = target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else node.name
    return ".".join(part for part in (module_path(node), op.strip("_")) if part)


def module_path(node: Node) -> str:
    """Return the path of the module that a node was traced in, such as `h.0.attn`; "" for the root module."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed(stack.values()))[0] if stack else ""


def dim_names(program: torch.export.ExportedProgram, example_inputs: tuple, dynamic_shapes: Any) -> dict[str, str]:
    """Map each symbol of the program to the name of the user's `torch.export.Dim` for that size.

    `dynamic_shapes` is a tuple that follows the inputs, or a dict from parameter names to specifications.
    """
    if not dynamic_shapes:
        return {}
    specifications = list(dynamic_shapes.values()) if isinstance(dynamic_shapes, dict) else list(dynamic_shapes)
    if len(specifications) == 1 and len(example_inputs) > 1:  # forward(*args) takes one specification for all
        (specifications,) = specifications
    fakes = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [
        fakes.get(getattr(spec.arg, "name", ""))
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    names: dict[str, str] = {}
    leaves = [leaf for pair in zip(example_inputs, specifications, strict=False) for leaf in _leaves(*pair)]
    for fake, specification in zip(inputs, leaves, strict=False):
        for size, chosen in _sizes(fake, specification):
            expression = size.node.expr if isinstance(size, torch.SymInt) else None
            if isinstance(expression, sympy.Symbol) and isinstance(chosen, torch.export.Dim):
                names[expression.name] = chosen.__name__
    return names


def declared_dims(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Map each symbol of the program to the name of the `torch.export.Dim` of its export, if torch still has it: a .pt2
    file stores no names of dims.
    """
    fakes = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    modes = (getattr(fake, "fake_mode", None) for fake in fakes if isinstance(fake, torch.Tensor))
    env = next((mode.shape_env for mode in modes if mode is not None), None)
    symbols, names = getattr(env, "source_to_var", {}), getattr(env, "source_name_to_debug_name", {})
    found = {source: symbols.get(source) for source in names}
    return {
        symbol.name: names[source]
        for source, symbol in found.items()
        if isinstance(symbol, sympy.Symbol) and names[source].isidentifier()
    }


def _leaves(argument: Any, specification: Any) -> Iterator[Any]:
    """Yield the specification of each leaf of an argument, in torch's flattening order."""
    if isinstance(argument, dict):
        for key, value in argument.items():
            yield from _leaves(value, specification[key] if specification else None)
    elif isinstance(argument, (list, tuple)):
        for i, value in enumerate(argument):
            yield from _leaves(value, specification[i] if specification else None)
    else:
        yield specification


def _sizes(fake: Any, specification: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(fake, torch.Tensor) or not specification:
        return
    chosen = specification.items() if isinstance(specification, dict) else enumerate(specification)
    for axis, dim in chosen:
        yield fake.shape[axis], dim


def output_names(spec: TreeSpec | None, count: int) -> list[str]:
    """Return external names of the leaves of a result: keys and fields where it has them, else positions.

    A lone tensor is `output`, those of a tuple `output_0`, `output_1` ...; nested levels are joined by dots.
    """
    if spec is None:
        return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    if count == 1 and not any(_keys(level) for level in _levels(spec)):
        return ["output"]
    return [path or "output" for path in _paths(spec, "")]


def _levels(spec: TreeSpec) -> Iterator[TreeSpec]:
    yield spec
    for child in spec.children():
        yield from _levels(child)


def _keys(spec: TreeSpec) -> list[str] | None:
    """Return the names of the children of a dict, a named tuple, or a class that is flattened with its field names."""
    fields = getattr(spec.context, "_fields", None) or spec.context
    if isinstance(fields, (list, tuple)) and len(fields) == spec.num_children and fields:
        return [str(field) for field in fields]
    return None


def _paths(spec: TreeSpec, path: str) -> Iterator[str]:
    if spec.is_leaf():
        yield path
        return
    keys = _keys(spec)
    for i, child in enumerate(spec.children()):
        part = keys[i] if keys else str(i)
        yield from _paths(child, f"{path}.{part}" if path else (part if keys else f"output_{part}"))

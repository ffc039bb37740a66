"""How a module is trained: which parts use dropout or update statistics, and where gradients stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch.fx import GraphModule, Node

from ingot.errors import UnsupportedError


def attending(module: torch.nn.Module, program: torch.export.ExportedProgram) -> list[torch.nn.Module]:
    """Return the parts in training mode that call attention, or a dropout of rate 0: in eval mode they pass a rate of
    0, whatever theirs is. torch's own modules may then write out attention without any dropout.
    """
    own = [part for part in module.modules() if isinstance(part, torch.nn.MultiheadAttention)]
    found: dict[torch.nn.Module, None] = {part: None for part in own if part.training and part.dropout}
    for node in nodes_of(program):
        target = str(node.target)
        is_of_nothing = target == "aten.dropout.default" and not node.args[1]
        if not is_of_nothing and target != "aten.scaled_dot_product_attention.default":
            continue
        if (part := part_of(module.get_submodule, node)).training:
            found[part] = None
    return list(found)


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[Node]:
    """Yield the nodes of a program and of its regions."""
    for part in program.graph_module.modules():
        if isinstance(part, GraphModule):
            yield from part.graph.nodes


def is_without_gradients(node: Node) -> bool:
    """Return whether a node runs a region with gradients disabled."""
    return str(node.target) == "wrap_with_set_grad_enabled" and not node.args[0]


@contextlib.contextmanager
def ends_marked(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Detach, within the context, the results of regions without gradients; decompositions, which merge all regions
    into one graph, keep this.
    """
    graph, marks = program.graph, []
    for result in [user for node in graph.nodes if is_without_gradients(node) for user in node.users]:
        with graph.inserting_after(result):
            marks.append(graph.call_function(torch.ops.aten.detach.default, (result,)))
        marks[-1].meta = dict(result.meta)
        result.replace_all_uses_with(marks[-1], lambda user: user is not marks[-1])
    program.graph_module.recompile()
    try:
        yield
    finally:
        for mark in marks:
            mark.replace_all_uses_with(mark.args[0])  # type: ignore[arg-type]
            graph.erase_node(mark)
        program.graph_module.recompile()


def part_of(submodule: Callable[[str], torch.nn.Module], node: Node) -> torch.nn.Module:
    """Return the part of a module that calls an op of its program. submodule: returns a part by its path."""
    stack = node.meta.get("nn_module_stack")
    return submodule(next(reversed(stack.values()))[0].partition("@")[0] if stack else "")


def is_training(node: Node) -> bool:
    """Return whether a call in an exported program is in training mode, if it specifies this."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return "train" not in names or bool(node.args[names.index("train")])


def moving_means(module: torch.nn.Module) -> dict[str, float]:
    """Return the running means of batch norms in training mode, with the share by which a batch moves each."""
    found: dict[str, float] = {}
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training and part.running_mean is not None:
            if part.momentum is None:
                raise UnsupportedError(f"module {name!r}: momentum of batch norm, got None, expected a number")
            found[f"{name}.running_mean" if name else "running_mean"] = part.momentum
    return found

"""A model's graph -> a training graph: forward, loss, gradients and the step of an optimiser, with states to train.

It is a graph like any other: passes, lowering, planner, verifier and text take it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ingot.dtype import f32, f64
from ingot.errors import InputError, KindError, UnsupportedError
from ingot.gradients import differentiate
from ingot.gradients.registry import Backward
from ingot.ir import Graph, TensorType
from ingot.passes import optimize
from ingot.training.losses import LOSSES
from ingot.training.optimizers import RATE, Optimizer

TARGET, LOSS = "target", "loss"  # the input that predictions are compared with, and the only output


def chosen(graph: Graph, candidates: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    """The weights to train: those of the candidates that a pattern matches, as names of files are; None for all.

    Raises InputError for a pattern that matches none, and UnsupportedError for weights that are not f32.
    """
    found = list(candidates)
    if patterns is not None:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in candidates):
                raise InputError(f"trainable: nothing to train, got {pattern!r}, expected some of {found[:20]}")
        found = [name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        raise InputError(f"trainable: nothing to train, got a graph {graph.name!r} without float weights")
    others = [f"{name} {graph.values[name].type}" for name in found if graph.type(name).dtype is not f32]
    if others:
        raise UnsupportedError(f"trainable: wrong dtype, got {', '.join(others)}, expected f32")
    return found


def training_graph(forward: Graph, loss: str, optimizer: Optimizer, trained: Sequence[str]) -> Graph:
    """The training graph of a static graph of one output: its inputs, TARGET and RATE in, LOSS out.

    loss: a row of LOSSES. trained: the names of f32 weights, which become states, as do the optimiser's numbers.
    Raises KindError for an unknown loss, UnsupportedError for several outputs, an output that is no f32 or an op
    without a gradient, and InputError where the loss depends on nothing that is trained.
    """
    if loss not in LOSSES:
        raise KindError(f"loss: unknown, got {loss!r}, expected one of {', '.join(LOSSES)}")
    graph = forward.copy()
    if len(graph.outputs) != 1:
        raise UnsupportedError(f"graph {graph.name!r}: got outputs {list(graph.outputs)}, expected one prediction")
    for name in trained:
        graph.keep(name)
    optimize(graph)
    ((external, prediction),) = graph.outputs.items()
    if graph.type(prediction).dtype is not f32:
        raise UnsupportedError(f"output {external!r}: wrong dtype, got {graph.type(prediction)}, expected f32")
    graph.remove_output(external)
    for name, type in ((TARGET, LOSSES[loss].target(graph.type(prediction))), (RATE, TensorType(f64, ()))):
        if name in graph.values:
            graph.rename(name, graph.fresh(f"{name}.model"))
        graph.add_input(name, type)
    g = Backward(graph)
    g.at(prediction)
    graph.set_output(LOSS, LOSSES[loss].write(g, prediction, TARGET))
    gradients = differentiate(graph, graph.outputs[LOSS], trained)
    if not gradients:
        raise InputError(f"trainable: nothing to train, got a loss that depends on none of {list(trained)[:20]}")
    optimizer.write(g, gradients)
    optimize(graph)
    return graph

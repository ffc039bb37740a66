"""Build the graphs of training from a model's graph: forward, loss, gradients and the optimizer's step.

They are ordinary graphs: passes, lowering, planner, verifier and the text format accept them. Trained weights are
states; states of the same name are shared by all graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ingot.errors import InputError, UnsupportedError
from ingot.gradients.differentiate import differentiate, scatter_into
from ingot.gradients.registry import Backward
from ingot.ir.dtype import f32, f64
from ingot.ir.graph import Graph, TensorType
from ingot.ops.source import DRAWS
from ingot.passes import PASSES, optimize
from ingot.passes.dce import eliminate_dead
from ingot.passes.precision import F32, Precision, round_products
from ingot.training.losses import CrossEntropy, loss_of
from ingot.training.optimizers import RATE, STEP, Optimizer
from ingot.training.recompute import recompute_activations

TARGET, LOSS = "target", "loss"  # the input with the target of predictions, and the only output
PART = "part"  # the input with the index of the part of an accumulated batch, f64[]
_DROPOUTS = ("dropout", "attention_dropout")  # their last operands are the step and the part
_LEAST_NORM = 1e-6  # added to the norm before division, as in torch.nn.utils.clip_grad_norm_


def loss_graph(
    forward: Graph,
    loss: str | CrossEntropy,
    trained: Sequence[str],
    seed: int | None = None,
    *,
    with_metric: bool = False,
) -> Graph:
    """Return the graph of the loss of a static graph with one output.

    It has the inputs of the graph and TARGET, and the output LOSS; trained weights are states. loss: a name of LOSSES,
    or a loss with settings. trained: the names of f32 weights. seed: see `forward_graph`; with None no state changes,
    including buffers that the model itself writes. with_metric: add the metric of the loss as an output, by its name.
    Raises KindError for an unknown loss, and UnsupportedError for several outputs and an output that is not f32.
    """
    definition, graph = loss_of(loss), forward_graph(forward, trained, seed)
    if seed is None:
        _rest(graph)
    if len(graph.outputs) != 1:
        raise UnsupportedError(f"graph {graph.name!r}: got outputs {list(graph.outputs)}, expected one prediction")
    ((external, prediction),) = graph.outputs.items()
    if graph.type(prediction).dtype is not f32:
        raise UnsupportedError(f"output {external!r}: wrong dtype, got {graph.type(prediction)}, expected f32")
    graph.remove_output(external)
    _add_input(graph, TARGET, definition.target(graph.type(prediction)))
    g = Backward(graph)
    g.at(prediction)
    graph.set_output(LOSS, definition.write(g, prediction, TARGET))
    if with_metric:
        graph.set_output(definition.metric, definition.write_metric(g, prediction, TARGET))
    return graph


def forward_graph(forward: Graph, trained: Sequence[str], seed: int | None = None) -> Graph:
    """Return a copy of a graph whose trained weights and `moving_statistics` are states.

    seed: of dropout, with the state STEP; None for inference: no dropout, and batch norms use their stored statistics.

    Raises InputError for a batch norm over fewer than two elements per channel.
    """
    graph = forward.copy()
    for name in (*trained, *moving_statistics(forward)):
        graph.keep(name)
    if seed is None:
        _attach(graph)
    else:
        _norm_by_batches(graph)
        if DRAWS in graph.states:
            graph.begin_state(DRAWS, np.array([seed, 0]))
    dropouts = [node for node in graph.nodes if node.op.name == "dropout" and seed is not None]
    if dropouts:
        _add_step(graph)
    for stream, node in enumerate(dropouts):
        settings = node.attributes | {"seed": seed, "stream": stream}
        drawn = graph.add("dropout", [node.operands[0], STEP, None], f"{node.output}.drawn", before=node, **settings)
        graph.replace(node, drawn.output)
    _optimize(graph)
    if seed is not None:
        _drop_weights(graph, seed, len(dropouts))
    return graph


def _drop_weights(graph: Graph, seed: int, stream: int) -> None:
    """Replace attention with dropout by attention_dropout, after the passes that analyze masks; stream: the first."""
    for node in [node for node in graph.nodes if node.op.name == "attention" and node.dropout]:
        if STEP not in graph.states:
            _add_step(graph)
        settings = {name: value for name, value in node.attributes.items() if name != "dropout"}
        operands = [*node.operands, *[None] * (4 - len(node.operands)), STEP, None]
        settings |= {"rate": node.dropout, "seed": seed, "stream": stream}
        drawn = graph.add("attention_dropout", operands, f"{node.output}.drawn", before=node, **settings)
        graph.replace(node, drawn.output)
        stream += 1


def _rest(graph: Graph) -> None:
    """Remove all updates of states."""
    for name in graph.states:
        graph.set_state(name, name)
    eliminate_dead(graph)


def trained_graph(forward: Graph, found: Mapping[str, np.ndarray]) -> Graph:
    """Return a copy of a model with new values for some of its weights and states."""
    graph = forward.copy()
    for name, data in found.items():
        if name in graph.states:
            graph.begin_state(name, data)
        else:
            graph.values[name].data = data
    _attach(graph)
    return graph


def moving_statistics(forward: Graph) -> list[str]:
    """Return the weights that batches update: the means and variances of batch norms."""
    found = [o for node in forward.nodes if node.op.name == "batch_norm" and node.momentum for o in node.operands[3:]]
    return list(dict.fromkeys(map(str, found)))


def _norm_by_batches(graph: Graph) -> None:
    """Make batch norms use the batch's statistics and update their running statistics, as in torch.

    The running variance is updated with the unbiased variance.
    """
    g = Backward(graph)
    for node in [node for node in graph.nodes if node.op.name == "batch_norm" and node.momentum]:
        x, scale, bias, *statistics = map(str, node.operands)
        batch, _, *spatial = graph.type(x).dims
        count = math.prod((batch, *spatial))
        if count < 2:
            raise InputError(f"batch norm {node.output!r}: too small a batch, got {graph.type(x)}, expected 2 or more")
        names = [f"{node.output}.{what}" for what in ("by_batch", "mean", "variance")]
        norm = graph.add("batch_norm_training", [x, scale, bias], names, before=node, eps=node.eps)
        g.at(node.output)
        shares = (1.0, count / (count - 1))
        for state, found, share in zip(statistics, norm.outputs[1:], shares, strict=True):
            decayed = g.mul(graph.states[state], 1 - node.momentum)
            graph.set_state(state, g.add(decayed, g.mul(found, node.momentum * share)))
        graph.replace(node, norm.outputs[0])


def step_graph(
    forward: Graph,
    loss: str | CrossEntropy,
    optimizer: Optimizer,
    trained: Sequence[str],
    clip: float | None = None,
    seed: int = 0,
    precision: Precision = F32,
) -> Graph:
    """Return the graph of a training step: `loss_graph` with the input RATE, gradients and the optimizer's update.

    clip: the maximum norm of all gradients together. seed: of dropout. precision: products round both operands to it.

    Raises the errors of `loss_graph`, UnsupportedError for an op without a gradient, and InputError if the loss depends
    on no trained weight.
    """
    return finished(written_step(forward, loss, optimizer, trained, clip, seed), precision)


def written_step(
    forward: Graph,
    loss: str | CrossEntropy,
    optimizer: Optimizer,
    trained: Sequence[str],
    clip: float | None = None,
    seed: int = 0,
) -> Graph:
    """Return the graph of `step_graph` before the passes."""
    graph = loss_graph(forward, loss, trained, seed)
    _write_update(graph, _gradients(graph, graph.outputs[LOSS], trained), optimizer, clip)
    return graph


def step_passes() -> tuple[str, ...]:
    """Return all passes except two: merged and scaled matrices would be copies of weights that both directions read."""
    return tuple(name for name in PASSES if name not in ("merge_matmul", "fold_layer_scale"))


def _optimize(graph: Graph) -> None:
    optimize(graph, step_passes())


def finished(graph: Graph, precision: Precision = F32) -> Graph:
    """Run the passes on the graph of a step, in place; add recomputation and the rounding of products."""
    _optimize(graph)
    recompute_activations(graph, graph.outputs[LOSS])
    if precision.rows is not None:
        round_products(graph, precision.rows)
    return graph


def gradient_graph(
    forward: Graph,
    loss: str | CrossEntropy,
    trained: Sequence[str],
    parts: int = 1,
    seed: int = 0,
    precision: Precision = F32,
) -> Graph:
    """Return the graph of the loss and its gradients, which are added to the states named by `gradient_name`.

    parts: the number of parts of an accumulated step; the gradients are those of the mean of the parts' losses. With
    dropout, the index of the part is the input PART.
    """
    graph = loss_graph(forward, loss, trained, seed)
    dropouts = [node for node in graph.nodes if node.op.name in _DROPOUTS and parts > 1]
    if dropouts:
        _add_input(graph, PART, TensorType(f64, ()))
    for node in dropouts:
        graph.set_operands(node, [*node.operands[:-1], PART])
    g, value = Backward(graph), graph.outputs[LOSS]
    g.at(value)
    gradients = _gradients(graph, g.mul(value, 1 / parts) if parts > 1 else value, trained)
    following = dict(pairwise([*graph.nodes, None]))
    for name, d in gradients.items():
        total = graph.add_state(gradient_name(name), g.type(name))
        if not scatter_into(graph, d, total):  # placed after the gradient, so that a product accumulates into the total
            before = following[graph.producer(d)]
            d = graph.add("add", [total, d], f"{name}.gradient", before=before).output
        graph.set_state(total, d)
    return finished(graph, precision)


def update_graph(gradients: Graph, optimizer: Optimizer, clip: float | None = None) -> Graph:
    """Return the graph of the optimizer's update by the sums of a `gradient_graph`, with the input RATE.

    clip: as in `step_graph`.
    """
    graph = Graph(gradients.name)
    given = {}
    for name in gradients.initial:
        graph.add_state(name, gradients.type(name))
        graph.begin_state(name, gradients.initial[name])
        if gradient_name(name) in gradients.states:
            given[name] = graph.add_state(gradient_name(name), gradients.type(name))
    _write_update(graph, given, optimizer, clip)
    _optimize(graph)
    return graph


def gradient_name(parameter: str) -> str:
    """Return the name of the state with the summed gradients of a parameter."""
    return f"{parameter}.gradient.sum"


def _add_input(graph: Graph, name: str, type: TensorType) -> None:
    _free(graph, name)
    graph.add_input(name, type)


def _add_step(graph: Graph) -> None:
    _free(graph, STEP)
    graph.add_state(STEP, TensorType(f64, ()))


def _free(graph: Graph, name: str) -> None:
    """Rename a value of the model whose name training uses."""
    if name in graph.values:
        graph.rename(name, graph.fresh(f"{name}.model"))


def _gradients(graph: Graph, loss: str, trained: Sequence[str]) -> dict[str, str]:
    gradients = differentiate(graph, loss, trained)
    if not gradients:
        raise InputError(f"trainable: nothing to train, got a loss that depends on none of {list(trained)[:20]}")
    _attach(graph)
    return gradients


def _attach(graph: Graph) -> None:
    """Remove `detach` nodes, which are not needed after differentiation or without it."""
    for node in [node for node in graph.nodes if node.op.name == "detach"]:
        graph.replace(node, str(node.operands[0]))


def _write_update(graph: Graph, gradients: dict[str, str], optimizer: Optimizer, clip: float | None) -> None:
    """Add the input RATE, the state STEP, and the optimizer's update of parameters by gradients."""
    _add_input(graph, RATE, TensorType(f64, ()))
    if STEP not in graph.states:
        _add_step(graph)
    g = Backward(graph)
    g.at(STEP)
    graph.set_state(STEP, g.add(STEP, 1.0))
    optimizer.write(g, gradients if clip is None else _clipped(g, gradients, clip))


def _clipped(g: Backward, gradients: dict[str, str], clip: float) -> dict[str, str]:
    """Scale gradients so that their norm, as that of one vector, is at most `clip`.

    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.
    """
    total = None
    for d in gradients.values():
        g.at(d)
        axes = tuple(range(g.type(d).rank))
        square = g.cast(g.reduce_sum(g.mul(d, d), axes=axes, keepdims=False), dtype=f64)
        total = square if total is None else g.add(total, square)
    assert total is not None
    g.at(total)
    share = g.minimum(g.div(clip, g.add(g.sqrt(total), _LEAST_NORM)), 1.0)
    factor = g.cast(share, dtype=f32)
    found = {}
    for name, d in gradients.items():
        g.at(name)
        found[name] = g.mul(d, factor)
    return found

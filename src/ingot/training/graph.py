"""A model's graph -> the graphs of training: forward, loss, gradients and an optimiser's step, with states to train.

They are graphs like any other: passes, lowering, planner, verifier and text take them as they are. States of one name
are one state in all of them.
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

TARGET, LOSS = "target", "loss"  # the input that predictions are compared with, and the only output
PART = "part"  # the input that says which part of a batch this is, f64[]
_DROPOUTS = ("dropout", "attention_dropout")  # whose last operands are the step and the part
_LEAST_NORM = 1e-6  # that gradients are divided by, as torch.nn.utils.clip_grad_norm_ has it


def loss_graph(
    forward: Graph,
    loss: str | CrossEntropy,
    trained: Sequence[str],
    seed: int | None = None,
    *,
    with_metric: bool = False,
) -> Graph:
    """The loss of a static graph of one output: its inputs and TARGET in, LOSS out; what is trained are states.

    loss: a name of LOSSES, or one with settings. trained: the names of f32 weights. seed: see `forward_graph`; with
    None nothing moves, buffers that the model itself writes neither.
    with_metric: the metric of the loss is another output, by its name.
    Raises KindError for an unknown loss, and UnsupportedError for several outputs and an output that is no f32.
    """
    row, graph = loss_of(loss), forward_graph(forward, trained, seed)
    if seed is None:
        _rest(graph)
    if len(graph.outputs) != 1:
        raise UnsupportedError(f"graph {graph.name!r}: got outputs {list(graph.outputs)}, expected one prediction")
    ((external, prediction),) = graph.outputs.items()
    if graph.type(prediction).dtype is not f32:
        raise UnsupportedError(f"output {external!r}: wrong dtype, got {graph.type(prediction)}, expected f32")
    graph.remove_output(external)
    _add_input(graph, TARGET, row.target(graph.type(prediction)))
    g = Backward(graph)
    g.at(prediction)
    graph.set_output(LOSS, row.write(g, prediction, TARGET))
    if with_metric:
        graph.set_output(row.metric, row.write_metric(g, prediction, TARGET))
    return graph


def forward_graph(forward: Graph, trained: Sequence[str], seed: int | None = None) -> Graph:
    """A graph whose trained weights and `moving_statistics` are states. seed: what its dropout draws from, with the
    state STEP; None outside of training, without dropout and by the statistics as they are.

    Raises InputError for a batch of which a channel has no variance.
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
    """Has attention drop weights, as its attribute says; for a graph whose passes know what its masks are. stream: the
    first.
    """
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
    """Leaves states as they are."""
    for name in graph.states:
        graph.set_state(name, name)
    eliminate_dead(graph)


def trained_graph(forward: Graph, found: Mapping[str, np.ndarray]) -> Graph:
    """A model with other numbers in some of its weights and states."""
    graph = forward.copy()
    for name, data in found.items():
        if name in graph.states:
            graph.begin_state(name, data)
        else:
            graph.values[name].data = data
    _attach(graph)
    return graph


def moving_statistics(forward: Graph) -> list[str]:
    """The weights of a model that batches move: means and variances of batch norms."""
    found = [o for node in forward.nodes if node.op.name == "batch_norm" and node.momentum for o in node.operands[3:]]
    return list(dict.fromkeys(map(str, found)))


def _norm_by_batches(graph: Graph) -> None:
    """Has batch norms divide by what they find in a batch, and move their statistics towards that, as torch does: the
    variance by the unbiased one.
    """
    g = Backward(graph)
    for node in [node for node in graph.nodes if node.op.name == "batch_norm" and node.momentum]:
        x, scale, bias, *statistics = map(str, node.operands)
        batch, _, *spatial = graph.type(x).dims
        count = math.prod((batch, *spatial))
        if count < 2:
            raise InputError(f"batch norm {node.output!r}: too small a batch, got {graph.type(x)}, expected 2 or more")
        names = [f"{node.output}.{what}" for what in ("by_batch", "mean", "variance")]
        made = graph.add("batch_norm_training", [x, scale, bias], names, before=node, eps=node.eps)
        g.at(node.output)
        shares = (1.0, count / (count - 1))
        for state, found, share in zip(statistics, made.outputs[1:], shares, strict=True):
            kept = g.mul(graph.states[state], 1 - node.momentum)
            graph.set_state(state, g.add(kept, g.mul(found, node.momentum * share)))
        graph.replace(node, made.outputs[0])


def step_graph(
    forward: Graph,
    loss: str | CrossEntropy,
    optimizer: Optimizer,
    trained: Sequence[str],
    clip: float | None = None,
    seed: int = 0,
    precision: Precision = F32,
) -> Graph:
    """A whole step: as `loss_graph`, with RATE as another input, and gradients and the optimiser's step of them.

    clip: the most that the norm of all gradients together may be. seed: of dropout. precision: what products round both
    their operands to.

    Raises as `loss_graph`, UnsupportedError for an op without a gradient, and InputError where the loss depends on
    nothing that is trained.
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
    """As `step_graph`, before the passes."""
    graph = loss_graph(forward, loss, trained, seed)
    _write_update(graph, _gradients(graph, graph.outputs[LOSS], trained), optimizer, clip)
    return graph


def step_passes() -> tuple[str, ...]:
    """The passes but for the one that puts stored matrices side by side, which would copy what both directions read
    where it lies.
    """
    return tuple(name for name in PASSES if name != "merge_matmul")


def _optimize(graph: Graph) -> None:
    optimize(graph, step_passes())


def finished(graph: Graph, precision: Precision = F32) -> Graph:
    """The graph of a step after the passes, in place, with what is computed again and how products are rounded."""
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
    """As `step_graph` up to the gradients, which are added to states of their names, see `gradient_name`.

    parts: how many batches, of which this is one, share a step: gradients are those of the mean of their losses. Where
    there is dropout, the number of the part is an input, PART.
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
        if not scatter_into(graph, d, total):  # else where a gradient is made, a product goes on from the total
            before = following[graph.producer(d)]
            d = graph.add("add", [total, d], f"{name}.gradient", before=before).output
        graph.set_state(total, d)
    return finished(graph, precision)


def update_graph(gradients: Graph, optimizer: Optimizer, clip: float | None = None) -> Graph:
    """The optimiser's step by what a `gradient_graph` has added up: RATE in; clip as in `step_graph`."""
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
    """The state in which the gradients of a parameter are added up."""
    return f"{parameter}.gradient.sum"


def _add_input(graph: Graph, name: str, type: TensorType) -> None:
    _free(graph, name)
    graph.add_input(name, type)


def _add_step(graph: Graph) -> None:
    _free(graph, STEP)
    graph.add_state(STEP, TensorType(f64, ()))


def _free(graph: Graph, name: str) -> None:
    """Gives a value of the model that has a name of training another one."""
    if name in graph.values:
        graph.rename(name, graph.fresh(f"{name}.model"))


def _gradients(graph: Graph, loss: str, trained: Sequence[str]) -> dict[str, str]:
    gradients = differentiate(graph, loss, trained)
    if not gradients:
        raise InputError(f"trainable: nothing to train, got a loss that depends on none of {list(trained)[:20]}")
    _attach(graph)
    return gradients


def _attach(graph: Graph) -> None:
    """Takes out what ends gradients, where these are written or not wanted."""
    for node in [node for node in graph.nodes if node.op.name == "detach"]:
        graph.replace(node, str(node.operands[0]))


def _write_update(graph: Graph, gradients: dict[str, str], optimizer: Optimizer, clip: float | None) -> None:
    """Adds RATE, the state STEP, and what an optimiser makes of parameters and gradients."""
    _add_input(graph, RATE, TensorType(f64, ()))
    if STEP not in graph.states:
        _add_step(graph)
    g = Backward(graph)
    g.at(STEP)
    graph.set_state(STEP, g.add(STEP, 1.0))
    optimizer.write(g, gradients if clip is None else _clipped(g, gradients, clip))


def _clipped(g: Backward, gradients: dict[str, str], clip: float) -> dict[str, str]:
    """Gradients whose norm, all of them being one vector, is at most `clip`.

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

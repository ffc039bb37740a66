"""Rules for LSTM, GRU and RNN, layer by layer and direction by direction."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ingot.ir.dtype import f32, f64
from ingot.load.aten.builder import AtenBuilder, Tensor
from ingot.load.aten.registry import aten
from ingot.load.aten.shape import dropout as drop


@dataclass(frozen=True)
class _Cell:
    """A kind of layer. gates: the indices of torch's gates in the order of the op. own_bias: the bias of the hidden
    state stays separate from the input's, because a gate multiplies it.
    """

    op: str
    gates: tuple[int, ...]
    activations: tuple[str, ...]
    own_bias: bool = False
    options: dict[str, Any] = field(default_factory=dict)


_CELLS = {
    "aten.lstm.input": _Cell("lstm", (0, 3, 1, 2), ("sigmoid", "tanh", "tanh")),
    "aten.gru.input": _Cell("gru", (1, 0, 2), ("sigmoid", "tanh"), True, {"linear_before_reset": True}),
    "aten.rnn_tanh.input": _Cell("rnn", (0,), ("tanh",)),
    "aten.rnn_relu.input": _Cell("rnn", (0,), ("relu",)),
}


@aten("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(
    b: AtenBuilder, x: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return all outputs of the last layer, and the last states of every layer and direction."""
    cell, befores = _CELLS[b.target], [hx] if isinstance(hx, str) else hx
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    dtype = b.dtype(x)
    wide = dtype if dtype is f64 else f32
    by_time = (1, 0, 2) if batch_first else (0, 1, 2)
    lasts: list[list[Tensor]] = []
    for layer in range(num_layers):
        x, result = b.cast(x, wide), []
        for direction in range(directions):
            position = layer * directions + direction
            own = [b.cast(p, wide) for p in params[position * each : (position + 1) * each]]
            projection = own.pop() if each > (4 if has_biases else 2) else None
            weights = [_ordered(b, w, cell) for w in own]
            states = [b.cast(_one(b, before, position), wide) for before in befores]
            y, *last = _direction(b, cell, x, weights, states, by_time, direction == 1, projection)
            result.append(y)
            lasts.append([b.reshape(state, (1, *b.shape(state))) for state in last])
        x = result[0] if directions == 1 else b.add("concat", *result, axis=2)
        x = drop(b, x, dropout, train) if layer < num_layers - 1 else x
    stacked = (b.add("concat", *parts, axis=0) for parts in zip(*lasts, strict=True))
    return b.cast(x, dtype), *(b.cast(state, dtype) for state in stacked)


def _ordered(b: AtenBuilder, w: Tensor, cell: _Cell) -> Tensor:
    """Reorder the gates of weights or a bias along their first axis to the op's order."""
    if len(cell.gates) == 1:
        return w
    hidden = b.static(b.shape(w)[0], "the hidden size") // len(cell.gates)
    return b.add("concat", *(b.slice(w, 0, gate * hidden, (gate + 1) * hidden) for gate in cell.gates), axis=0)


def _one(b: AtenBuilder, x: Tensor, position: int) -> Tensor:
    return b.reshape(b.slice(x, 0, position, position + 1), b.shape(x)[1:])


def _direction(
    b: AtenBuilder, cell: _Cell, x: Tensor, weights: list[Tensor], states: list[Tensor], by_time: tuple[int, ...],
    reverse: bool, projection: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the outputs, in the layout of x, and the last states. by_time: the axes of x, time first. projection
    [P,H]: applied to the hidden state; outputs and gates read the projected state.
    """
    w, r, *biases = weights
    own = []
    if cell.own_bias:
        own = [biases.pop() if biases else b.expand(b.scalar(0.0, b.dtype(r)), b.shape(r)[:1])]
    gates = b.add("matmul", x, w, transpose_b=True)
    if biases:
        gates = b.add("add", gates, biases[0] if len(biases) == 1 else b.add("add", *biases))
    gates = b.permute(gates, by_time)
    if projection is not None:
        gates, r, states = _unprojected(b, gates, r, states, reverse, projection)
    zeros = (0.0,) * len(cell.activations)
    y, *last = b.add(
        cell.op, gates, r, *own, *states,
        activations=cell.activations, alphas=zeros, betas=zeros, reverse=reverse, **cell.options,
    )  # fmt: skip
    if projection is not None:
        y, last[0] = (b.add("matmul", each, projection, transpose_b=True) for each in (y, last[0]))
    return b.permute(y, by_time), *last


def _unprojected(
    b: AtenBuilder, gates: Tensor, r: Tensor, states: list[Tensor], reverse: bool, projection: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the gates, weights and states of an equivalent layer without projection: recurrent weights and projection
    become one product, and the contribution of the initial projected state is added to the gates of the first step.
    """
    h, c = states
    seen = b.add("matmul", h, r, transpose_b=True)
    steps = b.shape(gates)[0]
    first, rest = (steps - 1, (0, steps - 1)) if reverse else (0, (1, steps))
    row = b.add("add", b.slice(gates, 0, first, first + 1), seen)
    parts = [row, b.slice(gates, 0, *rest)]
    gates = b.add("concat", *(reversed(parts) if reverse else parts), axis=0)
    return gates, b.add("matmul", r, projection), [b.expand(b.scalar(0.0, b.dtype(c)), b.shape(c)), c]

"""Rules: LSTM. Torch's own decompositions unroll the other recurrent layers."""

from collections.abc import Sequence

from ingot.dtype import f32, f64
from ingot.errors import UnsupportedError
from ingot.load.aten.builder import AtenBuilder, Tensor
from ingot.load.aten.registry import aten


@aten("lstm.input")
def lstm(
    b: AtenBuilder, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """All outputs of the last layer, and the last states of every layer and direction."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    if each != (4 if has_biases else 2) or (train and dropout):
        raise UnsupportedError(f"torch node {b.hint!r}: lstm with projections, or dropout in training mode")
    dtype = b.dtype(x)
    wide = dtype if dtype is f64 else f32
    x = b.permute(x, (1, 0, 2)) if batch_first else x
    groups = [params[i : i + each] for i in range(0, len(params), each)]
    states: list[tuple[Tensor, Tensor]] = []
    for layer in range(num_layers):
        made = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = [b.cast(w, wide) for w in groups[place]]
            state = [b.cast(_one(b, h, place), wide) for h in hx]
            y, h, c = _layer(b, b.cast(x, wide), state, weights, reverse=direction == 1)
            made.append(y)
            states.append((h, c))
        x = made[0] if directions == 1 else b.add("concat", *made, axis=2)
    last = [[b.reshape(s, (1, *b.shape(s))) for s in each] for each in zip(*states, strict=True)]
    h, c = (b.add("concat", *parts, axis=0) for parts in last)
    y = b.cast(b.permute(x, (1, 0, 2)) if batch_first else x, dtype)
    return y, b.cast(h, dtype), b.cast(c, dtype)


def _one(b: AtenBuilder, x: Tensor, place: int) -> Tensor:
    return b.reshape(b.slice(x, 0, place, place + 1), b.shape(x)[1:])


def _layer(b: AtenBuilder, x: Tensor, state: list[Tensor], weights: list[Tensor], reverse: bool) -> tuple[Tensor, ...]:
    """torch orders gates as input, forget, cell, output."""
    hidden = b.static(b.shape(weights[1])[1], "the hidden size")

    def ordered(w: Tensor) -> Tensor:
        return b.add("concat", *(b.slice(w, 0, i * hidden, (i + 1) * hidden) for i in (0, 3, 1, 2)), axis=0)

    w, r, *biases = map(ordered, weights)
    gates = b.add("matmul", x, w, transpose_b=True)
    if biases:
        gates = b.add("add", gates, b.add("add", *biases))
    return b.add(
        "lstm", gates, r, *state, activations=("sigmoid", "tanh", "tanh"), alphas=(0.0,) * 3, betas=(0.0,) * 3,
        reverse=reverse,
    )  # fmt: skip

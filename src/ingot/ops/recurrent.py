"""Recurrent layers, one direction each, and linear attention. The input projections of the gates are computed before,
in one product over all steps.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import bf16, f32, i64
from ingot.ir.graph import OPS, Index, TensorType
from ingot.ops.define import expect_kind, op, sample, unify

Activations = tuple[
    Literal[
        "affine", "elu", "hard_sigmoid", "leaky_relu", "relu", "scaled_tanh", "sigmoid", "softplus", "softsign", "tanh",
        "thresholded_relu",
    ], ...,
]  # fmt: skip
Floats = tuple[float, ...]

# Formulas of activations that are not ops, with their two parameters.
_FORMULAS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "affine": lambda x, a, b: a * x + b,
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
}


class _Gates:
    """The activations of a layer, and the bound on their inputs."""

    def __init__(self, activations: Activations, alphas: Floats, betas: Floats, clip: float):
        self.rows = list(zip(activations, alphas, betas, strict=True))
        self.clip = clip

    def __call__(self, which: int, x: Any) -> Any:
        return self.unbounded(which, np.clip(x, -self.clip, self.clip) if self.clip > 0 else x)

    def unbounded(self, which: int, x: Any) -> Any:
        """Apply an activation without the bound."""
        name, *numbers = self.rows[which]
        alpha, beta = map(x.dtype.type, numbers)
        if name in _FORMULAS:
            return _FORMULAS[name](x, alpha, beta).astype(x.dtype)
        op = OPS[name]
        return op.function(x, **dict(zip(op.attributes, (alpha, beta), strict=False)))


def _expect(
    where: str, gates: TensorType, count: int, r: TensorType, h: TensorType, lengths: TensorType | None, **more
):
    """Check the operands, and return the dims: steps, batch, hidden."""
    expect_kind(where, gates, "f")
    got = ", ".join(str(each) for each in (gates, r, h, lengths) if each is not None)
    others = [each for each in (r, h, *more.values()) if each is not None]
    if gates.rank != 3 or r.rank != 2 or h.rank != 2 or any(each.dtype is not gates.dtype for each in others):
        raise ShapeError(f"{where}: bad operands, got {got}, expected one dtype and rank 3, 2 and 2")
    hidden = r.shape[1]
    if not isinstance(hidden, int) or r.shape[0] != count * hidden:
        raise ShapeError(f"{where}: bad weights, got {r}, expected {count} square ones")
    unify(f"{where} of {got}: gates", gates.shape[2], count * hidden)
    unify(f"{where} of {got}: hidden", h.shape[1], hidden)
    batch = unify(f"{where} of {got}: batch", gates.shape[1], h.shape[0])
    if lengths is not None and (lengths.rank != 1 or lengths.dtype is not i64):
        raise ShapeError(f"{where}: bad lengths, got {lengths}, expected i64[{batch}]")
    if lengths is not None:
        batch = unify(f"{where} of {got}: lengths", batch, lengths.shape[0])
    return gates.shape[0], batch, hidden


def _expect_activations(where: str, count: int, *lists: tuple) -> None:
    if any(len(each) != count for each in lists):
        raise ShapeError(f"{where}: bad activations, got {lists[0]}, expected {count} with two numbers each")


def _run(step, gates, states, lengths, reverse):
    """Apply a step to each row of gates; states of sequences that have ended, or not begun yet, stay unchanged."""
    steps, batch = gates.shape[:2]
    out = np.zeros((steps, batch, states[0].shape[1]), gates.dtype)
    for t in reversed(range(steps)) if reverse else range(steps):
        new_states = step(gates[t], *states)
        if lengths is None:
            states, out[t] = new_states, new_states[0]
        else:
            live = (t < lengths)[:, None]
            states = tuple(np.where(live, new, old) for new, old in zip(new_states, states, strict=True))
            out[t] = np.where(live, new_states[0], 0)
    return (out, *states)


def _multiplied(h, rounded: bool):
    """Return a hidden state as products read it, rounded to bf16 if `rounded`."""
    return h.astype(bf16.numpy).astype(h.dtype) if rounded else h


def _layer(activations: tuple[str, ...], **attributes: Any) -> dict[str, Any]:
    zeros = (0.0,) * len(activations)
    return {"activations": activations, "alphas": zeros, "betas": zeros, **attributes}


_LENGTHS = {"lengths": Index(lambda gates, *_, **__: range(len(gates) + 1))}
_LSTM = ("sigmoid", "tanh", "tanh")
_TOLERANCE = {f32: 1e-5}


def _infer_lstm(gates, r, h, c, peepholes=None, lengths=None, *, activations, alphas, betas, **_):
    steps, batch, hidden = _expect("lstm", gates, 4, r, h, lengths, c=c, peepholes=peepholes)
    _expect_activations("lstm", 3, activations, alphas, betas)
    if c.rank != 2 or (peepholes is not None and peepholes.shape != (3 * hidden,)):
        raise ShapeError(f"lstm: bad cell or peepholes, got {c} and {peepholes}, expected rank 2 and [{3 * hidden}]")
    unify("lstm: cell", c.shape[1], hidden)
    states = TensorType(gates.dtype, (unify("lstm: batch", batch, c.shape[0]), hidden))
    return TensorType(gates.dtype, (steps, batch, hidden)), states, states


@op(
    infer=_infer_lstm,
    addresses=_LENGTHS,
    outputs=3,
    tolerance=_TOLERANCE,
    samples=[
        sample("g[6,3,20] r[20,5] h[3,5] c[3,5]", **_layer(_LSTM)),
        sample("g[6,3,20] r[20,5] h[3,5] c[3,5] p[15] n:i64<7[3]", **_layer(_LSTM), reverse=True),
        sample("g[4,1,8] r[8,2] h[1,2] c[1,2] none n:i64<5[1]", **_layer(("softsign", "relu", "tanh")), clip=0.5),
        sample("g[4,2,12] r[12,3] h[2,3] c[2,3] p[9]", **_layer(_LSTM), input_forget=True),
        sample("g[3,13,160] r[160,40] h[13,40] c[13,40] p[120] n:i64<4[13]", **_layer(_LSTM), clip=0.5),
        sample("g[2,2,1200] r>-0.1<0.1[1200,300] h[2,300] c[2,300]", **_layer(("sigmoid", "tanh", "relu"))),
        sample("g[0,2,12] r[12,3] h[2,3] c[2,3]", **_layer(_LSTM)),
    ],
)
def lstm(
    gates, r, h, c, peepholes=None, lengths=None, *,
    activations: Activations, alphas: Floats, betas: Floats, clip: float = 0.0, input_forget: bool = False,
    reverse: bool = False, rounded: bool = False,
):  # fmt: skip
    """Long short-term memory: all hidden states [T,B,H], and the last hidden and cell state [B,H].

    gates [T,B,4H] are the contributions of inputs and biases to the input, output, forget and cell gate; r [4H,H]
    multiplies the hidden state; h and c are the initial states; peepholes [3H] multiply the cell for the first three
    gates. activations are for the gates, the cell and the result. lengths i64[B] in 0..T: beyond its length a sequence
    outputs zeros and keeps its state. clip above 0 bounds the inputs of the activations of the four gates;
    input_forget: the forget gate is 1 minus the input gate. rounded: the hidden state is rounded to bf16 before
    products. Hochreiter and Schmidhuber, 1997; Gers and Schmidhuber, 2000.
    """
    act, hidden = _Gates(activations, alphas, betas, clip), r.shape[1]
    pi, po, pf = np.split(np.zeros(3 * hidden, gates.dtype) if peepholes is None else peepholes, 3)

    def step(row, h, c):
        i, o, f, g = np.split(row + _multiplied(h, rounded) @ r.T, 4, 1)
        i = act(0, i + pi * c)
        f = 1 - i if input_forget else act(0, f + pf * c)
        c = f * c + i * act(1, g)
        return act(0, o + po * c) * act.unbounded(2, c), c

    return _run(step, gates, (h, c), lengths, reverse)


def _infer_gru(gates, r, bias, h, lengths=None, *, activations, alphas, betas, **_):
    steps, batch, hidden = _expect("gru", gates, 3, r, h, lengths, bias=bias)
    _expect_activations("gru", 2, activations, alphas, betas)
    if bias.shape != (3 * hidden,):
        raise ShapeError(f"gru: bad bias, got {bias}, expected [{3 * hidden}]")
    return TensorType(gates.dtype, (steps, batch, hidden)), TensorType(gates.dtype, (batch, hidden))


@op(
    infer=_infer_gru,
    addresses=_LENGTHS,
    outputs=2,
    tolerance=_TOLERANCE,
    samples=[
        sample("g[6,3,15] r[15,5] b[15] h[3,5]", **_layer(("sigmoid", "tanh"))),
        sample("g[6,3,15] r[15,5] b[15] h[3,5]", **_layer(("sigmoid", "tanh")), linear_before_reset=True),
        sample("g[6,3,15] r[15,5] b[15] h[3,5] n:i64<7[3]", **_layer(("sigmoid", "tanh")), reverse=True),
        sample("g[4,1,6] r[6,2] b[6] h[1,2]", **_layer(("softsign", "relu")), clip=0.5),
        sample("g[3,13,120] r[120,40] b[120] h[13,40] n:i64<4[13]", **_layer(("sigmoid", "tanh"))),
        sample("g[2,2,288] r>-0.2<0.2[288,96] b[288] h[2,96]", **_layer(("sigmoid", "tanh")), linear_before_reset=True),
        sample("g[0,2,9] r[9,3] b[9] h[2,3]", **_layer(("sigmoid", "tanh"))),
    ],
)
def gru(
    gates, r, bias, h, lengths=None, *,
    activations: Activations, alphas: Floats, betas: Floats, clip: float = 0.0, linear_before_reset: bool = False,
    reverse: bool = False, rounded: bool = False,
):  # fmt: skip
    """Gated recurrent units: all hidden states [T,B,H], and the last one [B,H].

    gates [T,B,3H] are the contributions of inputs to the update, reset and hidden gate; r [3H,H] and bias [3H] apply to
    the hidden state h, which the reset gate scales before the product, or after it with linear_before_reset.
    activations are for the two gates and the hidden one; lengths, clip and rounded as in `lstm`. Cho et al., 2014.
    """
    act, hidden = _Gates(activations, alphas, betas, clip), r.shape[1]
    both, last = slice(0, 2 * hidden), slice(2 * hidden, None)

    def step(row, h):
        z, reset = np.split(act(0, row[:, both] + (_multiplied(h, rounded) @ r[both].T + bias[both])), 2, 1)
        before, after = (1, reset) if linear_before_reset else (reset, 1)
        candidate = after * (_multiplied(before * h, rounded) @ r[last].T + bias[last])
        return ((1 - z) * act(1, row[:, last] + candidate) + z * h,)

    return _run(step, gates, (h,), lengths, reverse)


def _infer_rnn(gates, r, h, lengths=None, *, activations, alphas, betas, **_):
    steps, batch, hidden = _expect("rnn", gates, 1, r, h, lengths)
    _expect_activations("rnn", 1, activations, alphas, betas)
    return TensorType(gates.dtype, (steps, batch, hidden)), TensorType(gates.dtype, (batch, hidden))


@op(
    infer=_infer_rnn,
    addresses=_LENGTHS,
    outputs=2,
    tolerance=_TOLERANCE,
    samples=[
        sample("g[6,3,5] r[5,5] h[3,5]", **_layer(("tanh",))),
        sample("g[6,3,5] r[5,5] h[3,5] n:i64<7[3]", **_layer(("tanh",)), reverse=True),
        sample("g[4,1,2] r[2,2] h[1,2]", **_layer(("relu",)), clip=0.5),
        sample("g[3,13,80] r[80,80] h[13,80] n:i64<4[13]", **_layer(("tanh",)), reverse=True),
        sample("g[0,2,3] r[3,3] h[2,3]", **_layer(("tanh",))),
    ],
)
def rnn(
    gates, r, h, lengths=None, *,
    activations: Activations, alphas: Floats, betas: Floats, clip: float = 0.0, reverse: bool = False,
    rounded: bool = False,
):  # fmt: skip
    """A recurrent layer h = activation(gates + h r^T): all hidden states [T,B,H], and the last one [B,H].

    gates [T,B,H] are the contributions of inputs and biases; lengths, clip and rounded as in `lstm`. Elman, 1990.
    """
    act = _Gates(activations, alphas, betas, clip)
    return _run(lambda row, h: (act(0, row + _multiplied(h, rounded) @ r.T),), gates, (h,), lengths, reverse)


def _infer_linear_attention(q, k, v, state, decay=None, beta=None, *, scale):
    given = {"q": q, "k": k, "v": v, "state": state, "decay": decay, "beta": beta}
    given = {name: type for name, type in given.items() if type is not None}
    expect_kind("linear_attention", q, "f")
    if any(type.dtype is not q.dtype or type.rank != (3 if name == "beta" else 4) for name, type in given.items()):
        got = ", ".join(f"{name} {type}" for name, type in given.items())
        raise ShapeError(f"linear_attention: bad operands, got {got}, expected one dtype and rank 4, rank 3 of beta")
    dims = {"batch": q.shape[0], "steps": q.shape[1], "heads": q.shape[2], "keys": q.shape[3], "values": v.shape[3]}
    axes = {"k": "batch steps heads keys", "v": "batch steps heads values", "state": "batch heads keys values"}
    axes |= {"beta": "batch steps heads", "decay": "batch steps heads"}
    if decay is not None and decay.shape[3] != 1:
        axes["decay"] += " keys"
    for name in given.keys() & axes.keys():
        for axis, dim in zip(axes[name].split(), given[name].shape, strict=name != "decay"):
            dims[axis] = unify("linear_attention: {} of {}", dims[axis], dim, axis, name)
    batch, steps, heads, keys, values = dims.values()
    return TensorType(q.dtype, (batch, steps, heads, values)), TensorType(q.dtype, (batch, heads, keys, values))


@op(
    infer=_infer_linear_attention,
    outputs=2,
    tolerance=_TOLERANCE,
    samples=[
        sample("q[2,5,3,8] k[2,5,3,8] v[2,5,3,20] s[2,3,8,20]", scale=0.5),
        sample("q[1,7,2,4] k[1,7,2,4] v[1,7,2,4] s[1,2,4,4] d>0.2<1.0[1,7,2,1]", scale=1.0),
        sample("q[1,6,2,5] k[1,6,2,5] v[1,6,2,3] s[1,2,5,3] d>0.2<1.0[1,6,2,5]", scale=-2.0),
        sample("q[2,4,1,16] k>-0.4<0.4[2,4,1,16] v[2,4,1,33] s[2,1,16,33] none b>0.0<1.0[2,4,1]", scale=0.25),
        sample("q[1,9,2,9] k>-0.5<0.5[1,9,2,9] v[1,9,2,70] s[1,2,9,70] d>0.5<1.0[1,9,2,1] b>0.0<1.0[1,9,2]", scale=0.2),
        sample("q[1,0,2,3] k[1,0,2,3] v[1,0,2,5] s[1,2,3,5]", scale=1.0),
    ],
)
def linear_attention(q, k, v, state, decay=None, beta=None, *, scale: float):
    """Attention without softmax, as a recurrence: all results [B,T,H,V], and the last state [B,H,K,V].

    At each step, decay [B,T,H,K] or [B,T,H,1] multiplies the rows of the state, and the outer product of k [B,T,H,K]
    and v [B,T,H,V] is added; with beta [B,T,H] (the delta rule), that of k and beta * (v - state^T k). The result is
    scale * state^T q. Katharopoulos et al., "Transformers are RNNs", 2020; Yang et al., "Gated Delta Networks", 2024.
    """
    out = np.zeros(v.shape, v.dtype)
    for t in range(q.shape[1]):
        state = state if decay is None else state * decay[:, t, :, :, None]
        added = v[:, t]
        if beta is not None:
            added = beta[:, t, :, None] * (added - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * added[:, :, None, :]
        out[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t]) * v.dtype.type(scale)
    return out, state

"""Unroll recurrent layers into their steps, for backpropagation through time.

Werbos, "Backpropagation through time: what it does and how to do it", 1990.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.gradients.registry import unrolled
from ingot.ir.graph import Node
from ingot.ops.define import Expansion

MAX_STEPS = 512  # of a trained layer: its graph grows with each step
_ACTIVATIONS = {"lstm": (("sigmoid", "tanh", "tanh"),), "gru": (("sigmoid", "tanh"),), "rnn": (("tanh",), ("relu",))}


def _refusal(node: Node, steps: int) -> str:
    """Return why a layer cannot be unrolled, or ""."""
    if any(operand is not None for operand in node.operands[3 if node.op.name == "rnn" else 4 :]):
        return "which has peepholes or lengths"
    if node.activations not in _ACTIVATIONS[node.op.name] or node.clip or node.rounded:
        return f"whose activations are {', '.join(node.activations)}, or bounded, or rounded"
    if node.op.name == "lstm" and node.input_forget:
        return "whose forget gate is derived from the input gate"
    return "" if steps <= MAX_STEPS else f"whose steps are {steps}, expected at most {MAX_STEPS}"


def _rows(g: Expansion, gates: str, reverse: bool) -> list[str]:
    """Return the gate inputs of each step, [B, n], in the order of the steps."""
    steps, batch, wide = g.type(gates).dims
    found = [_cut(g, gates, (t, 0, 0), (1, batch, wide)) for t in range(steps)]
    found = [g.reshape(row, shape=(batch, wide)) for row in found]
    return found[::-1] if reverse else found


def _cut(g: Expansion, x: str, starts: Sequence[int], sizes: Sequence[int]) -> str:
    stops = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    return g.slice(x, starts=tuple(starts), stops=stops, steps=(1,) * len(stops))


def _columns(g: Expansion, x: str, count: int) -> list[str]:
    """Split the last of two dims into equal parts."""
    rows, wide = g.type(x).dims
    size = wide // count
    return [_cut(g, x, (0, i * size), (rows, size)) for i in range(count)]


def _product(g: Expansion, h: str, r: str) -> str:
    return g.matmul(h, r, transpose_b=True)


def _stacked(g: Expansion, states: list[str], h: str, reverse: bool) -> str:
    """Stack all hidden states: [T, B, H]."""
    batch, hidden = g.type(h).dims
    if not states:
        return g.expand(g.constant(0.0, g.type(h).dtype), shape=(0, batch, hidden))
    rows = [g.reshape(row, shape=(1, batch, hidden)) for row in (states[::-1] if reverse else states)]
    return rows[0] if len(rows) == 1 else g.concat(*rows, axis=0)


@unrolled("lstm", refuse=_refusal)
def lstm(g: Expansion, gates: str, r: str, h: str, c: str, *_: None, reverse: bool, **__: object) -> tuple[str, ...]:
    """Return all hidden states, the last one, and the last cell."""
    states = []
    for row in _rows(g, gates, reverse):
        input_gate, output_gate, forget_gate, new = _columns(g, g.add(row, _product(g, h, r)), 4)
        c = g.add(g.mul(g.sigmoid(forget_gate), c), g.mul(g.sigmoid(input_gate), g.tanh(new)))
        h = g.mul(g.sigmoid(output_gate), g.tanh(c))
        states.append(h)
    return _stacked(g, states, h, reverse), h, c


@unrolled("gru", refuse=_refusal)
def gru(
    g: Expansion,
    gates: str,
    r: str,
    bias: str,
    h: str,
    *_: None,
    reverse: bool,
    linear_before_reset: bool,
    **__: object,
) -> tuple[str, ...]:
    """Return all hidden states, and the last one."""
    hidden, states = g.type(h).dims[-1], []
    r_both, r_last = _cut(g, r, (0, 0), (2 * hidden, hidden)), _cut(g, r, (2 * hidden, 0), (hidden, hidden))
    bias_both, bias_last = _cut(g, bias, (0,), (2 * hidden,)), _cut(g, bias, (2 * hidden,), (hidden,))
    for row in _rows(g, gates, reverse):
        batch = g.type(row).dims[0]
        both = _cut(g, row, (0, 0), (batch, 2 * hidden))
        own = _cut(g, row, (0, 2 * hidden), (batch, hidden))
        update_gate, reset = _columns(g, g.sigmoid(g.add(both, g.add(_product(g, h, r_both), bias_both))), 2)
        if linear_before_reset:
            recurrent = g.mul(reset, g.add(_product(g, h, r_last), bias_last))
        else:
            recurrent = g.add(_product(g, g.mul(reset, h), r_last), bias_last)
        h = g.add(g.mul(g.sub(1.0, update_gate), g.tanh(g.add(own, recurrent))), g.mul(update_gate, h))
        states.append(h)
    return _stacked(g, states, h, reverse), h


@unrolled("rnn", refuse=_refusal)
def rnn(
    g: Expansion, gates: str, r: str, h: str, *_: None, activations: tuple[str, ...], reverse: bool, **__: object
) -> tuple[str, ...]:
    """Return all hidden states, and the last one."""
    states = []
    for row in _rows(g, gates, reverse):
        h = getattr(g, activations[0])(g.add(row, _product(g, h, r)))
        states.append(h)
    return _stacked(g, states, h, reverse), h

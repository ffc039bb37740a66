"""Recurrent layers as their steps, one after another, through which gradients flow back in time.

Werbos, "Backpropagation through time: what it does and how to do it", 1990.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.gradients.registry import unrolled
from ingot.ir.graph import Node
from ingot.ops.define import Expansion

MAX_STEPS = 512  # of a layer that is trained: its graph grows with each
_ACTIVATIONS = {"lstm": (("sigmoid", "tanh", "tanh"),), "gru": (("sigmoid", "tanh"),), "rnn": (("tanh",), ("relu",))}


def _refusal(node: Node, steps: int) -> str:
    """Why a layer is not unrolled, or ""."""
    if any(operand is not None for operand in node.operands[3 if node.op.name == "rnn" else 4 :]):
        return "which has peepholes or lengths"
    if node.activations not in _ACTIVATIONS[node.op.name] or node.clip or node.rounded:
        return f"whose activations are {', '.join(node.activations)}, or bounded, or rounded"
    if node.op.name == "lstm" and node.input_forget:
        return "whose forget gate is made of the input gate"
    return "" if steps <= MAX_STEPS else f"whose steps are {steps}, expected at most {MAX_STEPS}"


def _rows(g: Expansion, gates: str, reverse: bool) -> list[str]:
    """What each step adds to its gates, [B, n], in the order of the steps."""
    steps, batch, wide = g.type(gates).dims
    found = [_cut(g, gates, (t, 0, 0), (1, batch, wide)) for t in range(steps)]
    found = [g.reshape(row, shape=(batch, wide)) for row in found]
    return found[::-1] if reverse else found


def _cut(g: Expansion, x: str, starts: Sequence[int], sizes: Sequence[int]) -> str:
    stops = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    return g.slice(x, starts=tuple(starts), stops=stops, steps=(1,) * len(stops))


def _columns(g: Expansion, x: str, count: int) -> list[str]:
    """Equal parts of the last of two dims."""
    rows, wide = g.type(x).dims
    size = wide // count
    return [_cut(g, x, (0, i * size), (rows, size)) for i in range(count)]


def _product(g: Expansion, h: str, r: str) -> str:
    return g.matmul(h, r, transpose_b=True)


def _stacked(g: Expansion, made: list[str], h: str, reverse: bool) -> str:
    """All hidden states [T, B, H]."""
    batch, hidden = g.type(h).dims
    if not made:
        return g.expand(g.constant(0.0, g.type(h).dtype), shape=(0, batch, hidden))
    rows = [g.reshape(row, shape=(1, batch, hidden)) for row in (made[::-1] if reverse else made)]
    return rows[0] if len(rows) == 1 else g.concat(*rows, axis=0)


@unrolled("lstm", refuse=_refusal)
def lstm(g: Expansion, gates: str, r: str, h: str, c: str, *_: None, reverse: bool, **__: object) -> tuple[str, ...]:
    """All hidden states, the last one, and the last cell."""
    made = []
    for row in _rows(g, gates, reverse):
        given, put_out, kept, new = _columns(g, g.add(row, _product(g, h, r)), 4)
        c = g.add(g.mul(g.sigmoid(kept), c), g.mul(g.sigmoid(given), g.tanh(new)))
        h = g.mul(g.sigmoid(put_out), g.tanh(c))
        made.append(h)
    return _stacked(g, made, h, reverse), h, c


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
    """All hidden states, and the last one."""
    hidden, made = g.type(h).dims[-1], []
    r_both, r_last = _cut(g, r, (0, 0), (2 * hidden, hidden)), _cut(g, r, (2 * hidden, 0), (hidden, hidden))
    bias_both, bias_last = _cut(g, bias, (0,), (2 * hidden,)), _cut(g, bias, (2 * hidden,), (hidden,))
    for row in _rows(g, gates, reverse):
        batch = g.type(row).dims[0]
        both = _cut(g, row, (0, 0), (batch, 2 * hidden))
        own = _cut(g, row, (0, 2 * hidden), (batch, hidden))
        kept, reset = _columns(g, g.sigmoid(g.add(both, g.add(_product(g, h, r_both), bias_both))), 2)
        if linear_before_reset:
            seen = g.mul(reset, g.add(_product(g, h, r_last), bias_last))
        else:
            seen = g.add(_product(g, g.mul(reset, h), r_last), bias_last)
        h = g.add(g.mul(g.sub(1.0, kept), g.tanh(g.add(own, seen))), g.mul(kept, h))
        made.append(h)
    return _stacked(g, made, h, reverse), h


@unrolled("rnn", refuse=_refusal)
def rnn(
    g: Expansion, gates: str, r: str, h: str, *_: None, activations: tuple[str, ...], reverse: bool, **__: object
) -> tuple[str, ...]:
    """All hidden states, and the last one."""
    made = []
    for row in _rows(g, gates, reverse):
        h = getattr(g, activations[0])(g.add(row, _product(g, h, r)))
        made.append(h)
    return _stacked(g, made, h, reverse), h

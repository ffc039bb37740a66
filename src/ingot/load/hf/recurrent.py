"""Layers with recurrent state: the nodes of their steps, and their states.

Input: slots i32 [sequences], the slot of each sequence; only if a layer has state. States: recurrent.<layer>.<what> f32
[slots, ...]; see ops/sequence_state.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dim import symbol
from ingot.ir.dtype import f32, i32
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.activations import ACTIVATIONS
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.expression import Expression
from ingot.load.hf.layers import Linear
from ingot.load.hf.recurrence import Recurrent
from ingot.load.hf.settings import MAX_SIZE
from ingot.load.hf.weights import MIN_BITS, TABLE_BITS

SLOTS = "slots"  # the input
_LENGTH_EPS = 1e-6  # added to the squared length of queries and keys
_GRIFFIN = 8.0  # the constant c of RG-LRU
_PREFIX = "recurrent."  # of the names of states
_ADDRESSES = ("positions", "owners", SLOTS)


def is_recurrent(state: str) -> bool:
    """Return whether a state of a language model has a slot for each sequence, not blocks of positions."""
    return state.startswith(_PREFIX)


class RecurrentLayers:
    """Builds the layers with recurrent state of a decoder. slots: the sequences that its states can hold."""

    def __init__(self, graph: Graph, slots: int):
        self._graph = graph
        self._slots = slots

    def __call__(self, builder: LayerBuilder, step: Recurrent, x: str) -> str:
        """Return the rows [rows, width] of a layer for rows x [rows, width]. Raises LoadError."""
        if SLOTS not in self._graph.inputs:
            self._graph.add_input(SLOTS, TensorType(i32, (symbol("sequences"),)))
        return _BUILD[step.kind](_Layer(builder, step, self._slots), x)


class _Layer:
    """One layer: its sizes, weights and states, by the names of its step."""

    def __init__(self, builder: LayerBuilder, step: Recurrent, slots: int):
        self.builder = builder
        self.step = step
        self.width: int = builder.names["width"]
        self._slots = slots

    def size(self, name: str) -> int:
        return self.step.options[name].integer(self.builder.names, 1, MAX_SIZE)

    def number(self, name: str) -> float:
        return self.step.options[name].number(self.builder.names)

    def value(self, name: str) -> object:
        return self.step.options[name].evaluate(self.builder.names)

    def word(self, name: str, *expected: str) -> str:
        return self.step.options[name].word(self.builder.names, expected)

    def path(self, name: str) -> str:
        return f"{self.step.path}.{name}"

    def weight(self, name: str, *shape: int) -> str:
        """Return a weight that is never rounded: decays and steps act on every later row."""
        builder = self.builder
        return builder.weights.value(builder.full_path(self.path(name)), shape, self.step.where, is_exact=True)

    def linear(
        self, name: str, x: str, inputs: int, outputs: int, bias: str = "false", min_bits: int = MIN_BITS
    ) -> str:
        """Multiply by a weight and add its bias, if the option `bias`, or the expression, is true."""
        where, own = self.step.where, self.step.options.get(bias)
        has_bias = Expression(bias, where) if own is None else own
        return self.builder.linear(
            Linear(where, self.path(name), has_bias, False), x, inputs, outputs, min_bits=min_bits
        )

    def add(self, op: str, *operands: str, hint: str = "", **attributes: Any) -> str:
        return self.builder.add(op, *operands, hint=self.path(hint or op), **attributes)

    def parts(self, x: str, *sizes: int) -> list[str]:
        """Slice the last axis into consecutive parts."""
        *outer, _ = self.builder.graph.type(x).shape
        found, start = [], 0
        for size in sizes:
            starts, stops = (*(0 for _ in outer), start), (*outer, start + size)
            found.append(self.add("slice", x, hint="part", starts=starts, stops=stops, steps=(1,) * (len(outer) + 1)))
            start += size
        return found

    def heads(self, x: str, *shape: int) -> str:
        """Reshape [rows, ...] to [rows, *shape]."""
        return self.add("reshape", x, hint="heads", shape=(*self.builder.rows, *shape))

    def below(self, name: str) -> _Layer:
        """Return the layer with the weights below a path."""
        return _Layer(self.builder, replace(self.step, path=self.path(name)), self._slots)

    def rate(self, *shape: int) -> str:
        """Return -exp(A_log), the rates at which a state decays."""
        return self.add("neg", self.add("exp", self.weight("A_log", *shape), hint="rate"), hint="rate")

    def norm(self, x: str, size: int = 0, *, name: str | None = None, eps: float) -> str:
        """Normalize the last axis by its root mean square; name: of the weight [size], if any."""
        weights = [] if name is None else [self.weight(f"{name}.weight", size)]
        return self.add("rms_norm", x, *weights, hint=name or "norm", eps=eps)

    def recur(
        self,
        op: str,
        what: str,
        shape: Sequence[int],
        *operands: str,
        more: Sequence[str | None] = (),
        **attributes: Any,
    ) -> str:
        """Add an op over a state [slots, *shape] and return its results; more: its operands after the slots."""
        graph, layer = self.builder.graph, self.builder.names["layer"]
        state = graph.add_state(f"{_PREFIX}{layer}.{what}", TensorType(f32, (self._slots, *shape)))
        names = [f"{state}.update", self.builder.full_path(self.path(op))]
        update, out = graph.add(op, [state, *operands, *_ADDRESSES, *more], names, **attributes).outputs
        graph.set_state(state, update)
        return out

    def conv(self, name: str, x: str, channels: int) -> str:
        """Convolve each channel of x [rows, channels] over the last `taps` rows of its sequence."""
        taps = self.size("taps")
        stored = self.weight(f"{name}.weight", channels, 1, taps)
        weight = self.add("reshape", stored, hint=f"{name}.rows", shape=(channels, taps))
        weight = self.add("permute", weight, hint=f"{name}.taps", axes=(1, 0))
        bias = [self.weight(f"{name}.bias", channels)] if self.value("conv_bias") else []
        return self.recur("causal_conv", "conv", (taps - 1, channels), x, weight, more=bias)


def _short_conv(layer: _Layer, x: str) -> str:
    """Gate rows before and after a convolution. Liquid AI, "LFM2 Technical Report", 2025."""
    width = layer.width
    b, c, inner = layer.parts(layer.linear("in_proj", x, width, 3 * width, "bias"), width, width, width)
    mixed = layer.conv("conv", layer.add("mul", b, inner, hint="gated"), width)
    return layer.linear("out_proj", layer.add("mul", c, mixed, hint="gated"), width, width, "bias")


def _mamba(layer: _Layer, x: str) -> str:
    """A selective state-space layer. Gu and Dao, "Mamba: Linear-Time Sequence Modeling", 2023."""
    inner, size, rank = layer.size("inner"), layer.size("size"), layer.size("rank")
    values, gate = layer.parts(layer.linear("in_proj", x, layer.width, 2 * inner, "bias"), inner, inner)
    values = layer.add("silu", layer.conv("conv1d", values, inner))
    chosen = layer.linear("x_proj", values, inner, rank + 2 * size, min_bits=TABLE_BITS)
    parts = layer.parts(chosen, rank, size, size)
    norms = layer.word("norms", "none", "plain", "weighted")
    if norms != "none":
        eps, names = layer.number("norm_eps"), ("dt_layernorm", "b_layernorm", "c_layernorm")
        parts = [
            layer.norm(part, width, name=name if norms == "weighted" else None, eps=eps)
            for part, name, width in zip(parts, names, (rank, size, size), strict=True)
        ]
    step, b, c = parts
    step = layer.add("softplus", layer.linear("dt_proj", step, rank, inner, "true", min_bits=TABLE_BITS), hint="step")
    decay = layer.add("permute", layer.rate(inner, size), hint="decay", axes=(1, 0))
    skip = [layer.weight("D", inner)]
    result = layer.recur("selective_scan", "scan", (size, inner), values, step, decay, b, c, more=skip)
    gated = layer.add("mul", result, layer.add("silu", gate), hint="gated")
    return layer.linear("out_proj", gated, inner, layer.width, "bias")


def _mamba2(layer: _Layer, x: str) -> str:
    """A state-space layer with one decay for each head. Dao and Gu, "Transformers are SSMs", 2024."""
    heads, dim, groups, size = (layer.size(name) for name in ("heads", "head_dim", "groups", "size"))
    inner, shared = heads * dim, groups * size
    channels = inner + 2 * shared
    projected = layer.linear("in_proj", x, layer.width, inner + channels + heads, "bias")
    projected = _scaled(layer, projected, (inner, inner, shared, shared, heads))
    gate, mixed, step = layer.parts(projected, inner, channels, heads)
    values, b, c = layer.parts(layer.add("silu", layer.conv("conv1d", mixed, channels)), inner, shared, shared)
    step = layer.add("softplus", layer.add("add", step, layer.weight("dt_bias", heads), hint="step"), hint="step")
    bounds = {"minimum": "least_step", "maximum": "most_step"}
    given: dict[str, Any] = {
        bound: layer.number(name) for bound, name in bounds.items() if layer.value(name)
    }  # a step is positive
    step = layer.add("clip", step, **given) if given else step
    decay = layer.add("exp", layer.add("mul", step, layer.rate(heads), hint="decay"), hint="decay")
    values = layer.heads(values, heads, dim)
    added = layer.add("mul", values, layer.heads(step, heads, 1), hint="added")
    query, key = layer.heads(c, groups, size), layer.heads(b, groups, size)
    state = (heads, size, dim)
    result = layer.recur("linear_attention_of_rows", "scan", state, query, key, added, more=[decay], scale=1.0)
    skip = layer.add("reshape", layer.weight("D", heads), hint="skip", shape=(heads, 1))
    result = layer.add("add", result, layer.add("mul", values, skip, hint="skip"), hint="skipped")
    out_bias = "bias" if layer.value("out_bias") is None else "out_bias"
    return layer.linear(
        "out_proj", _gated(layer, layer.heads(result, inner), gate, inner), inner, layer.width, out_bias
    )


def _scaled(layer: _Layer, x: str, sizes: Sequence[int]) -> str:
    """Multiply consecutive parts of the last axis by the numbers of the option `scales`, if any."""
    scales = layer.value("scales")
    if scales is None:
        return x
    if not isinstance(scales, list) or len(scales) != len(sizes):
        raise LoadError(f"{layer.step.where}: scales: got {scales!r}, expected {len(sizes)} numbers")
    vector = np.repeat(np.array(scales, np.float32), sizes)
    graph = layer.builder.graph
    return layer.add("mul", x, graph.add_constant(graph.fresh("scales"), vector), hint="scaled")


def _gated(layer: _Layer, x: str, gate: str, inner: int) -> str:
    """Multiply x by silu(gate), and normalize it in groups after that, before that, or not."""
    norm = layer.word("norm", "after_gate", "before_gate", "none")
    gate = layer.add("silu", gate, hint="gate")
    if norm != "before_gate":
        x = layer.add("mul", x, gate, hint="gated")
    if norm != "none":
        groups = layer.size("norm_groups")
        x = layer.norm(layer.heads(x, groups, inner // groups), eps=layer.number("norm_eps"))
        x = layer.add("mul", layer.heads(x, inner), layer.weight("norm.weight", inner), hint="norm")
    return layer.add("mul", x, gate, hint="gated") if norm == "before_gate" else x


def _gated_delta(layer: _Layer, x: str) -> str:
    """Linear attention by the delta rule, with decay. Yang et al., "Gated Delta Networks", 2024."""
    heads, dim, key_heads, key_dim = (layer.size(name) for name in ("heads", "head_dim", "key_heads", "key_dim"))
    keys, inner = key_heads * key_dim, heads * dim
    projected, gate, beta, step = _delta_inputs(layer, x, heads, dim, key_heads, key_dim)
    mixed = layer.add("silu", layer.conv("conv1d", projected, 2 * keys + inner))
    query, key, values = layer.parts(mixed, keys, keys, inner)
    query, key = (layer.norm(layer.heads(each, key_heads, key_dim), eps=_LENGTH_EPS / key_dim) for each in (query, key))
    # A norm by the root mean square is one by the length, times the root of the size.
    key = layer.add("mul", key, layer.builder.constant(key_dim**-0.5), hint="key")
    beta = layer.add("sigmoid", beta, hint="beta")
    step = layer.add("softplus", layer.add("add", step, layer.weight("dt_bias", heads), hint="step"), hint="step")
    decay = layer.add("exp", layer.add("mul", step, layer.rate(heads), hint="decay"), hint="decay")
    operands = [query, key, layer.heads(values, heads, dim)]
    result = layer.recur(
        "linear_attention_of_rows", "delta", (heads, key_dim, dim), *operands, more=[decay, beta], scale=1 / key_dim
    )
    result = layer.norm(result, dim, name="norm", eps=layer.number("norm_eps"))
    result = layer.add("mul", result, layer.add("silu", layer.heads(gate, heads, dim), hint="gate"), hint="gated")
    return layer.linear("out_proj", layer.heads(result, inner), inner, layer.width)


def _delta_inputs(
    layer: _Layer, x: str, heads: int, dim: int, key_heads: int, key_dim: int
) -> tuple[str, str, str, str]:
    """Return queries, keys and values side by side, the gate, and the logits of beta and of the step."""
    keys, inner, width = key_heads * key_dim, heads * dim, layer.width
    if layer.word("layout", "separate", "grouped") == "separate":
        sizes = {"qkv": 2 * keys + inner, "z": inner, "b": heads, "a": heads}
        projected, gate, beta, step = (layer.linear(f"in_proj_{n}", x, width, size) for n, size in sizes.items())
        return projected, gate, beta, step
    each = heads // key_heads  # of the values, for one head of keys
    both = layer.linear("in_proj_qkvz", x, width, 2 * keys + 2 * inner)
    both = layer.heads(both, key_heads, 2 * key_dim + 2 * each * dim)
    parts = layer.parts(both, key_dim, key_dim, each * dim, each * dim)
    query, key, values, gate = (
        layer.heads(part, size) for part, size in zip(parts, (keys, keys, inner, inner), strict=True)
    )
    logits = layer.heads(layer.linear("in_proj_ba", x, width, 2 * heads), key_heads, 2 * each)
    beta, step = (layer.heads(part, heads) for part in layer.parts(logits, each, each))
    return layer.add("concat", query, key, values, hint="qkv", axis=1), gate, beta, step


def _rg_lru(layer: _Layer, x: str) -> str:
    """A gated linear recurrence of each channel. De et al., "Griffin", 2024."""
    inner = layer.size("inner")
    activation = ACTIVATIONS[layer.word("activation", *ACTIVATIONS)]
    gate = activation(layer.builder, layer.linear("linear_y", x, layer.width, inner, "true"))
    values = layer.conv("conv_1d", layer.linear("linear_x", x, layer.width, inner, "true"), inner)
    own = layer.below("rg_lru")
    chosen, kept = (_by_blocks(own, values, inner, name) for name in ("input_gate", "recurrent_gate"))
    rate = own.add("softplus", own.weight("recurrent_param", inner), hint="rate")
    rate = own.add("mul", rate, layer.builder.constant(-_GRIFFIN), hint="rate")
    log_decay = own.add("mul", kept, rate, hint="log_decay")
    squared = own.add("exp", own.add("mul", log_decay, layer.builder.constant(2.0), hint="squared"), hint="squared")
    share = own.add("sqrt", own.add("sub", layer.builder.constant(1.0), squared, hint="share"), hint="share")
    begins = own.add("equal", "positions", layer.builder.constant(0, i32), hint="begins")
    begins = own.add("reshape", begins, hint="begins", shape=(*layer.builder.rows, 1))
    share = own.add("where", begins, layer.builder.constant(1.0), share, hint="share")
    added = own.add("mul", own.add("mul", values, chosen, hint="chosen"), share, hint="added")
    decay = own.add("exp", log_decay, hint="decay")
    result = own.recur("linear_recurrence", "lru", (inner,), added, decay)
    gated = layer.add("mul", result, gate, hint="gated")
    return layer.linear("linear_out", gated, inner, layer.width, "true")


def _by_blocks(layer: _Layer, x: str, inner: int, name: str) -> str:
    """Multiply each block of the columns of x [rows, inner] by its own square matrix, and apply sigmoid."""
    blocks = layer.size("blocks")
    each = inner // blocks
    weight = layer.weight(f"{name}_weight", blocks, each, each)
    bias = layer.add("reshape", layer.weight(f"{name}_bias", blocks, each), hint=name, shape=(blocks, 1, each))
    x = layer.add("permute", layer.heads(x, blocks, each), hint=name, axes=(1, 0, 2))
    x = layer.add("add", layer.add("matmul", x, weight, hint=name), bias, hint=name)
    x = layer.heads(layer.add("permute", x, hint=name, axes=(1, 0, 2)), inner)
    return layer.add("sigmoid", x, hint=name)


_BUILD: dict[str, Callable[[_Layer, str], str]] = {
    "short_conv": _short_conv, "mamba": _mamba, "mamba2": _mamba2, "gated_delta": _gated_delta, "rg_lru": _rg_lru,
}  # fmt: skip

"""Layers with recurrent state: the nodes of their steps, and their states.

Input: slots i32 [sequences], the slot of each sequence; only if a layer has state. States: recurrent.<layer>.<what> f32
[slots, ...]; see ops/sequence_state.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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

    def vector(self, name: str, size: int) -> str:
        """Return a weight [size], which may be stored with more axes of size 1; it is never rounded."""
        builder = self.builder
        return builder.weights.vector(builder.full_path(self.path(name)), size, self.step.where)

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
        """Return the rates at which a state decays: the weight A of a file that has it, else -exp(A_log)."""
        if self.builder.weights.has(self.builder.full_path(self.path("A"))):
            return self.weight("A", *shape)
        stored = self.weight("A_log", *shape) if len(shape) > 1 else self.vector("A_log", *shape)
        return self.add("neg", self.add("exp", stored, hint="rate"), hint="rate")

    def norm(self, x: str, size: int = 0, *, name: str | None = None, eps: float) -> str:
        """Normalize the last axis by its root mean square; name: of the weight [size], if any."""
        weights = [] if name is None else [self.weight(f"{name}.weight", size)]
        return self.add("rms_norm", x, *weights, hint=name or "normed", eps=eps)

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

    def conv(self, names: Sequence[str], x: str, sizes: Sequence[int]) -> str:
        """Convolve each channel of x [rows, sum of sizes] over the last `taps` rows of its sequence.

        names: of the weights, which have consecutive parts of the channels, each of its size.
        """
        taps, channels, name = self.size("taps"), sum(sizes), names[0]
        paths = [self.builder.full_path(self.path(f"{each}.weight")) for each in names]
        rows = self.builder.weights.rows_of(paths, sizes)
        stored = [self.weight(f"{each}.weight", size, 1, taps) for each, size in zip(names, rows, strict=True)]
        weight = stored[0] if len(stored) == 1 else self.add("concat", *stored, hint=f"{name}.all", axis=0)
        weight = self.add("reshape", weight, hint=f"{name}.rows", shape=(channels, taps))
        weight = self.add("permute", weight, hint=f"{name}.taps", axes=(1, 0))
        bias = [self.weight(f"{name}.bias", channels)] if self.value("conv_bias") else []
        return self.recur("causal_conv", "conv", (taps - 1, channels), x, weight, more=bias)

    def mixed_with_last(self, what: str, x: str, *names: str) -> list[str]:
        """Mix x [rows, width] with the last row of its sequence, by the weight `time_mix_<name>` of each name.

        what: the name of the state.
        """
        add, graph, width = self.add, self.builder.graph, self.width
        taps = np.array([[1.0], [0.0]], np.float32) * np.ones(width, np.float32)
        weight = graph.add_constant(graph.fresh("shift.taps"), taps)
        last = self.recur("causal_conv", what, (1, width), x, weight)
        found = []
        for name in names:
            share = self.vector(f"time_mix_{name}", width)
            rest = add("sub", self.builder.constant(1.0), share, hint="rest")
            hint = f"{name}.mixed"  # the path of the module names the product that follows
            found.append(add("add", add("mul", x, share, hint=hint), add("mul", last, rest, hint=hint), hint=hint))
        return found

    def low_rank(self, name: str, x: str, rank: str, outputs: int, min_bits: int = MIN_BITS) -> str:
        """Multiply by `<name>_proj`, or by `<name>_a_proj` and `<name>_b_proj` if the option `rank` is not 0."""
        between = self.step.options[rank].integer(self.builder.names, 0, MAX_SIZE)
        if not between:
            return self.linear(f"{name}_proj", x, self.width, outputs, min_bits=min_bits)
        x = self.linear(f"{name}_a_proj", x, self.width, between, min_bits=min_bits)
        return self.linear(f"{name}_b_proj", x, between, outputs, min_bits=min_bits)


def _short_conv(layer: _Layer, x: str) -> str:
    """Gate rows before and after a convolution. Liquid AI, "LFM2 Technical Report", 2025."""
    width = layer.width
    b, c, inner = layer.parts(layer.linear("in_proj", x, width, 3 * width, "bias"), width, width, width)
    mixed = layer.conv(["conv"], layer.add("mul", b, inner, hint="gated"), [width])
    return layer.linear("out_proj", layer.add("mul", c, mixed, hint="gated"), width, width, "bias")


def _mamba(layer: _Layer, x: str) -> str:
    """A selective state-space layer. Gu and Dao, "Mamba: Linear-Time Sequence Modeling", 2023."""
    inner, size, rank = layer.size("inner"), layer.size("size"), layer.size("rank")
    values, gate = layer.parts(layer.linear("in_proj", x, layer.width, 2 * inner, "bias"), inner, inner)
    values = layer.add("silu", layer.conv(["conv1d"], values, [inner]))
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
    values, b, c = layer.parts(layer.add("silu", layer.conv(["conv1d"], mixed, [channels])), inner, shared, shared)
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
        hint = "normed" if norm == "before_gate" else "norm"  # the module returns the gated result
        x = layer.add("mul", layer.heads(x, inner), layer.weight("norm.weight", inner), hint=hint)
    return layer.add("mul", x, gate, hint="norm") if norm == "before_gate" else x


class _Delta(NamedTuple):
    """What the delta rule reads of rows: queries, keys and values side by side, after their convolution, and logits."""

    mixed: str
    gate: str
    beta: str
    step: str


def _gated_delta(layer: _Layer, x: str) -> str:
    """Linear attention by the delta rule, with decay of a head or of each of its keys.

    Yang et al., "Gated Delta Networks", 2024; Kimi Team, "Kimi Linear", 2025.
    """
    heads, dim, key_heads, key_dim = (layer.size(name) for name in ("heads", "head_dim", "key_heads", "key_dim"))
    keys, inner = key_heads * key_dim, heads * dim
    is_apart = layer.word("layout", "separate", "grouped", "joined", "apart") == "apart"
    mixed, gate, beta, step = (_delta_apart if is_apart else _delta_inputs)(layer, x, heads, dim, key_heads, key_dim)
    query, key, values = layer.parts(layer.add("silu", mixed), keys, keys, inner)
    query, key = (layer.norm(layer.heads(each, key_heads, key_dim), eps=_LENGTH_EPS / key_dim) for each in (query, key))
    if layer.word("values", "grouped", "tiled") == "tiled":  # the head of values i has the head i % key_heads of keys
        query, key = (
            layer.add("concat", *[each] * (heads // key_heads), hint="tiled", axis=1) for each in (query, key)
        )
    # A norm by the root mean square is one by the length, times the root of the size.
    key = layer.add("mul", key, layer.builder.constant(key_dim**-0.5), hint="key")
    beta = layer.builder.scaled(layer.number("beta_factor"), layer.add("sigmoid", beta, hint="beta"))
    operands = [query, key, layer.heads(values, heads, dim)]
    more = [_delta_decay(layer, step, heads, key_dim), beta]
    result = layer.recur(
        "linear_attention_of_rows", "delta", (heads, key_dim, dim), *operands, more=more, scale=1 / key_dim
    )
    result = layer.norm(result, dim, name="o_norm" if is_apart else "norm", eps=layer.number("norm_eps"))
    gate = layer.add(layer.word("gate", "silu", "sigmoid"), layer.heads(gate, heads, dim), hint="gate")
    result = layer.heads(layer.add("mul", result, gate, hint="gated"), inner)
    return layer.linear(layer.word("out", "o_proj", "dense") if is_apart else "out_proj", result, inner, layer.width)


def _delta_decay(layer: _Layer, step: str, heads: int, key_dim: int) -> str:
    """Return the factors of the states, [rows, heads], or [rows, heads, key_dim] if each key has its own."""
    if layer.word("decay", "head", "key") == "head":
        step = layer.add("softplus", layer.add("add", step, layer.weight("dt_bias", heads), hint="step"), hint="step")
        return layer.add("exp", layer.add("mul", step, layer.rate(heads), hint="decay"), hint="decay")
    step = layer.add("add", step, layer.weight("dt_bias", heads * key_dim), hint="step")
    step = layer.heads(step, heads, key_dim)
    rate = layer.add("reshape", layer.rate(heads), hint="rate", shape=(heads, 1))
    if layer.value("least_decay") is None:
        log_decay = layer.add("mul", layer.add("softplus", step, hint="step"), rate, hint="decay")
    else:
        share = layer.add("sigmoid", layer.add("neg", layer.add("mul", step, rate, hint="share"), hint="share"))
        log_decay = layer.add("mul", share, layer.builder.constant(layer.number("least_decay")), hint="decay")
    return layer.add("exp", log_decay, hint="decay")


def _delta_inputs(layer: _Layer, x: str, heads: int, dim: int, key_heads: int, key_dim: int) -> _Delta:
    """Compute the inputs of the delta rule with one, two or four projections."""
    keys, inner, width = key_heads * key_dim, heads * dim, layer.width
    layout = layer.word("layout", "separate", "grouped", "joined")
    if layout == "joined":
        sizes = (2 * keys + inner, inner, heads, heads)
        projected, *others = layer.parts(layer.linear("in_proj", x, width, sum(sizes)), *sizes)
        return _Delta(layer.conv(["conv1d"], projected, sizes[:1]), *others)
    is_grouped = layout == "grouped"
    each = heads // key_heads  # of the values, for one head of keys
    if is_grouped and not layer.builder.weights.has(layer.builder.full_path(layer.path("in_proj_qkv.weight"))):
        both = layer.linear("in_proj_qkvz", x, width, 2 * keys + 2 * inner)
        both = layer.heads(both, key_heads, 2 * key_dim + 2 * each * dim)
        parts = layer.parts(both, key_dim, key_dim, each * dim, each * dim)
        query, key, values, gate = (
            layer.heads(part, size) for part, size in zip(parts, (keys, keys, inner, inner), strict=True)
        )
        projected = layer.add("concat", query, key, values, hint="qkv", axis=1)
    else:  # GGUF files have these two apart
        projected = layer.linear("in_proj_qkv", x, width, 2 * keys + inner)
        gate = layer.linear("in_proj_z", x, width, inner)
    if is_grouped:
        logits = layer.heads(layer.linear("in_proj_ba", x, width, 2 * heads), key_heads, 2 * each)
        beta, step = (layer.heads(part, heads) for part in layer.parts(logits, each, each))
    else:
        beta, step = (layer.linear(f"in_proj_{name}", x, width, heads) for name in "ba")
    return _Delta(layer.conv(["conv1d"], projected, [2 * keys + inner]), gate, beta, step)


def _delta_apart(layer: _Layer, x: str, heads: int, dim: int, key_heads: int, key_dim: int) -> _Delta:
    """Compute the inputs of the delta rule with a projection and a convolution for each."""
    width, inner = layer.width, heads * dim
    sizes = {"q": key_heads * key_dim, "k": key_heads * key_dim, "v": inner}
    parts = [layer.linear(f"{name}_proj", x, width, size) for name, size in sizes.items()]
    projected = layer.add("concat", *parts, hint="qkv", axis=1)
    mixed = layer.conv([f"{name}_conv1d" for name in sizes], projected, [*sizes.values()])
    beta = layer.linear("b_proj", x, width, heads, min_bits=TABLE_BITS)
    if layer.word("decay", "head", "key") == "head":
        step = layer.linear("a_proj", x, width, heads, min_bits=TABLE_BITS)
    else:
        step = layer.low_rank("f", x, "decay_rank", heads * key_dim, min_bits=TABLE_BITS)
    return _Delta(mixed, layer.low_rank("g", x, "gate_rank", inner), beta, step)


def _lightning(layer: _Layer, x: str) -> str:
    """Linear attention whose heads decay by constants: `slope` of each `head`.

    Qin et al., "Lightning Attention-2", 2024; MiniMax, "MiniMax-01", 2025.
    """
    heads, dim = layer.size("heads"), layer.size("head_dim")
    inner, graph = heads * dim, layer.builder.graph
    activation = ACTIVATIONS[layer.word("activation", *ACTIVATIONS)]
    both = activation(layer.builder, layer.linear("qkv_proj", x, layer.width, 3 * inner))
    query, key, values = layer.parts(layer.heads(both, heads, 3 * dim), dim, dim, dim)
    slope, names = layer.step.options["slope"], layer.builder.names
    decays = np.exp([[-slope.number({**names, "head": head}) for head in range(heads)]]).astype(np.float32)
    decay = graph.add_constant(graph.fresh("decays"), decays)
    decay = layer.add("expand", decay, hint="decay", shape=(*layer.builder.rows, heads))
    result = layer.recur(
        "linear_attention_of_rows", "lightning", (heads, dim, dim), query, key, values, more=[decay], scale=1.0
    )
    result = layer.norm(layer.heads(result, inner), inner, name="norm", eps=layer.number("norm_eps"))
    gate = layer.add("sigmoid", layer.linear("output_gate", x, layer.width, inner), hint="gate")
    return layer.linear("out_proj", layer.add("mul", gate, result, hint="gated"), inner, layer.width)


def _time_mix(layer: _Layer, x: str) -> str:
    """The attention of RWKV: a mean of values, weighted by their keys and distances. Peng et al., "RWKV", 2023."""
    inner = layer.size("inner")
    key, value, receptance = layer.mixed_with_last("shift", x, "key", "value", "receptance")
    key, value = layer.linear("key", key, layer.width, inner), layer.linear("value", value, layer.width, inner)
    decay = layer.add("neg", layer.add("exp", layer.weight("time_decay", inner), hint="decay"), hint="decay")
    result = layer.recur("wkv", "wkv", (3, inner), key, value, decay, layer.weight("time_first", inner))
    share = layer.add("sigmoid", layer.linear("receptance", receptance, layer.width, inner), hint="share")
    return layer.linear("output", layer.add("mul", share, result, hint="gated"), inner, layer.width)


def _channel_mix(layer: _Layer, x: str) -> str:
    """The mlp of RWKV, which reads the row before, too."""
    inner, width = layer.size("inner"), layer.width
    key, receptance = layer.mixed_with_last("channel_shift", x, "key", "receptance")
    hidden = ACTIVATIONS["relu2"](layer.builder, layer.linear("key", key, width, inner))
    share = layer.add("sigmoid", layer.linear("receptance", receptance, width, width), hint="share")
    return layer.add("mul", share, layer.linear("value", hidden, inner, width), hint="gated")


def _rg_lru(layer: _Layer, x: str) -> str:
    """A gated linear recurrence of each channel. De et al., "Griffin", 2024."""
    inner = layer.size("inner")
    activation = ACTIVATIONS[layer.word("activation", *ACTIVATIONS)]
    gate = activation(layer.builder, layer.linear("linear_y", x, layer.width, inner, "true"))
    values = layer.conv(["conv_1d"], layer.linear("linear_x", x, layer.width, inner, "true"), [inner])
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
    "short_conv": _short_conv, "mamba": _mamba, "mamba2": _mamba2, "gated_delta": _gated_delta,
    "lightning": _lightning, "time_mix": _time_mix, "channel_mix": _channel_mix, "rg_lru": _rg_lru,
}  # fmt: skip

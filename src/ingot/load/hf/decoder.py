"""Decoders: rows of any mix of sequences, keys and values in a paged cache.

Inputs, all i32: ids[rows], positions[rows] in each row's sequence, owners[rows] (the sequence of each row),
blocks[sequences, blocks_per_sequence] (the cache block of each 64 positions), take[taken] (the rows whose logits are
requested). Layers with recurrent state add one more input, and states; see recurrent.py. So may layers with a window;
see windows.py.
States: keys.<layer> [blocks, kv_heads, head_dim, 64] and values.<layer> [blocks, kv_heads, 64, v_dim]; if they are
quantized, also key_scales.<layer> and value_scales.<layer>; see ops/kv_cache.py. Further steps of attention of a layer
have a number behind that of the layer.
Outputs: logits f32 [taken, vocab] and hidden f32 [taken, width], the states that the logits are computed from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dim import symbol
from ingot.ir.dtype import DType, f16, f32, i4, i8, i32, u8
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.attention import Kept, Positions, output, projected, sinks
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.experts import write_mixture
from ingot.load.hf.latent import multiply_heads
from ingot.load.hf.recurrent import RecurrentLayers
from ingot.load.hf.rope import Rotations
from ingot.load.hf.settings import MAX_SIZE, Settings
from ingot.load.hf.template import Attention, Template
from ingot.load.hf.weights import TABLE_BITS, Weights
from ingot.load.hf.windows import WINDOW_BLOCKS, Windows
from ingot.ops.kv_cache import CACHE_BLOCK, packed_dims

_QUANT = {i8: "int8", i4: "int4"}  # quantized dtypes of caches, whose values have scales


def build_decoder(
    graph: Graph,
    template: Template,
    settings: Settings,
    weights: Weights,
    *,
    context: int,
    cache_blocks: int,
    cache_dtype: DType,
    slots: int,
    windows: Windows | None = None,
) -> None:
    """Build the whole model in an empty graph. slots: the sequences whose recurrent states can be stored.

    windows: the cache of layers with a window, None if every layer caches all positions.
    """
    rows, taken = symbol("rows"), symbol("taken")
    blocks_per_sequence = -(-context // CACHE_BLOCK)
    for name in ("ids", "positions", "owners"):
        graph.add_input(name, TensorType(i32, (rows,)))
    for name in ("blocks",) if windows is None else ("blocks", WINDOW_BLOCKS):
        graph.add_input(name, TensorType(i32, (symbol("sequences"), blocks_per_sequence)))
    graph.add_input("take", TensorType(i32, (taken,)))
    attend = _CachedAttention(graph, template, settings, context, cache_blocks, cache_dtype, windows)
    recur = RecurrentLayers(graph, slots)
    builder = LayerBuilder(graph, template, settings, weights, (rows,), attend, write_mixture, recur)
    hint = template.embedding.positions or ""
    table, x = write_layers(
        builder, context, lambda positions_table: builder.add("gather", positions_table, "positions", hint=hint, axis=0)
    )
    hidden = builder.apply(template.output, builder.add("gather", x, "take", hint="taken", axis=0))
    graph.set_output("logits", write_logits(builder, table, hidden))
    graph.set_output("hidden", hidden)


def write_layers(builder: LayerBuilder, context: int, placed: Callable[[str], str]) -> tuple[str, str]:
    """Build the embedding of "ids" and all layers; return the token table and the output of the last layer.

    placed: selects the rows of a position table for the ids.
    """
    template, values, embedding = builder.template, builder.names, builder.template.embedding
    size = embedding.size.integer(values, 1, MAX_SIZE)
    rows = embedding.rows.integer(values, values["vocab"], MAX_SIZE)
    table = builder.table(embedding.tokens, rows, embedding.where, size)
    x = builder.add("gather", table, "ids", hint=embedding.tokens, axis=0)
    x = builder.apply(embedding.tokens_then, x)
    if embedding.types is not None:
        x = builder.add("add", x, _first_type(builder), hint=embedding.types)
    if embedding.layer_inputs is not None and embedding.layer_inputs.when.evaluate(values):
        builder.embed_for_layers(embedding.layer_inputs, x)
    positions = _positions(builder, context, x)
    if positions is not None:
        x = builder.add("add", x, placed(positions))
    x = builder.embedding = builder.apply(embedding.then, x)
    for layer in range(values["layers"]):
        builder.enter_layer(layer)
        x = builder.apply(template.steps, x)
    builder.leave_layers()
    return table, x


def _first_type(builder: LayerBuilder) -> str:
    """Return the embedding of the first token type, which all tokens of a decoder have, [size]."""
    values, embedding = builder.names, builder.template.embedding
    assert embedding.types is not None
    size = embedding.size.integer(values, 1, MAX_SIZE)
    table = builder.table(embedding.types, values["types"], embedding.where, size)
    row = builder.add("slice", table, starts=(0, 0), stops=(1, size), steps=(1, 1), hint=f"{embedding.types}.first")
    return builder.add("reshape", row, hint=f"{embedding.types}.first", shape=(size,))


def _positions(builder: LayerBuilder, context: int, x: str) -> str | None:
    """Return the table that is added to x by position, [context or more, columns of x]; None without one."""
    values, embedding = builder.names, builder.template.embedding
    first, width = embedding.first.integer(values, 0, MAX_SIZE), builder.graph.type(x).shape[-1]
    assert isinstance(width, int)
    if embedding.sinusoidal is not None:
        divisor = embedding.sinusoidal.number(values)
        if not divisor > 0:
            raise LoadError(f"{embedding.sinusoidal.where}: got {divisor}, expected a number above 0")
        angles = np.arange(first, first + context)[:, None] * 10000.0 ** (-np.arange(width // 2) / divisor)
        table = np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32)
        return builder.graph.add_weight("positions.table", table)
    if embedding.positions is None:
        return None
    table_rows = first + values["context"]
    found = builder.table(embedding.positions, table_rows, embedding.where, width)
    if not first:
        return found
    return builder.add("slice", found, starts=(first, 0), stops=(table_rows, width), steps=(1, 1), hint="positions")


def write_logits(builder: LayerBuilder, table: str, hidden: str) -> str:
    """Multiply final states by the head's weight, or by the token table if tied. Raises LoadError."""
    template, values = builder.template, builder.names
    head = template.head
    if head is None:
        raise LoadError(f"{template.file}: a decoder without 'head'")
    builder.leave_prefix()
    hidden = builder.apply(head.first, hidden)
    inputs = builder.graph.type(hidden).shape[-1]
    assert isinstance(inputs, int)
    if builder.is_tied:
        logits = builder.add("matmul", hidden, table, hint="logits", transpose_b=True)
        if head.linear.bias.evaluate(values):
            bias = builder.bias(head.linear, head.linear.path, values["vocab"])
            logits = builder.add("add", logits, bias, hint="logits.biased")
    else:
        logits = builder.linear(head.linear, hidden, inputs, values["vocab"], prefixed=False, min_bits=TABLE_BITS)
    return builder.apply(head.then, logits)


def slots_axis(state: str) -> int:
    """Return the axis of a state that holds the positions of a block."""
    return 2 if state.startswith("values.") else -1


class _CachedAttention:
    """Rotation, the append to the cache, and attention over it; layers share the states and tables."""

    def __init__(
        self,
        graph: Graph,
        template: Template,
        settings: Settings,
        context: int,
        blocks: int,
        cache_dtype: DType,
        windows: Windows | None,
    ):
        self._graph = graph
        self._template = template
        self._blocks = blocks
        self._dtype = cache_dtype
        self._windows = windows
        self._kept = Kept()
        self._columns = -(-context // CACHE_BLOCK) * CACHE_BLOCK
        self._tables: dict[bytes, str] = {}
        self._positions = Positions(Rotations(template, settings, context), context, _placed)

    def __call__(self, builder: LayerBuilder, attention: Attention, x: str) -> str:
        names = builder.names
        q, k, v, gate, expansion = projected(builder, attention, x, is_cached=True)
        q = self._positions.queries(builder, attention, q)
        if k is None or v is None:
            keys, values, scales, table = self._kept.of(builder, attention)
        else:
            k = self._positions.keys(builder, attention, k)
            table, blocks = self._cache(names["layer"])
            name = self._name(names["layer"])
            keys, key_scales = self._append(builder, "key", name, k, table, blocks)
            values, value_scales = self._append(builder, "value", name, v, table, blocks)
            scales = [key_scales, value_scales] if key_scales and value_scales else []
            self._kept.keep(builder, attention, (keys, values, scales, table))
        operands = [q, keys, values, "positions", "owners", table, *scales]
        sink, biases = sinks(builder, attention), self._biases(builder, attention)
        if sink is not None or biases is not None:
            operands = [*operands, *[None] * (8 - len(operands)), sink, *([biases] if biases else [])]
        result = self._graph.add(
            "cached_attention", operands, f"{builder.path}attention",
            scale=attention.scale.number(names),
            window=attention.window.integer(names, 0, MAX_SIZE),
            softcap=attention.softcap.number(names),
            segment=attention.segment.integer(names, 0, MAX_SIZE),
            relative=biases is not None and not _counts_from_key(builder, attention),
        )  # fmt: skip
        attended = result.output if expansion is None else multiply_heads(builder, result.output, expansion)
        return output(builder, attention, x, attended, gate)

    def _biases(self, builder: LayerBuilder, attention: Attention) -> str | None:
        """Return the biases of scores by position, a constant that layers share; None without any."""
        if attention.alibi is None:
            return None
        from_key = _counts_from_key(builder, attention)
        table = attention.alibi.table(builder.names, self._columns, from_key=from_key)
        if table is None:
            return None
        content = table.tobytes()
        if content not in self._tables:
            self._tables[content] = self._graph.add_weight(self._graph.fresh("position_biases"), table)
        return self._tables[content]

    def _name(self, layer: int) -> str:
        """Return an unused name for the cache of a step of attention."""
        earlier = sum(state == f"keys.{layer}" or state.startswith(f"keys.{layer}.") for state in self._graph.states)
        return f"{layer}.{earlier}" if earlier else str(layer)

    def _cache(self, layer: int) -> tuple[str, int]:
        """Return the input with the block table of a layer, and the number of blocks in the layer's cache."""
        if self._windows is not None and layer in self._windows.layers:
            return WINDOW_BLOCKS, self._windows.blocks
        return "blocks", self._blocks

    def _append(
        self, builder: LayerBuilder, what: str, name: str, x: str, table: str, blocks: int
    ) -> tuple[str, str | None]:
        """Append x to the cache of keys or values with a name; return the cache, and its scales if it is quantized.

        table, blocks: as `_cache` returns them.
        """
        graph, addresses = self._graph, ("positions", "owners", table)
        *_, kv_heads, dim = graph.type(x).shape
        assert isinstance(kv_heads, int) and isinstance(dim, int)
        storage, width, scales_type = self._dtype, dim, TensorType(f32, (blocks, kv_heads, CACHE_BLOCK))
        if self._dtype is i4:
            if dim % 2:
                raise LoadError(f"{self._template.file}: heads of odd size, got {dim}, expected even for an int4 cache")
            width, count = packed_dims(dim)
            storage, scales_type = u8, TensorType(f16, (blocks, kv_heads, count, CACHE_BLOCK))
        block = (width, CACHE_BLOCK) if what == "key" else (CACHE_BLOCK, width)
        state = graph.add_state(f"{what}s.{name}", TensorType(storage, (blocks, kv_heads, *block)))
        if self._dtype not in _QUANT:
            update = builder.add(f"append_{what}s", state, x, *addresses, hint=f"{what}s")
            graph.set_state(state, update)
            return update, None
        scales = graph.add_state(f"{what}_scales.{name}", scales_type)
        operands = [state, scales, x, *addresses]
        node = graph.add(f"append_{what}s_{_QUANT[self._dtype]}", operands, f"{what}s.{name}.update")
        for each, update in zip((state, scales), node.outputs, strict=True):
            graph.set_state(each, update)
        return node.outputs[0], node.outputs[1]


def _counts_from_key(builder: LayerBuilder, attention: Attention) -> bool:
    """Return whether biases depend on the position of the key, not on its distance alone."""
    return attention.alibi is not None and bool(attention.alibi.rounded.evaluate(builder.names))


def _placed(builder: LayerBuilder, name: str, table: np.ndarray) -> str:
    """Gather rows [rows, 1, dim] of a table at the rows' positions."""
    graph = builder.graph
    rows = graph.add("gather", [graph.add_weight(name, table), "positions"], f"{name}.rows", axis=0)
    return graph.add("reshape", [rows.output], f"{name}.heads", shape=(*builder.rows, 1, table.shape[1])).output

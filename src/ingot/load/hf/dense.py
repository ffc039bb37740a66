"""Decoders over whole sequences, without a cache, for training.

Input: ids i64 [batch, length]. Output: logits f32 [batch, length, vocab]; each row predicts the next id.
"""

from __future__ import annotations

import numpy as np

from ingot.ir.dim import symbol
from ingot.ir.dtype import i64
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.attention import Kept, Positions, output, projected, sinks
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.decoder import write_layers, write_logits
from ingot.load.hf.experts import write_mixture
from ingot.load.hf.rope import Rotations
from ingot.load.hf.settings import MAX_SIZE, Settings
from ingot.load.hf.template import Attention, Template
from ingot.load.hf.weights import Weights


def build_dense(graph: Graph, template: Template, settings: Settings, weights: Weights, context: int) -> None:
    """Build the whole model in an empty graph. context: the maximum of length."""
    rows = (symbol("batch"), symbol("length"))
    graph.add_input("ids", TensorType(i64, rows))
    builder = LayerBuilder(
        graph, template, settings, weights, rows, _CausalAttention(template, settings, context), write_mixture
    )
    table, x = write_layers(builder, context, lambda positions: _first(builder, positions))
    graph.set_output("logits", write_logits(builder, table, builder.apply(template.output, x)))


def _first(builder: LayerBuilder, table: str) -> str:
    """Slice the first rows of a table, one per position of a sequence."""
    stops = (builder.rows[1], builder.graph.type(table).shape[1])
    return builder.add("slice", table, starts=(0, 0), stops=stops, steps=(1, 1), hint="positions")


def _placed(builder: LayerBuilder, name: str, table: np.ndarray) -> str:
    """Return rows [length, 1, dim] of a table for the positions of a sequence."""
    rows = _first(builder, builder.graph.add_weight(name, table))
    shape = (builder.rows[1], 1, table.shape[1])
    return builder.graph.add("reshape", [rows], f"{name}.heads", shape=shape).output


class _CausalAttention:
    """Rotation, and causal attention; layers share tables and masks."""

    def __init__(self, template: Template, settings: Settings, context: int):
        self._positions, self._context = Positions(Rotations(template, settings, context), context, _placed), context
        self._masks: dict[tuple[int, int], str] = {}
        self._tables: dict[bytes, str] = {}
        self._kept = Kept()

    def __call__(self, builder: LayerBuilder, attention: Attention, x: str) -> str:
        names = builder.names
        q, k, v, gate, _ = projected(builder, attention, x)
        q = builder.add("permute", self._positions.queries(builder, attention, q), axes=(0, 2, 1, 3))
        if k is None or v is None:
            k, v = self._kept.of(builder, attention)
        else:
            k = builder.add("permute", self._positions.keys(builder, attention, k), axes=(0, 2, 1, 3))
            v = builder.add("permute", v, axes=(0, 2, 1, 3))
            self._kept.keep(builder, attention, (k, v))
        window, softcap = attention.window.integer(names, 0, MAX_SIZE), attention.softcap.number(names)
        window, segment = (
            size if 0 < size < self._context else 0 for size in (window, attention.segment.integer(names, 0, MAX_SIZE))
        )
        mask = [self._near(builder, window, segment)] if window or segment else []
        scale = attention.scale.number(names)
        table = None if attention.alibi is None else attention.alibi.table(names, self._context, from_key=True)
        biases = None if table is None else self._biases(builder, table)
        sink = sinks(builder, attention)
        if softcap or biases or sink is not None:
            mask = mask or [self._near(builder, 0, 0)]
            result = self._plain(builder, q, k, v, mask, scale, softcap, biases, sink)
        else:
            result = builder.add("attention", q, k, v, *mask, hint="attention", scale=scale, causal=True)
        return output(builder, attention, x, builder.add("permute", result, axes=(0, 2, 1, 3)), gate)

    def _plain(
        self,
        builder: LayerBuilder,
        q: str,
        k: str,
        v: str,
        mask: list[str],
        scale: float,
        softcap: float,
        biases: str | None,
        sink: str | None,
    ) -> str:
        """Compute attention with soft-capped or biased scores, or with sinks, in plain ops."""
        k, v = self._for_each_head(builder, k), self._for_each_head(builder, v)
        scores = builder.softcap(softcap, builder.add("matmul", q, k, transpose_b=True, scale=scale))
        if biases is not None:
            scores = builder.add("add", scores, biases, hint="biased")
        scores = builder.add("where", *mask, scores, builder.constant(float("-inf")))
        if sink is None:
            return builder.add("matmul", builder.add("softmax", scores, axis=3), v, hint="attention")
        *outer, length = builder.graph.type(scores).shape
        sink = builder.add("reshape", sink, hint="sinks", shape=(1, outer[1], 1, 1))
        sink = builder.add("expand", sink, hint="sinks", shape=(*outer, 1))
        weights = builder.add("softmax", builder.add("concat", scores, sink, axis=3), axis=3)
        return builder.add("matmul", builder.columns(weights, 0, length), v, hint="attention")

    def _biases(self, builder: LayerBuilder, table: np.ndarray) -> str:
        """Return the biases of the scores of each key, [heads, 1, length]."""
        content, length = table.tobytes(), builder.rows[1]
        if content not in self._tables:
            weight = builder.graph.add_weight(builder.graph.fresh("position_biases"), table[:, None])
            stops = (len(table), 1, length)
            self._tables[content] = builder.graph.add(
                "slice", [weight], "position_biases.first", starts=(0, 0, 0), stops=stops, steps=(1, 1, 1)
            ).output
        return self._tables[content]

    def _for_each_head(self, builder: LayerBuilder, x: str) -> str:
        """Repeat each head of keys or values for its group of query heads."""
        batch, kv_heads, length, head_dim = builder.graph.type(x).shape
        heads = builder.names["heads"]
        assert isinstance(kv_heads, int)
        x = builder.add("reshape", x, shape=(batch, kv_heads, 1, length, head_dim))
        x = builder.add("expand", x, shape=(batch, kv_heads, heads // kv_heads, length, head_dim))
        return builder.add("reshape", x, shape=(batch, heads, length, head_dim))

    def _near(self, builder: LayerBuilder, window: int, segment: int) -> str:
        """Return the mask of a causal window, bool [length, length]: the `window` columns, 0 for all, up to and
        including the row, and of its segment only.
        """
        if (window, segment) not in self._masks:
            graph, length = builder.graph, builder.rows[1]
            positions = graph.add("iota", [], "positions", length=length, start=0, step=1, dtype=i64).output
            rows = graph.add("reshape", [positions], "positions.rows", shape=(length, 1)).output
            distance = graph.add("sub", [rows, positions], "positions.back").output
            bounds = [builder.constant(number, i64) for number in (-1, window or self._context)]
            near = [
                graph.add(op, [distance, bound], "near").output
                for op, bound in zip(("greater", "less"), bounds, strict=True)
            ]
            mask = graph.add("logical_and", near, "near").output
            if segment:
                mask = graph.add("logical_and", [mask, self._together(builder, segment)], "near").output
            self._masks[window, segment] = mask
        return self._masks[window, segment]

    def _together(self, builder: LayerBuilder, segment: int) -> str:
        """Return which positions are of the same segment, bool [length, length]."""
        graph, length = builder.graph, builder.rows[1]
        table = graph.add_weight(f"segments.{segment}", np.arange(self._context, dtype=np.int64)[:, None] // segment)
        rows = _first(builder, table)
        columns = graph.add("reshape", [rows], "segments", shape=(1, length)).output
        return graph.add("equal", [rows, columns], "segments.equal").output

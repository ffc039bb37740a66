"""Encoders: whole sequences at once; every token attends to every unmasked token.

Inputs, all i64 as tokenizers and ONNX exports have them: input_ids, attention_mask (0 for padding) and, if the model
has token types, token_type_ids, each [batch, length]. Output: last_hidden_state f32 [batch, length, width], or of a
classifier scores f32 [batch, labels].
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir.dim import symbol
from ingot.ir.dtype import boolean, f32, i64
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.attention import output, projected
from ingot.load.hf.builder import LayerBuilder
from ingot.load.hf.experts import write_mixture
from ingot.load.hf.settings import MAX_SIZE, Settings
from ingot.load.hf.template import Attention, Template
from ingot.load.hf.weights import Weights


def build_encoder(
    graph: Graph, template: Template, settings: Settings, weights: Weights, labels: int | None = None
) -> None:
    """Build the whole model in an empty graph; labels: of its classifier, None without it."""
    values, embedding = settings.values, template.embedding
    rows = (symbol("batch"), symbol("length"))
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if embedding.types is not None else [])]
    for name in names:
        graph.add_input(name, TensorType(i64, rows))
    builder = LayerBuilder(graph, template, settings, weights, rows, _attend, write_mixture)
    table = builder.table(embedding.tokens, values["vocab"], embedding.where)
    x = builder.add("gather", table, _checked(builder, "input_ids", table), hint=embedding.tokens, axis=0)
    if embedding.types is not None:
        types = builder.table(embedding.types, values["types"], embedding.where)
        of_types = _checked(builder, "token_type_ids", types)
        x = builder.add("add", x, builder.add("gather", types, of_types, hint=embedding.types, axis=0))
    if embedding.positions is not None:
        first = embedding.first.integer(values, 0, MAX_SIZE)
        position_table = builder.table(embedding.positions, first + values["context"], embedding.where)
        starts, stops = (first, 0), (first + rows[1], values["width"])
        x = builder.add("add", x, builder.add("slice", position_table, starts=starts, stops=stops, steps=(1, 1)))
    x = builder.apply(embedding.then, x)
    for layer in range(values["layers"]):
        builder.enter_layer(layer)
        x = builder.apply(template.steps, x)
    builder.leave_layers()
    x = builder.apply(template.output, x)
    if labels is None:
        graph.set_output("last_hidden_state", x)
    else:
        graph.set_output("scores", _classified(builder, x, labels))


def _classified(builder: LayerBuilder, x: str, labels: int) -> str:
    """Return the scores of each text by the state of its first token, [batch, labels]."""
    classifier, (batch, _), width = builder.template.classifier, builder.rows, builder.names["width"]
    assert classifier is not None
    dense, out = (
        replace(linear, path=linear.path.replace("{prefix}", builder.weights.prefix))
        for linear in (classifier.dense, classifier.out)
    )
    first = builder.add("slice", x, starts=(0, 0, 0), stops=(batch, 1, width), steps=(1, 1, 1), hint="first")
    first = builder.add("reshape", first, hint="first", shape=(batch, width))
    inner = builder.add("tanh", builder.linear(dense, first, width, width, prefixed=False), hint="pooled")
    return builder.linear(out, inner, width, labels, prefixed=False, min_bits=f32.bits)


def _checked(builder: LayerBuilder, name: str, table: str) -> str:
    """Return an input whose elements index rows of a table; a run with an index out of range fails."""
    limit = builder.graph.type(table).shape[0]
    return builder.add("checked_index", name, limit=limit, what=f"input {name!r}")


def _attend(builder: LayerBuilder, attention: Attention, x: str) -> str:
    """Compute attention of x [batch, length, width] over the unmasked tokens."""
    found = projected(builder, attention, x)
    heads_first = [builder.add("permute", each, axes=(0, 2, 1, 3)) for each in (found.q, found.k, found.v) if each]
    scale = attention.scale.number(builder.names)
    result = builder.add("attention", *heads_first, _mask(builder), scale=scale)
    return output(builder, attention, x, builder.add("permute", result, axes=(0, 2, 1, 3)), found.gate)


def _mask(builder: LayerBuilder) -> str:
    """Return the mask, bool [batch, 1, 1, length], built once."""
    graph = builder.graph
    if "mask" not in graph.values:
        batch, length = builder.rows
        visible = graph.add("cast", ["attention_mask"], "mask.flat", dtype=boolean).output
        graph.add("reshape", [visible], "mask", shape=(batch, 1, 1, length))
    return "mask"

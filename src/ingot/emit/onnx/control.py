"""ONNX rules of subgraphs, sequences, dictionaries and optionals.

An ONNX subgraph refers to values of the outer graph by name.
"""

from __future__ import annotations

from ingot.emit.onnx.builder import ML, NUMBERS, Builder, type_proto
from ingot.emit.onnx.registry import rule
from ingot.errors import UnsupportedError
from ingot.ir.dtype import f32
from ingot.ir.graph import Node, OptionalType
from ingot.ops.control import inner_graphs


def _bodies(builder: Builder, node: Node) -> dict:
    """Return the subgraphs of a node as ONNX attributes."""
    return {
        inner.attribute: builder.body(
            inner.graph, {inside: builder.values[outside] for inside, outside in inner.captured.items()}
        )
        for inner in inner_graphs(node)
    }


@rule("if")
def if_(builder: Builder, node: Node, condition: str, *captured: str) -> tuple[str, ...]:
    return builder.add_all("If", len(node.outputs), condition, **_bodies(builder, node))


@rule("loop")
def loop(
    builder: Builder, node: Node, trips: str | None = None, condition: str | None = None, *rest: str
) -> tuple[str, ...]:
    return builder.add_all("Loop", len(node.outputs), trips, condition, *rest[: node.carried], **_bodies(builder, node))


@rule("scan")
def scan(builder: Builder, node: Node, *operands: str) -> tuple[str, ...]:
    count = len(node.input_axes)
    return builder.add_all(
        "Scan",
        len(node.outputs),
        *operands[: node.carried + count],
        num_scan_inputs=count,
        scan_input_axes=node.input_axes,
        scan_input_directions=[int(backward) for backward in node.input_backward],
        scan_output_axes=node.output_axes or None,
        scan_output_directions=[int(backward) for backward in node.output_backward] or None,
        **_bodies(builder, node),
    )


@rule("sequence_map")
def sequence_map(builder: Builder, node: Node, *xs: str) -> tuple[str, ...]:
    return builder.add_all("SequenceMap", len(node.outputs), *xs[: node.sequences], **_bodies(builder, node))


@rule("sequence")
def sequence(builder: Builder, node: Node, *xs: str) -> str:
    return builder.SequenceConstruct(*xs) if xs else builder.SequenceEmpty(dtype=NUMBERS[node.dtype])


@rule("sequence_insert")
def sequence_insert(builder: Builder, node: Node, s: str, x: str, position: str | None = None) -> str:
    return builder.SequenceInsert(s, x, position)


@rule("sequence_erase")
def sequence_erase(builder: Builder, node: Node, s: str, position: str | None = None) -> str:
    return builder.SequenceErase(s, position)


@rule("sequence_at")
def sequence_at(builder: Builder, node: Node, s: str, position: str) -> str:
    return builder.SequenceAt(s, position)


@rule("sequence_length")
def sequence_length(builder: Builder, node: Node, s: str) -> str:
    return builder.SequenceLength(s)


@rule("split_to_sequence")
def split_to_sequence(builder: Builder, node: Node, x: str, sizes: str | None = None) -> str:
    return builder.SplitToSequence(x, sizes, axis=node.axis, keepdims=None if sizes else node.keepdims)


@rule("concat_from_sequence")
def concat_from_sequence(builder: Builder, node: Node, s: str) -> str:
    return builder.ConcatFromSequence(s, axis=node.axis, new_axis=node.new_axis)


@rule("zip_map")
def zip_map(builder: Builder, node: Node, x: str, _: str) -> str:
    labels = builder.graph.data(str(node.operands[1]))
    if labels is None or builder.type(node, 0).dtype is not f32:
        got = f"{builder.type(node, 0)} by labels {builder.type(node, 1)}"
        raise UnsupportedError(f"a map of {got} is not supported, of f32 by constants is")
    key = "classlabels_strings" if labels.dtype == object else "classlabels_int64s"
    return builder.add_all("ZipMap", 1, x, domain=ML, **{key: labels.tolist()})[0]


@rule("optional")
def optional(builder: Builder, node: Node, x: str) -> str:
    return builder.Optional(x)


@rule("absent")
def absent(builder: Builder, node: Node) -> str:
    return builder.Optional(type=type_proto(node.element))


@rule("has_element")
def has_element(builder: Builder, node: Node, x: str) -> str:
    return builder.OptionalHasElement(x)


@rule("get_element")
def get_element(builder: Builder, node: Node, x: str) -> str:
    """A value that is no optional is its own element."""
    is_optional = isinstance(builder.graph.values[str(node.operands[0])].type, OptionalType)
    return builder.OptionalGetElement(x) if is_optional else builder.Identity(x)

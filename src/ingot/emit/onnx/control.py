"""Subgraphs, sequences, dictionaries and optionals.

What a subgraph reads of the graph around it, ONNX lets it see by its name.
"""

from __future__ import annotations

from ingot.emit.onnx.builder import ML, NUMBERS, Pen, type_proto
from ingot.emit.onnx.registry import rule
from ingot.errors import UnsupportedError
from ingot.ir.dtype import f32
from ingot.ir.graph import Node, OptionalType
from ingot.ops.control import inner_graphs


def _bodies(pen: Pen, node: Node) -> dict:
    """The subgraphs of a node as ONNX's attributes."""
    return {
        inner.attribute: pen.body(
            inner.graph, {inside: pen.values[outside] for inside, outside in inner.captured.items()}
        )
        for inner in inner_graphs(node)
    }


@rule("if")
def if_(pen: Pen, node: Node, condition: str, *captured: str) -> tuple[str, ...]:
    return pen.add_all("If", len(node.outputs), condition, **_bodies(pen, node))


@rule("loop")
def loop(pen: Pen, node: Node, trips: str | None = None, condition: str | None = None, *rest: str) -> tuple[str, ...]:
    return pen.add_all("Loop", len(node.outputs), trips, condition, *rest[: node.carried], **_bodies(pen, node))


@rule("scan")
def scan(pen: Pen, node: Node, *operands: str) -> tuple[str, ...]:
    count = len(node.input_axes)
    return pen.add_all(
        "Scan",
        len(node.outputs),
        *operands[: node.carried + count],
        num_scan_inputs=count,
        scan_input_axes=node.input_axes,
        scan_input_directions=[int(backward) for backward in node.input_backward],
        scan_output_axes=node.output_axes or None,
        scan_output_directions=[int(backward) for backward in node.output_backward] or None,
        **_bodies(pen, node),
    )


@rule("sequence_map")
def sequence_map(pen: Pen, node: Node, *xs: str) -> tuple[str, ...]:
    return pen.add_all("SequenceMap", len(node.outputs), *xs[: node.sequences], **_bodies(pen, node))


@rule("sequence")
def sequence(pen: Pen, node: Node, *xs: str) -> str:
    return pen.SequenceConstruct(*xs) if xs else pen.SequenceEmpty(dtype=NUMBERS[node.dtype])


@rule("sequence_insert")
def sequence_insert(pen: Pen, node: Node, s: str, x: str, position: str | None = None) -> str:
    return pen.SequenceInsert(s, x, position)


@rule("sequence_erase")
def sequence_erase(pen: Pen, node: Node, s: str, position: str | None = None) -> str:
    return pen.SequenceErase(s, position)


@rule("sequence_at")
def sequence_at(pen: Pen, node: Node, s: str, position: str) -> str:
    return pen.SequenceAt(s, position)


@rule("sequence_length")
def sequence_length(pen: Pen, node: Node, s: str) -> str:
    return pen.SequenceLength(s)


@rule("split_to_sequence")
def split_to_sequence(pen: Pen, node: Node, x: str, sizes: str | None = None) -> str:
    return pen.SplitToSequence(x, sizes, axis=node.axis, keepdims=None if sizes else node.keepdims)


@rule("concat_from_sequence")
def concat_from_sequence(pen: Pen, node: Node, s: str) -> str:
    return pen.ConcatFromSequence(s, axis=node.axis, new_axis=node.new_axis)


@rule("zip_map")
def zip_map(pen: Pen, node: Node, x: str, _: str) -> str:
    labels = pen.graph.data(str(node.operands[1]))
    if labels is None or pen.type(node, 0).dtype is not f32:
        got = f"{pen.type(node, 0)} by labels {pen.type(node, 1)}"
        raise UnsupportedError(f"a map of {got} is not supported, of f32 by constants is")
    key = "classlabels_strings" if labels.dtype == object else "classlabels_int64s"
    return pen.add_all("ZipMap", 1, x, domain=ML, **{key: labels.tolist()})[0]


@rule("optional")
def optional(pen: Pen, node: Node, x: str) -> str:
    return pen.Optional(x)


@rule("absent")
def absent(pen: Pen, node: Node) -> str:
    return pen.Optional(type=type_proto(node.element))


@rule("has_element")
def has_element(pen: Pen, node: Node, x: str) -> str:
    return pen.OptionalHasElement(x)


@rule("get_element")
def get_element(pen: Pen, node: Node, x: str) -> str:
    """What is no optional is its own element."""
    is_optional = isinstance(pen.graph.values[str(node.operands[0])].type, OptionalType)
    return pen.OptionalGetElement(x) if is_optional else pen.Identity(x)

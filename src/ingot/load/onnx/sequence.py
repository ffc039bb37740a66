"""Rules for sequences and optionals."""

from __future__ import annotations

import numpy as np

from ingot.ir.dtype import f32
from ingot.ir.graph import TensorType, UnrankedType
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.tensors import declared_type


@onnx("SequenceConstruct")
def sequence_construct(call: Call) -> str:
    first = call.value_type(0)
    if not isinstance(first, (TensorType, UnrankedType)):
        raise call.malformed(f"operand {first}, expected a tensor")
    return call.build.sequence(*call.values(), dtype=first.dtype)


@onnx("SequenceEmpty")
def sequence_empty(call: Call) -> str:
    return call.build.sequence(dtype=call.attr_dtype("dtype") if "dtype" in call.attributes else f32)


@onnx("SequenceInsert")
def sequence_insert(call: Call) -> str:
    return call.build.sequence_insert(call[0], call[1], call.get(2))


@onnx("SequenceErase")
def sequence_erase(call: Call) -> str:
    return call.build.sequence_erase(call[0], call.get(1))


@onnx("SequenceAt")
def sequence_at(call: Call) -> str:
    return call.build.sequence_at(call[0], call[1])


@onnx("SequenceLength")
def sequence_length(call: Call) -> str:
    return call.build.sequence_length(call[0])


@onnx("SplitToSequence")
def split_to_sequence(call: Call) -> str:
    axis, keepdims = call.attr_axis("axis", 0, call.type(0).rank), bool(call.attr_int("keepdims", 1))
    return call.build.split_to_sequence(call[0], call.get(1), axis=axis, keepdims=keepdims)


@onnx("ConcatFromSequence")
def concat_from_sequence(call: Call) -> str:
    new_axis = call.attr_int("new_axis", 0)
    if new_axis not in (0, 1):
        raise call.malformed(f"attribute 'new_axis' is {new_axis}, expected 0 or 1")
    return call.build.concat_from_sequence(call[0], axis=call.attr_int("axis"), new_axis=bool(new_axis))


@onnx("Optional")
def optional(call: Call) -> str:
    """Without an operand, return an absent value of the type in the attribute."""
    if call.has(0):
        return call.build.optional(call[0])
    given = call.attr_type("type")
    return call.build.absent(element=declared_type(given.type, given.shape, "attribute 'type'"))


@onnx("OptionalHasElement")
def optional_has_element(call: Call) -> str:
    return call.build.has_element(call[0]) if call.has(0) else call.build.constant(np.array(False))


@onnx("OptionalGetElement")
def optional_get_element(call: Call) -> str:
    return call.build.get_element(call[0])

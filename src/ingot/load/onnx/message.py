"""The protobuf message of a model without the bytes of its large initializers, which stay where they are.

protobuf copies every field that it reads. A model file is mapped, so its weights can be used, or packed, from there:
only what is left when they are cut out goes through protobuf. The wire format is described in protobuf's "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LEAST_BYTES = 1 << 16  # of a tensor that is worth cutting out
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto and TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT_BYTES = 10
_NUMBERS = 1 << 29


@dataclass(frozen=True, slots=True)
class Message:
    """What protobuf is to read, and where the rest is.

    raw: for the graph's initializers that were cut, by position: first byte of their raw_data, and its length.
    """

    content: bytes | memoryview
    raw: dict[int, tuple[int, int]]


class _Unusual(Exception):
    """Content that protobuf itself shall judge."""


def without_weights(content: memoryview) -> Message:
    """Cuts large initializers out of a model. Content that is small, odd or malformed stays whole."""
    if len(content) < _LEAST_BYTES:
        return Message(content, {})
    raw: dict[int, tuple[int, int]] = {}
    try:
        return Message(b"".join(_model(content, raw)), raw)
    except _Unusual:
        return Message(content, {})


def _model(content: memoryview, raw: dict[int, tuple[int, int]]) -> list[bytes | memoryview]:
    graphs = [field for field in _fields(content, 0, len(content)) if field[0] == _GRAPH]
    if len(graphs) != 1:  # protobuf merges several
        raise _Unusual
    _, begin, payload, end = graphs[0]
    return [content[:begin], *_nested(_GRAPH, _graph(content, payload, end, raw)), content[end:]]


def _graph(content: memoryview, begin: int, end: int, raw: dict[int, tuple[int, int]]) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    position = 0
    for number, field, payload, after in _fields(content, begin, end):
        if number != _INITIALIZER:
            continue
        if after - payload > _LEAST_BYTES:
            found = [f for f in _fields(content, payload, after) if f[0] == _RAW_DATA]
            if len(found) > 1:  # the last one counts
                raise _Unusual
            for _, cut, data, cut_end in found:
                raw[position] = (data, cut_end - data)
                rest = [content[payload:cut], content[cut_end:after]]
                pieces += [content[begin:field], *_nested(_INITIALIZER, rest)]
                begin = after
        position += 1
    return [*pieces, content[begin:end]]


def _nested(number: int, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A field that holds a message."""
    size = sum(map(len, pieces))
    prefix = bytearray([number << 3 | _BYTES])
    while size >= 128:
        prefix.append(size & 127 | 128)
        size >>= 7
    return [bytes([*prefix, size]), *pieces]


def _fields(content: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each length-delimited field of a message: number, where it begins, where its payload begins, where it ends."""
    while at < end:
        begin = at
        tag, at = _varint(content, at, end)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < _NUMBERS:
            raise _Unusual
        if kind == _BYTES:
            size, payload = _varint(content, at, end)
            at = payload + size
        elif kind == _VARINT:
            _, at = _varint(content, at, end)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise _Unusual
        if at > end:
            raise _Unusual
        if kind == _BYTES:
            yield number, begin, payload, at


def _varint(content: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * min(_MAX_VARINT_BYTES, end - at), 7):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _Unusual

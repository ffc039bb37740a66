"""Cut the bytes of large initializers out of a model's protobuf message; these bytes stay in the file.

protobuf copies every field that it reads. A model file is mapped, so its weights can be used or packed in place; only
the remaining message goes through protobuf. The wire format is described in protobuf's "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LEAST_BYTES = 1 << 16  # the minimum size of a tensor that is cut out
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto and TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT_BYTES = 10
_NUMBERS = 1 << 29


@dataclass(frozen=True, slots=True)
class Message:
    """The message for protobuf, and the location of the cut bytes.

    raw: for each cut initializer of the graph, by index: the offset of its raw_data, and its length.
    """

    content: bytes | memoryview
    raw: dict[int, tuple[int, int]]


class _Unusual(Exception):
    """Content that is left to protobuf, unchanged."""


def without_weights(content: memoryview) -> Message:
    """Cut large initializers out of a model. Content that is small, unusual or malformed is returned unchanged."""
    if len(content) < _LEAST_BYTES:
        return Message(content, {})
    raw: dict[int, tuple[int, int]] = {}
    try:
        return Message(b"".join(_model(content, raw)), raw)
    except _Unusual:
        return Message(content, {})


def _model(content: memoryview, raw: dict[int, tuple[int, int]]) -> list[bytes | memoryview]:
    graphs = [field for field in _fields(content, 0, len(content)) if field[0] == _GRAPH]
    if len(graphs) != 1:  # protobuf merges several graphs
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
            if len(found) > 1:  # protobuf uses the last one
                raise _Unusual
            for _, cut, data, cut_end in found:
                raw[position] = (data, cut_end - data)
                rest = [content[payload:cut], content[cut_end:after]]
                pieces += [content[begin:field], *_nested(_INITIALIZER, rest)]
                begin = after
        position += 1
    return [*pieces, content[begin:end]]


def _nested(number: int, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Encode a field that holds a message."""
    size = sum(map(len, pieces))
    prefix = bytearray([number << 3 | _BYTES])
    while size >= 128:
        prefix.append(size & 127 | 128)
        size >>= 7
    return [bytes([*prefix, size]), *pieces]


def _fields(content: memoryview, offset: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each length-delimited field of a message: number, offset of the field, offset of the payload, end
    offset.
    """
    while offset < end:
        begin = offset
        tag, offset = _varint(content, offset, end)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < _NUMBERS:
            raise _Unusual
        if kind == _BYTES:
            size, payload = _varint(content, offset, end)
            offset = payload + size
        elif kind == _VARINT:
            _, offset = _varint(content, offset, end)
        elif kind in (_FIXED32, _FIXED64):
            offset += 4 if kind == _FIXED32 else 8
        else:
            raise _Unusual
        if offset > end:
            raise _Unusual
        if kind == _BYTES:
            yield number, begin, payload, offset


def _varint(content: memoryview, offset: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * min(_MAX_VARINT_BYTES, end - offset), 7):
        byte = content[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
    raise _Unusual

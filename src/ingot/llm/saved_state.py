"""The state of a sequence in a file: its tokens, and the cache blocks with their keys and values.

    8 bytes   "INGOTSEQ"
    8 bytes   length of the header, little-endian
    header    JSON {"format", "model", "tokens", "arrays": {name: [dtype, shape]}}, spaces up to a multiple of 64 bytes
    arrays    in the header's order, row-major, each with zeros up to a multiple of 64 bytes
    32 bytes  SHA-256 of all bytes before it

The hash detects damage, not tampering: whoever can write the file can write any state. The effect of a forged state is
bounded: all shapes must be those of the model and all ids in its vocabulary, so it can only change the generated text.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from ingot.errors import LimitError, LoadError, bounded
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import TensorType
from ingot.load.hf.strict_json import parse_object, shown
from ingot.support.files import MappedFile, written

FORMAT = 1
MAX_HEADER_BYTES = 64 << 20  # of a saved state's header
_MAGIC = b"INGOTSEQ"
_PREFIX_BYTES = 16
_ALIGNMENT = 64
_HASH_BYTES = 32


def write_state(
    path: str | os.PathLike[str],
    fingerprint: str,
    tokens: Sequence[int],
    arrays: Mapping[str, np.ndarray],
    *,
    durable: bool = True,
) -> None:
    """Write a sequence's state atomically to a file that only its owner can read.

    fingerprint: identifies the model. arrays: by name, of any dtype and shape that Ingot supports. durable: the file
    also survives a crash of the machine.

    Raises OutputError if the file cannot be created or written.
    """
    header = {
        "format": FORMAT,
        "model": fingerprint,
        "tokens": [int(token) for token in tokens],
        "arrays": {name: [from_numpy(array.dtype).name, list(array.shape)] for name, array in arrays.items()},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_PREFIX_BYTES + len(text)) % _ALIGNMENT)
    digest = hashlib.sha256()
    with written(path, 0o600, durable=durable) as file:
        for piece in (_MAGIC, len(text).to_bytes(8, "little"), text):
            file.write(piece)
            digest.update(piece)
        for array in arrays.values():
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for part in (flat.data, bytes(-flat.nbytes % _ALIGNMENT)):
                file.write(part)
                digest.update(part)
        file.write(digest.digest())


def read_state(
    path: str | os.PathLike[str],
    fingerprint: str,
    vocab_size: int,
    expected: Callable[[int], Mapping[str, TensorType]],
) -> tuple[list[int], dict[str, np.ndarray]]:
    """Read the tokens and arrays that `write_state` wrote for this model.

    expected: returns the types of the arrays for a number of tokens; it may raise its own error for too many tokens.
    No array is allocated before the file's header is checked against it.

    Raises LoadError for a file that is damaged or belongs to another model, LimitError for a too long header,
    ResourceError when out of memory or file descriptors, FileNotFoundError.
    """
    where = os.fspath(path)
    with bounded(where), open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{where}: not a regular file")
        start = file.read(_PREFIX_BYTES)
        header_bytes = int.from_bytes(start[len(_MAGIC) :], "little")
        if len(start) < _PREFIX_BYTES or not start.startswith(_MAGIC):
            raise LoadError(f"{where}: not a saved sequence, it starts with {start[:8]!r}, expected {_MAGIC!r}")
        if header_bytes > status.st_size:
            raise LoadError(f"{where}: header has {header_bytes} bytes, file has {status.st_size}")
        if header_bytes > MAX_HEADER_BYTES:
            raise LimitError(
                f"{where}: header too large, got {header_bytes} bytes, expected at most {MAX_HEADER_BYTES}"
            )
        text = file.read(header_bytes)
        tokens, types = _checked_header(parse_object(text, where), where, fingerprint, vocab_size, expected)
        spans = [-(-type.nbytes // _ALIGNMENT) * _ALIGNMENT for type in types.values()]
        size = _PREFIX_BYTES + header_bytes + sum(spans) + _HASH_BYTES
        if status.st_size != size:
            raise LoadError(f"{where}: wrong size, got {status.st_size} bytes, expected {size}")
        payload = _read_payload(file, start + text, sum(spans), where)
    arrays, offset = {}, 0
    for (name, type), span in zip(types.items(), spans, strict=True):
        arrays[name] = payload[offset : offset + type.nbytes].view(type.dtype.numpy).reshape(type.dims)
        offset += span
    return tokens, arrays


def map_state(
    path: str | os.PathLike[str], fingerprint: str, tokens: Sequence[int], types: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """Map the arrays that `write_state` wrote with this fingerprint and these tokens; the arrays are read-only.

    Raises LoadError for any other file and a damaged one, ResourceError if it cannot be mapped, FileNotFoundError.
    """
    where = os.fspath(path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with bounded(where), open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size < _PREFIX_BYTES + _HASH_BYTES:
            raise LoadError(f"{where}: not a saved sequence, got {status.st_size} bytes")
        content = np.frombuffer(MappedFile(file.fileno(), where), np.uint8)
    body = content[:-_HASH_BYTES]
    if hashlib.sha256(body.data).digest() != content[-_HASH_BYTES:].tobytes():
        raise LoadError(f"{where}: damaged, its SHA-256 does not match")
    offset = _PREFIX_BYTES + int.from_bytes(body[len(_MAGIC) : _PREFIX_BYTES].tobytes(), "little")
    if body[: len(_MAGIC)].tobytes() != _MAGIC or offset > min(len(body), MAX_HEADER_BYTES):
        raise LoadError(f"{where}: not a saved sequence, it starts with {body[:8].tobytes()!r}, expected {_MAGIC!r}")
    header = parse_object(body[_PREFIX_BYTES:offset].tobytes(), where)
    found, _ = _checked_header(header, where, fingerprint, max(tokens) + 1, lambda _: types)
    size = offset + sum(-(-type.nbytes // _ALIGNMENT) * _ALIGNMENT for type in types.values())
    if found != list(tokens) or len(body) != size:
        raise LoadError(f"{where}: has other tokens, or {len(body)} bytes instead of {size}")
    arrays = {}
    for name, type in types.items():
        arrays[name] = body[offset : offset + type.nbytes].view(type.dtype.numpy).reshape(type.dims)
        offset += -(-type.nbytes // _ALIGNMENT) * _ALIGNMENT
    return arrays


def _checked_header(
    header: dict[str, Any],
    where: str,
    fingerprint: str,
    vocab_size: int,
    expected: Callable[[int], Mapping[str, TensorType]],
) -> tuple[list[int], dict[str, TensorType]]:
    if set(header) != {"format", "model", "tokens", "arrays"} or type(header["format"]) is not int:
        raise LoadError(f"{where}: header has {shown(sorted(header))}, expected format, model, tokens and arrays")
    if header["format"] != FORMAT:
        raise LoadError(f"{where}: saved in another format, got {header['format']}, expected {FORMAT}")
    if header["model"] != fingerprint:
        raise LoadError(f"{where}: saved by another model, got {shown(header['model'])}, expected {fingerprint!r}")
    tokens = header["tokens"]
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
        raise LoadError(f"{where}: tokens are {shown(tokens)}, expected ids of 0..{vocab_size - 1}")
    types = dict(expected(len(tokens)))
    rows = {name: [type.dtype.name, list(type.dims)] for name, type in types.items()}
    if json.dumps(header["arrays"]) != json.dumps(rows):  # compared as text, because True == 1 in Python
        raise LoadError(f"{where}: arrays are {shown(header['arrays'])}, expected {shown(rows)}")
    return tokens, types


def _read_payload(file: IO[bytes], before: bytes, nbytes: int, where: str) -> np.ndarray:
    """Read the bytes before the hash, and check the hash."""
    payload = np.empty(nbytes, np.uint8)
    got = file.readinto(payload.data)  # type: ignore[attr-defined]
    digest = hashlib.sha256(before)
    digest.update(payload.data)
    if got != nbytes or file.read(_HASH_BYTES + 1) != digest.digest():
        raise LoadError(f"{where}: damaged, its SHA-256 does not match")
    return payload

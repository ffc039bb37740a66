"""Convert a SentencePiece file, the `tokenizer.model` of older folders, to the document of a tokenizer.json.

Format: github.com/google/sentencepiece, sentencepiece_model.proto, encoded as protocol buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.metadata import Entry, Metadata
from ingot.load.gguf.tokenizer import tokenizer_files

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the file
_TEXT, _SCORE, _TYPE = 1, 2, 3  # of a piece
_MODEL_TYPE, _SUFFIX, _IDS = 3, 24, {"unknown": 40, "bos": 41, "eos": 42, "padding": 43}  # of the trainer
_CHARACTERS, _PREFIX, _TRIMS, _ESCAPES = 2, 3, 4, 5  # of the normalizer
_DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2, "padding": -1}
MAX_PIECES = 1 << 21  # of a file
_BYTE_PAIRS = 2  # a model type
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # types of fields


def is_sentence_piece(content: bytes) -> bool:
    """Return whether a file begins as SentencePiece files do, with a piece; others of this name are lists of text."""
    return content[:1] == bytes([_PIECES << 3 | _BYTES])


def sentence_piece_document(content: bytes, where: str, *, begins: bool, ends: bool) -> dict[str, Any]:
    """Return the document. begins, ends: whether texts begin with the first control token, and end with the last.

    Raises LoadError for a file that is damaged, UnsupportedError for a model that is not of byte pairs, and for
    characters that are replaced; LimitError.
    """
    pieces: list[dict[int, Any]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(content, where):
        if field == _PIECES:
            pieces.append(_message(value, where))
            if len(pieces) > MAX_PIECES:
                raise LimitError(f"{where}: too many pieces, expected at most {MAX_PIECES}")
        elif field == _TRAINER:
            trainer = _message(value, where)
        elif field == _NORMALIZER:
            normalizer = _message(value, where)
    refused = (
        ("model_type", trainer.get(_MODEL_TYPE, 1) != _BYTE_PAIRS, "byte pairs, 2"),
        ("treat_whitespace_as_suffix", bool(trainer.get(_SUFFIX)), "false"),
        ("precompiled_charsmap", bool(normalizer.get(_CHARACTERS)), "none"),
        ("remove_extra_whitespaces", bool(normalizer.get(_TRIMS, 1)), "false"),
        ("escape_whitespaces", not normalizer.get(_ESCAPES, 1), "true"),
    )
    for name, is_refused, expected in refused:
        if is_refused:
            raise UnsupportedError(f"{where}: {name}: not supported, expected {expected}")
    texts: list[bytes] = []
    scores: list[float] = []
    types: list[int] = []
    for piece in pieces:
        text, score, type = piece.get(_TEXT, b""), piece.get(_SCORE, b"\0\0\0\0"), piece.get(_TYPE, 1)
        if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4 or not isinstance(type, int):
            raise LoadError(f"{where}: piece {len(texts)}: damaged, expected a text, a score and a type")
        texts.append(text)
        scores.append(struct.unpack("<f", score)[0])
        types.append(min(type, 6))
    entries = {
        "tokenizer.ggml.model": Entry("string", b"llama"),
        "tokenizer.ggml.tokens": Entry("string", texts),
        "tokenizer.ggml.scores": Entry("float32", np.array(scores, np.float32)),
        "tokenizer.ggml.token_type": Entry("int32", np.array(types, np.int32)),
        "tokenizer.ggml.add_space_prefix": Entry("bool", bool(normalizer.get(_PREFIX, 1))),
        "tokenizer.ggml.add_bos_token": Entry("bool", begins),
        "tokenizer.ggml.add_eos_token": Entry("bool", ends),
    }
    for name, field in _IDS.items():
        index = _signed(trainer.get(field, _DEFAULT_IDS[name]), where)
        if index >= 0:
            entries[f"tokenizer.ggml.{name}_token_id"] = Entry("int64", index)
    return tokenizer_files(Metadata(where, entries))["tokenizer.json"]


def _message(value: Any, where: str) -> dict[int, Any]:
    if not isinstance(value, bytes):
        raise LoadError(f"{where}: not a SentencePiece file, got a number, expected a message")
    return dict(_fields(value, where))


def _fields(content: bytes, where: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a message: an integer, or bytes. Raises LoadError."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at, where)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(content, at, where)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(content, at, where)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise LoadError(f"{where}: not a SentencePiece file, got a field of type {kind} at byte {at}")
        if size > len(content) - at:
            raise LoadError(f"{where}: a field goes beyond the end, got {size} bytes at byte {at}; is it cut short?")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            break
        value |= (content[at] & 127) << shift
        at += 1
        if content[at - 1] < 128:
            return value, at
    raise LoadError(f"{where}: not a SentencePiece file, got an integer without an end at byte {at}")


def _signed(value: Any, where: str) -> int:
    if not isinstance(value, int):
        raise LoadError(f"{where}: trainer_spec: damaged, expected ids of tokens")
    return value - (1 << 64) if value >> 63 else value

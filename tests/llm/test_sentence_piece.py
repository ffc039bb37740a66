"""tokenizer.model files of SentencePiece: ids as those of the tokenizer.json with the same pieces, and damage."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ingot.errors import IngotError, LoadError, UnsupportedError
from ingot.llm.tokenizer import Tokenizer
from small_tokenizers import TEXT, document, write_folder

TEXTS = [*TEXT[:4], "", " ", "a  b\n c", "größer 東京 \U0001f600", "  leading", "</s> is text"]


def field(number: int, value: Any) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def written(kind: str, trainer: bytes = b"", normalizer: bytes = b"") -> bytes:
    """The file with the pieces of a small tokenizer, whose scores are the ranks of its merges."""
    made = document(kind)
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(made["model"]["merges"]):
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        ranks.setdefault(left + right, rank)
    content = b""
    for text in sorted(made["model"]["vocab"], key=made["model"]["vocab"].__getitem__):
        type = {"<unk>": 2, "<s>": 3, "</s>": 3}.get(text, 6 if text.startswith("<0x") else 1)
        content += field(1, field(1, text.encode()) + field(2, -float(ranks.get(text, 1e6))) + field(3, type))
    prefix = int("Prepend" in json.dumps(made["normalizer"]))
    content += field(2, field(3, 2) + field(35, 1) + field(43, -1) + trainer)
    return content + field(3, field(1, b"identity") + field(3, prefix) + field(4, 0) + normalizer)


@pytest.mark.parametrize("kind", ["byte_fallback", "gemma"])
def test_ids_are_those_of_the_same_tokenizer_json(kind: str, tmp_path: Path) -> None:
    expected = Tokenizer.read(write_folder(tmp_path / "json", document(kind)))
    folder = write_folder(tmp_path / "pieces", None, tokenizer_config={"eos_token": "</s>"})
    (folder / "tokenizer.model").write_bytes(written(kind))
    read = Tokenizer.read(folder)
    for text in TEXTS:
        assert read.encode(text) == expected.encode(text)
        assert read.decode(read.encode(text)) == expected.decode(expected.encode(text))
    assert (read.prefix, read.suffix, read.eos, read.special) == ((1,), (), {2}, expected.special)


def test_tokens_around_a_text(tmp_path: Path) -> None:
    settings = {"add_bos_token": False, "add_eos_token": True}
    folder = write_folder(tmp_path, None, tokenizer_config=settings)
    (folder / "tokenizer.model").write_bytes(written("gemma"))
    read = Tokenizer.read(folder)
    assert (read.prefix, read.suffix) == ((), (2,))


WRONG: list[tuple[bytes, type[IngotError], str]] = [
    (written("gemma", trainer=field(3, 1)), UnsupportedError, "model_type"),
    (written("gemma", trainer=field(24, 1)), UnsupportedError, "treat_whitespace_as_suffix"),
    (written("gemma", normalizer=field(2, b"map")), UnsupportedError, "precompiled_charsmap"),
    (written("gemma", normalizer=field(4, 1)), UnsupportedError, "remove_extra_whitespaces"),
    (written("gemma", normalizer=field(5, 0)), UnsupportedError, "escape_whitespaces"),
    (written("gemma", trainer=field(41, 10**6)), LoadError, "bos_token_id"),
    (written("gemma", trainer=field(41, b"1")), LoadError, "trainer_spec"),
    (written("gemma")[:-3], LoadError, "beyond the end"),
    (b"\n\xff", LoadError, "an integer without an end"),
    (b"\n\x02\x0b\x00", LoadError, "a field of type 3"),
    (field(1, field(1, 5)) + field(2, field(3, 2)) + field(3, field(4, 0)), LoadError, "piece 0"),
    (field(1, b"") + field(2, 7), LoadError, "expected a message"),
]


@pytest.mark.parametrize(
    ("content", "error", "fragment"), WRONG, ids=lambda each: each if isinstance(each, str) else ""
)
def test_damaged_and_other_files(content: bytes, error: type[IngotError], fragment: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, None)
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(error) as raised:
        Tokenizer.read(folder)
    assert fragment in str(raised.value)


def test_another_kind_of_file_is_no_tokenizer(tmp_path: Path) -> None:
    """Lists of base64 have the name, too."""
    folder = write_folder(tmp_path, None)
    (folder / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(LoadError, match=r"no tokenizer\.json"):
        Tokenizer.read(folder)

"""Tokenizers in GGUF files: the ids of the folders that they come from, and SentencePiece's by its own definition."""

import random
from itertools import pairwise
from pathlib import Path

import gguf
import pytest

from gguf_models import TINY_LM, write_tokens
from ingot.errors import LoadError
from ingot.llm.chat import ChatTemplate
from ingot.llm.tokenizer import Tokenizer
from ingot.load.gguf import GgufModel
from ingot.load.gguf.tokenizer import WORD_SPLITTERS
from small_tokenizers import KINDS, TEXT, write_folder

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHARACTERS = "abcdefgh   ''.,\n\t0123456789éß東京日本語привет😀<>|_\u0301\xa0"  # noqa: RUF001


def texts() -> list[str]:
    drawn = random.Random(5)
    made = ["".join(drawn.choices(CHARACTERS, k=drawn.randrange(1, 50))) for _ in range(150)]
    return [*dict.fromkeys(TEXT), *made, "", " ", "\n\n", "<s>", "a</s>b"]


def tokenizer(source: Path, path: Path, pre: str) -> Tokenizer:
    return Tokenizer.read(GgufModel(write_tokens(source, path, pre)))


@pytest.mark.parametrize(
    ("kind", "pre"), [("byte_level", "gpt-2"), ("split_byte_level", "dbrx"), ("tiny-lm", "ufakzeka")]
)
def test_bytes(kind: str, pre: str, tmp_path: Path) -> None:
    """The same ids, prefixes and texts as the tokenizer.json has; control tokens of a text stay text in both."""
    settings = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    is_shipped = kind == "tiny-lm"
    source = TINY_LM if is_shipped else write_folder(tmp_path / kind, KINDS[kind]().to_str(), tokenizer_config=settings)
    expected, found = Tokenizer.read(source), tokenizer(source, tmp_path / "model.gguf", pre)
    assert (found.prefix, found.suffix, found.special) == (expected.prefix, expected.suffix, expected.special)
    for text in [*texts(), "<|endoftext|>", "a <|im_end|>"]:
        for special in (False, True):
            ids = found.encode(text, special=special)
            assert ids == expected.encode(text, special=special), repr(text)
        assert found.decode(ids, special=True) == expected.decode(ids, special=True) == text


@pytest.mark.parametrize("kind", ["byte_fallback", "gemma"])
def test_pieces(kind: str, tmp_path: Path) -> None:
    """The pair whose token has the best score is merged first, the leftmost of equal ones; the rest becomes bytes."""
    source = write_folder(tmp_path / kind, KINDS[kind]().to_str(), tokenizer_config=NAMES)
    found = tokenizer(source, tmp_path / "model.gguf", "")
    metadata = GgufModel(tmp_path / "model.gguf").file.metadata
    tokens, scores = metadata.texts("tokenizer.ggml.tokens"), metadata.numbers("tokenizer.ggml.scores")
    ids = {text: index for index, text in enumerate(tokens)}
    begin = "▁" if kind == "byte_fallback" else ""
    assert found.prefix == (1,) and found.eos == {2}
    for text in texts():
        if "<s>" in text or "</s>" in text or not text:
            continue  # control tokens are kept apart by another rule
        expected = merged(list(begin + text.replace(" ", "▁")), ids, scores)
        assert found.encode(text) == expected, repr(text)
        assert found.decode(expected) == text


def merged(symbols: list[str], ids: dict[str, int], scores) -> list[int]:
    """SentencePiece's pairs, merged one at a time."""
    while True:
        pairs = [(a + b, i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not pairs:
            break
        joined, place = max(pairs, key=lambda pair: (scores[ids[pair[0]]], -pair[1]))
        symbols[place : place + 2] = [joined]
    found = []
    for symbol in symbols:
        known = [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        found += known
    return found


@pytest.mark.parametrize("pre", {ways: pre for pre, ways in WORD_SPLITTERS.items()}.values())
def test_words_of_every_kind(pre: str, tmp_path: Path) -> None:
    """Each expression passes the checks of those from files, and keeps every text."""
    found = tokenizer(TINY_LM, tmp_path / "model.gguf", pre)
    for text in texts()[::7]:
        assert found.decode(found.encode(text)) == text


def test_tools_and_named_templates(tmp_path: Path) -> None:
    """Templates by name, and the ends of answers that are known by their texts."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["a", "b", "<|im_end|>", "<|eom_id|>", "x", "ab"])
    writer.add_token_types([1, 1, 3, 3, 3, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(4)
    writer.add_chat_template([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = GgufModel(path)
    assert Tokenizer.read(model).eos == {2, 3, 4}
    settings = model.json("tokenizer_config.json", 0)
    assert settings is not None and {t["name"]: t["template"] for t in settings["chat_template"]} == {
        "default": "d",
        "tool_use": "t",
    }


def test_of_equal_texts_the_last_id_is_the_token(tmp_path: Path) -> None:
    """As in llama.cpp."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["a", "b", "ab", "a", "", "ab", "<|im_end|>", "<|im_end|>"])
    writer.add_token_types([1, 1, 1, 1, 1, 1, 3, 3])
    writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = Tokenizer.read(GgufModel(path))
    assert (read.encode("aaba"), read.vocab_size, read.eos) == ([3, 5, 3], 8, {7})
    assert read.decode([3, 1, 5]) == "abab" and read.decode([0]) == "[EQUAL_0]"


def test_what_is_missing_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("no_vocab")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"no tokenizer\.ggml\.tokens, so text cannot be encoded; generate_tokens"):
        Tokenizer.read(GgufModel(path))
    with pytest.raises(LoadError, match=r"no chat template; add tokenizer\.chat_template, or"):
        ChatTemplate.read(GgufModel(path))

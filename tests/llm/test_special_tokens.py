"""Special tokens that files beside tokenizer.json name: what transformers knows of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ingot.errors import IngotError, LoadError
from ingot.llm.chat import ChatTemplate
from ingot.llm.tokenizer import Tokenizer
from small_tokenizers import document, write_folder

TEMPLATE = "{{ messages[0].content }}[{{ bos_token }}][{{ eos_token }}][{{ image_token }}]"
MESSAGES = [{"role": "user", "content": "hi"}]
END = {"content": "<|im_end|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
STRIPS = {"content": "<|x|>", "lstrip": True, "rstrip": True, "single_word": False, "normalized": False}
PLAIN = {"single_word": False}
WORD = max((text for text in document("byte_level")["model"]["vocab"] if text.isascii() and text.isalpha()), key=len)

# tokenizer_config.json, and other files. The tokenizer has the ids 0 to 404, of which 400 to 404 are added tokens.
NAMED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "map alone": ({}, {"special_tokens_map": {"eos_token": "<|im_end|>", "image_token": "<|im_start|>"}}),
    "map with objects": ({}, {"special_tokens_map": {"eos_token": END | PLAIN}}),
    "map over settings": ({"eos_token": "<|endoftext|>"}, {"special_tokens_map": {"eos_token": "<|im_end|>"}}),
    "map beside a decoder": (
        {"eos_token": "<|endoftext|>", "added_tokens_decoder": {"401": END | PLAIN}},
        {"special_tokens_map": {"eos_token": "<|im_end|>"}},
    ),
    "decoder, a new token": ({"eos_token": "<|x|>", "added_tokens_decoder": {"405": END | STRIPS}}, {}),
    "decoder, a token that is not special": ({"added_tokens_decoder": {"405": STRIPS | {"special": False}}}, {}),
    "decoder, an id that is taken": ({"added_tokens_decoder": {"401": END | PLAIN | {"content": "<|im_end|>"}}}, {}),
    "added_tokens.json": ({}, {"added_tokens": {"<|x|>": 405, "<|y|>": 406, "<|im_end|>": 401}}),
    "added_tokens.json, named": ({"eos_token": "<|x|>"}, {"added_tokens": {"<|x|>": 405}}),
    "a token of the vocabulary": ({"eos_token": WORD}, {}),
    "extra tokens by name": ({"eos_token": "<|im_end|>", "extra_special_tokens": {"image_token": "<|im_start|>"}}, {}),
    "extra tokens": ({"eos_token": "<|im_end|>", "additional_special_tokens": [WORD, "<|im_start|>"]}, {}),
    "own names": ({"eos_token": "<|im_end|>", "image_token": "<|im_start|>", "add_bos_token": False}, {}),
    "an object of the package": ({"eos_token": {"__type": "AddedToken"} | END | PLAIN}, {}),
}


@pytest.mark.parametrize("name", NAMED)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path):
    settings, files = NAMED[name]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **settings}
    folder = write_folder(
        tmp_path, document("byte_level"), tokenizer_config=config, config={"model_type": "llama"}, **files
    )
    expected, got = AutoTokenizer.from_pretrained(folder), Tokenizer.read(folder)
    assert got.eos == ({expected.eos_token_id} if expected.eos_token_id is not None else frozenset())
    assert ChatTemplate.read(folder).render(MESSAGES) == expected.apply_chat_template(MESSAGES, tokenize=False)
    for text in ("a<|x|>b", "a <|x|> b<|y|>", "<|im_start|>x<|im_end|>", f"{WORD} f(x): {WORD}"):
        assert got.encode(text, special=True) == expected(text, add_special_tokens=False)["input_ids"]
    assert set(expected.all_special_tokens) <= set(got.special)


def test_an_end_of_the_tokenizer_ends_too(tmp_path: Path):
    """A fine-tuned base model: the config has the base's end, the chat template ends turns with the tokenizer's."""
    files = {"config": {"eos_token_id": 402}, "tokenizer_config": {"eos_token": "<|im_end|>"}}
    assert Tokenizer.read(write_folder(tmp_path, document("byte_level"), **files)).eos == {401, 402}
    files["generation_config"] = {"eos_token_id": [7, 8]}
    assert Tokenizer.read(write_folder(tmp_path, document("byte_level"), **files)).eos == {7, 8, 401}


def test_a_named_token_without_an_id_has_a_text_alone(tmp_path: Path):
    """transformers would give it an id for which the model has no row."""
    files = {"tokenizer_config": {"eos_token": "<|none|>", "chat_template": TEMPLATE}}
    folder = write_folder(tmp_path, document("byte_level"), **files)
    assert Tokenizer.read(folder).eos == frozenset()
    assert "[<|none|>]" in ChatTemplate.read(folder).render(MESSAGES)


def test_an_id_that_the_tokenizer_gives_to_another_text_stays_its_own(tmp_path: Path):
    """A tokenizer.json whose reserved token was renamed by hand, beside the old names."""
    decoder = {"401": END | PLAIN | {"content": "<|reserved|>"}}
    folder = write_folder(tmp_path, document("byte_level"), tokenizer_config={"added_tokens_decoder": decoder})
    read = Tokenizer.read(folder)
    assert read.special["<|im_end|>"] == 401 and "<|reserved|>" not in read.added


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer_config": {"added_tokens_decoder": [1]}}, "added_tokens_decoder: got [1]"),
    ({"tokenizer_config": {"added_tokens_decoder": {"x": END}}}, "added_tokens_decoder: got {'x'"),
    ({"tokenizer_config": {"added_tokens_decoder": {"4" * 5000: END}}}, "added_tokens_decoder: got {'444"),
    ({"tokenizer_config": {"added_tokens_decoder": {"405": {"content": 5}}}}, "405: not a token"),
    ({"tokenizer_config": {"added_tokens_decoder": {"405": {"content": ""}}}}, "added_tokens_decoder: got"),
    ({"tokenizer_config": {"added_tokens_decoder": {"500": STRIPS}}}, "id 500 after a gap, expected 405"),
    ({"tokenizer_config": {"additional_special_tokens": [7]}}, "token: not a token, got 7"),
    ({"special_tokens_map": {"eos_token": 5}}, "special_tokens_map.json: eos_token: not a token, got 5"),
    ({"added_tokens": {"<|x|>": "405"}}, "added_tokens.json: got {'<|x|>': '405'}"),
    ({"added_tokens": {"<|x|>": -1}}, "added_tokens.json: got {'<|x|>': -1}"),
    ({"added_tokens": {"": 405}}, "added_tokens.json: got {'': 405}"),
]


@pytest.mark.parametrize("files, fragment", WRONG, ids=lambda value: str(value)[:50])
def test_wrong_files_are_refused_by_name(files: dict[str, Any], fragment: str, tmp_path: Path):
    with pytest.raises(IngotError) as raised:
        Tokenizer.read(write_folder(tmp_path, document("byte_level"), **files))
    assert fragment in str(raised.value)


def test_a_damaged_vocabulary_is_refused_as_before(tmp_path: Path):
    damaged = json.loads(json.dumps(document("byte_level")))
    damaged["model"]["vocab"] = 5
    with pytest.raises(LoadError, match=r"model\.vocab"):
        Tokenizer.read(write_folder(tmp_path, damaged, added_tokens={"<|x|>": 405}))

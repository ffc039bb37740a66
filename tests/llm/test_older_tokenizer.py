"""Folders without a tokenizer.json: ids as those of transformers for vocab.json with merges.txt and for vocab.txt."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from ingot.errors import IngotError, LoadError, UnsupportedError
from ingot.llm.tokenizer import Tokenizer, has_tokenizer
from ingot.load.hf import Folder
from small_tokenizers import CONTROL, TEXT, document

TEXTS = [
    *TEXT[:4],
    "",
    " ",
    "a  b\n c",
    "größer 東京 \U0001f600 e\u0301",
    "  leading",
    "ONE's café 12345",
    "\t\r\n\r\n x",
]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_older(folder: Path, kind: str, control: list[str], **files: Any) -> Path:
    """The files of a small tokenizer; control tokens follow the others. files: JSON by the beginnings of names."""
    folder.mkdir(exist_ok=True)
    model = document(kind)["model"]
    ids = {text: index for text, index in model["vocab"].items() if text not in CONTROL}
    ids |= {text: max(ids.values()) + 1 + place for place, text in enumerate(c for c in control if c not in ids)}
    if kind == "word_piece":
        (folder / "vocab.txt").write_text("".join(f"{text}\n" for text in sorted(ids, key=ids.__getitem__)))
    else:
        pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        (folder / "vocab.json").write_text(json.dumps(ids))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def settings(name: str, **others: Any) -> dict[str, Any]:
    return {"tokenizer_class": name, **others}


ENDS = ["<|endoftext|>"]
FOLDERS = [
    ("gpt2", "byte_level", ENDS, settings("GPT2Tokenizer")),
    ("gpt2", "byte_level", ENDS, settings("GPT2TokenizerFast", add_prefix_space=True)),
    ("codegen", "byte_level", ENDS, settings("CodeGenTokenizer")),
    ("qwen2", "split_byte_level", [*ENDS, "<|im_start|>", "<|im_end|>"], settings("Qwen2Tokenizer")),
    ("roberta", "byte_level", ROBERTA, settings("RobertaTokenizer")),
    ("bart", "byte_level", ROBERTA, settings("BartTokenizer")),
    ("bert", "word_piece", ["[MASK]"], settings("BertTokenizer")),
    ("bert", "word_piece", ["[MASK]"], settings("BertTokenizer", do_lower_case=False, strip_accents=True)),
]


@pytest.mark.parametrize(("type", "kind", "control", "config"), FOLDERS, ids=lambda each: str(each)[:40])
def test_ids_are_those_of_transformers(
    type: str, kind: str, control: list[str], config: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_older(tmp_path, kind, control, config={"model_type": type}, tokenizer_config=config)
    expected = transformers.AutoTokenizer.from_pretrained(folder)
    found = Tokenizer.read(folder)
    around = expected("", add_special_tokens=True)["input_ids"]
    assert [*found.prefix, *found.suffix] == around
    for text in TEXTS:
        ids = expected(text, add_special_tokens=False)["input_ids"]
        assert found.encode(text) == ids, text
        assert found.decode(ids) == expected.decode(ids, skip_special_tokens=True), text
    own = {text: expected.convert_tokens_to_ids(text) for text in expected.all_special_tokens}
    assert found.special == own


@pytest.mark.parametrize(("type", "kind", "control"), [row[:3] for row in FOLDERS if row[0] != "codegen"])
def test_the_model_type_names_the_class(type: str, kind: str, control: list[str], tmp_path: Path) -> None:
    """Where no settings do."""
    config = {"model_type": type}
    name = {"gpt2": "GPT2", "qwen2": "Qwen2", "roberta": "Roberta", "bart": "Bart", "bert": "Bert"}[type]
    plain = Tokenizer.read(write_older(tmp_path / "plain", kind, control, config=config))
    named = settings(f"{name}Tokenizer")
    other = Tokenizer.read(write_older(tmp_path / "named", kind, control, config=config, tokenizer_config=named))
    assert plain.to_json() == other.to_json()


def test_tokens_that_other_files_add(tmp_path: Path) -> None:
    """A begin of texts, and tokens beyond the vocabulary."""
    size = len(json.loads((write_older(tmp_path, "byte_level", ENDS) / "vocab.json").read_text()))
    config = settings("GPT2Tokenizer", add_bos_token=True, bos_token=ENDS[0], eos_token=ENDS[0])
    added = {"<|note|>": size, "<|other|>": size + 1}
    found = Tokenizer.read(
        write_older(
            tmp_path, "byte_level", ENDS, config={"model_type": "opt"}, tokenizer_config=config, added_tokens=added
        )
    )
    assert (found.prefix, found.suffix) == ((size - 1,), ())
    assert found.encode("<|note|>a<|other|>", special=True)[::2] == [size, size + 1]
    assert found.vocab_size == size + 2 and found.eos == {size - 1}


WRONG: list[tuple[str, dict[str, str], type[IngotError], str]] = [
    ("gpt2", {"vocab.json": "[]"}, LoadError, "vocab.json: got [], expected a JSON object"),
    ("gpt2", {"vocab.json": '{"a": 0, "a": 1}'}, LoadError, "vocab.json: not JSON, key 'a' appears twice"),
    ("gpt2", {"vocab.json": '{"a": "0"}'}, LoadError, "vocab.json: token 'a': id '0', expected an integer"),
    ("gpt2", {"vocab.json": '{"a": -1}'}, LoadError, "vocab.json: token 'a': id -1, expected 0 to"),
    ("gpt2", {"vocab.json": '{"a": 0, "b": 0}'}, LoadError, "share the id 0"),
    ("gpt2", {"merges.txt": "a"}, LoadError, "model.merges[0]: got 'a', expected two tokens"),
    ("gpt2", {"merges.txt": "a b c"}, LoadError, "model.merges[0]: got 'a b c', expected two tokens"),
    ("gpt2", {"merges.txt": "a \U0001f600"}, LoadError, "which is no token"),
    ("gpt2", {"merges.txt": "h e\nh e"}, LoadError, "has two ranks"),
    ("gpt2", {"merges.txt": "\udcff"}, LoadError, "merges.txt: not UTF-8"),
    ("roberta", {"vocab.json": '{"a": 0}', "merges.txt": ""}, LoadError, "token '</s>' is not in the vocabulary"),
    ("bert", {"vocab.txt": "[CLS]\n[SEP]\na\na\n"}, LoadError, "vocab.txt: token 'a' is in lines 3 and later"),
    ("bert", {"vocab.txt": "[CLS]\n[SEP]\na\n"}, LoadError, "control token '[UNK]' is not in the vocabulary"),
    ("bert", {"vocab.txt": ""}, LoadError, "control token '[CLS]' is not in the vocabulary"),
    ("gpt2", {"tokenizer_config.json": '{"tokenizer_class": "CTRLTokenizer"}'}, UnsupportedError,
     "tokenizer of vocab.json and merges.txt: got tokenizer_class 'CTRLTokenizer', expected a tokenizer.json, or one"),
    ("gpt2", {"tokenizer_config.json": '{"tokenizer_class": 5}'}, UnsupportedError, "got tokenizer_class 5"),
    ("gpt2", {"tokenizer_config.json": '{"tokenizer_class": "BertTokenizer"}'}, UnsupportedError, "GPT2Tokenizer"),
    ("ctrl", {}, UnsupportedError, "got model_type 'ctrl' without a tokenizer_class"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "files", "error", "fragment"), WRONG)
def test_refused(model: str, files: dict[str, str], error: type[IngotError], fragment: str, tmp_path: Path) -> None:
    kind, control = ("word_piece", []) if model == "bert" else ("byte_level", ROBERTA if model == "roberta" else ENDS)
    folder = write_older(tmp_path, kind, control, config={"model_type": model})
    for name, text in files.items():
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(IngotError) as caught:
        Tokenizer.read(folder)
    assert fragment in str(caught.value) and type(caught.value) is error, caught.value
    assert str(caught.value).startswith(str(folder))


def test_files_without_the_others(tmp_path: Path) -> None:
    folder = write_older(tmp_path, "byte_level", ENDS, config={"model_type": "gpt2"})
    assert has_tokenizer(Folder(folder))
    (folder / "merges.txt").unlink()
    assert not has_tokenizer(Folder(folder))
    with pytest.raises(LoadError, match=r"no tokenizer\.json, so text cannot be encoded"):
        Tokenizer.read(folder)

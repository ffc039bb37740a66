"""The tokenizers of folders without a tokenizer.json: `vocab.json` with `merges.txt`, or `vocab.txt`.

These files have tokens and merge ranks alone. How text is split into words, and which tokens surround it, depends on
the class that `tokenizer_config.json` names, or on the model type; documents are those that transformers builds.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingot.errors import LoadError, UnsupportedError
from ingot.llm.special_tokens import MAX_SETTINGS_BYTES, SETTINGS, special_texts
from ingot.llm.tokenizer_file import MAX_FILE_BYTES
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import shown

_VOCAB, _MERGES, _WORDS = "vocab.json", "merges.txt", "vocab.txt"
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_BERT = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class of tokenizers. files: those that it needs; special: its control tokens by default, by their names; build:
    the document from the folder, its settings, the ids of tokens, and the texts of control tokens.
    """

    files: tuple[str, ...]
    special: dict[str, str]
    build: Callable[[Folder, dict[str, Any], dict[str, int], dict[str, str]], dict[str, Any]]


def older_tokenizer(folder: Folder) -> tuple[dict[str, Any], str] | None:
    """Return the document of a tokenizer.json and the file that it is from, for errors; None without such files.

    Raises LoadError for damaged files, UnsupportedError for a class that is not known, LimitError.
    """
    names = next((names for names in ((_VOCAB, _MERGES), (_WORDS,)) if all(map(folder.has, names))), None)
    if names is None:
        return None
    kind, got = _kind_of(folder)
    if kind is None or kind.files != names:
        expected = f"a tokenizer.json, or one of {', '.join(_known(names))}"
        raise UnsupportedError(f"{folder.path}: tokenizer of {' and '.join(names)}: got {got}, expected {expected}")
    ids = _words(folder) if names == (_WORDS,) else _vocabulary(folder)
    settings = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
    special = kind.special | special_texts(folder)
    document = kind.build(folder, settings, ids, special)
    added = [
        {"id": ids[text], "content": text, "special": True}
        | {flag: flag == "lstrip" and text == special.get("mask_token") == "<mask>" for flag in _FLAGS}
        for text in dict.fromkeys(special[name] for name in kind.special)
        if text in ids
    ]
    return {"version": "1.0", "added_tokens": added} | document, folder.where(names[0])


def has_older_tokenizer(folder: Folder) -> bool:
    """Return whether a folder has such files, of a class that is known."""
    kind, _ = _kind_of(folder)
    return kind is not None and all(map(folder.has, kind.files))


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def _kind_of(folder: Folder) -> tuple[_Kind | None, str]:
    """Return the kind of a folder's tokenizer, and what names it."""
    settings = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
    name, model_type = settings.get("tokenizer_class"), folder.config.get("model_type")
    if name is not None:
        kind = _CLASSES.get(name.removesuffix("Fast")) if isinstance(name, str) else None
        return kind, f"tokenizer_class {shown(name)}"
    named = _MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    return _CLASSES.get(named or ""), f"model_type {shown(model_type)} without a tokenizer_class"


def _known(names: tuple[str, ...]) -> list[str]:
    return [name for name, kind in _CLASSES.items() if kind.files == names]


def _vocabulary(folder: Folder) -> dict[str, int]:
    ids = folder.json(_VOCAB, MAX_FILE_BYTES)
    assert ids is not None
    wrong = next(((text, index) for text, index in ids.items() if type(index) is not int), None)
    if wrong is not None:
        raise LoadError(f"{folder.where(_VOCAB)}: token {shown(wrong[0])}: id {shown(wrong[1])}, expected an integer")
    return ids


def _words(folder: Folder) -> dict[str, int]:
    """Return the ids of tokens that are a line each."""
    lines = _lines(folder, _WORDS)
    ids = {text: index for index, text in enumerate(lines)}
    if len(ids) < len(lines):
        line = next(index for index, text in enumerate(lines) if ids[text] != index)
        raise LoadError(f"{folder.where(_WORDS)}: token {shown(lines[line])} is in lines {line + 1} and later")
    return ids


def _lines(folder: Folder, name: str) -> list[str]:
    content = folder.text(name, MAX_FILE_BYTES)
    assert content is not None
    return [line.rstrip("\n") for line in io.StringIO(content, newline=None)]


def _byte_level(
    folder: Folder, settings: dict[str, Any], ids: dict[str, int], special: dict[str, str]
) -> dict[str, Any]:
    """Return the document of GPT-2's tokenizer."""
    lines = _lines(folder, _MERGES)
    merges = [line for line in lines[bool(lines) and lines[0].startswith("#version") :] if line]
    level = {"type": "ByteLevel", "add_prefix_space": _flag(settings, "add_prefix_space", False), "trim_offsets": True}
    begins = _flag(settings, "add_bos_token", False)
    return {
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": _begin(folder, special["bos_token"], ids) if begins else None,
        "decoder": level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
    }


def _qwen(folder: Folder, settings: dict[str, Any], ids: dict[str, int], special: dict[str, str]) -> dict[str, Any]:
    document = _byte_level(folder, settings, ids, special)
    split = {"type": "Split", "pattern": {"Regex": _QWEN}, "behavior": "Isolated", "invert": False}
    parts = [split, document["pre_tokenizer"] | {"use_regex": False}]
    return document | {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
    }


def _roberta(folder: Folder, settings: dict[str, Any], ids: dict[str, int], special: dict[str, str]) -> dict[str, Any]:
    around = {name: [special[f"{name}_token"], _id(folder, special[f"{name}_token"], ids)] for name in ("sep", "cls")}
    document = _byte_level(folder, settings, ids, special)
    level = document["pre_tokenizer"]
    flags = {name: level[name] for name in ("trim_offsets", "add_prefix_space")}
    return document | {"post_processor": {"type": "RobertaProcessing", **around, **flags}}


def _bert(folder: Folder, settings: dict[str, Any], ids: dict[str, int], special: dict[str, str]) -> dict[str, Any]:
    strips = settings.get("strip_accents")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": _flag(settings, "tokenize_chinese_chars", True),
        "strip_accents": strips if isinstance(strips, bool) else None,
        "lowercase": _flag(settings, "do_lower_case", True),
    }
    cls, sep = ({"SpecialToken": {"id": special[f"{name}_token"], "type_id": 0}} for name in ("cls", "sep"))
    first, second = ({"Sequence": {"id": name, "type_id": type}} for type, name in enumerate("AB"))
    texts = [special["cls_token"], special["sep_token"]]
    tokens = {text: {"id": text, "ids": [_id(folder, text, ids)], "tokens": [text]} for text in texts}
    around = {"single": [cls, first, sep], "pair": [cls, first, sep, second, sep], "special_tokens": tokens}
    _id(folder, special["unk_token"], ids)
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", **around},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": special["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _begin(folder: Folder, text: str, ids: dict[str, int]) -> dict[str, Any]:
    """Return the post-processor that puts a token before each text."""
    begin = {"SpecialToken": {"id": text, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": type}} for type, name in enumerate("AB"))
    tokens = {text: {"id": text, "ids": [_id(folder, text, ids)], "tokens": [text]}}
    return {
        "type": "TemplateProcessing", "single": [begin, first], "pair": [begin, first, begin, second],
        "special_tokens": tokens,
    }  # fmt: skip


def _flag(settings: dict[str, Any], name: str, default: bool) -> bool:
    value = settings.get(name)
    return default if value is None else value is True


def _id(folder: Folder, text: str, ids: dict[str, int]) -> int:
    if text not in ids:
        raise LoadError(f"{folder.path}: control token {shown(text)} is not in the vocabulary")
    return ids[text]


_OF_MERGES = (_VOCAB, _MERGES)
_CLASSES = {
    "GPT2Tokenizer": _Kind(_OF_MERGES, _ENDS, _byte_level),
    "CodeGenTokenizer": _Kind(_OF_MERGES, _ENDS, _byte_level),
    "Qwen2Tokenizer": _Kind(_OF_MERGES, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}, _qwen),
    "RobertaTokenizer": _Kind(_OF_MERGES, _ROBERTA, _roberta),
    "BartTokenizer": _Kind(_OF_MERGES, _ROBERTA, _roberta),
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _Kind((_WORDS,), _BERT, _bert)),
}
_MODEL_TYPES = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "gpt_bigcode", "opt"), "GPT2Tokenizer"),
    "codegen": "CodeGenTokenizer",
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer",
    "bert": "BertTokenizer",
}

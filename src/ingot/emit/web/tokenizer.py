"""Convert a `tokenizer.json` to the tables of tokenizer.js.

Supports byte-level BPE, which decoders use, and BERT's WordPiece; all else raises an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ingot.emit.language.pattern import Ranges, automaton
from ingot.emit.language.tokenizer import form_of
from ingot.errors import UnsupportedError


def word_pieces(
    document: Mapping[str, Any], prefix: Sequence[int], suffix: Sequence[int], where: str
) -> dict[str, Any]:
    """Convert WordPiece.

    document: as the package `tokenizers` writes it. prefix, suffix: ids around a text. where: its path.

    Raises UnsupportedError.
    """
    model, normalizer = document["model"], document["normalizer"]
    for part, section, expected in (
        ("model", model, "WordPiece"),
        ("normalizer", normalizer, "BertNormalizer"),
        ("pre_tokenizer", document["pre_tokenizer"], "BertPreTokenizer"),
    ):
        got = None if section is None else section["type"]
        if got != expected:
            raise UnsupportedError(f"{where}: {part}: a page has no such tokenizer, got {got}, expected {expected}")
    if added := [token["content"] for token in document["added_tokens"] if not token["special"]]:
        raise UnsupportedError(f"{where}: added_tokens: a page finds none in words, got {added[0]!r}, expected none")
    strips = normalizer["strip_accents"]
    return {
        "kind": "wordpiece",
        "vocab": _texts(model["vocab"], ()),
        "unknown": model["vocab"][model["unk_token"]],
        "continuing": model["continuing_subword_prefix"],
        "longest": model["max_input_chars_per_word"],
        "clean": normalizer["clean_text"],
        "chinese": normalizer["handle_chinese_chars"],
        "lowercase": normalizer["lowercase"],
        "strip": normalizer["lowercase"] if strips is None else strips,
        "prefix": list(prefix),
        "suffix": list(suffix),
    }


def byte_level(
    document: Mapping[str, Any],
    prefix: Sequence[int],
    members: Callable[[str], Ranges],
    where: str,
    template: str = "",
    known: Collection[str] = (),
) -> dict[str, Any]:
    """Convert byte-level BPE. members: the characters that an atom matches; the rest as for `word_pieces`.

    template: texts of a chat template around messages, whose control tokens a page must know. known: tokens that only
    the template and the model write.

    Raises UnsupportedError.
    """
    form, model = form_of(document, where), document["model"]
    if not form.bytes:
        got = f"{model['type']} over characters"
        raise UnsupportedError(f"{where}: a page has no such tokenizer, got {got}, expected BPE over bytes")
    vocab, tokens = model["vocab"], document["added_tokens"]
    added = _found([token for token in tokens if not token["special"]], where)
    control = _found([token for token in tokens if token["special"] and token["content"] in template], where)
    hidden = [token["id"] for token in tokens if token["special"]]
    merges = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
    stages = [automaton(pattern, members, f"{where}: pre_tokenizer") for pattern in form.patterns]
    return {
        "kind": "bpe",
        "vocab": _texts(vocab | added, hidden),
        "added": added,
        "control": control,
        "known": sorted(added.keys() & set(known)),
        "merges": [[vocab[left], vocab[right], vocab[left + right]] for left, right in merges],
        "whole": model["ignore_merges"],
        "compose": form.compose,
        "space": form.prefix_space,
        "stages": [
            {"starts": s.starts, "classes": s.classes, "width": s.width, "transitions": s.transitions} for s in stages
        ],
        "prefix": list(prefix),
    }


def _found(tokens: Sequence[Mapping[str, Any]], where: str) -> dict[str, int]:
    """Return the tokens that are matched before a text is split into words, and their ids."""
    found = {}
    for token in tokens:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            got = repr(token["content"])
            raise UnsupportedError(f"{where}: added_tokens: a page takes no space with them, got {got}, expected none")
        found[token["content"]] = token["id"]
    return found


def _texts(vocab: Mapping[str, int], hidden: Collection[int]) -> list[str | None]:
    """Return the token of each id; None for ids that are no text."""
    texts: list[str | None] = [None] * (1 + max(vocab.values(), default=-1))
    for text, index in vocab.items():
        texts[index] = None if index in hidden else text
    return texts

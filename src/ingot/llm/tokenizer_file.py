"""Validation of a `tokenizer.json` before it is used: counts, ids, names, and bounded run time."""

from __future__ import annotations

import json
import re
from typing import Any

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.llm.patterns import check_linear
from ingot.load.hf.strict_json import shown

MAX_FILE_BYTES = 64 << 20  # of a tokenizer.json, and of the files of older tokenizers
MAX_ID = (1 << 22) - 1  # the largest id of a token
MAX_TOKENS = 1 << 21  # of a vocabulary
MAX_MERGES = 1 << 21  # of a vocabulary
MAX_TOKEN_CHARACTERS = 1024  # of one token
MAX_ADDED = 1 << 16  # tokens added to the vocabulary
MAX_PARTS = 64  # steps of a normalizer, pre-tokenizer or decoder
MAX_GROWTH = 64  # the largest factor by which a normalizer may lengthen a text
MAX_WORD_CHARACTERS = 1000  # of a word that WordPiece looks up

_MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")
_BYTE_LIKE = re.compile(r"<0x[^<>]*>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def checked_tokenizer(document: dict[str, Any], content: str, where: str) -> str:
    """Return the checked document as JSON text, without truncation and padding, added tokens sorted by id.

    The result is `content` itself if no change is needed. Raises LoadError, LimitError or UnsupportedError with the
    name of the invalid field.
    """
    model = document.get("model")
    if not isinstance(model, dict):
        raise LoadError(f"{where}: model: got {shown(model)}, expected an object")
    kind = model.get("type") or ("BPE" if "merges" in model else None)
    if kind not in _MODELS:
        raise UnsupportedError(f"{where}: model.type: got {shown(kind)}, expected one of {', '.join(_MODELS)}")
    tokens = _unigram_tokens(model, where) if kind == "Unigram" else _vocabulary(model, where)
    if kind == "BPE":
        _check_bpe(model, tokens, where)
    if kind == "WordPiece":
        _check_count(model.get("max_input_chars_per_word", 100), MAX_WORD_CHARACTERS, "characters of a word", where)
    added = _checked_added(document.get("added_tokens"), tokens, where)
    if model.get("byte_fallback") or '"ByteFallback"' in json.dumps(document.get("decoder")):
        wrong = next((text for text in tokens if _BYTE_LIKE.fullmatch(text) and not _BYTE.fullmatch(text)), None)
        if wrong is not None:
            raise LoadError(f"{where}: byte token {shown(wrong)}, expected <0x00> to <0xFF>")
    growth = 1.0
    for section in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        parts = _parts(document.get(section), f"{where}: {section}")
        for part in parts:
            longer = _checked_part(part, f"{where}: {section}")
            growth *= longer if section != "decoder" else 1.0
    if growth > MAX_GROWTH:
        raise LimitError(f"{where}: normalizer: text may grow {growth:.0f} times, expected at most {MAX_GROWTH}")
    wanted = {"added_tokens": added, "truncation": None, "padding": None}
    found = {"added_tokens": [], **document}
    if all(found.get(key) == value for key, value in wanted.items()):
        return content
    return json.dumps(document | wanted, ensure_ascii=False)


def highest_id(document: dict[str, Any]) -> int:
    """Return the largest token id of a checked document."""
    vocabulary = document["model"]["vocab"]
    highest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
    return max([highest, *(token["id"] for token in document.get("added_tokens") or [])])


def unknown_id(model: dict[str, Any]) -> int | None:
    """Return the id of a checked model's unknown token, None if it has none."""
    unknown = model.get("unk_id")
    return unknown if model.get("type") == "Unigram" else model["vocab"].get(model.get("unk_token"))


def _vocabulary(model: dict[str, Any], where: str) -> dict[str, int]:
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise LoadError(f"{where}: model.vocab: got {shown(vocabulary)}, expected ids of tokens")
    _check_count(len(vocabulary), MAX_TOKENS, "tokens", where)
    wrong = next(((text, i) for text, i in vocabulary.items() if type(i) is not int or not 0 <= i <= MAX_ID), None)
    if wrong is not None:
        raise LoadError(f"{where}: token {shown(wrong[0])}: id {shown(wrong[1])}, expected 0 to {MAX_ID}")
    if len(set(vocabulary.values())) < len(vocabulary):
        owners: dict[int, str] = {}
        text, index = next((t, i) for t, i in vocabulary.items() if owners.setdefault(i, t) != t)
        raise LoadError(f"{where}: tokens {shown(owners[index])} and {shown(text)} share the id {index}")
    highest = max(vocabulary.values())
    if highest > 2 * len(vocabulary) + 1024:
        raise LoadError(f"{where}: model.vocab: ids up to {highest} for {len(vocabulary)} tokens, expected fewer gaps")
    _check_lengths(vocabulary, where)
    return vocabulary


def _unigram_tokens(model: dict[str, Any], where: str) -> dict[str, int]:
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not pieces:
        raise LoadError(f"{where}: model.vocab: got {shown(pieces)}, expected a list of [token, score]")
    _check_count(len(pieces), MAX_TOKENS, "tokens", where)
    for index, piece in enumerate(pieces):
        is_pair = isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)
        if not is_pair or type(piece[1]) not in (int, float):
            raise LoadError(f"{where}: model.vocab[{index}]: got {shown(piece)}, expected [token, score]")
    unknown = model.get("unk_id")
    if unknown is not None and (type(unknown) is not int or not 0 <= unknown < len(pieces)):
        raise LoadError(f"{where}: model.unk_id: got {shown(unknown)}, expected 0 to {len(pieces) - 1}")
    tokens = {piece[0]: index for index, piece in reversed(list(enumerate(pieces)))}
    if len(tokens) < len(pieces):
        index, text = next((i, p[0]) for i, p in enumerate(pieces) if tokens[p[0]] != i)
        raise LoadError(f"{where}: token {shown(text)} has the ids {tokens[text]} and {index}")
    _check_lengths(tokens, where)
    return tokens


def _check_bpe(model: dict[str, Any], tokens: dict[str, int], where: str) -> None:
    """Raise LoadError unless each merge joins two existing tokens into an existing token, each pair once."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise LoadError(f"{where}: model.merges: got {shown(merges)}, expected a list")
    _check_count(len(merges), MAX_MERGES, "merges", where)
    if model.get("dropout"):
        raise UnsupportedError(f"{where}: model.dropout: got {shown(model['dropout'])}, expected none: ids would vary")
    prefix = model.get("continuing_subword_prefix") or ""
    pairs: list[tuple[str, str]] = []
    for rank, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            raise LoadError(f"{where}: model.merges[{rank}]: got {shown(merge)}, expected two tokens")
        left, right = pair
        joined = left + right.removeprefix(prefix)
        if left not in tokens or right not in tokens or joined not in tokens:
            text = next(text for text in (left, right, joined) if text not in tokens)
            raise LoadError(f"{where}: model.merges[{rank}]: {shown(merge)} needs {shown(text)}, which is no token")
        pairs.append((left, right))
    if len(set(pairs)) < len(pairs):
        ranks: dict[tuple[str, str], int] = {}
        rank = next(rank for rank, pair in enumerate(pairs) if ranks.setdefault(pair, rank) != rank)
        raise LoadError(f"{where}: model.merges[{rank}]: {shown(merges[rank])} has two ranks")
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in tokens:
        raise LoadError(f"{where}: model.unk_token: got {shown(unknown)}, expected a token")


def _checked_added(added: Any, tokens: dict[str, int], where: str) -> list[dict[str, Any]]:
    """Return the added tokens sorted by id."""
    if added is None:
        return []
    if not isinstance(added, list):
        raise LoadError(f"{where}: added_tokens: got {shown(added)}, expected a list")
    _check_count(len(added), MAX_ADDED, "added tokens", where)
    texts, ids = {index: text for text, index in tokens.items()}, dict(tokens)
    for position, token in enumerate(added):
        name = f"{where}: added_tokens[{position}]"
        text, index = (token.get("content"), token.get("id")) if isinstance(token, dict) else (None, None)
        if not isinstance(text, str) or not text or len(text) > MAX_TOKEN_CHARACTERS:
            raise LoadError(f"{name}: content: got {shown(text)}, expected 1 to {MAX_TOKEN_CHARACTERS} characters")
        if type(index) is not int or not 0 <= index <= MAX_ID:
            raise LoadError(f"{name}: id: got {shown(index)}, expected 0 to {MAX_ID}")
        if ids.setdefault(text, index) != index:
            raise LoadError(f"{name}: {shown(text)} has the ids {ids[text]} and {index}")
        if texts.setdefault(index, text) != text:
            raise LoadError(f"{name}: {shown(texts[index])} and {shown(text)} share the id {index}")
    if max(texts) > 2 * len(texts) + 1024:
        raise LoadError(f"{where}: added_tokens: ids up to {max(texts)} for {len(texts)} tokens, expected fewer gaps")
    return sorted(added, key=lambda token: int(token["id"]))


def _parts(section: Any, where: str) -> list[dict[str, Any]]:
    """Return the parts of a section, with sequences flattened."""
    waiting, parts = [section] if section is not None else [], []
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise LoadError(f"{where}: got {shown(part)}, expected an object with a type")
        if part["type"] == "Sequence":
            inner = next((part[key] for key in _SEQUENCES if isinstance(part.get(key), list)), None)
            if inner is None:
                raise LoadError(f"{where}: Sequence: got {shown(part)}, expected a list of parts")
            waiting += inner
        else:
            parts.append(part)
        _check_count(len(parts) + len(waiting), MAX_PARTS, "parts", where)
    return parts


_SEQUENCES = ("normalizers", "pretokenizers", "decoders", "processors")


def _checked_part(part: dict[str, Any], where: str) -> float:
    """Check a part; return the largest factor by which it may lengthen a text."""
    where = f"{where}: {part['type']}"
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and "Regex" in pattern:
        check_linear(pattern["Regex"], where)
    if isinstance(pattern, dict) and not isinstance(pattern.get("String", ""), str):
        raise LoadError(f"{where}: pattern: got {shown(pattern)}, expected a string or an expression")
    if part["type"] == "TemplateProcessing":
        _check_count(len(json.dumps(part)), 1 << 16, "characters", where)
    for key in ("content", "prepend", "pattern", "replacement"):
        if isinstance(part.get(key), str):
            _check_count(len(part[key]), MAX_TOKEN_CHARACTERS, f"characters of {key}", where)
    if part["type"] != "Replace":
        return 1.0
    matched = len(pattern.get("String", "")) if isinstance(pattern, dict) else 1
    return max(1.0, len(str(part.get("content", ""))) / max(1, matched))


def _check_lengths(tokens: dict[str, int], where: str) -> None:
    _check_count(max(map(len, tokens)), MAX_TOKEN_CHARACTERS, "characters of a token", where)


def _check_count(count: Any, limit: int, what: str, where: str) -> None:
    if type(count) is not int or count < 0:
        raise LoadError(f"{where}: {what}: got {shown(count)}, expected a count")
    if count > limit:
        raise LimitError(f"{where}: too many {what}, got {count}, expected at most {limit}")

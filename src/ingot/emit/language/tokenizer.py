"""Convert a `tokenizer.json` to tokenizer.bin, the tables of tokenizer.c.

Supports the components of published language models: BPE over bytes or characters, words split by an expression or by
spaces. All others raise an error that names them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.emit.language.normal import normal_tables
from ingot.emit.language.pattern import Automaton, Ranges, automaton
from ingot.emit.platform import Platform
from ingot.errors import UnsupportedError

MAGIC = b"INGOTTOK"
_SPACE = "▁"  # represents a space in a word
# GPT-2's expression, which a byte-level pre-tokenizer uses by default.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGITS = {True: r"\p{N}", False: r"\p{N}+"}

_HIDDEN, _TEXT, _BYTE = 0, 1, 2  # kinds of pieces
_SPECIAL, _NORMAL, _KNOWN, _LEFT, _RIGHT, _CONTROL = 1, 2, 4, 8, 16, 32  # bits of added tokens


@dataclass(frozen=True, slots=True)
class Facts:
    """Further facts of a tokenizer.

    where: its path. vocab: upper bound of ids. hidden: ids that are no text. control: ids that a user's text never
    becomes. prefix: ids before a text. known: added tokens that the chat template writes and a message may spell.
    members: the characters that an atom of an expression matches.
    """

    where: str
    vocab: int
    hidden: Collection[int]
    control: Collection[int]
    prefix: Sequence[int]
    known: Collection[str]
    members: Callable[[str], Ranges]


@dataclass(slots=True)
class Form:
    """How a text is split into words, as settings of tokenizer.c.

    bytes: words are byte strings. compose: normalise to NFC. prefix_space: add a space before a text without one.
    patterns: the expressions that split words, one after another.
    """

    bytes: bool = False
    prepend: bool = False
    replace: bool = False
    metaspace: int = 0  # replace spaces before splitting; 1: also one before every text, 2: before the first
    split: bool = False
    prefix_space: bool = False
    strip: bool = False
    compose: bool = False
    patterns: tuple[str, ...] = ()


def tokenizer_file(document: Mapping[str, Any], facts: Facts, platform: Platform) -> bytes:
    """Return tokenizer.bin in a platform's byte order. document: as the package `tokenizers` writes it.

    Raises UnsupportedError naming a component that tokenizer.c does not support.
    """
    form = form_of(document, facts.where)
    model = document["model"]
    stages = [automaton(pattern, facts.members, f"{facts.where}: pre_tokenizer") for pattern in form.patterns]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    pieces = _pieces(document, facts, form)
    settings = [
        form.bytes, model["byte_fallback"], model["ignore_merges"], model["vocab"].get(model["unk_token"], -1),
        model["fuse_unk"], form.prepend, form.replace, form.metaspace, form.split, form.prefix_space, form.strip,
        form.compose, facts.vocab, len(stages),
    ]  # fmt: skip
    spelled = {_raw(text, form): index for text, index in model["vocab"].items()}
    words = sorted((raw, index) for raw, index in spelled.items() if raw is not None and model["ignore_merges"])
    sections: list[np.ndarray | bytes] = [
        _numbers(settings),
        *_texts([text for text, _ in pieces]),
        bytes(kind for _, kind in pieces),
        _numbers(_symbols(spelled, form)),
        _numbers(model["vocab"].get(f"<0x{byte:02X}>", -1) for byte in range(256)),
        _numbers(_merges(merges, model["vocab"])),
        *_texts([raw or b"" for raw, _ in words]),
        _numbers(index for _, index in words),
        *_added(document, facts, form),
        *_stages(stages),
        _numbers(facts.prefix),
        *(_numbers(table.reshape(-1)) for table in (normal_tables() if form.compose else [np.empty(0)] * 3)),
    ]
    return _file(sections, platform)


def _refused(where: str, part: str, got: object, expected: str) -> UnsupportedError:
    return UnsupportedError(f"{where}: {part}: emit has no such tokenizer, got {got}, expected {expected}")


def form_of(document: Mapping[str, Any], where: str) -> Form:
    """Return how a document splits words. Raises UnsupportedError for unknown components."""
    model, form = document["model"], Form()
    if model["type"] != "BPE":
        raise _refused(where, "model", model["type"], "BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model[key]:
            raise _refused(where, f"model.{key}", repr(model[key]), "none")
    for part in _parts(document["normalizer"], "normalizers"):
        if part["type"] == "Prepend" and part["prepend"] == _SPACE and not form.replace:
            form.prepend = True
        elif part["type"] == "Replace" and part["pattern"] == {"String": " "} and part["content"] == _SPACE:
            form.replace = True
        elif part["type"] == "NFC":
            form.compose = True
        else:
            raise _refused(where, "normalizer", part["type"], f"none, NFC, or {_SPACE!r} for a space")
    for part in _parts(document["pre_tokenizer"], "pretokenizers"):
        _cut(part, form, where)
    if not form.bytes and form.patterns:
        raise _refused(where, "pre_tokenizer", "Split over characters", "ByteLevel behind it")
    if form.bytes and (form.replace or form.prepend or form.metaspace):
        raise _refused(where, "pre_tokenizer", "ByteLevel over replaced spaces", "spaces as they are")
    if form.prepend and not form.replace:
        raise _refused(where, "normalizer", "Prepend alone", "Replace behind it")
    _check_decoder(document["decoder"], form, where)
    return form


def _parts(section: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    if section is None:
        return []
    return [section] if section["type"] != "Sequence" else [p for each in section[inner] for p in _parts(each, inner)]


def _cut(part: Mapping[str, Any], form: Form, where: str) -> None:
    """Add one component of a pre-tokenizer to the form."""
    where, kind = f"{where}: pre_tokenizer", part["type"]
    if form.bytes:
        raise _refused(where, "Sequence", f"{kind} behind ByteLevel", "nothing")
    if kind == "ByteLevel":
        if part["add_prefix_space"] and form.patterns:
            raise _refused(where, kind, "add_prefix_space behind Split", "none")
        form.bytes, form.prefix_space = True, part["add_prefix_space"]
        form.patterns += (_WORDS,) * part["use_regex"]
    elif kind == "Digits":
        form.patterns += (_DIGITS[part["individual_digits"]],)
    elif kind == "Split" and "Regex" in part["pattern"]:
        if part["behavior"] != "Isolated" or part["invert"]:
            raise _refused(where, kind, part["behavior"], "Isolated, not inverted")
        form.patterns += (part["pattern"]["Regex"],)
    elif kind == "Split" and part["pattern"] == {"String": " "} and form.replace:
        pass  # no space is left
    elif kind == "Metaspace" and part["replacement"] == _SPACE and not form.metaspace and not form.patterns:
        form.metaspace = {"always": 1, "first": 2, "never": 3}[part["prepend_scheme"]]
        form.split = part["split"]
    else:
        raise _refused(where, "part", kind, "ByteLevel, Split by an expression, Digits or Metaspace")


def _check_decoder(decoder: Mapping[str, Any] | None, form: Form, where: str) -> None:
    kinds = [part["type"] for part in _parts(decoder, "decoders")]
    if form.bytes and kinds == ["ByteLevel"]:
        return
    parts = _parts(decoder, "decoders")
    form.strip = kinds[-1:] == ["Strip"]
    whole = ["Replace", "ByteFallback", "Fuse"] + ["Strip"] * form.strip
    if form.bytes or kinds != whole or (parts[0]["pattern"], parts[0]["content"]) != ({"String": _SPACE}, " "):
        raise _refused(where, "decoder", ", ".join(kinds) or "none", "ByteLevel, or Replace, ByteFallback, Fuse")
    if form.strip and [parts[-1][key] for key in ("content", "start", "stop")] != [" ", 1, 0]:
        raise _refused(where, "decoder: Strip", parts[-1], "one space at the start")


def _byte_letters() -> dict[str, int]:
    """Return the letters that represent bytes in a byte-level vocabulary; printable bytes represent themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


_LETTERS = _byte_letters()


def _raw(text: str, form: Form) -> bytes | None:
    """Return the bytes of a token in a word; None for a token that is no part of a word."""
    if not form.bytes:
        return text.encode()
    return bytes(_LETTERS[letter] for letter in text) if all(letter in _LETTERS for letter in text) else None


def _pieces(document: Mapping[str, Any], facts: Facts, form: Form) -> list[tuple[bytes, int]]:
    """Return the bytes that each id adds to a text."""
    pieces = [(b"", _HIDDEN)] * facts.vocab
    texts = {**document["model"]["vocab"], **{token["content"]: token["id"] for token in document["added_tokens"]}}
    for text, index in texts.items():
        if index in facts.hidden or index >= facts.vocab:
            continue
        raw = _raw(text, form)
        if not form.bytes and len(text) == 6 and text.startswith("<0x"):
            pieces[index] = (bytes([int(text[3:5], 16)]), _BYTE)
        elif form.bytes:
            pieces[index] = (text.encode() if raw is None else raw, _TEXT)
        else:
            pieces[index] = (text.replace(_SPACE, " ").encode(), _TEXT)
    return pieces


def _symbols(spelled: Mapping[bytes | None, int], form: Form) -> Iterable[int]:
    """Return (byte or code point, id) of the initial tokens of words, in order."""
    found = []
    for raw, index in spelled.items():
        if raw is not None and form.bytes and len(raw) == 1:
            found.append((raw[0], index))
        elif raw is not None and not form.bytes and len(text := raw.decode()) == 1:
            found.append((ord(text), index))
    return (number for pair in sorted(found) for number in pair)


def _merges(merges: Sequence[tuple[str, ...]], vocab: Mapping[str, int]) -> np.ndarray:
    """Return left, right, rank and result of each merge, sorted by pair."""
    rows = np.array(
        [(vocab[left], vocab[right], rank, vocab[left + right]) for rank, (left, right) in enumerate(merges)], np.int32
    ).reshape(-1, 4)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))].reshape(-1)


def _added(document: Mapping[str, Any], facts: Facts, form: Form) -> list[np.ndarray | bytes]:
    """Return the end offset of each added token's text, the texts, and (id, bits) of each."""
    texts, rows = [], []
    for token in document["added_tokens"]:
        text, index = token["content"], token["id"]
        if token["single_word"]:
            raise _refused(facts.where, f"added token {text!r}", "single_word", "none")
        bits = _SPECIAL * token["special"] | _NORMAL * token["normalized"] | _KNOWN * (text in facts.known)
        bits |= _LEFT * token["lstrip"] | _RIGHT * token["rstrip"] | _CONTROL * (index in facts.control)
        if token["normalized"] and form.compose:
            text = unicodedata.normalize("NFC", text)
        if token["normalized"] and form.replace:
            text = (_SPACE * form.prepend + text).replace(" ", _SPACE)
        texts.append(text.encode())
        rows += [index, bits]
    return [*_texts(texts), _numbers(rows)]


def _stages(stages: Sequence[Automaton]) -> list[np.ndarray]:
    """Return (width, first run, runs, first transition) of each automaton; runs as (start, class); transitions."""
    rows: list[int] = []
    runs: list[int] = []
    transitions: list[int] = []
    for stage in stages:
        rows += [stage.width, len(runs) // 2, len(stage.starts), len(transitions)]
        runs += [n for run in zip(stage.starts, stage.classes, strict=True) for n in run]
        transitions += stage.transitions
    return [_numbers(rows), _numbers(runs), _numbers(transitions)]


def _numbers(values: Iterable[int] | np.ndarray) -> np.ndarray:
    return np.asarray(values if isinstance(values, np.ndarray) else list(values), np.int32)


def _texts(texts: Sequence[bytes]) -> tuple[np.ndarray, bytes]:
    """Return the offsets of texts, with the end of the last, and the texts."""
    return _numbers(np.cumsum([0, *map(len, texts)])), b"".join(texts)


def _file(sections: Sequence[np.ndarray | bytes], platform: Platform) -> bytes:
    """Return the header: magic, hash of the rest, bytes of the file, then offset and bytes of each section."""

    def stored(*numbers: int, dtype: type[np.generic]) -> bytes:
        return platform.ordered(np.array(numbers, dtype)).tobytes()

    offset, rows, body = len(MAGIC) + 16 + 8 * len(sections), b"", b""
    for section in sections:
        content = section if isinstance(section, bytes) else platform.ordered(section).tobytes()
        rows += stored(offset + len(body), len(content), dtype=np.int32)
        body += content + bytes(-len(content) % 8)
    hashed = stored(offset + len(body), dtype=np.int64) + rows + body
    return MAGIC + stored(fnv(hashed, platform), dtype=np.uint64) + hashed


def fnv(content: bytes, platform: Platform) -> int:
    """Return FNV-1a over words of 8 bytes, in a platform's order, zero-padded."""
    total = 0xCBF29CE484222325
    for word in np.frombuffer(content + bytes(-len(content) % 8), platform.dtype(np.dtype(np.uint64))).tolist():
        total = (total ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return total

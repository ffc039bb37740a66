"""Encode text to ids and decode ids to text by a model folder's `tokenizer.json`.

The file is checked (`tokenizer_file.py`) before the package `tokenizers` reads it, because it is untrusted.
"""

from __future__ import annotations

import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ingot.errors import IngotError, IngotWarning, InputError, LimitError, LoadError, ResourceError, UnsupportedError
from ingot.llm.older_tokenizer import has_older_tokenizer, older_tokenizer
from ingot.llm.special_tokens import MAX_SETTINGS_BYTES, SETTINGS, special_texts, with_added
from ingot.llm.tokenizer_file import MAX_FILE_BYTES, MAX_ID, checked_tokenizer, highest_id, unknown_id
from ingot.load.gguf.sentence_piece import is_sentence_piece, sentence_piece_document
from ingot.load.hf.config import MAX_CONFIG_BYTES
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import parse_object, shown
from ingot.support.columns import counted

if TYPE_CHECKING:
    import tokenizers

MAX_TEXT_CHARACTERS = 8 << 20  # of a text to encode

# A Unicode noncharacter, for use inside a process only. It is inserted into the text of a control token that a message
# contains, so that the text does not become the control token; it produces no id itself.
BREAK = "\ufdd0"

_PIECES = "tokenizer.model"
_T = TypeVar("_T")


class Tokenizer:
    """The tokenizer of a model folder; may be used by many threads at once.

    Every `str` can be encoded, except one with an unpaired surrogate. Decoding returns the same text if the model's
    normalizer preserves it: byte-level tokenizers preserve every text, others may change spaces and letter forms.

    vocab_size: one more than the largest id.
    bos, pad: ids, None if the folder names none.
    eos: the ids that end a text, from generation_config.json, else config.json, and the tokenizer's own.
    prefix, suffix: the ids that the model expects before and after a text: `[bos]`, BERT's [CLS] and [SEP], often none.
    special: the ids of control tokens by their texts; control: the ids that a user's text must not become.
    added: the texts of all tokens that are matched before a text is split into words.
    """

    def __init__(self, rust: tokenizers.Tokenizer, vocab_size: int, unknown: int | None, where: str) -> None:
        self._where = where
        self._rust = rust
        added = rust.get_added_tokens_decoder()
        self.vocab_size = vocab_size
        self.special = {token.content: index for index, token in added.items() if token.special}
        self.added = frozenset(token.content for token in added.values())
        self._hidden = frozenset(self.special.values())
        self.control = self._hidden - {unknown}  # a user's text may become the unknown token
        self._marked = self._sibling(breaks=True)
        self._plain = self._sibling(breaks=False)
        self._plain.encode_special_tokens = True
        self.bos: int | None = None
        self.pad: int | None = None
        self.eos: frozenset[int] = frozenset()
        self.prefix, self.suffix = self._around()

    def __repr__(self) -> str:
        return f"<Tokenizer: {counted(self.vocab_size, 'id')}, {len(self.special)} of control tokens>"

    @classmethod
    def read(cls, folder: Folder | str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a folder.

        Raises LoadError if the folder has no tokenizer or its files are inconsistent, LimitError if they are too large,
        UnsupportedError for parts whose run time is not bounded and for older files of other classes, ResourceError if
        `tokenizers` is missing.
        """
        folder = folder if isinstance(folder, Folder) else Folder(folder)
        where = folder.where("tokenizer.json")
        content = folder.text("tokenizer.json", MAX_FILE_BYTES)
        if content is None and _has_pieces(folder):
            where = folder.where(_PIECES)
            content = json.dumps(_pieces(folder), ensure_ascii=False)
        elif content is None and (older := older_tokenizer(folder)) is not None:
            where = older[1]
            content = json.dumps(older[0], ensure_ascii=False)
        if content is None:
            raise LoadError(
                f"{folder.path}: no {folder.location('tokenizer.json')}, so text cannot be encoded;"
                " generate_tokens works with ids"
            )
        document = parse_object(content.encode(), where)
        if (whole := with_added(document, folder)) is not document:
            document, content = whole, json.dumps(whole, ensure_ascii=False)
        text = checked_tokenizer(document, content, where)
        rust = _package().Tokenizer
        parsed = _guarded(lambda: rust.from_str(text), LoadError, where)
        _check_ids(parsed, document, where)
        tokenizer = cls(parsed, 1 + highest_id(document), unknown_id(document["model"]), where)
        tokenizer._name_ends(folder)
        return tokenizer

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text, without `prefix` and `suffix`.

        special: whether the texts of control tokens become control tokens. Only for the output of a chat template; in
            a user's text they are ordinary text.

        Raises InputError for text that UTF-8 cannot encode, LimitError for more than 2^23 characters.
        """
        _check_text(text)
        if special:
            return self._ids(self._marked, text)
        ids = self._ids(self._plain, text)
        if self.control.isdisjoint(ids):
            return ids
        # In some models a control token is also an ordinary vocabulary entry, so its text may become its id.
        ids = self._ids(self._plain_broken, self.broken(text, frozenset(self.special)))
        if not self.control.isdisjoint(ids):
            raise InputError(f"{self._where}: the text becomes a control token and cannot be encoded as text")
        return ids

    def broken(self, text: str, control: frozenset[str]) -> str:
        """Return a text with BREAK inserted into each control token that it contains; its own BREAKs are removed.

        Raises InputError for a control token of one character, which cannot be split.
        """
        spelled = _spelled(control)
        text = text.replace(BREAK, "")
        while (cut := spelled.sub(_cut, text)) != text:
            text = cut
        return text

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids; bytes that are not valid UTF-8 become U+FFFD.

        special: whether the texts of control tokens are included.

        Raises InputError for an invalid id.
        """
        known = [self.checked_id(index) for index in ids]
        for index in known:
            if index >= self.vocab_size:
                raise InputError(f"id: out of range, got {index}, expected 0 to {self.vocab_size - 1}")
        return self.decode_known(known, special=special)

    def decode_known(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids that are already checked; ids without a token add nothing."""
        return _guarded(lambda: self._rust.decode(ids, skip_special_tokens=not special), InputError, self._where)

    def is_text(self, index: int) -> bool:
        """Return whether an id belongs to a token that `decode` shows."""
        return index < self.vocab_size and index not in self._hidden

    def checked_id(self, index: object) -> int:
        """Return an id as an int; it need not have a token. Raises InputError for an invalid id."""
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise InputError(f"id: not an integer, got {index!r}, expected 0 to {self.vocab_size - 1}")
        if not 0 <= index <= MAX_ID:
            raise InputError(f"id: out of range, got {index}, expected 0 to {self.vocab_size - 1}")
        return int(index)

    def to_json(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json, for other programs."""
        return self._rust.to_str()

    @cached_property
    def bytes_of(self) -> dict[int, bytes]:
        """The byte of each byte token, if decoding joins bytes to characters; else empty."""
        found = {self._rust.token_to_id(f"<0x{byte:02X}>"): bytes([byte]) for byte in range(256)}
        letter = self._rust.token_to_id("<0x41>")
        joins = letter is not None and self.decode_known([letter]) == "A"
        return {index: byte for index, byte in found.items() if index is not None} if joins else {}

    @cached_property
    def _plain_broken(self) -> tokenizers.Tokenizer:
        sibling = self._sibling(breaks=True)
        sibling.encode_special_tokens = True
        return sibling

    def _sibling(self, *, breaks: bool) -> tokenizers.Tokenizer:
        """Return a copy over the same model with its own setting for control tokens, so that threads do not interfere.

        breaks: whether BREAK is a token of the copy.
        """
        rust = self._rust
        sibling = type(rust)(rust.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            if getattr(rust, part) is not None:
                setattr(sibling, part, getattr(rust, part))
        added = rust.get_added_tokens_decoder()
        sibling.add_tokens([token for _, token in sorted(added.items())])
        assert all(sibling.token_to_id(token.content) == index for index, token in added.items())
        if breaks:
            sibling.add_tokens([_package().AddedToken(BREAK, normalized=False)])
        return sibling

    def _ids(self, rust: tokenizers.Tokenizer, text: str) -> list[int]:
        # Unlike `encode`, `encode_batch_fast` lets other threads of Python run meanwhile.
        (encoding,) = _guarded(
            lambda: rust.encode_batch_fast([text], add_special_tokens=False), InputError, self._where
        )
        ids: list[int] = encoding.ids
        if BREAK in text and (mark := rust.token_to_id(BREAK)) is not None and rust is not self._plain:
            return [index for index in ids if index != mark]
        return ids

    def around_pair(self) -> tuple[list[list[int]], list[int]]:
        """Return the ids that the file adds before, between and after two texts, and the types of the tokens of the
        five parts of a pair. Raises LoadError for a file that changes the order of the texts.
        """
        pair = _guarded(lambda: self._rust.encode("a", "a"), LoadError, self._where)
        parts: list[list[int]] = [[], [], [], [], []]
        types, at = [0] * 5, 0
        for owner, index, kind in zip(pair.sequence_ids, pair.ids, pair.type_ids, strict=True):
            expected = (0, 2, 4) if owner is None else (1 + 2 * owner,)
            at = next((part for part in expected if part >= at), len(parts))
            if at == len(parts):
                raise LoadError(f"{self._where}: post_processor: two texts in order are expected, got {pair.tokens}")
            parts[at].append(index)
            types[at] = kind
        return parts[::2], types

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that the file adds before and after a text."""
        rust = self._rust
        bare: list[int] = _guarded(lambda: rust.encode("a", add_special_tokens=False).ids, LoadError, self._where)
        whole: list[int] = _guarded(lambda: rust.encode("a").ids, LoadError, self._where)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        raise LoadError(f"{self._where}: post_processor changes the ids of a text, got {whole}, expected {bare} in it")

    def _name_ends(self, folder: Folder) -> None:
        """Set bos, eos and pad. `add_bos_token` of older files is ignored: post_processor decides."""
        named = special_texts(folder)
        ids = {name: self._rust.token_to_id(text) for name, text in named.items()}
        ends = end_ids(folder, self.vocab_size)
        self.bos = ids.get("bos_token", min(ends.bos, default=None))
        self.pad = ids.get("pad_token", min(ends.pad, default=None))
        own = ids.get("eos_token")
        self.eos = ends.eos if own is None else ends.eos | {own}


def has_tokenizer(folder: Folder) -> bool:
    """Return whether a folder has a tokenizer.json, or older files that are read. Raises LoadError, LimitError."""
    return folder.has("tokenizer.json") or _has_pieces(folder) or has_older_tokenizer(folder)


def _has_pieces(folder: Folder) -> bool:
    """Return whether a folder has a tokenizer.model of SentencePiece. Raises LimitError."""
    content = folder.content(_PIECES, MAX_FILE_BYTES) if folder.has(_PIECES) else None
    return content is not None and is_sentence_piece(content)


def _pieces(folder: Folder) -> dict[str, Any]:
    """Return the tokenizer.model of a folder as a tokenizer.json; the settings specify which tokens it adds."""
    content = folder.content(_PIECES, MAX_FILE_BYTES)
    assert content is not None
    settings = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
    adds = {name: settings.get(f"add_{name}_token", name == "bos") is True for name in ("bos", "eos")}
    return sentence_piece_document(content, folder.where(_PIECES), begins=adds["bos"], ends=adds["eos"])


class Ends(NamedTuple):
    """The ids of control tokens named in a folder's configuration."""

    bos: frozenset[int]
    eos: frozenset[int]
    pad: frozenset[int]


def end_ids(folder: Folder, vocab_size: int) -> Ends:
    """Return the ids that begin, end and pad texts, from generation_config.json, else from config.json.

    vocab_size: ids are below it, or below config.json's own vocab_size. Ids that the model does not have, for example
    after its vocabulary was cut, are left out: for bos and eos with an IngotWarning, for pad without, because -1 is
    common.

    Raises LoadError for a value that is not an integer.
    """
    found: dict[str, frozenset[int]] = {"bos": frozenset(), "eos": frozenset(), "pad": frozenset()}
    model = folder.json("config.json", MAX_CONFIG_BYTES) or {}
    text_model = model.get("text_config")
    columns = [c.get("vocab_size") for c in (model, text_model) if isinstance(c, dict)]
    limit = max([vocab_size, *(n for n in columns if isinstance(n, int))])
    generation = folder.json("generation_config.json", MAX_CONFIG_BYTES)
    for file, config in (("generation_config.json", generation), ("config.json", model), ("config.json", text_model)):
        for name in found:
            value = config.get(f"{name}_token_id") if isinstance(config, dict) else None
            if value is None or found[name]:
                continue
            listed = value if isinstance(value, list) else [value]
            where = f"{folder.where(file)}: {name}_token_id"
            for no_id in (v for v in listed if isinstance(v, bool) or not isinstance(v, int)):
                raise LoadError(f"{where}: no id, got {no_id!r}, expected 0 to {limit - 1}")
            found[name] = frozenset(v for v in listed if 0 <= v < limit)
            left_out = sorted({*listed} - found[name])
            if left_out and name != "pad":
                what = f"{where}: left out, got {left_out[0]}, expected 0 to {limit - 1}"
                warnings.warn(what, IngotWarning, stacklevel=1)  # one location for all callers: printed once
    return Ends(**found)


def _cut(spelled: re.Match[str]) -> str:
    text = spelled[0]
    if len(text) == 1:
        raise InputError(f"text: contains the control token {text!r}, whose one character cannot be encoded as text")
    return f"{text[0]}{BREAK}{text[1:]}"


@functools.lru_cache(maxsize=8)
def _spelled(control: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)")


def _check_ids(rust: tokenizers.Tokenizer, document: dict[str, Any], where: str) -> None:
    """Raise UnsupportedError if the package numbers added tokens differently, as it does for ids after a gap."""
    for token in document.get("added_tokens") or []:
        text, index, assigned = token["content"], token["id"], rust.token_to_id(token["content"])
        if assigned != index:
            raise UnsupportedError(f"{where}: added token {shown(text)}: id {index} after a gap, expected {assigned}")


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"text: got a {type(text).__name__}, expected a str")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise LimitError(f"text: too long, got {len(text)} characters, expected at most {MAX_TEXT_CHARACTERS}")
    half = None if text.isascii() else re.search("[\ud800-\udfff]", text)
    if half:
        raise InputError(f"text: unpaired surrogate at character {half.start()}, got {half[0]!r}, expected valid text")


def _package() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise ResourceError("tokenizers is not installed; run: pip install 'ingot-compiler[llm]'") from error
    return tokenizers


def _guarded(call: Callable[[], _T], error: type[IngotError], where: str) -> _T:
    """Return the result of `call`. The package raises bare Exception for invalid input, BaseException for panics."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as refusal:
        raise error(f"{where}: {refusal}") from refusal

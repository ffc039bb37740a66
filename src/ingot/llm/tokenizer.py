"""Text to ids and back, as a model folder's `tokenizer.json` says.

The file is checked before the `tokenizers` package sees it (`tokenizer_file.py`), because it may come from anywhere.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ingot.errors import IngotError, IngotWarning, InputError, LimitError, LoadError, ResourceError, UnsupportedError
from ingot.llm.tokenizer_file import MAX_ID, checked_tokenizer, highest_id, unknown_id
from ingot.load.hf.config import MAX_CONFIG_BYTES
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import parse_object, shown
from ingot.support.columns import counted

if TYPE_CHECKING:
    import tokenizers

MAX_FILE_BYTES = 64 << 20  # of tokenizer.json
MAX_SETTINGS_BYTES = 16 << 20  # of a file of settings beside it
MAX_TEXT_CHARACTERS = 8 << 20  # of a text to encode

# A character for use inside a process only: Unicode gives it no meaning. Between two characters of a control token
# that a message spells, it keeps them text; no id comes of it.
BREAK = "\ufdd0"

_T = TypeVar("_T")


class Tokenizer:
    """The tokens of a model folder; may be used by many threads at once.

    Every text that `str` holds becomes ids, except one with half a surrogate pair. Decoding gives the text back where
    the model's normaliser keeps it: byte-level tokenizers keep every text, others may change spaces and letters' forms.

    vocab_size: one more than the largest id.
    bos, pad: ids, None when the folder names none.
    eos: the ids that end a text: those of generation_config.json, else of config.json, else of tokenizer_config.json.
    prefix, suffix: what the model expects before and after a text: `[bos]`, BERT's [CLS] and [SEP], often nothing.
    special: the ids of control tokens, by their texts; control: those that no text of a user may become.
    added: the texts of all tokens that are found before a text is cut into words.
    """

    def __init__(self, rust: tokenizers.Tokenizer, vocab_size: int, unknown: int | None, where: str) -> None:
        self._where = where
        self._rust = rust
        added = rust.get_added_tokens_decoder()
        self.vocab_size = vocab_size
        self.special = {token.content: index for index, token in added.items() if token.special}
        self.added = frozenset(token.content for token in added.values())
        self._hidden = frozenset(self.special.values())
        self.control = self._hidden - {unknown}  # text of a user may be unknown
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
        """The tokenizer of a folder.

        Raises LoadError when the folder has no tokenizer.json or its files contradict themselves, LimitError when they
        are too large, UnsupportedError for parts whose time is not bounded, ResourceError when `tokenizers` is missing.
        """
        folder = folder if isinstance(folder, Folder) else Folder(folder)
        where = folder.where("tokenizer.json")
        content = folder.text("tokenizer.json", MAX_FILE_BYTES)
        if content is None:
            raise LoadError(
                f"{folder.path}: no {folder.place('tokenizer.json')}, so no text can be read or written;"
                " generate_tokens takes and gives ids"
            )
        document = parse_object(content.encode(), where)
        text = checked_tokenizer(document, content, where)
        rust = _package().Tokenizer
        made = _guarded(lambda: rust.from_str(text), LoadError, where)
        _check_ids(made, document, where)
        tokenizer = cls(made, 1 + highest_id(document), unknown_id(document["model"]), where)
        tokenizer._name_ends(folder)
        return tokenizer

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text, without `prefix` and `suffix`.

        special: whether the texts of control tokens become control tokens. Only for text that a chat template made;
            from a user they are text like any other.

        Raises InputError for text that UTF-8 cannot hold, LimitError for more than 2^23 characters.
        """
        _check_text(text)
        if special:
            return self._ids(self._marked, text)
        ids = self._ids(self._plain, text)
        if self.control.isdisjoint(ids):
            return ids
        # Some models reach a control token's id by way of its spelling, as a piece like any other.
        ids = self._ids(self._plain_broken, self.broken(text, frozenset(self.special)))
        if not self.control.isdisjoint(ids):
            raise InputError(f"{self._where}: the text becomes a control token, whatever it is cut into")
        return ids

    def broken(self, text: str, control: frozenset[str]) -> str:
        """A text with BREAK in each control token that it spells; its own BREAKs are gone.

        Raises InputError where a control token is one character, which nothing can keep apart.
        """
        spelled = _spelled(control)
        text = text.replace(BREAK, "")
        while (cut := spelled.sub(_cut, text)) != text:
            text = cut
        return text

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; bytes that are no characters become U+FFFD.

        special: whether the texts of control tokens appear.

        Raises InputError for what is no id of this tokenizer.
        """
        known = [self.checked_id(index) for index in ids]
        for index in known:
            if index >= self.vocab_size:
                raise InputError(f"id: out of range, got {index}, expected 0 to {self.vocab_size - 1}")
        return self.decode_known(known, special=special)

    def decode_known(self, ids: Sequence[int], *, special: bool = False) -> str:
        """As `decode`, of ids that were checked; those without a token add nothing."""
        return _guarded(lambda: self._rust.decode(ids, skip_special_tokens=not special), InputError, self._where)

    def is_text(self, index: int) -> bool:
        """Whether an id is one of a token that `decode` shows."""
        return index < self.vocab_size and index not in self._hidden

    def checked_id(self, index: object) -> int:
        """An id as an int, which may have no token. Raises InputError when it is no id."""
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise InputError(f"id: not an integer, got {index!r}, expected 0 to {self.vocab_size - 1}")
        if not 0 <= index <= MAX_ID:
            raise InputError(f"id: out of range, got {index}, expected 0 to {self.vocab_size - 1}")
        return int(index)

    def to_json(self) -> str:
        """The tokenizer as a tokenizer.json has it, for other programs that read one."""
        return self._rust.to_str()

    @cached_property
    def bytes_of(self) -> dict[int, bytes]:
        """The bytes that single tokens stand for, where decoding joins them to characters."""
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
        """Another tokenizer over the same model, whose own way of seeing control tokens no thread changes.

        breaks: whether BREAK is a token of it.
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
        ids: list[int] = _guarded(lambda: rust.encode(text, add_special_tokens=False).ids, InputError, self._where)
        if BREAK in text and (mark := rust.token_to_id(BREAK)) is not None and rust is not self._plain:
            return [index for index in ids if index != mark]
        return ids

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the file puts before and after a text."""
        rust = self._rust
        bare: list[int] = _guarded(lambda: rust.encode("a", add_special_tokens=False).ids, LoadError, self._where)
        whole: list[int] = _guarded(lambda: rust.encode("a").ids, LoadError, self._where)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
        raise LoadError(f"{self._where}: post_processor changes the ids of a text, got {whole}, expected {bare} in it")

    def _name_ends(self, folder: Folder) -> None:
        """bos, eos and pad. `add_bos_token` of older files says nothing: post_processor does."""
        config = folder.json("tokenizer_config.json", MAX_SETTINGS_BYTES) or {}
        where = folder.where("tokenizer_config.json")
        named = {key: token_text(config, key, where) for key in ("bos_token", "eos_token", "pad_token")}
        ids = {key: self._rust.token_to_id(text) for key, text in named.items() if text is not None}
        ends = end_ids(folder, self.vocab_size)
        self.bos = ids.get("bos_token", min(ends.bos, default=None))
        self.pad = ids.get("pad_token", min(ends.pad, default=None))
        self.eos = ends.eos or frozenset(index for index in [ids.get("eos_token")] if index is not None)


class Ends(NamedTuple):
    """Ids of control tokens that a folder's configuration names."""

    bos: frozenset[int]
    eos: frozenset[int]
    pad: frozenset[int]


def end_ids(folder: Folder, vocab_size: int) -> Ends:
    """Ids that begin, end and fill texts: generation_config.json's, else those of config.json.

    vocab_size: ids are below it, or below config.json's own vocab_size. Ids that the model does not have, as where its
    vocabulary was cut, are left out: of bos and eos with an IngotWarning, of pad without, because -1 is common.

    Raises LoadError for what is no id of any model.
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
                warnings.warn(what, IngotWarning, stacklevel=1)  # the same place for all who ask: said once
    return Ends(**found)


def token_text(config: dict[str, Any], key: str, where: str) -> str | None:
    """The text of a token that a configuration names, in either of its forms. Raises LoadError for another one."""
    value = config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise LoadError(f"{where}: {key}: not a token, got {shown(value)}, expected a text or an object with content")


def _cut(spelled: re.Match[str]) -> str:
    text = spelled[0]
    if len(text) == 1:
        raise InputError(f"text: has the control token {text!r}, which is one character and cannot be kept as text")
    return f"{text[0]}{BREAK}{text[1:]}"


@functools.lru_cache(maxsize=8)
def _spelled(control: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)")


def _check_ids(rust: tokenizers.Tokenizer, document: dict[str, Any], where: str) -> None:
    """The package numbers added tokens itself, so ids with gaps between them would become others."""
    for token in document.get("added_tokens") or []:
        text, index, made = token["content"], token["id"], rust.token_to_id(token["content"])
        if made != index:
            raise UnsupportedError(f"{where}: added token {shown(text)}: id {index} after a gap, expected {made}")


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"text: got a {type(text).__name__}, expected a str")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise LimitError(f"text: too long, got {len(text)} characters, expected at most {MAX_TEXT_CHARACTERS}")
    half = None if text.isascii() else re.search("[\ud800-\udfff]", text)
    if half:
        raise InputError(f"text: half a surrogate pair at character {half.start()}, got {half[0]!r}")


def _package() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise ResourceError("tokenizers is not installed; run: pip install 'ingot-compiler[llm]'") from error
    return tokenizers


def _guarded(call: Callable[[], _T], error: type[IngotError], where: str) -> _T:
    """What `call` gives. The package raises bare Exception for what it refuses, and its panics are BaseException."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as refusal:
        raise error(f"{where}: {refusal}") from refusal

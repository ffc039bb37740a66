"""Special tokens that files other than tokenizer.json name, merged as transformers does.

Newer folders name them in tokenizer_config.json; older ones in special_tokens_map.json and added_tokens.json, which are
read if tokenizer_config.json has no `added_tokens_decoder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ingot.errors import LoadError
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import shown

MAX_SETTINGS_BYTES = 16 << 20  # of tokenizer_config.json
SETTINGS, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_MOST_DIGITS = 10  # of an id
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def special_texts(folder: Folder) -> dict[str, str]:
    """Return the texts of special tokens by the names that chat templates use (`bos_token`, `image_token`).

    Raises LoadError for a name that is given no token, LimitError for a file that is too large.
    """
    return {name: text for name, (text, _) in _named(folder).items()}


def with_added(document: dict[str, Any], folder: Folder) -> dict[str, Any]:
    """Return a tokenizer.json with the added tokens that only the other files name; itself if there are none.

    A text that the vocabulary has keeps its id there. A token is left out if the file gives its id to another text, or
    if it has no id: the model has no row for it. Raises as `special_texts`.
    """
    ids, added = _ids(document), document.get("added_tokens") or []
    if ids is None or not isinstance(added, list) or not all(map(_is_added, added)):
        return document  # refused when it is checked
    known = {token["content"] for token in added}
    used = {*ids.values(), *(token["id"] for token in added)}
    new: list[dict[str, Any]] = []
    for text, given, flags in _wanted(folder):
        index = ids.get(text, given)
        if text in known or index is None or (text not in ids and index in used):
            continue
        known.add(text)
        used.add(index)
        new.append({"id": index, "content": text, **dict.fromkeys(_FLAGS, False), **flags})
    return document | {"added_tokens": [*added, *new]} if new else document


def token_text(config: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return the text of a configured token: a string, or an object with content. Raises LoadError otherwise."""
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if text is None or isinstance(text, str):
        return text
    raise LoadError(f"{where}: {key}: not a token, got {shown(value)}, expected a text or an object with content")


def _named(folder: Folder) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the text and the flags of special tokens by name."""
    config = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for file in (SETTINGS, _MAP) if config.get("added_tokens_decoder") is None else (SETTINGS,):
        tokens = config if file == SETTINGS else folder.json(file, MAX_SETTINGS_BYTES) or {}
        where, extra = folder.where(file), tokens.get("extra_special_tokens")
        own = {name: value for name, value in tokens.items() if name.endswith("_token") and name not in _NAMES}
        own |= extra if isinstance(extra, dict) else {}
        own = {name: value for name, value in own.items() if isinstance(value, str | dict)}
        for name in (*_NAMES, *own):
            text = token_text(tokens | own, name, where)
            if text is not None:
                found[name] = text, _flags((tokens | own)[name])
    return found


def _wanted(folder: Folder) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
    """Yield the text of each token that is matched before words are split, its id if one is given, and its flags."""
    config = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
    named = _named(folder)
    special = {text for text, _ in named.values()}
    decoder = config.get("added_tokens_decoder")
    if decoder is not None:
        where = f"{folder.where(SETTINGS)}: added_tokens_decoder"
        for index, token in _entries(decoder, where):
            text = token_text({index: token}, index, where)
            if not index.isdecimal() or len(index) > _MOST_DIGITS or not text:
                raise LoadError(f"{where}: got {shown({index: token})}, expected ids with the contents of tokens")
            yield text, int(index), _flags(token) | {"special": text in special or bool(token.get("special"))}
    else:
        where = folder.where(_ADDED)
        for text, number in _entries(folder.json(_ADDED, MAX_SETTINGS_BYTES) or {}, where):
            if type(number) is not int or number < 0 or not text:
                raise LoadError(f"{where}: got {shown({text: number})}, expected texts of tokens with ids")
            yield text, number, {"special": text in special, "normalized": text not in special}
    for text, flags in named.values():
        yield text, None, flags | {"special": True}
    for value in (config.get(name) for name in _LISTS):
        for token in value if isinstance(value, list) else ():
            text = token_text({"token": token}, "token", folder.where(SETTINGS))
            if text:
                yield text, None, _flags(token) | {"special": True}


def _entries(value: Any, where: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise LoadError(f"{where}: got {shown(value)}, expected an object of tokens")
    return list(value.items())


def _flags(token: Any) -> dict[str, Any]:
    return {name: token.get(name) is True for name in _FLAGS} if isinstance(token, dict) else {}


def _is_added(token: Any) -> bool:
    return isinstance(token, dict) and type(token.get("id")) is int and isinstance(token.get("content"), str)


def _ids(document: dict[str, Any]) -> dict[str, int] | None:
    """Return the ids of a vocabulary; None if it has another form than those that are read."""
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        return vocabulary if all(type(index) is int for index in vocabulary.values()) else None
    if not isinstance(vocabulary, list) or not all(isinstance(each, list) and each for each in vocabulary):
        return None
    return {each[0]: index for index, each in enumerate(vocabulary) if isinstance(each[0], str)}

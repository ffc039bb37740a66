"""Derive the format of a chat template from rendered samples, for C programs, which have no Jinja."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ingot.emit.language.program import ChatFormat
from ingot.errors import InputError, UnsupportedError
from ingot.llm.chat import ChatTemplate, has_template
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder

_ROLES = ("user", "assistant")
_PADDED = " \n{}\t \n"
_THOUGHT = "a thought</think>\n\n{}"
_TURNS = 4

_Write = Callable[[str], str]


def chat_format(template: ChatTemplate, where: str) -> ChatFormat:
    """Return the format of a template. A date in it is the date of this call.

    Raises UnsupportedError if no format reproduces the template, because it depends on the text or index of a message.
    """
    one = _rendered(template, ["user 1"])
    two = _rendered(template, ["user 1", "model 1", "user 2"])
    first, last = _split(one, ["user 1"], where)
    begin, to_model, to_user, end = _split(two, ["user 1", "model 1", "user 2"], where)
    found = ChatFormat(first, None, None, to_model, to_user, last, (), 0)
    if (begin, end) != (first, last):
        raise _refusal(where, two)
    if (with_system := _with_system(template)) is not None:
        before, after, _ = _split(with_system, ["system 0", "user 1"], where)
        found = replace(found, before_system=before, after_system=after)
        if not _keeps_system(template, found):
            found = replace(found, before_system=None, after_system=None)
    found = replace(found, trims={role for role in _ROLES if _loses_space(template, found, role, where)})
    if found.before_system is not None and not _fits(template, found, ("system", "user"), _PADDED):
        found = replace(found, trims={*found.trims, "system"})
        if not _fits(template, found, ("system", "user"), _PADDED):
            found = replace(found, before_system=None, after_system=None)
    if not _fits(template, found, ("assistant",), ""):
        raise UnsupportedError(f"{where}: chat template: leaves out an empty answer, got none, expected the message")
    for thoughts in range(3):
        if _fits(template, replace(found, thoughts=thoughts), ("assistant",), _THOUGHT):
            return replace(found, thoughts=thoughts)
    raise UnsupportedError(f"{where}: chat template: changes thoughts, got a part, expected all or nothing")


def chat_of(source: Folder, tokenizer: Tokenizer) -> tuple[ChatFormat | None, Collection[str]]:
    """Return the chat format of a folder, and the tokens that only the template writes; None and () without a template.

    Raises the errors of `chat_format`.
    """
    if not has_template(source):
        return None, ()
    template = ChatTemplate.read(source)
    try:
        return chat_format(template, source.path), known_tokens(template, tokenizer)
    finally:
        template.close()


def known_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> Collection[str]:
    """Return the added tokens that the template writes."""
    source = template.sources["default"]
    return [token for token in tokenizer.added if token in source and not token.isspace()]


def written(chat: ChatFormat, system: str | None, texts: list[str]) -> str:
    """Return a conversation in a format. texts: the messages of user and model, alternating; the last is the user's."""
    text = chat.first
    if system is not None:
        assert chat.before_system is not None and chat.after_system is not None
        text = chat.before_system + _changed(chat, "system", system) + chat.after_system
    for index, words in enumerate(texts):
        between = chat.to_user if index % 2 else chat.to_model
        text += _changed(chat, _ROLES[index % 2], words) + (chat.last if index == len(texts) - 1 else between)
    return text


def _changed(chat: ChatFormat, role: str, words: str) -> str:
    if role == "assistant" and chat.thoughts and "</think>" in words:
        words = words.split("</think>")[-1]
        words = words.lstrip("\n") if chat.thoughts > 1 else words
    return words.strip() if role in chat.trims else words


def _conversation(count: int) -> list[str]:
    return [f"{'model' if index % 2 else 'user'} {index // 2 + 1}" for index in range(2 * count - 1)]


def _rendered(template: ChatTemplate, texts: list[str], system: str | None = None) -> str:
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": _ROLES[index % 2], "content": words} for index, words in enumerate(texts)]
    return template.render(messages)


def _with_system(template: ChatTemplate) -> str | None:
    """Return a rendered conversation with a system message; None if the template rejects it."""
    try:
        return _rendered(template, ["user 1"], "system 0")
    except InputError:
        return None


def _keeps_system(template: ChatTemplate, found: ChatFormat) -> bool:
    conversations = map(_conversation, range(1, _TURNS))
    return all(_rendered(template, texts, "system 0") == written(found, "system 0", texts) for texts in conversations)


def _loses_space(template: ChatTemplate, found: ChatFormat, role: str, where: str) -> bool:
    """Return whether a role's texts are trimmed. Raises UnsupportedError if that depends on their index."""
    if _fits(template, found, (role,), _PADDED):
        return False
    if _fits(template, replace(found, trims={role}), (role,), _PADDED):
        return True
    raise _refusal(where, _rendered(template, _conversation(_TURNS)))


def _fits(template: ChatTemplate, found: ChatFormat, roles: Collection[str], form: str) -> bool:
    """Return whether a format reproduces the template for conversations in which some roles' texts have a form."""
    system = form.format("system 0") if "system" in roles else None
    for count in range(1, _TURNS + 1):
        texts = [
            form.format(words) if _ROLES[index % 2] in roles else words
            for index, words in enumerate(_conversation(count))
        ]
        if _rendered(template, texts, system) != written(found, system, texts):
            return False
    return True


def _split(text: str, markers: list[str], where: str) -> list[str]:
    """Split a text at markers, which occur once each, in this order."""
    parts = []
    for marker in markers:
        before, found, text = text.partition(marker)
        if not found:
            raise _refusal(where, before)
        parts.append(before)
    return [*parts, text]


def _refusal(where: str, text: str) -> UnsupportedError:
    return UnsupportedError(
        f"{where}: chat template: not of one form for every message, got {text[:200]!r}, expected texts before, between"
        " and after the last message"
    )

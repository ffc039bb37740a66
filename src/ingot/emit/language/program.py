"""Emit the C programs of a language model: its facts, the build, and the files that all models share."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ingot.emit.interface import Interface
from ingot.emit.program import VECTOR
from ingot.emit.project import Project, filled, library_headers, library_sources, project_files
from ingot.emit.steps import float_text

_LIBRARY = ("normal", "tokenizer", "language")  # a source and a header each, named after the prefix
_CHAT = "chat"  # of the library, and of the program
_COMMAND = "command"  # shared by the programs
_PROGRAM = "generate"
# The fields of model_sampling, with neutral values.
_SAMPLING: dict[str, float | int] = {
    "temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "top_k": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The text format of a conversation.

    It is `first`, or `before_system`, the system message and `after_system`; then the messages of user and model in
    turns, with `to_model` and `to_user` between them; then `last`. trims: roles whose texts are stripped of white
    space. thoughts: how the model's text up to the last `</think>` is treated: 0 kept, 1 removed, 2 removed with the
    line breaks after it. before_system, after_system: None if the template has no system message.
    """

    first: str
    before_system: str | None
    after_system: str | None
    to_model: str
    to_user: str
    last: str
    trims: Collection[str]
    thoughts: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """A test vector of a language model: a prompt, and its greedy continuation."""

    prompt: str
    tokens: Sequence[int]


def program_files(
    face: Interface,
    ends: Collection[int],
    sampling: Mapping[str, float | int],
    chat: ChatFormat | None,
    vector: Continuation | None = None,
) -> dict[str, str]:
    """Return the files by name.

    ends: tokens that end an answer. sampling: defaults of the model's folder. chat: None for a model without a chat
    template, which gets no chat program. vector: the test vector of `make check`.
    """
    library, programs = _parts(bool(chat))
    names = [f"model_{part}.{ending}" for part in (*library, _COMMAND) for ending in "hc"]
    named = {prefixed(name, face.prefix): name for name in names}
    named |= {face.file(f"{program}.c"): f"{program}.c" for program in programs}
    folder = importlib.resources.files("ingot.emit.language")
    files = {given: _own((folder / name).read_text("utf-8"), face) for given, name in named.items()}
    files[f"{face.prefix}_facts.h"] = _facts(face, ends, {**_SAMPLING, **sampling}, chat)
    files |= project_files(_project(face, bool(chat), vector is not None))
    if vector:
        files[face.file(f"{VECTOR}/prompt.txt")] = vector.prompt
        files[face.file(f"{VECTOR}/tokens.txt")] = "".join(f"{token}\n" for token in vector.tokens)
    return files


def _parts(has_chat: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts of the library besides the model, and the programs."""
    return ((*_LIBRARY, _CHAT), (_PROGRAM, _CHAT)) if has_chat else (_LIBRARY, (_PROGRAM,))


def prefixed(text: str, prefix: str) -> str:
    """Replace `model` at the start of names with a prefix."""
    text = re.sub(r"\bmodel(?=_|\.h)", prefix, text)
    return re.sub(r"\bMODEL(?=_)", prefix.upper(), text)


def _own(text: str, face: Interface) -> str:
    """Insert the names of a model and of its files into a text."""
    return re.sub(r"\b(weights|tokenizer)\.bin\b", lambda name: face.file(name[0]), prefixed(text, face.prefix))


def _facts(face: Interface, ends: Collection[int], sampling: Mapping[str, float | int], chat: ChatFormat | None) -> str:
    """Return model_facts.h: facts of the model folder besides its weights."""
    fields = [f".{name} = {_number(value)}" for name, value in sampling.items()]
    return filled("facts.h", face.prefix, sampling=fields, ends=sorted(ends) or [-1], chat=_chat_facts(chat))


def _chat_facts(chat: ChatFormat | None) -> dict[str, str | int]:
    """Return the values of the macros of a conversation; empty without a chat template."""
    if chat is None:
        return {}
    return {
        "FIRST": _text(chat.first),
        "BEFORE_SYSTEM": _text(chat.before_system),
        "AFTER_SYSTEM": _text(chat.after_system),
        "TO_MODEL": _text(chat.to_model),
        "TO_USER": _text(chat.to_user),
        "LAST": _text(chat.last),
        "TRIMS_SYSTEM": int("system" in chat.trims),
        "TRIMS_USER": int("user" in chat.trims),
        "TRIMS_MODEL": int("assistant" in chat.trims),
        "DROPS_THOUGHTS": int(chat.thoughts),
    }


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else float_text(value)


def _text(text: str | None) -> str:
    """Return a C string; NULL for none."""
    if text is None:
        return "NULL"
    plain = set(map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~")) | {c for c in range(128) if chr(c).isalnum()}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _project(face: Interface, has_chat: bool, has_vector: bool) -> Project:
    """Return the build of the library and the programs."""
    library, programs = _parts(has_chat)
    own = [f"{face.prefix}_{part}" for part in library]
    headers = [*library_headers(face), *(f"{each}.h" for each in own)]
    inner = [f"{face.prefix}_facts.h", f"{face.prefix}_{_COMMAND}.h"]
    check = f"--folder {{folder}} --check {{folder}}/{face.file(VECTOR)}" if has_vector else ""
    return Project(
        face,
        [*library_sources(face), *(f"{each}.c" for each in own)],
        [*headers, *inner],
        headers,
        {face.file(name): [face.file(f"{name}.c"), f"{face.prefix}_{_COMMAND}.c"] for name in programs},
        [face.file("weights.bin"), face.file("tokenizer.bin")],
        check,
    )

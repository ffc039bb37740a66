"""Emit the C programs of a language model: its facts, the build, and the files that all models share."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ingot.emit.interface import Interface, wrapped
from ingot.emit.program import VECTOR
from ingot.emit.project import Project, library_headers, library_sources, project_files
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
    alternation, with `to_model` and `to_user` between them; then `last`. trims: roles whose texts are stripped of white
    space. thoughts: how the model's text up to the last `</think>` is treated: 0 unchanged, 1 removed, 2 removed with
    the line breaks after it. before_system, after_system: None if the template has no system message.
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
    files[f"{face.prefix}_facts.h"] = prefixed(_facts(ends, {**_SAMPLING, **sampling}, chat), face.prefix)
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


def _facts(ends: Collection[int], sampling: Mapping[str, float | int], chat: ChatFormat | None) -> str:
    fields = [f".{name} = {_number(value)}" for name, value in sampling.items()]
    numbers = wrapped(fields, ", ", "  ").replace("\n", " \\\n")
    text = f"""\
/* model_facts.h: emitted by Ingot: facts of the model folder besides its weights. */
#define MODEL_DEFAULT_SAMPLING {{ \\
{numbers} \\
}}

/* Tokens that end an answer. */
#define MODEL_END_TOKENS {{{", ".join(map(str, sorted(ends) or [-1]))}}}
"""
    return text + (_chat_facts(chat) if chat else "")


def _chat_facts(chat: ChatFormat) -> str:
    rows = {
        "FIRST": chat.first,
        "BEFORE_SYSTEM": chat.before_system,
        "AFTER_SYSTEM": chat.after_system,
        "TO_MODEL": chat.to_model,
        "TO_USER": chat.to_user,
        "LAST": chat.last,
    }
    flags = {
        "TRIMS_SYSTEM": "system" in chat.trims,
        "TRIMS_USER": "user" in chat.trims,
        "TRIMS_MODEL": "assistant" in chat.trims,
        "DROPS_THOUGHTS": chat.thoughts,
    }
    texts = "".join(f"#define MODEL_CHAT_{name} {_text(text)}\n" for name, text in rows.items())
    return f"""
/* A conversation: FIRST, or BEFORE_SYSTEM, the system message and AFTER_SYSTEM, if it takes one; then the messages,
 * with TO_MODEL and TO_USER in between; LAST after the last message of the user. */
{texts}{"".join(f"#define MODEL_CHAT_{name} {int(value)}" + chr(10) for name, value in flags.items())}"""


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

"""The program around a language model in C: its facts, its Makefile, and the files that are the same for all."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ingot.emit.interface import Interface, wrapped
from ingot.emit.steps import float_text

_SOURCES = ("normal.h", "normal.c", "tokenizer.h", "tokenizer.c", "language.h", "language.c", "generate.c")
_CHAT = "chat.c"
# The fields of model_sampling, with the values that choose nothing.
_SAMPLING: dict[str, float | int] = {
    "temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "top_k": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A conversation as text: `first`, or `before_system`, the system message and `after_system`; then what the user
    and the model said in turns, `to_model` and `to_user` between them; `last` behind what the user said last.

    trims: roles whose texts lose white space at both ends. thoughts: of what the model said up to the last `</think>`:
    1 where it goes, 2 where line breaks behind it go too, 0 where it stays. before_system, after_system: None where the
    template takes no system message.
    """

    first: str
    before_system: str | None
    after_system: str | None
    to_model: str
    to_user: str
    last: str
    trims: Collection[str]
    thoughts: int


def program_files(
    face: Interface, ends: Collection[int], sampling: Mapping[str, float | int], chat: ChatFormat | None
) -> dict[str, str]:
    """Files by name. ends: tokens that end an answer. sampling: what the model's folder says of it. chat: None for a
    model without a chat template, which gets no program to chat with.
    """
    names = (*_SOURCES, _CHAT) if chat else _SOURCES
    folder = importlib.resources.files("ingot.emit.language")
    files = {name: prefixed((folder / name).read_text("utf-8"), face.prefix) for name in names}
    files["facts.h"] = _facts(ends, {**_SAMPLING, **sampling}, chat)
    files["Makefile"] = _makefile(face, bool(chat))
    files["CMakeLists.txt"] = _cmake_lists(face, bool(chat))
    return files


def prefixed(text: str, prefix: str) -> str:
    """The text with the names that begin with `model` beginning with a prefix."""
    text = re.sub(r"\bmodel(?=_|\.h)", prefix, text)
    return re.sub(r"\bMODEL(?=_)", prefix.upper(), text)


def _facts(ends: Collection[int], sampling: Mapping[str, float | int], chat: ChatFormat | None) -> str:
    fields = [f".{name} = {_number(value)}" for name, value in sampling.items()]
    numbers = wrapped(fields, ", ", "  ").replace("\n", " \\\n")
    text = f"""\
/* facts.h: emitted by Ingot: what the folder of the model says beside its weights. */
#define DEFAULT_SAMPLING {{ \\
{numbers} \\
}}

/* Tokens that end an answer. */
#define END_TOKENS {{{", ".join(map(str, sorted(ends) or [-1]))}}}
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
    texts = "".join(f"#define CHAT_{name} {_text(text)}\n" for name, text in rows.items())
    return f"""
/* A conversation: FIRST, or BEFORE_SYSTEM, the system message and AFTER_SYSTEM, if it takes one; then what is said,
 * with TO_MODEL and TO_USER in between; LAST behind what the user said last. */
{texts}{"".join(f"#define CHAT_{name} {int(value)}" + chr(10) for name, value in flags.items())}"""


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else float_text(value)


def _text(text: str | None) -> str:
    """A C string; NULL for none."""
    if text is None:
        return "NULL"
    plain = set(map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~")) | {c for c in range(128) if chr(c).isalnum()}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _makefile(face: Interface, has_chat: bool) -> str:
    name, programs = face.prefix, "generate chat" if has_chat else "generate"
    objects, header, threads, pool = f"{name}.o normal.o tokenizer.o language.o", f"{name}.h", "", ""
    if face.threads > 1:
        objects, header, threads = f"{objects} {name}_pool.o", f"{name}.h {name}_pool.h", " -pthread"
        pool = f"{name}_pool.o: {name}_pool.c {name}_pool.h\n"
    return f"""\
# `make` builds ./generate{" and ./chat" if has_chat else ""}; each explains itself with --help.
CFLAGS = -O2

all: {programs}

{programs}: %: %.o {objects}
	$(CC) $(LDFLAGS) -o $@ $< {objects} -lm{threads}

{name}.o: {name}.c {header}
{pool}normal.o: normal.c normal.h tokenizer.h
tokenizer.o: tokenizer.c tokenizer.h normal.h
language.o: language.c language.h facts.h tokenizer.h {name}.h {name}_check.h
generate.o{" chat.o" if has_chat else ""}: language.h facts.h tokenizer.h {name}.h

%.o: %.c
	$(CC) -std=gnu11 $(CFLAGS) -c $<

clean:
	rm -f {programs} *.o

.PHONY: all clean
"""


def _cmake_lists(face: Interface, has_chat: bool) -> str:
    name, programs = face.prefix, "generate chat" if has_chat else "generate"
    pool, libraries, threads = "", "m", ""
    if face.threads > 1:
        pool, libraries, threads = f" {name}_pool.c", "m Threads::Threads", "find_package(Threads REQUIRED)\n"
    return f"""\
# Builds the library {name}, to link with, and programs around it.
cmake_minimum_required(VERSION 3.16)
project({name} LANGUAGES C)
set(CMAKE_C_STANDARD 11)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
{threads}
add_library({name} {name}.c{pool})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({name} PUBLIC {libraries})

foreach(program {programs})
  add_executable(${{program}} ${{program}}.c language.c tokenizer.c normal.c)
  target_link_libraries(${{program}} PRIVATE {name})
endforeach()
"""

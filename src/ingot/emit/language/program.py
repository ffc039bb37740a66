"""The program around a language model in C: its facts, its Makefile, and the files that are the same for all."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ingot.emit.interface import Interface, wrapped
from ingot.emit.program import VECTOR
from ingot.emit.steps import float_text

_LIBRARY = ("normal", "tokenizer", "language")  # a source and a header each, behind the prefix
_CHAT = "chat"  # of the library, and of the program
_COMMAND = "command"  # what programs have alike
_PROGRAM = "generate"
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


@dataclass(frozen=True, slots=True)
class Continuation:
    """A test of a language model: a prompt, and the most probable tokens behind it."""

    prompt: str
    tokens: Sequence[int]


def program_files(
    face: Interface,
    ends: Collection[int],
    sampling: Mapping[str, float | int],
    chat: ChatFormat | None,
    vector: Continuation | None = None,
) -> dict[str, str]:
    """Files by name. ends: tokens that end an answer. sampling: what the model's folder says of it. chat: None for a
    model without a chat template, which gets no program to chat with. vector: what `make check` runs.
    """
    library, programs = _parts(bool(chat))
    names = [f"model_{part}.{ending}" for part in (*library, _COMMAND) for ending in "hc"]
    names += [f"{program}.c" for program in programs]
    folder = importlib.resources.files("ingot.emit.language")
    files = {prefixed(name, face.prefix): prefixed((folder / name).read_text("utf-8"), face.prefix) for name in names}
    files[f"{face.prefix}_facts.h"] = prefixed(_facts(ends, {**_SAMPLING, **sampling}, chat), face.prefix)
    files["Makefile"] = _makefile(face, bool(chat), vector is not None)
    files["CMakeLists.txt"] = _cmake_lists(face, bool(chat), vector is not None)
    if vector:
        files[f"{VECTOR}/prompt.txt"] = vector.prompt
        files[f"{VECTOR}/tokens.txt"] = "".join(f"{token}\n" for token in vector.tokens)
    return files


def _parts(has_chat: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the library has beside the model, and the programs."""
    return ((*_LIBRARY, _CHAT), (_PROGRAM, _CHAT)) if has_chat else (_LIBRARY, (_PROGRAM,))


def prefixed(text: str, prefix: str) -> str:
    """The text with the names that begin with `model` beginning with a prefix."""
    text = re.sub(r"\bmodel(?=_|\.h)", prefix, text)
    return re.sub(r"\bMODEL(?=_)", prefix.upper(), text)


def _facts(ends: Collection[int], sampling: Mapping[str, float | int], chat: ChatFormat | None) -> str:
    fields = [f".{name} = {_number(value)}" for name, value in sampling.items()]
    numbers = wrapped(fields, ", ", "  ").replace("\n", " \\\n")
    text = f"""\
/* model_facts.h: emitted by Ingot: what the folder of the model says beside its weights. */
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
/* A conversation: FIRST, or BEFORE_SYSTEM, the system message and AFTER_SYSTEM, if it takes one; then what is said,
 * with TO_MODEL and TO_USER in between; LAST behind what the user said last. */
{texts}{"".join(f"#define MODEL_CHAT_{name} {int(value)}" + chr(10) for name, value in flags.items())}"""


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else float_text(value)


def _text(text: str | None) -> str:
    """A C string; NULL for none."""
    if text is None:
        return "NULL"
    plain = set(map(ord, " !#$%&'()*+,-./:;<=>@[]^_`{|}~")) | {c for c in range(128) if chr(c).isalnum()}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _makefile(face: Interface, has_chat: bool, has_vector: bool) -> str:
    name, threads, kept = face.prefix, "", ""
    if face.threads > 1:
        threads, kept = " -pthread", " -Wl,-z,nodelete"
    sources = _sources(face, has_chat)
    headers = [f"{name}_check.h", f"{name}_facts.h", f"{name}_{_COMMAND}.h"]
    headers += [source.replace(".c", ".h") for source in sources]
    programs = " ".join(_parts(has_chat)[1])
    check = f"\ncheck: {_PROGRAM}\n\t./{_PROGRAM} --check {VECTOR}\n" if has_vector else ""
    built = " and ".join(f"./{program}" for program in _parts(has_chat)[1])
    checked = f"`make check` compares tokens with those in {VECTOR}/, and " if has_vector else ""
    return f"""\
# `make` builds {built}; each explains itself with --help.
# {checked}`make lib{name}.so` builds a library.
CFLAGS = -O2

SOURCES = {_lines(sources)}
HEADERS = {_lines(headers)}

all: {programs}

{programs}: %: %.o {name}_{_COMMAND}.o $(SOURCES:.c=.o)
	$(CC) $(LDFLAGS) -o $@ $^ -lm{threads}

%.o: %.c $(HEADERS)
	$(CC) -std=gnu11 $(CFLAGS) -c $<

lib{name}.so: $(SOURCES) $(HEADERS)
	$(CC) -std=gnu11 $(CFLAGS) $(LDFLAGS) -fPIC -shared -o $@ $(SOURCES) -lm{threads}{kept}
{check}
clean:
	rm -f {programs} lib{name}.so *.o

.PHONY: all {"check " if check else ""}clean
"""


def _lines(files: Sequence[str]) -> str:
    """A list in a Makefile, in lines of a readable length."""
    return wrapped(files, " ", "  ").lstrip().replace("\n", " \\\n")


def _sources(face: Interface, has_chat: bool) -> list[str]:
    """The C files of the library."""
    pool = ["pool"] if face.threads > 1 else []
    return [f"{face.prefix}.c", *(f"{face.prefix}_{part}.c" for part in (*pool, *_parts(has_chat)[0]))]


def _cmake_lists(face: Interface, has_chat: bool, has_vector: bool) -> str:
    name, libraries, threads, test = face.prefix, "m", "", ""
    if face.threads > 1:
        libraries, threads = "m Threads::Threads", "find_package(Threads REQUIRED)\n"
    if has_vector:
        place = "${CMAKE_CURRENT_SOURCE_DIR}"
        test = f"""
enable_testing()
add_test(NAME check COMMAND {_PROGRAM} --folder {place} --check {place}/{VECTOR})
"""
    return f"""\
# Builds the library {name}, to link with, and programs around it.
cmake_minimum_required(VERSION 3.16)
project({name} LANGUAGES C)
set(CMAKE_C_STANDARD 11)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
{threads}
add_library({name}
{wrapped(_sources(face, has_chat), " ", "  ")})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({name} PUBLIC {libraries})

foreach(program {" ".join(_parts(has_chat)[1])})
  add_executable(${{program}} ${{program}}.c {name}_{_COMMAND}.c)
  target_link_libraries(${{program}} PRIVATE {name})
endforeach()
{test}"""

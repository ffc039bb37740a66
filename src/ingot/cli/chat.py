"""`ingot chat`: a conversation with a language model."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.gguf import named
from ingot.cli.interrupt import Interruptible
from ingot.cli.llm import ModelFolder, stream, summary, with_drafts, with_folder, with_generation
from ingot.cli.terminal import counting, print_folded, print_text, printable
from ingot.cli.text import decoded
from ingot.errors import IngotError, InputError, LimitError
from ingot.support.files import make_folder, written

if TYPE_CHECKING:
    from ingot.llm import LLM

HELP = '''\
/reset              start a new conversation
/system [TEXT]      set the system message and start a new conversation;
                    without TEXT, show it
/set [NAME VALUE]   set a sampling option, as in /set temperature 0.5; without
                    NAME, show the options that are set
/save FILE          write the conversation as JSON
/load FILE          continue a conversation written by /save
/exit, Ctrl-D       leave
/help, /?           show this text
Pasted lines are one message; so are lines between """ and """, and lines that
end in \\. Ctrl-C stops the answer, or discards the line being typed; a second
Ctrl-C during an answer leaves.'''
QUOTES = '"""'
HISTORY_LINES = 1000
MAX_SAVED_BYTES = 64 << 20  # the largest file that /load reads
# Options of /set -> parser of their values.
_SETTINGS: dict[str, Callable[[str], float]] = {
    "max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "min_p": float, "repetition_penalty": float,
    "presence_penalty": float, "frequency_penalty": float, "seed": int,
}  # fmt: skip


@click.command(epilog="Example: ingot chat Qwen/Qwen2.5-0.5B-Instruct")
@with_folder
@click.option("--system", metavar="TEXT", help="System message of the conversation.")
@with_drafts
@with_generation
def chat(folder: ModelFolder, system: str | None, lookup: bool, draft: str | None, generation: dict[str, Any]) -> None:
    """Chat with the language model in FOLDER.

    /help lists the commands of the chat.

    FOLDER is a model folder, a GGUF file, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    conversation = Conversation(folder.open(lookup=lookup, draft=draft), system, generation)
    if sys.stdin.isatty():
        remember_lines()
        print_text(f"{named(folder.path)}, context {conversation.llm.context}. /help for help, Ctrl-D to leave.")
    while (line := read_message()) is not None:
        word, _, rest = line.strip().partition(" ")
        if word in COMMANDS_OF_CHAT and "\n" not in line:
            try:
                reply = COMMANDS_OF_CHAT[word](conversation, rest.strip())
            except (IngotError, OSError) as error:
                reply = f"ingot: {error}"
            print_folded(reply)
            continue
        match line.strip():
            case "":
                continue
            case "/exit":
                return
            case "/help" | "/?":
                click.echo(HELP)
            case word if re.fullmatch(r"/[a-z]+", word):
                click.echo(printable(f"{word}: no such command; /help lists them"))
            case _:
                conversation.answer(line)


def remember_lines() -> None:
    """Set up `input` with line editing, bracketed paste, and a history that is stored on disk."""
    import readline

    import platformdirs

    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.set_history_length(HISTORY_LINES)
    path = Path(platformdirs.user_state_dir("ingot", appauthor=False)) / "chat_history"
    with contextlib.suppress(OSError):  # no history yet, or not readable
        readline.read_history_file(path)

    def write() -> None:
        with contextlib.suppress(OSError, IngotError):  # a history that cannot be stored is not an error
            make_folder(path.parent)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)

    atexit.register(write)


def _read_line(prompt: str) -> str:
    """Return the next line of stdin, which a terminal edits. Raises EOFError, and InputError for no UTF-8."""
    if sys.stdin.isatty():
        return input(prompt)
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return decoded(line.removesuffix(b"\n").removesuffix(b"\r"), "stdin: a line")


def read_message() -> str | None:
    """Read a message: a line, or lines between quotes or joined by a final backslash; None at the end of input."""
    lines: list[str] = []
    is_quoted = False
    while True:
        try:
            line = _read_line("  " if lines else "> ")
        except EOFError:
            if sys.stdin.isatty():
                click.echo()
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            click.echo("\nPress Ctrl-D to leave")
            lines, is_quoted = [], False
            continue
        if not lines and line.startswith(QUOTES):
            line, is_quoted = line.removeprefix(QUOTES), True
        lines.append(line.removesuffix(QUOTES) if is_quoted else line.removesuffix("\\"))
        if line.endswith(QUOTES) if is_quoted else not line.endswith("\\"):
            return "\n".join(lines)


class Conversation:
    """The messages so far. The model's sequence stays cached between answers: only new tokens are computed."""

    def __init__(self, llm: LLM, system: str | None, generation: dict[str, Any]):
        _ = llm.engine, llm.tokenizer, llm.chat_template  # raise errors of missing parts before the user types
        self.llm = llm
        self.generation = generation
        self.system_messages = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self.system_messages)

    def reset(self, _: str = "") -> str:
        """Forget all messages except the system message."""
        self.messages = list(self.system_messages)
        return "started a new conversation"

    def tell(self, text: str) -> str:
        """Set the system message; without text, return the present one."""
        if not text:
            return self.system_messages[0]["content"] if self.system_messages else "no system message"
        self.system_messages = [{"role": "system", "content": text}]
        return self.reset()

    def set(self, text: str) -> str:
        """Change a sampling option; without text, return the options set. Raises InputError for an invalid option."""
        from ingot.llm.sampling import Sampling

        name, _, value = text.partition(" ")
        if not name:
            given = [f"{name} {value}" for name, value in self.generation.items() if name in _SETTINGS]
            return "\n".join(given) or "the model's own options"
        if name not in _SETTINGS:
            raise InputError(f"set: unknown option, got {name!r}, expected one of {', '.join(_SETTINGS)}")
        try:
            number = _SETTINGS[name](value)
        except ValueError as error:
            raise InputError(f"set: {name}: not a number, got {value!r}, expected a number") from error
        if name == "max_tokens" and number < 0:
            raise InputError(f"set: max_tokens: out of range, got {value}, expected 0 or more")
        if name != "max_tokens":
            option: dict[str, Any] = {name: number}
            Sampling(**option)  # raises if the value is out of range
        self.generation[name] = number
        return f"{name} is {number}"

    def save(self, path: str) -> str:
        """Write the messages. Raises InputError, OutputError."""
        with written(_named(path, "save")) as file:
            file.write(json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1).encode())
        return f"{path}: {len(self.messages)} messages"

    def load(self, path: str) -> str:
        """Read messages written by `save`. Raises InputError, LimitError, OSError."""
        with open(_named(path, "load"), "rb") as file:
            content = file.read(MAX_SAVED_BYTES + 1)
        if len(content) > MAX_SAVED_BYTES:
            raise LimitError(f"{path}: too long, got more than {MAX_SAVED_BYTES} bytes, expected fewer")
        try:
            messages = json.loads(content)["messages"]
            found = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path}: no conversation, got {type(error).__name__}, expected a file written by /save"
            ) from error
        self.messages = found
        self.system_messages = [message for message in found[:1] if message["role"] == "system"]
        return f"{path}: {len(found)} messages"

    def answer(self, text: str) -> None:
        """Print the answer to a message and add both to the conversation; a message that fails is not added."""
        self.messages.append({"role": "user", "content": text})
        try:
            modes = self.llm.engine.modes
            with Interruptible(modes) as interruptible, counting("reading the message") as self.llm.engine.on_prefill:
                answer = stream(interruptible.until_stopped(self.llm.stream_chat(self.messages, **self.generation)))
        except (InputError, LimitError) as error:
            self.messages.pop()
            click.echo(printable(f"ingot: {error}; /reset starts a new conversation"), err=True)
            return
        if interruptible.stopped and not answer:
            self.messages.pop()
            click.echo("stopped")
            return
        self.messages.append({"role": "assistant", "content": answer})
        click.echo("" if answer.endswith("\n") else "\n", nl=False)
        usage = self.llm.usage
        if usage.prompt_tokens + usage.completion_tokens >= self.llm.context:
            click.echo(f"the context of {self.llm.context} tokens is full; /reset starts a new one", err=True)
        if sys.stdout.isatty():
            state = "stopped; " if interruptible.stopped else "" if answer else "an empty answer; "
            click.secho(f"{state}{summary(usage)}\n", dim=True)


def _named(path: str, command: str) -> str:
    if not path:
        raise InputError(f"{command}: got no name, expected a file name")
    return path


COMMANDS_OF_CHAT: dict[str, Callable[[Conversation, str], str]] = {
    "/reset": Conversation.reset,
    "/system": Conversation.tell,
    "/set": Conversation.set,
    "/save": Conversation.save,
    "/load": Conversation.load,
}


COMMANDS = [chat]

"""`ingot chat`: a conversation with a language model."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from ingot.cli.llm import ModelFolder, stream, summary, with_folder, with_generation
from ingot.cli.terminal import print_text, printable
from ingot.errors import InputError, LimitError

if TYPE_CHECKING:
    from ingot.llm import LLM

HELP = """\
/reset   forget the conversation
/exit    leave; so does Ctrl-D
/help    this text
A line that ends in \\ goes on in the next one. Ctrl-C stops the answer; a second one leaves."""


@click.command()
@with_folder
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@with_generation
def chat(folder: ModelFolder, system: str | None, generation: dict[str, Any]) -> None:
    """Talk with the language model in FOLDER, or in a GGUF file. /help lists what one can type besides messages."""
    conversation = Conversation(folder.open(), system, generation)
    if sys.stdin.isatty():
        import readline  # noqa: F401  input() then edits lines and remembers them

        print_text(f"{folder.path}, context {conversation.llm.context}. /help for help, Ctrl-D to leave.")
    while (line := read_message()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit":
                return
            case "/reset":
                conversation.reset()
                click.echo("the conversation starts anew")
            case "/help":
                click.echo(HELP)
            case word if re.fullmatch(r"/[a-z]+", word):
                click.echo(printable(f"{word}: no such command; /help lists them"))
            case _:
                conversation.answer(line)


def read_message() -> str | None:
    """A line, or several that are joined by a backslash at the end; None when no more come."""
    lines: list[str] = []
    while True:
        try:
            line = input("  " if lines else "> ") if sys.stdin.isatty() else next(sys.stdin).removesuffix("\n")
        except (EOFError, StopIteration):
            if sys.stdin.isatty():
                click.echo()
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            click.echo("\nCtrl-D leaves")
            lines = []
            continue
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)


class Conversation:
    """What was said so far. The model's sequence goes on from one answer to the next: only new tokens are computed."""

    def __init__(self, llm: LLM, system: str | None, generation: dict[str, Any]):
        self.llm = llm
        self.generation = generation
        self.beginning = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self.beginning)

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = list(self.beginning)

    def answer(self, text: str) -> None:
        """Shows the answer to a message, and keeps both; a message that the model cannot take is not kept."""
        self.messages.append({"role": "user", "content": text})
        try:
            with Interruptible() as interruptible:
                answer = stream(interruptible.until_stopped(self.llm.stream_chat(self.messages, **self.generation)))
        except (InputError, LimitError) as error:
            self.messages.pop()
            click.echo(printable(f"ingot: {error}; /reset starts anew"), err=True)
            return
        self.messages.append({"role": "assistant", "content": answer})
        click.echo("" if answer.endswith("\n") else "\n", nl=False)
        usage = self.llm.usage
        if usage.prompt_tokens + usage.completion_tokens >= self.llm.context:
            click.echo(f"the context of {self.llm.context} tokens is full; /reset starts anew", err=True)
        if sys.stdout.isatty():
            click.secho(f"{'stopped; ' if interruptible.stopped else ''}{summary(usage)}\n", dim=True)


class Interruptible:
    """While it is entered, a Ctrl-C only sets `stopped`, so that a token is never left half computed; the next one
    is a KeyboardInterrupt again."""

    def __init__(self) -> None:
        self.stopped = False

    def __enter__(self) -> Interruptible:
        self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        signal.signal(signal.SIGINT, self._before)

    def until_stopped(self, pieces: Iterator[str]) -> Iterator[str]:
        """The pieces that come before a Ctrl-C."""
        for piece in pieces:
            yield piece
            if self.stopped:
                return


COMMANDS = [chat]

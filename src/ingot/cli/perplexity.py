"""`ingot perplexity`: measure how well a language model predicts a text."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from ingot.cli.llm import ModelFolder, with_folder
from ingot.cli.model import as_json
from ingot.cli.terminal import counting, print_json, print_text
from ingot.errors import InputError


def read_text(path: str) -> str:
    """Read the text of a file, or of stdin for -. Raises InputError, FileNotFoundError."""
    content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8, {error.reason} at byte {error.start}") from error


@click.command(epilog="Example: echo 'import os' | ingot perplexity tiny-lm -")
@with_folder
@click.argument("text", type=click.Path(readable=False))
@click.option("--stride", type=click.IntRange(1), help="Tokens from window to window.  [default: half the context]")
@as_json
def perplexity(folder: ModelFolder, text: str, stride: int | None, as_json: bool) -> None:
    """Measure the perplexity of a language model on a text.

    Prints nats per token and perplexity of the model in FOLDER on the file TEXT; - reads the text from stdin.
    """
    from ingot.llm.perplexity import perplexity as scored

    content, llm = read_text(text), folder.open()
    with counting("scoring") as show:
        found = scored(llm, content, stride=stride, on_progress=show)
    if as_json:
        facts = {"context": llm.context, "precision": llm.options.precision, "perplexity": found.perplexity}
        print_json(asdict(found) | facts)
        return
    print_text(f"{found.tokens} tokens, {found.nats:.4f} nats a token, perplexity {found.perplexity:.4f}")


COMMANDS = [perplexity]

"""`ingot perplexity`: measure how well a language model predicts a text."""

from __future__ import annotations

from dataclasses import asdict

import click

from ingot.cli.llm import ModelFolder, with_folder
from ingot.cli.model import as_json
from ingot.cli.terminal import counting, print_json, print_text
from ingot.cli.text import read_text


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

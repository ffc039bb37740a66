"""Every table of hostile inputs in one process, for interpreters that drop asserts: `python -O -m attacks`.

Prints what went wrong; exits with 1 if anything did.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attacks import (
    hostile_configs,
    hostile_families,
    hostile_folders,
    hostile_gguf,
    hostile_onnx,
    hostile_pt2,
    hostile_subgraphs,
    hostile_templates,
    hostile_tokenizers,
    hostile_types,
    hostile_values,
)
from ingot.errors import IngotError
from ingot.llm.tokenizer import Tokenizer
from ingot.load.aten import load_pt2
from ingot.load.hf import load_language_model, read_folder
from ingot.load.language import read_model
from ingot.load.onnx import load_onnx


def open_folder(build, folder: Path) -> None:
    """Reads a folder, every tensor of it too."""
    build(folder)
    for tensor in read_folder(folder).tensors.values():
        tensor.array()


def open_language_model(build, folder: Path) -> None:
    build(folder)
    load_language_model(read_folder(folder), context=None)


def open_gguf(build, folder: Path) -> None:
    build(folder)
    load_language_model(read_model(folder / "model.gguf"), context=None)


def open_gguf_tokenizer(build, folder: Path) -> None:
    build(folder)
    Tokenizer.read(read_model(folder / "model.gguf"))


def open_onnx(build, folder: Path) -> None:
    source = build()
    load_onnx(source if isinstance(source, bytes) else source.SerializeToString())


def open_pt2(build, folder: Path) -> None:
    build(folder)
    try:
        load_pt2(folder / "model.pt2")
    finally:
        if (folder / "ran").exists():
            raise RuntimeError("code in the file was run")


def open_tokenizer(build, folder: Path) -> None:
    build(folder)
    Tokenizer.read(folder)


def render_template(attack, folder: Path) -> None:
    attack(folder)


# How a table's inputs are opened: (open, attacks); an attack is (name, build, error type, fragment of the message).
TABLES = (
    (open_folder, hostile_folders.ATTACKS),
    (open_tokenizer, hostile_tokenizers.ATTACKS),
    (open_language_model, hostile_configs.ATTACKS),
    (open_gguf, hostile_gguf.ATTACKS),
    (open_gguf_tokenizer, hostile_gguf.TOKENIZERS),
    (render_template, hostile_templates.ATTACKS),
    (open_pt2, hostile_pt2.ATTACKS),
    (
        open_onnx,
        [
            *hostile_onnx.FILES,
            *hostile_onnx.GRAPHS,
            *hostile_onnx.TENSORS,
            *hostile_onnx.ATTRIBUTES,
            *hostile_onnx.BOMBS,
            *hostile_subgraphs.SUBGRAPHS,
            *hostile_types.TYPES,
            *hostile_families.FAMILIES,
            *hostile_values.VALUES,
        ],
    ),
)


def failures() -> Iterator[str]:
    """A line for each attack that did not get its error."""
    for open_input, attacks in TABLES:
        for name, build, error, fragment in attacks:
            with tempfile.TemporaryDirectory() as folder:
                inner = Path(folder) / "model"
                inner.mkdir()
                try:
                    open_input(build, inner)
                except IngotError as caught:
                    if type(caught) is not error or fragment not in str(caught):
                        yield f"{name}: {type(caught).__name__}: {caught}"
                else:
                    yield f"{name}: nothing was raised"


if __name__ == "__main__":
    found = list(failures())
    print("\n".join(found) or f"{sum(len(attacks) for _, attacks in TABLES)} attacks, optimised {sys.flags.optimize}")
    sys.exit(bool(found))

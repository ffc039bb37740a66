"""`ingot run`: arrays in, arrays out."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from ingot.cli.model import Model, as_json, read_array, with_model
from ingot.cli.terminal import print_json, print_table, print_text, progress
from ingot.files import make_folder, written

if TYPE_CHECKING:
    from ingot.session import InferenceSession


@click.command()
@with_model
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]X.npy", help="An input; unnamed ones go in order.")
@click.option(
    "--output", type=click.Path(readable=False, path_type=Path), help="Y.npy for a single output, or a folder."
)
@as_json
def run(model: Model, inputs: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Run MODEL once on .npy files.

    A folder given to --output receives 0.npy, 1.npy, ... and outputs.json, which says which is which. Without
    --output the results are summarised.
    """
    session = model.open(cache=None)
    names = [argument.name for argument in session.get_outputs()]
    if output is not None and output.suffix == ".npy" and len(names) != 1:
        raise click.UsageError(f"--output {output}: the model has {len(names)} outputs; name a folder")
    feeds = read_inputs(session, inputs)
    with progress("running"):
        results = dict(zip(names, session.run(None, feeds), strict=True))
    if output is not None:
        write_outputs(output, results)
    summary = [summarize(name, array) for name, array in results.items()]
    if as_json:
        print_json(summary)
    elif output is None:
        rows = ([_shown(value) for value in row.values()] for row in summary)
        print_table(list(summary[0]), rows, right=["min", "max", "mean"])
    else:
        print_text(f"{output}: " + ", ".join(f"{row['output']} {row['dtype']}{row['shape']}" for row in summary))


def read_inputs(session: InferenceSession, inputs: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The feeds that `[name=]path` arguments mean. Raises UsageError when they do not fit the model's inputs."""
    expected = [argument.name for argument in session.get_inputs()]
    named, unnamed = {}, []
    for text in inputs:
        name = next((n for n in expected if text.startswith(f"{n}=")), None)
        if not text.removeprefix(f"{name}="):
            raise click.UsageError(f"--input: no path, got {text!r}, expected that of an .npy file")
        if name is None and "=" in text and not os.path.exists(text):
            got = text.partition("=")[0]
            raise click.UsageError(f"--input: no such input, got {got!r}, expected {', '.join(map(repr, expected))}")
        if name is None:
            unnamed.append(text)
        elif name in named:
            raise click.UsageError(f"--input: {name!r} is given twice")
        else:
            named[name] = text[len(name) + 1 :]
    free = [name for name in expected if name not in named]
    if len(unnamed) != len(free):
        wanted = ", ".join(f"{a.name} {a.type}{list(a.shape)}" for a in session.get_inputs())
        raise click.UsageError(f"--input: got {len(inputs)}, expected {len(expected)}: {wanted}")
    paths = named | dict(zip(free, unnamed, strict=True))
    return {name: read_array(paths[name]) for name in expected}


def write_outputs(output: Path, results: dict[str, np.ndarray]) -> None:
    """Writes one .npy file, or a folder of numbered ones with an index. Raises OutputError."""
    if output.suffix == ".npy":
        (array,) = results.values()
        with written(output) as file:
            np.save(file, array, allow_pickle=False)
        return
    make_folder(output)
    for number, array in enumerate(results.values()):
        with written(output / f"{number}.npy") as file:
            np.save(file, array, allow_pickle=False)
    with written(output / "outputs.json") as file:
        file.write(json.dumps({f"{number}.npy": name for number, name in enumerate(results)}, indent=2).encode())


def summarize(name: str, array: np.ndarray) -> dict[str, object]:
    """Name, dtype, shape, and the range of one result."""
    row: dict[str, object] = {"output": name, "dtype": str(array.dtype), "shape": list(array.shape)}
    if not array.size:
        return row | {"min": None, "max": None, "mean": None}
    numbers = array.astype(np.float64)
    found = {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    return row | {key: number if math.isfinite(number) else str(number) for key, number in found.items()}


def _shown(value: object) -> object:
    """A cell: numbers to six digits."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


COMMANDS = [run]

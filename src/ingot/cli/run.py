"""`ingot run`: run a model on .npy files or random arrays."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ingot.cli.model import Model, as_json, read_array, with_model
from ingot.cli.output import Output
from ingot.cli.terminal import print_json, print_table, print_text, progress
from ingot.session.inputs import random_inputs
from ingot.support.files import make_folder, written

if TYPE_CHECKING:
    from ingot.session.inference import InferenceSession
    from ingot.session.source import NodeArg


@click.command()
@with_model
@click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]X.npy", help="Input file; files without NAME are used in order."
)
@click.option("--output", type=Output(Path), help="Output file Y.npy if the model has one output, else a folder.")
@click.option("--random", is_flag=True, help="Use random arrays for the inputs without --input.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Random seed, with --random.  [default: 0]")
@as_json
def run(
    model: Model, inputs: tuple[str, ...], output: Path | None, random: bool, seed: int | None, as_json: bool
) -> None:
    """Run MODEL once on .npy files, or on random arrays.

    With --random, floats are in -1..1, integers are 0 or 1, and dims without --dim are 1. The shapes and the seed are
    printed; the same seed gives the same arrays.

    If --output is a folder, the outputs are written as 0.npy, 1.npy, ... (an output that is not an array as JSON, such
    as 1.json), and outputs.json maps file names to output names. Without --output, a summary is printed.
    """
    session = model.open(cache=None)
    types = {argument.name: argument.type for argument in session.get_outputs()}
    names = list(types)
    if output is not None and output.suffix == ".npy":
        if len(names) != 1:
            raise click.UsageError(f"--output {output}: the model has {len(names)} outputs, expected a folder")
        if not types[names[0]].startswith("tensor("):
            raise click.UsageError(f"--output {output}: {names[0]!r} is {types[names[0]]}, no array, expected a folder")
    if seed is not None and not random:
        raise click.UsageError("--seed: got no --random, expected --random")
    feeds = (
        _random_inputs(session, model, inputs, seed or 0, as_json)
        if random
        else read_inputs(session.get_inputs(), inputs)
    )
    with progress("running"):
        results = dict(zip(names, session.run(None, feeds), strict=True))
    if output is not None:
        write_outputs(output, results)
    summary = [summarize(name, value, types[name]) for name, value in results.items()]
    if as_json:
        print_json(summary)
    elif output is None:
        rows = ([_shown(value) for value in row.values()] for row in summary)
        print_table(list(summary[0]), rows, right=["min", "max", "mean"])
    else:
        print_text(f"{output}: " + ", ".join(f"{row['output']} {row['dtype']}{row['shape']}" for row in summary))


def _random_inputs(
    session: InferenceSession, model: Model, inputs: tuple[str, ...], seed: int, is_quiet: bool
) -> dict[str, Any]:
    """Return the arrays of --input and random arrays for the other inputs, by input name."""
    drawn = random_inputs(session.interface, model.dims, seed)
    given = read_inputs(session.get_inputs(), inputs, is_part=True)
    if not is_quiet:
        for name, array in drawn.items():
            if name in given:
                continue
            print_text(f"random input {name}: {array.dtype}{list(array.shape)}, seed {seed}")
    return drawn | given


def read_inputs(arguments: Sequence[NodeArg], inputs: tuple[str, ...], is_part: bool = False) -> dict[str, np.ndarray]:
    """Read the arrays of `[name=]path` options by input name. arguments: the model's. is_part: some may be missing.

    Raises UsageError if the arguments do not fit the model's inputs.
    """
    expected = [argument.name for argument in arguments]
    named, unnamed = {}, []
    for text in inputs:
        name = next((n for n in expected if text.startswith(f"{n}=")), None)
        if not text.removeprefix(f"{name}="):
            raise click.UsageError(f"--input: no path, got {text!r}, expected the path of an .npy file")
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
    if len(unnamed) > len(free) or (len(unnamed) < len(free) and not is_part):
        wanted = ", ".join(f"{a.name} {a.type}{list(a.shape)}" for a in arguments)
        hint = "" if inputs else "; use --random for random arrays"
        raise click.UsageError(f"--input: got {len(inputs)}, expected {len(expected)}: {wanted}{hint}")
    paths = named | dict(zip(free, unnamed, strict=False))
    return {name: read_array(paths[name]) for name in expected if name in paths}


def write_outputs(output: Path, results: dict[str, Any]) -> None:
    """Write one .npy file, or a folder of numbered files with an index; an output that is not an array becomes .json.

    Raises OutputError.
    """
    if output.suffix == ".npy":
        (array,) = results.values()
        _write_array(output, array)
        return
    make_folder(output)
    index = {}
    for number, (name, value) in enumerate(results.items()):
        file_name = f"{number}.npy" if isinstance(value, np.ndarray) else f"{number}.json"
        index[file_name] = name
        if isinstance(value, np.ndarray):
            _write_array(output / file_name, value)
        else:
            _write_json(output / file_name, _plain(value))
    _write_json(output / "outputs.json", index)


def _write_array(path: Path, array: np.ndarray) -> None:
    """Write an array as .npy; strings in numpy's string dtype, which needs no pickle."""
    with written(path) as file:
        np.save(file, array.astype(str) if array.dtype == object else array, allow_pickle=False)


def _write_json(path: Path, document: Any) -> None:
    with written(path) as file:
        file.write(json.dumps(document, indent=2).encode())


def _plain(value: Any) -> Any:
    """Return a value in JSON types: arrays become lists, non-finite numbers become text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(each) for each in (value if isinstance(value, list) else value.tolist())]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def summarize(name: str, value: Any, type: str) -> dict[str, object]:
    """Return name, dtype, shape and range of one result. type: the ONNX type, shown if the result is not an array."""
    is_array = isinstance(value, np.ndarray)
    dtype = type if not is_array else "string" if value.dtype == object else str(value.dtype)
    shape = list(value.shape) if is_array else [len(value)] if isinstance(value, list) else []
    row: dict[str, object] = {"output": name, "dtype": dtype, "shape": shape}
    numbers = _numbers(value)
    if not numbers.size:
        return row | {"min": None, "max": None, "mean": None}
    found = {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    return row | {key: number if math.isfinite(number) else str(number) for key, number in found.items()}


def _numbers(value: Any) -> np.ndarray:
    """Return all numbers in a value as one array."""
    if isinstance(value, list):
        return np.concatenate([np.empty(0), *(_numbers(each).ravel() for each in value)])
    if isinstance(value, dict):
        return np.array([*value.values()], np.float64)
    return np.empty(0) if value is None or value.dtype == object else value.astype(np.float64)


def _shown(value: object) -> object:
    """Return a table cell: floats with six digits, None as nothing."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


COMMANDS = [run]

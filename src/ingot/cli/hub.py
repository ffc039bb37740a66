"""`ingot pull` and `ingot list`: fetch and list language models and encoders by name."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import asdict

import click

from ingot.cli.fetch import agree
from ingot.cli.model import as_json
from ingot.cli.terminal import human_bytes, print_json, print_table, print_text
from ingot.errors import IngotError, InputError

_DAY = 86400


@click.command(epilog="Example: ingot pull Qwen/Qwen2.5-0.5B-Instruct --yes")
@click.argument("name", metavar="OWNER/NAME[@REVISION]")
@click.option("--revision", metavar="R", help="Branch, tag or commit hash.  [default: main]")
@click.option("--yes", is_flag=True, help="Download without asking.")
@as_json
def pull(name: str, revision: str | None, yes: bool, as_json: bool) -> None:
    """Download or update a model of the Hugging Face hub.

    The files go into the hub's cache. NAME refers to the branch's present commit until the next pull. Only
    configuration, tokenizer and safetensors weights are downloaded: no code and no pickled files.
    """
    from ingot.load.hub import fetch, hub_model, plan_fetch, shown_name

    model = hub_model(name if revision is None else f"{name}@{revision}")
    if model is None:
        raise InputError(f"model: not a name on the hub, got {name!r}, expected OWNER/NAME or OWNER/NAME@REVISION")
    wanted = plan_fetch(model)
    agree(wanted, yes)
    folder = fetch(wanted)
    if as_json:
        print_json({"name": name, "commit": wanted.commit, "folder": folder})
    else:
        print_text(f"{shown_name(folder)}\n{folder}")


@click.command("list", epilog="Example: ingot list")
@as_json
def list_models(as_json: bool) -> None:
    """List the models that can be used by name.

    These are the models shipped with Ingot and those in the Hugging Face hub's cache.
    """
    from ingot.load.hub import named_models

    models = [(model, dtype_of(model.path)) for model in named_models()]
    if as_json:
        print_json([asdict(model) | {"dtype": dtype} for model, dtype in models])
        return
    rows = ((m.name, human_bytes(m.nbytes), dtype or "-", since(m.used)) for m, dtype in models)
    print_table(["name", "size", "dtype", "last used"], rows, right=["size"])


def dtype_of(path: str) -> str | None:
    """Return the dtype of most weight bytes in a model folder; None for a file or an unreadable folder."""
    from ingot.load.hf import read_folder

    counts: Counter[str] = Counter()
    if not os.path.isdir(path):
        return None
    try:
        for tensor in read_folder(path).tensors.values():
            counts[str(tensor.dtype)] += tensor.nbytes
    except IngotError:
        return None
    return counts.most_common(1)[0][0] if counts else None


def since(seconds: float | None) -> str:
    """Return how many days ago a time was; the time is in seconds since 1970."""
    if seconds is None:
        return "ships with ingot"
    days = int((time.time() - seconds) // _DAY)
    return "today" if days < 1 else f"{days} day{'s' * (days > 1)} ago"


COMMANDS = [pull, list_models]

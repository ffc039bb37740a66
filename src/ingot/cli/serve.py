"""`ingot serve`: a server of models."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingot.cli.fetch import local
from ingot.cli.llm import byte_count, with_drafts, with_language
from ingot.cli.terminal import print_text, progress
from ingot.errors import InputError, ResourceError

if TYPE_CHECKING:
    from ingot.llm.keywords import ModelKeywords, StepKeywords

LOCAL = ("127.0.0.1", "::1", "localhost")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:@-]*)=(.+)")


@click.command(epilog="Example: ingot serve tiny-lm digits=digits.onnx --idle 600")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@click.option("--yes", is_flag=True, help="Download models from the Hugging Face hub without asking.")
@with_language
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: any free one.")
@click.option("--sequences", type=click.IntRange(1, 256), default=8, show_default=True, help="Answers drawn together.")
@click.option("--cache", type=click.IntRange(1), metavar="N", help="Positions of the cache.  [default: enough for all]")
@click.option(
    "--checkpoints",
    type=click.IntRange(0, 4096),
    metavar="N",
    help="States of prefixes kept by models with recurrent states or windows.  [default: --sequences]",
)
@click.option(
    "--cache-dir", type=click.Path(path_type=Path), help="Folder for prefixes that later processes need not compute."
)
@click.option(
    "--cache-dir-bytes", callback=byte_count, metavar="BYTES", default="8GiB", show_default=True, help="Its limit."
)
@click.option("--queue", type=click.IntRange(1), default=256, show_default=True, help="Answers that may wait.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Rows of requests that a plain model joins; 1: none.",
)
@click.option(
    "--memory",
    callback=byte_count,
    metavar="BYTES",
    help="Memory of all loaded models, such as 4GiB.  [default: 80 % of this process's limit]",
)
@click.option(
    "--idle",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Unload a model after so long without a request.  [default: never]",
)
@click.option(
    "--api-key", "api_keys", multiple=True, envvar="INGOT_API_KEY", help="Key that clients must send; several."
)
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with a key in each line.")
@click.option("--allowed-host", "hosts", multiple=True, help="Further name of the server in requests, as of a proxy.")
@click.option("--cors-origin", "origins", multiple=True, help="Web site whose pages may use the server; *: any.")
@click.option(
    "--drain", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds for the last answers."
)
@click.option("--log-json", is_flag=True, help="Write log lines as JSON objects.")
@with_drafts
def serve(
    models: tuple[str, ...], yes: bool, language: ModelKeywords, host: str, port: int, sequences: int,
    cache: int | None, checkpoints: int | None, queue: int, batch: int, memory: int | None, idle: float | None,
    api_keys: tuple[str, ...], api_key_file: Path | None, hosts: tuple[str, ...], origins: tuple[str, ...],
    drain: float, log_json: bool, lookup: bool, draft: str | None, cache_dir: Path | None, cache_dir_bytes: int,
) -> None:  # fmt: skip
    """Serve models over HTTP.

    Language models answer by the protocols of OpenAI and Anthropic: clients use http://HOST:PORT/v1 as their base URL,
    and http://HOST:PORT is a page for conversations. Other models answer by the Open Inference Protocol. Ctrl-C or
    SIGTERM ends the server after its answers.

    The first MODEL is loaded at once, each other one when a request needs it. NAME is its name for clients. MODEL is a
    model folder, a GGUF or ONNX file, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    try:
        from ingot.serve.access import LOCAL_HOSTS, keys_of_file
        from ingot.serve.app import application
        from ingot.serve.connections import Limits, Server
        from ingot.serve.log import configure
        from ingot.serve.models import Models
        from ingot.serve.sources import Opening, usual_budget
    except ModuleNotFoundError as error:
        raise ResourceError(f"serve: no {error.name}, expected pip install 'ingot-compiler[serve]'") from error
    keys = [*api_keys, *(keys_of_file(api_key_file) if api_key_file else [])]
    if host not in LOCAL and not keys:
        click.echo(f"ingot: {host} is open to other machines without a key; --api-key sets one", err=True)
    allowed = {*LOCAL_HOSTS, *hosts} if host in LOCAL else hosts
    budget = usual_budget() if memory is None else memory
    steps: StepKeywords = {"cache_positions": cache, "checkpoints": checkpoints, "lookup": lookup, "draft": draft}
    steps |= {"cache_dir": cache_dir, "cache_dir_bytes": cache_dir_bytes}
    opening = Opening(language, sequences, queue, budget, batch, steps)
    sources = {name: opening.source(path) for name, path in paths_of(models, yes).items()}
    served = Models(sources, budget, idle)
    first, *others = sources
    with progress(f"loading {first}"):
        served.preload()
    with listening(host, port) as listener, contextlib.suppress(KeyboardInterrupt):
        configure(log_json)
        also = f" and {len(others)} more" if others else ""
        address = f"http://{host}:{listener.getsockname()[1]}/v1"

        def announce() -> None:
            print_text(f"serving {first}{also}: {address}")
            sys.stdout.flush()

        server = Server(application(served, keys, allowed, origins), Limits(drain_seconds=drain), announce)
        server.run([listener])
    if server.failed:
        raise ResourceError("serve: the service of a model has ended by a bug; the log has its position")


def paths_of(models: tuple[str, ...], yes: bool) -> dict[str, str]:
    """Return the path of each model by its name for clients. Raises InputError for two of one name, and the errors of
    `local`.
    """
    paths: dict[str, str] = {}
    for model in models:
        named = None if os.path.exists(model) else _NAMED.fullmatch(model)
        path = local(model if named is None else named[2], yes)
        name = usual_name(model) if named is None else named[1]
        if name in paths:
            raise InputError(f"model {name!r}: two of one name, got {paths[name]} and {path}, expected NAME=MODEL")
        paths[name] = path
    return paths


def usual_name(model: str) -> str:
    """Return the name of a model without one: that on the hub, or of its file or folder, without a suffix."""
    if not os.path.exists(model):
        return model
    name = os.path.basename(os.path.abspath(model))
    return name.removesuffix(".onnx").removesuffix(".gguf").removesuffix(".pt2")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ResourceError for an address that is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ResourceError(f"{host}:{port}: cannot listen, got {error.strerror}") from error


COMMANDS = [serve]

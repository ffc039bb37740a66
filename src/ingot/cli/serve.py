"""`ingot serve`: a server of a language model."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import click

from ingot.cli.llm import ModelFolder, with_folder
from ingot.cli.terminal import print_text
from ingot.errors import ResourceError
from ingot.load.hub import shown_name

LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command(epilog="Example: ingot serve tiny-lm")
@with_folder
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: any free one.")
@click.option("--name", help="Name of the model for clients.  [default: FOLDER]")
@click.option("--sequences", type=click.IntRange(1, 256), default=8, show_default=True, help="Answers drawn together.")
@click.option("--queue", type=click.IntRange(1), default=256, show_default=True, help="Answers that may wait.")
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
def serve(
    folder: ModelFolder,
    host: str,
    port: int,
    name: str | None,
    sequences: int,
    queue: int,
    api_keys: tuple[str, ...],
    api_key_file: Path | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    drain: float,
    log_json: bool,
) -> None:
    """Serve a language model by OpenAI's protocol.

    Clients use http://HOST:PORT/v1 as their base URL. Ctrl-C or SIGTERM ends the server after its answers.

    FOLDER is a model folder, a GGUF file, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    try:
        from ingot.serve import app
        from ingot.serve.access import LOCAL_HOSTS, keys_of_file
        from ingot.serve.connections import Limits, Server
        from ingot.serve.log import configure
    except ModuleNotFoundError as error:
        raise ResourceError(f"serve: no {error.name}, expected pip install 'ingot-compiler[serve]'") from error
    keys = [*api_keys, *(keys_of_file(api_key_file) if api_key_file else [])]
    if host not in LOCAL and not keys:
        click.echo(f"ingot: {host} is open to other machines without a key; --api-key sets one", err=True)
    allowed = {*LOCAL_HOSTS, *hosts} if host in LOCAL else hosts
    model = shown_name(folder.path) if name is None else name
    served = app(folder.open(sequences), model, api_keys=keys, hosts=allowed, origins=origins, max_waiting=queue)
    configure(log_json)
    with listening(host, port) as listener, contextlib.suppress(KeyboardInterrupt):
        address = f"http://{host}:{listener.getsockname()[1]}/v1"

        def announce() -> None:
            print_text(f"serving {model}: {address}")
            sys.stdout.flush()

        server = Server(served, Limits(drain_seconds=drain), announce)
        server.run([listener])
    if server.failed:
        raise ResourceError("serve: the model's service has ended by a bug; the log has its position")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ResourceError for an address that is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ResourceError(f"{host}:{port}: cannot listen, got {error.strerror}") from error


COMMANDS = [serve]

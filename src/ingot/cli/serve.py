"""`ingot serve`: a server of a language model."""

from __future__ import annotations

import contextlib
import socket
import sys

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
@click.option("--api-key", envvar="INGOT_API_KEY", help="Key that clients must send.")
def serve(
    folder: ModelFolder, host: str, port: int, name: str | None, sequences: int, queue: int, api_key: str | None
) -> None:
    """Serve a language model by OpenAI's protocol.

    Clients use http://HOST:PORT/v1 as their base URL; http://HOST:PORT is a page for conversations.
    Ctrl-C or SIGTERM ends the server after its answers.

    FOLDER is a model folder, a GGUF file, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    try:
        import uvicorn

        from ingot.serve import app
    except ModuleNotFoundError as error:
        raise ResourceError(f"serve: no {error.name}, expected pip install 'ingot-compiler[serve]'") from error
    if host not in LOCAL and api_key is None:
        click.echo(f"ingot: {host} is open to other machines without a key; --api-key sets one", err=True)
    model = shown_name(folder.path) if name is None else name
    served = app(folder.open(sequences), model, api_key=api_key, max_waiting=queue)
    config = uvicorn.Config(served, log_level="warning", timeout_keep_alive=30)
    with listening(host, port) as listener, contextlib.suppress(KeyboardInterrupt):
        print_text(f"serving {model}: http://{host}:{listener.getsockname()[1]}/v1")
        sys.stdout.flush()
        uvicorn.Server(config).run([listener])


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ResourceError for an address that is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ResourceError(f"{host}:{port}: cannot listen, got {error.strerror}") from error


COMMANDS = [serve]

"""The command `ingot serve tiny-lm`, and connections to a server."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

COMMAND = [sys.executable, "-c", "from ingot.cli import main; main()", "serve", "tiny-lm", "--port", "0"]


@contextlib.contextmanager
def command(*options: str, prelude: str = "") -> Iterator[tuple[subprocess.Popen, str]]:
    """A process of `ingot serve tiny-lm` with options, after some Python code: the process and its address."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    python, flag, code, *rest = COMMAND
    with subprocess.Popen([python, flag, prelude + code, *rest, *options], text=True, **pipes) as process:
        try:
            line = process.stdout.readline()
            yield process, line.removeprefix("serving tiny-lm: ").removesuffix("/v1\n")
        finally:
            process.kill()


def opened(address: str) -> socket.socket:
    """A connection to a server."""
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def everything(connection: socket.socket) -> bytes:
    """What a connection receives until its end. A reset is an end, too."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return bytes(received)


def post(path: str, content: bytes, *headers: str) -> bytes:
    """The bytes of a request."""
    head = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return "\r\n".join([*head, f"content-length: {len(content)}", "\r\n"]).encode() + content

"""Servers of tiny-lm for tests: in a thread of this process, and by the command."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.serve import app
from ingot.serve.connections import Limits, Server

COMMAND = [sys.executable, "-c", "from ingot.cli import main; main()", "serve", "tiny-lm", "--port", "0"]


@contextlib.contextmanager
def served(limits: Limits | None = None, sequences: int = 4, **options) -> Iterator[str]:
    """A server in this process, with options of `app`: its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        llm = ingot.LLM(FOLDER, precision="f32", sequences=sequences)
        server = Server(app(llm, "tiny-lm", **options), limits)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield "http://{}:{}".format(*listening.getsockname())
        finally:
            server.should_exit = True
            thread.join()


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

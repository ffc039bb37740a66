"""The server of an ASGI application: limits of connections, and the end of the server.

uvicorn answers requests. It has no limit for the time in which a request arrives, for the size of its headers, for idle
connections, or for a client that does not read: `Connection` adds them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import FrameType
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ingot.serve.app import shaped
from ingot.serve.errors import refusal

KEEP_ALIVE_SECONDS = 30  # an idle connection is closed after them
ACCEPT_SECONDS = 0.1  # in which a server that ends accepts the connections that are open already
LAST_SECONDS = 1  # in which a request arrives that has begun when the server ends
GRACE_SECONDS = 10  # in which answers end after they were stopped
ROUNDS = 20  # in which the end of a server measures a time


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server's connections.

    connections: the most that are open; further ones get status 503. header_bytes: of a request's first line and
    headers; longer ones get status 431. arrival_seconds: from the first byte of a request (or from the opening of the
    connection) to its last byte; later ones get status 408. stall_seconds: the time in which a client must read when
    the buffer of its connection is full; then the connection is closed and the answer is cancelled. drain_seconds: the
    time that answers have after SIGTERM; then they end with an error.
    """

    connections: int = 512
    header_bytes: int = 64 << 10
    arrival_seconds: float = 60
    stall_seconds: float = 30
    drain_seconds: float = 30


class _Timer:
    """Calls a function after some seconds, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]):
        self._loop, self._action = loop, action
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Whether the function will be called."""
        return self._handle is not None

    def start(self, seconds: float) -> None:
        """Call the function after so many seconds from now."""
        self.stop()
        self._handle = self._loop.call_later(seconds, self._end)

    def stop(self) -> None:
        """Call the function no more."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._action()


class Connection(HttpToolsProtocol):
    """A connection of HTTP/1.1 with limits."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, or refuse the connection."""
        super().connection_made(transport)
        self._header_bytes = 0
        self._in_headers = self._in_body = False  # of the request that arrives
        self._unanswered: list[RequestResponseCycle] = []  # requests whose response is not complete, in order
        self._arrival = _Timer(self.loop, self._end_arrival)
        self._stall = _Timer(self.loop, transport.abort)
        self._is_ending = False
        if len(self.connections) > self.limits.connections:
            self.refuse(503, f"connections: too many, expected at most {self.limits.connections}")
        else:
            self._arrival.start(self.limits.arrival_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timers and the answers with the connection. uvicorn ends the last answer alone."""
        self._arrival.stop()
        self._stall.stop()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a request, and count those of its headers."""
        if not self._arrival.is_running:
            self._arrival.start(self.limits.arrival_seconds)
        was_in_headers = self._in_headers
        super().data_received(data)
        if was_in_headers and self._in_headers:
            self._header_bytes += len(data)
            self._expect_short(self._header_bytes)

    def on_message_begin(self) -> None:
        """Begin to count the time of a request and the bytes of its headers."""
        self._arrival.start(LAST_SECONDS if self._is_ending else self.limits.arrival_seconds)
        self._in_headers, self._header_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the application on a request, unless its headers are too large."""
        self._expect_short(len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers))
        self._in_headers = False
        if not self.transport.is_closing():
            super().on_headers_complete()
            self._in_body = True
            self._unanswered.append(self.cycle)
            self.cycle.keep_alive = self.cycle.keep_alive and not self._is_ending

    def on_body(self, body: bytes) -> None:
        """Pass bytes of the body on, unless the request was refused."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer of the request."""
        self._arrival.stop()
        self._in_body = False
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Remove the request, and wait for the next one."""
        del self._unanswered[0]
        super().on_response_complete()
        if self._unanswered:  # the time of the next one is not idle, as older versions of uvicorn have it
            self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        self._stall.start(self.limits.stall_seconds)

    def resume_writing(self) -> None:
        """Stop the timer of a client that reads again."""
        self._stall.stop()
        super().resume_writing()

    def shutdown(self) -> None:
        """Close the connection after the requests that have begun. A client that has only connected may send one."""
        self._is_ending = True
        if self._arrival.is_running and not self._unanswered:
            self._arrival.start(LAST_SECONDS)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not a request of HTTP/1.1."""
        self.refuse(400, f"request: not HTTP/1.1, {msg}")

    def refuse(self, status: int, message: str) -> None:
        """Send an error in the shape of the path's protocol, unless a response has begun, and close the connection."""
        if not any(cycle.response_started for cycle in self._unanswered) and len(self._unanswered) < 2:
            content = json.dumps(shaped(self._path(), refusal(status, message))).encode()
            head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json",
                    f"content-length: {len(content)}", "connection: close"]  # fmt: skip
            self.transport.write("\r\n".join([*head, "\r\n"]).encode() + content)
        self.transport.close()

    def _path(self) -> str:
        """Return the path of the last request as far as it has arrived, without the query."""
        return unquote(getattr(self, "url", b"").partition(b"?")[0].decode("latin-1"))

    def _expect_short(self, size: int) -> None:
        if size > self.limits.header_bytes and not self.transport.is_closing():
            self.refuse(431, f"headers: too large, expected at most {self.limits.header_bytes} bytes")

    def _end_arrival(self) -> None:
        """Refuse a request that arrives too slowly. While an earlier one is answered, uvicorn may not read it."""
        if len(self._unanswered) > self._in_body:
            self._arrival.start(self.limits.arrival_seconds)
        elif self._in_headers or self._unanswered:
            self.refuse(408, f"request: too slow, expected within {self.limits.arrival_seconds} seconds")
        else:
            self.transport.close()


async def _wait(seconds: float) -> None:
    """Wait for some seconds in which this process runs: a pause from outside counts as a round at most."""
    for _ in range(ROUNDS):
        await asyncio.sleep(seconds / ROUNDS)


class Server(uvicorn.Server):
    """A server of `ingot.serve.app` that answers every request that it has received before it ends.

    announce: called when the server answers requests and signals. After `run`, `failed` is whether the application has
    ended by itself, after a bug.
    """

    def __init__(self, app: Starlette, limits: Limits | None = None, announce: Callable[[], None] | None = None):
        self.app = app
        self.announce = announce
        self.limits = Limits() if limits is None else limits
        self.failed = False
        protocol = type("LimitedConnection", (Connection,), {"limits": self.limits})
        super().__init__(
            uvicorn.Config(
                app, http=protocol, ws="none", log_config=None, access_log=False, server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and announce it."""
        await super().startup(sockets)
        if self.announce is not None:
            self.announce()

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server ends: after a signal, or when the application has ended."""
        self.failed = self.failed or (not self.should_exit and not self.app.state.is_alive())
        return await super().on_tick(counter) or self.failed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no further connection, wait for the answers in progress, and end the application."""
        self.app.state.is_ending = True
        await _wait(ACCEPT_SECONDS)
        ending = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        """Stop the answers that take too long; then close the connections of clients that do not read their errors."""
        await _wait(self.limits.drain_seconds)
        self._stop_answers()
        await _wait(GRACE_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the server at a signal; at a second one, end its answers with an error."""
        if self.should_exit:
            self._stop_answers()
        else:
            super().handle_exit(sig, frame)

    def _stop_answers(self) -> None:
        """End the answers in a thread: it waits for a step of the model, and the event loop goes on."""
        threading.Thread(target=self.app.state.stop, daemon=True).start()
